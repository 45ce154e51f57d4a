//! `fenxi check --deep` on interfaces that each test makes in a network namespace: what is wrong is
//! found, the line that it prints mends it, and a fenxi that runs does not notice. Skipped by name
//! without root or the programs.

use crate::common;

use serde_json::Value;

use common::Finished;
use common::lab::Lab;
use common::live::{Live, fenxi_on};

/// No control plane, a small table, and a device that every machine has.
const SETS: [&str; 6] =
    ["--set", "control.http=", "--set", "control.socket=", "--set", "flow.max_flows=4096"];

fn check(lab: &Lab, launcher: &[&str], mode: &str, interfaces: &str, more: &[&str]) -> Finished {
    let mut command = fenxi_on(lab, "host", launcher);
    command.args(["check", "--deep", "--json"]);
    command.args(["--set", &format!("io.mode={mode}")]);
    command.args(["--set", &format!("io.interfaces={interfaces}")]);
    command.args(["--set", "io.promiscuous=true"]);
    command.args(SETS).args(common::SIMULATED).args(more);
    common::run(command)
}

/// The findings of a kind that are not ok.
fn faults(finished: &Finished, check: &str) -> Vec<Value> {
    let findings = finished.json()["findings"].as_array().unwrap().clone();
    let of_kind = findings.into_iter().filter(|finding| finding["check"] == check);
    of_kind.filter(|finding| finding["level"] != "ok").collect()
}

/// Runs the line that the only finding of a kind has.
fn mend(lab: &Lab, finished: &Finished, check: &str) {
    let faults = faults(finished, check);
    let [fault] = faults.as_slice() else {
        panic!("not one: {faults:?}");
    };
    lab.run("host", fault["remedy"].as_str().expect("a remedy"));
}

#[test]
fn what_is_wrong_with_an_interface_is_mended_by_the_line_that_is_printed() {
    let Some(lab) = Lab::new("deep", &["host"], &["ethtool"]) else {
        return;
    };
    lab.wire_within("host", "wan0", "lan0");
    let tap = || check(&lab, &[], "tap", "[\"lan0\"]", &[]);
    let good = tap().expect_code(0);
    assert_eq!(good.json()["problems"], 0, "{}", good.stdout);

    lab.run("host", "ethtool -K lan0 gro on");
    let merging = tap().expect_code(0);
    let said = "gro on: merged packets count as those on the wire";
    assert!(merging.stdout.contains(said), "{}", merging.stdout);

    lab.run("host", "ip link set dev lan0 down");
    let found = tap().expect_code(69);
    mend(&lab, &found, "interface");
    let mended = tap().expect_code(0);
    assert_eq!(mended.json()["problems"], 0, "{}", mended.stdout);

    lab.run("host", "ip link set dev wan0 down");
    let cut = tap().expect_code(69);
    assert!(cut.stdout.contains("no carrier"), "{}", cut.stdout);

    let missing = check(&lab, &[], "tap", "[\"lan1\"]", &[]).expect_code(69);
    assert!(missing.stdout.contains("did you mean lan0?"), "{}", missing.stdout);
    // What the configuration lacks is found before the machine is looked at.
    check(&lab, &[], "inline", "[\"lan0\"]", &[]).expect_code(78);
}

#[test]
fn an_inline_pair_stands_alone() {
    let Some(lab) = Lab::new("deep-inline", &["host"], &["ethtool"]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    lab.wire_within("host", "c", "d");
    let inline = || check(&lab, &[], "inline", "[\"b\", \"c\"]", &[]);
    inline().expect_code(0);
    lab.run("host", "ip link add dev br0 type bridge");
    lab.run("host", "ip link set dev b master br0");
    let bridged = inline().expect_code(69);
    assert!(bridged.stdout.contains("a port of the bridge br0"), "{}", bridged.stdout);
    mend(&lab, &bridged, "interface");
    inline().expect_code(0);

    lab.run("host", "ip addr add 10.1.0.1/24 dev b");
    lab.run("host", "ip addr add 10.2.0.1/24 dev c");
    lab.set("host", "ipv4/ip_forward", "1");
    let routing = inline().expect_code(69);
    assert!(routing.stdout.contains("net.ipv4.conf.b.forwarding=0"), "{}", routing.stdout);
    lab.set("host", "ipv4/ip_forward", "0");
    assert_eq!(faults(&inline().expect_code(0), "interface").len(), 2);
}

#[test]
fn marks_need_connections_that_are_tracked() {
    let Some(lab) = Lab::new("deep-mark", &["host"], &["ethtool", "nft", "conntrack"]) else {
        return;
    };
    lab.wire_within("host", "wan0", "lan0");
    lab.run("host", "ethtool -K lan0 tso off tx-udp-segmentation off");
    let mark = || check(&lab, &[], "mark", "[\"lan0\"]", &[]);
    let untracked = mark().expect_code(69);
    let subjects: Vec<Value> =
        faults(&untracked, "marks").iter().map(|fault| fault["subject"].clone()).collect();
    assert_eq!(subjects, ["conntrack", "forwarding"], "{}", untracked.stdout);
    lab.set("host", "ipv4/ip_forward", "1");
    mend(&lab, &mark().expect_code(69), "marks");
    assert_eq!(mark().expect_code(0).json()["problems"], 0);

    // A rule that writes the bits is named, with its place and a line that shows it; one that acts
    // on them is not.
    for rule in [
        "ct mark set 0x1",
        "ct mark & 0xff000000 == 0x05000000 counter",
        "ct state new ct mark set 0x2",
        "meta mark set ct mark",
    ] {
        lab.run("host", &format!("nft 'add rule inet track connections {rule}'"));
    }
    lab.run("host", "ip rule add not fwmark 0xca6c lookup 51820 priority 7");
    lab.run("host", "ip rule add fwmark 0x05000000/0xff000000 lookup 100 priority 8");
    let found = mark().expect_code(0);
    let found = faults(&found, "marks");
    let of = |name: &str| -> Vec<&str> {
        found.iter().map(|fault| fault[name].as_str().unwrap()).collect()
    };
    assert_eq!(
        of("subject"),
        ["nft inet track connections handle 3", "ip rule 7: not fwmark 0xca6c"],
        "{found:?}"
    );
    assert!(of("cause")[0].contains("writes the bits 0xff000000 of connections at any time"));
    let shown = lab.run("host", of("remedy")[0]);
    assert!(shown.contains("ct mark set 0x00000001 # handle 3"), "{shown}");
    // The other line mends it.
    lab.run("host", of("remedy")[1]);
    lab.run("host", "nft delete rule inet track connections handle 3");
    assert!(faults(&mark(), "marks").is_empty());
}

/// Where the rules cannot be read, one finding says so.
#[test]
fn rules_that_cannot_be_read_are_one_finding() {
    let Some(lab) = Lab::new("deep-blind", &["host"], &["nft", "ethtool"]) else {
        return;
    };
    lab.wire_within("host", "wan0", "lan0");
    lab.run("host", "ethtool -K lan0 tso off tx-udp-segmentation off");
    lab.set("host", "ipv4/ip_forward", "1");
    let blind = ["env", "PATH=/nonexistent"];
    let found = check(&lab, &blind, "mark", "[\"lan0\"]", &[]);
    let found: Vec<Value> = faults(&found, "marks");
    let blind = |fault: &&Value| fault["cause"].as_str().unwrap().contains("nft cannot be run");
    assert_eq!(found.iter().filter(blind).count(), 1, "{found:?}");
}

#[test]
fn a_missing_capability_is_named() {
    let Some(lab) = Lab::new("deep-capability", &["host"], &["setpriv"]) else {
        return;
    };
    lab.wire_within("host", "wan0", "lan0");
    for (capability, mode, name) in
        [("net_raw", "tap", "CAP_NET_RAW"), ("net_admin", "mark", "CAP_NET_ADMIN")]
    {
        let without = [
            "setpriv",
            &format!("--bounding-set=-{capability}"),
            &format!("--inh-caps=-{capability}"),
        ];
        let refused = check(&lab, &without, mode, "[\"lan0\"]", &[]).expect_code(77);
        let findings = refused.json()["findings"].as_array().unwrap().clone();
        let named =
            findings.iter().find(|finding| finding["subject"] == name).expect("the capability");
        assert_eq!(named["level"], "problem");
        assert!(named["remedy"].as_str().unwrap().starts_with("setcap "), "{named}");
    }
}

/// A folder /etc of its own, in which the package's unit is installed and its configuration is of
/// mode mark; `systemctl` does nothing. The check of the service's configuration is refused until
/// the line that it prints is pasted.
#[test]
fn the_unit_of_the_service_is_checked_and_the_printed_line_mends_it() {
    const SERVICE: &str = "
mount -t tmpfs none /mnt && mkdir /mnt/up /mnt/work /mnt/bin
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/up,workdir=/mnt/work none /etc
ln -s /bin/true /mnt/bin/systemctl && PATH=/mnt/bin:$PATH
rm -rf /etc/fenxi /etc/systemd/system/fenxi* && mkdir -p /etc/fenxi /etc/systemd/system
cp packaging/systemd/*.service /etc/systemd/system/
for name in fenxi lan0; do cat >/etc/fenxi/$name.toml <<END
[io]
mode = \"mark\"
interfaces = [\"lan0\"]
[flow]
max_flows = 4096
[accel]
devices = [\"simulated\"]
[control]
http = \"\"
socket = \"\"
END
done
for unit in fenxi fenxi@lan0; do
  file=/etc/fenxi/${unit#fenxi@}.toml
  said=$(\"$1\" check --config $file 2>&1) && exit 1
  echo \"$? $said\"
  \"$1\" check --config $file --mode mark >/dev/null
  sh -c \"install -d ${said#*: install -d }\"
  grep CAP_NET_ADMIN /etc/systemd/system/$unit.service.d/mark.conf
  \"$1\" check --config $file >/dev/null
done
";
    let needs = ["unshare", "nft"];
    let Some(lab) = Lab::new("unit", &["host"], &needs) else {
        return;
    };
    lab.wire_within("host", "wan0", "lan0");
    let mut command = lab.command("host", "unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", SERVICE, "sh"]);
    command.arg(common::fenxi::<&str>([]).get_program()).current_dir(common::root());
    let finished = common::run(command).expect_code(0);
    for unit in ["fenxi.service", "fenxi@lan0.service"] {
        let refused = format!(
            "77 fenxi: {unit} would not start: its unit lacks CAP_NET_ADMIN, which marks, labels \
             of connections and sets of \
             nftables need; install the drop-in mark.conf: install -d /etc/systemd/system/{unit}.d \
             && "
        );
        assert!(finished.stdout.contains(&refused), "{}", finished.stdout);
    }
}

#[test]
fn a_fenxi_that_runs_is_found_and_not_disturbed() {
    let Some(lab) = Lab::new("deep-beside", &["host"], &["ethtool"]) else {
        return;
    };
    lab.wire_within("host", "wan0", "lan0");
    let mut args = vec!["--set", "io.interfaces=[\"lan0\"]", "--set", "pipeline.layout=2:1:1"];
    args.extend(common::SIMULATED);
    let live = Live::start(&lab, "host", &args);
    let socket = live.socket();
    let http = socket.with_file_name("control.http");
    let [socket, http] = [("socket=", socket), ("http=unix:", http)]
        .map(|(key, path)| format!("control.{key}{}", path.display()));
    let more = ["--set", &socket, "--set", &http, "--set", "pipeline.layout=2:1:1"];
    for _ in 0..3 {
        let beside = check(&lab, &[], "tap", "[\"lan0\"]", &more).expect_code(0);
        let findings = beside.json()["findings"].as_array().unwrap().clone();
        let found = findings.iter().filter(|finding| {
            finding["check"] == "control"
                && finding["cause"].as_str().unwrap().contains("in use by a running fenxi")
        });
        assert_eq!(found.count(), 2, "{}", beside.stdout);
    }
    let sent = lab.on("host", || send_some("wan0"));
    live.wait_for_packets(sent);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let summary = live.terminate(0).json();
    assert_eq!(summary["live"]["received"], sent);
    assert_eq!(summary["live"]["kernel_dropped"], 0);
}

/// Sends the shipped capture out of an interface of this thread's namespace; the packets sent.
fn send_some(interface: &str) -> u64 {
    use packetio::{Backend, Received, Rx, Selection};
    let mut reader = packetio::CaptureReader::open(&common::demo()).unwrap();
    let mut out = packetio::open_tx(<&Backend>::default(), interface).unwrap();
    while let Received::Burst(burst) = reader.receive(32).unwrap() {
        out.send(&burst, Selection::All).unwrap();
    }
    out.counts().sent
}

#[test]
fn the_report_has_one_form_for_people_and_one_for_machines() {
    // Without interfaces and without root: something is always found.
    let args = ["check", "--deep", "--set", "control.http=", "--set", "control.socket="];
    let people =
        common::run(common::fenxi(args.into_iter().chain(common::SIMULATED))).expect_code(69);
    assert!(
        people.stdout.contains("\n\nproblem  interface: io.interfaces is empty"),
        "{}",
        people.stdout
    );
    assert!(
        people.stdout.contains("\n         $ fenxi check --deep --set 'io.interfaces="),
        "{}",
        people.stdout
    );
    let machines = args.into_iter().chain(common::SIMULATED).chain(["--json"]);
    let machines = common::run(common::fenxi(machines));
    let report = machines.json();
    let findings = report["findings"].as_array().unwrap();
    let count = |level: &str| findings.iter().filter(|finding| finding["level"] == level).count();
    for (sum, level) in [("problems", "problem"), ("warnings", "warning"), ("ok", "ok")] {
        assert_eq!(report[sum], count(level), "{report}");
    }
    let task = &report["tasks"][0];
    assert_eq!((&task["name"], &task["when"]), (&"default".into(), &"".into()));
    assert_eq!(task["depths"], serde_json::json!([1, 2, 3, 5, 10]));
    for finding in findings {
        let texts =
            ["check", "subject", "level", "cause"].iter().all(|key| finding[key].is_string());
        assert!(texts && finding.as_object().unwrap().len() == 5, "{finding}");
        assert!(finding["level"] != "problem" || finding["remedy"].is_string(), "{finding}");
    }
    common::run(common::fenxi(["check", "--json"])).expect_code(64);
}

#[test]
fn records_need_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("new");
    let set = format!("records.path={}", place.join("flows.jsonl").display());
    let look = || {
        let args = ["check", "--deep", "--json", "--set", &set];
        let args = args.into_iter().chain(["--set", "control.http="]);
        let args = args.chain(["--set", "control.socket="]);
        common::run(common::fenxi(args.chain(common::SIMULATED)))
    };
    let found = faults(&look(), "records");
    assert_eq!(found[0]["level"], "problem", "{found:?}");
    let line = found[0]["remedy"].as_str().unwrap();
    let done = std::process::Command::new("sh").args(["-ec", line]).status();
    assert!(done.unwrap().success() && place.is_dir(), "{line}");
    let found = faults(&look(), "records");
    assert!(found.iter().all(|it| it["level"] == "warning"), "{found:?}");
}

#[test]
fn goals_that_cannot_be_promised_are_named_and_a_second_device_is_used_for_them() {
    let check = |more: &[&str]| {
        let mut command = common::fenxi(["check", "--set", "io.interfaces=[\"lo\"]"]);
        command.args(SETS).args(more);
        for set in [
            "accel.simulated_t0_us=3000",
            "analytics.policy=slo",
            "task.first.depths=[10]",
            "task.second.depths=[10]",
            "task.first.latency_goal_ms=5",
            "task.second.latency_goal_ms=500",
        ] {
            command.args(["--set", set]);
        }
        common::run(command).expect_code(0).stdout
    };
    let one = check(&common::SIMULATED);
    let warning = "warning: goal of task first: 5 ms cannot be promised: on its device the largest \
        batches of first, second take";
    assert!(one.contains(warning), "{one}");
    let two = [
        "--set",
        "pipeline.layout=1:1:2",
        "--set",
        "accel.devices=[\"simulated\", \"simulated\"]",
        "--set",
        "device.simulated.thread=own",
    ];
    let two = check(&two);
    assert!(!two.contains("cannot be promised"), "{two}");
}
