//! Offloads that merge or hide packets.

use packetio::OpenError;
use packetio::interface::{MERGE_INCOMING, Offload, Offloads, SPLIT_OUTGOING};

use super::finding::Finding;
use config::checked::IoMode;

const CHECK: &str = "offloads";

pub fn findings(name: &str, mode: IoMode, is_promiscuous: bool) -> Vec<Finding> {
    match Offloads::query(name) {
        Ok(offloads) => judge(&offloads, name, mode, is_promiscuous),
        Err(error @ OpenError::UnsupportedLink { .. }) => {
            let line = format!("ip -d link show dev {name}");
            vec![Finding::problem("interface", name, error.to_string()).cure(line)]
        }
        Err(error) => vec![Finding::warning(CHECK, name, error.to_string())],
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
            Some(line) => Finding::problem(CHECK, name, cause).cure(line),
            None => {
                let cause = format!(
                    "{cause}; the driver does not allow turning it off; on a virtual card the host \
                    can"
                );
                Finding::warning(CHECK, name, cause)
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
    Finding::ok(CHECK, name, cause)
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
