//! Packets that offloads merge count as those on the wire: the same traffic with offloads on, with
//! offloads off, and as a capture of its packets gives the same flows, series and labels.

use serde_json::Value;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::common::{self};
use crate::run::traffic::{assert_same_flows, flows};

/// No packet is merged any more before it is seen, received or sent.
pub const NO_OFFLOADS: &str = "tso off gso off gro off tx-udp-segmentation off";
/// The hosts of a routed lab, with the ends of its wires.
pub const WIRES: [(&str, &str); 4] =
    [("client", "eth"), ("router", "in"), ("router", "out"), ("server", "eth")];
const TOOLS: [&str; 2] = ["python3", "ethtool"];

/// One side that sends: its host and device, and the device that its frames go to.
type Side<'a> = (&'a str, &'a str, (&'a str, &'a str));

/// What a run saw of copies of the demo's flows, and a capture of what it should have seen.
struct Seen {
    summary: Value,
    /// Merged packets, and packets on the wire.
    several: u64,
    on_wire: u64,
    records: tempfile::TempDir,
}

impl Seen {
    fn by(
        lab: &Lab,
        watched: &str,
        interfaces: &str,
        args: &[&str],
        copies: u32,
        tag: u16,
        sides: [Side<'_>; 2],
    ) -> Seen {
        let records = tempfile::tempdir().unwrap();
        let path = |name: &str| records.path().join(name).display().to_string();
        let (flows, interfaces) = (path("flows"), format!("io.interfaces={interfaces}"));
        let mut all = vec!["--set", &interfaces, "--series", "--flows", &flows];
        all.extend(args);
        let live = Live::start(lab, watched, &all);
        let script = common::root().join("tests/run/merged.py");
        let mut command = format!(
            "python3 {} {} {} {copies} {tag}",
            script.display(),
            common::root().join("demo/office.pcap").display(),
            path("wire.pcap")
        );
        for (host, device, (far, far_device)) in sides {
            let mac = lab.run(far, &format!("cat /sys/class/net/{far_device}/address"));
            command += &format!(" {} {device} {}", lab.name(host), mac.trim());
        }
        let said = lab.spawn(sides[0].0, &command).wait();
        let numbers: Vec<u64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [_, several, on_wire] = numbers[..] else {
            panic!("{said}");
        };
        live.wait_for("all packets are seen", |live| {
            live.metric_sum("fenxi_packets_total") as u64 >= on_wire
        });
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        let summary = live.terminate(0).json();
        assert_eq!(summary["live"]["kernel_dropped"], 0);
        assert_eq!(summary["merged"]["unknown"], 0);
        Seen { summary, several, on_wire, records }
    }

    /// Checks that its records match the packets on the wire; returns the number of flows.
    fn assert_is_the_wire(&self) -> usize {
        let path = |name: &str| self.records.path().join(name);
        let mut replay = common::fenxi(["replay", "--series", "--json"]);
        replay.arg(path("wire.pcap")).arg("--flows").arg(path("replayed"));
        let replayed = common::run(replay).expect_code(0).json();
        assert_eq!(replayed["packets"], self.on_wire);
        assert_eq!(replayed["merged"]["unknown"], 0);
        assert_same_flows(&path("flows"), &path("replayed"));
        flows(&path("flows")).values().map(Vec::len).sum()
    }
}

fn merged_of(seen: &Seen) -> (u64, u64) {
    let of = |name: &str| seen.summary["merged"][name].as_u64().unwrap();
    (of("packets"), of("segments"))
}

/// A router between the clients and the servers of the demo.
#[test]
fn labels_do_not_depend_on_offloads() {
    for mode in ["tap", "mark"] {
        let mut runs = Vec::new();
        for is_on in [true, false] {
            let Some(lab) = Lab::routed(&format!("merged-{mode}-{is_on}"), false, &TOOLS) else {
                return;
            };
            lab.run(
                "router",
                "ip route add 192.0.2.0/24 via 10.77.1.2 && ip route add 198.51.100.0/24 via \
                 10.77.2.2 && \
                 ip route add 2001:db8:a::/64 via fd77:1::2 && ip route add 2001:db8:b::/64 via \
                 fd77:2::2",
            );
            if !is_on {
                for (host, device) in WIRES {
                    lab.run(host, &format!("ethtool -K {device} {NO_OFFLOADS}"));
                }
            }
            let sides = [("client", "eth", ("router", "in")), ("server", "eth", ("router", "out"))];
            let mode = format!("io.mode={mode}");
            let args = ["--set", &mode, "--set", "io.capture=all"];
            let seen = Seen::by(&lab, "router", "[\"in\"]", &args, 3, 0, sides);
            assert!(seen.assert_is_the_wire() > 1000);
            assert!(seen.several > 500, "{} merged packets", seen.several);
            let (packets, segments) = merged_of(&seen);
            match is_on {
                true => assert!(packets >= seen.several && segments > packets),
                false => assert_eq!((packets, segments), (0, 0)),
            }
            runs.push(seen);
        }
        let path = |at: usize| runs[at].records.path().join("flows");
        assert_same_flows(&path(0), &path(1));
        assert_eq!(runs[0].summary["labels"], runs[1].summary["labels"]);
    }
}

/// The same on a wire with VLAN tags, whose outermost the kernel strips.
#[test]
fn segments_behind_a_vlan_tag_count_as_on_the_wire() {
    for is_on in [true, false] {
        let Some(lab) = Lab::new(&format!("merged-vlan-{is_on}"), &["host"], &TOOLS) else {
            return;
        };
        lab.run(
            "host",
            "ip link add near type veth peer name far && ip link set near up && ip link set far up",
        );
        for device in ["near", "far"] {
            lab.wait_for_link("host", device);
        }
        if !is_on {
            lab.run(
                "host",
                &format!("ethtool -K near {NO_OFFLOADS} && ethtool -K far {NO_OFFLOADS}"),
            );
        }
        let side = ("host", "near", ("host", "far"));
        let args = ["--set", "io.mode=tap", "--set", "io.promiscuous=true"];
        let seen = Seen::by(&lab, "host", "[\"far\"]", &args, 1, 7, [side, side]);
        assert!(seen.assert_is_the_wire() > 300);
        assert_eq!(merged_of(&seen).0 > 0, is_on);
    }
}
