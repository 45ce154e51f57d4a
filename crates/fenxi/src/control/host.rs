//! Packets dropped by network cards and the kernel, before the data path. Read on the control
//! thread with each round of snapshots.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct HostStats {
    /// In the order of [`super::Facts::ports`]; empty if no interface is read.
    nics: Mutex<Vec<Nic>>,
}

impl HostStats {
    /// Counts from now on.
    pub fn new(interfaces: &[String]) -> HostStats {
        HostStats { nics: Mutex::new(interfaces.iter().map(|name| Nic::new(name)).collect()) }
    }

    pub fn dropped(&self) -> Vec<NicDrops> {
        let mut nics = self.nics();
        nics.iter_mut().for_each(Nic::poll);
        nics.iter().map(|nic| nic.dropped).collect()
    }

    fn nics(&self) -> MutexGuard<'_, Vec<Nic>> {
        // The sums are consistent after every statement, so a panic elsewhere does not matter.
        self.nics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Packets that an interface lost before the receive rings, of all its traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NicDrops {
    /// The card was full because the host was too slow (`rx_missed_errors`).
    pub nic_missed: u64,
    /// No buffer for a packet: the larger of `rx_fifo_errors` and `rx_over_errors`, because drivers
    /// count the same in one, the other or both.
    pub no_buffer: u64,
    /// The kernel dropped it before it could be read (`rx_dropped`).
    pub kernel: u64,
}

impl NicDrops {
    pub fn total(&self) -> u64 {
        self.nic_missed + self.no_buffer + self.kernel
    }
}

/// One interface. Counters from before the start do not count; an interface that goes and comes
/// back begins at 0.
struct Nic {
    folder: PathBuf,
    last: NicDrops,
    dropped: NicDrops,
}

impl Nic {
    fn new(name: &str) -> Nic {
        let mut nic = Nic {
            folder: PathBuf::from(format!("/sys/class/net/{name}/statistics")),
            last: NicDrops::default(),
            dropped: NicDrops::default(),
        };
        nic.poll();
        nic.dropped = NicDrops::default();
        nic
    }

    fn poll(&mut self) {
        let read = |file: &str| -> Option<u64> {
            let text = std::fs::read_to_string(self.folder.join(file)).ok()?;
            text.trim().parse().ok()
        };
        let counters = ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors", "rx_dropped"];
        // While the interface is gone there is nothing to read.
        if let [Some(nic_missed), Some(fifo), Some(over), Some(kernel)] = counters.map(read) {
            self.note(NicDrops { nic_missed, no_buffer: fifo.max(over), kernel });
        }
    }

    fn note(&mut self, now: NicDrops) {
        let grown = |now: u64, last: u64| if now >= last { now - last } else { now };
        let (last, sum) = (self.last, &mut self.dropped);
        sum.nic_missed += grown(now.nic_missed, last.nic_missed);
        sum.no_buffer += grown(now.no_buffer, last.no_buffer);
        sum.kernel += grown(now.kernel, last.kernel);
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_counts_also_where_the_interface_began_anew() {
        let mut nic = Nic {
            folder: PathBuf::new(),
            last: NicDrops { kernel: 100, ..NicDrops::default() },
            dropped: NicDrops::default(),
        };
        for (kernel, expected) in [(100, 0), (103, 3), (2, 5), (2, 5), (4, 7)] {
            nic.note(NicDrops { kernel, ..NicDrops::default() });
            assert_eq!(nic.dropped.kernel, expected);
        }
        assert_eq!(nic.dropped.total(), 7);
    }

    #[test]
    fn the_loopback_interface_can_be_read() {
        let host = HostStats::new(&["lo".to_owned(), "no-such-interface".to_owned()]);
        assert_eq!(host.dropped(), [NicDrops::default(); 2]);
    }
}
