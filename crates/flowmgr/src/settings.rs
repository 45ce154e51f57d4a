//! What of a flow manager's configuration may change while it walks.

use crate::action::Actions;
use crate::expiry::{ActiveTimeout, Lifetimes};
use crate::manager::Manager;

/// The part of [`crate::Config`] that may change, in the same ranges. All else is fixed by the memory that was taken at
/// the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// As in [`crate::Config`].
    pub idle_timeout_s: u16,
    /// As in [`crate::Config`].
    pub closed_timeout_s: u16,
    /// As in [`crate::Config`].
    pub half_open_timeout_s: u16,
    /// As in [`crate::Config`].
    pub established_timeout_s: u16,
    /// As in [`crate::Config`].
    pub active_timeout_s: u32,
    /// As in [`crate::Config`].
    pub end_on_fin_rst: bool,
    /// As in [`crate::Config`]: of the same classes.
    pub actions: Actions,
}

impl Manager {
    /// From the next packet on these settings hold; the old ones are left in their place, to be dropped elsewhere.
    /// Neither allocates nor looks at a flow: a flow keeps its age, and is over when the new timeouts say so.
    ///
    /// Where the active timeout changes, the ticks in the entries are of another length until a flow's next report, which
    /// may come late by one timeout at most.
    pub fn configure(&mut self, settings: &mut Settings) {
        let config = &mut self.config;
        let Settings {
            idle_timeout_s,
            closed_timeout_s,
            half_open_timeout_s,
            established_timeout_s,
            active_timeout_s,
            end_on_fin_rst,
            actions,
        } = settings;
        std::mem::swap(&mut config.idle_timeout_s, idle_timeout_s);
        std::mem::swap(&mut config.closed_timeout_s, closed_timeout_s);
        std::mem::swap(&mut config.half_open_timeout_s, half_open_timeout_s);
        std::mem::swap(&mut config.established_timeout_s, established_timeout_s);
        std::mem::swap(&mut config.active_timeout_s, active_timeout_s);
        std::mem::swap(&mut config.end_on_fin_rst, end_on_fin_rst);
        std::mem::swap(&mut config.actions, actions);
        // Each flow looks its action up again at its next packet.
        self.policy = self.policy.next();
        self.lifetimes = Lifetimes::of(config);
        self.sweep.set_pace(self.lifetimes);
        self.active = ActiveTimeout::new(config.active_timeout_s);
    }
}
