//! Another configuration while traffic flows: how packets are tagged and connections marked from
//! then on, as others see it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self};
use crate::run::capture::{Seen, listen, seen as seen_in};
use crate::run::inline;
use crate::run::mark;
use crate::run::traffic::{ask, ask_udp, connect, every_label};

/// Has it read the file again, which is now this; the keys that it applied, of tables their names.
fn reload(live: &Live, file: &Path, config: &str) -> BTreeSet<String> {
    fs::write(file, config).unwrap();
    let mut ctl = common::fenxi(["ctl", "--json", "reload", "--socket"]);
    ctl.arg(live.socket());
    let reply = common::run(ctl).expect_code(0).json();
    let rows = reply["reloaded"]["applied"].as_array().unwrap();
    let key = |row: &Value| {
        let parts: Vec<&str> = row["key"].as_str().unwrap().split('.').collect();
        parts[..2].join(".")
    };
    rows.iter().map(key).collect()
}

/// Does `work` while a thread of its own goes on with `talk`.
fn meanwhile<T>(mut talk: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talking = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                talk();
            }
        });
        let done = work();
        is_done.store(true, Ordering::Relaxed);
        talking.join().unwrap();
        done
    })
}

/// Flows begun before and after each reload have the DSCP that is configured, from their label on
/// and from the reload on.
#[test]
fn packets_get_the_dscp_that_a_reload_brings() {
    /// EF, AF41, AF11.
    const DSCPS: [u8; 3] = [46, 34, 10];
    for layout in ["1:1:1", "2:1:1"] {
        let Some(lab) = Lab::bridged("redscp", &["tcpdump", "tshark"]) else {
            return;
        };
        let config = |dscp: u8| every_label("tag.dscp", &dscp.to_string());
        let dir = tempfile::tempdir().unwrap();
        let [file, capture] = ["fenxi.toml", "capture"].map(|name| dir.path().join(name));
        fs::write(&file, config(DSCPS[0])).unwrap();
        let layout = format!("pipeline.layout={layout}");
        let mut args = vec!["--config", file.to_str().unwrap(), "--set", &layout];
        args.extend(["--set", "io.interfaces=[\"l\", \"r\"]"]);
        args.extend(["--set", "io.mode=inline"]);
        args.extend(common::SIMULATED);
        let live = Live::start(&lab, "box", &args);
        let right = listen(&lab, &live, &capture);

        let mut flows: Vec<[UdpSocket; 2]> = Vec::new();
        let all_ask = |flows: &[[UdpSocket; 2]]| flows.iter().for_each(|flow| ask(flow, 5));
        for (at, dscp) in DSCPS.into_iter().enumerate() {
            if at > 0 {
                let applied = meanwhile(|| all_ask(&flows), || reload(&live, &file, &config(dscp)));
                assert_eq!(Vec::from_iter(applied), ["tag.dscp"]);
            }
            // More packets than a series has.
            flows.extend(inline::RIGHT.map(|to| ask_udp(&lab, ["left", "right"], to, 12)));
            live.wait_for("each flow has its label", |live| {
                live.metric_sum("fenxi_series_total") >= flows.len() as f64
                    && live.metric_sum("fenxi_series_waiting") == 0.0
            });
            all_ask(&flows);
        }
        right.finish(&live);
        inline::all_was_sent(live);

        // tshark numbers flows as they come.
        let mut seen: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for Seen { flow, dscp } in seen_in(&capture) {
            let Some(flow) = flow else { continue };
            let number = flow.rsplit(' ').next().unwrap().parse().unwrap();
            seen.entry(number).or_default().push(dscp);
        }
        assert_eq!(seen.len(), flows.len());
        for (number, mut dscps) in seen {
            dscps.dedup();
            let since = number / inline::RIGHT.len();
            assert_eq!(dscps, [&[0], &DSCPS[since..]].concat(), "flow {number}");
        }
    }
}

/// Connections that are labelled after a reload get the bits that it names, within the mask that it
/// names; marks that were there stay, and so do the bits of others.
#[test]
fn connections_get_the_marks_that_a_reload_brings() {
    let Some(lab) = Lab::routed("remark", true, &[]) else {
        return;
    };
    let config = |mask: u32, class: u32| {
        let class = every_label("class", &format!("{class:#x}"));
        format!("[mark]\nmask = {mask:#x}\n{class}\n")
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fenxi.toml");
    fs::write(&file, config(0xff00_0000, 0x4200_0000)).unwrap();
    let mut args = vec!["--config", file.to_str().unwrap()];
    args.extend(["--set", "io.interfaces=[\"in\"]", "--set", "io.mode=mark"]);
    args.extend(common::SIMULATED);
    let live = Live::start(&lab, "router", &args);

    let mut connections = Vec::new();
    for (mask, class, applied) in [
        (0xff00_0000, 0x4200_0000, &[][..]),
        (0x00ff_0000, 0x0017_0000, &["mark.class", "mark.mask"]),
        (0x00ff_0000, 0x0018_0000, &["mark.class"]),
    ] {
        if !applied.is_empty() {
            let [mut near, mut far] = connect(&lab, mark::HOSTS, Lab::server(false));
            let talk = || {
                near.write_all(&[7; 1000]).unwrap();
                far.read_exact(&mut [0; 1000]).unwrap();
            };
            let keys = meanwhile(talk, || reload(&live, &file, &config(mask, class)));
            assert_eq!(Vec::from_iter(keys), applied);
        }
        for is_v6 in [false, true] {
            let [mut near, mut far] = connect(&lab, mark::HOSTS, Lab::server(is_v6));
            for _ in 0..20 {
                near.write_all(&[7; 1000]).unwrap();
                far.read_exact(&mut [0; 1000]).unwrap();
                far.write_all(&[8; 10]).unwrap();
                near.read_exact(&mut [0; 10]).unwrap();
            }
            let client = near.local_addr().unwrap();
            live.wait_for("the connection has its mark", |_| {
                mark::mark_at(&lab, client) != FOREIGN
            });
            connections.push((client, class, [near, far]));
        }
        for (client, class, _) in &connections {
            let mark = mark::mark_at(&lab, *client);
            assert_eq!(mark, FOREIGN | class, "{mark:#x} {class:#x} {client}");
        }
    }
    assert_eq!(live.metric_sum("fenxi_port_dropped_packets_total"), 0.0);
    live.terminate(0);
}
