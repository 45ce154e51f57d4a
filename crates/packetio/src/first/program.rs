//! Loads the program with its maps, attaches it to both directions, and reattaches it.

use std::error::Error;
use std::os::fd::AsFd;
use std::sync::Arc;

use aya::maps::{ArrayOfMaps, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, TcAttachType};
use aya::{Btf, Ebpf, EbpfLoader, Pod};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_RINGBUF;

use super::editions::KernelEditions;
use super::filter::Filter;
use super::hash::Secrets;
use super::kfunc;
use super::labels::{Constants, set_ports};
use super::layout::{Counters, WAYS, WORKERS_MAX, ticks};
use super::table::Table;
use crate::ebpf::{errno, load_error, load_program, take, unpacked};
use crate::error::OpenError;
use crate::interface::{ETHERNET, Interface};
use crate::settings::{Direction, FirstPackets, PortSettings};

/// Built from `bpf/first.c` by `make bpf`, and packed; without labels in the kernel, and with.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/first.o"));
static OBJECT_WITH_LABELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernel.o"));
/// The programs for what comes in, and for what goes out where that is another one.
const IN: &str = "fenxi_first";
const OUT: &str = "fenxi_out";
/// Minimum and maximum size of a ring: powers of two.
const RING_BYTES_MIN: u64 = 1 << 16;
const RING_BYTES_MAX: u64 = 1 << 30;

#[expect(unsafe_code, reason = "a promise about a type")]
mod pod {
    use super::{Counters, Pod};

    // SAFETY: five integers without padding.
    unsafe impl Pod for Counters {}
}

/// A program and its maps, for one interface.
pub struct Program {
    ebpf: Ebpf,
    links: Vec<(&'static str, SchedClassifierLinkId)>,
    /// For each direction, where the kernel has no TCX.
    filters: Vec<Filter>,
    has_labels: bool,
    directions: &'static [TcAttachType],
    /// By worker and CPU.
    counters: PerCpuArray<MapData, Counters>,
}

/// A loaded program, the ring of each worker, and the flow table.
pub struct Loaded {
    pub program: Program,
    pub rings: Vec<RingBuf<MapData>>,
    pub table: Arc<Table>,
}

/// Attaches the program to an interface and drops it.
pub fn probe(settings: &PortSettings, first: &FirstPackets) -> Result<(), OpenError> {
    settings.check()?;
    let interface = Interface::open(&settings.interface)?;
    let small = FirstPackets { flows: 1, ..first.clone() };
    let Loaded { mut program, .. } = load(settings, &small, &interface, 1)?;
    program.attach(&interface)
}

/// Loads the program for an interface and `workers` workers, without attaching it.
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
    let (mut ebpf, table) = load_object(interface, first, workers)?;
    let rings = (0..workers).map(|worker| add_ring(&mut ebpf, worker, settings));
    let rings = rings.collect::<Result<_, _>>().map_err(refused)?;
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
            filters: Vec::new(),
            has_labels: first.labels.is_some(),
            directions,
        },
        rings,
        table: Arc::new(table),
    })
}

fn load_object(
    interface: &Interface,
    first: &FirstPackets,
    workers: u32,
) -> Result<(Ebpf, Table), OpenError> {
    let is_ethernet = u32::from(interface.link_type == ETHERNET);
    let forget_ticks = ticks(first.forget.as_nanos() as u64);
    let sets = first.flows.div_ceil(WAYS as u32).next_power_of_two();
    let secrets = Secrets::new(first.seed);
    let entries = workers.saturating_mul(sets).saturating_mul(WAYS as u32);
    let editions = first.labels.as_deref();
    let labels = editions.map(KernelEditions::first);
    let has_marks = labels.is_some_and(|it| it.marks.is_some());
    let packed = if labels.is_some() { OBJECT_WITH_LABELS } else { OBJECT };
    let object = unpacked(packed).map_err(|error| refused(interface, &error))?;
    let link = || kfunc::link(&object, Btf::from_sys_fs().ok().as_ref()).ok();
    let linked = if has_marks { link() } else { None };
    let constants = labels.map(|it| Constants::new(it, linked.is_some()));
    let mut loader = EbpfLoader::new();
    if let Some(constants) = &constants {
        loader.override_global("settings", constants, true);
        loader.override_global("marks_connections", &constants.marks, true);
        loader.map_max_entries("series", entries);
    }
    let loaded = loader
        .override_global("workers", &workers, true)
        .override_global("is_ethernet", &is_ethernet, true)
        .override_global("packets_wanted", &first.packets, true)
        .override_global("data_wanted", &first.data_packets, true)
        .override_global("bulk_bytes", &first.bulk_bytes, true)
        .override_global("forget_ticks", &forget_ticks, true)
        .override_global("sets", &sets, true)
        .override_global("hash_secrets", secrets.as_slice(), true)
        .map_max_entries("table", workers.saturating_mul(sets))
        .map_max_entries("table_words", workers.saturating_mul(sets))
        .load(linked.as_deref().unwrap_or(&object))
        .map_err(Box::<dyn Error>::from);
    let table = |mut ebpf: Ebpf| {
        if let Some(editions) = editions {
            set_ports(&mut ebpf, editions.first())?;
            editions.begin(&mut ebpf)?;
        }
        // Loading needs all maps, so it precedes taking them.
        load_program(&mut ebpf, IN)?;
        if labels.is_some() {
            load_program(&mut ebpf, OUT)?;
        }
        if let Some(editions) = editions {
            editions.join(take(&mut ebpf, "nets")?.try_into()?);
        }
        let mut array = |name| match take(&mut ebpf, name)? {
            Map::Array(array) => Ok(array),
            _ => Err(Box::<dyn Error>::from("a map of the program is no array")),
        };
        let maps = [array("table")?, array("table_words")?, array("asleep")?];
        let series = labels.map(|_| array("series")).transpose()?;
        let maps = maps.each_ref().map(|map| map.fd().as_fd());
        let series = series.as_ref().map(|map| map.fd().as_fd());
        let table = Table::map(maps, series, (workers, sets), secrets)?;
        Ok((ebpf, table))
    };
    loaded.and_then(table).map_err(|error| match (refused(interface, &*error), labels) {
        (OpenError::FirstPackets { interface, why }, Some(_)) => {
            OpenError::KernelLabels { interface, why: why.replace(NEEDED, NEEDED_FOR_LABELS) }
        }
        (error, _) => error,
    })
}

/// Creates the ring of a worker and registers it with the program.
fn add_ring(
    ebpf: &mut Ebpf,
    worker: u32,
    settings: &PortSettings,
) -> Result<RingBuf<MapData>, Box<dyn Error>> {
    let wanted = u64::from(settings.block_bytes) * u64::from(settings.blocks);
    let bytes = wanted.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two() as u32;
    let ring = aya_obj::Map::new_from_params(BPF_MAP_TYPE_RINGBUF as u32, 0, 0, bytes, 0);
    let ring = MapData::create(ring, "fenxi_ring", None)?;
    let rings = ebpf.map_mut("rings").ok_or("the object has no map rings")?;
    let mut rings: ArrayOfMaps<&mut MapData, MapData> = rings.try_into()?;
    rings.set(worker, &ring, 0)?;
    Ok(RingBuf::try_from(Map::RingBuf(ring))?)
}

impl Program {
    /// Attaches the program to an interface, and detaches it from the previous one. It stays
    /// attached until it is dropped or the process ends.
    pub fn attach(&mut self, interface: &Interface) -> Result<(), OpenError> {
        let refused = |error: Box<dyn Error>| refused(interface, &*error);
        for (name, link) in self.links.drain(..) {
            // If the interface is gone, there is nothing to detach from.
            let _ = load_program(&mut self.ebpf, name).map_err(refused)?.detach(link);
        }
        for (number, &direction) in self.directions.iter().enumerate() {
            let name = match direction {
                TcAttachType::Egress if self.has_labels => OUT,
                _ => IN,
            };
            let program = load_program(&mut self.ebpf, name).map_err(refused)?;
            // In front of other programs, which may drop or redirect.
            let options = TcAttachOptions::TcxOrder(LinkOrder::first());
            match program.attach_with_options(&interface.name, direction, options) {
                Ok(link) => self.links.push((name, link)),
                // The kernel has no TCX.
                Err(error) if errno(&error) == Some(libc::EINVAL) => {
                    self.attach_filter(number, name, interface).map_err(refused)?;
                }
                Err(error) => return Err(refused(error.into())),
            }
        }
        Ok(())
    }

    /// Attaches a program to a direction by a filter.
    pub fn attach_filter(
        &mut self,
        number: usize,
        name: &str,
        interface: &Interface,
    ) -> Result<(), Box<dyn Error>> {
        if self.filters.len() == number {
            let program = load_program(&mut self.ebpf, name)?;
            self.filters.push(Filter::new(program.fd()?)?);
        }
        self.filters[number].attach(interface, self.directions[number])
    }

    /// How it is attached, where that is not by TCX.
    pub fn how(&self, interface: &Interface) -> Option<String> {
        let name = &interface.name;
        let is_filter = !self.filters.is_empty();
        is_filter.then(|| format!("{name}: a filter of clsact, as the kernel has no TCX (6.6)"))
    }

    /// A worker's counters so far.
    pub fn counters(&self, worker: u32) -> Counters {
        let mut sum = Counters::default();
        if let Ok(by_cpu) = self.counters.get(&worker, 0) {
            by_cpu.iter().for_each(|counters| sum.add(counters));
        }
        sum
    }
}

#[cfg(test)]
impl Program {
    /// Number of the program for what comes in.
    pub fn id(&self) -> u32 {
        let program: &aya::programs::SchedClassifier =
            self.ebpf.program(IN).unwrap().try_into().unwrap();
        program.info().unwrap().id()
    }

    /// Ends as a process that is killed.
    pub fn leave_filters(self) {
        self.filters.into_iter().for_each(Filter::leave);
    }
}

const NEEDED: &str = "CAP_BPF and CAP_NET_ADMIN are needed";
const NEEDED_FOR_LABELS: &str = "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed";

/// Converts an error, with its cure where known.
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
    if let Some((io_error, log)) = load_error(error) {
        why = match log {
            None => format!("the program is refused: {io_error}"),
            Some(log) => format!("the verifier refuses the program: {log}"),
        };
    }
    let cure = match errno(error) {
        Some(libc::EPERM | libc::EACCES) => Some(NEEDED),
        Some(libc::ENOMEM) => Some("ask for fewer flows or a smaller ring"),
        _ => None,
    };
    if let Some(cure) = cure {
        why = format!("{why}; {cure}");
    }
    OpenError::FirstPackets { interface: interface.name.clone(), why }
}
