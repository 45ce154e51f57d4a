//! `fenxi-lab bench`: every experiment runs to its end, on tables of a few thousand entries or for
//! fractions of a second, and prints what docs/bench.md says. What the figures are is the
//! machine's matter and nothing here, unless they come from virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

mod common;

use std::ffi::OsStr;

use common::{demo, fenxi_lab, run};
use serde_json::Value;

const SMALL: [&str; 4] = ["--seconds", "0", "--entries", "2048"];
const AT_ONCE: [&str; 2] = ["--seconds", "0"];

/// Runs an experiment with `--json`, checks what all have in common, and returns results and
/// stderr.
fn bench<S: AsRef<OsStr>>(name: &str, options: &[S]) -> (Vec<Value>, String) {
    let mut command = fenxi_lab(["bench", name, "--json"]);
    command.args(options);
    let finished = run(command).expect_code(0);
    assert_eq!(finished.stdout.lines().count(), 1);
    let json = finished.json();
    assert_eq!(json["bench"], name);
    let machine = json["machine"].as_object().unwrap();
    let told: Vec<&str> = machine.keys().map(String::as_str).collect();
    assert_eq!(told, ["caches", "cores", "cpu", "kernel", "memory_mib", "pages"]);
    assert!(machine["cores"].as_u64().unwrap() >= 1);
    assert!(["plain", "transparent huge", "huge"].contains(&machine["pages"].as_str().unwrap()));

    let results = json["results"].as_array().unwrap().clone();
    let mut names: Vec<&str> = results.iter().map(check_result).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "every result has a name of its own");
    (results, finished.stderr)
}

/// The shape of one result; its name.
fn check_result(result: &Value) -> &str {
    let fields = result.as_object().unwrap();
    let told: Vec<&str> = fields.keys().map(String::as_str).collect();
    assert_eq!(told, ["bar", "best", "holds", "line", "name", "unit", "value", "x"]);
    assert!(result["best"].as_f64().unwrap().is_finite());
    let value = result["value"].as_f64().unwrap();
    match result["bar"].as_f64() {
        // A bar is the least or the most; on it both hold.
        Some(bar) if value == bar => assert_eq!(result["holds"], true),
        Some(_) => assert!(result["holds"].is_boolean()),
        None => assert!(result["bar"].is_null() && result["holds"].is_null()),
    }
    if result["unit"] == "Mpps" {
        assert!(value > 0.0, "{result}");
    }
    result["name"].as_str().unwrap()
}

/// The results with these names, each of which must be there.
fn values<const N: usize>(results: &[Value], names: [&str; N]) -> [f64; N] {
    names.map(|name| {
        let found = results.iter().find(|result| result["name"] == name);
        let found = found.unwrap_or_else(|| panic!("{name} in {results:?}"));
        found["value"].as_f64().unwrap()
    })
}

/// The bar of the result with this name.
fn bar(results: &[Value], name: &str) -> f64 {
    let found = results.iter().find(|result| result["name"] == name);
    found.unwrap()["bar"].as_f64().unwrap()
}

#[test]
fn table_has_a_line_for_each_load_and_the_reference() {
    let (results, stderr) = bench("table", &SMALL);
    assert_eq!(results.len(), 5 * 9);
    for line in ["load 0", "load 0.25", "load 0.5", "load 0.75", "no-op"] {
        let [one, most] = ["1", "256"].map(|burst| format!("{line}, burst {burst}"));
        values(&results, [one.as_str(), most.as_str()]);
    }
    assert_eq!(stderr, "");
}

#[test]
fn scale_has_a_line_for_each_number_of_workers() {
    let (results, _) = bench("scale", &["--seconds", "0", "--flows", "64,1024"]);
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(results.len(), 2 * cores);
    values(&results, ["1 worker, flows 64", "1 worker, flows 1024"]);
}

#[test]
fn walk_names_what_it_skips_and_draws_the_mix_from_a_capture() {
    let (results, stderr) = bench("walk", &[&SMALL[..], &["--flows", "64,4096"]].concat());
    assert_eq!(stderr, "SKIPPED mix: needs --capture FILE\n");
    let [few, half, many] = [64, 1024, 4096].map(|flows| format!("uniform, flows {flows}"));
    let [few, uniform, many] = values(&results, [&few, &half, &many].map(String::as_str));
    let [bound, cached] = values(&results, ["bound, two lines each", "in a cache"]);
    // Rates by rates, but times by times.
    for (name, ratio) in [
        ("uniform vs the bound", uniform / bound),
        ("uniform vs in a cache", uniform / cached),
        ("time of a packet vs with 64, flows 1024", few / uniform),
        ("time of a packet vs with 64, flows 4096", few / many),
    ] {
        assert!((values(&results, [name])[0] - ratio).abs() < 1e-9, "{name}");
        assert!(bar(&results, name) > 0.0);
    }

    let mut options: Vec<&OsStr> = SMALL.iter().map(OsStr::new).collect();
    let demo = demo();
    options.extend([OsStr::new("--capture"), demo.as_os_str()]);
    let (results, stderr) = bench("walk", &options);
    assert_eq!(stderr, "");
    let [alive_m, begun_k] =
        values(&results, ["mix, flows in the table", "mix, new flows at 13.4 Mpps"]);
    // 56.6 k flows/s for 2^22 entries; they stay for 30 s of silence, or for 5 s once closed.
    assert!((0.0002..0.0014).contains(&alive_m), "{alive_m}");
    assert!((20.0..120.0).contains(&begun_k), "{begun_k}");
}

#[test]
fn lookup_says_what_it_is_a_share_of() {
    let (results, _) = bench("lookup", &SMALL);
    let [rate, bound, share] =
        values(&results, ["look-up and update", "bound, two lines each", "share of the bound"]);
    assert!((share - rate / bound).abs() < 1e-9);
    let reads = [8, 16, 32, 64].map(|depth| {
        let name = format!("random reads, {depth} in flight");
        values(&results, [name.as_str()])[0]
    });
    let most = reads.into_iter().fold(0.0, f64::max);
    assert!((bound - most / 2.0).abs() < 1e-9);
}

#[test]
fn flood_evicts_half_open_flows_and_shows_the_chains() {
    let options = [&SMALL[..], &["--flows", "512"]].concat();
    let (results, _) = bench("flood", &options);
    let [turned_away, evicted, fenxi_chain, known_chain] = values(
        &results,
        [
            "SYN flood, packets turned away",
            "SYN flood, flows evicted",
            "fenxi hash, chain",
            "known key, chain",
        ],
    );
    assert_eq!(turned_away, 0.0);
    assert!(evicted > 0.0);
    assert_eq!(fenxi_chain, known_chain);
    // Longer than a bucket, so the tuples did collide; bounded, so most found no room.
    assert!((2.0..=8.0).contains(&fenxi_chain), "{fenxi_chain}");
    values(&results, ["known key, of ordinary"]);
}

#[test]
fn sweep_is_told_from_polls_without_it() {
    let (results, _) = bench("sweep", &SMALL);
    for polls in ["no time between polls", "1 ms between polls"] {
        let names = ["median", "p99", "largest"].map(|of| format!("{polls}: {of}"));
        let [median, p99, largest] = values(&results, names.each_ref().map(String::as_str));
        assert!(0.0 < median && median <= p99 && p99 <= largest, "{polls}");
    }
    values(
        &results,
        [
            "1 ms between polls, all flows end: largest",
            "after a pause of 60 s, all flows end: the poll",
            "sweep, share of a core",
        ],
    );
}

#[test]
fn analytics_names_its_best_batch() {
    let (results, _) = bench("analytics", &AT_ONCE);
    let [best] = values(&results, ["app-id-k10: best batch"]);
    let lines = ["manager", "bare loop", "share"];
    let names = lines.map(|line| format!("app-id-k10: {line}, batch {best}"));
    let [manager, bare, share] = values(&results, names.each_ref().map(String::as_str));
    assert!(manager > 0.0 && bare > 0.0);
    let held = "app-id-k10: share of the bare loop at the best batch";
    assert_eq!(values(&results, [held]), [share]);
    assert_eq!(bar(&results, held), 0.95);
}

#[test]
fn latency_holds_the_99th_percentile_against_a_bar() {
    let (results, _) = bench("latency", &[&AT_ONCE[..], &["--rate", "2000"]].concat());
    for (case, p99_ms) in
        [("carry-over T = 10 ms, batches to 256", 10.0), ("goal 2 ms, batches to 1024", 2.0)]
    {
        let names = ["p50", "p99", "largest"].map(|of| format!("app-id-k10, {case}: {of}"));
        let [p50, p99, largest] = values(&results, names.each_ref().map(String::as_str));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= largest, "{names:?}");
        assert_eq!(bar(&results, &names[1]), p99_ms);
    }
    values(&results, ["app-id-k10, goal 2 ms, batches to 1024: control periods in violation"]);
}

#[test]
fn latency_finds_the_most_series_within_a_goal_of_a_model_with_context() {
    let model = common::root().join("models/protocol");
    let options = ["--goal-ms", "1000", "--rate", "1000000", "--model", model.to_str().unwrap()];
    let (results, _) = bench("latency", &[&AT_ONCE[..], &options].concat());
    for device in ["native", "cpu"] {
        let names = ["most", "CPU of the worker", "CPU of the sender"];
        let names = names.map(|of| format!("protocol, {device}, p99 within 1000 ms: {of}"));
        let [most, worker, sender] = values(&results, names.each_ref().map(String::as_str));
        assert_eq!([worker > 0.0, sender > 0.0], [most > 0.0; 2], "{names:?}");
    }
}

#[test]
fn tasks_keep_goals_with_less_load() {
    // Five control periods after as many; time is virtual, so bars hold on every machine or on
    // none.
    let graph = ["--seconds", "0.5", "--graph", "split of 2"];
    let (results, _) = bench("tasks", &graph);
    let barred = results.iter().filter(|result| result["bar"].is_number());
    let barred: Vec<&Value> = barred.collect();
    // For each largest batch and delta: load, violations, throughput with and without too many
    // flows.
    assert_eq!(barred.len(), 2 * 2 * 4);
    for result in barred {
        assert_eq!(result["holds"], true, "{result}");
    }

    let case = "split of 2, batches to 256";
    let names = ["none", "max", "slo 0.05", "on-off"];
    let names = names.map(|policy| format!("{case}, {policy}: load"));
    let [none, max, slo, ..] = values(&results, names.each_ref().map(String::as_str));
    assert!(0.0 < max && max < slo && slo < none && none < 1.0);
    let gain = format!("{case}, slo 0.05: load of none by this");
    let [ratio] = values(&results, [gain.as_str()]);
    assert!((ratio - none / slo).abs() < 1e-9);
    // What full batches keep as well would be no test.
    for line in [
        "split of 2, batches to 256, max: tasks that miss their goal, worst seed",
        "split, batches to 32, max: tasks that miss their goal, worst seed, tasks 2",
    ] {
        assert_eq!(values(&results, [line]), [2.0]);
    }
    values(
        &results,
        ["split of 2, batches to 256, saturated, slo 0.2: throughput relative to max, worst seed"],
    );
}

/// Each pace and each size of batches for which there are rules has its rows, whatever the figures
/// are.
#[test]
fn rules_are_changed_at_both_paces_and_in_batches_of_each_size() {
    let (results, progress) = bench("policy-updates", &["--seconds", "0.4", "--sizes", "600"]);
    // Two sizes of batches.
    assert_eq!(results.len(), 2 * 2 * 9);
    for pace in ["60 k/s", "unbounded"] {
        for row in ["changes", "batch begun to use, p99", "look-up, against without changes"] {
            for batch in [1, 100] {
                let name = format!("acl1, {pace}: {row}, rules a batch {batch}");
                values(&results, [name.as_str()]);
            }
        }
    }
    assert!(bar(&results, "acl1, 60 k/s: least coverage, rules a batch 1") > 0.0);
    assert!(progress.contains("look-ups"), "{progress}");
}

#[test]
fn the_path_with_rules_is_compared_with_none() {
    let demo = demo();
    let options = ["--sizes", "300,600", "--entries", "4096", "--seconds", "0"].map(OsStr::new);
    let options = [&options[..], &[OsStr::new("--capture"), demo.as_os_str()]].concat();
    let (results, _) = bench("policy-walk", &options);
    for rules in [300, 600] {
        let rows = ["look-ups of 1,000 packets", "look-ups without a rule"];
        let names = rows.map(|row| format!("{row}, rules {rules}"));
        let [lookups, unmatched] = values(&results, names.each_ref().map(String::as_str));
        assert!(lookups > 0.0, "flows begin");
        assert!((0.0..0.5).contains(&unmatched), "tuples lie in rules: {unmatched}");
        let name = format!("mix, rules against none, rules {rules}");
        assert!(bar(&results, &name) > 0.9, "the bar is told");
    }
    for name in ["headline", "policy-walk", "policy-adding"] {
        run(fenxi_lab(["bench", name])).expect_code(64);
    }
}

/// Every place answers, the kernel where it may be asked.
#[test]
fn one_inference_is_timed_wherever_it_runs() {
    let (results, stderr) = bench("inference", &AT_ONCE);
    for model in ["protocol-small", "protocol", "iot-family"] {
        for place in ["engine", "other process", "other process that polls"] {
            let name = format!("{model}, {place}");
            values(
                &results,
                [&name, &format!("{name}, p99"), &format!("{name}, times the engine")],
            );
        }
        let kernel = results.iter().any(|it| it["name"] == format!("{model}, kernel"));
        assert!(kernel || stderr.contains(&format!("SKIPPED {model}, kernel: ")), "{stderr}");
    }
    let mut command = fenxi_lab(["bench", "inference", "--seconds", "0", "--model"]);
    command.arg("/nowhere");
    run(command).expect_code(66);
}

#[test]
fn servers_are_asked_in_each_way() {
    let (results, _) = bench("probes", &AT_ONCE);
    for way in ["shared memory", "probes", "probes over new connections"] {
        for servers in [1, 8, 64] {
            let [p50, p99] = ["", ", p99"].map(|what| format!("{way}{what}, servers {servers}"));
            let [p50, p99] = values(&results, [&p50, &p99]);
            assert!(p50 > 0.0 && p99 >= p50, "{p50} {p99}");
        }
    }
}

#[test]
fn classifiers_agree_on_generated_sets() {
    let few = ["--seconds", "0", "--seeds", "acl1,fw2", "--sizes", "600"];
    let (results, progress) = bench("policy", &few);
    values(&results, ["learned, uniform, rules 600", "TupleMerge, Zipf(1.1), rules 600"]);
    assert!(progress.contains("fw2 600:"), "{progress}");
}

#[test]
fn help_and_version() {
    let help = run(fenxi_lab(["--help"])).expect_code(0).stdout;
    for command in ["bench", "generate"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    let help = run(fenxi_lab(["bench", "--help"])).expect_code(0).stdout;
    assert!(help.contains("Adversarial traffic"), "{help}");
    let version = run(fenxi_lab(["--version"])).expect_code(0).stdout;
    assert_eq!(version, format!("fenxi-lab {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn tables_for_people_and_wrong_usage() {
    let mut command = fenxi_lab(["bench", "lookup"]);
    command.args(SMALL);
    let told = run(command).expect_code(0).stdout;
    assert!(told.contains("share of the bound  "), "{told}");
    assert!(told.contains("at least 0.6: "), "{told}");
    for (args, part) in [
        (&["bench"][..], "NAME"),
        (&["bench", "chairs"], "possible values: table"),
        (&["bench", "walk", "--entries", "1000"], "a power of two"),
        (&["bench", "walk", "--seconds", "many"], "expected seconds"),
        (&["bench", "scale", "--flows", "0"], "--flows"),
        (&["bench", "latency", "--rate", "0"], "--rate"),
        (&["bench", "latency", "--goal-ms", "0"], "expected ms"),
        (&["bench", "policy", "--sizes", "0"], "--sizes"),
        (&["bench", "tasks", "--graph", "ring"], "no such graph"),
    ] {
        let finished = run(fenxi_lab(args)).expect_code(64);
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
    let nowhere = ["bench", "walk", "--capture", "/nowhere"];
    let mut command = fenxi_lab(nowhere);
    command.args(SMALL);
    run(command).expect_code(66);
    run(fenxi_lab(["bench", "latency", "--model", "/nowhere"])).expect_code(66);
}
