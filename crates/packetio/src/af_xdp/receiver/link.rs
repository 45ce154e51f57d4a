//! Reacts to an interface that goes down, disappears, comes back, or changes.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::super::check::{check, mtu_fits};
use super::{PortState, Receiver};
use crate::error::{InterfaceErrorKind, OpenError, renamed};
use crate::interface::Interface;
use crate::rx::LinkEvent;
use crate::sys::{self, Link};

/// Interval between attempts to open an interface that is gone.
const RETRY_EVERY: Duration = Duration::from_secs(1);

impl Receiver {
    /// Checks whether the interface is there and up, its MTU and its name.
    pub(super) fn check_link(&mut self) {
        self.checked = Instant::now();
        if let PortState::Gone { retry } = self.state {
            if self.checked >= retry {
                self.reopen();
            }
            return;
        }
        match self.link() {
            Ok(link) if link.is_up => {
                self.note_up();
                self.note_mtu(link.mtu);
            }
            Ok(_) => self.note_away(InterfaceErrorKind::Down),
            Err(kind) => self.note_away(kind),
        }
    }

    /// The link, also under a new name. A renamed interface serves until it goes down: the settings
    /// name an interface, and the next start looks for that name.
    fn link(&mut self) -> Result<Link, InterfaceErrorKind> {
        let gone = match self.interface.refresh() {
            Ok(link) => return Ok(link),
            Err(gone) => gone,
        };
        let Some(name) = self.interface.new_name() else {
            return Err(gone);
        };
        if !std::mem::replace(&mut self.is_rename_known, true) {
            let line = renamed(&self.interface.name, &name);
            self.events.push(LinkEvent::Warning(line));
        }
        match sys::link(self.interface.query.as_fd(), &name) {
            Ok(link) if link.is_up => Ok(link),
            _ => Err(gone),
        }
    }

    fn note_up(&mut self) {
        if self.state != PortState::Up {
            self.state = PortState::Up;
            let interface = &self.interface.name;
            let line = format!("{interface}: the interface is back");
            self.events.push(LinkEvent::Up(line));
        }
    }

    fn note_away(&mut self, kind: InterfaceErrorKind) {
        let is_gone = matches!(kind, InterfaceErrorKind::Gone);
        if self.state == PortState::Down && !is_gone {
            return;
        }
        let was_up = self.state == PortState::Up;
        self.state = PortState::Down;
        if is_gone {
            self.state = PortState::Gone { retry: Instant::now() + RETRY_EVERY };
            self.close();
        }
        if was_up {
            let line = self.interface.error(kind).line;
            self.events.push(LinkEvent::Down(line));
        }
    }

    /// Warns once that frames may exceed their memory.
    fn note_mtu(&mut self, mtu: u32) {
        self.partner.set_mtu(mtu);
        match mtu_fits(&self.interface.name, mtu, &self.settings) {
            Ok(()) => self.is_mtu_known = false,
            Err(error) if !std::mem::replace(&mut self.is_mtu_known, true) => {
                let line = format!("{error}; longer frames are dropped");
                self.events.push(LinkEvent::Warning(line));
            }
            Err(_) => {}
        }
    }

    /// Closes the sockets; their waiting frames are lost.
    fn close(&mut self) {
        let (dropped, waiting) = self.in_queues();
        self.counts.dropped += dropped;
        self.counts.abandoned += waiting;
        self.queues.clear();
        (self.epoll, self.promiscuous) = (None, None);
        self.partner.hand_over(None);
        self.shared.lock().leave(&self.interface);
    }

    /// Opens the interface that now has the name, if there is one.
    fn reopen(&mut self) {
        self.state = PortState::Gone { retry: Instant::now() + RETRY_EVERY };
        let interface = match Interface::open(&self.settings.interface) {
            Ok(interface) => interface,
            Err(error) => return self.complain(&error),
        };
        let before = std::mem::replace(&mut self.interface, interface);
        let opened = check(&self.interface, &self.settings, &self.place)
            .and_then(|_| self.open_queues(false));
        if let Err(error) = opened {
            self.interface = before;
            self.complain(&error);
            return;
        }
        (self.state, self.complaint, self.is_rename_known) = (PortState::Down, None, false);
        if self.interface.link.is_up {
            self.note_up();
        }
    }

    /// Reports once why an existing interface cannot be opened.
    fn complain(&mut self, error: &OpenError) {
        if matches!(error, OpenError::NoSuchInterface { .. }) {
            return;
        }
        let line = error.to_string();
        if self.complaint.as_ref() != Some(&line) {
            self.events.push(LinkEvent::Warning(line.clone()));
            self.complaint = Some(line);
        }
    }
}
