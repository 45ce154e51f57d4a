//! A real Prometheus scrapes a replay and a live run: the target is up, the shipped rules load,
//! every panel of the dashboard has something to show, and what Prometheus has in the end is what
//! the summary says. Skipped by name without Prometheus, the live part also without root.

use crate::common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use common::lab::Lab;
use common::live::{fenxi_on, generate_on};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(90);

/// Where a service is, and how to start and reach it: in a host's namespace or in our own.
#[derive(Clone, Copy)]
struct Place<'a> {
    host: Option<(&'a Lab, &'a str)>,
}

impl Place<'_> {
    /// A program that runs there.
    fn command(&self, program: &str) -> Command {
        match self.host {
            Some((lab, host)) => lab.command(host, program),
            None => Command::new(program),
        }
    }

    fn fenxi(&self) -> Command {
        match self.host {
            Some((lab, host)) => fenxi_on(lab, host, &[]),
            None => common::fenxi::<&str>([]),
        }
    }

    fn generate(&self) -> Command {
        match self.host {
            Some((lab, host)) => generate_on(lab, host),
            None => common::fenxi_lab(["generate"]),
        }
    }

    /// A port of the loopback interface that is free now.
    fn free_port(&self) -> u16 {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = match self.host {
            Some((lab, host)) => lab.on(host, bind),
            None => bind(),
        };
        listener.local_addr().unwrap().port()
    }

    /// The body of an answer; `None`: nobody listens.
    fn get(&self, port: u16, path: &str) -> Option<String> {
        let connect = || TcpStream::connect(("127.0.0.1", port)).ok();
        let mut stream = match self.host {
            Some((lab, host)) => lab.on(host, connect),
            None => connect(),
        }?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        Some(body.to_owned())
    }
}

/// A child that goes with this.
struct Service(Option<Child>);

impl Service {
    fn start(mut command: Command) -> Option<Service> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::piped()).spawn().ok()?;
        Some(Service(Some(child)))
    }

    #[track_caller]
    fn wait_for<T>(&mut self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            let ended = self.0.as_mut().unwrap().try_wait().unwrap();
            if ended.is_some() {
                let output = self.0.take().unwrap().wait_with_output().unwrap();
                panic!("{what}: {}", String::from_utf8_lossy(&output.stderr));
            }
            assert!(began.elapsed() < PATIENCE, "in vain: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it, and gives the JSON that it printed.
    fn summary(mut self) -> Value {
        let child = self.0.take().unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        common::Finished::from_output(output).expect_code(0).json()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A Prometheus with the shipped configuration, but for its target and its pace.
struct Prometheus<'a> {
    place: Place<'a>,
    service: Service,
    port: u16,
    _dir: TempDir,
}

impl<'a> Prometheus<'a> {
    /// `None`: it is not installed.
    fn start(place: Place<'a>, target: u16) -> Prometheus<'a> {
        let dir = tempfile::tempdir().unwrap();
        let shipped = |file: &str| {
            let path = common::root().join("packaging/prometheus").join(file);
            std::fs::read_to_string(path).unwrap()
        };
        let config = shipped("prometheus.yml");
        let ours =
            config.replace("15s", "1s").replace("127.0.0.1:9469", &format!("127.0.0.1:{target}"));
        assert_ne!(config, ours);
        std::fs::write(dir.path().join("prometheus.yml"), ours).unwrap();
        std::fs::write(dir.path().join("alerts.yml"), shipped("alerts.yml")).unwrap();
        let port = place.free_port();
        let mut command = place.command("prometheus");
        let option = |name: &str, value: String| format!("--{name}={value}");
        let file = |name: &str| dir.path().join(name).display().to_string();
        command.args([
            option("config.file", file("prometheus.yml")),
            option("storage.tsdb.path", file("data")),
            option("web.listen-address", format!("127.0.0.1:{port}")),
            option("log.level", "error".to_owned()),
        ]);
        let mut service = Service::start(command).expect("prometheus starts, as it did before");
        service.wait_for("Prometheus is ready", || {
            place.get(port, "/-/ready").filter(|page| page.contains("is Ready"))
        });
        Prometheus { place, service, port, _dir: dir }
    }

    fn api(&self, path: &str) -> Option<Value> {
        let body = self.place.get(self.port, &format!("/api/v1/{path}"))?;
        let answer: Value =
            serde_json::from_str(&body).unwrap_or_else(|_| panic!("{path}: {body}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        Some(answer["data"].clone())
    }

    /// What an expression comes to: values by their labels. Panics where it cannot be read.
    fn query(&self, expression: &str) -> BTreeMap<String, f64> {
        let data =
            self.api(&format!("query?query={}", encoded(expression))).expect("Prometheus answers");
        let samples = data["result"].as_array().unwrap().iter();
        let value = |sample: &Value| sample["value"][1].as_str().unwrap().parse().unwrap();
        samples.map(|sample| (sample["metric"].to_string(), value(sample))).collect()
    }

    /// Sum over all samples of the expression.
    fn sum(&self, expression: &str) -> f64 {
        let samples = self.query(expression);
        assert!(!samples.is_empty(), "{expression} has no sample");
        samples.values().sum()
    }

    /// Until the expression has a sample, as a comparison has that holds.
    #[track_caller]
    fn wait_until(&mut self, expression: &str) {
        let (place, port) = (self.place, self.port);
        let path = format!("/api/v1/query?query={}", encoded(expression));
        self.service.wait_for(expression, || {
            let body = place.get(port, &path)?;
            let answer: Value = serde_json::from_str(&body).ok()?;
            let found = answer["data"]["result"].as_array()?;
            (!found.is_empty()).then_some(())
        });
    }
}

/// As a part of an address.
fn encoded(text: &str) -> String {
    let escaped = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escaped).collect()
}

/// Whether the programs of Prometheus are there; said where not.
fn has_prometheus(test: &str) -> bool {
    let programs = ["prometheus", "promtool"];
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let found = programs.into_iter().all(is_there);
    if !found {
        common::skip(test, "prometheus and promtool (Debian package prometheus)");
    }
    found
}

/// Every expression of the dashboard, its variables filled in.
fn panels() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(expression)) = fields.get("expr") {
                    found.push(expression.clone());
                }
                fields.values().for_each(|value| collect(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let path = common::root().join("packaging/grafana/fenxi.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut found = Vec::new();
    collect(&dashboard, &mut found);
    let filled = found
        .iter()
        .map(|expression| expression.replace("$instance", ".*").replace("$__rate_interval", "1m"));
    filled.collect()
}

/// The shipped rules are loaded and can be worked out, and no panel of what is on stays empty: what
/// has not happened is 0, and not absent.
fn assert_rules_and_panels_work(prometheus: &mut Prometheus<'_>) {
    prometheus.wait_until("count_over_time(fenxi_uptime_seconds[1m]) >= 4");
    let panels = panels();
    let scraped = prometheus.query("count by (__name__) ({__name__=~\"fenxi_.*\"})");
    let scraped: String = scraped.into_keys().collect();
    let is_on = |panel: &String| {
        let mut words = panel.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.all(|word| !word.starts_with("fenxi_") || scraped.contains(&format!("\"{word}\"")))
    };
    let panels: Vec<_> = panels.into_iter().filter(is_on).collect();
    assert!(panels.len() > 20, "{panels:?}");
    for panel in panels {
        assert!(!panel.contains('$'), "{panel}");
        assert!(!prometheus.query(&panel).is_empty(), "{panel} is empty");
    }
    let groups = prometheus.api("rules").unwrap();
    let rules = groups["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 10);
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}

/// What the program says of itself in the end is what Prometheus has.
#[track_caller]
fn assert_same(values: &BTreeMap<String, f64>, summary: &Value) {
    for (path, value) in values {
        assert_eq!(summary.pointer(path).unwrap().as_f64(), Some(*value), "{path}");
    }
}

/// Sums that packets alone decide, so that they stay once the traffic has ended. By where they
/// stand in the summary.
fn of_the_traffic(prometheus: &Prometheus<'_>) -> BTreeMap<String, f64> {
    let mut values: BTreeMap<String, f64> = [
        ("/packets", "fenxi_port_packets_total"),
        ("/bytes", "fenxi_port_bytes_total"),
        ("/flows/begun", "fenxi_flows_begun_total"),
        ("/series/emitted", "fenxi_series_emitted_total"),
        ("/series/inferred", "fenxi_series_total{outcome=\"inferred\"}"),
        ("/series/cached", "fenxi_series_total{outcome=\"cached\"}"),
        ("/series/shed", "fenxi_series_total{outcome=\"shed\"}"),
        ("/series/post_mortem", "fenxi_labels_discarded_total{reason=\"post_mortem\"}"),
        ("/devices/0/batches", "fenxi_batch_size_series_count"),
    ]
    .map(|(path, metric)| (path.to_owned(), prometheus.sum(metric)))
    .into();
    for (kind, label, metric) in [("verdicts", "verdict", "fenxi_packets_total")] {
        for (labels, value) in prometheus.query(&format!("sum by ({label}) ({metric})")) {
            let labels: Value = serde_json::from_str(&labels).unwrap();
            let name = labels[label].as_str().unwrap();
            values.insert(format!("/{kind}/{name}"), value);
        }
    }
    assert!(values.len() > 20);
    values
}

#[test]
fn prometheus_has_of_a_replay_what_its_summary_says() {
    if !has_prometheus("prometheus_has_of_a_replay_what_its_summary_says") {
        return;
    }
    let place = Place { host: None };
    let dir = tempfile::tempdir().unwrap();
    let port = place.free_port();
    let mut command = place.fenxi();
    command.args(["replay", "--json", "--control", "--hold", "--speed", "20x"]);
    command.arg(common::demo()).args(common::SIMULATED);
    command.args(["--set", "cache.prefix=10", "--set", "cache.audit=0.5"]);
    command.args(["--set", &format!("control.http=127.0.0.1:{port}")]);
    let socket = dir.path().join("ctl");
    command.args(["--set", &format!("control.socket={}", socket.display())]);
    let mut replay = Service::start(command).unwrap();
    replay.wait_for("it serves", || place.get(port, "/livez"));
    let mut prometheus = Prometheus::start(place, port);
    prometheus.wait_until("up{job=\"fenxi\"} == 1");
    prometheus.wait_until("fenxi_state{state=\"draining\"} == 1");
    assert_rules_and_panels_work(&mut prometheus);

    let mut values = of_the_traffic(&prometheus);
    for (path, metric) in [
        ("/flows/ended/idle", "fenxi_flows_ended_total{reason=\"idle\"}"),
        ("/flows/ended/drain", "fenxi_flows_ended_total{reason=\"drain\"}"),
        ("/cache/hits", "fenxi_cache_lookups_total{result=\"hit\"}"),
        ("/cache/audits_agree", "fenxi_cache_audits_total{result=\"agree\"}"),
        ("/labels/unknown", "fenxi_label_flows_total{label=\"unknown\"}"),
    ] {
        values.insert(path.to_owned(), prometheus.sum(metric));
    }
    assert_eq!(prometheus.sum("abs(fenxi_balance)"), 0.0);
    assert_same(&values, &replay.summary());
}

/// The page of metrics as samples.
fn scrape(place: Place<'_>, port: u16) -> BTreeMap<String, f64> {
    let page = place.get(port, "/metrics").expect("a page");
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    samples.collect()
}

/// All samples of a metric that have this label.
fn sum(samples: &BTreeMap<String, f64>, metric: &str, label: &str) -> f64 {
    let own = samples.iter().filter(|(name, _)| {
        let (found, labels) = name.split_once('{').unwrap_or((name, ""));
        found == metric && labels.contains(label)
    });
    own.map(|(_, value)| value).sum()
}

/// Card, kernel, ring, walk and wire agree, whatever is on its way.
#[track_caller]
fn assert_closed(samples: &BTreeMap<String, f64>, is_inline: bool) {
    let of = |metric: &str| sum(samples, metric, "");
    for (name, value) in samples.iter().filter(|(name, _)| name.starts_with("fenxi_balance")) {
        assert_eq!(*value, 0.0, "{name}");
    }
    let ring_full = "reason=\"ring_full\"";
    let dropped = sum(samples, "fenxi_port_dropped_packets_total", ring_full);
    let received = of("fenxi_port_packets_total");
    let waiting = of("fenxi_port_waiting_packets");
    assert_eq!(of("fenxi_port_offered_packets_total"), received + dropped + waiting);
    assert_eq!(of("fenxi_packets_total"), received);
    let left = of("fenxi_port_sent_total") + of("fenxi_port_unsent_total");
    assert_eq!(left, if is_inline { received } else { 0.0 });
}

/// A live run on `b` and `d` whose other ends are `a` and `c`, looked at while traffic comes in at
/// `a`; its summary, and the packets that were sent to it.
fn live(lab: &Lab, mode: &str, look: impl FnOnce(Place<'_>, u16, f64)) -> (Value, f64) {
    let place = Place { host: Some((lab, "host")) };
    let dir = tempfile::tempdir().unwrap();
    let port = place.free_port();
    let mut command = place.fenxi();
    command.args(["run", "--json", "--set", "io.interfaces=[\"b\", \"d\"]"]);
    command.args(["--set", &format!("io.mode={mode}"), "--set", "pipeline.layout=2:1:1"]);
    command.args(common::SIMULATED);
    command.args(["--set", "flow.max_flows=16384", "--set", "cache.prefix=10"]);
    command.args(["--set", &format!("control.http=127.0.0.1:{port}")]);
    let socket = dir.path().join("ctl");
    command.args(["--set", &format!("control.socket={}", socket.display())]);
    let mut run = Service::start(command).unwrap();
    let is_ready = || place.get(port, "/readyz").filter(|page| page.starts_with("ok"));
    run.wait_for("it is ready", is_ready);

    let mut generate = place.generate();
    generate.args(["--json", "--replay", "--pps", "20000", "--interface", "a"]);
    generate.args(vec![common::demo(); 4]);
    let mut sender = Service::start(generate).unwrap();
    while sender.0.as_mut().unwrap().try_wait().unwrap().is_none() {
        assert_closed(&scrape(place, port), mode == "inline");
        std::thread::sleep(Duration::from_millis(25));
    }
    let output = sender.0.take().unwrap().wait_with_output().unwrap();
    let generated = common::Finished::from_output(output).expect_code(0).json();
    let sent = generated["interface"]["sent"].as_f64().unwrap();
    run.wait_for("all has come through", || {
        let samples = scrape(place, port);
        assert_closed(&samples, mode == "inline");
        let waiting = sum(&samples, "fenxi_series_waiting", "");
        let gone = sum(&samples, "fenxi_port_packets_total", "")
            + sum(&samples, "fenxi_port_dropped_packets_total", "");
        (gone >= sent && waiting == 0.0).then_some(())
    });
    look(place, port, sent);
    (run.summary(), sent)
}

fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], &[])?;
    lab.run("host", "ip link set dev lo up");
    lab.wire_within("host", "a", "b");
    lab.wire_within("host", "c", "d");
    Some(lab)
}

#[test]
fn prometheus_has_of_a_live_run_what_its_summary_says() {
    if !has_prometheus("prometheus_has_of_a_live_run_what_its_summary_says") {
        return;
    }
    let Some(lab) = lab("prometheus") else { return };
    let mut values = BTreeMap::new();
    let (summary, sent) = live(&lab, "tap", |place, port, sent| {
        common::assert_promtool_is_content(&place.get(port, "/metrics").unwrap());
        let mut prometheus = Prometheus::start(place, port);
        prometheus.wait_until("up{job=\"fenxi\"} == 1");
        assert_rules_and_panels_work(&mut prometheus);
        values = of_the_traffic(&prometheus);
        for (path, metric) in [
            ("/live/offered", "fenxi_port_offered_packets_total"),
            ("/live/received", "fenxi_port_packets_total"),
            ("/live/kernel_dropped", "fenxi_port_dropped_packets_total{reason=\"ring_full\"}"),
            ("/live/nic_dropped", "fenxi_port_dropped_packets_total{queue=\"all\"}"),
            ("/live/unread", "fenxi_port_waiting_packets"),
        ] {
            values.insert(path.to_owned(), prometheus.sum(metric));
        }
        for queue in [0, 1] {
            let own = format!("fenxi_port_packets_total{{queue=\"{queue}\"}}");
            let packets = prometheus.sum(&own);
            assert!(packets > 0.0 && packets < sent, "{own}: {packets} of {sent}");
            values.insert(format!("/pipeline/threads/{queue}/packets"), packets);
        }
        assert_eq!(prometheus.sum("abs(fenxi_balance)"), 0.0);
    });
    assert_same(&values, &summary);
    let live = &summary["live"];
    let gone = live["received"].as_f64().unwrap() + live["kernel_dropped"].as_f64().unwrap();
    assert_eq!((gone, live["offered"].as_f64()), (sent, Some(sent)));
}

#[test]
fn every_scrape_of_an_inline_run_closes() {
    let Some(lab) = lab("closes") else { return };
    let (summary, sent) = live(&lab, "inline", |_, _, _| ());
    let of = |name: &str| summary["live"][name].as_f64().unwrap();
    assert_eq!(of("received") + of("kernel_dropped"), sent);
    assert_eq!(of("received"), of("sent") + of("unsent"));
}
