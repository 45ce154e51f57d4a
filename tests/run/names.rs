//! Names of hosts: a client that gets its IPv4 address by DHCP and its IPv6 address by SLAAC from a
//! dnsmasq is one named host everywhere, and a hostile name does no harm anywhere.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::lab::{Lab, Program};
use crate::common::live::Live;
use crate::common::{self};
use crate::run::traffic::connect;

/// What a host that means ill is called, by a file of Kea's leases, and how it is kept.
const EVIL: &str = "<img src=x>\"\u{1b}[2J\u{202e}{}";
const KEPT: &str = "<img src=x>\"\u{fffd}[2J\u{fffd}{}";

const TOOLS: [&str; 2] = ["dnsmasq", "busybox"];

/// A router with a client, which gets its addresses from dnsmasq there, and a guest.
struct Network {
    lab: Lab,
    dir: TempDir,
    /// The client's addresses.
    v4: String,
    v6: String,
    _dnsmasq: Program,
}

impl Network {
    fn start() -> Option<Network> {
        let lab = Lab::new("names", &["router", "client", "guest"], &TOOLS)?;
        let dir = tempfile::tempdir().unwrap();
        for host in ["router", "client"] {
            for (key, value) in [
                ("all/disable_ipv6", "0"),
                ("default/disable_ipv6", "0"),
                ("default/accept_dad", "0"),
                ("default/accept_ra", if host == "client" { "1" } else { "0" }),
            ] {
                lab.set(host, &format!("ipv6/conf/{key}"), value);
            }
        }
        lab.wire("client", "eth", "router", "in");
        lab.wire("guest", "eth", "router", "side");
        lab.run(
            "router",
            "ip addr add 10.79.0.1/24 dev in; ip addr add 10.79.0.200/24 dev in
             ip addr add fd79::1/64 dev in nodad; ip addr add 10.80.0.1/24 dev side",
        );
        lab.run("guest", "ip addr add 10.80.0.2/24 dev eth");
        let at = dir.path().display();
        let kea = format!(
            "address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,\
             state,user_context\n10.80.0.2,,,4000,9999999999,1,0,0,{EVIL},0,\n"
        );
        std::fs::write(dir.path().join("kea-leases4.csv"), kea).unwrap();
        let script =
            "#!/bin/sh\nif [ \"$1\" = bound ]; then ip addr add $ip/24 dev $interface; fi\n";
        std::fs::write(dir.path().join("bound"), script).unwrap();
        let dnsmasq = lab.spawn(
            "router",
            &format!(
                "dnsmasq --keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts \
                 --user=root --pid-file= --interface=in --except-interface=lo --bind-interfaces \
                 --enable-ra --dhcp-range=10.79.0.50,10.79.0.99,1h --dhcp-range=fd79::,ra-only \
                 --dhcp-authoritative --address=/shop.example/10.79.0.200 \
                 --dhcp-leasefile={at}/leases"
            ),
        );
        lab.run(
            "client",
            &format!(
                "chmod +x {at}/bound
                 busybox udhcpc -i eth -f -n -q -t 60 -T 1 -x hostname:laptop -s {at}/bound"
            ),
        );
        let v4 = address(&lab, "-4");
        let v6 = address(&lab, "-6");
        Some(Network { lab, dir, v4, v6, _dnsmasq: dnsmasq })
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// A fenxi on the router that knows the leases and listens to answers.
    fn fenxi(&self) -> Live {
        let leases =
            format!("names.leases={:?}", [self.path("leases"), self.path("kea-leases4.csv")]);
        let records = self.path("records");
        let args =
            ["--flows", &records, "--set", "io.interfaces=[\"in\",\"side\"]", "--set", &leases];
        let more = ["--set", "names.dns=true", "--set", "names.metrics=10"];
        Live::start(&self.lab, "router", &[&args[..], &more, &common::SIMULATED].concat())
    }
}

/// The client's global address, once it has one.
fn address(lab: &Lab, family: &str) -> String {
    let began = Instant::now();
    loop {
        let shown = lab.run("client", &format!("ip {family} -o addr show dev eth scope global"));
        if let Some(address) = shown.split_whitespace().find(|word| word.contains('/')) {
            return address.split('/').next().unwrap().to_owned();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no address of {family}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks the router for the address of shop.example.
fn ask_dns(lab: &Lab) {
    let asked = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04shop\x07example\x00\x00\x01\
        \x00\x01";
    lab.on("client", || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.send_to(asked, "10.79.0.1:53").unwrap();
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).unwrap();
        assert!(answer[..length].ends_with(&[10, 79, 0, 200]), "{:?}", &answer[..length]);
    });
}

fn rows(live: &Live, args: &[&str]) -> Vec<Value> {
    let args = [args, &["--json", "-n", "100"]].concat();
    let json = live.ctl(&args).expect_code(0).json();
    json[args[0]].as_array().unwrap().clone()
}

fn page(live: &Live, path: &str) -> String {
    let mut stream = UnixStream::connect(live.http()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

fn top(live: &Live) -> String {
    let mut command = common::fenxi(["top", "--once", "--socket"]);
    command.arg(live.socket()).env("COLUMNS", "180").env("LINES", "60");
    common::run(command).expect_code(0).stdout
}

#[test]
fn a_host_is_one_by_name_everywhere_and_a_hostile_name_is_text() {
    let Some(network) = Network::start() else { return };
    let (lab, live) = (&network.lab, network.fenxi());
    ask_dns(lab);
    let flow = |near: &str, to: &str| {
        let mut ends = connect(lab, [near, "router"], to);
        ends[0].write_all(b"hello").unwrap();
        ends
    };
    let open = [
        flow("client", "10.79.0.1"),
        flow("client", "fd79::1"),
        flow("client", "10.79.0.200"),
        flow("guest", "10.80.0.1"),
    ];

    let ends = |row: &Value| [row["src_name"].clone(), row["dst_name"].clone()];
    let to = |rows: &[Value], address: &str| {
        let start = |row: &&Value| row["dst"].as_str().unwrap().starts_with(address);
        rows.iter().filter(|row| row["proto"] == 6).find(start).map(ends)
    };
    let laptop = Value::from("laptop");
    live.wait_for("both addresses and the shop have names", |live| {
        let rows = rows(live, &["flows"]);
        to(&rows, "10.79.0.1:").is_some_and(|[src, _]| src == laptop)
            && to(&rows, "[fd79::1]:").is_some_and(|[src, _]| src == laptop)
            && to(&rows, "10.79.0.200:").is_some_and(|ends| ends == ["laptop", "shop.example"])
            && to(&rows, "10.80.0.1:").is_some_and(|[src, _]| src == KEPT)
    });

    // One host.
    let hosts = rows(&live, &["hosts"]);
    let host = hosts.iter().find(|host| host["name"] == "laptop").unwrap();
    let addresses: Vec<_> = host["addresses"].as_array().unwrap().iter().collect();
    assert!(addresses.contains(&&network.v4.as_str().into()), "{host}");
    assert!(addresses.contains(&&network.v6.as_str().into()), "{host}");
    let mac = lab.run("client", "cat /sys/class/net/eth/address");
    assert_eq!(host["mac"], mac.trim());
    assert!(host["flows"].as_u64().unwrap() >= 3, "{host}");
    let of_host = rows(&live, &["flows", "--host", "LAPTOP"]);
    assert!(to(&of_host, "10.79.0.1:").is_some() && to(&of_host, "[fd79::1]:").is_some());
    assert!(to(&of_host, "10.80.0.1:").is_none());
    let nobody = live.ctl(&["flows", "--host", "nobody"]).expect_code(65);
    assert!(nobody.stderr.contains("no host \"nobody\""), "{}", nobody.stderr);

    // In all that people read, and what they read stays a text.
    let of_guest = rows(&live, &["flows", "--host", "10.80.0.2"]);
    let explained =
        |row: &Value| live.ctl(&["explain", &row["flow_id"].to_string()]).expect_code(0).stdout;
    let of_laptop = explained(&of_host[0]);
    assert!(of_laptop.contains(&format!("client   laptop, {}, ", network.v4)), "{of_laptop}");
    let screen = top(&live);
    assert_eq!(screen.lines().filter(|line| line.contains(" laptop ")).count(), 1, "{screen}");
    assert!(screen.contains("laptop:") && screen.contains("shop.example:"), "{screen}");
    let texts = [
        live.ctl(&["hosts"]).expect_code(0).stdout,
        live.ctl(&["flows"]).expect_code(0).stdout,
        explained(&of_guest[0]),
        screen,
    ];
    for text in texts {
        assert!(text.contains("<img src=x>\"\u{fffd}[2J"), "{text}");
        let is_harmless = |c: char| c == '\n' || !console::text::is_unsafe(c);
        assert!(text.chars().all(is_harmless), "{text:?}");
    }
    let page_of_run = page(&live, "/");
    assert!(page_of_run.contains("&lt;img src=x&gt;&quot;"), "{page_of_run}");
    assert!(page_of_run.contains("laptop") && !page_of_run.contains("<img"), "{page_of_run}");
    let metrics = live.scrape();
    let metric = |name: &str| format!("fenxi_host_bytes_per_second{{host=\"{name}\",address=\"");
    assert!(metrics.contains(&metric("laptop")), "{metrics}");
    assert!(metrics.contains(&metric(&KEPT.replace('"', "\\\""))), "{metrics}");
    assert!(live.samples_with("fenxi_names", "source=\"answer\"")[0] >= 1.0);

    drop(open);
    live.terminate(0);
    let records = common::json_lines(std::path::Path::new(&network.path("records")));
    let of = |address: &str| {
        let rows = records.iter().filter(|record| record["type"] == "flow");
        let found = rows.filter(|row| row["dst"] == address && row["proto"] == 6).map(ends).next();
        found.unwrap_or_else(|| panic!("no flow to {address}: {records:?}"))
    };
    assert_eq!((&of("10.79.0.1")[0], &of("fd79::1")[0]), (&laptop, &laptop));
    assert_eq!(of("10.79.0.200"), ["laptop", "shop.example"]);
    assert_eq!(of("10.80.0.1")[0], KEPT);
}
