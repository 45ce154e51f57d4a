//! HTTP/1.1 for those who look: `/metrics`, `/livez`, `/readyz`. Nothing here changes anything.
//!
//! Each connection serves one request and has a few seconds for all of it; there are few at a time. A scraper loses
//! nothing by that, and whoever is slow, or many, takes nothing from others for long. Bodies are never read.
//!
//! Source: RFC 9110 for the codes; the paths and `?verbose` are those of Kubernetes.

use std::convert::Infallible;
use std::io;
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
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::sockets::{HttpSocket, UnixSocket};
use super::{Plane, exposition, health};

/// Connections at a time.
const CONNECTIONS: usize = 16;

/// Bytes of a request's head, and its header lines, at most.
const HEAD_BYTES: usize = 8192;
const HEADER_LINES: usize = 32;

/// How long a request may take to come.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// How long all of it may take.
const CONNECTION_MAX: Duration = Duration::from_secs(15);

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
        room: Arc::new(Semaphore::new(CONNECTIONS)),
    };
    match socket {
        HttpSocket::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            tokio::spawn(async move {
                loop {
                    let accepted = listener.accept().await;
                    server.take(accepted.map(|(stream, _)| stream)).await;
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
                    server.take(accepted.map(|(stream, _)| stream)).await;
                }
            });
        }
    }
    Ok(())
}

struct Server {
    plane: Arc<Plane>,
    room: Arc<Semaphore>,
}

impl Server {
    /// Gives a connection a task of its own, or turns it away.
    async fn take<S>(&self, accepted: io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(stream) = accepted else {
            return sleep(ACCEPT_PAUSE).await;
        };
        match self.room.clone().try_acquire_owned() {
            Ok(place) => {
                tokio::spawn(serve(stream, self.plane.clone(), place));
            }
            Err(_) => turn_away(stream, StatusCode::SERVICE_UNAVAILABLE).await,
        }
    }
}

/// One connection, to its end.
async fn serve<S>(stream: S, plane: Arc<Plane>, _place: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let plane = plane.clone();
        async move { Ok::<_, Infallible>(answer(&request, &plane).await) }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_MAX)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADER_LINES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let served = timeout(CONNECTION_MAX, &mut connection).await;
    if let Ok(Err(error)) = served
        && error.is_timeout()
    {
        let stream = connection.into_parts().io.into_inner();
        turn_away(stream, StatusCode::REQUEST_TIMEOUT).await;
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
        let page = "not found; there are /metrics, /livez and /readyz\n";
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
    // Who is refused is told why in any case.
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
