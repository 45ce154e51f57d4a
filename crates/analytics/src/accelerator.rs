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
    /// Devices of one executor work one after another: all devices on the manager's thread are on
    /// executor 0, and devices that share another thread have an executor of their own. This
    /// matters only to tasks of the same manager.
    pub executor: u8,
}

impl From<Box<dyn Device>> for Accelerator {
    /// A device of which nothing else is known.
    fn from(device: Box<dyn Device>) -> Self {
        Self { device, profile: None, deadline: None, executor: 0 }
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
        let refuse = |why: String| Err(ConfigError(format!("device {name} {why}")));
        let sizes = device.sizes();
        let in_order = match sizes {
            Sizes::Any { cap } => *cap > 0,
            Sizes::Fixed(sizes) => {
                sizes.first().is_some_and(|b| *b > 0) && sizes.is_sorted_by(|a, b| a < b)
            }
        };
        if !in_order {
            return refuse(format!(
                "takes the batch sizes {sizes:?}: sizes are positive and ascend"
            ));
        }
        let floats = device.input(1).len();
        if floats != channels * k {
            return refuse(format!(
                "wants {floats} numbers per series, but the task has {channels} of each of k = \
                 {k} elements: its model has another k or other features"
            ));
        }
        let floats = device.context(1).len();
        if floats != context {
            return refuse(format!(
                "wants {floats} numbers of context per flow, but the task has {context}: its \
                 model has another context"
            ));
        }
        let is_time = |us: f64| us.is_finite() && us >= 0.0;
        match self.profile {
            _ if policy.goal().is_none() => Ok(()),
            None => refuse(
                "has no profile, and the policy slo plans by it: measure one, or choose another \
                 policy"
                    .to_owned(),
            ),
            Some(Profile { t0_us, t1_us })
                if !(is_time(t0_us) && is_time(t1_us) && t0_us + t1_us > 0.0) =>
            {
                refuse(format!(
                    "has the profile T0 = {t0_us} us, T1 = {t1_us} us: times are not negative, \
                     nor both 0"
                ))
            }
            Some(_) => Ok(()),
        }
    }
}
