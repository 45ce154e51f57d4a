//! The control socket: requests from `fenxi ctl` and from whoever speaks [`super::protocol`].
//!
//! Only root and the user that fenxi runs as are served, by the credentials that the kernel has of the peer; the mode of
//! the socket's file is a second lock. Lines are bounded, and so are the time for each and the connections at a time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::Plane;
use super::http::ACCEPT_PAUSE;
use super::protocol::{Code, Reply, Request};
use super::sockets::UnixSocket;

/// Connections at a time.
const CONNECTIONS: usize = 8;

/// Bytes of a request, with its line feed, at most.
const LINE_MAX: u64 = 4096;

/// How long the next request may take to come, and a reply to be taken.
const LINE_WITHIN: Duration = Duration::from_secs(5);

/// Serves on the socket from now on.
///
/// # Errors
/// The runtime cannot take the socket.
pub fn start(socket: UnixSocket, plane: Arc<Plane>) -> io::Result<()> {
    let UnixSocket { listener, file } = socket;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    tokio::spawn(async move {
        let _file = file;
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            match room.clone().try_acquire_owned() {
                Ok(place) => {
                    tokio::spawn(converse(stream, plane.clone(), place));
                }
                Err(_) => turn_away(stream, Code::Busy, "too many connections").await,
            }
        }
    });
    Ok(())
}

/// One connection, to its end.
async fn converse(stream: UnixStream, plane: Arc<Plane>, _place: OwnedSemaphorePermit) {
    if !is_allowed(&stream) {
        let why = "only root and the user that fenxi runs as may use this socket";
        return turn_away(stream, Code::Forbidden, why).await;
    }
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let line = match timeout(LINE_WITHIN, read_line(&mut reader)).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None) | Err(_)) => return,
            Err(_) => {
                let late = Reply::refused(Code::TimedOut, "no request came");
                let _ = write(&mut writer, &late).await;
                return;
            }
        };
        let _replying = plane.replying.read().await;
        let (reply, goes_on) = match line {
            Line::Whole(line) => match serde_json::from_slice::<Request>(&line) {
                Ok(request) => (plane.answer(request).await, true),
                Err(error) => (Reply::refused(Code::Malformed, error.to_string()), true),
            },
            // Where the next request would begin, nobody knows.
            Line::TooLong => {
                let why = format!("a request has {LINE_MAX} bytes at most");
                (Reply::refused(Code::TooLong, why), false)
            }
        };
        if write(&mut writer, &reply).await.is_err() || !goes_on {
            return;
        }
    }
}

/// Root, or who we are.
fn is_allowed(stream: &UnixStream) -> bool {
    let us = rustix::process::geteuid().as_raw();
    stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == us)
}

enum Line {
    Whole(Vec<u8>),
    TooLong,
}

/// The next line; `None` at the end, where what was begun does not count.
async fn read_line(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    let read = reader.take(LINE_MAX).read_until(b'\n', &mut line).await?;
    Ok(match line.last() {
        Some(b'\n') => Some(Line::Whole(line)),
        _ if read as u64 == LINE_MAX => Some(Line::TooLong),
        _ => None,
    })
}

async fn write(writer: &mut OwnedWriteHalf, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    timeout(LINE_WITHIN, writer.write_all(&line)).await?
}

/// Says why nothing is answered, if that can be said at once.
async fn turn_away(stream: UnixStream, code: Code, why: &str) {
    let (_, mut writer) = stream.into_split();
    let refused = Reply::refused(code, why);
    let _ = timeout(ACCEPT_PAUSE, write(&mut writer, &refused)).await;
}
