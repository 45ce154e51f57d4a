//! `check` and `config show`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::ran;
use crate::common::{fenxi, root, run};

/// The first lines have no word that an operator need not know.
#[test]
fn check_says_what_a_run_does() {
    let said = ran(&["check", "--config-only"]).expect_code(0).stdout;
    for part in [
        "ok, the configuration is valid\n\nwatches   no interface; mode tap\n",
        "\nflows     at most 1048576, ",
        "\nmodel     protocol 2.0.0 (29 classes)\n",
        "\nasked     by port at once, or after 1, 2, 3, 5, 10 packets with payload\n",
        "\nlabels    with the packet that decides; recorded only (mode tap)\n",
        "\ntasks\n  default (protocol 2.0.0; native (default: native takes this model)) ─► \
         records\n",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for word in ["K ", "pipeline", "priority", "batch", "inline", "ring"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
}

#[test]
fn check_draws_the_pipeline() {
    let deep = ["check", "--deep", "--config-only"];
    // A model so small that it is asked inline on the busiest machine.
    let small = format!("model.path={}", root().join("models/protocol-small").display());
    let drawn = ran(&[&deep[..], &["--set", &small]].concat()).expect_code(0).stdout;
    for part in [
        "ok, the configuration is valid\n\npipeline 1:0:0, 1 instance\n",
        "after 1, 2, 3, 5, 10 packets with payload: inline, native: protocol",
        "\nwho labels\n  default         inline: a flow worker would spend ",
        "; native (default: native takes this model); inline; ",
    ] {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
    let layout = ["--set", "pipeline.layout=1:1:1"];
    let drawn = ran(&[&deep[..], &layout].concat()).expect_code(0).stdout;
    assert!(drawn.contains("\n\npipeline 1:1:1, 1 instance\n"), "{drawn}");
    let parts = [
        "1048576 flows, ",
        " labels      by port at once, or after 1, 2, 3, 5, 10 packets with payload; 4096 slots\n",
        "carry-over, T = 10ms, ",
        "cache: off",
        "native: protocol",
        "; native (default: native takes this model); ",
    ];
    assert!(parts.iter().all(|part| drawn.contains(part)), "{drawn}");
    // From top to bottom, as the packets and series go.
    let order = ["port", "flow manager", "ring", "analytics manager", "device"]
        .map(|part| drawn.find(part).unwrap());
    assert!(order.is_sorted(), "{drawn}");

    let sets = [
        "tag.mode=off",
        "cache.prefix=6",
        "analytics.policy=timeout",
        "accel.devices=[\"simulated\"]",
    ];
    let sets = sets.into_iter().flat_map(|set| ["--set", set]);
    let drawn = run(fenxi(deep.into_iter().chain(sets))).expect_code(0).stdout;
    let parts = [
        "labels: recorded only (mode tap)",
        "prefix 6 of 10, 65536 entries, while it saves time",
        "timeout, T = 10ms",
        "simulated: protocol",
    ];
    assert!(parts.iter().all(|part| drawn.contains(part)), "{drawn}");

    assert_eq!(drawn.matches("\n  analytics-0.0 ").count(), 1, "{drawn}");
    let waits = |set: &str| {
        let sets = [&["check", "--config-only", "--set", set], &layout[..]].concat();
        ran(&sets).expect_code(0).stdout
    };
    let fixed = waits("accel.fixed_sizes=true");
    assert!(
        fixed.contains("\nlabels    a label waits 10 ms for a batch, 50 ms at most; "),
        "{fixed}"
    );
    let any = waits("accel.fixed_sizes=false");
    assert!(any.contains("a label waits up to 10 ms for a batch; any size fits, so "), "{any}");

    // What is done about each label, in the mode that runs.
    let drawn = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", *set]);
        let command = ["check", "--config-only"].into_iter().chain(sets);
        run(fenxi(command)).expect_code(0).stdout
    };
    let mark = drawn(&["io.mode=mark"]);
    for part in [
        "; 8 of 29 set a mark\n",
        "\nlabels (marks of connections under the mask 0xff000000)\n  0x1000000       TLS\n",
        "\n  none            DCERPC, QUIC, SMTP, ",
    ] {
        assert!(mark.contains(part), "{part}: {mark}");
    }
    assert!(!mark.contains("AF21"), "{mark}");
    let dscp = drawn(&["io.mode=mark", "mark.as=dscp"]);
    assert!(dscp.contains("under the mask 0xbf)\n"), "{dscp}");
    assert!(dscp.contains("\n  0x88 (CS1)      NetBIOS\n"), "{dscp}");
    let inline = drawn(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    assert!(inline.contains("\nlabels (DSCP of packets)\n  CS1             NetBIOS\n"), "{inline}");

    let shipped =
        ran(&["check", "--config-only", "--config", "configs/1-1-1.toml"]).expect_code(0).stdout;
    let args = [&["check", "--config-only"], &layout[..]].concat();
    assert_eq!(shipped, ran(&args).stdout);
    let refused = ran(&["check", "--set", "flow.k=99"]).expect_code(78);
    assert_eq!(refused.stdout, "");
    assert!(refused.stderr.contains("--set: flow.k: found 99"), "{}", refused.stderr);
}

/// A task stands below the tasks whose labels it waits for. For each task the graph shows what its
/// labels do.
#[test]
fn check_draws_the_graph_of_the_tasks() {
    let args = ["check", "--config-only", "--config", "configs/three-tasks.toml"];
    let short = ran(&args).expect_code(0).stdout;
    let line = "\n  └─► second (app-id-k10 1.0.2; native (default: native takes this model)) when \
                protocol = tcp and protocol.confidence < 0.9 ─► records\n";
    assert!(short.contains(line), "{short}");
    let drawn = ran(&[&args[..], &["--deep"]].concat()).expect_code(0).stdout;
    for part in [
        "\ntasks\n  protocol (protocol 2.0.0; K 3, 5, 10; native (default: native takes this \
         model); slo 2 ms; priority 9) ─► mark 0xff000000, records\n",
        "  └─► second (app-id-k10 1.0.2; K 10; native (default: native takes this model); max; \
         priority 0) when protocol = tcp and protocol.confidence < 0.9 ─► records\n",
        "records\n  device (iot-family 1.2.0; K 3, 10; native; slo 20 ms; priority 3) when \
         direction = out, inside and sample = 0.5 ─► mark 0xff0000, records\n",
        "\nlabels (marks of connections under the mask 0xff000000)\n  0x1000000       STUN, SIP\n",
        "\nlabels of device (marks of connections under the mask 0xff0000)\n  0x10000         \
         D-LinkCam, ",
    ] {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
    assert!(!drawn.contains("labels of second"), "{drawn}");
}

#[test]
fn check_says_who_runs_where() {
    let sets = [
        "pipeline.layout=1:2:3",
        "pipeline.instances=2",
        "pipeline.cores=[9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 10, 11]",
        "device.slow.provider=simulated",
        "device.slow.thread=own",
        "accel.devices=[\"cpu\", \"slow\", \"cpu\"]",
    ];
    let sets = sets.into_iter().flat_map(|set| ["--set", set]);
    let drawn = run(fenxi(["check", "--config-only", "--deep"].into_iter().chain(sets)))
        .expect_code(0)
        .stdout;
    assert!(drawn.contains("\npipeline 1:2:3, 2 instances"), "{drawn}");
    let (_, threads) = drawn.split_once("threads (as pipeline.cores says)\n").unwrap();
    let line = |name: &str| -> String {
        let mut lines = threads.lines();
        let line = lines.find(|line| line.trim().starts_with(name)).expect(name);
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(threads.lines().count(), 12, "{drawn}");
    assert_eq!(line("flow-0.0"), "flow-0.0 core 9 ring to analytics-0.0, ring to analytics-0.1");
    assert_eq!(
        line("analytics-0.0"),
        "analytics-0.0 core 8 batches to device-0.0, batches to device-0.2"
    );
    assert_eq!(line("device-0.1"), "device-0.1 core 5 runs slow (simulated)");
    assert_eq!(line("flow-1.0"), "flow-1.0 core 3 ring to analytics-1.0, ring to analytics-1.1");
}

#[test]
fn config_show_tells_origins_and_is_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = ["first.toml", "second.toml"]
        .map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    fs::write(&first, "[flow]\nidle_timeout_s = 7\n[tag.dscp]\n\"odd \\\" label\" = 13\n").unwrap();
    let mut command =
        fenxi(["config", "show", "-ao", "--config", &first, "--set", "cache.entries=9"]);
    command.env("FENXI_IO_BURST", "8");
    let shown = run(command).expect_code(0).stdout;
    for (key, value, origin) in [
        ("idle_timeout_s", "= 7 ", format!("# {first}:2")),
        ("'odd \" label'", "= 13 ", format!("# {first}:4")),
        ("burst", "= 8 ", "# FENXI_IO_BURST".to_owned()),
        ("entries", "= 9 ", "# --set".to_owned()),
        ("k ", "= 10 ", "# built-in".to_owned()),
    ] {
        let is_it = |line: &&str| line.starts_with(key) && line.contains(value);
        let line = shown.lines().find(is_it).expect(key);
        assert!(line.ends_with(&origin), "{line}");
    }

    let plain = ran(&["config", "show", "--all", "--config", &first]).stdout;
    assert!(plain.contains("\nidle_timeout_s = 7\n"), "{plain}");
    assert!(!plain.contains('#'), "{plain}");

    // What is set, and ten keys.
    let short = ran(&["config", "show", "--config", &first]).stdout;
    let keys = |text: &str| text.lines().filter(|line| line.contains(" = ")).count();
    let first_keys = ran(&["config", "show"]).stdout;
    assert_eq!((keys(&short), keys(&first_keys)), (12, 10), "{short}");
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let mut section = "";
    for line in first_keys.lines() {
        section = line.strip_prefix('[').map_or(section, |name| name.trim_end_matches(']'));
        let named = line.split_once(" = ").map(|(key, _)| format!("`{section}.{key}`"));
        assert!(named.is_none_or(|key| page.contains(&key)), "{line}");
    }
    assert!(short.contains("\n[tag.dscp]\n'odd \" label' = 13\n"), "{short}");
    let (_, hint) = short.rsplit_once("\n\n# ").unwrap();
    let others = keys(&plain) - 12;
    let said = format!("{others} other keys have their defaults: fenxi config show --all\n");
    assert_eq!(hint, said);

    let values = |args: &[&str]| {
        let shown = ran(&[&["config", "show", "--json"], args].concat()).expect_code(0).json();
        let keys = shown["config"].as_array().unwrap().clone();
        keys.into_iter().map(|key| (key["key"].clone(), key["value"].clone())).collect::<Vec<_>>()
    };
    let before = values(&["--config", &first, "--set", "cache.entries=9", "--set", "io.burst=8"]);
    fs::write(&second, &shown).unwrap();
    assert_eq!(values(&["--config", &second]), before);
    fs::write(&second, &short).unwrap();
    assert_eq!(values(&["--config", &second]), values(&["--config", &first]));
}

/// `fenxi run --mode mark` with nothing else set: what it does differently from other modes is
/// told.
#[test]
fn defaults_of_mode_mark_are_told() {
    let mark = ["--set", "io.mode=mark"];
    let show = |more: &[&str]| {
        let shown = ran(&[&["config", "show", "--all", "--origin"], &mark[..], more].concat());
        let shown = shown.expect_code(0).stdout;
        let wanted = ["capture = ", "policy = "];
        let lines = shown.lines().filter(|it| wanted.iter().any(|key| it.starts_with(key)));
        let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        words.collect::<Vec<_>>()
    };
    let by_mode = |line: &str| format!("{line} # default of mode mark");
    let expected = ["capture = \"first\"", "policy = \"slo\""].map(by_mode);
    assert_eq!(show(&[]), expected);
    let sets = ["--set", "io.capture=all", "--set", "analytics.policy=none"];
    let expected = ["capture = \"all\" # --set", "policy = \"none\" # --set"];
    assert_eq!(show(&sets), expected);

    let check = |more: &[&str]| {
        let interfaces = ["check", "--config-only", "--set", "io.interfaces=[\"lo\"]"];
        let drawn = ran(&[&interfaces[..], &mark, more].concat());
        drawn.expect_code(0).stdout
    };
    let drawn = check(&[]);
    let port = "lo; mode mark; first packets of each flow only (default of mode mark)\n";
    assert!(drawn.contains(port), "{drawn}");
    let drawn = check(&["--set", "pipeline.layout=1:1:1"]);
    let policy = "99 of 100 labels within 2 ms (default of mode mark); ";
    assert!(drawn.contains(port) && drawn.contains(policy), "{drawn}");
    let drawn = check(&sets);
    assert!(!drawn.contains("default of mode mark"), "{drawn}");
}

#[test]
fn config_show_as_json_names_every_key() {
    let shown = ran(&["config", "show", "--json", "--set", "flow.k=8"]).expect_code(0).json();
    let keys = shown["config"].as_array().unwrap();
    let k = keys.iter().find(|key| key["key"] == "flow.k").unwrap();
    assert_eq!(
        (&k["value"], &k["origin"], &k["unit"]),
        (&8.into(), &"--set".into(), &"packets".into())
    );
    assert!(keys.iter().all(|key| !key["why"].as_str().unwrap().is_empty()));
    let sections: BTreeSet<&str> =
        keys.iter().map(|key| key["key"].as_str().unwrap().split('.').next().unwrap()).collect();
    let expected = [
        "accel",
        "analytics",
        "behaviour",
        "cache",
        "connlabel",
        "control",
        "dpdk",
        "flow",
        "history",
        "hosts",
        "io",
        "ipfix",
        "kafka",
        "learn",
        "log",
        "mark",
        "measure",
        "model",
        "names",
        "observe",
        "pipeline",
        "policy",
        "process",
        "records",
        "ring",
        "servers",
        "tag",
        "xdp",
    ];
    assert_eq!(sections, expected.into());
}

/// Every `FENXI_*` variable that a document or a script names may stand in the environment of every
/// command.
#[test]
fn documented_variables_are_no_errors() {
    let mut named = BTreeSet::new();
    for file in documents() {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        // FENXI_SECTION_KEY stands for all keys.
        named.extend(
            words
                .filter(|word| {
                    word.starts_with("FENXI_") && word.len() > 6 && *word != "FENXI_SECTION_KEY"
                })
                .map(str::to_owned),
        );
    }
    for name in ["FENXI_TRAIN_VENV", "FENXI_REQUIRE_ALL"] {
        assert!(named.contains(name), "{named:?}");
    }
    let keys: serde_json::Value =
        serde_json::from_str(&ran(&["config", "show", "--json"]).stdout).unwrap();
    let keys: BTreeSet<String> = keys["config"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            format!("FENXI_{}", row["key"].as_str().unwrap().replace('.', "_").to_uppercase())
        })
        .collect();
    let others = named.iter().filter(|name| !keys.contains(*name));
    let others: Vec<_> =
        others.filter(|name| !["FENXI_CONFIG", "FENXI_LOG"].contains(&name.as_str())).collect();
    let mut command = fenxi(["config", "show"]);
    command.envs(others.iter().map(|name| (name, "x")));
    run(command).expect_code(0);
    let mut command = fenxi(["config", "show"]);
    command.env("FENXI_NONESUCH", "x");
    run(command).expect_code(78);
}

/// What a person reads or runs.
fn documents() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for place in [
        "README.md",
        "CONTRIBUTING.md",
        "Makefile",
        ".ci/run",
        "docs",
        "scripts",
        "packaging",
        "configs",
        "models/train",
    ] {
        add(&root().join(place), &mut files);
    }
    files
}

fn add(path: &Path, files: &mut Vec<PathBuf>) {
    match fs::read_dir(path) {
        Err(_) => files.push(path.to_owned()),
        Ok(entries) => entries.for_each(|entry| add(&entry.unwrap().path(), files)),
    }
}
