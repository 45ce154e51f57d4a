//! The thread that reads the sources of names, and what a run has of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use config::{Config, Keyed, Section};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use dataplane::sink::Sink;
use netfilter::neighbours::Neighbours;
use packetio::Overheard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use super::join::{Fact, hosts, is_of_a_host};
use super::section::NamesKeys;
use super::source::Source;
use super::vendors::Vendors;
use super::{Mac, Names, wire};
use crate::exit::Failure;
use crate::metric::{Family, count};
use crate::sinks::{Report, SinkControl, SinkKind, Start};

/// Between two looks at the files and at the kernel's table.
const READ_EVERY: Duration = Duration::from_secs(1);
/// A neighbour is remembered for this time after the kernel has forgotten it.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Neighbours that are remembered at most; those that the kernel forgot first go first.
const NEIGHBOURS_MAX: usize = 16_384;
/// Packets from the wire that are read in a second at most; the kernel drops what comes beyond.
const PACKETS_MAX: usize = 10_000;
const PACKET_BYTES: usize = 4096;

/// The names of a run, and the sockets that need rights to be opened, until its sinks start.
#[derive(Default)]
pub struct Opened {
    pub names: Names,
    overheard: Mutex<Vec<Overheard>>,
}

/// Opens what needs rights.
///
/// # Errors
/// An interface cannot be listened to.
pub fn open(config: &Config) -> Result<Opened, Failure> {
    let is_on = config.section::<NamesKeys>().dns;
    if is_on && config.io.backend.takes_frames {
        return Err(Failure::config(format!(
            "names.dns = true: io.backend = \"{}\" takes frames from the kernel, so DNS answers \
             cannot be read; leave one of the two out",
            config.io.backend.name
        )));
    }
    let interfaces = config.io.interfaces.iter().filter(|_| is_on);
    let overheard = interfaces.map(|interface| Overheard::open(interface, &wire::PORTS));
    let overheard: Result<Vec<_>, _> = overheard.collect();
    let overheard =
        overheard.map_err(|error| Failure::unavailable(format!("names.dns: {error}")))?;
    Ok(Opened { names: Names::default(), overheard: Mutex::new(overheard) })
}

/// Reads the names of a live run.
pub struct Reading;

impl SinkKind for Reading {
    fn sections(&self) -> &'static [&'static Section] {
        &[NamesKeys::SECTION]
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        if start.replay.is_some() {
            return Ok(None);
        }
        let names = start.host_names.names.clone();
        let mut overheard =
            start.host_names.overheard.lock().unwrap_or_else(PoisonError::into_inner);
        let overheard = std::mem::take(&mut *overheard);
        let reader = Reader::new(&start.config.section(), names.clone(), overheard);
        let (stop, stopped) = bounded(0);
        let thread = std::thread::Builder::new().name("names".to_owned());
        thread.spawn(move || reader.run(&stopped)).map_err(|error| {
            Failure::unavailable(format!("cannot start the names thread: {error}"))
        })?;
        Ok(Some(Box::new(ReadingControl { names, _stop: stop })))
    }

    fn probe(&self, config: &Config, _is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        open(config).map(drop)
    }

    fn empty_report(&self) -> Report {
        report(&Names::default())
    }
}

struct ReadingControl {
    names: Names,
    /// Gone with the run; then the thread ends. Nobody waits for it: it has nothing to write.
    _stop: Sender<()>,
}

impl SinkControl for ReadingControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        None
    }

    fn report(&self) -> Report {
        report(&self.names)
    }
}

fn report(names: &Names) -> Report {
    let snapshot = names.snapshot();
    let named = snapshot.hosts().iter().filter(|host| host.name.is_some()).count();
    let seen = names.seen().len();
    Report {
        metrics: vec![Family::gauge(
            "fenxi_names",
            "names",
            &["source"],
            "Named by leases and files (host); addresses named by answers of DNS or mDNS (answer).",
            [count(&["host"], named as u64), count(&["answer"], seen as u64)],
        )],
        ..Report::default()
    }
}

/// With the time when the kernel last knew them.
type Remembered = HashMap<IpAddr, (Mac, Instant)>;

/// Forgets the neighbours that the kernel has long forgotten, and the oldest beyond
/// [`NEIGHBOURS_MAX`], so that a flood of forged ones keeps no real one out; returns whether
/// there were any.
fn forget(neighbours: &mut Remembered, now: Instant) -> bool {
    let before = neighbours.len();
    neighbours.retain(|_, (_, at)| now.duration_since(*at) < REMEMBERED);
    if let Some(beyond @ 1..) = neighbours.len().checked_sub(NEIGHBOURS_MAX) {
        let mut times: Vec<(Instant, IpAddr)> =
            neighbours.iter().map(|(address, (_, at))| (*at, *address)).collect();
        times.select_nth_unstable(beyond - 1);
        for (_, address) in &times[..beyond] {
            neighbours.remove(address);
        }
    }
    neighbours.len() < before
}

struct Reader {
    names: Names,
    sources: Vec<Source>,
    /// `None`: the kernel does not show its table.
    kernel: Option<Neighbours>,
    neighbours: Remembered,
    vendors: Vendors,
    overheard: Vec<Overheard>,
}

impl Reader {
    fn new(keys: &NamesKeys, names: Names, overheard: Vec<Overheard>) -> Reader {
        let kernel = Neighbours::open();
        if let Err(error) = &kernel {
            warn!("names: the kernel does not show MAC addresses: {error}");
        }
        Reader {
            names,
            sources: Source::all(&keys.leases),
            kernel: kernel.ok(),
            neighbours: HashMap::new(),
            vendors: Vendors::new(),
            overheard,
        }
    }

    fn run(mut self, stopped: &Receiver<()>) {
        loop {
            self.read();
            let next = Instant::now() + READ_EVERY;
            self.listen(next);
            let left = next.saturating_duration_since(Instant::now());
            if stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Publishes what has changed.
    fn read(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let mut has_changed = false;
        for source in &mut self.sources {
            has_changed |= source.read(now_s);
        }
        has_changed |= self.read_neighbours();
        if !has_changed {
            return;
        }
        let neighbours: Vec<Fact> = self
            .neighbours
            .iter()
            .map(|(address, (mac, _))| Fact { mac: Some(*mac), ..Fact::new(*address) })
            .collect();
        let sources = self.sources.iter().map(|source| source.facts.as_slice());
        let sources: Vec<&[Fact]> = sources.chain([neighbours.as_slice()]).collect();
        let mut hosts = hosts(&sources);
        self.vendors.add(&mut hosts);
        self.names.publish(hosts);
    }

    /// Whether a neighbour came, went, or has another MAC address.
    fn read_neighbours(&mut self) -> bool {
        let entries = self.kernel.as_mut().and_then(|kernel| kernel.read().ok());
        let now = Instant::now();
        let mut has_changed = false;
        for (address, mac) in entries.into_iter().flatten() {
            let Some(mac) = Mac::of_device(mac).filter(|_| is_of_a_host(address)) else { continue };
            let before = self.neighbours.insert(address, (mac, now));
            has_changed |= before.map(|(mac, _)| mac) != Some(mac);
        }
        has_changed | forget(&mut self.neighbours, now)
    }

    /// Takes names from the wire until then; after [`PACKETS_MAX`] the rest of the time is a pause.
    fn listen(&self, until: Instant) {
        let (mut buffer, mut packets) = ([0; PACKET_BYTES], 0);
        while !self.overheard.is_empty() && packets < PACKETS_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let sockets = self.overheard.iter();
            let mut ready: Vec<PollFd<'_>> =
                sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
            let timeout = Timespec::try_from(left).ok();
            // An error of poll: the sockets are looked at all the same.
            let _ = poll(&mut ready, timeout.as_ref());
            let before = packets;
            for socket in &self.overheard {
                let Some(packet) = socket.next(&mut buffer) else { continue };
                packets += 1;
                if let Some((name, addresses)) = wire::read(packet) {
                    self.names.seen().add(&name, &addresses);
                }
            }
            if packets == before {
                // An interface that is away is always ready.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_neighbours_give_way_to_new_ones() {
        let began = Instant::now();
        let later = began + Duration::from_secs(1);
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        let mac = Mac([0, 22, 62, 0, 0, 5]);
        let mut neighbours: Remembered =
            (0..NEIGHBOURS_MAX as u32).map(|number| (address(number), (mac, began))).collect();
        assert!(!forget(&mut neighbours, later));
        let new = [address(u32::MAX - 1), address(u32::MAX - 2)];
        neighbours.extend(new.map(|address| (address, (mac, later))));
        assert!(forget(&mut neighbours, later));
        assert_eq!(neighbours.len(), NEIGHBOURS_MAX);
        assert!(new.iter().all(|address| neighbours.contains_key(address)));
        assert!(forget(&mut neighbours, began + REMEMBERED));
        assert_eq!(neighbours.len(), new.len());
    }
}
