//! Labels of connections and elements of nftables sets, as rules of a router see them.

use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};
use crate::common::{self};
use crate::run::mark::HOSTS;
use crate::run::traffic::{connect, every_label, talk};

/// The router's own rules: they count what has label 5, and what comes from an address in the set.
const RULES: &str = "table inet act {
    set clients { type ipv4_addr; size 1000; flags timeout; }
    counter labelled { }
    counter member { }
    chain forward {
        type filter hook forward priority 0; policy accept;
        ct label 5 counter name labelled
    }
    chain members {
        type filter hook forward priority 1; policy accept;
        ip saddr @clients counter name member
    }
}";

fn counter(lab: &Lab, name: &str) -> u64 {
    let text = lab.run("router", &format!("nft list counter inet act {name}"));
    let (_, packets) = text.split_once("packets ").unwrap();
    packets.split(' ').next().unwrap().parse().unwrap()
}

fn with(live: &Live, metric: &str, outcome: &str) -> f64 {
    let label = format!("outcome=\"{outcome}\"");
    live.samples_with(metric, &label).iter().sum()
}

/// All labels of the model, as a list of TOML.
fn all_labels() -> String {
    let labels = common::labels(&common::shipped_bundle());
    let labels: Vec<String> = labels.iter().map(|label| format!("\"{label}\"")).collect();
    format!("nftset.clients.labels=[{}]", labels.join(", "))
}

fn arguments(mode: &str, more: &[&str]) -> Vec<String> {
    let sets = [
        "io.interfaces=[\"in\"]",
        mode,
        "nftset.clients.set=inet act clients",
        "nftset.clients.timeout_s=60",
        &all_labels(),
    ];
    let sets = sets.iter().chain(more);
    sets.flat_map(|set| ["--set".to_owned(), (*set).to_owned()]).collect()
}

#[test]
fn rules_match_labels_of_connections_and_members_of_sets() {
    for mode in ["io.mode=mark", "io.mode=tap"] {
        let test = format!("outcomes-{}", mode.trim_start_matches("io.mode="));
        let Some(lab) = Lab::routed(&test, true, &[]) else {
            return;
        };
        lab.nft("router", RULES);
        let args = arguments(mode, &[&every_label("connlabel.class", "\"5\"")]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let live = Live::start(&lab, "router", &[&args[..], &common::SIMULATED].concat());
        let open = |is_v6| {
            let [near, far] = connect(&lab, HOSTS, Lab::server(is_v6));
            talk([&near, &far], 12);
            [near, far]
        };
        let connections = [open(false), open(true)];
        live.wait_for("both connections have their labels", |live| {
            with(live, "fenxi_connlabels_total", "written") == 2.0
        });
        live.wait_for("the set has the client", |live| {
            with(live, "fenxi_nftset_elements_total", "written") == 1.0
                && with(live, "fenxi_nftset_elements_total", "other_family") == 1.0
        });
        let set = || lab.run("router", "nft list set inet act clients");
        assert!(set().contains("10.77.1.2 timeout 1m expires 5"), "{}", set());
        let before = ["labelled", "member"].map(|name| counter(&lab, name));
        for [near, far] in &connections {
            talk([near, far], 3);
        }
        let after = ["labelled", "member"].map(|name| counter(&lab, name));
        assert!(before[0] < after[0] && before[1] < after[1], "{before:?} {after:?}");

        // A second flow of the client begins the timeout again.
        let _third = open(false);
        live.wait_for("the element is refreshed", |live| {
            with(live, "fenxi_nftset_elements_total", "refreshed") == 1.0
        });
        // The set goes and comes back under the running program.
        lab.run("router", "nft flush chain inet act members && nft delete set inet act clients");
        let _fourth = open(false);
        live.wait_for("the set is missed", |live| {
            with(live, "fenxi_nftset_elements_total", "not_found") == 1.0
        });
        live.wait_for("that is logged", |live| live.said("a set of nftables is gone") > 0);
        lab.run("router", "nft add set inet act clients '{ type ipv4_addr; flags timeout; }'");
        let _fifth = open(false);
        live.wait_for("the set is written again", |live| {
            with(live, "fenxi_nftset_elements_total", "written") == 2.0
        });
        live.wait_for("the fifth connection has its label", |live| {
            with(live, "fenxi_connlabels_total", "written") == 5.0
        });
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        let status = live.ctl(&["status"]).expect_code(0).stdout;
        for line in [
            "connlabels 5 written, 0 kept as they were, 0 without a connection",
            "nftset    2 elements written, 1 refreshed, 1 whose set is gone",
        ] {
            assert!(status.contains(line), "{line}: {status}");
        }
        let finished = live.terminate(0);
        let summary = finished.json();
        let live = &summary["live"];
        assert_eq!((&live["connlabels_written"], &live["nftset_written"]), (&5.into(), &2.into()));
        // What is written stays.
        assert!(set().contains("10.77.1.2"), "{}", set());
    }
}

/// `check` and `run` refuse a set that is missing or does not fit, with the same line.
#[test]
fn a_set_that_does_not_fit_is_refused() {
    let Some(lab) = Lab::routed("outcomes-unfit", false, &[]) else {
        return;
    };
    let refusals = || {
        ["check", "run"].map(|command| {
            let args = arguments("io.mode=tap", &[]);
            let mut program = fenxi_on(&lab, "router", &[]);
            program.arg(command).args(args).args(common::SIMULATED);
            // The loopback of this host is down.
            program.args(["--set", "control.http=", "--set", "control.socket="]);
            let output = program.output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(78), "{command}: {stderr}");
            stderr
        })
    };
    let [check, run] = refusals();
    let missing = "nftset.clients: there is no set inet act clients; add it: nft 'add table inet \
        act; add set inet act clients { type ipv4_addr; flags timeout; size 65536; }'";
    assert!(check.contains(missing) && run.contains(missing), "{check}{run}");
    lab.nft("router", "table inet act {\n set clients { type inet_service; flags timeout; }\n}");
    let [check, run] = refusals();
    let other = "the set inet act clients has type inet_service, and its key in the configuration \
        gives ipv4_addr, or ipv6_addr";
    assert!(check.contains(other) && run.contains(other), "{check}{run}");
}
