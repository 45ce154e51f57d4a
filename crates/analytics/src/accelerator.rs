//! A device as it is given to the manager, with its speed and its deadline.

use crate::{ConfigError, Policy};
use accel::{Device, Profile, Sizes};
use std::fmt;
use std::time::Duration;

/// A device, and what the manager cannot ask it.
pub struct Accelerator {
    /// Where batches go. A device that works inside [`Device::submit`] works on the manager's
    /// thread.
    pub device: Box<dyn Device>,
    /// How long a batch takes. [`Policy::Slo`] and [`Policy::OnOff`] need it, and
    /// [`Policy::CarryOver`] sends several batches in a row by it.
    pub profile: Option<Profile>,
    /// A batch in flight for longer counts as lost, and the device as hung. Without a deadline the
    /// manager waits without end.
    pub deadline: Option<Duration>,
    /// Devices of one lane work one after another: all devices on the manager's thread are on lane
    /// 0, and devices that share another thread have a lane of their own. This matters only to
    /// tasks of the same manager.
    pub lane: u8,
}

impl From<Box<dyn Device>> for Accelerator {
    /// A device of which nothing else is known.
    fn from(device: Box<dyn Device>) -> Self {
        Self { device, profile: None, deadline: None, lane: 0 }
    }
}

impl fmt::Debug for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accelerator")
            .field("device", &self.device.requested())
            .field("profile", &self.profile)
            .field("deadline", &self.deadline)
            .finish()
    }
}

impl Accelerator {
    /// A device must have sizes in order and rows of K numbers for each channel, and a profile
    /// where the policy plans by it.
    pub(crate) fn check(
        &mut self,
        k: usize,
        channels: usize,
        context: usize,
        policy: Policy,
    ) -> Result<(), ConfigError> {
        let device = self.device.as_mut();
        let name = device.requested().to_owned();
        let sizes = device.sizes();
        let in_order = match sizes {
            Sizes::Any { cap } => *cap > 0,
            Sizes::Fixed(sizes) => {
                sizes.first().is_some_and(|b| *b > 0) && sizes.is_sorted_by(|a, b| a < b)
            }
        };
        if !in_order {
            let sizes = sizes.clone();
            return Err(ConfigError::Sizes { device: name, sizes });
        }
        let floats = device.input(1).len();
        if floats != channels * k {
            let device = name;
            return Err(ConfigError::Row { device, floats, channels, k });
        }
        let floats = device.context(1).len();
        if floats != context {
            return Err(ConfigError::Context { device: name, floats, context });
        }
        if policy.goal().is_some() {
            check_profile(name, self.profile)?;
        }
        Ok(())
    }
}

/// Checks the profile that [`Policy::Slo`] plans by: its times must be finite, not negative, and
/// not all 0.
fn check_profile(device: String, profile: Option<Profile>) -> Result<(), ConfigError> {
    let Some(Profile { t0_us, t1_us }) = profile else {
        return Err(ConfigError::NoProfile { device });
    };
    let is_time = |us: f64| us.is_finite() && us >= 0.0;
    if is_time(t0_us) && is_time(t1_us) && t0_us + t1_us > 0.0 {
        Ok(())
    } else {
        Err(ConfigError::Profile { device, t0_us, t1_us })
    }
}
