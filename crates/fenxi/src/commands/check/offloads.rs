//! Offloads: what shows fenxi packets that were never on the wire, or hides some that were.

use packetio::OpenError;
use packetio::interface::{MERGE_INCOMING, Offload, Offloads, SPLIT_OUTGOING};

use super::finding::Finding;
use config::checked::IoMode;

const CHECK: &str = "offloads";

/// Looks at one interface.
pub fn look(name: &str, mode: IoMode, is_promiscuous: bool) -> Vec<Finding> {
    match Offloads::of(name) {
        Ok(offloads) => judge(&offloads, name, mode, is_promiscuous),
        Err(error @ OpenError::UnsupportedLink { .. }) => {
            let line = format!("ip -d link show dev {name}");
            vec![Finding::problem("interface", name, error.to_string()).cure(line)]
        }
        Err(error) => vec![Finding::warning(CHECK, name, error.to_string())],
    }
}

fn judge(offloads: &Offloads, name: &str, mode: IoMode, is_promiscuous: bool) -> Vec<Finding> {
    // A mirror port sends nothing, and inline sends what was received.
    let sees_outgoing = mode == IoMode::Mark;
    let mut harmful = MERGE_INCOMING.to_vec();
    if sees_outgoing {
        harmful.extend(SPLIT_OUTGOING);
    }
    let on = offloads.on(&harmful);
    // Alone it does nothing.
    let on: Vec<Offload> = on
        .into_iter()
        .filter(|offload| offload.name != "rx-udp-gro-forwarding" || offloads.is_on("gro"))
        .collect();
    let (fixed, free): (Vec<_>, Vec<_>) = on.into_iter().partition(|offload| offload.is_fixed);
    let mut findings = Vec::new();
    if !free.is_empty() {
        let cause = format!(
            "{}: fenxi sees merged packets whose lengths were never on the wire, and labels go wrong{}",
            names(&free),
            if free.iter().any(|offload| offload.name == "lro") && mode == IoMode::Inline {
                "; packets merged by LRO cannot be forwarded and are lost"
            } else {
                ""
            }
        );
        findings
            .push(Finding::problem(CHECK, name, cause).cure_if(offloads.remedy(name, &harmful)));
    }
    if !fixed.is_empty() {
        let cause = format!(
            "{}: the driver does not allow turning it off; merged packets have lengths that were never on the wire and get wrong labels; on a virtual card the host can turn it off",
            names(&fixed)
        );
        findings.push(Finding::warning(CHECK, name, cause));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, name, "nothing merges packets"));
    }
    findings.push(tags(offloads, name, mode, is_promiscuous));
    findings
}

fn names(offloads: &[Offload]) -> String {
    let names: Vec<_> = offloads.iter().map(|offload| offload.name).collect();
    format!("{} on", names.join(", "))
}

/// VLAN tags: taken off by the card, they are put back; frames that the card filters out are gone.
fn tags(offloads: &Offloads, name: &str, mode: IoMode, is_promiscuous: bool) -> Finding {
    const CHECK: &str = "vlan";
    if mode == IoMode::Tap && !is_promiscuous && offloads.is_on("rx-vlan-filter") {
        let cause = "rx-vlan-filter on: the card drops frames of VLANs for which this machine has no interface";
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
    use super::super::finding::Level;
    use super::*;

    /// With these features of the kernel on, and `rx-gro-hw` fixed.
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
        let bits = names
            .iter()
            .enumerate()
            .filter(|(_, name)| on.contains(name))
            .map(|(bit, _)| 1 << bit);
        let active = bits.sum();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Offloads::read(&names, &[[0xff, 0, active, 0b100]])
    }

    fn found(on: &[&str], mode: IoMode) -> (Level, Option<String>) {
        let finding = judge(&with(on), "eth0", mode, true).remove(0);
        (finding.level, finding.remedy)
    }

    #[test]
    fn what_merges_is_a_problem_with_its_line() {
        let gro = Some("ethtool -K eth0 gro off".to_owned());
        for mode in [IoMode::Tap, IoMode::Mark, IoMode::Inline] {
            assert_eq!(found(&["rx-gro"], mode), (Level::Problem, gro.clone()));
            assert_eq!(
                found(&["tx-generic-segmentation", "rx-udp-gro-forwarding"], mode),
                (Level::Ok, None)
            );
            assert_eq!(found(&["rx-gro-hw"], mode), (Level::Warning, None));
        }
        let both = judge(&with(&["rx-gro", "rx-gro-hw"]), "eth0", IoMode::Tap, true);
        assert_eq!(
            both.iter().map(|finding| finding.level).collect::<Vec<_>>(),
            [Level::Problem, Level::Warning, Level::Ok]
        );
        assert!(
            judge(&with(&["rx-lro"]), "eth0", IoMode::Inline, true)[0]
                .cause
                .contains("are lost")
        );
    }

    #[test]
    fn what_is_split_late_matters_where_outgoing_packets_are_seen() {
        let tso = Some("ethtool -K eth0 tso off".to_owned());
        assert_eq!(
            found(&["tx-tcp-segmentation"], IoMode::Mark),
            (Level::Problem, tso)
        );
        assert_eq!(
            found(&["tx-tcp-segmentation"], IoMode::Inline),
            (Level::Ok, None)
        );
    }

    #[test]
    fn tags_are_put_back_but_filtered_frames_are_gone() {
        let of = |on: &[&str], is_promiscuous| tags(&with(on), "eth0", IoMode::Tap, is_promiscuous);
        assert_eq!(of(&["rx-vlan-hw-parse"], false).level, Level::Ok);
        let filtered = of(&["rx-vlan-filter"], false);
        assert_eq!(
            filtered.remedy.as_deref(),
            Some("ethtool -K eth0 rx-vlan-filter off")
        );
        assert_eq!(of(&["rx-vlan-filter"], true).level, Level::Ok);
    }
}
