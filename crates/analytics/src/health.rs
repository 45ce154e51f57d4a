//! The state of a manager's devices.

/// Whether a device is given batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceState {
    /// It is.
    Up,
    /// It failed and rests until its next probe.
    Down,
    /// A probe is on its way through it; a sane answer brings it back.
    Probing,
    /// It has not answered within its deadline, and is left alone until it does.
    Hung,
}

impl DeviceState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Up, Self::Down, Self::Probing, Self::Hung];

    /// The name under which it is shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Probing => "probing",
            Self::Hung => "hung",
        }
    }

    /// Whether it is given batches.
    #[must_use]
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Up)
    }
}

/// One device, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHealth<'a> {
    /// The device as it was requested.
    pub requested: &'a str,
    /// Its state.
    pub state: DeviceState,
    /// Since when it is up, or not up, in ns on the clock of the rounds; 0 if it was never
    /// otherwise.
    pub since_ns: u64,
    /// The last error, even if the device is up again.
    pub last_error: Option<&'a str>,
}
