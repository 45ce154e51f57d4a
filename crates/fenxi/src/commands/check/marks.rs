//! Mode mark: whether the kernel tracks connections, accepts marks, and forwards; and whether rules overwrite marks.

use std::process::{Command, Stdio};

use accel::Bundle;

use super::capabilities::set_capabilities;
use super::finding::Finding;
use super::machine::Machine;
use crate::sinks::mark;
use config::Config;
use config::checked::IoMode;
use dataplane::label_map::LabelMap;

const CHECK: &str = "marks";

/// Rules that only ask for connections to be tracked.
const TRACK: &str = "nft 'add table inet track; add chain inet track connections { type filter hook prerouting priority -200; }; add \
                     rule inet track connections ct state new accept'";

/// Checks marks if the mode is mark.
pub fn look(machine: &Machine, config: &Config, bundle: &Bundle) -> Vec<Finding> {
    if config.io.mode != IoMode::Mark {
        return Vec::new();
    }
    let rules = rules();
    let mut findings = vec![
        classes(config, bundle),
        written(),
        tracked(machine, rules.as_deref()),
    ];
    findings.extend(room(machine));
    findings.extend(forwarded(machine));
    findings.extend(rules.and_then(|rules| overwritten(&rules, config.mark.mask)));
    findings
}

/// The rules of nftables; `None` if `nft` is missing or may not read them.
fn rules() -> Option<String> {
    let output = Command::new("nft")
        .args(["list", "ruleset"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether the marks fit the labels of the model and the bits of the mask.
fn classes(config: &Config, bundle: &Bundle) -> Finding {
    let table = config.mark.table();
    let map = match LabelMap::of(config, bundle) {
        Ok(map) => map,
        Err(error) => {
            return Finding::problem(CHECK, table, error.to_string())
                .cure("fenxi config show | grep mark");
        }
    };
    let (without, labels) = map.unmapped();
    let mapped = labels - without.len();
    let found = format!(
        "{mapped} of {labels} labels have bits within {:#x}",
        config.mark.mask
    );
    match map.gap().filter(|_| map.is_users()) {
        Some(gap) => Finding::warning(CHECK, table, gap).cure("fenxi check --config-only"),
        None => Finding::ok(CHECK, table, found),
    }
}

/// Whether the kernel accepts marks from this process: asks it to change a connection that cannot exist.
fn written() -> Finding {
    match mark::probe() {
        Ok(()) => Finding::ok(
            CHECK,
            "ctnetlink",
            "the kernel accepts marks from this process",
        ),
        Err(error @ mark::StartError::Capability { .. }) => {
            Finding::problem(CHECK, "CAP_NET_ADMIN", error.to_string())
                .cure(set_capabilities(true))
                .for_permission()
        }
        Err(error) => Finding::problem(CHECK, "ctnetlink", error.to_string())
            .cure("modprobe nf_conntrack_netlink"),
    }
}

/// Whether connections are tracked, which needs a rule that asks for it.
fn tracked(machine: &Machine, rules: Option<&str>) -> Finding {
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
    let asks = |rules: &str| {
        rules
            .split_whitespace()
            .any(|word| matches!(word, "ct" | "masquerade" | "snat" | "dnat" | "redirect"))
    };
    match rules {
        Some(rules) if asks(rules) => {
            Finding::ok(CHECK, NAME, "a rule asks for tracking; no connection yet")
        }
        Some(_) => {
            let cause =
                "no connection, and no nftables rule asks for tracking: there is nothing to mark";
            Finding::problem(CHECK, NAME, cause).cure(TRACK)
        }
        None => {
            let cause = "no connection; the nftables rules could not be read, and one of them must ask for tracking";
            Finding::warning(CHECK, NAME, cause).cure("sudo nft list ruleset")
        }
    }
}

/// Whether the connection table has room.
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

/// Whether this machine forwards packets.
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

/// A rule that overwrites the whole mark of existing connections, and with it our bits.
fn overwritten(rules: &str, mask: u32) -> Option<Finding> {
    let rule = rules.lines().map(str::trim).find(|rule| {
        let Some((before, set)) = rule.split_once("ct mark set ") else {
            return false;
        };
        // A rule is harmless if it combines the old mark, matches only new connections, or only sets marks that are 0.
        !set.starts_with("ct mark")
            && !before.contains("ct state new")
            && !before.contains("ct mark 0x0")
    })?;
    let cause = format!(
        "the rule `{rule}` writes all bits of the mark, including those of mark.mask = {mask:#x}"
    );
    let line = "nft -a list ruleset | grep 'ct mark set' # rather: ct state new ct mark set, or ct mark set ct mark & ... | ...";
    Some(Finding::warning(CHECK, "rules", cause).cure(line))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    const COUNT: &str = "proc/sys/net/netfilter/nf_conntrack_count";

    #[test]
    fn tracking_needs_a_rule() {
        let level = |files: &[(&str, &str)], rules| tracked(&machine(files).1, rules).level;
        assert_eq!(level(&[], Some("")), Level::Problem);
        assert_eq!(level(&[(COUNT, "3\n")], Some("")), Level::Ok);
        assert_eq!(
            level(&[(COUNT, "0\n")], Some("meta mark 0x1 accept")),
            Level::Problem
        );
        assert_eq!(
            level(&[(COUNT, "0\n")], Some("tcp dport 22 ct state new accept")),
            Level::Ok
        );
        assert_eq!(
            level(&[(COUNT, "0\n")], Some("oifname \"wan\" masquerade")),
            Level::Ok
        );
        assert_eq!(level(&[(COUNT, "0\n")], None), Level::Warning);
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
        assert_eq!(
            forwarded(&machine(&[("proc/sys/net/ipv4/ip_forward", "1\n")]).1),
            None
        );
    }

    #[test]
    fn rules_that_write_over_our_bits() {
        let found =
            |rule: &str| overwritten(&format!("table inet t {{\n\t\t{rule}\n}}"), 0xff00).is_some();
        assert!(found("iifname \"lan\" ct mark set 0x00000001"));
        assert!(found("ct mark set meta mark"));
        assert!(!found("ct state new ct mark set 0x00000001"));
        assert!(!found("ct mark set ct mark & 0xffff00ff | 0x00000100"));
        assert!(!found("ct mark 0x00000000 ct mark set 0x00000001"));
        assert!(!found("meta mark set ct mark"));
    }
}
