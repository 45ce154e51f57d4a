//! The control socket: requests from `fenxi ctl` and other clients that speak [`crate::protocol`].
//!
//! Only root and the user that fenxi runs as are served, by the peer's credentials from the kernel;
//! the mode of the socket's file is a second lock. The length of a line, the time for it and the
//! number of connections are bounded; a new connection takes the place of one without a request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::Plane;
use super::http::{ACCEPT_PAUSE, with_peer};
use super::room::{Peer, Place, Room, Stage};
use crate::protocol::{CHANGES_MAX, Code, Reply, Request, TRUTH_MAX};
use crate::unix_socket::{UnixSocket, is_trusted};

/// Maximum number of connections.
const CONNECTIONS: usize = 16;

/// Maximum bytes of a request, with its line feed.
const LINE_MAX: u64 = 4096;

/// Beginnings of requests that may be longer: a batch of changes of the rules, labels of flows.
const LONG: [&[u8]; 2] = [b"{\"command\":\"policy_change\"", b"{\"command\":\"model_truth\""];

/// Maximum bytes of such a request: JSON makes text with many quotation marks longer.
const LONG_LINE_MAX: u64 = CHANGES_MAX as u64 * 3 / 2;
const _: () = assert!(TRUTH_MAX <= CHANGES_MAX);

/// Time limit for the next request to arrive, and for the peer to take a reply.
const LINE_WITHIN: Duration = Duration::from_secs(5);

/// Starts to serve on the socket.
pub fn start(socket: UnixSocket, plane: Arc<Plane>) -> io::Result<()> {
    let UnixSocket { listener, file } = socket;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let room = Room::new(CONNECTIONS);
    // One long request at a time bounds the memory for them.
    let long = Arc::new(Semaphore::new(1));
    tokio::spawn(async move {
        let _file = file;
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let (stream, peer) = with_peer(stream);
            if !is_allowed(peer) {
                let why = "only root and the user that fenxi runs as may use this socket";
                turn_away(stream, Code::Forbidden, why).await;
                continue;
            }
            match room.enter(peer) {
                Some(place) => {
                    tokio::spawn(converse(stream, plane.clone(), place, long.clone()));
                    // Lets it read a waiting request before the next connection may take its place.
                    yield_now().await;
                }
                None => turn_away(stream, Code::Busy, TOO_MANY).await,
            }
        }
    });
    Ok(())
}

const TOO_MANY: &str = "too many connections";

/// Serves one connection to its end, or until another one takes its place.
async fn converse(stream: UnixStream, plane: Arc<Plane>, place: Place, long: Arc<Semaphore>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        place.set(Stage::Asking);
        let read = tokio::select! {
            read = timeout(LINE_WITHIN, read_line(&mut reader, &long)) => read,
            () = place.taken_away() => {
                let busy = Reply::refused(Code::Busy, TOO_MANY);
                let _ = timeout(ACCEPT_PAUSE, write(&mut writer, &busy)).await;
                return;
            }
        };
        let line = match read {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None) | Err(_)) => return,
            Err(_) => {
                let late = Reply::refused(Code::TimedOut, "no request came");
                let _ = write(&mut writer, &late).await;
                return;
            }
        };
        place.set(Stage::Working);
        let _replying = plane.replying.read().await;
        let (reply, goes_on) = match line {
            // The permit of a long request is held until it is answered.
            Line::Whole(line, _permit) => match serde_json::from_slice::<Request>(&line) {
                Ok(request) => (plane.answer(request).await, true),
                Err(error) => (Reply::refused(Code::Malformed, error.to_string()), true),
            },
            Line::Busy => {
                let why = "busy: another long request is being read; try again when it is done";
                (Reply::refused(Code::Busy, why), false)
            }
            // The beginning of the next request is unknown, so the connection ends.
            Line::TooLong => {
                let why = format!("a request may have at most {LINE_MAX} bytes");
                (Reply::refused(Code::TooLong, why), false)
            }
        };
        place.set(Stage::Taking);
        let is_taken = tokio::select! {
            written = write(&mut writer, &reply) => written.is_ok(),
            () = place.taken_away() => false,
        };
        if !is_taken || !goes_on {
            return;
        }
    }
}

fn is_allowed(peer: Peer) -> bool {
    matches!(peer, Peer::User(user) if is_trusted(user))
}

enum Line<'a> {
    /// A request, with the permit if it is long.
    Whole(Vec<u8>, Option<SemaphorePermit<'a>>),
    TooLong,
    /// It is long, and another long one is being answered.
    Busy,
}

/// The next line; `None` at the end, even after an incomplete line.
async fn read_line<'a>(
    reader: &mut BufReader<OwnedReadHalf>,
    long: &'a Semaphore,
) -> io::Result<Option<Line<'a>>> {
    let mut line = Vec::new();
    let mut read = reader.take(LINE_MAX).read_until(b'\n', &mut line).await? as u64;
    let mut permit = None;
    let may_be_long = LONG.iter().any(|long| line.starts_with(long));
    if read == LINE_MAX && line.last() != Some(&b'\n') && may_be_long {
        permit = long.try_acquire().ok();
        if permit.is_none() {
            return Ok(Some(Line::Busy));
        }
        let rest = reader.take(LONG_LINE_MAX - LINE_MAX);
        read += { rest }.read_until(b'\n', &mut line).await? as u64;
    }
    let most = match permit {
        Some(_) => LONG_LINE_MAX,
        None => LINE_MAX,
    };
    Ok(match line.last() {
        Some(b'\n') => Some(Line::Whole(line, permit)),
        _ if read == most => Some(Line::TooLong),
        _ => None,
    })
}

async fn write(writer: &mut OwnedWriteHalf, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    timeout(LINE_WITHIN, writer.write_all(&line)).await?
}

/// Refuses a connection; gives up if the peer does not take the reply at once.
async fn turn_away(stream: UnixStream, code: Code, why: &str) {
    let (_, mut writer) = stream.into_split();
    let refused = Reply::refused(code, why);
    let _ = timeout(ACCEPT_PAUSE, write(&mut writer, &refused)).await;
}
