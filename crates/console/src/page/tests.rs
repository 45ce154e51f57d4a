//! The page with hostile names, and without anything from elsewhere.

use crate::protocol::{
    Code, EgressRow, HostRate, LabelRate, Losses, MeasuredRtt, MeasuredSide, Point, ServiceRow,
    TaskRow,
};

use super::{flow as flow_page, *};

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
            name: Some(HOSTILE.to_owned()),
            flows: 3,
            packets_per_s: 5.0,
            bytes_per_s: 7e3,
            label: Some(HOSTILE.to_owned()),
        }],
        flows: vec![flow()],
        devices: Vec::new(),
        losses: Losses(vec![("series".to_owned(), 12)]),
        history: vec![Point {
            ago_s: 0,
            packets_per_s: 1.0,
            labels: vec![(HOSTILE.to_owned(), 5), ("TLS".to_owned(), 2)],
        }],
        services: vec![ServiceRow {
            name: "web".to_owned(),
            files: Vec::new(),
            egresses: vec![EgressRow {
                egress: "10.0.1.1:80".to_owned(),
                flows_in_flight: 7,
                flows_per_s: Some(2.5),
                handshake_us: Some(Quantiles { p50: 1200, p99: 98_700 }),
                weight: Some(0.25),
                ..EgressRow::default()
            }],
        }],
    }
}

fn flow() -> FlowRow {
    let rtt = MeasuredRtt { samples: 1, min: 1, smoothed: 12_300, max: 1 };
    let fwd = MeasuredSide { rtt_us: Some(rtt), retransmits: Some(4), ..MeasuredSide::default() };
    FlowRow {
        flow_id: 177,
        src: "10.0.0.5:4000".to_owned(),
        dst: "192.0.2.4:443".to_owned(),
        src_name: Some(HOSTILE.to_owned()),
        dst_name: None,
        proto: 6,
        transport: "TCP".to_owned(),
        host: None,
        label: Some(HOSTILE.to_owned()),
        confidence: Some(0.97),
        decided_by: Some("model".to_owned()),
        depth: None,
        no_label: None,
        labels: Vec::new(),
        behaviour: None,
        dscp_seen: "DF".to_owned(),
        dscp_set: Some("EF".to_owned()),
        measured: Some(Measured { fwd, ..Measured::default() }),
        packets: 3,
        bytes: 300,
        packets_per_s: 1.0,
        bytes_per_s: 100.0,
        age_s: 4.0,
        idle_s: 0.0,
        end_reason: None,
    }
}

#[test]
fn names_are_text_wherever_they_stand() {
    let view = View::parse("label=%3C/td%3E%3Cscript%3Ealert(1)%3C/script%3E%22&host=%3Cscript%3E");
    let page = page(&top(), &view);
    assert_eq!(page.matches("<script>").count(), 1, "ours alone");
    assert!(!page.contains("alert(1)</script>"));
    assert!(!page.contains('\u{1b}'));
    assert!(!page.contains("onload='x'"));
    let shown = page.matches("&lt;script&gt;alert(1)").count();
    // The model, a problem, a label, the host's name and label, the chart and its legend, a task
    // and its model, a flow and its sender, and the filter.
    assert_eq!(shown, 12);
    let refused = flow_page(&Reply::refused(Code::NotFound, HOSTILE));
    assert!(refused.contains("&lt;script&gt;") && !refused.contains("<script>"), "{refused}");
}

#[test]
fn the_figures_need_no_script_and_nothing_from_elsewhere() {
    let page = page(&top(), &View::default());
    for part in [
        "12.3 kpps",
        "4.50 MB/s",
        "10,000",
        "10.0.0.5",
        "TLS: 2",
        "0.47 ms",
        "<a href=\"/flow?flow=177\">",
        "<td>DF&gt;EF<td>",
        ">12.3<td class=\"n\">4",
        ">2.5<",
        ">1.2<td class=\"n\">98.7<",
        ">0.25",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for elsewhere in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    // The policy allows no style attributes.
    assert!(!page.contains(" style="));
    assert!(page.contains(STYLE) && page.contains(SCRIPT));
}

#[test]
fn headings_sort_and_keep_the_filter_and_cells_filter() {
    let page = page(&top(), &View::parse("port=443&flows=bytes&hosts=-flows"));
    for part in [
        "aria-sort=\"descending\"><a href=\"/?port=443&amp;hosts=-flows&amp;flows=-bytes\">Bytes<",
        "aria-sort=\"ascending\"><a href=\"/?port=443&amp;hosts=flows&amp;flows=bytes\">Flows<",
        "<th scope=\"col\"><a href=\"/?port=443&amp;hosts=-flows&amp;flows=label\">Label<",
        "<a href=\"/?host=10.0.0.5&amp;port=443&amp;hosts=-flows&amp;flows=bytes\">10.0.0.5<",
        "<input type=\"hidden\" name=\"flows\" value=\"bytes\">",
        "<input name=\"port\" value=\"443\">",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}
