//! Cores: online, allowed, one per thread of the data path, near the network card, at full speed,
//! without interrupts; and the clock source of timestamps.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::machine::{Machine, field};
use config::Config;
use dataplane::placement::{Cores, numbers};

const CHECK: &str = "cores";

/// CPUs that the kernel starts no program on.
const ISOLATED: &str = "sys/devices/system/cpu/isolated";

/// Steal time above this share of all CPU time is a warning.
const STEAL_MAX: f64 = 0.01;

/// Checks all cores; `service` is the instance that runs with this configuration.
pub fn findings(
    machine: &Machine,
    config: &Config,
    cores: &Cores,
    service: Option<u32>,
) -> Vec<Finding> {
    let placed = placed(cores);
    let mut findings = vec![clock_speed(machine, &placed), stolen(machine)];
    if placed.is_empty() {
        let cause = format!("{}; for steady latency, give each thread its own CPU", cores.reason);
        findings.push(Finding::warning(CHECK, "", cause));
        return findings;
    }
    let used: Vec<usize> = placed.iter().map(|(_, core)| *core).collect();
    let mut distinct = used.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let own = [
        there(machine, &used),
        doubled(machine, &placed),
        siblings(machine, &placed),
        others(machine, &used, service),
    ];
    let own: Vec<Finding> = own.into_iter().flatten().collect();
    if own.is_empty() {
        let threads: Vec<String> =
            placed.iter().map(|(thread, core)| format!("{thread} on {core}")).collect();
        findings.push(Finding::ok(CHECK, "", threads.join(", ")));
    }
    findings.extend(own);
    let is_chosen = !config.pipeline.cores.is_empty();
    findings.push(isolated(machine, &distinct, is_chosen));
    let interfaces = config.io.interfaces.iter();
    findings.extend(interfaces.filter_map(|name| node(machine, name, &used)));
    findings
}

/// Threads that are pinned, and their cores.
pub fn placed(cores: &Cores) -> Vec<(String, usize)> {
    let placed = cores.iter();
    placed.filter_map(|(thread, core)| Some((thread.to_string(), (*core)?))).collect()
}

fn named(cpus: &[usize]) -> String {
    let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
    cpus.join(",")
}

/// CPUs that this process may use, including isolated ones, on which it must be pinned.
fn allowed(machine: &Machine) -> Vec<usize> {
    let own = machine.field("proc/self/status", "Cpus_allowed_list");
    let own = own.map_or_else(Vec::new, |text| numbers(&text));
    let isolated = machine.list(ISOLATED).unwrap_or_default();
    let all: BTreeSet<usize> = own.into_iter().chain(isolated).collect();
    all.into_iter().collect()
}

/// CPUs that are offline, or not allowed for this process.
fn there(machine: &Machine, used: &[usize]) -> Option<Finding> {
    let (online, allowed) = (machine.online_cpus(), allowed(machine));
    if online.is_empty() {
        return None;
    }
    let (cause, line) = if let Some(core) = used.iter().find(|core| !online.contains(core)) {
        let online = named(&online);
        (
            format!("pipeline.cores names CPU {core}; available CPUs: {online}"),
            suggestion(&allowed, used.len()),
        )
    } else {
        let core = used.iter().find(|core| !allowed.contains(core))?;
        let allowed = named(&allowed);
        (
            format!("CPU {core} exists, but this process may use only {allowed}"),
            format!("taskset -c {} fenxi check --deep", named(&online)),
        )
    };
    Some(Finding::problem(CHECK, "", cause).cure(line))
}

/// The command that sets one core per thread and leaves the first CPU to the rest of the program.
fn suggestion(cpus: &[usize], threads: usize) -> String {
    let cores = match cpus {
        [_, rest @ ..] if rest.len() >= threads => named(&rest[..threads]),
        _ => String::new(),
    };
    format!("fenxi check --deep --set 'pipeline.cores=[{cores}]'")
}

/// Two threads on one core: both poll, and starve each other.
fn doubled(machine: &Machine, placed: &[(String, usize)]) -> Option<Finding> {
    let (first, second, core) = pair(placed, |a, b| a == b)?;
    let cause = format!("{first} and {second} share CPU {core} and starve each other");
    Some(Finding::problem(CHECK, "", cause).cure(suggestion(&allowed(machine), placed.len())))
}

/// Two threads on two hyper-threads of one core.
fn siblings(machine: &Machine, placed: &[(String, usize)]) -> Option<Finding> {
    let halves: BTreeMap<usize, Vec<usize>> = placed
        .iter()
        .filter_map(|(_, core)| {
            let path = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            Some((*core, machine.list(&path)?))
        })
        .collect();
    let are = |a, b| a != b && halves.get(&a).is_some_and(|halves| halves.contains(&b));
    let (first, second, core) = pair(placed, are)?;
    let cause = format!(
        "{first} and {second} run on two hyper-threads of one core (CPU {core} is one of them): \
        each gets half the speed"
    );
    Some(Finding::warning(CHECK, "", cause).cure("lscpu -e=CPU,CORE,NODE"))
}

/// The first two threads for whose cores `holds` is true, and the core of the first.
fn pair(
    placed: &[(String, usize)],
    holds: impl Fn(usize, usize) -> bool,
) -> Option<(&str, &str, usize)> {
    placed.iter().enumerate().find_map(|(at, (first, core))| {
        let (second, _) = placed[at + 1..].iter().find(|(_, other)| holds(*core, *other))?;
        Some((first.as_str(), second.as_str(), *core))
    })
}

/// Another instance with a thread pinned to one of our cores; not the service that this run would
/// replace.
fn others(machine: &Machine, used: &[usize], service: Option<u32>) -> Option<Finding> {
    let others = machine.other_fenxis().into_iter().filter(|pid| Some(*pid) != service);
    let mut pinned = others.flat_map(|pid| {
        let tasks = machine.names(&format!("proc/{pid}/task")).into_iter();
        tasks.filter_map(move |task| {
            let status = machine.text(&format!("proc/{pid}/task/{task}/status"))?;
            let [core] = numbers(field(&status, "Cpus_allowed_list")?)[..] else {
                return None;
            };
            Some((pid, field(&status, "Name")?.to_owned(), core))
        })
    });
    let (pid, thread, core) = pinned.find(|(_, _, core)| used.contains(core))?;
    let cause =
        format!("CPU {core} is taken: another fenxi, process {pid}, has {thread} pinned there");
    Some(Finding::problem(CHECK, "", cause).cure(format!("ps -o pid,args -p {pid}")))
}

fn isolated(machine: &Machine, used: &[usize], is_chosen: bool) -> Finding {
    const CHECK: &str = "isolation";
    let isolated = machine.list(ISOLATED).unwrap_or_default();
    let open: Vec<usize> = used.iter().copied().filter(|core| !isolated.contains(core)).collect();
    if open.is_empty() {
        return Finding::ok(CHECK, "", "the kernel keeps other programs off the cores");
    }
    let cause = format!("other programs may run on CPU {}", named(&open));
    if !is_chosen {
        return Finding::ok(CHECK, "", format!("{cause}, as the kernel decides"));
    }
    let line = format!(
        "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX isolcpus={}\"' >> /etc/default/grub && \
        update-grub",
        named(used)
    );
    let cause = format!("{cause}, and packets wait while they do");
    Finding::warning(CHECK, "", cause).cure(line)
}

fn node(machine: &Machine, name: &str, used: &[usize]) -> Option<Finding> {
    const CHECK: &str = "numa";
    let node = machine.number(&format!("sys/class/net/{name}/device/numa_node"))?;
    // -1: the machine has one node, or the firmware does not report it.
    let near = (node >= 0)
        .then(|| machine.list(&format!("sys/devices/system/node/node{node}/cpulist")))??;
    let far: Vec<usize> = used.iter().copied().filter(|core| !near.contains(core)).collect();
    if far.is_empty() {
        let cause = format!("the cores are on its NUMA node, {node}");
        return Some(Finding::ok(CHECK, name, cause));
    }
    let cause = format!(
        "it is on NUMA node {node}, CPU {} is on another: every frame crosses between them",
        named(&far)
    );
    Some(Finding::warning(CHECK, name, cause).cure(suggestion(&near, used.len())))
}

fn clock_speed(machine: &Machine, placed: &[(String, usize)]) -> Finding {
    const CHECK: &str = "frequency";
    let cpus = match placed.is_empty() {
        true => machine.online_cpus(),
        false => placed.iter().map(|(_, core)| *core).collect(),
    };
    let governors = cpus.iter().filter_map(|cpu| {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        Some((cpu, machine.text(&file)?))
    });
    let mut governors = governors.peekable();
    if governors.peek().is_none() {
        return Finding::ok(CHECK, "", "this machine does not control it");
    }
    match governors.find(|(_, governor)| governor != "performance") {
        None => Finding::ok(CHECK, "", "the cores run at full speed"),
        Some((cpu, governor)) => {
            let cause = format!(
                "the governor of CPU {cpu} is {governor}: a thread that wakes up finds its core \
                slow"
            );
            let line =
                "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
            Finding::warning(CHECK, "", cause).cure(line)
        }
    }
}

fn stolen(machine: &Machine) -> Finding {
    const CHECK: &str = "steal";
    let stat = machine.text("proc/stat").unwrap_or_default();
    let cpu = stat.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest times are in user already.
    let times: Vec<f64> =
        cpu.split_whitespace().skip(1).take(8).filter_map(|time| time.parse().ok()).collect();
    let (steal, all) = (times.get(7).copied().unwrap_or(0.0), times.iter().sum::<f64>());
    let share = if all > 0.0 { steal / all } else { 0.0 };
    let percent = share * 100.0;
    let cause = format!("{percent:.1} % of CPU time since boot went to other guests of the host");
    match share > STEAL_MAX {
        true => Finding::warning(CHECK, "", format!("{cause}, and packets waited meanwhile"))
            .cure("vmstat 1 10"),
        false => Finding::ok(CHECK, "", cause),
    }
}

pub fn interrupts(machine: &Machine, name: &str, cores: &Cores) -> Vec<Finding> {
    const CHECK: &str = "interrupts";
    let pinned = placed(cores);
    let shared = active(machine, name).into_iter().filter_map(|interrupt| {
        let cpus = ["effective_affinity_list", "smp_affinity_list"]
            .iter()
            .find_map(|file| machine.list(&format!("proc/irq/{interrupt}/{file}")))?;
        let (thread, core) = pinned.iter().find(|(_, core)| cpus.contains(core))?;
        let cause = format!(
            "interrupt {interrupt} of {name} is handled on CPU {core}, where {thread} is pinned"
        );
        let mut online = machine.online_cpus().into_iter();
        let free = online.find(|cpu| pinned.iter().all(|(_, core)| core != cpu));
        let line = free.map(|cpu| format!("echo {cpu} > /proc/irq/{interrupt}/smp_affinity_list"));
        Some(Finding::warning(CHECK, name, cause).cure_if(line))
    });
    let shared: Vec<Finding> = shared.collect();
    match (shared.is_empty(), pinned.is_empty()) {
        (false, _) => shared,
        (true, false) => {
            vec![Finding::ok(CHECK, name, "none on the cores of the data path")]
        }
        (true, true) => Vec::new(),
    }
}

/// Interrupts of the card that have fired at least once.
fn active(machine: &Machine, name: &str) -> Vec<u32> {
    let text = machine.text("proc/interrupts").unwrap_or_default();
    let device = format!("sys/class/net/{name}/device");
    // A virtio card is a child of the PCI device that has the interrupts.
    let folders = [format!("{device}/msi_irqs"), format!("{device}/../msi_irqs")];
    let of_device: Vec<String> = folders.iter().flat_map(|path| machine.names(path)).collect();
    let rows = text.lines().filter_map(|line| {
        let (number, rest) = line.trim().split_once(':')?;
        let interrupt: u32 = number.parse().ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let mut counts = fields.iter().map_while(|field| field.parse::<u64>().ok());
        let came = counts.any(|count| count > 0);
        let action = fields.last()?;
        let is_named = action
            .strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':']));
        (came && (is_named || of_device.iter().any(|known| known == number))).then_some(interrupt)
    });
    rows.collect()
}

/// Sources that cost a system call of a microsecond or more, not a few instructions.
const SLOW_CLOCKS: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "xen"];

pub fn clock_source(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "clock";
    let folder = "sys/devices/system/clocksource/clocksource0";
    let current = machine.text(&format!("{folder}/current_clocksource"))?;
    if !SLOW_CLOCKS.contains(&current.as_str()) {
        return Some(Finding::ok(CHECK, "", current));
    }
    let available = machine.text(&format!("{folder}/available_clocksource")).unwrap_or_default();
    let fast = available.split_whitespace().find(|source| !SLOW_CLOCKS.contains(source));
    let line = fast.map(|source| format!("echo {source} > /{folder}/current_clocksource"));
    let cause = format!("{current}: every timestamp is a slow system call");
    Some(Finding::warning(CHECK, "", cause).cure_if(line))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    fn placed(cores: &[usize]) -> Vec<(String, usize)> {
        let names = ["flow-0.0", "analytics-0.0", "device-0.0"].into_iter();
        names.map(str::to_owned).zip(cores.iter().copied()).collect()
    }

    const FOUR: [(&str, &str); 2] = [
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("proc/self/status", "Name:\tfenxi\nCpus_allowed_list:\t0-2\n"),
    ];

    #[test]
    fn cores_that_are_not_there_or_not_ours() {
        let (_dir, four) = machine(&FOUR);
        assert_eq!(there(&four, &[1, 2]), None);
        let missing = there(&four, &[1, 9]).unwrap();
        assert_eq!(
            missing.remedy.as_deref(),
            Some("fenxi check --deep --set 'pipeline.cores=[1,2]'")
        );
        let forbidden = there(&four, &[3]).unwrap();
        assert!(forbidden.cause.contains("may use only 0,1,2"), "{forbidden:?}");
        assert_eq!(forbidden.remedy.as_deref(), Some("taskset -c 0,1,2,3 fenxi check --deep"));
        let (_dir, isolated) = machine(&[FOUR[0], FOUR[1], (ISOLATED, "3\n")]);
        assert_eq!(there(&isolated, &[3]), None, "it may be asked for");
    }

    #[test]
    fn threads_that_share() {
        let (_dir, four) = machine(&FOUR);
        assert_eq!(doubled(&four, &placed(&[1, 2])), None);
        let both = doubled(&four, &placed(&[2, 2])).unwrap();
        assert_eq!(both.level, Level::Problem);
        assert!(both.cause.starts_with("flow-0.0 and analytics-0.0 share CPU 2"));
        let (_dir, halves) =
            machine(&[("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,3\n")]);
        assert_eq!(siblings(&halves, &placed(&[1, 2])), None);
        assert_eq!(siblings(&halves, &placed(&[1, 3])).unwrap().level, Level::Warning);
    }

    #[test]
    fn another_fenxi_on_the_same_core_unless_it_is_the_service() {
        let (_dir, busy) = machine(&[
            ("proc/4000000/comm", "fenxi\n"),
            ("proc/4000000/task/4000000/status", "Name:\tfenxi\nCpus_allowed_list:\t0-3\n"),
            ("proc/4000000/task/4000001/status", "Name:\tflow-0.0\nCpus_allowed_list:\t2\n"),
            ("proc/4000002/comm", "sshd\n"),
        ]);
        let found = others(&busy, &[2], None).unwrap();
        assert!(found.cause.contains("process 4000000, has flow-0.0"), "{found:?}");
        assert_eq!(others(&busy, &[2], Some(4_000_000)), None);
        assert_eq!(others(&busy, &[1], None), None);
    }

    #[test]
    fn isolation_and_the_side_of_the_card() {
        let (_dir, two_nodes) = machine(&[
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/class/net/eth0/device/numa_node", "1\n"),
            ("sys/devices/system/node/node1/cpulist", "2-5\n"),
            ("sys/class/net/eth1/device/numa_node", "-1\n"),
        ]);
        assert_eq!(isolated(&two_nodes, &[2, 3], true).level, Level::Ok);
        assert!(isolated(&two_nodes, &[1, 2], true).remedy.unwrap().contains("isolcpus=1,2"));
        assert_eq!(isolated(&two_nodes, &[1], false).level, Level::Ok);
        assert_eq!(node(&two_nodes, "eth0", &[2, 3]).unwrap().level, Level::Ok);
        let far = node(&two_nodes, "eth0", &[0, 2]).unwrap();
        assert_eq!(far.remedy.as_deref(), Some("fenxi check --deep --set 'pipeline.cores=[3,4]'"));
        assert_eq!(node(&two_nodes, "eth1", &[0]), None);
    }

    #[test]
    fn governors_and_steal() {
        let governor = "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor";
        let (_dir, slow) = machine(&[
            (governor, "powersave\n"),
            ("proc/stat", "cpu  90 0 0 0 0 0 0 10 5 0\ncpu0 1\n"),
        ]);
        assert_eq!(clock_speed(&slow, &placed(&[1])).level, Level::Warning);
        assert!(stolen(&slow).cause.starts_with("10.0 %"));
        let (_dir, fast) = machine(&[(governor, "performance\n")]);
        assert_eq!(clock_speed(&fast, &placed(&[1])).level, Level::Ok);
        assert_eq!(stolen(&fast).level, Level::Ok);
    }
}

#[cfg(test)]
mod tests_of_interrupts {
    use super::super::machine::tests::machine;
    use super::*;
    use config::Config;

    const INTERRUPTS: &str = "           CPU0       CPU1
 37:          0          0 PCI-MSIX-0000:00:03.0   0-edge      virtio2-config
 38:          0       3057 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 40:          1          0 PCI-MSIX-0000:00:04.0   0-edge      eth1-rx-0
NMI: 0 0 Non-maskable interrupts";

    fn pinned(core: &str) -> Cores {
        let config = Config::load(None, &[format!("pipeline.cores=[{core}, 5]")]).unwrap();
        Cores::from_config(&config)
    }

    #[test]
    fn a_flow_manager_on_the_cpu_of_an_interrupt() {
        let (_dir, virtio) = machine(&[
            ("proc/interrupts", INTERRUPTS),
            ("sys/devices/virtio2/net/eth0/flags", "0x1003"),
            ("sys/devices/msi_irqs/37", "msix"),
            ("sys/devices/msi_irqs/38", "msix"),
            ("sys/class/net/eth0/device", "->../../../devices/virtio2"),
            ("proc/irq/38/effective_affinity_list", "1\n"),
            ("sys/devices/system/cpu/online", "0-1\n"),
        ]);
        assert_eq!(active(&virtio, "eth0"), [38]);
        assert_eq!(active(&virtio, "eth1"), [40]);
        assert!(active(&virtio, "eth").is_empty());
        let found = interrupts(&virtio, "eth0", &pinned("1"));
        assert_eq!(found.len(), 1);
        assert!(found[0].cause.ends_with("where flow-0.0 is pinned"), "{found:?}");
        assert_eq!(found[0].remedy.as_deref(), Some("echo 0 > /proc/irq/38/smp_affinity_list"));
        assert!(interrupts(&virtio, "eth0", &pinned("0"))[0].cause.starts_with("none"));
    }
}

#[cfg(test)]
mod tests_of_clock {
    use super::super::machine::tests::machine;
    use super::*;

    #[test]
    fn a_slow_clock_and_its_remedy() {
        let current = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        let available = "sys/devices/system/clocksource/clocksource0/available_clocksource";
        let of = |files: &[(&str, &str)]| clock_source(&machine(files).1);
        let line = of(&[(current, "hpet\n"), (available, "hpet tsc\n")]).unwrap().remedy;
        assert_eq!(
            line.unwrap(),
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"
        );
        assert_eq!(of(&[(current, "hpet\n"), (available, "hpet\n")]).unwrap().remedy, None);
        assert_eq!(of(&[(current, "tsc\n")]).unwrap().cause, "tsc");
        assert_eq!(of(&[]), None);
    }
}
