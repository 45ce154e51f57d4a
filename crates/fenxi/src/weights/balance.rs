//! A table at work: its socket, the program that has the memory, and the map.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use config::Config;
use config::checked::Named;
use dataplane::server_actions::ServerActions;
use netfilter::slots::Slots;
use netfilter::writer::StartError;
use observe::{Action, Actions, Allowed, Egress, Refusal, Slot, hand_out};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tracing::{info, warn};

use super::counts::{Change, Counts, TurnedAway, Why};
use super::keys::{Weights, fits, named};
use crate::unix_socket::UnixSocket;

/// Connections that are taken at once; others wait for the next look.
const ACCEPTED_MAX: usize = 4;

/// A table of the configuration at work.
pub struct Balance {
    name: String,
    slots: Slots,
    fixed: Vec<f64>,
    socket: Arc<UnixSocket>,
    allowed: Allowed,
    servers: Vec<(IpAddr, u16)>,
    /// Which actions the program may give.
    kinds: u8,
    config: Config,
    /// Takes the actions, where it may give some.
    by_server: Option<Arc<ServerActions>>,
    program: Option<Program>,
    /// What the program wrote, by server.
    written: Vec<Option<f64>>,
    actions: Vec<Action>,
    /// Whether the program's weights apply; why not.
    state: Result<(), Why>,
    /// The log says that static weights apply.
    is_warned: bool,
    /// What the map is to have.
    wanted: Vec<f64>,
    /// The last attempt to write the map failed.
    is_failing: bool,
    pub counts: Arc<Counts>,
}

/// The program that gives weights.
struct Program {
    connection: UnixStream,
    actions: Actions,
}

impl Balance {
    /// Gives the map its static weights.
    ///
    /// # Errors
    /// The map takes none, or the socket cannot be used.
    pub fn start(
        table: &Named<Weights>,
        mut slots: Slots,
        socket: Arc<UnixSocket>,
        allowed: Allowed,
        (config, by_server): (&Config, Option<&Arc<ServerActions>>),
    ) -> Result<Balance, StartError> {
        let servers = &table.keys.servers;
        let fixed: Vec<f64> = servers.iter().map(|(_, weight)| *weight).collect();
        let unfit =
            |error: io::Error| StartError::Unfit(format!("weights.{}: {error}", table.name));
        socket.listener.set_nonblocking(true).map_err(unfit)?;
        let changed = slots.write(&fixed).map_err(|error| named(table, error))?;
        let counts = Arc::new(Counts::new(&table.name, servers));
        counts.set_weights(&fixed);
        if changed > 0 {
            counts.add(Change::Static);
        }
        Ok(Balance {
            name: table.name.clone(),
            slots,
            socket,
            allowed,
            servers: servers.iter().map(|(it, _)| (it.ip(), it.port())).collect(),
            kinds: table.keys.kinds(),
            config: config.clone(),
            by_server: by_server.filter(|_| table.keys.kinds() != 0).cloned(),
            actions: vec![Action::default(); servers.len()],
            program: None,
            written: vec![None; servers.len()],
            state: Err(Why::Gone),
            is_warned: false,
            wanted: fixed.clone(),
            fixed,
            is_failing: false,
            counts,
        })
    }

    /// What wakes the thread.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let connection = self.program.as_ref().map(|program| program.connection.as_fd());
        [Some(self.socket.listener.as_fd()), connection].into_iter().flatten()
    }

    pub fn has_program(&self) -> bool {
        self.program.is_some()
    }

    /// Sees what has happened on the sockets and in the memory, and changes the map if it must.
    pub fn look(&mut self, now_ns: u64) {
        self.hear();
        self.accept(now_ns);
        let asked = self.asked(now_ns);
        self.act(asked.is_ok());
        self.note(asked);
        let wanted = match asked {
            Ok(()) => self.written.iter().map(|weight| weight.unwrap_or_default()).collect(),
            Err(_) => self.fixed.clone(),
        };
        if wanted != self.wanted {
            self.wanted = wanted;
            // A map that was out of order waits for the next check.
            if !self.is_failing {
                let changed = self.slots.write(&self.wanted);
                self.settle(changed);
            }
        }
    }

    /// Reads the wake-ups, of which any number means one; a program that has closed its connection
    /// is gone.
    fn hear(&mut self) {
        let Some(program) = &self.program else { return };
        let heard = recv(&program.connection, &mut [0; 256], RecvFlags::DONTWAIT);
        if !matches!(heard, Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR)) {
            self.program = None;
        }
    }

    fn accept(&mut self, now_ns: u64) {
        for _ in 0..ACCEPTED_MAX {
            // An error is no reason to end: the next look tries again.
            let Ok((connection, _)) = self.socket.listener.accept() else { return };
            if let Err(reason) = self.admit(connection, now_ns) {
                self.counts.turn_away(reason);
            }
        }
    }

    /// Hands out new memory, so that what a program before still writes goes nowhere. A program
    /// that shows no life has to give way.
    fn admit(&mut self, connection: UnixStream, now_ns: u64) -> Result<(), TurnedAway> {
        let failed = |_| TurnedAway::Failed;
        let tell = |reason: &[u8; 1]| {
            // It may have gone.
            let _ = send(&connection, reason, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        };
        if !self.allowed.admits(&connection).map_err(failed)? {
            tell(b"U");
            return Err(TurnedAway::User);
        }
        if self.has_program() && self.state != Err(Why::Refused(Refusal::Dead)) {
            tell(b"T");
            return Err(TurnedAway::Taken);
        }
        let egresses = self.servers.iter().map(|&(address, port)| Egress::server(address, port));
        let egresses: Vec<_> = egresses.collect();
        let actions =
            Actions::create(&egresses, self.kinds, now_ns).map_err(|_| TurnedAway::Failed)?;
        let file = actions.file().ok_or(TurnedAway::Failed)?;
        hand_out(&connection, file, &self.allowed).map_err(failed)?;
        if self.has_program() {
            // The next one that waits finds this one alive.
            self.state = Err(Why::Refused(Refusal::Unwritten));
        }
        self.program = Some(Program { connection, actions });
        Ok(())
    }

    /// Gives flows that begin the actions of the program, or none.
    fn act(&self, are_valid: bool) {
        let Some(by_server) = &self.by_server else { return };
        for (server, action) in self.servers.iter().zip(&self.actions) {
            by_server.set(*server, if are_valid { *action } else { Action::default() });
        }
    }

    /// Reads the program's weights into `written`, and its actions.
    fn asked(&mut self, now_ns: u64) -> Result<(), Why> {
        let Some(Program { actions, .. }) = &mut self.program else { return Err(Why::Gone) };
        let places = (0..).map(|index| Slot { index, incarnation: 1 });
        let places: Vec<Slot> = places.take(self.written.len()).collect();
        actions.weights(now_ns, &places, &mut self.written).map_err(Why::Refused)?;
        if self.written.contains(&None) {
            return Err(Why::Refused(Refusal::Unwritten));
        }
        actions.actions(&mut self.actions).map_err(Why::Refused)?;
        match self.actions.iter().all(|action| fits(*action, self.kinds, &self.config)) {
            true => Ok(()),
            false => Err(Why::Refused(Refusal::Action)),
        }
    }

    /// Counts and logs whether the program's weights apply.
    fn note(&mut self, asked: Result<(), Why>) {
        let before = std::mem::replace(&mut self.state, asked);
        self.counts.set_by_program(asked.is_ok());
        let name = &self.name;
        match asked {
            _ if asked == before => {}
            Ok(()) => {
                info!("weights.{name}: the weights of the program apply");
                self.is_warned = false;
            }
            // It has connected, and writes them next.
            Err(Why::Refused(Refusal::Unwritten)) if before == Err(Why::Gone) => {}
            Err(why) => {
                self.counts.refuse(why);
                if !self.is_warned {
                    warn!("weights.{name}: static weights apply: {why}");
                }
                self.is_warned = true;
            }
        }
    }

    /// Reads the map and puts right what somebody else has changed.
    pub fn check(&mut self) {
        let repaired = self.slots.read().and_then(|()| self.slots.write(&self.wanted));
        match repaired {
            Ok(0) if !self.is_failing => {}
            Ok(_) if !self.is_failing => self.counts.add(Change::Repaired),
            repaired => self.settle(repaired),
        }
    }

    /// Notes whether the map has the weights.
    fn settle(&mut self, changed: Result<usize, StartError>) {
        let name = &self.name;
        let was_failing = std::mem::replace(&mut self.is_failing, changed.is_err());
        match changed {
            Ok(slots) => {
                self.counts.set_weights(&self.wanted);
                if slots > 0 {
                    let is_programs = self.state.is_ok();
                    self.counts.add(if is_programs { Change::Program } else { Change::Static });
                }
                if was_failing {
                    info!("weights.{name}: the map has its weights again");
                    self.counts.set_fault(None);
                }
            }
            Err(error) => {
                self.counts.add(Change::Failed);
                if !was_failing {
                    warn!("weights.{name}: {error}");
                    self.counts.set_fault(Some(error.to_string()));
                }
            }
        }
    }

    /// Without fenxi nobody watches the program, so static weights stay.
    pub fn end(mut self) {
        self.act(false);
        if self.wanted != self.fixed
            && let Err(error) = self.slots.write(&self.fixed)
        {
            warn!("weights.{}: the map keeps the program's weights: {error}", self.name);
        }
    }
}
