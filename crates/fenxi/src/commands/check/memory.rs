//! Memory: whether it is enough, and whether large tables are on huge pages.

use super::finding::Finding;
use super::machine::Machine;
use crate::memory::{MIB, Need, available};
use config::Config;
use dataplane::tasks::OpenTask;

const CHECK: &str = "memory";

/// Checks memory; a running `service` already holds part of what it needs.
pub fn findings(
    machine: &Machine,
    config: &Config,
    tasks: &[OpenTask],
    service: Option<u32>,
) -> Vec<Finding> {
    let need = Need::new(config, tasks);
    vec![enough(machine, need, service), pages(machine, need.tables), locked(machine)]
}

fn enough(machine: &Machine, need: Need, service: Option<u32>) -> Finding {
    let held =
        service.and_then(|pid| machine.bytes(&format!("proc/{pid}/status"), "VmRSS")).unwrap_or(0);
    let available = available(machine, held);
    let (start, all) = (need.at_start(), need.with_full_tables());
    let cause = format!(
        "needs {} MiB at start and {} MiB with full flow tables; {} MiB available",
        start / MIB,
        all / MIB,
        available / MIB
    );
    if start > available {
        let line = "fenxi check --deep --set io.blocks=64";
        let cause = format!("{cause}: the receive rings do not fit");
        return Finding::problem(CHECK, "", cause).cure(line);
    }
    if all > available {
        let flows = need.flows_within(available);
        let line = format!("fenxi check --deep --set flow.max_flows={flows}");
        let cause = format!("{cause}: the kernel kills fenxi before its tables are full");
        return Finding::problem(CHECK, "", cause).cure(line);
    }
    Finding::ok(CHECK, "", cause)
}

fn pages(machine: &Machine, tables: u64) -> Finding {
    const CHECK: &str = "huge-pages";
    let size = machine.bytes("proc/meminfo", "Hugepagesize").unwrap_or(2 * MIB);
    let count = |name: &str| {
        machine.field("proc/meminfo", name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    let (total, free) = (count("HugePages_Total"), count("HugePages_Free"));
    let wanted = tables.div_ceil(size);
    if free >= wanted {
        let cause = format!("{free} free; the flow tables need {wanted}");
        return Finding::ok(CHECK, "", cause);
    }
    let reserve = format!("sysctl -w vm.nr_hugepages={}", total + wanted - free);
    let on_request = machine.text("sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if total > 0 {
        let cause = format!(
            "{free} of {total} free; the flow tables need {wanted}, and the rest is on other pages"
        );
        return Finding::warning(CHECK, "", cause).cure(reserve);
    }
    if on_request.contains("[madvise]") || on_request.contains("[always]") {
        let cause = "none reserved; the flow tables request transparent ones";
        return Finding::ok(CHECK, "", cause);
    }
    let cause =
        "none reserved, and transparent ones are off: look-ups in a large table wait for the TLB";
    let line = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    Finding::warning(CHECK, "", cause).cure(line)
}

/// The limit on locked memory. It does not apply to packet sockets or ONNX Runtime's CPU provider:
/// rings of 128 MiB work with a limit of 0 and without CAP_IPC_LOCK.
fn locked(machine: &Machine) -> Finding {
    const CHECK: &str = "memlock";
    let limits = machine.text("proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let limit = line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown");
    let cause = format!("limit {limit}; receive rings and flow tables do not count towards it");
    Finding::ok(CHECK, "", cause)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;
    use crate::memory::tests::NEED;

    fn meminfo(available_mib: u64, huge: (u64, u64)) -> String {
        format!(
            "MemTotal: 9 kB\nMemAvailable:   {} kB\nHugePages_Total:       \
            {}\nHugePages_Free:        {}\nHugepagesize:       2048 kB\n",
            available_mib * 1024,
            huge.0,
            huge.1
        )
    }

    #[test]
    fn memory_that_does_not_reach() {
        let judged =
            |mib| enough(&machine(&[("proc/meminfo", &meminfo(mib, (0, 0)))]).1, NEED, None).level;
        assert_eq!(
            [judged(1000), judged(250), judged(70)],
            [Level::Ok, Level::Problem, Level::Problem]
        );
        let text = meminfo(250, (0, 0));
        let (_dir, serving) =
            machine(&[("proc/meminfo", &text), ("proc/7/status", "VmRSS:  102400 kB\n")]);
        assert_eq!(enough(&serving, NEED, Some(7)).level, Level::Ok);
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
        assert_eq!(judged((100, 100), "always madvise [never]").level, Level::Ok);
        assert_eq!(judged((0, 0), "always [madvise] never").level, Level::Ok);
        assert_eq!(judged((0, 0), "always madvise [never]").level, Level::Warning);
        let few = judged((60, 40), "always [madvise] never");
        assert_eq!(few.remedy.as_deref(), Some("sysctl -w vm.nr_hugepages=120"));
    }
}
