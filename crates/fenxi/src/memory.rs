//! Memory that a configuration needs, and memory that this process may use.

use config::Config;
use config::checked::Capture;
use dataplane::tasks::OpenTask;
use flowmgr::table_bytes;

use crate::proc::Machine;
use crate::run::ports;
use crate::servers;

pub const MIB: u64 = 1 << 20;

/// A series' slot in a ring: two cache lines.
const SLOT_BYTES: u64 = size_of::<cring::Slot>() as u64;

/// Bytes of the program: code, libraries, a session of the shipped model. Measured: 35 MiB, with
/// ONNX Runtime 51 MiB; the static program 16 MiB.
const PROGRAM: u64 = if cfg!(feature = "ort") { 64 * MIB } else { 24 * MIB };

/// Memory that a configuration needs, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Flow tables when full; their pages are taken as flows begin.
    pub tables: u64,
    /// Receive rings, series rings and flows that the kernel counts, taken at start.
    pub rings: u64,
    /// Copies of the memory of servers while `servers.path` is written.
    pub copies: u64,
    /// Flows per table.
    pub max_flows: usize,
}

impl Need {
    pub fn new(config: &Config, tasks: &[OpenTask]) -> Need {
        let (flow, io, layout) = (&config.flow, &config.io, &config.pipeline.layout);
        let instances = config.pipeline.instances as u64;
        let flow_managers = layout.flow_managers as u64 * instances;
        let ring = (io.backend.ring_bytes)(&ports::settings(io, None, ""));
        // As the maps of packetio's programs in the kernel have it.
        let counted = match io.capture {
            Capture::All => 0,
            Capture::First => 64 + 24,
            Capture::Kernel => 64 + 24 + 128,
        };
        let counted = counted * u64::from(io.counted_flows);
        let receive = (ring + counted) * io.interfaces.len() as u64;
        let rings = layout.rings().len() * tasks.len();
        let slots = rings as u64 * instances * config.ring.slots as u64;
        let (series, bounds) = (OpenTask::series(tasks), config.behaviour.in_use());
        let servers = OpenTask::servers(config, tasks);
        let (max_flows, samples) = (flow.max_flows, config.learn.samples());
        let (buckets, measured) = (flow.buckets, config.measure.in_use());
        let table = table_bytes(max_flows, buckets, &series, bounds, servers, samples, measured);
        let kept = servers.filter(|_| config.servers.path.is_some()).unwrap_or(0);
        let copy_bytes = servers::copy_bytes(kept.next_power_of_two(), flow_managers as usize);
        Need {
            copies: if kept > 0 { copy_bytes as u64 } else { 0 },
            tables: flow_managers * table as u64,
            rings: flow_managers * receive + slots * SLOT_BYTES,
            max_flows,
        }
    }

    /// Bytes with empty flow tables.
    pub fn at_start(&self) -> u64 {
        self.rings + PROGRAM
    }

    /// Bytes with full flow tables.
    pub fn with_full_tables(&self) -> u64 {
        self.at_start() + self.tables + self.copies
    }

    /// Flows per table that fit into `available` bytes.
    pub fn flows_within(&self, available: u64) -> usize {
        let free = available.saturating_sub(self.at_start() + self.copies);
        let share = free as f64 / self.tables as f64;
        ((self.max_flows as f64 * share) as usize).max(64)
    }

    /// A warning if full flow tables do not fit.
    pub fn warning(&self, machine: &Machine) -> Option<String> {
        let (all, available) = (self.with_full_tables(), available(machine, 0));
        (all > available).then(|| {
            format!(
                "full flow tables need {} MiB of memory, and {} MiB are available: the kernel may \
                kill fenxi before they are full; set flow.max_flows = {}",
                all / MIB,
                available / MIB,
                self.flows_within(available)
            )
        })
    }
}

/// Bytes of the machine, or of the control groups of this process where these have less; `None`
/// where nobody says.
pub fn total(machine: &Machine) -> Option<u64> {
    let all = machine.bytes("proc/meminfo", "MemTotal");
    all.into_iter().chain(limit(machine)).min()
}

/// Bytes that a process may use, the `held` ones among them.
pub fn available(machine: &Machine, held: u64) -> u64 {
    let free = machine.bytes("proc/meminfo", "MemAvailable");
    let free = free.unwrap_or(u64::MAX).saturating_add(held);
    free.min(limit(machine).unwrap_or(u64::MAX))
}

/// The smallest limit of the control groups of this process, bytes. In a container the group's path
/// may be the host's; then the files of the container's own group are at the root.
fn limit(machine: &Machine) -> Option<u64> {
    let groups = machine.text("proc/self/cgroup")?;
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|it| it == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = group.trim_end_matches('/');
        let above = group.rmatch_indices('/').map(|(end, _)| end);
        let ends = std::iter::once(group.len()).chain(above);
        let limit = |end: usize| machine.number(&format!("{root}{}/{file}", &group[..end]));
        ends.filter_map(limit).min()
    });
    limits.filter_map(|bytes| u64::try_from(bytes).ok()).min()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::proc::tests::machine;

    /// A need of 280 MiB.
    pub const NEED: Need = Need { tables: 200 * MIB, rings: 16 * MIB, copies: 0, max_flows: 1000 };

    #[test]
    fn the_need_of_the_defaults_is_that_of_the_drawing() {
        let of = |set: &str| {
            let sets = ["io.interfaces=[\"eth0\"]", set].map(str::to_owned);
            let config = Config::load(None, &sets).unwrap();
            Need::new(&config, &OpenTask::open_all(&config, None).unwrap())
        };
        let need = of("io.capture=all");
        assert_eq!(need.rings, 256 * 131_072 + 4096 * SLOT_BYTES);
        assert!(need.tables > 172 << 20, "{need:?}");
        assert_eq!(of("io.capture=first").rings, need.rings + 131_072 * 88);
    }

    #[test]
    fn copies_of_the_memory_of_servers_count_where_it_is_kept() {
        let of = |sets: &[&str]| {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/bundles/server-volume");
            let sets = [&["servers.entries=65536", "pipeline.layout=2:1:1"][..], sets].concat();
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = Config::load(None, &sets).unwrap();
            let dir = std::path::Path::new(root);
            Need::new(&config, &OpenTask::open_all(&config, Some(dir)).unwrap())
        };
        let kept = of(&["servers.path=/tmp/servers"]);
        assert_eq!(of(&[]).copies, 0);
        // Of two workers gathered, joined and sorted, and the file.
        assert_eq!(kept.copies, 65_536 * (2 * (32 + 32 + 24) + 32));
        assert_eq!(kept.with_full_tables(), kept.at_start() + kept.tables + kept.copies);
        let one_more = kept.with_full_tables() + kept.tables / kept.max_flows as u64;
        assert!(kept.flows_within(one_more) >= kept.max_flows);
    }

    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let least = |groups: &str, files: &[(&str, &str)]| {
            let groups = [("proc/self/cgroup", groups)];
            limit(&machine(&[&groups[..], files].concat()).1)
        };
        let unified = "1:cpu:/x\n0::/system.slice/fenxi.service\n";
        let own = "sys/fs/cgroup/system.slice/fenxi.service/memory.max";
        let above = "sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(least(unified, &[(own, "max\n"), (above, "1048576\n")]), Some(1 << 20));
        assert_eq!(least(unified, &[(own, "max\n")]), None);
        let former = "4:cpu,memory:/a/b\n1:cpu:/x\n0::/\n";
        let own = "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes";
        let top = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        let none = "9223372036854771712\n";
        assert_eq!(least(former, &[(own, "1048576\n"), (top, none)]), Some(1 << 20));
        // In a container.
        assert_eq!(least(former, &[(top, "2097152\n")]), Some(2 << 20));
        let root = "sys/fs/cgroup/memory.max";
        assert_eq!(least("0::/\n", &[(root, "4096\n")]), Some(4096));
    }

    #[test]
    fn a_control_group_may_have_less_than_the_machine_but_not_more() {
        let of = |limit: &str| {
            let files = [
                ("proc/meminfo", "MemTotal:  245760 kB\nMemAvailable:  9 kB\n"),
                ("proc/self/cgroup", "0::/fenxi\n"),
                ("sys/fs/cgroup/fenxi/memory.max", limit),
            ];
            total(&machine(&files).1).map(|bytes| bytes / MIB)
        };
        assert_eq!([of("max\n"), of("134217728\n"), of("1073741824\n")], [240, 128, 240].map(Some));
        assert_eq!(total(&machine(&[]).1), None);
    }

    #[test]
    fn tables_that_do_not_fit_are_told_with_those_that_do() {
        let warning = |mib: u64| {
            let text = format!("MemAvailable:   {} kB\n", mib * 1024);
            NEED.warning(&machine(&[("proc/meminfo", &text)]).1)
        };
        assert_eq!(warning(280), None);
        assert_eq!(
            warning(180).as_deref(),
            Some(
                "full flow tables need 280 MiB of memory, and 180 MiB are available: the kernel \
                 may kill fenxi before they are full; set flow.max_flows = 500"
            )
        );
    }
}
