//! `tag.in_kernel`: the kernel writes the DSCP of labelled flows into packets that leave.

use std::collections::BTreeMap;

use crate::common::lab::Lab;
use crate::common::packets::{checksum, read_capture};
use crate::run::capture::listen_on;
use crate::run::kernel_marks::{
    Name, SMALL, deciding, labelled, name_of, start_kernel, table, talk_of_all,
};

/// AF11, and the congestion bits that the server sets (ECT(1)).
const DSCP: u8 = 10;
const ECN: u8 = 1;
const SETS_ECN: &str = "table inet congestion {
    chain out {
        type filter hook output priority 0; policy accept;
        ip ecn set ect1
        ip6 ecn set ect1
    }
}";

/// What a message from the server carries: its flow, and the byte with DSCP and ECN. `None`: it is
/// none.
fn carried(frame: &[u8]) -> Option<(Name, u8)> {
    let (packet, is_v6) = match frame[12..14] {
        [0x08, 0x00] => (&frame[14..], false),
        [0x86, 0xdd] => (&frame[14..], true),
        _ => return None,
    };
    let length_at = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let (protocol, header, class, length) = match is_v6 {
        true => (packet[6], 40, packet[0] << 4 | packet[1] >> 4, 40 + length_at(4)),
        false => (packet[9], 20, packet[1], length_at(2)),
    };
    assert_eq!(packet[0] >> 4, if is_v6 { 6 } else { 4 });
    assert!(is_v6 || checksum(&packet[..header]) == 0, "{:x?}", &packet[..header]);
    let is_tcp = protocol == 6;
    if !is_tcp && protocol != 17 {
        return None;
    }
    let own = if is_tcp { usize::from(packet[header + 12] >> 4) * 4 } else { 8 };
    let port = length_at(header) as u16;
    (length > header + own).then_some(((is_v6, is_tcp, port), class))
}

/// From the deciding packet on, a flow's packets that leave by the watched interface carry the DSCP
/// that its label has, with all else of their headers as it was.
#[test]
fn packets_of_labelled_flows_leave_with_the_dscp_of_their_label() {
    let Some(lab) = Lab::routed("kernel-dscp", true, &["tcpdump"]) else { return };
    lab.nft("server", SETS_ECN);
    let dir = tempfile::tempdir().unwrap();
    let [path, capture] = ["records", "capture"].map(|name| dir.path().join(name));
    let dscp = table("tag.dscp", SMALL, |_| DSCP.into());
    let args = ["--set", "tag.in_kernel=true", "--set", &dscp];
    let live = start_kernel(&lab, "in", SMALL, &path, &args);
    let seen = listen_on("client", &lab, &live, &capture);
    let flows = talk_of_all(&lab);
    seen.finish(&live);
    live.terminate(0);

    let mut classes: BTreeMap<Name, Vec<u8>> = BTreeMap::new();
    for (_, frame) in read_capture(&capture) {
        if let Some((name, class)) = carried(&frame).filter(|(name, _)| flows.contains_key(name)) {
            classes.entry(name).or_default().push(class);
        }
    }
    for record in labelled(&path, &flows) {
        let name = name_of(&record);
        let before = deciding(&record).saturating_sub(1) / 2;
        let is_unknown = record["label"] == "unknown";
        let wanted: Vec<u8> = (0..flows[&name])
            .map(|at| if at < before || is_unknown { ECN } else { DSCP << 2 | ECN })
            .collect();
        assert_eq!(classes[&name], wanted, "{record}");
        let set = (!is_unknown).then_some(u64::from(DSCP));
        assert_eq!(record["dscp_set"].as_u64(), set, "{record}");
    }
}

/// Also where it writes no marks, as for connections of a zone.
#[test]
fn rules_are_refused_while_the_kernel_tags_by_labels() {
    let Some(lab) = Lab::routed("kernel-dscp-rules", false, &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let args = ["--set", "tag.in_kernel=true", "--set", "mark.zone=7"];
    let live = start_kernel(&lab, "in", SMALL, &dir.path().join("records"), &args);
    let rule = live.ctl(&["policy", "add", "destination_port = 53, mark = 0x1000000"]);
    assert!(rule.stderr.contains("the kernel marks and tags by labels alone"), "{rule:?}");
    live.terminate(0);
}
