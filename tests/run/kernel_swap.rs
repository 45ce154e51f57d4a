//! `io.capture = "kernel"`: another model for flows that begin, while others go on with theirs.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::common;
use crate::common::lab::{FOREIGN, Lab};
use crate::run::kernel_marks::{
    ROUNDS, SMALL, UNNAMED_FLOWS, labelled, mark_of, name_of, start_kernel, wait_for_labels,
};
use crate::run::mark::marks;

const FIRST_PORT: u16 = 23_000;

/// A connection whose two ends send in turn.
struct Talk {
    ends: [TcpStream; 2],
    lengths: [usize; 2],
}

impl Talk {
    fn new(lab: &Lab, at: u16) -> Talk {
        let to = (Lab::server(false).parse::<IpAddr>().unwrap(), FIRST_PORT + at);
        let listener = lab.on("server", || TcpListener::bind(to).unwrap());
        let near = lab.on("client", || TcpStream::connect(to).unwrap());
        let ends = [near, listener.accept().unwrap().0];
        ends.iter().for_each(|end| end.set_nodelay(true).unwrap());
        let at = usize::from(at % UNNAMED_FLOWS);
        Talk { ends, lengths: [20 + 53 * at, 1300 - 51 * at] }
    }

    /// A packet each way, each awaited.
    fn go_on(&mut self, rounds: u64) {
        for from in (0..2 * rounds).map(|turn| turn as usize % 2) {
            let mut message = vec![7; self.lengths[from]];
            self.ends[from].write_all(&message).unwrap();
            self.ends[1 - from].read_exact(&mut message).unwrap();
        }
    }
}

/// The same model as another version of it.
fn another(dir: &Path, version: &str) -> PathBuf {
    let (from, to) = (common::root().join(SMALL), dir.join(version));
    common::copy_bundle(&from, &to);
    let manifest = to.join("model.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let own = text.lines().map(|line| match line.starts_with("version") {
        true => format!("version = {version:?}\n"),
        false => format!("{line}\n"),
    });
    std::fs::write(&manifest, own.collect::<String>()).unwrap();
    to
}

/// Flows that were asked about before a swap keep their model at all depths, and those that begin
/// behind it have the new one; the connections have the marks.
#[test]
fn a_flow_keeps_the_model_that_it_was_first_asked_by() {
    let Some(lab) = Lab::routed("kernel-swap", false, &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let live = start_kernel(&lab, "in", SMALL, &path, &[]);
    let mut last = 0;
    let mut begin = |rounds| -> Vec<Talk> {
        let ports = last..last + UNNAMED_FLOWS;
        last = ports.end;
        let mut talks: Vec<Talk> = ports.map(|at| Talk::new(&lab, at)).collect();
        talks.iter_mut().for_each(|talk| talk.go_on(rounds));
        talks
    };
    // By generation: the oldest go on behind three swaps.
    let mut talks = Vec::new();
    for version in ["2", "3", "4"] {
        talks.extend(begin(1));
        let bundle = another(dir.path(), version);
        let since = Instant::now();
        live.ctl(&["model", "load", bundle.to_str().unwrap()]).expect_code(0);
        println!("a swap: {} ms", since.elapsed().as_millis());
    }
    talks.extend(begin(1));
    talks.iter_mut().for_each(|talk| talk.go_on(ROUNDS - 1));
    drop(talks);
    wait_for_labels(&live, last.into());
    live.terminate(0);

    let flows: BTreeMap<_, _> =
        (0..last).map(|at| ((false, true, FIRST_PORT + at), ROUNDS)).collect();
    let marks = marks(&lab);
    let mut is_deeper = [false; 4];
    for record in labelled(&path, &flows) {
        let generation = usize::from((name_of(&record).2 - FIRST_PORT) / UNNAMED_FLOWS);
        assert_eq!(record["model_generation"], generation, "{record}");
        is_deeper[generation] |= record["depth"].as_u64() > Some(2);
        let text = |name: &str| record[name].to_string().replace('"', "");
        let tuple = ["src", "src_port", "dst", "dst_port", "proto"].map(text);
        let mark = FOREIGN | mark_of(SMALL, &record["label"]);
        assert_eq!(marks[&tuple.join(" ")], mark, "{record}");
    }
    assert_eq!(is_deeper, [true; 4], "no flow was decided behind the swap");
}
