//! The sink, which starts the thread and reports what it counts.

use std::io::PipeWriter;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::checked::Named;
use config::{Config, Keyed, Section};
use dataplane::sink::Sink;
use observe::Allowed;
use tracing::warn;

use super::balance::Balance;
use super::counts::{Counts, report};
use super::keys::{self, Weights, tables};
use super::thread::Server;
use crate::exit::Failure;
use crate::sinks::queue::ends_by;
use crate::sinks::{KernelPart, Report, Rights, SinkControl, SinkKind, Start};
use crate::unix_socket::{self, UnixSocket};

/// Every user may connect; who is not the owner gets nothing.
const SOCKET_MODE: u32 = 0o666;

/// How long the end of the run waits for the static weights.
const ENDED_WITHIN: Duration = Duration::from_secs(1);

fn key(table: &Named<Weights>, key: &str) -> String {
    format!("weights.{}.{key}", table.name)
}

/// The paths of the sockets.
pub fn sockets(config: &Config) -> Vec<PathBuf> {
    tables(config).into_iter().filter_map(|table| table.keys.socket).collect()
}

/// Listens on the sockets, in the order of the tables. Needs the rights to make their files.
pub fn bind(config: &Config) -> Result<Vec<Arc<UnixSocket>>, Failure> {
    let bind = |table: &Named<Weights>| {
        let path = table.keys.socket.as_deref()?;
        Some(UnixSocket::bind(&key(table, "socket"), path, SOCKET_MODE).map(Arc::new))
    };
    tables(config).iter().filter_map(bind).collect()
}

/// Writes weights into maps, where the configuration has tables `[weights.NAME]`.
pub struct WeightedServers;

impl SinkKind for WeightedServers {
    fn sections(&self) -> &'static [&'static Section] {
        &[Weights::SECTION]
    }

    fn kernel_parts(&self, config: &Config) -> Vec<KernelPart> {
        let part = |table: Named<Weights>| KernelPart {
            check: "weights",
            probed: keys::open_map(&table).map(drop),
            done: format!("the map has {} slots", table.keys.slots),
            subject: table.name,
        };
        tables(config).into_iter().map(part).collect()
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let tables = tables(start.config);
        if start.replay.is_some() || tables.is_empty() {
            return Ok(None);
        }
        let mut balances = Vec::new();
        for (table, socket) in tables.iter().zip(start.weight_sockets) {
            let allowed = Allowed { users: owner(table)?.into_iter().collect(), groups: vec![] };
            let slots = keys::open_map(table)?;
            let acting = (start.config, start.by_server);
            balances.push(Balance::start(table, slots, socket.clone(), allowed, acting)?);
        }
        let counts = balances.iter().map(|balance| balance.counts.clone()).collect();
        let failed =
            |error| Failure::unavailable(format!("cannot start the weights thread: {error}"));
        let (server, end) = Server::new(balances).map_err(failed)?;
        let builder = std::thread::Builder::new().name("weights".to_owned());
        let thread = builder.spawn(move || server.run()).map_err(failed)?;
        Ok(Some(Box::new(Control { thread: Mutex::new(Some((end, thread))), counts })))
    }

    fn rights(&self, config: &Config, _: Option<&Path>) -> Rights {
        Rights::of_netfilter(!tables(config).is_empty())
    }

    fn probe(&self, config: &Config, is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        for table in tables(config) {
            owner(&table)?;
            keys::open_map(&table)?;
            if let Some(path) = table.keys.socket.as_deref().filter(|path| !is_exempt(path)) {
                unix_socket::probe(&key(&table, "socket"), path)?;
            }
        }
        Ok(())
    }

    fn empty_report(&self) -> Report {
        report(&[])
    }
}

/// The user whose programs may give weights; `None`: only root.
fn owner(table: &Named<Weights>) -> Result<Option<u32>, Failure> {
    let Some(name) = &table.keys.owner else { return Ok(None) };
    let unknown = || {
        let (origin, key) = (&table.origin, key(table, "owner"));
        Failure::config(format!("{origin}: {key}: there is no user \"{name}\" in /etc/passwd"))
    };
    name.parse().ok().or_else(|| keys::user(name)).map(Some).ok_or_else(unknown)
}

struct Control {
    /// With what ends the thread when it is dropped.
    thread: Mutex<Option<(PipeWriter, JoinHandle<()>)>>,
    counts: Vec<Arc<Counts>>,
}

impl SinkControl for Control {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        None
    }

    fn report(&self) -> Report {
        report(&self.counts)
    }

    fn server_weights(&self) -> Vec<(SocketAddr, f64)> {
        self.counts.iter().flat_map(|counts| counts.weights()).collect()
    }

    fn finish(&self, _: Instant) -> Result<(), Failure> {
        let taken = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((end, thread)) = taken else { return Ok(()) };
        drop(end);
        if !ends_by(&thread, Instant::now() + ENDED_WITHIN) {
            warn!("weights: the maps may not have their static weights");
        }
        Ok(())
    }
}
