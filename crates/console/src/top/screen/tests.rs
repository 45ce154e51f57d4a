//! Screens of all sizes, with names as hostile as they come.

use crate::protocol::{
    DeviceRow, EgressRow, HostRate, LabelRate, Losses, MeasuredRtt, MeasuredSide, Quantiles,
    RuleSums, ServiceRow, TaskLabel,
};
use unicode_width::UnicodeWidthStr;

use super::*;

fn flow(flow_id: u64) -> FlowRow {
    FlowRow {
        flow_id,
        src: format!("10.0.{}.{}:4000", flow_id / 250, flow_id % 250),
        dst: "[2001:db8:1234:5678:9abc:def0:1234:5678]:443".to_owned(),
        src_name: (flow_id % 7 == 1).then(|| "lap\u{1b}[2Jtop".to_owned()),
        dst_name: flow_id.is_multiple_of(5).then(|| "a\n\u{202e}b".to_owned()),
        proto: 6,
        transport: "TCP".to_owned(),
        host: None,
        label: flow_id.is_multiple_of(2).then(|| "TLS".to_owned()),
        confidence: flow_id.is_multiple_of(2).then_some(0.97),
        decided_by: flow_id.is_multiple_of(2).then(|| "model".to_owned()),
        depth: None,
        labels: (flow_id.is_multiple_of(4))
            .then(|| TaskLabel {
                task: "device".to_owned(),
                label: "camera\u{1b}[2J".to_owned(),
                confidence: 0.5,
                decided_by: "cache".to_owned(),
                depth: 3,
            })
            .into_iter()
            .collect(),
        no_label: (flow_id % 2 == 1).then(|| "mid-stream".to_owned()),
        packets: flow_id,
        bytes: 10 * flow_id,
        packets_per_s: 1.0,
        bytes_per_s: 1e6 - flow_id as f64,
        age_s: flow_id as f64,
        idle_s: 0.0,
        measured: None,
        dscp_seen: "DF".to_owned(),
        dscp_set: None,
        behaviour: flow_id.is_multiple_of(3).then(|| "interactive".to_owned()),
        end_reason: None,
    }
}

fn top() -> Top {
    let label = |label: Option<&str>| LabelRate {
        label: label.map(str::to_owned),
        flows: 1_234_567,
        packets_per_s: 12e6,
        bytes_per_s: 1e9,
        labelled: 3,
    };
    Top {
        tasks: Vec::new(),
        services: vec![ServiceRow {
            name: "web".to_owned(),
            files: Vec::new(),
            egresses: vec![EgressRow {
                egress: "10.0.1.1:80".to_owned(),
                flows_in_flight: 7,
                bytes_per_s: Some(12_345.0),
                handshake_us: Some(Quantiles { p50: 1200, p99: 98_700 }),
                weight: Some(0.25),
                ..EgressRow::default()
            }],
        }],
        state: "ready".to_owned(),
        version: "0.1.0".to_owned(),
        uptime_s: 7500.0,
        model: "protocol".to_owned(),
        problems: Vec::new(),
        packets_per_s: 12_300.0,
        bytes_per_s: 4.5e6,
        flows_now: 10_000,
        flows_max: 1_048_576,
        label_p50_ms: 0.47,
        label_p99_ms: 1.39,
        labels: vec![
            label(Some("TLS")),
            label(Some("\u{1b}[2J\u{9b}31m流量分类流量分类")),
            label(None),
        ],
        hosts: vec![HostRate {
            address: "2001:db8:1234:5678:9abc:def0:1234:5678".to_owned(),
            name: Some("lap\u{1b}[2Jtop".to_owned()),
            flows: 3,
            packets_per_s: 5.0,
            bytes_per_s: 7e3,
            label: Some("a\nb\u{202e}".to_owned()),
        }],
        flows: (0..1000).map(flow).collect(),
        devices: vec![DeviceRow {
            task: None,
            device: "cpu".to_owned(),
            state: "up".to_owned(),
            series: 1381,
            failures: 0,
            thread: "analytics".to_owned(),
            effective: "cpu".to_owned(),
            batches: 1,
            last_error: None,
        }],
        losses: Losses(vec![("series".to_owned(), 12), ("packets not forwarded".to_owned(), 0)]),
        history: Vec::new(),
        rules: Some(RuleSums {
            rules: 1204,
            lookups: 1000,
            unmatched: 117,
            lookups_per_s: 3400.0,
            updates: 3,
            updates_refused: 1,
            updated_ago_s: Some(75.0),
            is_pending: false,
        }),
    }
}

const PANES: [Pane; 6] =
    [Pane::Overview, Pane::Labels, Pane::Hosts, Pane::Flows, Pane::Health, Pane::Services];

#[test]
fn no_size_of_the_terminal_is_exceeded_and_nothing_hostile_comes_through() {
    for width in (0..=20).chain([59, 60, 61, 79, 80, 81, 200]) {
        for height in [0, 1, 2, 5, 11, 12, 24, 60] {
            for pane in PANES {
                for scrolled in [0, 7, usize::MAX] {
                    let screen = Screen { top: Some(top()), pane, scrolled, ..Screen::default() };
                    let lines = screen.lines(width, height);
                    assert!(lines.len() <= height, "{width}x{height} {pane:?}");
                    for line in lines {
                        let text: String =
                            line.spans.iter().map(|it| it.content.as_ref()).collect();
                        assert!(!text.contains(char::is_control), "{text:?}");
                        assert!(text.width() <= width, "{width}x{height} {pane:?}: {text:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_screen_of_80_by_24_has_all_of_it() {
    let screen = Screen { top: Some(top()), ..Screen::default() };
    let text = screen.text(80, 24);
    for part in [
        "fenxi 0.1.0  ready  up 2h05m  model protocol  10,000 of 1,048,576 flows",
        "12.3 kpps  4.50 MB/s  to label 0.47 ms (median)",
        "lost:",
        "1,204 rules  3.40k look-ups/s  12 % without a rule  changed 1m15s ago",
        "LABEL",
        "HOST",
        "FLOWS by rate",
        "\\u{1b}[2J",
        "1 overview",
        "6 services ↑↓ s sort p pause q quit",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert_eq!(text.lines().count(), 24);
    let health = Screen { pane: Pane::Health, ..screen };
    let text = health.text(80, 24);
    assert!(text.contains("cpu: up, 1,381 series, 0 failures"), "{text}");
    assert!(text.contains("12 series"), "{text}");
}

#[test]
fn the_line_of_rules_says_what_waits_and_is_not_there_without_any() {
    let with = |change: fn(&mut RuleSums)| {
        let mut top = top();
        top.rules.iter_mut().for_each(change);
        let screen = Screen { top: Some(top), ..Screen::default() };
        screen.text(80, 24).lines().nth(2).unwrap().to_owned()
    };
    assert_eq!(
        with(|rules| (rules.rules, rules.is_pending) = (1, true)),
        "1 rule  3.40k look-ups/s  12 % without a rule  changes wait for an index"
    );
    assert_eq!(
        with(|rules| (rules.lookups, rules.unmatched, rules.updated_ago_s) = (0, 0, None)),
        "1,204 rules  3.40k look-ups/s  0 % without a rule"
    );
    let mut top = top();
    top.rules = None;
    let screen = Screen { top: Some(top), ..Screen::default() };
    assert!(!screen.text(80, 24).contains("rule"));
}

#[test]
fn flows_are_sorted_as_asked_and_scrolled() {
    let first = |sort, scrolled| {
        let screen =
            Screen { top: Some(top()), pane: Pane::Flows, sort, scrolled, ..Screen::default() };
        let text = screen.text(120, 24);
        // Behind three lines about the run, and the titles.
        text.lines().nth(4).unwrap_or_default().to_owned()
    };
    assert!(first(SortBy::Rate, 0).contains("10.0.0.0:4000"));
    assert!(first(SortBy::Rate, 3).contains("10.0.0.3:4000"));
    assert!(first(SortBy::Bytes, 0).contains("10.0.3.249:4000"));
    assert!(first(SortBy::Age, 0).contains("10.0.0.0:4000"));
}

#[test]
fn without_an_answer_it_says_why() {
    let screen = Screen {
        problem: Some("/run/fenxi/ctl.sock: no fenxi listens on this socket".to_owned()),
        ..Screen::default()
    };
    let text = screen.text(80, 24);
    assert!(text.contains("no fenxi listens") && text.contains("trying again; q quits"));
    // A connection that was lost leaves the last moment, with the reason.
    let screen = Screen { top: Some(top()), problem: screen.problem, ..Screen::default() };
    let text = screen.text(80, 24);
    assert!(text.contains("no fenxi listens") && text.contains("FLOWS by rate"));
}

#[test]
fn services_have_a_pane_where_there_are_some() {
    let screen = Screen { top: Some(top()), pane: Pane::Services, ..Screen::default() };
    let line = |width| {
        let text = screen.text(width, 24);
        text.lines().find(|line| line.starts_with("web")).unwrap().to_owned()
    };
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(line(80)), ["web", "10.0.1.1:80", "7", "12.3k", "1.2", "98.7", "0.25"]);
    assert_eq!(words(line(60)), ["web", "10.0.1.1:80", "7", "12.3k", "1.2", "98.7"]);
    let mut top = top();
    top.services.clear();
    let text = Screen { top: Some(top), ..screen }.text(80, 24);
    assert!(text.contains("no services") && !text.contains("6 services"), "{text}");
}

#[test]
fn a_dscp_is_shown_where_flows_have_one_and_replaces_the_behaviour_on_a_narrow_screen() {
    let screen = Screen { top: Some(top()), pane: Pane::Flows, ..Screen::default() };
    let text = screen.text(80, 24);
    assert!(text.contains("DOES") && !text.contains("DSCP"), "{text}");
    let with = |seen: &str, set: Option<&str>, width| {
        let mut top = top();
        top.flows[0].dscp_seen = seen.to_owned();
        top.flows[0].dscp_set = set.map(str::to_owned);
        let screen = Screen { top: Some(top), pane: Pane::Flows, ..Screen::default() };
        let text = screen.text(width, 24);
        assert!(text.contains("DSCP"), "{text}");
        assert_eq!(text.contains("DOES"), width >= 120, "{text}");
        text.lines().nth(4).unwrap().to_owned()
    };
    for width in [80, 120] {
        assert!(with("AF41", Some("AF42"), width).contains(" AF41>AF42 "));
        assert!(with("EF", None, width).contains(" EF  "));
        assert!(with("DF", Some("DF"), width).contains(" DF  "));
        // An address and port of IPv4 have room.
        assert!(with("5", None, width).contains(" 10.0.0.0:4000 "));
    }
}

#[test]
fn measured_flows_have_a_round_trip_also_on_a_narrow_screen() {
    let mut top = top();
    let rtt = MeasuredRtt { samples: 1, min: 1, smoothed: 12_300, max: 1 };
    let fwd = MeasuredSide { rtt_us: Some(rtt), retransmits: Some(4), ..MeasuredSide::default() };
    top.flows[0].measured = Some(Measured { fwd, ..Measured::default() });
    let screen = Screen { top: Some(top), pane: Pane::Flows, ..Screen::default() };
    let text = screen.text(80, 24);
    assert!(
        text.contains("RTT ms") && text.contains(" 12.3 ") && !text.contains("AGAIN"),
        "{text}"
    );
    let text = screen.text(120, 24);
    let first = text.lines().nth(4).unwrap();
    assert!(text.contains("CONF") && first.contains("   12.3     4 "), "{text}");
}
