//! Metrics, health, the control socket and the log.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::kind::Kind;
use crate::levels::Levels;
use crate::section;
use crate::setting::{Setting, fits_a_socket};
use crate::words::words;

section! {
    /// Metrics, health and the control socket.
    pub struct Control = One "control";

    /// where /metrics, /livez and /readyz are served
    http: Option<HttpPlace> = restart "http", Kind::Text, "\"127.0.0.1:9469\"",
        "ADDRESS:PORT or unix:PATH, empty = off" => http;
    /// whether control.http may be an address that other machines can reach; anybody there can
    /// then read it
    http_exposed: bool = restart "http_exposed", Kind::Bool, "false", "";
    /// the Unix socket of `fenxi ctl`; root and the user of the service may use it
    socket: Option<PathBuf> = restart "socket", Kind::Text, "\"/run/fenxi/ctl.sock\"",
        "path, empty = off" => Setting::socket;
    /// whether /readyz stays 200 while all interfaces are down or gone (mode inline: one of them)
    ready_without_interfaces: bool = restart "ready_without_interfaces", Kind::Bool, "false", "";
}

fn http(setting: &Setting) -> Result<Option<HttpPlace>, String> {
    let Some(text) = setting.word()? else {
        return Ok(None);
    };
    match HttpPlace::parse(&text, |path| setting.origin.resolve(path)) {
        None => {
            Err("expected an address and a port such as 127.0.0.1:9469, or unix: and a path"
                .to_owned())
        }
        Some(HttpPlace::Unix(path)) => Ok(Some(HttpPlace::Unix(fits_a_socket(path)?))),
        place => Ok(place),
    }
}

/// An address to serve HTTP on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpPlace {
    /// TCP, on loopback unless the user allowed more.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl HttpPlace {
    /// Reads `ADDRESS:PORT` or `unix:PATH`; `resolve` says which file a path means.
    pub fn parse(text: &str, resolve: impl FnOnce(&str) -> PathBuf) -> Option<HttpPlace> {
        match text.strip_prefix("unix:") {
            Some("") => None,
            Some(path) => Some(HttpPlace::Unix(resolve(path))),
            None => text.parse().ok().map(HttpPlace::Tcp),
        }
    }
}

section! {
    /// What a live run logs.
    pub struct Log = One "log";

    /// what `fenxi run` logs; `fenxi ctl log` changes it at run time, and FENXI_LOG is short for
    /// FENXI_LOG_LEVEL
    level: String = live "level", Kind::Text, "\"info\"",
        "off, error, warn, info, debug or trace; by target: info,fenxi::sinks::mark=debug" => level;
    /// auto: the journal if stderr leads there, as under systemd, otherwise lines on stderr
    to: LogTo = restart "to", Kind::OneOf(LogTo::NAMES), "\"auto\"", "";
}

fn level(setting: &Setting) -> Result<String, String> {
    let text = setting.get::<String>()?;
    Levels::parse(&text).map_err(|error| error.to_string())?;
    Ok(text)
}

words! {
    /// Where the log goes.
    pub enum LogTo {
        /// To the journal if stderr leads there, otherwise to stderr.
        #[default]
        Auto = "auto",
        /// To the journal.
        Journald = "journald",
        /// To stderr.
        Stderr = "stderr",
    }
}
