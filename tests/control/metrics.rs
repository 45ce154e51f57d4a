//! What is scraped adds up at any time, and is in the end what the summary says.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::common::{root, skip, sum};
use crate::control::{Scrape, Served};

/// The balance is 0, and can be worked out from the other metrics.
#[track_caller]
fn assert_balanced(scrape: &Scrape) {
    let sum = |metric| scrape.sum(metric, "");
    for (name, missing) in
        scrape.samples.iter().filter(|(name, _)| name.starts_with("fenxi_balance"))
    {
        assert_eq!(*missing, 0.0, "{name}");
    }
    assert_eq!(sum("fenxi_port_packets_total"), sum("fenxi_packets_total"));
    assert_eq!(
        sum("fenxi_series_emitted_total"),
        sum("fenxi_series_total") + sum("fenxi_series_waiting")
    );
    assert_eq!(
        sum("fenxi_flows_begun_total"),
        sum("fenxi_flows_ended_total")
            + sum("fenxi_flow_table_entries")
            + sum("fenxi_flows_unrecorded")
    );
    let labelled = scrape.sum("fenxi_packets_total", "verdict=\"labelled\"");
    assert!(sum("fenxi_label_packets_total") <= labelled);
}

/// Counters have not gone back.
#[track_caller]
fn assert_grown(before: &Scrape, after: &Scrape) {
    for (name, value) in &before.samples {
        // Threads that have ended are not there any more.
        let is_counter =
            name.contains("_total") || name.contains("_bucket") || name.contains("_count");
        if is_counter && !name.starts_with("fenxi_thread_cpu") {
            assert!(after.value(name) >= *value, "{name}");
        }
    }
}

/// What the replay says of itself is what was scraped.
#[track_caller]
fn assert_agrees(scrape: &Scrape, summary: &Value) {
    let same = |metric: &str, label: &str, said: &Value| {
        assert_eq!(Some(scrape.sum(metric, label)), said.as_f64(), "{metric} {label}");
    };
    same("fenxi_port_packets_total", "", &summary["packets"]);
    same("fenxi_port_bytes_total", "", &summary["bytes"]);
    same("fenxi_flows_begun_total", "", &summary["flows"]["begun"]);
    same("fenxi_dscp_seen_flows_total", "", &summary["flows"]["begun"]);
    same("fenxi_flow_reports_total", "", &summary["flows"]["reported"]);
    same("fenxi_series_emitted_total", "", &summary["series"]["emitted"]);
    for (metric, label, said) in [
        ("fenxi_packets_total", "verdict", &summary["verdicts"]),
        ("fenxi_flows_ended_total", "reason", &summary["flows"]["ended"]),
        ("fenxi_label_flows_total", "label", &summary["labels"]),
    ] {
        for (name, count) in said.as_object().unwrap() {
            same(metric, &format!("{label}=\"{name}\""), count);
        }
    }
    for outcome in ["cached", "inferred", "shed", "failed"] {
        let label = format!("outcome=\"{outcome}\"");
        same("fenxi_series_total", &label, &summary["series"][outcome]);
    }
    let given = |outcome: &str| summary["series"][outcome].as_u64().unwrap();
    let labels = given("cached") + given("inferred") - given("post_mortem");
    same("fenxi_label_latency_seconds_count", "", &labels.into());
    // Every flow has ended. One that was asked about several times has one label, and another one
    // before that if an answer contradicted its port.
    let contradicting = summary["decided"]["contradicting"].as_u64().unwrap();
    same("fenxi_flows_contradicting_total", "", &contradicting.into());
    let labels = sum(&summary["labels"]) + contradicting;
    same("fenxi_labels_total", "", &labels.into());
    for (name, count) in summary["labels"].as_object().unwrap() {
        let given = scrape.sum("fenxi_labels_total", &format!("label=\"{name}\""));
        assert!(Some(given) >= count.as_f64(), "{name}");
    }
    let lost = "reason=\"post_mortem\"";
    same("fenxi_labels_discarded_total", lost, &given("post_mortem").into());
    let unknown = "reason=\"low_confidence\"";
    let said = &summary["labels"]["unknown"];
    same("fenxi_labels_discarded_total", unknown, said);
    let queues = summary["pipeline"]["threads"].as_array().unwrap().iter();
    let queues = queues.filter(|thread| !thread["packets"].is_null());
    for (queue, thread) in queues.enumerate() {
        let queue = format!("queue=\"{queue}\"");
        same("fenxi_port_packets_total", &queue, &thread["packets"]);
    }
    for (trigger, batches) in summary["batches"].as_object().unwrap() {
        let label = format!("trigger=\"{trigger}\"");
        same("fenxi_batches_total", &label, &batches["count"]);
    }
    let batches: u64 = summary["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["batches"].as_u64().unwrap())
        .sum();
    same("fenxi_batch_size_series_count", "", &batches.into());
    same("fenxi_label_packets_total", "", &summary["verdicts"]["labelled"]);
}

#[test]
fn every_scrape_of_a_paced_replay_balances_and_the_last_is_the_summary() {
    let mut served = Served::start(&["--speed", "20x"]);
    let mut before = served.scrape();
    let mut running = 0;
    while before.value("fenxi_state{state=\"draining\"}") == 0.0 {
        assert_balanced(&before);
        sleep(Duration::from_millis(25));
        let after = served.scrape();
        assert_grown(&before, &after);
        running += u32::from(after.value("fenxi_state{state=\"ready\"}") == 1.0);
        before = after;
    }
    assert!(running > 0, "it was never seen at work");
    served.wait_for_the_end();
    let last = served.scrape();
    assert_balanced(&last);
    assert_eq!(last.sum("fenxi_series_waiting", ""), 0.0);
    assert_eq!(last.sum("fenxi_flow_table_entries", ""), 0.0);
    let background = ["flows", "--dscp", "cs1", "--top", "1000", "--json"];
    let background = served.ctl(&background).expect_code(0).json()["flows"].take();
    let flows = background.as_array().unwrap().iter();
    let seen = flows.filter(|row| row["dscp_seen"] == "CS1").count() as f64;
    assert!(seen > 0.0);
    assert_eq!(seen, last.value("fenxi_dscp_seen_flows_total{dscp=\"CS1\"}"));
    assert_agrees(&last, &served.drain());
}

/// Eight threads at full speed, where each scrape meets them in other moments.
#[test]
fn scrapes_of_many_threads_at_full_speed_balance() {
    let mut served = Served::start(&[
        "--loop",
        "150",
        "--set",
        "pipeline.layout=2:2:2",
        "--set",
        "pipeline.instances=2",
        "--set",
        "cache.prefix=10",
        "--set",
        "ring.slots=64",
    ]);
    for _ in 0..20 {
        assert_balanced(&served.scrape());
    }
    served.wait_for_the_end();
    let last = served.scrape();
    assert_balanced(&last);
    let hits = last.sum("fenxi_cache_lookups_total", "result=\"hit\"");
    let times = "fenxi_label_latency_seconds_count";
    assert!(hits > 0.0 && last.sum(times, "source=\"cache\"") <= hits);
    let entries = last.sum("fenxi_cache_entries", "");
    assert!(entries > 0.0 && entries <= last.sum("fenxi_cache_capacity_entries", ""));
    // At the end of a capture hardly a flow has been silent for its timeout; over 150 of them many
    // have.
    assert!(last.sum("fenxi_flow_expiry_lag_seconds_count", "") > 0.0);
    assert!(last.sum("fenxi_flows_one_way_total", "") > 0.0);
    assert_agrees(&last, &served.drain());
}

#[test]
fn every_value_of_a_label_is_there_from_the_start() {
    let served = Served::start(&["--speed", "real"]);
    let (_, page) = served.get("/metrics");
    for sample in [
        "fenxi_port_dropped_packets_total{port=\"capture\",queue=\"0\",reason=\"ring_full\"} 0",
        "fenxi_port_dropped_packets_total{port=\"capture\",queue=\"all\",reason=\"nic_missed\"} 0",
        "fenxi_port_merged_packets_total{port=\"capture\",queue=\"0\"} 0",
        "fenxi_port_unsent_total{port=\"capture\",queue=\"0\",reason=\"too_long\"} 0",
        "fenxi_flows_begun_total{pipeline=\"0\",ip=\"6\",proto=\"udp\"} ",
        "fenxi_model_swaps_total{result=\"reverted\"} 0",
        "fenxi_label_latency_seconds_bucket\
         {pipeline=\"0\",task=\"default\",source=\"cache\",le=\"0.01\"} 0",
        "fenxi_series_waiting{pipeline=\"0\",task=\"default\",place=\"device\"} ",
        "fenxi_balance{pipeline=\"0\",task=\"all\",of=\"sent\"} 0",
        "fenxi_balance{pipeline=\"all\",task=\"all\",of=\"marks\"} 0",
        "fenxi_build_info{version=",
    ] {
        assert!(page.contains(sample), "{sample} is not in {page}");
    }
}

/// What is off has no metrics; that the page has all others is a test of the catalogue.
#[test]
fn the_scrape_has_metrics_of_the_page_in_its_order_and_none_of_what_is_off() {
    let served = Served::start(&["--speed", "real"]);
    let (_, page) = served.get("/metrics");
    let scraped: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let docs = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let mut described = docs.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.trim_end_matches('`');
        Some(format!("{name} {}", cells.next()?))
    });
    for metric in &scraped {
        assert!(described.any(|other| other == *metric), "{metric}: {scraped:?}");
    }
    for off in ["mark", "ipfix", "kafka", "connlabel", "nftset", "learn", "history", "service"] {
        let name = format!("fenxi_{off}");
        assert!(!scraped.iter().any(|metric| metric.starts_with(&name)), "{off}: {scraped:?}");
    }
    assert!(page.contains("\nfenxi_packets_total{"));
}

#[test]
fn promtool_has_nothing_to_say() {
    if Command::new("promtool").arg("--version").output().is_err() {
        return skip("promtool_has_nothing_to_say", "promtool (Debian package prometheus)");
    }
    let mut served = Served::start(&["--set", "cache.prefix=10"]);
    served.wait_for_the_end();
    let (_, page) = served.get("/metrics");
    crate::common::assert_promtool_is_content(&page);
}
