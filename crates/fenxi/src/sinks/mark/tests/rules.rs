//! The rules of `examples/shaper` and of `docs/mark.md`, with connections that carry marks.

use super::*;

/// Counts what reaches the server with the DSCP of each class of the shaper.
const SEEN: &str = "table inet seen {
    chain early { counter; }
    chain late { counter; }
    chain input {
        type filter hook input priority 0; policy accept;
        ip dscp vmap { ef : jump early, lephb : jump late }
        ip6 dscp vmap { ef : jump early, lephb : jump late }
    }
}";
/// What a big transfer has, by the rules of the shaper; here as the mark of a label.
const BIG: &str = "mark.class.NetBIOS=0x20000000";

fn example(name: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    format!("{root}/examples/shaper/{name}")
}

/// A writer with the built-in marks of labels, and one more.
fn writer(lab: &Lab) -> (ConnectionWriter, Vec<String>) {
    let config = config::Config::load(None, &[BIG.to_owned()]).unwrap();
    let classes: Vec<_> = config.mark.class.iter().map(|entry| entry.label.clone()).collect();
    let label = |name: &String| Label {
        name: name.clone(),
        taxonomy: "none".to_owned(),
        target: String::new(),
    };
    let labels: Vec<Label> = classes.iter().map(label).collect();
    let marks = ClassMarks::new(&config.mark, &labels).unwrap();
    let start = || start_writer(&marks, config.mark.queue).unwrap();
    (lab.on("router", start), classes)
}

/// Packets that the counter of a chain has seen.
fn counted(lab: &Lab, host: &str, table: &str, chain: &str) -> u64 {
    let listed = lab.run(host, &format!("nft list chain inet {table} {chain}"));
    let (_, packets) = listed.split_once("counter packets ").unwrap();
    packets.split(' ').next().unwrap().parse().unwrap()
}

/// Bytes that a class of the shaper has let through.
fn shaped(lab: &Lab, class: u32) -> u64 {
    let listed = lab.run("router", "tc -s class show dev out");
    let (_, rest) = listed.split_once(&format!("class htb fe:{class} ")).unwrap();
    let (_, bytes) = rest.split_once("Sent ").unwrap();
    bytes.split(' ').next().unwrap().parse().unwrap()
}

/// `shaper up` for the router's uplink, which says nothing.
fn shape(lab: &Lab, rate: &str) {
    let line = format!("{} up out {rate} 2>&1", example("shaper"));
    assert_eq!(lab.run("router", &line), "", "{rate}");
}

#[test]
fn the_shipped_shaper_sorts_packets_by_marks() {
    let Some(lab) = Lab::routed("sorted", true, &["tc"]) else {
        return;
    };
    // tc does not warn of the quantum, whatever the rate; and what is there is replaced.
    for rate in ["500kbit", "10gbit", "40mbit"] {
        shape(&lab, rate);
    }
    lab.nft("server", SEEN);
    let (writer, classes) = writer(&lab);
    let mut asked = 0;
    for (label, class, chain, dscp) in [
        ("SSH", 4, "first", Some("early")),
        ("NetBIOS", 1, "last", Some("late")),
        ("TLS", 2, "first", None),
    ] {
        let of_label = classes.iter().position(|known| known == label).unwrap() as u16;
        for is_v6 in [false, true] {
            let of_dscp = || ["early", "late"].map(|dscp| counted(&lab, "server", "seen", dscp));
            let before = of_dscp();
            let mut connection = Connection::tcp(&lab, is_v6);
            assert_eq!(of_dscp(), before, "{label} has no label yet");
            writer.words.set(connection.views()[2], of_label);
            asked += 1;
            assert_eq!(settled(&writer, asked).written, asked);
            let (bytes, chained) =
                (shaped(&lab, class), counted(&lab, "router", "fenxi-shaper", chain));
            let (near, far) = connection.streams.as_mut().unwrap();
            near.write_all(&[7; 1000]).unwrap();
            far.read_exact(&mut [0; 1000]).unwrap();
            assert!(shaped(&lab, class) >= bytes + 1000, "{label} {is_v6}");
            let after = counted(&lab, "router", "fenxi-shaper", chain);
            assert_eq!(after > chained, dscp.is_some(), "{label} {is_v6}");
            let seen = ["early", "late"].map(|name| Some(name) == dscp);
            let more = of_dscp();
            assert_eq!([0, 1].map(|at| more[at] > before[at]), seen, "{label} {is_v6}");
        }
    }
}

/// A question to DNS comes first without a mark.
#[test]
fn dns_comes_first() {
    let Some(lab) = Lab::routed("dns", true, &["tc"]) else {
        return;
    };
    shape(&lab, "40mbit");
    let questions = lab.on("client", || std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
    for port in [54, 53] {
        questions.send_to(&[7; 40], ("10.77.2.2", port)).unwrap();
    }
    let first = || counted(&lab, "router", "fenxi-shaper", "first");
    while first() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(first(), 1);
}

/// The answers to a big download wait for no upload: they are small.
#[test]
fn acknowledgements_are_never_last() {
    let Some(lab) = Lab::routed("answers", true, &["tc"]) else {
        return;
    };
    shape(&lab, "40mbit");
    let (writer, classes) = writer(&lab);
    let class = classes.iter().position(|label| label == "NetBIOS").unwrap() as u16;
    let mut connection = Connection::tcp(&lab, false);
    writer.words.set(connection.views()[0], class);
    assert_eq!(settled(&writer, 1).written, 1);
    let before = shaped(&lab, 2);
    let (near, far) = connection.streams.as_mut().unwrap();
    far.write_all(&[7; 100_000]).unwrap();
    near.read_exact(&mut [0; 100_000]).unwrap();
    near.write_all(b"thanks").unwrap();
    far.read_exact(&mut [0; 6]).unwrap();
    assert_eq!(shaped(&lab, 1), 0);
    assert!(shaped(&lab, 2) > before);
}

/// The rule of the page that copies bits to the packet, for ip-rule.
#[test]
fn the_documented_rule_lets_ip_rule_choose_the_route() {
    let Some(lab) = Lab::routed("rule", false, &["tc"]) else {
        return;
    };
    let page = include_str!("../../../../../../docs/mark.md");
    let (_, rule) = page.split_once("    table inet steer {").unwrap();
    let (rule, _) = rule.split_once("\n    }\n").unwrap();
    lab.nft("router", &format!("table inet steer {{{rule}\n}}\n"));
    // The whole mark: bits of others on the packet stay too.
    lab.run("router", &format!("ip rule add fwmark {:#x} lookup 100", FOREIGN | 0x500_0000));
    lab.run("router", "ip route add prohibit default table 100");
    let (writer, classes) = writer(&lab);
    let class = classes.iter().position(|label| label == "SSH").unwrap() as u16;
    let (near, connection) = Connection::udp_with_socket(&lab, false);
    writer.words.set(connection.views()[0], class);
    assert_eq!(settled(&writer, 1).written, 1);
    // The router says that it may not pass.
    near.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    near.send(b"more").unwrap();
    let error = loop {
        let error = near.recv(&mut [0; 8]).unwrap_err();
        // The kernel does not restart a wait that has a timeout (signal(7)).
        if error.kind() != std::io::ErrorKind::Interrupted {
            break error;
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{error}");
}
