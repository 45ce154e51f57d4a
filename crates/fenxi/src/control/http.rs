//! HTTP/1.1 for those who look: `/metrics`, `/livez`, `/readyz`. Nothing here changes anything.
//!
//! Each connection serves one request and has a few seconds for all of it. There is a bounded number at a time, and when
//! there is no room, one that is slow makes room for one that comes ([`Room`]), so that slow clients, however many, do not
//! keep a scraper or a probe of health waiting. Bodies are never read.
//!
//! Source: RFC 9110 for the codes; the paths and `?verbose` are those of Kubernetes.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::room::{Peer, Place, Room, Stage};
use super::sockets::HttpSocket;
use super::{Plane, exposition, health};
use crate::unix_socket::UnixSocket;

/// Connections at a time.
const CONNECTIONS: usize = 64;

/// Bytes of a request's head, and its header lines, at most.
const HEAD_BYTES: usize = 8192;
const HEADER_LINES: usize = 32;

/// How long a request may take to come.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// How long all of it may take.
const CONNECTION_MAX: Duration = Duration::from_secs(10);

/// Pause when no connection can be taken, such as for want of file descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";

type Answer = Response<Full<Bytes>>;

/// Serves on the socket from now on.
///
/// # Errors
/// The runtime cannot take the socket.
pub fn start(socket: HttpSocket, plane: Arc<Plane>) -> io::Result<()> {
    let server = Server {
        plane,
        room: Room::new(CONNECTIONS),
    };
    match socket {
        HttpSocket::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            tokio::spawn(async move {
                loop {
                    let accepted = listener.accept().await;
                    let peer =
                        |(stream, address): (_, SocketAddr)| (stream, Peer::Address(address.ip()));
                    server.take(accepted.map(peer)).await;
                }
            });
        }
        HttpSocket::Unix(UnixSocket { listener, file }) => {
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            tokio::spawn(async move {
                let _file = file;
                loop {
                    let accepted = listener.accept().await;
                    server
                        .take(accepted.map(|(stream, _)| with_peer(stream)))
                        .await;
                }
            });
        }
    }
    Ok(())
}

/// A stream, and whose it is.
pub fn with_peer(stream: UnixStream) -> (UnixStream, Peer) {
    let peer = match stream.peer_cred() {
        Ok(credentials) => Peer::User(credentials.uid()),
        Err(_) => Peer::Unknown,
    };
    (stream, peer)
}

struct Server {
    plane: Arc<Plane>,
    room: Room,
}

impl Server {
    /// Gives a connection a task of its own, or turns it away.
    async fn take<S>(&self, accepted: io::Result<(S, Peer)>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok((stream, peer)) = accepted else {
            return sleep(ACCEPT_PAUSE).await;
        };
        match self.room.enter(peer) {
            Some(place) => {
                tokio::spawn(serve(stream, self.plane.clone(), place));
                // It reads what is there before the next one may take its place.
                yield_now().await;
            }
            None => turn_away(stream, StatusCode::SERVICE_UNAVAILABLE).await,
        }
    }
}

/// One connection, to its end.
async fn serve<S>(stream: S, plane: Arc<Plane>, place: Place)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = &place;
    let service = service_fn(|request| {
        let plane = plane.clone();
        async move {
            place.set(Stage::Working);
            let answer = answer(&request, &plane).await;
            place.set(Stage::Taking);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_MAX)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADER_LINES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let refused = tokio::select! {
        served = timeout(CONNECTION_MAX, &mut connection) => match served {
            Ok(Err(error)) if error.is_timeout() => Some(StatusCode::REQUEST_TIMEOUT),
            _ => None,
        },
        () = place.taken_away() => {
            (place.stage() == Stage::Asking).then_some(StatusCode::SERVICE_UNAVAILABLE)
        }
    };
    if let Some(status) = refused {
        let stream = connection.into_parts().io.into_inner();
        turn_away(stream, status).await;
    }
}

/// Says why there is no answer, if that can be said at once.
async fn turn_away<S: AsyncWrite + Unpin>(mut stream: S, status: StatusCode) {
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    let _ = timeout(ACCEPT_PAUSE, stream.write_all(head.as_bytes())).await;
}

async fn answer(request: &Request<Incoming>, plane: &Plane) -> Answer {
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/livez" | "/readyz") {
        let page = "not found; try /metrics, /livez or /readyz\n";
        return text(StatusCode::NOT_FOUND, page.to_owned());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, String::new());
        let allowed = HeaderValue::from_static("GET, HEAD");
        answer.headers_mut().insert(ALLOW, allowed);
        return answer;
    }
    let is_verbose = request.uri().query().is_some_and(asks_for_reasons);
    match path {
        "/metrics" => {
            let page = plane.metrics().await;
            typed(StatusCode::OK, exposition::CONTENT_TYPE, page)
        }
        "/livez" => checked(&plane.health().await.live, is_verbose),
        _ => checked(&plane.health().await.ready, is_verbose),
    }
}

fn asks_for_reasons(query: &str) -> bool {
    query
        .split('&')
        .any(|part| part == "verbose" || part.starts_with("verbose="))
}

fn checked(checks: &[health::Check], is_verbose: bool) -> Answer {
    let status = match health::hold(checks) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    // A refused client gets the reason in any case.
    let page = match is_verbose || status != StatusCode::OK {
        true => health::page(checks),
        false => health::verdict(checks).to_owned(),
    };
    text(status, page)
}

fn text(status: StatusCode, page: String) -> Answer {
    typed(status, TEXT, page)
}

fn typed(status: StatusCode, content_type: &'static str, page: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(page)));
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}
