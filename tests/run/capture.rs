//! What the far side of a bridge sees: captured by tcpdump, and judged by tshark.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::lab::{Lab, Program};
use crate::common::live::Live;
use crate::common::packets;
use crate::run::inline::LEFT;

/// A tcpdump on a host.
pub struct Listening<'a> {
    lab: &'a Lab,
    host: &'static str,
    tcpdump: Program,
    capture: PathBuf,
    /// Frames that passed before it.
    before: usize,
}

/// Bytes captured of a frame: all of one on a wire of our MTUs. Merged packets are longer, and
/// nobody reads them to the end.
const FRAME_MAX: usize = 9100;
/// What the kernel keeps for tcpdump, KiB. It takes room for `FRAME_MAX` whatever a frame has, so
/// these are 14,640 frames: more than a test sends while it listens, so it does not matter when
/// tcpdump gets its turn.
const KEPT_KIB: usize = 128 * 1024;

/// Captures on the right from now on.
pub fn listen<'a>(lab: &'a Lab, live: &Live, capture: &Path) -> Listening<'a> {
    listen_on("right", lab, live, capture)
}

/// Captures on a host from now on.
pub fn listen_on<'a>(
    host: &'static str,
    lab: &'a Lab,
    live: &Live,
    capture: &Path,
) -> Listening<'a> {
    let tcpdump = format!(
        "tcpdump -i eth -U --immediate-mode -s {FRAME_MAX} -B {KEPT_KIB} -w {}",
        capture.display()
    );
    let tcpdump = lab.spawn(host, &tcpdump);
    live.wait_for("tcpdump listens", |_| {
        std::fs::metadata(capture).is_ok_and(|file| file.len() > 0)
    });
    Listening { lab, host, tcpdump, capture: capture.to_owned(), before: passed(lab, host) }
}

impl Listening<'_> {
    /// Ends it when it has written all that passed.
    pub fn finish(self, live: &Live) {
        let all = passed(self.lab, self.host) - self.before;
        live.wait_for("tcpdump has written all", |_| {
            packets::record_offsets(&std::fs::read(&self.capture).unwrap()).len() >= all
        });
        let said = self.tcpdump.interrupt();
        assert!(said.contains("\n0 packets dropped by kernel"), "{said}");
    }
}

/// Frames that came to a host and left it.
fn passed(lab: &Lab, host: &str) -> usize {
    let counters = "cat /sys/class/net/eth/statistics/[rt]x_packets";
    let counters = lab.run(host, counters);
    let counters = counters.lines().map(str::parse::<usize>);
    counters.map(Result::unwrap).sum()
}

/// A frame that left sent, as tshark reads it on the right.
pub struct Seen {
    /// The flow, where it is of one.
    pub flow: Option<String>,
    pub dscp: u8,
}

/// What came from the left. Panics where a checksum is wrong.
pub fn seen(capture: &Path) -> Vec<Seen> {
    seen_from(capture, &LEFT)
}

/// What came from these addresses. Panics where a checksum is wrong.
pub fn seen_from(capture: &Path, sources: &[&str]) -> Vec<Seen> {
    const CHECKSUMS: [&str; 5] = ["ip", "tcp", "udp", "icmp", "icmpv6"];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-T", "fields"]);
    for protocol in &CHECKSUMS[..3] {
        tshark.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    let sources = sources.iter().map(|address| match address.contains(':') {
        true => format!("ipv6.src == {address}"),
        false => format!("ip.src == {address}"),
    });
    tshark.args(["-Y", &sources.collect::<Vec<_>>().join(" || ")]);
    let fields = ["tcp.stream", "udp.stream", "ip.dsfield.dscp", "ipv6.tclass.dscp"];
    let statuses = CHECKSUMS.map(|protocol| format!("{protocol}.checksum.status"));
    // Software writes ffff where the sum is 0 (Linux: CSUM_MANGLED_0), and hosts accept it.
    let fields = fields.into_iter().chain(["tcp.checksum.ffff"]);
    let fields = fields.chain(statuses.iter().map(String::as_str));
    tshark.args(fields.flat_map(|field| ["-e", field]));
    let output = tshark.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let frame = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        // 0 is bad, 1 is good, 2 was not looked at, 3 is absent.
        let is_good = fields[4] == "1" || !fields[5..].contains(&"0");
        assert!(is_good, "{line}");
        let flow = match (fields[0], fields[1]) {
            ("", "") => None,
            (tcp, udp) => Some(format!("tcp {tcp} udp {udp}")),
        };
        let dscp = [fields[2], fields[3]].concat();
        let dscp = dscp.parse().unwrap();
        Seen { flow, dscp }
    };
    lines.lines().map(frame).collect()
}
