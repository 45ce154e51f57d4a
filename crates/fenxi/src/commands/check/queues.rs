//! Receive queues: readers, hash and length; the backlog of the kernel behind them; and offloads.
//!
//! The kernel empties every queue of an interface and hands each frame to a flow manager by fenxi's
//! own hash. So no queue is without a reader, and both directions of a flow meet whatever the
//! card's hash does. The queues decide which CPUs do the kernel's part; where two of them work on
//! one flow, its packets may swap places.

use std::collections::BTreeSet;

use packetio::OpenError;
use packetio::interface::{MERGE_INCOMING, Offload, Offloads, Queues, SPLIT_OUTGOING};

use super::finding::Finding;
use super::machine::Machine;
use crate::figures::counted;
use config::Config;
use config::checked::IoMode;

const CHECK: &str = "queues";

pub fn findings(machine: &Machine, name: &str, config: &Config) -> Vec<Finding> {
    let queues = match Queues::query(name) {
        Ok(queues) => queues,
        // Already reported for the interface.
        Err(OpenError::UnsupportedLink { .. }) => return Vec::new(),
        Err(error) => return vec![Finding::warning(CHECK, name, error.to_string())],
    };
    let readers = config.pipeline.layout.flow_managers * config.pipeline.instances;
    let mut findings = vec![
        spread(machine, name, &queues, readers),
        symmetry(machine, name, &queues, config.io.mode),
    ];
    findings.extend(losses(machine, name, &queues));
    findings
}

fn receive_queues(machine: &Machine, name: &str) -> Vec<String> {
    let mut queues = machine.names(&format!("sys/class/net/{name}/queues"));
    queues.retain(|queue| queue.starts_with("rx-"));
    queues
}

fn spread(machine: &Machine, name: &str, queues: &Queues, readers: usize) -> Finding {
    let receive = receive_queues(machine, name);
    let count = receive.len().max(1);
    let is_steered = receive.iter().any(|queue| {
        let mask = machine.text(&format!("sys/class/net/{name}/queues/{queue}/rps_cpus"));
        mask.is_some_and(|mask| mask.contains(|digit| !matches!(digit, '0' | ',')))
    });
    if readers <= count || is_steered {
        let steered = match is_steered {
            true => " and steered to several CPUs",
            false => "",
        };
        let cause = format!(
            "{} read by the kernel{steered}; {}, spread by fenxi's own hash",
            counted(count as u64, "queue"),
            counted(readers as u64, "flow manager"),
        );
        return Finding::ok(CHECK, name, cause);
    }
    let cause = format!(
        "{} for {readers} flow managers: only as many CPUs do the kernel's part of the work, and \
        all flow managers wait for them",
        counted(count as u64, "queue")
    );
    let line = match queues.count {
        Some((_, most)) if most as usize > count => {
            format!("ethtool -L {name} combined {}", readers.min(most as usize))
        }
        _ => {
            let cpus = machine.online_cpus().into_iter();
            let mask = cpus.filter(|cpu| *cpu < 32).fold(0_u32, |mask, cpu| mask | 1 << cpu);
            format!("echo {mask:x} > /sys/class/net/{name}/queues/rx-0/rps_cpus")
        }
    };
    Finding::warning(CHECK, name, cause).cure(line)
}

fn symmetry(machine: &Machine, name: &str, queues: &Queues, mode: IoMode) -> Finding {
    const CHECK: &str = "rss";
    if receive_queues(machine, name).len() < 2 {
        return Finding::ok(CHECK, name, "one queue: packets keep their order");
    }
    if mode == IoMode::Inline {
        let cause = "only one direction of each flow comes in here, so its order is kept";
        return Finding::ok(CHECK, name, cause);
    }
    let cause = "two CPUs may handle the two directions of a flow: both reach the same flow \
        manager, but packets of opposite directions that are microseconds apart may swap places in \
        the series";
    match &queues.hash {
        Some(hash) if hash.is_symmetric() => {
            let used = hash.table.iter().collect::<BTreeSet<_>>().len();
            Finding::ok(CHECK, name, format!("symmetric hash over {used} queues"))
        }
        Some(hash) => Finding::warning(CHECK, name, cause).cure_if(hash.remedy(name)),
        None => {
            let cause = format!("the driver does not report its hash: {cause}");
            Finding::warning(CHECK, name, cause)
        }
    }
}

fn losses(machine: &Machine, name: &str, queues: &Queues) -> Vec<Finding> {
    const CHECK: &str = "losses";
    let count = |files: &[&str]| -> i64 {
        let path = |file| format!("sys/class/net/{name}/statistics/{file}");
        files.iter().filter_map(|file| machine.number(&path(file))).sum()
    };
    let full = count(&["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"]);
    let damaged = count(&["rx_crc_errors", "rx_frame_errors"]);
    let mut findings = Vec::new();
    if full > 0 {
        let length = queues
            .length
            .map_or(String::new(), |(now, most)| format!(" of {now} frames (maximum {most})"));
        let cause = format!(
            "{full} frames were dropped since the interface came up because the card's \
            queue{length} was full"
        );
        let longer = queues.length.filter(|(now, most)| now < most);
        let line = longer
            .map_or(format!("ethtool -S {name} | grep -iE 'miss|drop|no_buf'"), |(_, most)| {
                format!("ethtool -G {name} rx {most}")
            });
        findings.push(Finding::warning(CHECK, name, cause).cure(line));
    }
    if damaged > 0 {
        let cause = format!(
            "{damaged} frames arrived damaged since the interface came up: check cable, connector \
            and the other end"
        );
        let line = format!("ip -s -s link show dev {name}");
        findings.push(Finding::warning(CHECK, name, cause).cure(line));
    }
    if findings.is_empty() {
        let cause = "the card has dropped nothing since the interface came up";
        findings.push(Finding::ok(CHECK, name, cause));
    }
    findings
}

pub fn backlog(machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "backlog";
    let Some(text) = machine.text("proc/net/softnet_stat") else {
        return Vec::new();
    };
    // A line for each CPU, in hexadecimal: frames, drops, and rounds that ran out of time.
    let column = |at: usize| -> u64 {
        let numbers = text.lines().filter_map(|line| line.split_whitespace().nth(at));
        numbers.filter_map(|number| u64::from_str_radix(number, 16).ok()).sum()
    };
    let (frames, dropped, squeezed) = (column(0), column(1), column(2));
    let mut findings = Vec::new();
    let setting = |name: &str| machine.number(&format!("proc/sys/net/core/{name}"));
    if dropped > 0 {
        let limit = setting("netdev_max_backlog").unwrap_or(1000);
        let cause = format!(
            "{dropped} frames were dropped since boot because the kernel's backlog of {limit} was \
            full"
        );
        let line = format!("sysctl -w net.core.netdev_max_backlog={}", limit * 4);
        findings.push(Finding::warning(CHECK, "", cause).cure(line));
    }
    if squeezed * 1000 > frames {
        let budget = setting("netdev_budget").unwrap_or(300);
        let cause = format!("the kernel ran out of time for receiving {squeezed} times since boot");
        let line = format!("sysctl -w net.core.netdev_budget={}", budget * 2);
        findings.push(Finding::warning(CHECK, "", cause).cure(line));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "", "the kernel has dropped nothing since boot"));
    }
    findings
}

const OFFLOADS: &str = "offloads";

pub fn offloads(name: &str, mode: IoMode, is_promiscuous: bool) -> Vec<Finding> {
    match Offloads::query(name) {
        Ok(offloads) => judge(&offloads, name, mode, is_promiscuous),
        Err(error @ OpenError::UnsupportedLink { .. }) => {
            let line = format!("ip -d link show dev {name}");
            vec![Finding::problem("interface", name, error.to_string()).cure(line)]
        }
        Err(error) => vec![Finding::warning(OFFLOADS, name, error.to_string())],
    }
}

fn judge(offloads: &Offloads, name: &str, mode: IoMode, is_promiscuous: bool) -> Vec<Finding> {
    vec![merging(offloads, name, mode), tags(offloads, name, mode, is_promiscuous)]
}

/// A merged packet counts as its segments if the kernel reports their size. Not every driver
/// reports it for packets merged by LRO; the packet socket does not receive those.
fn merging(offloads: &Offloads, name: &str, mode: IoMode) -> Finding {
    if offloads.is_on("lro") {
        let cause = match mode {
            IoMode::Inline => "lro on: packets merged by LRO cannot be forwarded and are lost",
            _ => {
                "lro on: not every driver says of which packets it merged one; such packets do not \
                reach fenxi, and count as dropped"
            }
        };
        return match offloads.remedy(name, &["lro"]) {
            Some(line) => Finding::problem(OFFLOADS, name, cause).cure(line),
            None => {
                let cause = format!(
                    "{cause}; the driver does not allow turning it off; on a virtual card the host \
                    can"
                );
                Finding::warning(OFFLOADS, name, cause)
            }
        };
    }
    let mut merge = MERGE_INCOMING.to_vec();
    // Only mode mark sees packets that this machine sends itself.
    if mode == IoMode::Mark {
        merge.extend(SPLIT_OUTGOING);
    }
    let on: Vec<Offload> = offloads
        .on(&merge)
        .into_iter()
        // This offload has no effect without the other.
        .filter(|offload| offload.name != "rx-udp-gro-forwarding" || offloads.is_on("gro"))
        .collect();
    let cause = match (on.is_empty(), mode) {
        (true, _) => "nothing merges packets".to_owned(),
        (false, IoMode::Inline) => format!(
            "{}: merged packets count as those on the wire, and are split again when they are \
            sent; the kernel does not split packets of tunnels (GRE, IP in IP, VXLAN) for a \
            packet socket, and they count as unsent: if tunnels pass, turn gro off on both \
            interfaces",
            names(&on)
        ),
        (false, _) => format!("{}: merged packets count as those on the wire", names(&on)),
    };
    Finding::ok(OFFLOADS, name, cause)
}

fn names(offloads: &[Offload]) -> String {
    let names: Vec<_> = offloads.iter().map(|offload| offload.name).collect();
    format!("{} on", names.join(", "))
}

/// VLAN tags: fenxi restores tags that the card strips, but frames that the card filters are lost.
fn tags(offloads: &Offloads, name: &str, mode: IoMode, is_promiscuous: bool) -> Finding {
    const CHECK: &str = "vlan";
    if mode == IoMode::Tap && !is_promiscuous && offloads.is_on("rx-vlan-filter") {
        let cause = "rx-vlan-filter on: the card drops frames of VLANs for which this machine has \
            no interface";
        let line = offloads.remedy(name, &["rx-vlan-filter"]);
        return Finding::warning(CHECK, name, cause).cure_if(line);
    }
    let cause = match offloads.is_on("rxvlan") {
        true => "rxvlan on: the card strips the outer tag, and fenxi restores it",
        false => "tags arrive as they are on the wire",
    };
    Finding::ok(CHECK, name, cause)
}

#[cfg(test)]
mod tests {
    use packetio::interface::ReceiveHash;

    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    const TWO: [(&str, &str); 2] = [
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0,00000000\n"),
        ("sys/class/net/eth0/queues/rx-1/rps_cpus", "0\n"),
    ];

    #[test]
    fn few_queues_for_many_flow_managers() {
        let mut files = TWO.to_vec();
        files.push(("sys/devices/system/cpu/online", "0-3\n"));
        let (_dir, four) = machine(&files);
        assert_eq!(spread(&four, "eth0", &Queues::default(), 2).level, Level::Ok);
        let rps = spread(&four, "eth0", &Queues::default(), 3);
        assert_eq!(
            rps.remedy.as_deref(),
            Some("echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus")
        );
        let more = Queues { count: Some((2, 8)), ..Queues::default() };
        assert_eq!(
            spread(&four, "eth0", &more, 4).remedy.as_deref(),
            Some("ethtool -L eth0 combined 4")
        );
        let (_dir, steered) = machine(&[("sys/class/net/eth0/queues/rx-0/rps_cpus", "00000003\n")]);
        assert_eq!(spread(&steered, "eth0", &Queues::default(), 2).level, Level::Ok);
    }

    #[test]
    fn a_hash_that_is_not_symmetric_has_its_line() {
        let (_dir, two) = machine(&TWO);
        let hash = |key: &[u8]| ReceiveHash {
            is_toeplitz: true,
            is_input_symmetric: false,
            key: key.to_vec(),
            table: vec![0, 1],
        };
        let of = |key: &[u8], mode| {
            let queues = Queues { hash: Some(hash(key)), ..Queues::default() };
            symmetry(&two, "eth0", &queues, mode)
        };
        let warned = of(&[1, 2, 3, 4], IoMode::Tap);
        assert_eq!(
            (warned.level, warned.remedy.as_deref()),
            (Level::Warning, Some("ethtool -X eth0 hkey 6d:5a:6d:5a"))
        );
        assert_eq!(of(&[1, 2, 1, 2], IoMode::Tap).level, Level::Ok);
        assert_eq!(of(&[1, 2, 3, 4], IoMode::Inline).level, Level::Ok);
        assert_eq!(symmetry(&two, "eth0", &Queues::default(), IoMode::Mark).level, Level::Warning);
        assert_eq!(
            symmetry(&machine(&[]).1, "eth0", &Queues::default(), IoMode::Mark).level,
            Level::Ok
        );
    }

    #[test]
    fn losses_of_the_card_and_of_the_cable() {
        let (_dir, lossy) = machine(&[
            ("sys/class/net/eth0/statistics/rx_missed_errors", "7\n"),
            ("sys/class/net/eth0/statistics/rx_crc_errors", "1\n"),
        ]);
        let short = Queues { length: Some((256, 4096)), ..Queues::default() };
        let findings = losses(&lossy, "eth0", &short);
        assert_eq!(findings[0].remedy.as_deref(), Some("ethtool -G eth0 rx 4096"));
        assert!(findings[1].cause.starts_with("1 frames"));
        let longest = Queues { length: Some((4096, 4096)), ..Queues::default() };
        assert!(
            losses(&lossy, "eth0", &longest)[0]
                .remedy
                .as_deref()
                .unwrap()
                .starts_with("ethtool -S")
        );
        assert_eq!(losses(&machine(&[]).1, "eth0", &short)[0].level, Level::Ok);
    }

    #[test]
    fn the_backlog_of_the_kernel() {
        let stat = "00000305 00000000 00000000 0\n00001bc4 00000002 00000100 0\n";
        let (_dir, behind) = machine(&[
            ("proc/net/softnet_stat", stat),
            ("proc/sys/net/core/netdev_max_backlog", "1000\n"),
        ]);
        let findings = backlog(&behind);
        assert_eq!(
            findings[0].remedy.as_deref(),
            Some("sysctl -w net.core.netdev_max_backlog=4000")
        );
        assert_eq!(findings[1].remedy.as_deref(), Some("sysctl -w net.core.netdev_budget=600"));
        let (_dir, calm) = machine(&[("proc/net/softnet_stat", "00000305 00000000 00000000 0\n")]);
        assert_eq!(backlog(&calm)[0].level, Level::Ok);
    }
}

#[cfg(test)]
mod tests_of_offloads {
    use super::super::finding::Level;
    use super::*;

    /// Offloads with these features on, and `rx-gro-hw` fixed.
    fn with(on: &[&str]) -> Offloads {
        let names = [
            "rx-gro",
            "rx-lro",
            "rx-gro-hw",
            "tx-tcp-segmentation",
            "tx-generic-segmentation",
            "rx-vlan-hw-parse",
            "rx-vlan-filter",
            "rx-udp-gro-forwarding",
        ];
        let bits =
            names.iter().enumerate().filter(|(_, name)| on.contains(name)).map(|(bit, _)| 1 << bit);
        let active = bits.sum();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Offloads::read(&names, &[[0xff, 0, active, 0b100]])
    }

    fn found(on: &[&str], mode: IoMode) -> (Level, Option<String>) {
        let finding = judge(&with(on), "eth0", mode, true).remove(0);
        (finding.level, finding.remedy)
    }

    #[test]
    fn what_the_kernel_describes_is_no_problem() {
        for mode in [IoMode::Tap, IoMode::Mark, IoMode::Inline] {
            for on in ["rx-gro", "rx-gro-hw", "tx-tcp-segmentation", "rx-udp-gro-forwarding"] {
                assert_eq!(found(&[on], mode), (Level::Ok, None), "{on}");
            }
        }
        let cause = |on: &str, mode| judge(&with(&[on]), "eth0", mode, true).remove(0).cause;
        assert!(cause("rx-gro", IoMode::Inline).contains("tunnels"));
        assert!(cause("tx-tcp-segmentation", IoMode::Mark).contains("tso on"));
        for (on, mode) in
            [("tx-tcp-segmentation", IoMode::Tap), ("rx-udp-gro-forwarding", IoMode::Tap)]
        {
            assert_eq!(cause(on, mode), "nothing merges packets");
        }
    }

    #[test]
    fn lro_is_a_problem_with_its_line() {
        let line = Some("ethtool -K eth0 lro off".to_owned());
        for mode in [IoMode::Tap, IoMode::Mark, IoMode::Inline] {
            assert_eq!(found(&["rx-lro", "rx-gro"], mode), (Level::Problem, line.clone()));
        }
    }

    #[test]
    fn tags_are_put_back_but_filtered_frames_are_gone() {
        let of = |on: &[&str], is_promiscuous| tags(&with(on), "eth0", IoMode::Tap, is_promiscuous);
        assert_eq!(of(&["rx-vlan-hw-parse"], false).level, Level::Ok);
        let filtered = of(&["rx-vlan-filter"], false);
        assert_eq!(filtered.remedy.as_deref(), Some("ethtool -K eth0 rx-vlan-filter off"));
        assert_eq!(of(&["rx-vlan-filter"], true).level, Level::Ok);
    }
}
