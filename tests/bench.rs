//! `fenxi-lab bench`: every experiment runs to its end, on tables of a few thousand entries or for
//! fractions of a second, and prints what docs/bench.md says. What the figures are is the
//! machine's matter and nothing here.

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
    let (results, stderr) = bench("walk", &SMALL);
    assert_eq!(stderr, "SKIPPED mix: needs --capture FILE\n");
    let bars = ["uniform", "Zipf(1.0)", "new flows"];
    values(&results, bars);
    for name in bars {
        let result = results.iter().find(|result| result["name"] == name);
        assert!(result.unwrap()["bar"].is_number(), "{name}");
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
        (&["bench", "policy", "--sizes", "0"], "--sizes"),
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
