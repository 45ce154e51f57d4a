//! Mode mark: whether the kernel tracks connections, accepts marks, and forwards; and whether rules
//! overwrite marks.

use super::finding::Finding;
use super::machine::Machine;
use super::rules;
use super::ruleset::Ruleset;
use crate::run::ports::Wanted;
use crate::service_unit::set_capabilities;
use crate::sinks::{self, KernelPart, mark};
use accel::Bundle;
use config::Config;
use config::checked::IoMode;
use dataplane::label_map::LabelMap;
use dataplane::tasks::OpenTask;
use netfilter::writer::StartError;

const CHECK: &str = "marks";

/// Rules that only ask for connections to be tracked.
const TRACK: &str = "nft 'add table inet track; add chain inet track connections \
    { type filter hook prerouting priority -200; }; add \
                     rule inet track connections ct state new accept'";

pub fn findings(
    machine: &Machine,
    config: &Config,
    tasks: &[OpenTask],
    wanted: &Wanted,
    map: &LabelMap,
) -> Vec<Finding> {
    if config.io.mode != IoMode::Mark {
        return Vec::new();
    }
    let rules = rules::read();
    let mut findings = vec![
        classes(config, map),
        written(),
        tracked(machine, rules.as_ref().ok().map(|rules| rules.tracks)),
    ];
    let labels = wanted.first.as_ref().and_then(|it| it.labels.as_ref());
    if labels.is_some_and(|it| it.first().marks.is_some()) {
        findings.extend(by_program(rules.as_ref().ok(), config.mark.mask));
    }
    findings.extend(room(machine));
    findings.extend(forwarded(machine));
    let bundles: Vec<Bundle> = tasks.iter().map(|task| task.bundle.clone()).collect();
    findings.extend(classes_of_others(config, &bundles));
    findings.extend(rules::findings(&rules, &rules::bits(config, &bundles)));
    findings
}

fn classes(config: &Config, map: &LabelMap) -> Finding {
    let table = config.mark.table();
    let (without, labels) = map.unmapped();
    let mapped = labels - without.len();
    let found = format!("{mapped} of {labels} labels have bits within {:#x}", config.mark.mask);
    match map.gap().filter(|_| map.is_users()) {
        Some(gap) => Finding::warning(CHECK, table, gap).cure("fenxi check --config-only"),
        None => Finding::ok(CHECK, table, found),
    }
}

/// The same for each task behind the first whose labels have marks.
fn classes_of_others(config: &Config, bundles: &[Bundle]) -> Vec<Finding> {
    let others = bundles.iter().enumerate().skip(1);
    let of = |(number, bundle): (usize, &Bundle)| {
        let own = config.of_task(number);
        let map = LabelMap::from_config(&own, bundle).ok()?;
        let (without, labels) = map.unmapped();
        let table = format!("task.{}.mark", config.tasks[number].name);
        let found = format!(
            "{} of {labels} labels have bits within {:#x}",
            labels - without.len(),
            own.mark.mask
        );
        (own.mark.mask != 0).then(|| Finding::ok(CHECK, &table, found))
    };
    others.filter_map(of).collect()
}

/// Whether the kernel accepts marks from this process: asks it to change a connection that cannot
/// exist.
fn written() -> Finding {
    let Err(error) = mark::probe() else {
        return Finding::ok(CHECK, "ctnetlink", "the kernel accepts marks from this process");
    };
    let subject = match error {
        StartError::Capability { .. } => "CAP_NET_ADMIN",
        _ => "ctnetlink",
    };
    refused(CHECK, subject, &error)
}

/// Labels of connections and sets of nftables: whether the kernel takes them from this process.
pub fn kernel_parts(config: &Config) -> impl Iterator<Item = Finding> {
    let parts = sinks::KINDS.iter().flat_map(|kind| kind.kernel_parts(config));
    parts.map(|KernelPart { check, subject, probed, done }| match probed {
        Ok(()) => Finding::ok(check, &subject, done),
        Err(error) => refused(check, &subject, &error),
    })
}

fn refused(check: &'static str, subject: &str, error: &StartError) -> Finding {
    let text = error.to_string();
    let found = Finding::problem(check, subject, text.clone());
    match error {
        StartError::Capability { .. } => found.cure(set_capabilities(true)).for_permission(),
        StartError::Kernel { module, .. } => found.cure(format!("modprobe {module}")),
        // The command that adds a set stands at the end of the line.
        StartError::Unfit(_) => {
            found.cure_if(text.split_once("add it: ").map(|(_, cure)| cure.to_owned()))
        }
        StartError::Thread { .. } => found,
    }
}

/// What the kernel's program marks, and why; where it is packets, whether rules copy their marks.
fn by_program(rules: Option<&Ruleset>, mask: u32) -> Vec<Finding> {
    let found = |what: String| Finding::ok(CHECK, "program", what);
    match packetio::marks_connections() {
        Ok(()) => vec![found("the kernel's program marks connections".to_owned())],
        Err(why) => [found(format!("the kernel's program marks packets: {why}"))]
            .into_iter()
            .chain(rules.map(|rules| copied(rules, mask)))
            .collect(),
    }
}

/// Whether rules copy the bits of `mask` from packets to connections.
fn copied(rules: &Ruleset, mask: u32) -> Finding {
    const NAME: &str = "copies";
    const RULES: &str = "nft -f /usr/share/doc/fenxi/examples/kernel-mark/kernel-mark.nft";
    match mask & !rules.copied() {
        0 => Finding::ok(CHECK, NAME, "rules copy marks of packets to their connections"),
        missing => {
            let cause = format!(
                "no rule copies the bits {missing:#x} of packets' marks to connections, so marks \
                 come later, over ctnetlink"
            );
            Finding::warning(CHECK, NAME, cause).cure(RULES)
        }
    }
}

/// Whether connections are tracked, which needs a rule that asks for it. `asks`: whether there is
/// one; `None`: not known.
fn tracked(machine: &Machine, asks: Option<bool>) -> Finding {
    const NAME: &str = "conntrack";
    let Some(count) = machine.number("proc/sys/net/netfilter/nf_conntrack_count") else {
        return Finding::problem(
            CHECK,
            NAME,
            "the kernel does not track connections: there is nothing to mark",
        )
        .cure("modprobe nf_conntrack");
    };
    if count > 0 {
        return Finding::ok(CHECK, NAME, format!("{count} connections"));
    }
    match asks {
        Some(true) => Finding::ok(CHECK, NAME, "a rule asks for tracking; no connection yet"),
        Some(false) => {
            let cause =
                "no connection, and no nftables rule asks for tracking: there is nothing to mark";
            Finding::problem(CHECK, NAME, cause).cure(TRACK)
        }
        None => {
            let cause = "no connection is tracked yet, and it is not known whether a rule asks for \
                tracking";
            Finding::warning(CHECK, NAME, cause).cure("conntrack -C")
        }
    }
}

fn room(machine: &Machine) -> Option<Finding> {
    let of = |name: &str| machine.number(&format!("proc/sys/net/netfilter/nf_conntrack_{name}"));
    let (count, most) = (of("count")?, of("max")?);
    // 0: no limit.
    if most == 0 || count * 10 < most * 9 {
        return None;
    }
    let cause = format!("{count} of {most} connections: at the limit the kernel drops new ones");
    let line = format!("sysctl -w net.netfilter.nf_conntrack_max={}", most * 2);
    Some(Finding::warning(CHECK, "conntrack", cause).cure(line))
}

fn forwarded(machine: &Machine) -> Option<Finding> {
    let on = |path: &str| machine.number(path) == Some(1);
    if on("proc/sys/net/ipv4/ip_forward") || on("proc/sys/net/ipv6/conf/all/forwarding") {
        return None;
    }
    let cause =
        "the kernel does not forward packets: only this machine's own connections are marked";
    Some(
        Finding::warning(CHECK, "forwarding", cause)
            .cure("sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    const COUNT: &str = "proc/sys/net/netfilter/nf_conntrack_count";

    #[test]
    fn tracking_needs_a_rule() {
        let level = |files: &[(&str, &str)], asks| tracked(&machine(files).1, asks).level;
        assert_eq!(level(&[], Some(false)), Level::Problem);
        assert_eq!(level(&[(COUNT, "3\n")], Some(false)), Level::Ok);
        for (asks, expected) in
            [(Some(false), Level::Problem), (Some(true), Level::Ok), (None, Level::Warning)]
        {
            assert_eq!(level(&[(COUNT, "0\n")], asks), expected);
        }
    }

    #[test]
    fn marks_of_packets_need_a_rule() {
        let found = copied(&Ruleset::default(), 0xff00_0000);
        assert_eq!(found.level, Level::Warning);
        assert!(found.remedy.unwrap().ends_with("kernel-mark.nft"));
        let mut rules = Ruleset::default();
        let save = "-A PREROUTING -j CONNMARK --save-mark --nfmask 0xff000000 --ctmask 0xff000000";
        rules.add_iptables("iptables-save", &format!("*mangle\n{save}\nCOMMIT\n"));
        assert_eq!(copied(&rules, 0xff00_0000).level, Level::Ok);
    }

    #[test]
    fn a_table_that_is_nearly_full() {
        let most = "proc/sys/net/netfilter/nf_conntrack_max";
        let found = |count, max| room(&machine(&[(COUNT, count), (most, max)]).1);
        assert_eq!(
            found("950", "1000").unwrap().remedy.unwrap(),
            "sysctl -w net.netfilter.nf_conntrack_max=2000"
        );
        assert_eq!(found("500", "1000"), None);
        assert_eq!(found("500", "0"), None);
    }

    #[test]
    fn a_router_that_forwards() {
        assert_eq!(forwarded(&machine(&[]).1).unwrap().level, Level::Warning);
        assert_eq!(forwarded(&machine(&[("proc/sys/net/ipv4/ip_forward", "1\n")]).1), None);
    }
}
