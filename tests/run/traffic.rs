//! What the hosts of a lab say to each other: real programs, sockets, and captures sent frame by
//! frame.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use packetio::{Backend, CaptureReader, Received, Rx, Selection, Tx};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::lab::{Lab, Program};
use crate::common::{self, uninterrupted};

/// What [`Servers`] and those who ask them need.
pub const PROGRAMS: [&str; 5] = ["openssl", "curl", "dnsmasq", "dig", "ping"];

/// A table in which every label has the same value.
pub fn every_label(key: &str, value: &str) -> String {
    let labels = common::labels(&common::shipped_bundle());
    let labels: Vec<String> = labels.iter().map(|label| format!("\"{label}\" = {value}")).collect();
    format!("{key}={{ {} }}", labels.join(", "))
}

/// HTTPS and DNS, over IPv4 and IPv6.
pub struct Servers {
    dir: TempDir,
    sums: BTreeMap<&'static str, String>,
    _programs: Vec<Program>,
}

impl Servers {
    /// On a host, once they listen. `files` are the names and sizes of what HTTPS serves.
    pub fn start(lab: &Lab, host: &str, files: &[(&'static str, usize)]) -> Servers {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        lab.run(
            host,
            &format!(
                "cd {at}; ip link set lo up; openssl req -x509 -newkey ec -pkeyopt \
                 ec_paramgen_curve:P-256 -nodes \
                 -keyout key.pem -out cert.pem -days 1 -subj /CN=server 2>/dev/null"
            ),
        );
        let mut sums = BTreeMap::new();
        for (name, bytes) in files {
            let made =
                format!("cd {at}; head -c {bytes} /dev/urandom > {name}; sha256sum < {name}");
            sums.insert(*name, lab.run(host, &made));
        }
        let https = |family| {
            format!(
                "sh -c 'cd {at}; exec openssl s_server -{family} -accept 443 -key key.pem -cert \
                 cert.pem -WWW -quiet'"
            )
        };
        let dns = "dnsmasq --keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts \
            --user=root --pid-file= \
                   --address=/test/192.0.2.7";
        let programs = [https(4), https(6), dns.to_owned()].map(|line| lab.spawn(host, &line));
        lab.run(
            host,
            "listening() { ss -Hltn \"sport = :$1\" | wc -l; }; \
             for i in $(seq 300); do \
               [ $(listening 443) = 2 ] && [ $(listening 53) -ge 2 ] && exit; sleep 0.1; \
             done; ss -ltn >&2; exit 1",
        );
        Servers { dir, sums, _programs: programs.into() }
    }

    /// Fetches a file from them by HTTPS, and holds what comes against the file.
    pub fn fetch(&self, lab: &Lab, host: &str, address: &str, name: &str) {
        let address = bracketed(address);
        let file = self.path("fetched");
        let file = file.display();
        let fetch = format!(
            "curl -gfsSk --max-time 120 -o {file} https://{address}/{name}; sha256sum < {file}"
        );
        assert_eq!(lab.run(host, &fetch), self.sums[name], "{address} {name}");
    }

    /// A place for what a test keeps.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn bracketed(address: &str) -> String {
    match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    }
}

/// Asks for a name, by UDP and TCP.
pub fn ask_dns(lab: &Lab, host: &str, address: &str) {
    for by in ["+notcp", "+tcp"] {
        let answer =
            lab.run(host, &format!("dig {by} +short +tries=3 +time=10 @{address} some.test"));
        assert_eq!(answer, "192.0.2.7\n", "{address} {by}");
    }
}

/// Questions and answers in turn over UDP, each awaited; the client's socket and the server's.
pub fn ask_udp(lab: &Lab, [near, far]: [&str; 2], address: &str, rounds: usize) -> [UdpSocket; 2] {
    let far = lab.on(far, || patient_socket(address));
    let any = if address.contains(':') { "::" } else { "0.0.0.0" };
    let near = lab.on(near, || patient_socket(any));
    near.connect(far.local_addr().unwrap()).unwrap();
    let sockets = [near, far];
    ask(&sockets, rounds);
    sockets
}

/// More of them.
pub fn ask([near, far]: &[UdpSocket; 2], rounds: usize) {
    for round in 0..rounds {
        near.send(&vec![1; 20 + round]).unwrap();
        let (_, from) = uninterrupted(|| far.recv_from(&mut [0; 1500])).unwrap();
        far.send_to(&vec![2; 400 + round], from).unwrap();
        uninterrupted(|| near.recv(&mut [0; 1500])).unwrap();
    }
}

/// A UDP socket of this thread's namespace, with a port of its own, that waits long enough and no
/// longer.
pub fn patient_socket(address: &str) -> UdpSocket {
    let address: IpAddr = address.parse().unwrap();
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let patience = Some(Duration::from_secs(30));
    socket.set_read_timeout(patience).unwrap();
    socket
}

/// A TCP connection; the client's end and the server's.
pub fn connect(lab: &Lab, [near, far]: [&str; 2], address: &str) -> [TcpStream; 2] {
    let address: IpAddr = address.parse().unwrap();
    let listener = lab.on(far, || TcpListener::bind((address, 0)).unwrap());
    let server = listener.local_addr().unwrap();
    let near = lab.on(near, || TcpStream::connect(server).unwrap());
    [near, listener.accept().unwrap().0]
}

/// Sends a capture out of an interface of this thread's namespace; the packets sent.
pub fn send(capture: &Path, interface: &str) -> u64 {
    // veth hands frames over by the queue of the CPU that sends; from two of them they could
    // overtake each other.
    let mut cpu = CpuSet::new();
    cpu.set(0);
    sched_setaffinity(None, &cpu).unwrap();
    let mut reader = CaptureReader::open(capture).unwrap();
    let mut out = transmit(interface);
    while let Received::Burst(burst) = reader.receive(32).unwrap() {
        out.send(&burst, Selection::All).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let counts = out.counts();
    assert_eq!(counts.unsent(), 0);
    counts.sent
}

/// A way out of an interface of this thread's namespace.
pub fn transmit(interface: &str) -> Box<dyn Tx> {
    packetio::open_tx(<&Backend>::default(), interface).unwrap()
}

/// Fields of flow records that depend on the packets only.
pub const OF_PACKETS: [&str; 8] = [
    "series",
    "packets_fwd",
    "packets_rev",
    "bytes_fwd",
    "bytes_rev",
    "midstream",
    "one_way",
    "final",
];

/// Some fields of flow records, by the flow's ends.
pub type Flows = BTreeMap<String, Vec<String>>;

/// The fields with these names, or paths.
pub fn fields(path: &Path, names: &[&str]) -> Flows {
    let mut flows = Flows::new();
    for record in common::json_lines(path) {
        let of = |names: &[&str]| -> String {
            let values = names.iter().map(|name| {
                let value = record.pointer(&format!("/{name}"));
                value.map(Value::to_string).unwrap_or_default()
            });
            values.collect::<Vec<_>>().join(" ")
        };
        if record["type"] == "flow" {
            let ends = of(&["src", "src_port", "dst", "dst_port", "proto"]);
            flows.entry(ends).or_default().push(of(names));
        }
    }
    flows
}

/// The label, and what depends on the packets only.
pub fn flows(path: &Path) -> Flows {
    fields(path, &[&["label", "confidence"][..], &OF_PACKETS].concat())
}

/// Panics with the differences.
pub fn assert_same_flows(live: &Path, replayed: &Path) {
    assert_same(&flows(live), &flows(replayed));
}

/// Panics with the differences.
pub fn assert_same(live: &Flows, replayed: &Flows) {
    let names = live.keys().chain(replayed.keys());
    let differ: Vec<_> = names
        .filter(|name| live.get(*name) != replayed.get(*name))
        .map(|name| (name, live.get(name), replayed.get(name)))
        .collect();
    assert!(differ.is_empty(), "{} of {}: {differ:#?}", differ.len(), live.len());
}

/// Short messages in turn over a connection, each awaited.
pub fn talk([mut near, mut far]: [&TcpStream; 2], rounds: usize) {
    let mut message = [7; 100];
    for _ in 0..rounds {
        near.write_all(&message).unwrap();
        far.read_exact(&mut message).unwrap();
        far.write_all(&message).unwrap();
        near.read_exact(&mut message).unwrap();
    }
}

/// Sends bytes over a connection, and holds what arrives against them.
pub fn stream(mut near: TcpStream, mut far: TcpStream, bytes: usize) {
    let content = |at: usize| (at.wrapping_mul(2_654_435_761) >> 7) as u8;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let sent: Vec<u8> = (0..bytes).map(content).collect();
            near.write_all(&sent).unwrap();
        });
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), bytes);
        let differs = received.iter().enumerate();
        assert_eq!(differs.filter(|(at, byte)| **byte != content(*at)).count(), 0);
    });
}
