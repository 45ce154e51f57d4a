//! The program on an interface: loaded with its maps, attached to both directions, attached again to an interface that is back.

use std::error::Error;
use std::os::fd::AsFd;
use std::sync::Arc;

use aya::maps::{ArrayOfMaps, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError, EbpfLoader, Pod};
use aya_obj::generated::bpf_map_type::{BPF_MAP_TYPE_LRU_HASH, BPF_MAP_TYPE_RINGBUF};

use super::layout::{Counters, Entry, Key, WORKERS_MAX};
use super::words::Words;
use crate::error::OpenError;
use crate::interface::{ETHERNET, Interface};
use crate::settings::{Direction, FirstPackets, PortSettings};

/// What `make bpf` makes of `bpf/first.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/first.o");
/// The least size of a ring, and the greatest: powers of two.
const RING_BYTES_MIN: u64 = 1 << 16;
const RING_BYTES_MAX: u64 = 1 << 30;
/// Lines of the verifier's log that an error shows: the last ones say what it did not like.
const LOG_LINES: usize = 4;

#[expect(
    unsafe_code,
    reason = "a promise about a type, which the line above it holds"
)]
mod pod {
    use super::{Counters, Pod};

    // SAFETY: six integers without padding.
    unsafe impl Pod for Counters {}
}

/// A program and its maps, for one interface.
pub struct Program {
    ebpf: Ebpf,
    links: Vec<SchedClassifierLinkId>,
    directions: &'static [TcAttachType],
    /// By worker, and CPU.
    counters: PerCpuArray<MapData, Counters>,
}

/// What a worker reads.
pub struct WorkerMaps {
    pub ring: RingBuf<MapData>,
    pub table: MapData,
}

/// A program that was loaded, the maps of each worker, and the words shared with the kernel.
pub struct Loaded {
    pub program: Program,
    pub maps: Vec<WorkerMaps>,
    pub words: Arc<Words>,
}

/// Loads the program for an interface and drops it again.
///
/// # Errors
/// As [`load`].
pub fn probe(settings: &PortSettings, first: &FirstPackets) -> Result<(), OpenError> {
    settings.check()?;
    let interface = Interface::open(&settings.interface)?;
    let small = FirstPackets { flows: 1, ..*first };
    load_object(&interface, &small, 1).map(drop)
}

/// Loads the program for an interface, for so many workers. It is not attached yet.
///
/// # Errors
/// The kernel does not take the program or gives no memory for its maps.
pub fn load(
    settings: &PortSettings,
    first: &FirstPackets,
    interface: &Interface,
    workers: u32,
) -> Result<Loaded, OpenError> {
    if workers > WORKERS_MAX {
        return Err(OpenError::BadSetting {
            interface: interface.name.clone(),
            setting: format!("{workers} flow workers; io.capture = \"first\" serves {WORKERS_MAX}"),
        });
    }
    let refused = |error: Box<dyn Error>| refused(interface, &*error);
    let (mut ebpf, words) = load_object(interface, first, workers)?;
    let maps = (0..workers).map(|worker| add_maps(&mut ebpf, worker, settings, first));
    let maps = maps.collect::<Result<_, _>>().map_err(refused)?;
    let counters = take(&mut ebpf, "counts").and_then(|map| Ok(map.try_into()?));
    let directions: &[TcAttachType] = match settings.direction {
        // On the loopback interface each packet goes out and comes in.
        Direction::Both if !interface.is_loopback() => {
            &[TcAttachType::Ingress, TcAttachType::Egress]
        }
        _ => &[TcAttachType::Ingress],
    };
    Ok(Loaded {
        program: Program {
            counters: counters.map_err(refused)?,
            ebpf,
            links: Vec::new(),
            directions,
        },
        maps,
        words: Arc::new(words),
    })
}

fn load_object(
    interface: &Interface,
    first: &FirstPackets,
    workers: u32,
) -> Result<(Ebpf, Words), OpenError> {
    let is_ethernet = u32::from(interface.link_type == ETHERNET);
    let forget_ns = first.forget.as_nanos() as u64;
    let loaded = EbpfLoader::new()
        .override_global("workers", &workers, true)
        .override_global("is_ethernet", &is_ethernet, true)
        .override_global("packets_wanted", &first.packets, true)
        .override_global("data_wanted", &first.data_packets, true)
        .override_global("forget_ns", &forget_ns, true)
        .override_global("hash_seed", &first.seed, true)
        .load(OBJECT)
        .map_err(Box::<dyn Error>::from);
    let words = |mut ebpf: Ebpf| {
        // First of all, for it needs all maps.
        program_of(&mut ebpf)?;
        let shared = match take(&mut ebpf, "shared")? {
            Map::Array(shared) => shared,
            _ => return Err("the program's words are no array".into()),
        };
        let words = Words::map(shared.fd().as_fd(), first.seed)?;
        Ok((ebpf, words))
    };
    loaded
        .and_then(words)
        .map_err(|error| refused(interface, &*error))
}

/// The program, loaded into the kernel.
fn program_of(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier, Box<dyn Error>> {
    let program = ebpf
        .program_mut("fenxi_first")
        .ok_or("the object has no program")?;
    let program: &mut SchedClassifier = program.try_into()?;
    match program.load() {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(program),
        Err(error) => Err(error.into()),
    }
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, Box<dyn Error>> {
    let missing = || format!("the object has no map {name}");
    Ok(ebpf.take_map(name).ok_or_else(missing)?)
}

/// The ring and the table of a worker, known to the program.
fn add_maps(
    ebpf: &mut Ebpf,
    worker: u32,
    settings: &PortSettings,
    first: &FirstPackets,
) -> Result<WorkerMaps, Box<dyn Error>> {
    let wanted = u64::from(settings.block_bytes) * u64::from(settings.blocks);
    let ring_bytes = wanted
        .clamp(RING_BYTES_MIN, RING_BYTES_MAX)
        .next_power_of_two() as u32;
    let create = |kind, (key, value), entries, name| {
        let map = aya_obj::Map::new_from_params(kind, key, value, entries, 0);
        MapData::create(map, name, None)
    };
    let ring = create(
        BPF_MAP_TYPE_RINGBUF as u32,
        (0, 0),
        ring_bytes,
        "fenxi_ring",
    )?;
    let sizes = (size_of::<Key>() as u32, size_of::<Entry>() as u32);
    let kind = BPF_MAP_TYPE_LRU_HASH as u32;
    let table = create(kind, sizes, first.flows.max(1), "fenxi_flows")?;
    for (name, map) in [("rings", &ring), ("tables", &table)] {
        let outer = ebpf
            .map_mut(name)
            .ok_or_else(|| format!("the object has no map {name}"))?;
        let mut outer: ArrayOfMaps<&mut MapData, MapData> = outer.try_into()?;
        outer.set(worker, map, 0)?;
    }
    let ring = RingBuf::try_from(Map::RingBuf(ring))?;
    Ok(WorkerMaps { ring, table })
}

impl Program {
    /// Attaches the program to the interface that has this name now. Where it was attached before, it is detached there first.
    /// It stays until it is dropped, or the process ends.
    ///
    /// # Errors
    /// The kernel has no TCX, a capability is missing, …
    pub fn attach(&mut self, interface: &Interface) -> Result<(), OpenError> {
        let refused = |error: Box<dyn Error>| refused(interface, &*error);
        let program = program_of(&mut self.ebpf).map_err(refused)?;
        for link in self.links.drain(..) {
            // Of an interface that is gone there is nothing to detach from.
            let _ = program.detach(link);
        }
        for direction in self.directions {
            // In front of other programs, which may drop or redirect.
            let options = TcAttachOptions::TcxOrder(LinkOrder::first());
            let link = program.attach_with_options(&interface.name, *direction, options);
            self.links
                .push(link.map_err(|error| refused(error.into()))?);
        }
        Ok(())
    }

    /// What was counted for a worker so far.
    pub fn counters(&self, worker: u32) -> Counters {
        let mut sum = Counters::default();
        if let Ok(by_cpu) = self.counters.get(&worker, 0) {
            by_cpu.iter().for_each(|counters| sum.add(counters));
        }
        sum
    }
}

/// The error of one line, with its cure where it is known.
fn refused(interface: &Interface, error: &(dyn Error + 'static)) -> OpenError {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let text = source.to_string();
        if !why.contains(&text) {
            why = format!("{why}: {text}");
        }
        cause = source.source();
    }
    if let Some(ProgramError::LoadError {
        io_error,
        verifier_log,
    }) = load_error(error)
    {
        let log = verifier_log.to_string();
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join(" | ");
        why = match last.is_empty() {
            true => format!("the program is refused: {io_error}"),
            false => format!("the verifier refuses the program: {last}"),
        };
    }
    let cure = match errno(error) {
        Some(libc::EPERM | libc::EACCES) => Some("CAP_BPF and CAP_NET_ADMIN are needed"),
        Some(libc::EINVAL) if why.contains("link") => Some("Linux 6.6 or later is needed"),
        Some(libc::ENOMEM) => Some("ask for fewer flows or a smaller ring"),
        _ => None,
    };
    if let Some(cure) = cure {
        why = format!("{why}; {cure}");
    }
    OpenError::FirstPackets {
        interface: interface.name.clone(),
        why,
    }
}

fn load_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ProgramError> {
    let program =
        error
            .downcast_ref::<ProgramError>()
            .or_else(|| match error.downcast_ref::<EbpfError>() {
                Some(EbpfError::ProgramError(program)) => Some(program),
                _ => None,
            });
    program.filter(|it| matches!(it, ProgramError::LoadError { .. }))
}

/// The system's number in an error or what caused it.
fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.raw_os_error();
        }
        next = error.source();
    }
    None
}
