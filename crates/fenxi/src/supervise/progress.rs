//! The progress bar of a replay.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::run::Run;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar on a terminal; shows nothing if stderr is not a terminal.
pub struct Progress {
    bar: ProgressBar,
    /// Bytes of the captures read.
    read: Arc<AtomicU64>,
}

impl Progress {
    /// A bar for a replay of `size` bytes, if known, which counts the bytes read in `read`.
    pub fn new(read: Arc<AtomicU64>, size: Option<u64>) -> Progress {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let form = match size {
            Some(_) => "{bar:30} {bytes}/{total_bytes}  {msg}  {binary_bytes_per_sec}  {eta} left",
            None => "{spinner} {bytes}  {msg}  {binary_bytes_per_sec}",
        };
        let bar = ProgressBar::with_draw_target(size, target);
        let bar = match ProgressStyle::with_template(form) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Progress { bar, read }
    }

    pub fn show(&self, run: &Run) {
        self.bar.set_position(self.read.load(Ordering::Relaxed));
        self.bar.set_message(format!("{} packets", run.packets()));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
