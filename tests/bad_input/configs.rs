//! Configurations: every problem is named with file and line (or the option, or the variable), all
//! of them at once, and the exit code is 78.

use super::{assert_refused, assert_says};
use crate::common::{Finished, SIMULATED, demo, fenxi, root, run};

/// Replays with a configuration file of this text.
fn with_file(text: &str, more: &[&str]) -> Finished {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, text).unwrap();
    let mut command = fenxi(["replay", "--json", "--config"]);
    command.arg(path).arg(demo()).args(more);
    run(command)
}

fn with_set(sets: &[&str]) -> Finished {
    let mut command = fenxi(["replay", "--json"]);
    command.arg(demo());
    for set in sets {
        command.args(["--set", set]);
    }
    run(command)
}

#[test]
fn problems_of_a_file_have_their_line() {
    for (text, parts) in [
        (
            "[flow]\n\nidle_timeout = 3\n",
            &["c.toml:3: unknown key flow.idle_timeout", "did you mean flow.idle_timeout_s?"][..],
        ),
        ("[flwo]\nk = 3\n", &["c.toml:1: unknown section [flwo]", "did you mean [flow]?"]),
        ("k = 3\n", &["c.toml:1: unknown key k", "did you mean flow.k?"]),
        (
            "[flow]\nk = \"ten\"\n",
            &["c.toml:2: flow.k: found \"ten\", expected an integer from 1 to 32 (packets)"],
        ),
        ("[flow]\nk = 33\n", &["c.toml:2: flow.k: found 33, expected an integer from 1 to 32"]),
        (
            "[analytics]\npolicy = \"carryover\"\n",
            &["c.toml:2: analytics.policy: ", "did you mean \"carry-over\"?"],
        ),
        (
            "[io]\nbackend = \"af_paket\"\n",
            &["c.toml:2: io.backend: ", "did you mean \"af_packet\"?"],
        ),
        (
            "[tag.dscp]\nTLS = \"AF44\"\n",
            &["c.toml:2: tag.dscp.TLS: found \"AF44\", expected a DSCP name"],
        ),
        (
            "[cache]\nprefix = 12\n",
            &[
                "cache.prefix = 12 (",
                "c.toml:2) with flow.k = 10 (built-in): impossible combination",
            ],
        ),
        ("[flow]\nk = = 3\n", &["c.toml:2:", "not TOML: "]),
        ("[flow\n", &["c.toml:1:", "not TOML: "]),
        (
            "[device.npu]\nprovdier = \"qnn\"\n",
            &["c.toml:2: unknown key device.npu.provdier", "did you mean provider?"],
        ),
        (
            "[pipeline]\nlayout = \"2:1\"\n",
            &["pipeline.layout = \"2:1\" (", "c.toml:2): expected a layout F:A:D"],
        ),
    ] {
        assert_refused(with_file(text, &[]), 78, parts);
    }
}

/// What tasks say of each other, and of the models of each other.
#[test]
fn tasks_that_do_not_fit_are_refused_with_their_line() {
    let check = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, text).unwrap();
        let mut command = fenxi(["check", "--config-only", "--config"]);
        command.arg(path);
        run(command)
    };
    let models = root().join("models");
    let model = |name: &str| format!("model = \"{}\"\n", models.join(name).display());
    let [app, protocol] = ["app-id-k10", "protocol"].map(model);
    let two = |when: &str| {
        format!("[[task]]\nname = \"a\"\n{app}[[task]]\nname = \"b\"\n{app}when = '{when}'\n")
    };
    let cycle = two("a.label = TLS").replacen("[[task]]", "[[task]]\nwhen = 'b.label = TLS'", 1);
    for (text, says) in [
        (
            two("port = https"),
            "c.toml:7: task.b.when: port = https: found https, expected a port from 0 to 65535",
        ),
        (
            two("c.confidence < 0.9"),
            "c.toml:7: task.b.when: c.confidence < 0.9: unknown task c; the others are a",
        ),
        (
            two("a.confidence < 0.5 and a.confidence >= 0.9"),
            "c.toml:7: task.b.when: a.confidence < 0.5 and a.confidence >= 0.9 never hold together",
        ),
        (cycle, "c.toml:2: task.a.when: the tasks a -> b -> a wait for each other"),
        (
            two("a.label = TSL"),
            "c.toml:7: task.b.when: a.label = TSL: the model app-id-k10 of task a has no label \
             \"TSL\"",
        ),
        (
            two("") + &format!("[[task]]\nname = \"c\"\n{protocol}depths = [4, 10]\n"),
            "c.toml:11: task.c.depths: the model protocol has the depths [1, 2, 3, 5, 10]; name \
             some of them",
        ),
        (
            two("a.label = \"\""),
            "c.toml:7: task.b.when: a.label = \"\": the model app-id-k10 of task a has no label \
             \"\"",
        ),
        (
            two("a.label = TLS")
                + &format!(
                    "[[task]]\nname = \"c\"\n{protocol}when = 'b.confidence <= 1 and a.label = \
                     HTTP'\n"
                ),
            "c.toml:11: task.c.when: a.label = HTTP and a.label = TLS (of task b) never hold \
             together: no label of the model \
             app-id-k10 satisfies all of them",
        ),
        (
            two("") + "latency_goal_ms = 5\n",
            "c.toml:8: task.b.latency_goal_ms: no effect: analytics.policy = \"carry-over\" \
             (built-in) plans for no goal",
        ),
        (
            two("") + "[flow]\nk = 5\n",
            "c.toml:9: flow.k = 5: task a (model app-id-k10) wants k = 10 packets; set flow.k = \
             10, or take another model",
        ),
        (
            two("")
                + &format!("[[task]]\nname = \"c\"\n{protocol}[[task]]\nname = \"d\"\n{protocol}"),
            "c.toml:11: task.d.depths: the tasks have 12 depths together, and at most 8 are \
             supported: a (1), b (1), c (5), d (5)",
        ),
    ] {
        assert_refused(check(&text), 78, &[says]);
    }
    let missing = two("").replacen(&app, "model = \"/nowhere/m\"\n", 1);
    let says = "c.toml:3: task.a.model: /nowhere/m: no such folder";
    assert_refused(check(&missing), 66, &[says]);
}

/// A name is repeated in the line that refuses it, but not 64 KiB of it.
#[test]
fn a_long_name_is_shortened() {
    let name = "n".repeat(1 << 16);
    for (text, says) in [
        (format!("[[task]]\nname = \"{name}\"\n"), "expected 1 to 32 letters"),
        (format!("[io]\nmode = \"{name}\"\n"), "expected one of \"tap\", "),
        (format!("[io]\n{name} = 1\n"), "unknown key io.nnn"),
        (format!("[io]\nmode = \"{}\"\n", "n ".repeat(1 << 15)), "expected one of \"tap\", "),
    ] {
        let refused = with_file(&text, &[]).expect_code(78).stderr;
        assert!(refused.contains(says), "{refused}");
        assert!(refused.len() < 1 << 15, "{} bytes", refused.len());
    }
}

#[test]
fn all_problems_are_listed_at_once() {
    let text = "[flow]\nk = 0\n[io]\nbrust = 3\n[ring]\nslots = 100\n";
    let mut finished = with_file(text, &["--set", "cache.audit=2"]).expect_code(78);
    assert_eq!(finished.stderr.lines().count(), 4, "{}", finished.stderr);
    for (line, part) in finished.stderr.lines().zip([
        "c.toml:2: flow.k",
        "c.toml:4: unknown key io.brust",
        "c.toml:6: ring.slots",
        "--set: cache.audit",
    ]) {
        assert!(line.starts_with("fenxi: ") && line.contains(part), "{line}");
    }
    finished.stdout.clear();
    assert_says(
        &finished,
        &["did you mean io.burst?", "expected a power of two from 16 to 1048576"],
    );
}

#[test]
fn problems_of_set_and_the_environment() {
    assert_refused(
        with_set(&["flow.kk=3"]),
        78,
        &["--set: unknown key flow.kk; did you mean flow.k?"],
    );
    assert_refused(with_set(&["flow.k"]), 78, &["--set: flow.k: expected key=value"]);
    assert_refused(
        with_set(&["flow.k=3.5"]),
        78,
        &["--set: flow.k: found 3.5, expected an integer"],
    );
    assert_refused(with_set(&["flow.k=[1"]), 78, &["--set: flow.k: [1 is not a TOML value"]);
    assert_refused(
        with_set(&["flow.buckets=64", "flow.max_flows=1000"]),
        78,
        &["flow.buckets = 64 (--set) with flow.max_flows = 1000 (--set): impossible combination"],
    );
    let mut command = fenxi(["replay"]);
    command.arg(demo()).env("FENXI_FLOW_KK", "3");
    assert_refused(run(command), 78, &["FENXI_FLOW_KK: ", "did you mean FENXI_FLOW_K?"]);
}

#[test]
fn a_label_that_the_model_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("flows.jsonl");
    let more = [&SIMULATED[..], &["--flows", records.to_str().unwrap()]].concat();
    let finished = with_file("[tag.dscp]\nother = 1\nTSL = \"EF\"\n", &more);
    assert_refused(
        finished,
        78,
        &[
            "c.toml:3: tag.dscp: the model protocol has no label \"TSL\", and no taxonomy of that \
             name; it has ",
            "TLS",
        ],
    );
    assert!(!records.exists());
    // The same in `check`, which is there to tell before a run.
    let check = run(fenxi(["check", "--set", "tag.dscp.TSL=EF"]));
    assert_refused(check, 78, &["--set: tag.dscp: ", "\"TSL\""]);
}

/// A device that cannot be had as asked for is an error before the first packet, never a run on
/// something else.
#[test]
fn devices_that_are_not_to_be_had() {
    if !crate::common::has_onnxruntime() {
        return crate::common::skip("devices_that_are_not_to_be_had", "ONNX Runtime");
    }
    for (sets, code, parts) in [
        (&["accel.devices=[\"cann\"]"][..], 69, &["device cann: ", "has no provider cann"][..]),
        (
            &[
                "accel.devices=[\"trt\"]",
                "device.trt.provider=tensorrt",
                "device.trt.fixed_sizes=false",
            ],
            78,
            &["device trt: ", "fixed batch sizes"],
        ),
        (
            &[
                "accel.devices=[\"npu\"]",
                "device.npu.provider=plugin",
                "device.npu.plugin=/nowhere/ep.so",
            ],
            69,
            &["device npu: ", "/nowhere/ep.so"],
        ),
        (&["device.native.profile=/nowhere/p.toml"], 66, &["/nowhere/p.toml: cannot be read"]),
    ] {
        assert_refused(with_set(sets), code, parts);
    }
}

#[test]
fn a_file_that_is_not_there() {
    let mut command = fenxi(["replay", "--config", "/nowhere/c.toml"]);
    command.arg(demo());
    assert_refused(run(command), 66, &["/nowhere/c.toml: cannot read the configuration"]);
}

/// A table larger than the memory there is: one line, and nothing was begun.
#[test]
fn a_table_that_memory_does_not_hold() {
    let mut shell = std::process::Command::new("sh");
    shell
        .current_dir(root())
        .args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_fenxi"), "replay", "demo/office.pcap"])
        .args(["--set", "flow.max_flows=67108864"])
        .args(SIMULATED);
    let finished = run(shell).expect_code(69);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    for part in ["no memory for a table of 67108864 flows", "MiB", "flow.max_flows"] {
        assert!(finished.stderr.contains(part), "{part}: {}", finished.stderr);
    }
}
