//! The rules under `examples/mark/`, with connections that carry marks.

use super::*;

/// Counts what reaches the server with the DSCP of each group.
const SEEN: &str = "table inet seen {
    chain af11 { counter; }
    chain af21 { counter; }
    chain cs1 { counter; }
    chain input {
        type filter hook input priority 0; policy accept;
        ip dscp vmap { af11 : jump af11, af21 : jump af21, cs1 : jump cs1 }
        ip6 dscp vmap { af11 : jump af11, af21 : jump af21, cs1 : jump cs1 }
    }
}";

fn example(name: &str) -> std::path::PathBuf {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("examples/mark").join(name)
}

/// A writer with the built-in configuration, as for the shipped model.
fn shipped_writer(lab: &Lab) -> (Writer, Vec<String>) {
    let config = config::Config::load(None, &[]).unwrap();
    let classes: Vec<_> = config
        .mark
        .class
        .iter()
        .map(|entry| entry.label.clone())
        .collect();
    let label = |name: &String| Label {
        name: name.clone(),
        taxonomy: "none".to_owned(),
    };
    let labels: Vec<Label> = classes.iter().map(label).collect();
    let marks = ClassMarks::new(&config.mark, &labels).unwrap();
    let start = || Writer::start(marks, config.mark.queue).unwrap();
    (lab.on("router", start), classes)
}

/// Packets that the counter of a chain has seen.
fn counted(lab: &Lab, host: &str, table: &str, chain: &str) -> u64 {
    let listed = lab.run(host, &format!("nft list chain inet {table} {chain}"));
    let (_, packets) = listed.split_once("counter packets ").unwrap();
    packets.split(' ').next().unwrap().parse().unwrap()
}

/// Bytes that a class of the shaper has let through.
fn shaped(lab: &Lab, class: &str) -> u64 {
    let listed = lab.run("router", "tc -s class show dev out");
    let (_, rest) = listed.split_once(&format!("class htb {class} ")).unwrap();
    let (_, bytes) = rest.split_once("Sent ").unwrap();
    bytes.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_shipped_rules_write_the_dscp_of_the_label() {
    let Some(lab) = Lab::routed("dscp", true, &["tc"]) else {
        return;
    };
    lab.run(
        "router",
        &format!("nft -f {}", example("nftables.nft").display()),
    );
    // Loading them again replaces them.
    lab.run(
        "router",
        &format!("nft -f {}", example("nftables.nft").display()),
    );
    lab.nft("server", SEEN);
    let (writer, classes) = shipped_writer(&lab);
    let mut asked = 0;
    for (label, chain, dscp) in [
        ("SSH", "interactive", "af21"),
        ("TLS", "web", "af11"),
        ("NetBIOS", "bulk", "cs1"),
    ] {
        let class = classes.iter().position(|known| known == label).unwrap() as u16;
        for is_v6 in [false, true] {
            let before = counted(&lab, "server", "seen", dscp);
            let mut connection = Connection::tcp(&lab, is_v6);
            let unlabelled = counted(&lab, "server", "seen", dscp);
            assert_eq!(unlabelled, before, "{label} has no label yet");
            writer.set(connection.views()[2], class);
            asked += 1;
            assert_eq!(settled(&writer, asked).written, asked);
            let (near, far) = connection.streams.as_mut().unwrap();
            near.write_all(b"more").unwrap();
            far.read_exact(&mut [0; 4]).unwrap();
            assert!(
                counted(&lab, "server", "seen", dscp) > before,
                "{label} {is_v6}"
            );
        }
        assert!(counted(&lab, "router", "fenxi", chain) >= 2, "{chain}");
    }
}

#[test]
fn the_shipped_shaper_holds_a_class_to_its_rate() {
    let Some(lab) = Lab::routed("htb", true, &["tc"]) else {
        return;
    };
    lab.run(
        "router",
        &format!("nft -f {}", example("nftables.nft").display()),
    );
    // It says nothing, and tc does not warn of the quantum, whatever the rate.
    for kbit in ["500", "10000000", "40000"] {
        let line = format!("sh {} out {kbit} 2>&1", example("tc-htb.sh").display());
        assert_eq!(lab.run("router", &line), "", "{kbit}");
    }
    let (writer, classes) = shipped_writer(&lab);
    let class = classes.iter().position(|label| label == "NetBIOS").unwrap() as u16;
    let mut connection = Connection::tcp(&lab, false);
    assert_eq!(shaped(&lab, "1:30"), 0);
    assert!(shaped(&lab, "1:40") > 0);
    writer.set(connection.views()[0], class);
    assert_eq!(settled(&writer, 1).written, 1);

    // Bulk may have a tenth of 40 Mbit/s: 400,000 bytes take 0.8 s, less a burst. A slow machine only
    // takes longer.
    let bytes = 400_000;
    let (near, far) = connection.streams.as_mut().unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| near.write_all(&vec![0; bytes]).unwrap());
        far.read_exact(&mut vec![0; bytes]).unwrap();
    });
    assert!(
        begun.elapsed() > Duration::from_millis(500),
        "{:?}",
        begun.elapsed()
    );
    assert!(shaped(&lab, "1:30") >= bytes as u64);
    assert!(shaped(&lab, "1:40") < 100_000);
    lab.run(
        "router",
        &format!("sh {} out off", example("tc-htb.sh").display()),
    );
    assert!(!lab.run("router", "tc qdisc show dev out").contains("htb"));
}

#[test]
fn the_shipped_rules_let_ip_rule_choose_the_route() {
    let Some(lab) = Lab::routed("rule", false, &["tc"]) else {
        return;
    };
    lab.run(
        "router",
        &format!("nft -f {}", example("nftables.nft").display()),
    );
    // The whole mark: bits of others on the packet stay too.
    lab.run(
        "router",
        &format!("ip rule add fwmark {:#x} lookup 100", FOREIGN | 0x700_0000),
    );
    lab.run("router", "ip route add prohibit default table 100");
    let (writer, classes) = shipped_writer(&lab);
    let class = classes.iter().position(|label| label == "NetBIOS").unwrap() as u16;
    let (near, connection) = Connection::udp_with_socket(&lab, false);
    writer.set(connection.views()[0], class);
    assert_eq!(settled(&writer, 1).written, 1);
    // The router says that it may not pass.
    near.set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
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
