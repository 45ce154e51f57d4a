//! Tests of the whole way from text to the checked form, and of `configs/1-1-1.toml`.

use std::time::Duration;

use accel::Provider;

use crate::checked::SECTIONS;
use analytics::Policy;

use crate::checked::{DeviceThread, FlowHash, Task};
use crate::effective::Effective;
use crate::keys::{Key, Shape};
use crate::origin::Origin;
use crate::setting::Setting;
use crate::{Config, ConfigErrors, Settings, layers};

mod devices;
mod mark;
mod nearest;
mod several;
mod tasks;
mod wrong;

const EXAMPLE: &str = include_str!("../../../configs/1-1-1.toml");

/// The built-in defaults.
pub(super) fn defaults() -> Settings {
    Settings::new(SECTIONS.to_vec())
}

pub(super) fn load(
    file: &str,
    variables: &[(&str, &str)],
    sets: &[&str],
) -> Result<(Config, Effective), Vec<String>> {
    let variables: Vec<_> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let file = layers::FileLayer { name: "c.toml".to_owned(), text: file.to_owned() };
    let loaded = Config::from_layers(defaults(), &[file], &variables, &sets, Vec::new());
    let loaded = loaded.map_err(|errors| match errors {
        ConfigErrors::Invalid(lines) => lines,
        ConfigErrors::Unreadable(line) => panic!("nothing was read: {line}"),
    })?;
    let effective = loaded.effective();
    Ok((loaded.config, effective))
}

/// The keys of the sections that are one table.
pub(super) fn keys() -> impl Iterator<Item = &'static Key> {
    let single = SECTIONS.iter().filter(|section| section.shape == Shape::One);
    single.flat_map(|section| section.keys)
}

fn origin(effective: &Effective, key: &str) -> String {
    let row = effective.config.iter().find(|row| row.key == key);
    row.unwrap_or_else(|| panic!("{key} is not shown")).origin.to_string()
}

/// The tasks, as if all had been set in one place.
fn without_origins(config: &Config) -> Vec<Task> {
    let mut tasks = config.tasks.clone();
    for task in &mut tasks {
        for origin in [
            &mut task.origin,
            &mut task.model_origin,
            &mut task.depths_origin,
            &mut task.when_origin,
            &mut task.policy_origin,
        ] {
            *origin = Origin::Set;
        }
        for row in &mut task.dscp {
            row.origin = Origin::Set;
        }
        for row in &mut task.mark {
            row.origin = Origin::Set;
        }
    }
    tasks
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_layers() {
    let file = "[pipeline]\nlayout = \"1:1\"\n[cache]\nprefix = 20\n[flow]\nk = 40\nzzz = 1";
    let lines = load(file, &[("FENXI_IO_BURST", "0")], &["ring.slots=17"]).unwrap_err();
    let starts = [
        "c.toml:6: flow.k",
        "c.toml:7: unknown",
        "FENXI_IO_BURST: io.burst",
        "--set: ring.slots",
        "pipeline.layout",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line} does not start with {start}");
    }
}

#[test]
fn later_layers_win_and_values_keep_their_origin() {
    let file = "[flow]\nk = 5\nidle_timeout_s = 6\n\nactive_timeout_s = 7";
    let variables = [
        ("FENXI_FLOW_IDLE_TIMEOUT_S", "8"),
        ("FENXI_FLOW_ACTIVE_TIMEOUT_S", "9"),
        ("FENXI_LOG", "debug"),
        ("HOME", "/"),
    ];
    let (config, effective) =
        load(file, &variables, &["flow.active_timeout_s=10", "flow.active_timeout_s = 11"])
            .unwrap();
    assert_eq!(config.flow.k, 5);
    assert_eq!(config.log.level, "debug");
    assert_eq!(origin(&effective, "log.level"), "FENXI_LOG");
    assert_eq!(config.flow.idle_timeout, Some(Duration::from_secs(8)));
    assert_eq!(config.flow.active_timeout, Some(Duration::from_secs(11)));
    assert_eq!(origin(&effective, "flow.k"), "c.toml:2");
    assert_eq!(origin(&effective, "flow.idle_timeout_s"), "FENXI_FLOW_IDLE_TIMEOUT_S");
    assert_eq!(origin(&effective, "flow.active_timeout_s"), "--set");
    assert_eq!(origin(&effective, "flow.max_flows"), "built-in");
}

#[test]
fn a_stray_variable_is_an_error_with_a_suggestion() {
    let lines = load("", &[("FENXI_FLOW_IDLE_TIMEOUT", "8")], &[]).unwrap_err();
    assert!(lines[0].starts_with("FENXI_FLOW_IDLE_TIMEOUT: no key"), "{lines:?}");
    assert!(lines[0].contains("did you mean FENXI_FLOW_IDLE_TIMEOUT_S?"), "{lines:?}");
}

#[test]
fn bare_words_and_toml_values_are_taken_on_the_command_line() {
    let sets = [
        "flow.hash=fenxi",
        "model.path=12",
        "accel.devices=[\"simulated\"]",
        "analytics.policy='none'",
        "tag.mode=off",
    ];
    let (config, _) = load("", &[("FENXI_ACCEL_LIBRARY", "/lib/o.so")], &sets).unwrap();
    assert_eq!(config.flow.hash, FlowHash::Fenxi);
    assert_eq!(config.model.path, Some("12".into()));
    assert_eq!(config.accel.devices[0].provider.name, "simulated");
    assert_eq!(config.accel.library, Some("/lib/o.so".into()));
    assert_eq!(config.analytics.policy(), Policy::None);
    assert!(!config.tag.enabled);
}

#[test]
fn defaults_become_the_checked_form() {
    let (config, _) = load("", &[], &[]).unwrap();
    assert_eq!((config.flow.hash, config.flow.hash_seed), (FlowHash::Keyed, None));
    assert_eq!(
        (config.flow.active_timeout, config.flow.closed_timeout),
        (None, Duration::from_secs(5))
    );
    assert_eq!(config.flow.buckets, 1 << 18);
    assert_eq!(config.analytics.timeout, Duration::from_millis(10));
    assert_eq!(config.analytics.batch_sizes, [8, 16, 32, 64, 128, 256]);
    assert_eq!((config.cache, config.model.path, config.accel.library), (None, None, None));
    let [native] = config.accel.devices.as_slice() else {
        panic!("{:?}", config.accel.devices);
    };
    for (device, name) in [(native, "native"), (native.otherwise.as_deref().unwrap(), "cpu")] {
        assert_eq!(
            (device.name.as_str(), device.provider, device.thread),
            (name, Provider::parse(name).unwrap(), DeviceThread::Shared)
        );
        assert_eq!(device.deadline, Some(Duration::from_secs(1)));
    }
    assert_eq!(config.model.min_confidence, None);
    assert!(config.tag.enabled && config.tag.dscp.len() == 8);
    assert!(config.tag.dscp.iter().all(|mapping| !mapping.required));
}

#[test]
fn buckets_left_open_are_a_quarter_of_the_flows_rounded_up() {
    for (max_flows, buckets) in [("64", 16), ("65", 32), ("1000", 256), ("67108864", 1 << 24)] {
        let (config, _) = load("", &[], &[&format!("flow.max_flows={max_flows}")]).unwrap();
        assert_eq!(config.flow.buckets, buckets, "{max_flows}");
    }
    let (config, _) = load("", &[], &["flow.buckets=8", "flow.max_flows=64"]).unwrap();
    assert_eq!(config.flow.buckets, 8);
}

#[test]
fn the_cache_is_on_with_a_prefix_and_room() {
    assert!(load("", &[], &["cache.prefix=10", "cache.entries=0"]).unwrap().0.cache.is_none());
    let cache = load("", &[], &["cache.prefix=10"]).unwrap().0.cache.unwrap();
    assert_eq!((cache.prefix, cache.entries, cache.audit), (10, 65_536, 0.01));
}

#[test]
fn a_dscp_table_replaces_the_map_and_an_entry_adds_to_it() {
    let mapping = |config: &Config| -> Vec<_> {
        config
            .tag
            .dscp
            .iter()
            .map(|entry| (entry.label.clone(), entry.value.code_point(), entry.required))
            .collect()
    };
    let entry = |label: &str, dscp, required| (label.to_owned(), dscp, required);
    let file = "[tag.dscp]\nDNS = \"CS1\"\nTLS = \"AF11\"\n\"a b\" = 63";
    let (config, effective) = load(file, &[], &["tag.dscp.NTP=EF", "tag.dscp.DNS=9"]).unwrap();
    let expected = [
        entry("DNS", 9, true),
        entry("NTP", 46, true),
        entry("TLS", 10, false),
        entry("a b", 63, true),
    ];
    assert_eq!(mapping(&config), expected);
    assert_eq!(origin(&effective, "tag.dscp.\"a b\""), "c.toml:4");
    assert_eq!(origin(&effective, "tag.dscp.DNS"), "--set");

    let (config, _) = load("", &[], &["tag.dscp.TLS=EF"]).unwrap();
    assert_eq!(config.tag.dscp.len(), 8);
    assert!(mapping(&config).contains(&entry("TLS", 46, true)));

    let (config, _) = load("", &[("FENXI_TAG_DSCP", "{ X = 1 }")], &[]).unwrap();
    assert_eq!(mapping(&config), [entry("X", 1, true)]);
    assert!(load("[tag]\ndscp = {}", &[], &[]).unwrap().0.tag.dscp.is_empty());
}

#[test]
fn what_is_shown_can_be_read_back() {
    let file = "[tag.dscp]\n\"a \\\"b\\\" # c\" = 5\n[cache]\nprefix = 4\n[model]\npath = 'C:\\x'";
    for file in ["", file, "[tag]\ndscp = {}\n[analytics]\nphi = 0.25"] {
        let (mut config, effective) = load(file, &[], &[]).unwrap();
        let (mut again, effective_again) = load(&effective.to_toml(true), &[], &[]).unwrap();
        for entry in config.tag.dscp.iter_mut().chain(&mut again.tag.dscp) {
            entry.origin = Origin::Set;
        }
        for entry in config.mark.class.iter_mut().chain(&mut again.mark.class) {
            entry.origin = Origin::Set;
        }
        (config.tasks, again.tasks) = (without_origins(&config), without_origins(&again));
        again.flow.k_origin = config.flow.k_origin.clone();
        again.io.capture_origin = config.io.capture_origin.clone();
        assert_eq!(config, again);
        assert_eq!(effective.config.len(), effective_again.config.len());
    }
}

#[test]
fn what_is_shown_names_every_key_with_its_origin() {
    let (_, effective) = load("[flow]\nk = 5", &[], &["io.burst=32"]).unwrap();
    let shown = effective.to_toml(true);
    assert!(shown.starts_with("[io]\nburst = 32 "), "{shown}");
    assert!(
        shown.contains("\nk = 5 ") && shown.contains("# c.toml:2\n") && shown.contains("# --set\n"),
        "{shown}"
    );
    let json = serde_json::to_value(&effective).unwrap();
    let rows = json["config"].as_array().unwrap();
    let maps = ["tag.dscp", "mark.class"]; // shown entry by entry
    for key in keys().filter(|key| !maps.contains(&key.path)) {
        assert!(rows.iter().any(|row| row["key"] == key.path), "{}", key.path);
    }
    let row = rows.iter().find(|row| row["key"] == "flow.k").unwrap();
    assert_eq!(
        (&row["value"], &row["origin"], &row["unit"]),
        (&5.into(), &"c.toml:2".into(), &"packets".into())
    );
}

/// The commented table shows what a device has that says nothing of itself.
#[test]
fn the_example_files_device_has_the_defaults() {
    let (_, table) = EXAMPLE.split_once("# [device.NAME]").expect("the table");
    let table: Vec<_> = table.lines().map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
    let file = format!("[accel]\ndevices = [\"NAME\"]\n[device.NAME]\n{}", table.join("\n"));
    let (shown, _) = load(&file, &[], &[]).unwrap();
    let (built_in, _) = load("", &[], &["accel.devices=[\"cpu\"]"]).unwrap();
    let mut device = shown.accel.devices[0].clone();
    assert_eq!(device.name, "NAME");
    device.name = "cpu".to_owned();
    assert_eq!(device, built_in.accel.devices[0]);
}

#[test]
fn lasting_flows_are_recorded_live_unless_the_user_says_otherwise() {
    let timeouts = |sets: &[&str]| {
        let (config, _) = load("", &[], sets).unwrap();
        let flow = config.flow;
        [flow.active_timeout, flow.active.live].map(|it| it.map(|it| it.as_secs()))
    };
    assert_eq!(timeouts(&[]), [None, Some(120)]);
    assert_eq!(timeouts(&["flow.active_timeout_s=0"]), [None, None]);
    assert_eq!(timeouts(&["flow.active_timeout_s=7"]), [Some(7), Some(7)]);
}

#[test]
fn live_half_open_flows_end_early_and_established_ones_late_unless_the_user_says_otherwise() {
    let timeouts = |sets: &[&str]| {
        let (config, _) = load("", &[], sets).unwrap();
        let flow = config.flow;
        let half_open = [flow.half_open_timeout, flow.half_open.live];
        let established = [flow.established_timeout, flow.established.live];
        [half_open, established].map(|it| it.map(|it| it.map(|it| it.as_secs())))
    };
    assert_eq!(timeouts(&[]), [[None, Some(10)], [None, Some(2100)]]);
    let both = |value: &str| {
        let names = ["half_open", "established"];
        let sets = names.map(|name| format!("flow.{name}_timeout_s={value}"));
        timeouts(&[&sets[0], &sets[1]])
    };
    assert_eq!(both("0"), [[None; 2]; 2]);
    assert_eq!(both("7"), [[Some(7); 2]; 2]);
}

#[test]
fn inline_goes_between_two_interfaces() {
    for names in ["[]", "[\"a\"]", "[\"a\", \"b\", \"c\"]", "[\"a\", \"a\"]"] {
        let interfaces = format!("io.interfaces={names}");
        assert!(load("", &[], &["io.mode=inline", &interfaces]).is_err(), "{names}");
    }
    let set = "io.interfaces=[\"a\", \"b\"]";
    let (config, _) = load("", &[], &["io.mode=inline", set]).unwrap();
    assert_eq!(config.io.interfaces, ["a", "b"]);
}

#[test]
fn paths_and_variables_are_unique_and_defaults_fit_their_keys() {
    let mut paths: Vec<_> = keys().map(|key| key.path).collect();
    let mut variables: Vec<_> = keys().map(Key::variable).collect();
    let mut sections: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
    for list in [&mut paths, &mut sections] {
        let before = list.len();
        list.sort_unstable();
        list.dedup();
        assert_eq!(list.len(), before);
    }
    variables.sort_unstable();
    variables.dedup();
    assert_eq!(variables.len(), keys().count());
    assert!(variables.contains(&"FENXI_FLOW_IDLE_TIMEOUT_S".to_owned()));
    // A section name with an underscore would make variables ambiguous to a reader.
    assert!(keys().all(|key| !key.section().contains('_') && !key.name().contains('.')));
    assert!(keys().all(|key| !key.why.is_empty() && !key.why.contains('\n')));
    let all = SECTIONS.iter().flat_map(|section| section.keys);
    for key in all {
        assert!(!Setting::built_in(key).refused, "{}", key.path);
    }
}
