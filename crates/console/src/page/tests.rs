//! The page with hostile names, and without anything from elsewhere.

use crate::protocol::{HostRate, LabelRate, Losses, Point, TaskRow};

use super::*;

const HOSTILE: &str = "</td><script>alert(1)</script>\u{1b}[2J\" onload='x'";

fn top() -> Top {
    Top {
        rules: None,
        tasks: vec![TaskRow {
            task: HOSTILE.to_owned(),
            model: HOSTILE.to_owned(),
            series: 12,
            not_asked: 3,
            flows_not_asked: 4,
            lost: 0,
            labels: 9,
            label_p99_ms: 1.5,
        }],
        state: "ready".to_owned(),
        version: "0.1.0".to_owned(),
        uptime_s: 7500.0,
        model: HOSTILE.to_owned(),
        problems: vec![HOSTILE.to_owned()],
        packets_per_s: 12_300.0,
        bytes_per_s: 4.5e6,
        flows_now: 10_000,
        flows_max: 1_048_576,
        label_p50_ms: 0.47,
        label_p99_ms: 1.39,
        labels: vec![LabelRate {
            label: Some(HOSTILE.to_owned()),
            flows: 12,
            packets_per_s: 5.0,
            bytes_per_s: 7000.0,
            labelled: 3,
        }],
        hosts: vec![HostRate {
            address: "10.0.0.5".to_owned(),
            flows: 3,
            packets_per_s: 5.0,
            bytes_per_s: 7e3,
            label: Some(HOSTILE.to_owned()),
        }],
        flows: Vec::new(),
        devices: Vec::new(),
        losses: Losses(vec![("series".to_owned(), 12)]),
        history: vec![Point {
            ago_s: 0,
            packets_per_s: 1.0,
            labels: vec![(HOSTILE.to_owned(), 5), ("TLS".to_owned(), 2)],
        }],
    }
}

#[test]
fn names_are_text_wherever_they_stand() {
    let page = page(&top());
    assert_eq!(page.matches("<script>").count(), 1, "ours alone");
    assert!(!page.contains("alert(1)</script>"));
    assert!(!page.contains('\u{1b}'));
    assert!(!page.contains("onload='x'"));
    let shown = page.matches("&lt;script&gt;alert(1)").count();
    assert_eq!(shown, 8, "model, problem, label, host, chart and its legend, a task and its model");
}

#[test]
fn the_figures_need_no_script_and_nothing_from_elsewhere() {
    let page = page(&top());
    for part in ["12.3 kpps", "4.50 MB/s", "10,000", "10.0.0.5", "TLS: 2", "0.47 ms"] {
        assert!(page.contains(part), "{part}");
    }
    for elsewhere in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    // The policy allows no style attributes.
    assert!(!page.contains(" style="));
    assert!(page.contains(STYLE) && page.contains(SCRIPT));
}
