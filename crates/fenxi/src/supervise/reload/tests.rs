//! Every key of the catalogue against what a reload does with it.

use std::path::Path;
use std::sync::Arc;

use accel::Bundle;

use super::change;
use crate::sinks::class_labels;
use crate::sinks::mark::{behaviour_words, class_marks};
use crate::sinks::{known, sections};
use config::checked::SECTIONS;
use config::{Loaded, Shape, Sources};
use dataplane::Error;
use dataplane::bundle::{find_bundle, labels, open_bundle};
use dataplane::pipelines::analytics_config;

fn load(sets: &[&str]) -> Loaded {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    known(Sources::named(None, &sets)).load().unwrap().live()
}

fn bundle(loaded: &Loaded) -> Bundle {
    let config = &loaded.config;
    open_bundle(config, &find_bundle(config, None).unwrap()).unwrap()
}

/// Whether anything of the run learns of the difference.
fn reaches(now: &Loaded, next: &Loaded) -> Result<bool, Error> {
    let [before, after] = [now, next].map(bundle);
    let labels = labels(&before);
    let of_tasks = [labels.clone()];
    let in_use = [Arc::new(before.clone())];
    let (now, next) = (&now.config, &next.config);
    Ok(change::wants_sessions(now, next, &before, &after)?
        || analytics_config(now, &before) != analytics_config(next, &after)
        || change::flow(now, &in_use)? != change::flow(next, &in_use)?
        || class_marks(now, &of_tasks)? != class_marks(next, &of_tasks)?
        || behaviour_words(&now.mark) != behaviour_words(&next.mark)
        || class_labels(now, &of_tasks)? != class_labels(next, &of_tasks)?
        // Whatever the file is called, it is read again.
        || now.policy != next.policy
        || now.log.level != next.log.level
        || now.model.open_timeout != next.model.open_timeout)
}

/// Another value of each live key, and the keys without which nobody would ask for it.
fn live() -> Vec<(&'static str, String, Vec<&'static str>)> {
    let int8 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/app-id-k10-int8");
    let device =
        vec!["device.d.provider=simulated", "device.d.thread=own", "accel.devices=[\"d\"]"];
    let mut rows = vec![
        ("flow.idle_timeout_s", "7", vec![]),
        ("flow.active_timeout_s", "7", vec![]),
        ("flow.closed_timeout_s", "7", vec![]),
        ("flow.half_open_timeout_s", "7", vec![]),
        ("flow.established_timeout_s", "7", vec![]),
        ("flow.end_on_fin_rst", "false", vec![]),
        ("tag.mode", "off", vec![]),
        ("tag.dscp", "{ TLS = 7 }", vec![]),
        ("mark.as", "dscp", vec!["io.mode=mark"]),
        ("mark.mask", "0xff00ff00", vec!["io.mode=mark"]),
        ("mark.overwrite", "true", vec!["io.mode=mark"]),
        ("mark.class", "{ TLS = 0x7000000 }", vec!["io.mode=mark"]),
        ("mark.behaviour", "{ bulk = 0x100000 }", vec!["io.mode=mark"]),
        ("connlabel.class", "{ TLS = \"7\" }", vec![]),
        ("connlabel.overwrite", "true", vec!["connlabel.class={ TLS = \"7\" }"]),
        ("analytics.policy", "none", vec![]),
        ("analytics.timeout_ms", "7", vec![]),
        ("analytics.phi", "0.1", vec![]),
        ("analytics.batch_sizes", "[7]", vec![]),
        ("analytics.max_wait_ms", "70", vec![]),
        ("analytics.latency_goal_ms", "7", vec!["analytics.policy=slo"]),
        ("analytics.slo_delta", "0.1", vec!["analytics.policy=slo"]),
        ("cache.prefix", "7", vec![]),
        ("cache.entries", "7", vec!["cache.prefix=4"]),
        ("cache.audit", "0.7", vec!["cache.prefix=4"]),
        ("accel.devices", "[\"simulated\"]", vec![]),
        ("accel.simulated_t0_us", "7", vec![]),
        ("accel.simulated_t1_us", "7", vec![]),
        ("accel.fixed_sizes", "true", vec![]),
        ("model.min_confidence", "0.8", vec![]),
        ("model.open_timeout_s", "7", vec![]),
        ("model.class_confidence", "{ TLS = 0.8 }", vec![]),
        ("log.level", "debug", vec![]),
        ("policy.rules", "rules.toml", vec![]),
        ("policy.update", "delayed", vec![]),
        ("task.d.priority", "7", vec!["task.d.cache_entries=128"]),
    ];
    let of_devices = [
        ("device.d.provider", "cpu"),
        ("device.d.plugin", "p.so"),
        ("device.d.options", "{ a = \"b\" }"),
        ("device.d.batch_sizes", "[7]"),
        ("device.d.fixed_sizes", "true"),
        ("device.d.thread", "shared"),
        ("device.d.deadline_ms", "7"),
        ("device.d.profile", "p.toml"),
        ("device.d.simulated_t0_us", "7"),
        ("device.d.simulated_t1_us", "7"),
        ("device.d.faults", "error=3"),
    ];
    rows.extend(of_devices.map(|(key, value)| (key, value, device.clone())));
    let mut rows: Vec<_> =
        rows.into_iter().map(|(key, value, with)| (key, value.to_owned(), with)).collect();
    rows.push(("model.path", int8.display().to_string(), vec![]));
    rows
}

#[test]
fn every_live_key_reaches_something() {
    let rows = live();
    let all = SECTIONS.iter().copied().chain(sections());
    let all = all.filter(|it| it.shape == Shape::One || it.name == "device");
    for key in all.flat_map(|section| section.keys) {
        let path = key.path.replace("NAME", "d");
        let row = rows.iter().find(|(key, ..)| **key == *path);
        assert_eq!(row.is_some(), key.is_live(), "{path}");
    }
    for (key, value, with) in rows {
        let now = load(&with);
        let set = format!("{key}={value}");
        let next = load(&[&with[..], &[&set]].concat());
        let differences = next.effective().differences(&now.effective());
        assert!(differences.restart.is_empty(), "{key}: {differences:?}");
        assert!(!differences.live.is_empty(), "{key}");
        let taken = next.taken_over_by(&now).unwrap().live();
        assert_eq!(taken.config, next.config, "{key}");
        assert!(reaches(&now, &taken).unwrap(), "{key} reaches nothing");
        assert!(!reaches(&taken, &taken).unwrap(), "{key}");
    }
}

#[test]
fn other_keys_keep_their_values_until_a_restart() {
    let now = load(&["io.mode=mark"]);
    for set in [
        "io.burst=7",
        "io.mode=tap",
        "io.interfaces=[\"x\"]",
        "io.promiscuous=true",
        "io.snap_length=700",
        "io.block_bytes=65536",
        "io.blocks=7",
        "io.block_timeout_ms=7",
        "flow.k=7",
        "flow.hash=fenxi",
        "flow.hash_seed=7",
        "flow.max_flows=700",
        "flow.buckets=1048576",
        "mark.queue=700",
        "ring.slots=16",
        "pipeline.layout=2:1:1",
        "pipeline.instances=7",
        "pipeline.cores=[0, 1, 2]",
        "accel.library=l",
        "records.queue=7000",
        "records.drain_s=7",
        "control.http=",
        "control.http_exposed=true",
        "control.socket=",
        "control.ready_without_interfaces=true",
        "process.sandbox=false",
    ] {
        let next = load(&["io.mode=mark", set]);
        let differences = next.effective().differences(&now.effective());
        assert!(differences.live.is_empty(), "{set}");
        let keys: Vec<&str> = differences.restart.iter().map(|it| &*it.key).collect();
        let key = set.split('=').next().unwrap();
        match key {
            // With the defaults that the mode brings.
            "io.mode" => assert_eq!(keys, [key, "io.capture", "analytics.policy"]),
            _ => assert_eq!(keys, [key], "{set}"),
        }
        let taken = next.taken_over_by(&now).unwrap().live();
        assert_eq!(taken.config, now.config, "{set}");
    }
}

#[test]
fn live_keys_must_fit_those_that_wait_for_a_restart() {
    let now = load(&[]);
    // By itself it is sound: the series is to be longer, too.
    let next = load(&["flow.k=20", "cache.prefix=15"]);
    let errors = next.taken_over_by(&now).unwrap_err().to_string();
    assert!(errors.contains("cache.prefix = 15"), "{errors}");
    assert!(errors.contains("flow.k = 10 (built-in)"), "{errors}");
    assert!(errors.contains("wait for a restart"), "{errors}");
}
