//! `fenxi ctl model truth`: the labels that a teacher gives flows, one object of JSON a line.

use std::collections::HashMap;
use std::path::Path;

use crate::exit::Failure;
use crate::protocol::{FlowTruth, TRUTH_MAX};

/// What a line has to be.
const LINE: &str = "a line is {\"proto\": 6, \"src_port\": 40000, \"dst_port\": 443, \
    \"first_us\": 1700000000000000, \"label\": \"video\"}";

/// Reads the labels of a file, or of standard input (`-`): all lines, or none.
///
/// # Errors
/// 66: it cannot be read. 65: it is too long, or a line is none, names no TCP or UDP flow, or gives
/// a flow another label than a line before.
pub fn read(file: &Path) -> Result<Vec<FlowTruth>, Failure> {
    parse(&super::read(file, TRUTH_MAX, "send several files")?)
        .map_err(|why| Failure::data(format!("{}: {why}", file.display())))
}

fn parse(text: &str) -> Result<Vec<FlowTruth>, String> {
    let (mut flows, mut seen) = (Vec::new(), HashMap::new());
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (at, line) in lines {
        let number = at + 1;
        let flow: FlowTruth = serde_json::from_str(line).map_err(|error| {
            // It calls each line the first.
            let why = error.to_string().replace(" at line 1 column", ", column");
            format!("line {number}: {why}; {LINE}")
        })?;
        if !matches!(flow.proto, 6 | 17) {
            let proto = flow.proto;
            return Err(format!("line {number}: proto: {proto}; a flow is TCP (6) or UDP (17)"));
        }
        if flow.label.is_empty() {
            return Err(format!("line {number}: an empty label; complete or remove the line"));
        }
        let key = (flow.proto, flow.src_port, flow.dst_port, flow.first_us);
        let (first, label) = seen.entry(key).or_insert_with(|| (number, flow.label.clone()));
        if *label != flow.label {
            return Err(format!(
                "line {number}: the flow of line {first} again, as {} and not {label}; remove one",
                flow.label
            ));
        }
        flows.push(flow);
    }
    match flows.is_empty() {
        true => Err(format!("no labels; {LINE}")),
        false => Ok(flows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(port: u16, label: &str) -> String {
        let (proto, dst_port, first_us, label) = (6, 443, 17, label.to_owned());
        let flow = FlowTruth { proto, src_port: port, dst_port, first_us, label };
        serde_json::to_string(&flow).unwrap() + "\n"
    }

    #[test]
    fn lines_are_taken_all_or_none() {
        let good = line(1, "video") + "\n" + &line(2, "web") + &line(1, "video");
        let flows = parse(&good).unwrap();
        let labels: Vec<_> = flows.iter().map(|it| (it.src_port, it.label.as_str())).collect();
        assert_eq!(labels, [(1, "video"), (2, "web"), (1, "video")]);
        for (bad, why) in [
            ("video\n".to_owned(), "line 4: expected value, column 1; a line is {"),
            (line(1, "web"), "line 4: the flow of line 1 again, as web and not video; remove one"),
            (line(3, ""), "line 4: an empty label"),
            (line(3, "web").replace("6,", "1,"), "line 4: proto: 1; a flow is TCP (6) or UDP"),
            (line(3, "web").replace("17,", "1.5,"), "line 4: invalid type: floating point `1.5`"),
            (line(3, "web").replace("443", "70000"), "line 4: invalid value: integer `70000`"),
            (line(3, "web").replace("first_us", "first"), "line 4: unknown field `first`"),
            (line(3, "web").replace(",\"label\":\"web\"", ""), "line 4: missing field `label`"),
        ] {
            let error = parse(&(good.replace("\n\n", "\n") + &bad)).unwrap_err();
            assert!(error.starts_with(why), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(parse("\n").unwrap_err().starts_with("no labels; "));
    }
}
