//! HTTP/1.1 for those who look: `/` and `/flow` for people, `/metrics`, `/livez`, `/readyz` for
//! programs.
//! Nothing here changes anything.
//!
//! On loopback the pages, which show addresses, answer to loopback names only: otherwise a page
//! from elsewhere whose name was made to point here (DNS rebinding) could read them.
//!
//! Each connection serves one request and has a few seconds for all of it. There is a bounded
//! number at a time, and when there is no room, one that is slow makes room for one that comes
//! ([`Room`]), so that slow clients, however many, do not keep a scraper or a probe of health
//! waiting. Bodies are never read.
//!
//! Source: RFC 9110 for the codes, Kubernetes for the paths and `?verbose`.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use console::page::{self, View, decoded};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use sha2::Digest;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::flow_order::Filter;
use super::room::{Peer, Place, Room, Stage};
use super::sockets::HttpSocket;
use super::{Plane, exposition, health};
use crate::protocol::{CheckRow, FlowFilter};
use crate::unix_socket::UnixSocket;

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

/// Flows and hosts of the page.
const PAGE_ROWS: usize = 50;

const TEXT: &str = "text/plain; charset=utf-8";

type Answer = Response<Full<Bytes>>;

/// Serves on the socket from now on.
pub fn start(socket: HttpSocket, plane: Arc<Plane>) -> io::Result<()> {
    let mut server = Server { plane, room: Room::new(CONNECTIONS), is_local: false };
    match socket {
        HttpSocket::Tcp(listener) => {
            server.is_local = listener.local_addr()?.ip().is_loopback();
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
                    server.take(accepted.map(|(stream, _)| with_peer(stream))).await;
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
    /// It listens on loopback.
    is_local: bool,
}

impl Server {
    /// Gives a connection a task of its own, or turns it away.
    async fn take<S>(&self, accepted: io::Result<(S, Peer)>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok((stream, peer)) = accepted else { return sleep(ACCEPT_PAUSE).await };
        match self.room.enter(peer) {
            Some(place) => {
                tokio::spawn(serve(stream, self.plane.clone(), place, self.is_local));
                // It reads what is there before the next one may take its place.
                yield_now().await;
            }
            None => turn_away(stream, StatusCode::SERVICE_UNAVAILABLE).await,
        }
    }
}

/// One connection, to its end.
async fn serve<S>(stream: S, plane: Arc<Plane>, place: Place, is_local: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = &place;
    let service = service_fn(|request| {
        let plane = plane.clone();
        async move {
            place.set(Stage::Working);
            let answer = answer(&request, &plane, is_local).await;
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

async fn answer(request: &Request<Incoming>, plane: &Plane, is_local: bool) -> Answer {
    let path = request.uri().path();
    let is_page = matches!(path, "/" | "/flow" | "/history");
    if is_page && is_local && !is_loopback_name(request) {
        let page =
            "the page answers to localhost, 127.0.0.1 and [::1] only; see control.http_exposed\n";
        return text(StatusCode::MISDIRECTED_REQUEST, page.to_owned());
    }
    if !is_page && !matches!(path, "/metrics" | "/livez" | "/readyz") {
        let history = if cfg!(feature = "history") { " /history," } else { "" };
        let page = format!("not found; try /,{history} /metrics, /livez or /readyz\n");
        return text(StatusCode::NOT_FOUND, page);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, String::new());
        let allowed = HeaderValue::from_static("GET, HEAD");
        answer.headers_mut().insert(ALLOW, allowed);
        return answer;
    }
    let query = request.uri().query().unwrap_or_default();
    let is_verbose = asks_for_reasons(query);
    match path {
        "/" => {
            let mut view = View::parse(query);
            let filter = plane.filter(&view.filter).await.unwrap_or_else(|why| {
                view.filter = FlowFilter::default();
                view.refuse(why);
                Filter::default()
            });
            let top = plane.top(&filter, view.orders, PAGE_ROWS).await;
            for_people(StatusCode::OK, page::page(&top, &view))
        }
        "/flow" => {
            let flow = query.split('&').find_map(|part| part.strip_prefix("flow="));
            let reply = plane.explain(&decoded(flow.unwrap_or_default())).await;
            let status = StatusCode::from_u16(reply.code);
            let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            for_people(status, page::flow(&reply))
        }
        #[cfg(not(feature = "history"))]
        "/history" => text(StatusCode::NOT_FOUND, format!("{}\n", crate::history::ABSENT)),
        #[cfg(feature = "history")]
        "/history" => {
            let page = plane.history_page(query).await;
            for_people(StatusCode::OK, page)
        }
        "/metrics" => {
            let page = plane.metrics().await;
            typed(StatusCode::OK, exposition::CONTENT_TYPE, page)
        }
        "/livez" => checked(&plane.health().await.live, is_verbose),
        _ => checked(&plane.health().await.ready, is_verbose),
    }
}

/// Whether the request names this host as loopback does, or not at all, as HTTP/1.0 may.
fn is_loopback_name(request: &Request<Incoming>) -> bool {
    let Some(host) = request.headers().get(HOST) else { return true };
    let Ok(Ok(authority)) = host.to_str().map(str::parse::<Authority>) else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// The page, with a policy that allows its own style and script, and nothing else from anywhere.
fn for_people(status: StatusCode, html: String) -> Answer {
    let digest = |text: &str| {
        let digest = sha2::Sha256::digest(text.as_bytes());
        format!("'sha256-{}'", STANDARD.encode(digest))
    };
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        digest(page::STYLE),
        digest(page::SCRIPT)
    );
    let mut answer = typed(status, "text/html; charset=utf-8", html);
    let headers = answer.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

fn asks_for_reasons(query: &str) -> bool {
    query.split('&').any(|part| part == "verbose" || part.starts_with("verbose="))
}

fn checked(checks: &[CheckRow], is_verbose: bool) -> Answer {
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
