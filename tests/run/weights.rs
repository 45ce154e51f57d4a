//! Weights of a program in Python reach a map of nftables, and with it new connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::lab::{self, Lab};
use crate::common::live::{Live, fenxi_on};
use crate::common::{self, root};
use crate::run::mark::mark_at;

const PATIENCE: Duration = Duration::from_secs(60);
/// Seconds that weights are valid where their end is of no concern.
const LONG: f64 = 600.0;

const RULES: &str = "table ip balance {
    map servers { typeof numgen inc mod 256 : ip daddr; }
    chain to { type nat hook prerouting priority dstnat;
        tcp dport 80 dnat to jhash ip saddr . tcp sport mod 256 map @servers
    }
}";

/// A client, a router with rules, and two servers on one host, of which the first gets all static
/// weight; and where the socket is.
struct Setting {
    lab: Lab,
    folder: TempDir,
    python: PathBuf,
}

impl Setting {
    fn new(test: &str) -> Option<Setting> {
        let venv = root().join("target/venv/bin/python");
        let python = if venv.exists() { venv } else { "python3".into() };
        let numpy = Command::new(&python).args(["-c", "import numpy"]).output();
        if !numpy.is_ok_and(|output| output.status.success()) {
            lab::skip(test, "Python's numpy");
            return None;
        }
        let lab = Lab::routed(test, false, &[])?;
        lab.run("server", "ip addr add 10.77.2.3/24 dev eth");
        lab.on("server", || {
            let listener = TcpListener::bind("0.0.0.0:80").unwrap();
            std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
        });
        let folder = tempfile::tempdir().unwrap();
        // Other users have to reach the socket.
        let mode = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), mode).unwrap();
        Some(Setting { lab, folder, python })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("weights")
    }

    fn arguments(&self, owner: &str) -> Vec<String> {
        let sets = [
            "io.mode=tap".to_owned(),
            "io.interfaces=[\"out\"]".to_owned(),
            "weights.web.map=ip balance servers".to_owned(),
            "weights.web.servers={ \"10.77.2.2:80\" = 3, \"10.77.2.3:80\" = 0 }".to_owned(),
            format!("weights.web.owner={owner}"),
            format!("weights.web.socket={}", self.socket().display()),
            "service.web.servers=[\"10.77.2.0/24\"]".to_owned(),
            format!("observe.folder={}", self.folder.path().join("services").display()),
        ];
        sets.into_iter().flat_map(|set| ["--set".to_owned(), set]).collect()
    }

    fn start(&self, owner: &str) -> Live {
        let args = self.arguments(owner);
        Live::start(&self.lab, "router", &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn connect(&self) -> Connection {
        self.lab.on("client", || {
            let service: SocketAddr = "10.77.1.1:80".parse().unwrap();
            Connection(TcpStream::connect_timeout(&service, PATIENCE).unwrap())
        })
    }

    /// Waits until ten new connections in a row reach this server.
    fn wait_for_server(&self, server: u8) {
        let began = Instant::now();
        let mut in_a_row = 0;
        while in_a_row < 10 {
            assert!(began.elapsed() < PATIENCE, "new connections do not reach server {server}");
            in_a_row = if self.connect().server() == server { in_a_row + 1 } else { 0 };
        }
    }

    fn slots_of(&self, server: u8) -> usize {
        let listed = self.lab.run("router", "nft list map ip balance servers");
        listed.matches(&format!(": 10.77.2.{server}")).count()
    }
}

/// Answers each byte with the last byte of the server's address.
fn serve(mut stream: TcpStream) {
    std::thread::spawn(move || {
        let SocketAddr::V4(own) = stream.local_addr()? else {
            return Ok(());
        };
        while stream.read(&mut [0])? > 0 {
            stream.write_all(&own.ip().octets()[3..])?;
        }
        Ok::<_, std::io::Error>(())
    });
}

struct Connection(TcpStream);

impl Connection {
    /// 2 or 3: the last byte of the address of the server at the other end.
    fn server(&mut self) -> u8 {
        let mut byte = [0];
        self.0.write_all(&byte).unwrap();
        self.0.read_exact(&mut byte).unwrap();
        byte[0]
    }
}

/// A program with the memory, killed when dropped.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn command(setting: &Setting, user: u32) -> Command {
        let mut command = Command::new(&setting.python);
        command.arg(root().join("tests/run/weights.py")).arg(setting.socket());
        command.arg(user.to_string());
        command.env("PYTHONPATH", root().join("crates/observe/python"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(setting: &Setting, user: u32) -> Program {
        let mut child = Program::command(setting, user).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { child, input, output };
        assert_eq!(program.line(), "10.77.2.2:80 10.77.2.3:80");
        program
    }

    /// What a program says that gets nothing.
    fn refused(setting: &Setting, user: u32) -> String {
        let output = Program::command(setting, user).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn publish(&mut self, valid_s: f64, weights: &[f64]) {
        let weights: Vec<String> = weights.iter().map(f64::to_string).collect();
        writeln!(self.input, "{valid_s} {}", weights.join(" ")).unwrap();
        assert_eq!(self.line(), "published");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refusals(live: &Live, reason: &str) -> f64 {
    live.samples_with("fenxi_weights_refused_total", &format!("reason=\"{reason}\""))[0]
}

fn changes(live: &Live, outcome: &str) -> f64 {
    live.samples_with("fenxi_weights_changes_total", &format!("outcome=\"{outcome}\""))[0]
}

fn is_by_program(live: &Live) -> bool {
    live.metric_sum("fenxi_weights_by_program") == 1.0
}

/// Takes a connection to each server; they must stay.
fn old(setting: &Setting, program: &mut Program) -> [Connection; 2] {
    [[1.0, 0.0], [0.0, 1.0]].map(|weights| {
        program.publish(LONG, &weights);
        setting.wait_for_server(2 + weights[1] as u8);
        setting.connect()
    })
}

fn assert_stay(old: &mut [Connection; 2]) {
    assert_eq!([old[0].server(), old[1].server()], [2, 3]);
}

#[test]
fn new_connections_follow_weights_unless_these_are_bad() {
    let Some(setting) = Setting::new("weights") else { return };
    setting.lab.nft("router", RULES);
    let live = setting.start("");
    setting.wait_for_server(2);
    assert!(!is_by_program(&live));
    let mut program = Program::start(&setting, 0);
    let mut old = old(&setting, &mut program);
    live.wait_for("its weights apply", is_by_program);
    let wrong: [(&str, f64, &[f64]); 7] = [
        ("not_a_number", LONG, &[1.0, f64::NAN]),
        ("negative", LONG, &[1.0, -0.1]),
        ("infinite", LONG, &[f64::INFINITY, 1.0]),
        ("all_zero", LONG, &[0.0, 0.0]),
        ("unwritten", LONG, &[1.0]),
        ("late", -1.0, &[0.0, 1.0]),
        // The program lives on, but what it said is over.
        ("late", 0.5, &[0.0, 1.0]),
    ];
    for (number, (reason, valid_s, weights)) in wrong.into_iter().enumerate() {
        let before = refusals(&live, reason);
        program.publish(valid_s, weights);
        live.wait_for(reason, |live| refusals(live, reason) > before);
        live.wait_for("it is logged", |live| live.said("static weights apply") > number);
        setting.wait_for_server(2);
        live.wait_for("static weights apply", |live| !is_by_program(live));
        assert_stay(&mut old);
        program.publish(LONG, &[0.0, 0.5]);
        setting.wait_for_server(3);
        live.wait_for("that it is back is logged", |live| {
            live.said("the weights of the program apply") >= number + 2
        });
    }
    program.publish(LONG, &[1.0, 2.0]);
    live.wait_for("they are shared", |_| setting.slots_of(3) == 171);
    live.wait_for("the share follows", |live| {
        let share = live.samples_with("fenxi_weights_share_ratio", "10.77.2.2:80")[0];
        (share - 1.0 / 3.0).abs() < 1e-9
    });
    let services = live.ctl(&["services", "--json"]).expect_code(0).json();
    for (server, weight) in [("10.77.2.2", 1.0), ("10.77.2.3", 2.0)] {
        let mut rows = services["services"][0]["egresses"].as_array().unwrap().iter();
        let row = rows.find(|row| row["egress"] == server).unwrap();
        assert_eq!(row["weight"], weight, "{services}");
    }
    assert_stay(&mut old);
    assert_eq!(changes(&live, "failed"), 0.0);
    live.terminate(0);
    // Nobody looks after the program any more.
    assert_eq!([setting.slots_of(2), setting.slots_of(3)], [256, 0]);
}

#[test]
fn a_program_that_dies_or_hangs_makes_room() {
    let Some(setting) = Setting::new("programs") else { return };
    setting.lab.nft("router", RULES);
    let live = setting.start("");
    let mut program = Program::start(&setting, 0);
    let mut old = old(&setting, &mut program);
    assert!(Program::refused(&setting, 0).contains("another program gives weights"));
    assert_eq!(live.samples_with("fenxi_weights_turned_away_total", "reason=\"taken\""), [1.0]);

    program.signal(Signal::KILL);
    setting.wait_for_server(2);
    live.wait_for("it is counted", |live| refusals(live, "gone") == 1.0);
    assert_stay(&mut old);

    let mut hanging = Program::start(&setting, 0);
    hanging.publish(LONG, &[0.0, 1.0]);
    setting.wait_for_server(3);
    hanging.signal(Signal::STOP);
    setting.wait_for_server(2);
    live.wait_for("it is counted as dead", |live| refusals(live, "dead") >= 1.0);
    assert_stay(&mut old);
    let mut next = Program::start(&setting, 0);
    next.publish(LONG, &[0.0, 1.0]);
    setting.wait_for_server(3);
    // It has nothing to say any more, and learns that.
    hanging.signal(Signal::CONT);
    writeln!(hanging.input, "{LONG} 1 0").unwrap();
    assert!(!hanging.child.wait().unwrap().success());
    setting.wait_for_server(3);
    assert_stay(&mut old);
    live.terminate(0);
}

#[test]
fn only_the_owner_gets_the_memory() {
    let Some(setting) = Setting::new("owner") else { return };
    setting.lab.nft("router", RULES);
    let live = setting.start("daemon");
    for user in [2, 65534] {
        assert!(Program::refused(&setting, user).contains("this user is not the owner"));
    }
    assert_eq!(live.samples_with("fenxi_weights_turned_away_total", "reason=\"user\""), [2.0]);
    // The user `daemon` has this number everywhere.
    let mut program = Program::start(&setting, 1);
    program.publish(LONG, &[0.0, 1.0]);
    setting.wait_for_server(3);
    assert!(Program::refused(&setting, 65534).contains("this user is not the owner"));
    live.terminate(0);
}

#[test]
fn what_others_change_in_the_map_is_put_right() {
    let Some(setting) = Setting::new("repair") else { return };
    let lab = &setting.lab;
    let check = || {
        let mut command = fenxi_on(lab, "router", &[]);
        command.arg("check").args(setting.arguments(""));
        for (key, kind) in [("http", "unix:"), ("socket", "")] {
            let path = setting.folder.path().join(key);
            command.args(["--set", &format!("control.{key}={kind}{}", path.display())]);
        }
        common::run(command)
    };
    let missing = check().expect_code(78).stderr;
    let says = "weights.web: there is no map ip balance servers; add it: nft";
    assert!(missing.contains(says), "{missing}");
    lab.nft("router", RULES);
    check().expect_code(0);

    let live = setting.start("");
    let change = "nft 'delete element ip balance servers { 0, 1, 2 };
        add element ip balance servers { 0 : 192.0.2.1, 1 : 10.77.2.3 }'";
    lab.run("router", change);
    live.wait_for("the slots are put right", |live| changes(live, "repaired") == 1.0);
    assert_eq!(setting.slots_of(2), 256);
    live.wait_for("that is logged", |live| live.said("another program changes slots") == 1);

    lab.run("router", "nft delete table ip balance");
    live.wait_for("the map is missed", |live| changes(live, "failed") > 1.0);
    assert_eq!(live.said("the map ip balance servers is gone; load its ruleset again"), 1);
    lab.nft("router", RULES);
    live.wait_for("the map is written again", |_| setting.slots_of(2) == 256);
    live.wait_for("that is logged", |live| live.said("the map has its weights again") == 1);
    live.terminate(0);
}

/// A program marks connections that begin, as far as it may.
#[test]
fn flows_that_begin_get_the_actions_of_their_server() {
    let Some(setting) = Setting::new("actions") else { return };
    // Connections to the servers themselves go where they are meant to go.
    let rules = RULES.replace("tcp dport", "ip daddr 10.77.1.1 tcp dport");
    setting.lab.nft("router", &rules);
    let mut args = setting.arguments("");
    let sets = [
        "io.mode=mark",
        "mark.mask=0xff000000",
        "mark.class={ \"DNS\" = 0x01000000 }",
        "weights.web.actions=[\"mark\"]",
    ];
    args.extend(sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let live = Live::start(&setting.lab, "router", &args);
    let mut program = Program::start(&setting, 0);
    let connect = |server: u8| {
        setting.lab.on("client", || {
            let address = SocketAddr::from(([10, 77, 2, server], 80));
            let mut connection =
                Connection(TcpStream::connect_timeout(&address, PATIENCE).unwrap());
            connection.server();
            connection
        })
    };
    // The other bits are not fenxi's.
    let mark = |connection: &Connection| {
        mark_at(&setting.lab, connection.0.local_addr().unwrap()) & 0xff00_0000
    };
    let mut old = connect(3);
    program.publish(LONG, &[1.0, 1.0, 0x0200_0000 as f64, 0x0500_0000 as f64]);
    live.wait_for("its weights apply", is_by_program);
    let new = [connect(2), connect(3)];
    live.wait_for("they are marked", |_| {
        [mark(&new[0]), mark(&new[1])] == [0x0200_0000, 0x0500_0000]
    });
    // Packets of a connection that was there change nothing.
    old.server();
    // Bits that are not fenxi's: then nothing counts.
    program.publish(LONG, &[1.0, 1.0, 0x0200_0000 as f64, 1.0]);
    live.wait_for("static weights apply", |live| !is_by_program(live));
    assert_eq!(refusals(&live, "action"), 1.0);
    assert_eq!(live.said("static weights apply: an action is none, or not allowed"), 1);
    let unmarked = connect(3);
    program.publish(LONG, &[1.0, 1.0, 0x0300_0000 as f64, 0x0400_0000 as f64]);
    live.wait_for("its weights apply again", is_by_program);
    let last = connect(3);
    live.wait_for("it is marked", |_| mark(&last) == 0x0400_0000);
    assert_eq!([&old, &unmarked].map(mark), [0, 0]);
    assert_eq!(mark(&new[1]), 0x0500_0000);
    live.terminate(0);
}

/// Nothing is left of the socket.
#[test]
fn the_socket_goes_with_the_run() {
    let Some(setting) = Setting::new("socket") else { return };
    setting.lab.nft("router", RULES);
    let live = setting.start("");
    let is_there = |path: &Path| path.exists();
    assert!(is_there(&setting.socket()));
    live.terminate(0);
    assert!(!is_there(&setting.socket()));
}
