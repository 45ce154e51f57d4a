//! The experiments with rules, on sets of a few hundred.

use std::ffi::OsStr;

use crate::common::{demo, fenxi_lab, run};
use crate::{bar, bench, values};

#[test]
fn classifiers_agree_on_generated_sets_and_on_sets_that_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let sets = dir.path().join("sets");
    let few = ["--seconds", "0", "--seeds", "acl1,fw2", "--sizes", "600"];
    let (results, progress) =
        bench("policy", &[&few[..], &["--write", sets.to_str().unwrap()]].concat());
    assert!(results.iter().any(|it| it["name"] == "learned, uniform, rules 600"));
    assert!(progress.contains("fw2 600:") && progress.contains("SKIPPED mix"), "{progress}");
    let trace = std::fs::read_to_string(sets.join("acl1_600.zipf")).unwrap();
    assert!(trace.lines().all(|line| line.split('\t').count() == 6));
    bench("policy", &[&few[..], &["--ipv6"]].concat());

    // Without the traces, which are no sets.
    for set in ["acl1_600", "fw2_600"] {
        for trace in ["uniform", "zipf"] {
            std::fs::remove_file(sets.join(format!("{set}.{trace}"))).unwrap();
        }
    }
    bench("policy", &["--seconds", "0", "--sets", sets.to_str().unwrap()]);
}

/// Each pace and each size of batches for which there are rules has its rows, whatever the figures
/// are.
#[test]
fn rules_are_changed_at_both_paces_and_in_batches_of_each_size() {
    let (results, progress) = bench("policy-updates", &["--seconds", "0.4", "--sizes", "600"]);
    // Two sizes of batches.
    assert_eq!(results.len(), 2 * 2 * 9);
    for pace in ["60 k/s", "unbounded"] {
        let rows = [
            "changes",
            "least coverage",
            "trainings",
            "batches that copied the rules",
            "batch begun to use, p50",
            "batch begun to use, p99",
            "batch begun to use, largest",
            "look-up",
            "look-up, against without changes",
        ];
        for row in rows {
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
fn the_path_with_rules_is_compared_with_none_and_while_rules_are_added() {
    let demo = demo();
    let options = ["--sizes", "300,600", "--entries", "4096", "--seconds", "0"].map(OsStr::new);
    let options = [&options[..], &[OsStr::new("--capture"), demo.as_os_str()]].concat();
    let (results, _) = bench("policy-adding", &options);
    for rules in [300, 600] {
        for row in ["greatest drop, no changes", "10,000 rules added: until in use"] {
            values(&results, [format!("{row}, rules {rules}").as_str()]);
        }
    }
    let (results, _) = bench("policy-walk", &options);
    for rules in [300, 600] {
        let rows = ["look-ups of 1,000 packets", "look-ups without a rule"];
        let [lookups, unmatched] = rows.map(|row| {
            let name = format!("{row}, rules {rules}");
            let [value] = values(&results, [name.as_str()]);
            value
        });
        assert!(lookups > 0.0, "flows begin");
        assert!((0.0..0.5).contains(&unmatched), "tuples lie in rules: {unmatched}");
        let name = format!("mix, rules against none, rules {rules}");
        assert!(bar(&results, &name) > 0.9, "the bar is told");
    }
    for name in ["policy-walk", "policy-adding"] {
        run(fenxi_lab(["bench", name])).expect_code(64);
    }
}
