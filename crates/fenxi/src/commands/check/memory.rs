//! Memory: whether it is enough, and whether large tables are on huge pages.

use accel::Bundle;
use flowmgr::table_bytes;
use packetio::Backend;

use super::finding::Finding;
use super::machine::Machine;
use config::Config;
use dataplane::bundle::series_tasks;

const CHECK: &str = "memory";
const MIB: u64 = 1 << 20;

/// A series' slot in a ring: two cache lines.
const SLOT_BYTES: u64 = size_of::<cring::Slot>() as u64;

/// A packet buffer of DPDK and its description: 2176 and 256 bytes, and what its pool needs.
const MBUF_BYTES: u64 = 2560;

/// Bytes of the program itself: its code, the library, a session of the shipped model on the CPU. Measured: about 40 MiB.
const PROGRAM: u64 = 64 * MIB;

/// Memory that a configuration needs, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    /// Flow tables when full; their pages are taken as flows begin.
    tables: u64,
    /// Receive rings and series rings, taken at start.
    rings: u64,
    /// Flows per table.
    max_flows: usize,
}

impl Need {
    fn of(config: &Config, bundles: &[Bundle]) -> Need {
        let (flow, io, layout) = (&config.flow, &config.io, &config.pipeline.layout);
        let instances = config.pipeline.instances as u64;
        let flow_managers = layout.flow_managers as u64 * instances;
        let ring = match io.backend {
            Backend::AfPacket => u64::from(io.block_bytes) * u64::from(io.blocks),
            // Of each queue, of which a flow manager has one or more.
            Backend::AfXdp => u64::from(io.xdp.frame_bytes) * u64::from(io.xdp.frames),
            Backend::Dpdk => u64::from(io.dpdk.mbufs) * MBUF_BYTES,
        };
        let receive = ring * io.interfaces.len() as u64;
        let rings = layout.rings().len() * bundles.len();
        let slots = rings as u64 * instances * config.ring.slots as u64;
        let series: Vec<_> = bundles.iter().flat_map(series_tasks).collect();
        Need {
            tables: flow_managers * table_bytes(flow.max_flows, flow.buckets, &series) as u64,
            rings: flow_managers * receive + slots * SLOT_BYTES,
            max_flows: flow.max_flows,
        }
    }
}

/// Checks memory; a running `service` already holds part of what it needs.
pub fn look(
    machine: &Machine,
    config: &Config,
    bundles: &[Bundle],
    service: Option<u32>,
) -> Vec<Finding> {
    let need = Need::of(config, bundles);
    vec![
        enough(machine, need, service),
        pages(machine, need.tables),
        locked(machine),
    ]
}

/// A value of `/proc/meminfo`, in bytes.
fn kib(machine: &Machine, file: &str, name: &str) -> Option<u64> {
    let value = machine.field(file, name)?;
    Some(
        value
            .strip_suffix("kB")
            .unwrap_or(&value)
            .trim()
            .parse::<u64>()
            .ok()?
            * 1024,
    )
}

fn enough(machine: &Machine, need: Need, service: Option<u32>) -> Finding {
    let held = service
        .and_then(|pid| kib(machine, &format!("proc/{pid}/status"), "VmRSS"))
        .unwrap_or(0);
    let free = kib(machine, "proc/meminfo", "MemAvailable").unwrap_or(u64::MAX);
    let available = limit(machine)
        .unwrap_or(u64::MAX)
        .min(free.saturating_add(held));
    let start = need.rings + PROGRAM;
    let all = start + need.tables;
    let cause = format!(
        "needs {} MiB at start and {} MiB with full flow tables; {} MiB available",
        start / MIB,
        all / MIB,
        available / MIB
    );
    if start > available {
        let line = "fenxi check --deep --set io.blocks=64";
        return Finding::problem(CHECK, "", format!("{cause}: the receive rings do not fit"))
            .cure(line);
    }
    if all > available {
        let share = (available - start) as f64 / need.tables as f64;
        let flows = (need.max_flows as f64 * share) as usize;
        let line = format!("fenxi check --deep --set flow.max_flows={}", flows.max(64));
        return Finding::problem(
            CHECK,
            "",
            format!("{cause}: the kernel kills fenxi before its tables are full"),
        )
        .cure(line);
    }
    Finding::ok(CHECK, "", cause)
}

/// The smallest limit of the control groups of this process, bytes.
fn limit(machine: &Machine) -> Option<u64> {
    let groups = machine.text("proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut folder = own.trim_end_matches('/');
    let mut least = None;
    while !folder.is_empty() {
        let max = machine.number(&format!("sys/fs/cgroup{folder}/memory.max"));
        let max = max.and_then(|bytes| u64::try_from(bytes).ok());
        least = [least, max].into_iter().flatten().min();
        folder = folder.rsplit_once('/').map_or("", |(above, _)| above);
    }
    least
}

/// The kind of pages that the tables will use.
fn pages(machine: &Machine, tables: u64) -> Finding {
    const CHECK: &str = "huge-pages";
    let size = kib(machine, "proc/meminfo", "Hugepagesize").unwrap_or(2 * MIB);
    let count = |name: &str| {
        machine
            .field("proc/meminfo", name)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let (total, free) = (count("HugePages_Total"), count("HugePages_Free"));
    let wanted = tables.div_ceil(size);
    if free >= wanted {
        return Finding::ok(
            CHECK,
            "",
            format!("{free} free; the flow tables need {wanted}"),
        );
    }
    let reserve = format!("sysctl -w vm.nr_hugepages={}", total + wanted - free);
    let on_request = machine
        .text("sys/kernel/mm/transparent_hugepage/enabled")
        .unwrap_or_default();
    if total > 0 {
        let cause = format!(
            "{free} of {total} free; the flow tables need {wanted}, and the rest is on other pages"
        );
        return Finding::warning(CHECK, "", cause).cure(reserve);
    }
    if on_request.contains("[madvise]") || on_request.contains("[always]") {
        return Finding::ok(
            CHECK,
            "",
            "none reserved; the flow tables request transparent ones",
        );
    }
    let cause =
        "none reserved, and transparent ones are off: look-ups in a large table wait for the TLB";
    let line = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    Finding::warning(CHECK, "", cause).cure(line)
}

/// The limit on locked memory. It does not apply to packet sockets or ONNX Runtime's CPU provider: rings of 128 MiB work
/// with a limit of 0 and without CAP_IPC_LOCK.
fn locked(machine: &Machine) -> Finding {
    const CHECK: &str = "memlock";
    let limits = machine.text("proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let limit = line
        .and_then(|line| line.split_whitespace().next())
        .unwrap_or("unknown");
    Finding::ok(
        CHECK,
        "",
        format!("limit {limit}; receive rings and flow tables do not count towards it"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;
    use dataplane::bundle::find_bundle;

    const NEED: Need = Need {
        tables: 200 * MIB,
        rings: 16 * MIB,
        max_flows: 1000,
    };

    fn meminfo(available_mib: u64, huge: (u64, u64)) -> String {
        format!(
            "MemTotal: 9 kB\nMemAvailable:   {} kB\nHugePages_Total:       {}\nHugePages_Free:        {}\nHugepagesize:       2048 kB\n",
            available_mib * 1024,
            huge.0,
            huge.1
        )
    }

    #[test]
    fn the_need_of_the_defaults_is_that_of_the_drawing() {
        let config = Config::load(None, &["io.interfaces=[\"eth0\"]".to_owned()]).unwrap();
        let shipped = find_bundle(&config, None).unwrap();
        let need = Need::of(&config, &[Bundle::open(&shipped).unwrap()]);
        assert_eq!(need.rings, 256 * 131_072 + 4096 * SLOT_BYTES);
        assert!(need.tables > 172 << 20, "{need:?}");
    }

    #[test]
    fn memory_that_does_not_reach() {
        let judged = |mib| {
            enough(
                &machine(&[("proc/meminfo", &meminfo(mib, (0, 0)))]).1,
                NEED,
                None,
            )
            .level
        };
        assert_eq!(
            [judged(1000), judged(250), judged(70)],
            [Level::Ok, Level::Problem, Level::Problem]
        );
        let text = meminfo(250, (0, 0));
        let (_dir, serving) = machine(&[
            ("proc/meminfo", &text),
            ("proc/7/status", "VmRSS:  102400 kB\n"),
        ]);
        assert_eq!(enough(&serving, NEED, Some(7)).level, Level::Ok);
    }

    #[test]
    fn a_control_group_above_counts() {
        let (_dir, bounded) = machine(&[
            (
                "proc/self/cgroup",
                "1:cpu:/x\n0::/system.slice/fenxi.service\n",
            ),
            (
                "sys/fs/cgroup/system.slice/fenxi.service/memory.max",
                "max\n",
            ),
            ("sys/fs/cgroup/system.slice/memory.max", "1048576\n"),
        ]);
        assert_eq!(limit(&bounded), Some(1 << 20));
        assert_eq!(enough(&bounded, NEED, None).level, Level::Problem);
    }

    #[test]
    fn pages_under_the_tables() {
        let judged = |huge, transparent| {
            let text = meminfo(1000, huge);
            let files = [
                ("proc/meminfo", text.as_str()),
                ("sys/kernel/mm/transparent_hugepage/enabled", transparent),
            ];
            pages(&machine(&files).1, NEED.tables)
        };
        assert_eq!(
            judged((100, 100), "always madvise [never]").level,
            Level::Ok
        );
        assert_eq!(judged((0, 0), "always [madvise] never").level, Level::Ok);
        assert_eq!(
            judged((0, 0), "always madvise [never]").level,
            Level::Warning
        );
        let few = judged((60, 40), "always [madvise] never");
        assert_eq!(few.remedy.as_deref(), Some("sysctl -w vm.nr_hugepages=120"));
    }
}
