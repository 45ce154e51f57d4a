//! The first half of a swap: another bundle is opened, checked and warmed.
//!
//! Each step may take long or never end. So an [`Opening`] shares no state with
//! [`Swapper`](super::Swapper) and works on a helper thread.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use accel::{Bundle, Device};
use analytics::{Accelerator, Coming};
use tracing::info;

use super::helpers::{Helpers, MORE_TIME};
use super::prepared::{Prepared, Previous, Refusal};
use super::{meaning, trial};
use crate::Error;
use crate::opening::bundle::open_bundle;
use crate::opening::devices::{Opener, for_model, golden_test};
use crate::opening::session::session;
use crate::placement::{Role, Thread};
use crate::threads::state::cache_entries;
use config::Config;

/// A target of the program's, so that its level holds for it.
const LOG: &str = "fenxi::swap";

/// The most models that are remembered as tried; more than anybody alternates between.
const KNOWN_MAX: usize = 16;

/// The share of the time to open a model that its trial in another process may take.
const TRIAL_SHARE: f64 = 0.8;

fn first_device(config: &Config) -> Result<&config::checked::Device, Error> {
    let device = config.accel.devices.first();
    device.ok_or_else(|| Error::unavailable("no device is configured"))
}

/// SHA-256 of models whose trial succeeded.
pub(super) type Known = Arc<Mutex<Vec<String>>>;

/// One attempt to open a model that is to come into use.
#[derive(Clone)]
pub struct Opening {
    pub(super) helpers: Helpers,
    /// Number of the task whose model it is.
    pub(super) task: usize,
    /// The analytics threads.
    pub(super) threads: Vec<Thread>,
    /// The model in use.
    pub(super) bundle: Arc<Bundle>,
    /// How often it has been exchanged.
    pub(super) generation: u16,
    /// The canary's model.
    pub(super) canary: Option<Arc<Bundle>>,
    pub(super) known: Known,
    /// The attempt has been counted as refused.
    pub(super) is_refused: Arc<AtomicBool>,
    pub(super) began: Instant,
}

impl Opening {
    /// The model in use.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// Whether flow workers answer series at once.
    pub fn is_inline(&self) -> bool {
        self.threads.iter().any(|it| matches!(it.role, Role::Flow(_)))
    }

    /// Opens a bundle that could replace the one in use.
    ///
    /// # Errors
    /// It is damaged, or its classes or features have another meaning.
    pub fn open(&self, config: &Config, dir: &Path) -> Result<Arc<Bundle>, Error> {
        let bundle = self.read(config, dir)?;
        self.check(&bundle).inspect_err(|why| self.refuse(why))?;
        Ok(Arc::new(bundle))
    }

    /// Checks that a bundle's classes and features mean the same as those in use.
    ///
    /// # Errors
    /// The first that means something else.
    pub fn check(&self, bundle: &Bundle) -> Result<(), Error> {
        meaning::check(bundle.dir(), bundle, &self.bundle)
    }

    /// Opens a bundle with any classes and features.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(&self, config: &Config, dir: &Path) -> Result<Bundle, Error> {
        open_bundle(config, dir).inspect_err(|why| self.refuse(why))
    }

    /// Opens the configured sessions of each analytics thread. A model that has not run yet on ONNX
    /// Runtime is first tried in a process of its own.
    ///
    /// # Errors
    /// A device or a model that cannot be used, or golden outputs that differ; or the run ends.
    pub fn prepare(&self, config: &Config, bundle: Arc<Bundle>) -> Result<Prepared, Refusal> {
        let config = &for_model(config.clone(), &bundle);
        let prepared =
            self.try_out(config, &bundle).and_then(|()| Ok(self.open_sessions(config, bundle)?));
        if let Err(Refusal::Because(why)) = &prepared {
            self.refuse(why);
        }
        prepared
    }

    /// Opens a session on the first device for questions that are asked off the data path. A model
    /// that has not run yet on ONNX Runtime is first tried in another process.
    ///
    /// # Errors
    /// A device or a model that cannot be used; or the run ends.
    pub fn session(&self, config: &Config, bundle: &Bundle) -> Result<Box<dyn Device>, Refusal> {
        let config = &for_model(config.clone(), bundle);
        self.try_out(config, bundle)?;
        Ok(session(config, bundle, first_device(config)?)?)
    }

    /// Compares such a session with the bundle's golden outputs.
    ///
    /// # Errors
    /// They differ, or the device fails.
    pub fn golden_test(
        &self,
        config: &Config,
        bundle: &Bundle,
        session: &mut dyn Device,
    ) -> Result<(), Error> {
        golden_test(bundle, first_device(&for_model(config.clone(), bundle))?, session)
    }

    fn try_out(&self, config: &Config, bundle: &Bundle) -> Result<(), Refusal> {
        let mut devices = config.accel.devices.iter();
        let runs = devices.any(|device| device.provider.needs_library);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |sha256: &String| sha256 == bundle.sha256();
        if !runs || bundle.sha256() == self.bundle.sha256() || known().iter().any(is_known) {
            return Ok(());
        }
        let model = bundle.model_path();
        let dir = model.parent().unwrap_or(&model);
        let left = config.model.open_timeout.saturating_sub(self.began.elapsed());
        let limit = left.mul_f64(TRIAL_SHARE);
        trial::try_bundle(config, dir, limit, self.helpers.run_ended())?;
        let mut known = known();
        if known.len() == KNOWN_MAX {
            known.remove(0);
        }
        known.push(bundle.sha256().to_owned());
        Ok(())
    }

    fn open_sessions(&self, config: &Config, bundle: Arc<Bundle>) -> Result<Prepared, Error> {
        let opener = Opener {
            config,
            bundle: &bundle,
            cores: self.helpers.cores(),
            golden_test: true,
            profiles: self.helpers.state().profiles(),
        };
        let accelerators = self.threads.iter().map(|it| opener.accelerators(it));
        let accelerators = accelerators.collect::<Result<_, Error>>()?;
        if let Some(task) = config.tasks.first().filter(|task| !task.devices_why.is_empty()) {
            let (name, version) = (bundle.name(), bundle.version());
            info!(target: LOG, "model {name} {version}: {}", task.shown_devices());
        }
        Ok(self.prepared(config, accelerators, bundle))
    }

    /// Keeps the devices in use; only settings change.
    pub fn keep(&self, config: &Config) -> Prepared {
        self.prepared(config, Vec::new(), self.bundle.clone())
    }

    /// Brings back sessions that were in use before, if all of them can work again and no other
    /// swap came since.
    pub fn again(&self, config: &Config, before: Previous) -> Option<Prepared> {
        let Previous { is_sound, generation, bundle } = before;
        let is_the_last = generation == self.generation;
        (is_sound && is_the_last).then(|| self.prepared(config, self.nothing_new(), bundle))
    }

    /// Promotes the canary, if there is one.
    pub fn promote(&self, config: &Config) -> Option<Prepared> {
        let bundle = self.canary.clone()?;
        let prepared = self.prepared(config, self.nothing_new(), bundle);
        Some(Prepared { coming: Coming::Promoted, ..prepared })
    }

    /// Sessions that the workers have come into use.
    fn nothing_new(&self) -> Vec<Vec<Accelerator>> {
        self.threads.iter().map(|_| Vec::new()).collect()
    }

    fn prepared(
        &self,
        config: &Config,
        accelerators: Vec<Vec<Accelerator>>,
        bundle: Arc<Bundle>,
    ) -> Prepared {
        Prepared {
            accelerators,
            coming: Coming::Replaces,
            bundle,
            settings: self.threads.iter().map(|_| None).collect(),
            // Flow workers that answer series at once neither batch nor cache.
            takes_settings: !self.is_inline(),
            change: None,
            cache_entries: cache_entries(config),
            is_return: false,
        }
    }

    /// Counts the attempt as refused; only the first call counts. The old model stays in use.
    pub fn refuse(&self, why: &Error) {
        if self.is_refused.swap(true, Ordering::Relaxed) {
            return;
        }
        self.helpers.state().update(|state| {
            let swaps = &mut state.tasks[self.task].swaps;
            swaps.refused += 1;
            swaps.last_refusal = Some(why.to_string());
        });
    }
}

impl Helpers {
    /// [`Helpers::run`] for work that opens a model. If it fails or is late, the attempt counts as
    /// refused for what `opening` returns.
    ///
    /// # Errors
    /// As [`Helpers::run`], or what `work` returns.
    pub fn open_model<'a, T: Send + 'static>(
        &self,
        opening: impl FnOnce() -> &'a Opening,
        what: &str,
        limit: Duration,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let opened = self.run(what, limit, MORE_TIME, work);
        if let Err(Refusal::Because(why)) = &opened {
            opening().refuse(why);
        }
        opened?
    }
}
