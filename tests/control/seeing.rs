//! What people look at: the live view in a terminal, the page in a browser, and explanations of
//! flows.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use packetio::CaptureFormat;
use serde_json::Value;

use crate::common::packets::{ETHERNET, capture, ethernet, ipv4, timed, udp};
use crate::common::{demo, fenxi, root, run, skip};
use crate::control::{PATIENCE, Served};

/// A terminal that tmux keeps, gone with this.
pub struct Terminal {
    name: String,
}

impl Terminal {
    /// A terminal of 80 by 24 that runs the command; `None`: there is no tmux.
    pub fn start(test: &str, command: &str) -> Option<Terminal> {
        let name = format!("fenxi-{test}-{}", std::process::id());
        let terminal = Terminal { name };
        let size = ["-x", "80", "-y", "24"];
        let mut start = terminal.tmux(&["-f", "/dev/null", "new-session", "-d"]);
        let started = start.args(size).arg(command).env("TERM", "xterm").status();
        if !started.is_ok_and(|status| status.success()) {
            skip(test, "tmux");
            return None;
        }
        Some(terminal)
    }

    fn tmux(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.name]).args(args);
        command
    }

    /// What stands on the screen; with `-e`, with its escape sequences.
    fn screen(&self, args: &[&str]) -> String {
        let mut command = self.tmux(&["capture-pane", "-p"]);
        let output = command.args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, keys: &str) {
        assert!(self.tmux(&["send-keys", keys]).status().unwrap().success());
    }

    fn resize(&self, columns: &str, lines: &str) {
        let mut resize = self.tmux(&["resize-window", "-x", columns, "-y", lines]);
        assert!(resize.status().unwrap().success());
    }

    pub fn wait_for(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen(&[]);
            if is_so(&screen) {
                return screen;
            }
            assert!(began.elapsed() < PATIENCE, "{what}:\n{screen}");
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).status();
    }
}

fn has_flows(served: &Served) -> bool {
    served.scrape().sum("fenxi_flow_table_entries", "") > 3.0
}

#[test]
fn flows_of_the_table_come_with_rate_and_age() {
    let mut served = Served::start(&["--speed", "real"]);
    served.wait_for("flows are in the table", has_flows);
    let flows = || -> Vec<Value> {
        let reply = served.ctl(&["flows", "--top", "1000", "--json"]);
        reply.expect_code(0).json()["flows"].as_array().unwrap().clone()
    };
    let rows = flows();
    let live: Vec<&Value> = rows.iter().filter(|row| row["end_reason"].is_null()).collect();
    assert!(!live.is_empty(), "{rows:?}");
    let rates: Vec<f64> = live.iter().map(|row| row["bytes_per_s"].as_f64().unwrap()).collect();
    assert!(rates.is_sorted_by(|a, b| a >= b), "{rates:?}");
    for row in &live {
        assert!(row["packets"].as_u64() > Some(0) && row["bytes"].as_u64() > Some(0), "{row}");
        assert!(row["age_s"].as_f64() >= row["idle_s"].as_f64(), "{row}");
        assert!(["TCP", "UDP", "ICMP"].contains(&row["transport"].as_str().unwrap()), "{row}");
        assert_eq!(row["label"].is_null(), row["no_label"].is_string(), "{row}");
        assert_eq!(row["label"].is_null(), row["decided_by"].is_null(), "{row}");
    }
    // The flows of one host, and of a label in another case.
    let host = live[0]["host"].as_str().unwrap();
    let of_host = served.ctl(&["flows", "--host", host, "--json"]).expect_code(0).json();
    let of_host = of_host["flows"].as_array().unwrap().clone();
    assert!(!of_host.is_empty() && of_host.iter().all(|row| row["host"] == host));
    let labelled = rows.iter().find_map(|row| row["label"].as_str());
    if let Some(label) = labelled {
        let page = served.ctl(&["flows", "--label", &label.to_lowercase()]).expect_code(0).stdout;
        assert!(page.lines().skip(1).all(|line| line.contains(label)), "{page}");
    }
    let page = served.ctl(&["flows"]).expect_code(0).stdout;
    assert!(page.starts_with("flow ") && page.contains("B/s"), "{page}");
    // Other orders, and the flows of a port.
    let live = |args: &[&str]| -> Vec<Value> {
        let args = [&["flows", "--top", "1000", "--json"], args].concat();
        let mut rows = served.ctl(&args).expect_code(0).json()["flows"].take();
        let rows = rows.as_array_mut().unwrap();
        rows.drain(..).filter(|row| row["end_reason"].is_null()).collect()
    };
    let bytes = |rows: &[Value]| -> Vec<u64> {
        rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect()
    };
    assert!(bytes(&live(&["--sort", "bytes"])).is_sorted_by(|a, b| a >= b));
    assert!(bytes(&live(&["--sort", "bytes", "--reverse"])).is_sorted());
    let ends = live(&["--port", "80", "--sort", "to"]);
    assert!(ends.iter().all(|row| row.to_string().contains(":80\"")), "{ends:?}");
    let refused = served.ctl(&["flows", "--sort", "colour"]).expect_code(64).stderr;
    assert!(refused.contains("rate, packets, bytes"), "{refused}");
    let refused = served.ctl(&["flows", "--dscp", "AF44"]).expect_code(64).stderr;
    assert!(refused.contains("expected a DSCP name such as EF"), "{refused}");
}

#[test]
fn top_shows_the_run_in_a_terminal_and_leaves_it_as_it_was() {
    let mut served = Served::start(&["--speed", "real"]);
    served.wait_for("flows are in the table", has_flows);
    let command = format!(
        "sh -c 'NO_COLOR=1 {} top -n 1 --socket {}; echo left with $?; sleep 60'",
        env!("CARGO_BIN_EXE_fenxi"),
        served.ctl_path().display()
    );
    let Some(terminal) = Terminal::start("top", &command) else {
        return;
    };
    let parts = ["fenxi ", "LABEL", "HOST", "FLOWS by rate", "1 overview", "s sort", "q quit"];
    let screen = terminal.wait_for("the overview", |screen| {
        parts.iter().all(|part| screen.contains(part)) && screen.matches(" TCP ").count() > 2
    });
    assert!(screen.contains("pps"), "{screen}");
    let sequences = terminal.screen(&["-e"]);
    let has_colour = |code: u8| sequences.contains(&format!("\u{1b}[{code}m"));
    assert!(!(30..=37).any(has_colour), "NO_COLOR means none: {sequences:?}");
    terminal.press("s");
    terminal.wait_for("sorted by bytes", |screen| screen.contains("FLOWS by bytes"));
    terminal.press("5");
    terminal.wait_for("devices and losses", |screen| {
        screen.contains("simulated: up") && screen.contains("packets before they were read")
    });
    terminal.press("p");
    terminal.wait_for("it is paused", |screen| screen.contains("PAUSED"));
    terminal.press("p");
    terminal.press("1");
    // A terminal of 20 by 5 gets the essentials.
    terminal.resize("20", "5");
    terminal.wait_for("a few lines", |screen| {
        screen.contains("q quits") && screen.contains("pps") && !screen.contains("LABEL")
    });
    terminal.resize("80", "24");
    terminal.wait_for("the overview again", |screen| screen.contains("FLOWS by bytes"));
    // The run ends, and top says so and goes on trying.
    served.drain();
    terminal.wait_for("the connection is lost", |screen| screen.contains("no fenxi listens"));
    terminal.press("q");
    let screen = terminal.wait_for("the shell again", |screen| screen.contains("left with 0"));
    assert!(!screen.contains("FLOWS by"), "the screen before is back:\n{screen}");
}

#[test]
fn top_ends_with_its_terminal() {
    let served = Served::start(&["--speed", "real"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let command = format!(
        "sh -c 'echo $$ > {}; exec {} top -n 1 --socket {}'",
        file.display(),
        env!("CARGO_BIN_EXE_fenxi"),
        served.ctl_path().display()
    );
    let Some(terminal) = Terminal::start("hangup", &command) else {
        return;
    };
    terminal.wait_for("the overview", |screen| screen.contains("q quit"));
    let pid = fs::read_to_string(&file).unwrap();
    let process = Path::new("/proc").join(pid.trim());
    assert!(process.exists());
    drop(terminal);
    let began = Instant::now();
    while process.exists() {
        assert!(began.elapsed() < PATIENCE, "{} goes on", process.display());
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn top_scrolls_through_ten_thousand_flows() {
    // All within a second; then one more packet keeps the replay going.
    let mut frames = timed(
        ETHERNET,
        (0..=10_000_u16).map(|number| {
            let port = 20_000 + number % 10_000;
            ethernet(0x0800, &ipv4([1, 2], 17, &udp([port, 5000], 100)))
        }),
    );
    let start_us = frames[0].0.time_us;
    for (number, (frame, _)) in frames.iter_mut().enumerate() {
        frame.time_us = start_us + number as i64 * if number == 10_000 { 30_000 } else { 100 };
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("many.pcap");
    let format = CaptureFormat::Pcap { nanosecond: true };
    std::fs::write(&file, capture(format, &frames)).unwrap();
    let mut served = Served::start_on(&file, dir, &["--speed", "real"]);
    served.wait_for("all flows are in the table", |served| {
        served.scrape().sum("fenxi_flow_table_entries", "") == 10_000.0
    });
    let command = format!(
        "sh -c 'NO_COLOR=1 {} top -n 1 --socket {}; sleep 60'",
        env!("CARGO_BIN_EXE_fenxi"),
        served.ctl_path().display()
    );
    let Some(terminal) = Terminal::start("many", &command) else {
        return;
    };
    terminal.wait_for("the number of flows", |screen| screen.contains("10,000 of 16,384 flows"));
    terminal.press("4");
    let first = terminal.wait_for("the flows", |screen| screen.matches(":5000").count() > 15);
    for _ in 0..30 {
        terminal.press("Down");
    }
    terminal.wait_for("other flows", |screen| {
        screen.matches(":5000").count() > 15 && screen.lines().nth(8) != first.lines().nth(8)
    });
    terminal.press("q");
}

#[test]
fn top_once_prints_a_screen_of_text() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.toml");
    fs::write(&rules, "[[rule]]\nprotocol = \"tcp\"\n").unwrap();
    let rules = format!("policy.rules={}", rules.display());
    let mut served = Served::start(&["--speed", "max", "--set", &rules]);
    served.wait_for_the_end();
    let mut command = fenxi(["top", "--once", "--socket"]);
    command.arg(served.ctl_path());
    command.env("COLUMNS", "80").env("LINES", "24");
    let page = run(command).expect_code(0).stdout;
    let line = page.lines().nth(2).unwrap();
    assert!(line.starts_with("1 rule  ") && line.ends_with(" % without a rule"), "{page}");
    let status = served.ctl(&["status"]).expect_code(0).stdout;
    assert!(status.contains("rules     1 in force; "), "{status}");
    assert!(page.contains("FLOWS by rate") && page.contains("LABEL"), "{page}");
    assert!(!page.contains('\u{1b}'), "{page:?}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    // Without a terminal, and without somebody who listens.
    let mut command = fenxi(["top", "--socket"]);
    command.arg(served.ctl_path());
    let refused = run(command).expect_code(69).stderr;
    assert!(refused.contains("--once"), "{refused}");
    let refused = run(fenxi(["top", "--once", "--socket", "/nowhere"])).expect_code(69).stderr;
    assert!(refused.contains("no fenxi listens"), "{refused}");
}

#[test]
fn the_page_has_the_figures_and_a_policy() {
    let mut served = Served::start(&["--speed", "real"]);
    served.wait_for("flows are in the table", has_flows);
    let answer = served.http("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let head = head.to_lowercase();
    for part in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; style-src 'sha256-",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(head.contains(part), "{part}: {head}");
    }
    assert!(!head.contains("unsafe-inline"), "{head}");
    for part in ["<h2>Labels now</h2>", "<h2>Hosts now</h2>", "packets received", "simulated"] {
        assert!(body.contains(part), "{part}: {body}");
    }
    let page = served.ctl(&["flows", "--json", "--top", "1"]).expect_code(0).json();
    let host = page["flows"][0]["host"].as_str().unwrap();
    assert!(body.contains(host), "{host} is not in {body}");
    // A filter counts for all tables, and a wrong one is named.
    served.wait_for("one host is left, while it has flows", |served| {
        let page = served.ctl(&["flows", "--json", "--top", "1"]).expect_code(0).json();
        let host = page["flows"][0]["host"].as_str().unwrap();
        let (_, body) = served.get(&format!("/?host={host}&hosts=-flows"));
        let hosts = body.split("id=\"hosts\"").nth(1).unwrap();
        let hosts = hosts.split("</table>").next().unwrap();
        assert!(hosts.contains("aria-sort=\"ascending\""), "{hosts}");
        hosts.matches("<td class=\"name\">").count() == 1
    });
    let (_, body) = served.get("/?label=nonsense&port=80");
    assert!(body.contains("no label &quot;nonsense&quot;; there are "), "{body}");
    let (_, body) = served.get("/?dscp_set=AF44");
    assert!(body.contains("no DSCP &quot;AF44&quot;; expected a DSCP name"), "{body}");
    // An explanation by number, and of a flow that is not there.
    let number = &page["flows"][0]["flow_id"];
    let (status, body) = served.get(&format!("/flow?flow={number}"));
    assert!(status.contains("200") && body.contains(&format!("<pre>flow {number}  ")), "{body}");
    for (flow, code) in [("tcp+192.0.2.1:1+192.0.2.2:2", "404"), ("%3Cb%3E", "400"), ("", "400")] {
        let (status, body) = served.get(&format!("/flow?flow={flow}"));
        assert!(status.contains(code) && !body.contains("<b>"), "{flow}: {status}");
    }
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn curl(port: u16, path: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new("curl");
    command.args(["-s", "-i", "--max-time", "20"]).args(args);
    let output = command.arg(format!("http://127.0.0.1:{port}{path}")).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_page_from_elsewhere_cannot_read_the_loopback_port_by_another_name() {
    let port = free_port();
    let http = format!("control.http=127.0.0.1:{port}");
    let served = Served::start_at(&["--speed", "real"], &http);
    let Some(answer) = curl(port, "/", &[]) else {
        return skip("a_page_from_elsewhere", "curl");
    };
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for host in ["localhost", "LOCALHOST:1", "[::1]:9469", "127.0.0.9"] {
        let answer = curl(port, "/", &["-H", &format!("Host: {host}")]).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
    for host in
        ["attacker.example", "localhost.attacker.example", "10.0.0.1", "a@localhost.b", "\u{7f}"]
    {
        for path in ["/", "/flow?flow=1"] {
            let answer = curl(port, path, &["-H", &format!("Host: {host}")]).unwrap();
            assert!(answer.starts_with("HTTP/1.1 4"), "{host}: {answer}");
            assert!(!answer.contains("fenxi</h1>"), "{host}: {answer}");
        }
    }
    drop(served);
    // Beyond loopback only where the configuration says so.
    let mut command = fenxi(["replay", "--control"]);
    command.arg(demo()).args(["--set", "control.http=0.0.0.0:0"]);
    let refused = run(command).expect_code(78).stderr;
    assert!(refused.contains("control.http_exposed"), "{refused}");
}

/// A browser shows the pages at three widths, in light and dark, without errors, and follows links.
#[test]
fn a_browser_shows_the_page() {
    let Ok(_) = Command::new("chromium").arg("--version").output() else {
        return skip("a_browser_shows_the_page", "chromium");
    };
    let port = free_port();
    let http = format!("control.http=127.0.0.1:{port}");
    let mut served = Served::start_at(&["--speed", "0.2x"], &http);
    served.wait_for("flows are in the table", |served| {
        let reply = served.ctl(&["flows", "--json"]).expect_code(0).json();
        reply["flows"].as_array().unwrap().len() > 3
    });
    let mut check = Command::new("python3");
    check.arg(root().join("scripts/test/browser.py"));
    check.args(["check", &format!("http://127.0.0.1:{port}/")]);
    run(check).expect_code(0);
}

#[test]
fn an_explanation_says_what_the_model_saw_and_who_decided() {
    let explain = |flow: &str, args: &[&str]| {
        let mut command = fenxi(["replay", "--explain", flow]);
        command.args(args).arg(demo());
        run(command)
    };
    let flow = "TCP 192.0.2.10:59962 → 198.51.100.80:80";
    let page = explain(flow, &[]).expect_code(0).stdout;
    for part in [
        "192.0.2.10:59962 > 198.51.100.80:80",
        "label    HTTP",
        "by port 80 (TCP), with the flow's first packet",
        "packets with payload",
        "forward",
        "[probabilities]: recomputed now, on ",
        "written",
        "dscp",
    ] {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    // Asked again, the model answers as on the data path.
    let iperf = "198.51.100.87:5201 192.0.2.20:60300 tcp";
    let json = explain(iperf, &["--json"]).expect_code(0).json();
    let decided = json["answers"].as_array().unwrap().iter();
    let decided: Vec<&Value> = decided.filter(|answer| answer["outcome"] == "decided").collect();
    assert_eq!(decided.len(), 1, "{json}");
    let [best, given] =
        [&decided[0]["probabilities"][0]["probability"], &json["flow"]["confidence"]];
    let apart = (best.as_f64().unwrap() - given.as_f64().unwrap()).abs();
    assert!(apart < 1e-3, "{best} {given}");
    assert_eq!(json["flow"]["label"], "unknown");
    assert_eq!(json["series"]["elements"][0]["is_reverse"], false);
    // Where the model is not sure enough, its best guess is named; one flow of STUN has none.
    let unsure = explain(iperf, &[]).expect_code(0).stdout;
    let why = unsure.lines().find(|line| line.starts_with("why "));
    let [guess, bound] = ["best guess HTTP 0.6", ", below 0.93: too unsure"];
    assert!(why.is_some_and(|it| it.contains(guess) && it.contains(bound)), "{unsure}");
    let stun = explain("TCP 192.0.2.30:54390 198.51.100.34:3478", &[]);
    let stun = stun.expect_code(0).stdout;
    assert!(stun.contains("takes it for none of its labels: unknown 0."), "{stun}");
    // By number, and one that began mid-stream or is too short.
    let id = json["flow"]["flow_id"].to_string();
    let by_id = explain(&id, &["--json"]).expect_code(0).json();
    assert_eq!(by_id["flow"], json["flow"]);
    // What is not there, and what is no flow.
    let refused = explain("tcp 192.0.2.10:1 198.51.100.80:80", &[]).expect_code(65).stderr;
    assert!(refused.contains("no flow TCP 192.0.2.10:1 > 198.51.100.80:80"), "{refused}");
    let refused = explain("nonsense", &[]).expect_code(64).stderr;
    assert!(refused.contains("names no flow"), "{refused}");
}

#[test]
fn a_running_instance_explains_live_and_ended_flows() {
    let mut served = Served::start(&["--speed", "real", "--set", "records.series=1"]);
    served.wait_for("flows are in the table", has_flows);
    let flows = served.ctl(&["flows", "--top", "1000", "--json"]).expect_code(0).json();
    let rows = flows["flows"].as_array().unwrap().clone();
    let is_asked = |row: &&Value| row["end_reason"].is_null() && row["transport"] != "ICMP";
    let live = rows.iter().find(is_asked).unwrap();
    let (src, dst) = (live["src"].as_str().unwrap(), live["dst"].as_str().unwrap());
    let transport = live["transport"].as_str().unwrap();
    let json = served.ctl(&["explain", dst, src, transport, "--json"]).expect_code(0).json();
    let explained = &json["explained"];
    assert_eq!(explained["flow"]["flow_id"], live["flow_id"]);
    assert!(!explained["why"].as_str().unwrap().is_empty());
    // The simulated device has no probabilities, and it says so.
    let asked = explained["asked_again"].as_str().unwrap();
    assert!(asked.starts_with("no probabilities"), "{asked}");
    let page = served.ctl(&["explain", transport, src, dst]).expect_code(0).stdout;
    assert!(page.contains("in the flow table") && page.contains("written"), "{page}");
    served.wait_for_the_end();
    let page = served.ctl(&["explain", transport, src, dst]).expect_code(0).stdout;
    assert!(page.contains("ended: "), "{page}");
    let page = served.ctl(&["explain", "ICMP6 2001:db8:a::30 > 2001:db8:b::80"]).expect_code(0);
    assert!(page.stdout.contains("no model is asked about ICMP"), "{}", page.stdout);
    let refused = served.ctl(&["explain", "tcp", "192.0.2.1:1", "192.0.2.2:2"]);
    let refused = refused.expect_code(65).stderr;
    assert!(refused.contains("it is in no flow table"), "{refused}");
    let refused = served.ctl(&["explain", "\u{1b}[2J"]).expect_code(64).stderr;
    assert!(refused.contains("names no flow") && !refused.contains('\u{1b}'), "{refused:?}");
}
