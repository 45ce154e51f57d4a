//! The rules under `configs/policy`, through to marks and DSCPs: in a home, in an office, at a
//! provider.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self, uninterrupted};
use crate::run::capture::{listen, seen_from};
use crate::run::inline;
use crate::run::mark;
use crate::run::traffic::{patient_socket, talk};

/// The simulated device gives flows of one server port whose first packets differ by a byte each
/// all labels in turn.
const LABELS: usize = 29;

/// A server's socket.
fn server(lab: &Lab, host: &str, address: &str, port: u16) -> UdpSocket {
    let socket = lab.on(host, || UdpSocket::bind((address, port)).unwrap());
    let patience = Some(Duration::from_secs(30));
    socket.set_read_timeout(patience).unwrap();
    socket
}

/// A client's socket, connected to a server's.
fn client(lab: &Lab, host: &str, address: &str, server: &UdpSocket) -> UdpSocket {
    let socket = lab.on(host, || patient_socket(address));
    socket.connect(server.local_addr().unwrap()).unwrap();
    socket
}

/// A question and an answer of `bytes` bytes each.
fn exchange(client: &UdpSocket, server: &UdpSocket, bytes: usize) {
    client.send(&vec![1; bytes]).unwrap();
    let (_, from) = uninterrupted(|| server.recv_from(&mut [0; 1500])).unwrap();
    server.send_to(&vec![2; bytes], from).unwrap();
    uninterrupted(|| client.recv(&mut [0; 1500])).unwrap();
}

/// A flow of each label.
fn of_each_label(lab: &Lab, host: &str, address: &str, server: &UdpSocket) -> Vec<UdpSocket> {
    let flow = |at| {
        let client = client(lab, host, address, server);
        exchange(&client, server, 20 + at);
        client
    };
    (0..LABELS).map(flow).collect()
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().unwrap().port()
}

/// Label and who decided, by the port of the client.
fn decisions(records: &Path) -> BTreeMap<u16, (String, String)> {
    let records = common::json_lines(records).into_iter();
    let flows = records.filter(|record| record["type"] == "flow" && record["label"].is_string());
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    flows
        .map(|flow| {
            let port = flow["src_port"].as_u64().unwrap() as u16;
            (port, (text(&flow["label"]), text(&flow["decided_by"])))
        })
        .collect()
}

/// Mode mark: the DSCP of the built-in table as a mark, except for calls, which come first, and a
/// big download, which comes last. A call that is as big stays a call.
#[test]
fn a_home_has_calls_first_and_big_downloads_last() {
    let Some(lab) = Lab::routed("home", false, &["conntrack"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("records");
    let args = ["--config", "configs/policy/home-mark.toml", "--flows"];
    let args = [&args[..], &[records.to_str().unwrap()], &common::SIMULATED].concat();
    let live = mark::start(&lab, "in", "flow.idle_timeout_s=60", &args);
    let [near, far] = ["10.77.1.2", Lab::server(false)];
    let named = [53, 123].map(|port| {
        let server = server(&lab, "server", far, port);
        let client = client(&lab, "client", near, &server);
        exchange(&client, &server, 40);
        client
    });
    let server = server(&lab, "server", far, 4000);
    let others = of_each_label(&lab, "client", near, &server);

    let mark_of = |socket: &UdpSocket| mark::mark_at(&lab, socket.local_addr().unwrap());
    let (ef, le) = (FOREIGN | 0xae, FOREIGN | 0x81);
    live.wait_for("calls by STUN and by SIP have their mark", |live| {
        live.metric_sum("fenxi_marks_waiting") == 0.0
            && others.iter().filter(|it| mark_of(it) == ef).count() == 2
    });
    let (calls, rest): (Vec<_>, Vec<_>) = others.iter().partition(|it| mark_of(it) == ef);
    for client in [calls[0], rest[0]] {
        for _ in 0..4000 {
            exchange(client, &server, 1400);
        }
    }
    live.wait_for("the download is big", |_| mark_of(rest[0]) == le);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let summary = live.terminate(0).json();
    assert_eq!(summary["decided"]["by_rule"], 2, "{summary}");

    let labels = decisions(&records);
    assert_eq!(named.each_ref().map(mark_of), [FOREIGN | 0x92, FOREIGN | 0x90]);
    let by_rule = |name: &str| (name.to_owned(), "rule".to_owned());
    assert_eq!(named.each_ref().map(|it| &labels[&port(it)]), [&by_rule("DNS"), &by_rule("NTP")]);
    for flow in &others {
        let label = &*labels[&port(flow)].0;
        let expected = match label {
            _ if port(flow) == port(rest[0]) => le,
            "STUN" | "SIP" => ef,
            "DNS" | "SSH" => FOREIGN | 0x80 | 18,
            "TLS" | "HTTP" => FOREIGN | 0x80 | 10,
            "SNMP" | "NTP" | "MQTT" => FOREIGN | 0x80 | 16,
            "NetBIOS" => FOREIGN | 0x80 | 8,
            _ => FOREIGN,
        };
        assert_eq!(mark_of(flow), expected, "{label}");
    }
}

/// Packets that were treated so.
fn packets(live: &Live, verdict: &str) -> f64 {
    let verdict = format!("verdict=\"{verdict}\"");
    live.samples_with("fenxi_packets_total", &verdict).iter().sum()
}

/// DSCPs that packets from an address had.
fn dscps(capture: &Path, source: &str) -> BTreeMap<u8, usize> {
    let mut counts = BTreeMap::new();
    let of_flows = seen_from(capture, &[source]).into_iter();
    for frame in of_flows.filter(|frame| frame.flow.is_some()) {
        *counts.entry(frame.dscp).or_default() += 1;
    }
    counts
}

/// Gives hosts of a bridged lab more addresses, and ways to all of the other side.
fn settle(lab: &Lab, left: &[&str], right: &[&str]) {
    for (host, addresses) in [("left", left), ("right", right)] {
        for address in addresses {
            lab.run(host, &format!("ip addr add {address} dev eth"));
        }
        lab.run(host, "ip route add default dev eth && ip route add 2001:db8::/32 dev eth");
    }
}

/// Mode inline: guests get CS1, no way to servers and no peer-to-peer; servers have their label by
/// rule, printers none.
#[test]
fn an_office_keeps_its_guests_apart() {
    let Some(lab) = Lab::bridged("office", &["tcpdump", "tshark"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [records, capture] = ["records", "capture"].map(|name| dir.path().join(name));
    let [guest, staff] = ["192.168.50.7", "192.168.1.9"];
    let [mail, printer, outside] = ["192.168.10.25", "192.168.1.20", "203.0.113.9"];
    settle(
        &lab,
        &["192.168.50.7/32", "192.168.1.9/32"],
        &["192.168.10.25/32", "192.168.1.20/32", "203.0.113.9/32"],
    );
    let from_staff = format!("ip route add 192.168.10.0/24 dev eth src {staff}");
    lab.run("left", &from_staff);
    let rules = "policy.rules=configs/policy/office.toml";
    let live = inline::start(&lab, &["--set", rules, "--flows", records.to_str().unwrap()]);
    let right = listen(&lab, &live, &capture);

    let internet = server(&lab, "right", outside, 4000);
    let guests = [0; LABELS].map(|_| client(&lab, "left", guest, &internet));
    for (at, client) in guests.iter().enumerate() {
        client.send(&vec![1; 20 + at]).unwrap();
    }
    live.wait_for("each flow of a guest has its label", |live| {
        live.metric_sum("fenxi_series_emitted_total") == LABELS as f64
            && live.metric_sum("fenxi_series_waiting") == 0.0
    });
    // A label that is there before its burst leaves counts for the packet that decided it.
    let early = packets(&live, "dropped");
    assert!(early <= 1.0, "{early}");
    for client in &guests {
        client.send(&[1; 100]).unwrap();
    }
    live.wait_for("one is peer-to-peer", |live| packets(live, "dropped") == early + 1.0);
    let passed = 2 * LABELS - 1 - early as usize;
    for _ in 0..passed {
        uninterrupted(|| internet.recv_from(&mut [0; 1500])).unwrap();
    }
    assert_eq!(packets(&live, "dropped"), early + 1.0);

    let of_servers = server(&lab, "right", mail, 4000);
    let refused = client(&lab, "left", guest, &of_servers);
    refused.send(&[1; 100]).unwrap();
    live.wait_for("guests do not reach servers", |live| packets(live, "dropped") == early + 2.0);

    let series = live.metric_sum("fenxi_series_emitted_total");
    let printers = server(&lab, "right", printer, 9100);
    exchange(&client(&lab, "left", staff, &printers), &printers, 100);
    let listener = lab.on("right", || TcpListener::bind((mail, 25)).unwrap());
    let sending = lab.on("left", || TcpStream::connect((mail, 25)).unwrap());
    talk([&sending, &listener.accept().unwrap().0], 12);
    assert_eq!(live.metric_sum("fenxi_series_emitted_total"), series, "no model was asked");
    let mail_port = sending.local_addr().unwrap().port();
    drop(sending);
    right.finish(&live);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);

    assert_eq!(dscps(&capture, guest), [(8, passed)].into());
    let of_staff = dscps(&capture, staff);
    // The printer's packet is as it came, and all to the mail server are AF11, the first one, too.
    assert_eq!((of_staff[&0], of_staff.len()), (1, 2), "{of_staff:?}");
    assert!(of_staff[&10] > 12, "{of_staff:?}");
    let labels = decisions(&records);
    let shared = |client: &&UdpSocket| labels[&port(client)].0 == "BitTorrent";
    assert_eq!(guests.iter().filter(shared).count(), 1, "{labels:?}");
    assert_eq!(labels[&mail_port], ("SMTP".to_owned(), "rule".to_owned()));
}

/// A folder with the provider's rules and `subscribers` subscribers.
fn provider(subscribers: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let shipped = common::root().join("configs/policy");
    for name in ["isp.toml", "blocklist.txt"] {
        fs::copy(shipped.join(name), dir.path().join(name)).unwrap();
    }
    let mut make = Command::new(shipped.join("make-subscribers"));
    let made = make.arg(subscribers.to_string()).output().unwrap();
    assert!(made.status.success());
    fs::write(dir.path().join("subscribers.csv"), made.stdout).unwrap();
    dir
}

/// The DSCP of the plan that a subscriber has bought.
fn plan(csv: &str, address: &str) -> u8 {
    let line = csv.lines().find(|line| line.contains(&format!(",{address};")));
    match line.unwrap().rsplit(',').next().unwrap() {
        "AF31" => 26,
        "AF11" => 10,
        "CS1" => 8,
        other => panic!("{other}"),
    }
}

/// Mode inline: each of 100,000 subscribers has the DSCP of the plan, by IPv4 and IPv6, the last of
/// the file as well; nobody reaches the networks of the blocklist; and a plan that changes does so
/// for a flow that goes on.
#[test]
fn a_provider_has_a_rule_for_each_subscriber() {
    let Some(lab) = Lab::bridged("provider", &["tcpdump", "tshark"]) else {
        return;
    };
    let dir = provider(100_000);
    let [rules, file, capture] =
        ["isp.toml", "subscribers.csv", "capture"].map(|name| dir.path().join(name));
    let csv = fs::read_to_string(&file).unwrap();
    let [first, last, stranger] = ["100.64.0.5", "100.65.134.159", "100.127.0.1"];
    let six = "2001:db8:0:500::1";
    let left = [first, last, stranger].map(|address| format!("{address}/32"));
    let left =
        [&left.each_ref().map(String::as_str)[..], &["2001:db8:0:500::1/128 nodad"]].concat();
    let [outside, outside_six, blocked] = ["203.0.113.9", "2001:db8:ffff::9", "198.51.100.66"];
    settle(&lab, &left, &["203.0.113.9/32", "198.51.100.66/32", "2001:db8:ffff::9/128 nodad"]);
    let set = format!("policy.rules={}", rules.display());
    let live = inline::start(&lab, &["--set", &set, "--set", "tag.mode=off"]);
    assert_eq!(live.metric_sum("fenxi_policy_rules"), 100_002.0);
    let right = listen(&lab, &live, &capture);

    let internet = [outside, outside_six].map(|address| server(&lab, "right", address, 4000));
    let flows = [(first, 0), (last, 0), (stranger, 0), (six, 1)].map(|(address, family)| {
        let client = client(&lab, "left", address, &internet[family]);
        exchange(&client, &internet[family], 100);
        client
    });
    let refused = server(&lab, "right", blocked, 4000);
    client(&lab, "left", first, &refused).send(&[1; 100]).unwrap();
    live.wait_for("it is blocked", |live| packets(live, "dropped") == 1.0);

    let before = plan(&csv, last);
    let line = csv.lines().last().unwrap();
    let (start, _) = line.rsplit_once(',').unwrap();
    let changed = match before {
        26 => "CS1",
        _ => "AF31",
    };
    fs::write(&file, csv.replace(line, &format!("{start},{changed}"))).unwrap();
    live.ctl(&["reload"]).expect_code(0);
    exchange(&flows[1], &internet[0], 100);
    // One wrong line in 100,001: nothing of the file is taken, and the rules go on that were there
    // before.
    let wrong = fs::read_to_string(&file).unwrap().replace(",AF11\n", ",AF14\n");
    fs::write(&file, &wrong).unwrap();
    let refused = live.ctl(&["reload"]).expect_code(78).stderr;
    let number = wrong.lines().position(|line| line.ends_with(",AF14"));
    let place = format!("subscribers.csv:{}: dscp: ", number.unwrap() + 1);
    assert!(refused.contains(&place) && refused.contains("AF14"), "{refused}");
    assert_eq!(refused.lines().count(), 1, "{refused}");
    assert_eq!(live.metric_sum("fenxi_policy_rules"), 100_002.0);
    exchange(&flows[0], &internet[0], 100);
    right.finish(&live);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);

    let after = match changed {
        "CS1" => 8,
        _ => 26,
    };
    assert_eq!(dscps(&capture, first), [(plan(&csv, first), 2)].into());
    assert_eq!(dscps(&capture, six), [(plan(&csv, first), 1)].into());
    assert_eq!(dscps(&capture, last), [(before, 1), (after, 1)].into());
    assert_eq!(dscps(&capture, stranger), [(1, 1)].into());
}
