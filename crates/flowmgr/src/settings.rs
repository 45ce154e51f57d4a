//! The part of a flow manager's configuration that may change while it works.

use crate::action::Actions;

/// The part of [`crate::Config`] that may change. The rest is fixed by the memory allocated at the
/// start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Seconds of silence that end a flow, up to 32,000; 0 for never.
    pub idle_timeout_s: u16,
    /// The same for a flow that FIN or RST closed; 1 to 300.
    pub closed_timeout_s: u16,
    /// The same for a flow that nobody has answered and that has no series for the first task yet,
    /// up to 32,000; 0, or more than `idle_timeout_s`, means `idle_timeout_s`.
    pub half_open_timeout_s: u16,
    /// The same for a TCP connection that was seen to be established and has had no FIN, up to
    /// 32,000; 0, or less than `idle_timeout_s`, means `idle_timeout_s`.
    pub established_timeout_s: u16,
    /// Seconds after which an ongoing flow is reported; 0 for never.
    pub active_timeout_s: u32,
    /// FIN from both sides or RST closes a flow.
    pub end_on_fin_rst: bool,
    /// What happens to packets, by the classes of labels; a change keeps the number of classes.
    pub actions: Actions,
}
