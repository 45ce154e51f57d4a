//! `fenxi model info`: what a bundle declares.

use std::fmt::Write as _;

use accel::Bundle;
use serde_json::{Value, json};

use super::open;
use crate::cli::InfoArgs;
use crate::exit::{Failure, print};

pub fn info(args: &InfoArgs) -> Result<(), Failure> {
    let bundle = open(&args.dir)?;
    print(&match args.json {
        true => format!("{}\n", as_json(&bundle)),
        false => page(&bundle),
    })
}

fn page(bundle: &Bundle) -> String {
    let shape = bundle.shape();
    let mut page = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{name:15} {value}");
    };
    line("name", bundle.name().to_owned());
    line("version", bundle.version().to_owned());
    line("sha256", bundle.sha256().to_owned());
    line("precision", bundle.precision().to_owned());
    line("unit", bundle.unit().to_owned());
    line("features", bundle.features().join(", "));
    let (channels, k) = (shape.channels, shape.k);
    line("input", format!("{}: float32 [N, {channels}, {k}]", bundle.input_name()));
    if let Some(name) = bundle.context_input_name() {
        line("context", bundle.context().join(", "));
        let context = format!("{name}: float32 [N, {}]", shape.context);
        line("second input", context);
    }
    let output = format!("{}: float32 [N, {}]", bundle.output_name(), shape.classes);
    line("output", output);
    let midstream = match bundle.midstream() {
        true => "labelled too",
        false => "not labelled",
    };
    line("midstream flows", midstream.to_owned());
    line("min_confidence", bundle.min_confidence().to_string());
    if bundle.depths().len() > 1 {
        for depth in bundle.depths() {
            let mut sure = format!("{:<15} sure from {}", depth.elements, depth.confidence);
            match depth.contradiction {
                Some(least) if least < 1.0 => sure += &format!(", contradicts ports from {least}"),
                Some(_) => sure += ", contradicts no port",
                None => {}
            }
            line("depth", sure);
        }
    }
    let ports = bundle.ports().len();
    let ports = match bundle.is_ports_first() {
        true => format!("{ports:<15} name flows with their first packets"),
        false => ports.to_string(),
    };
    line("ports", ports);
    if let Some(hosts) = bundle.hosts() {
        let text = format!(
            "by their first {} flows, at least {}, from {}",
            hosts.flows, hosts.min_flows, hosts.confidence
        );
        line("hosts", text);
    }
    line("golden rows", bundle.golden().inputs.len().to_string());
    for label in bundle.labels() {
        line("label", format!("{:15} {}", label.name, label.taxonomy));
    }
    page
}

fn as_json(bundle: &Bundle) -> Value {
    let shape = bundle.shape();
    let input = json!({"name": bundle.input_name(), "shape": ["N", shape.channels, shape.k]});
    let context = bundle.context_input_name().map(
        |name| json!({"name": name, "shape": ["N", shape.context], "fields": bundle.context()}),
    );
    let depths = bundle.depths().iter();
    let depths = depths.map(|depth| {
        json!({
            "elements": depth.elements,
            "confidence": decimal(depth.confidence),
            "contradiction": depth.contradiction.map(decimal),
        })
    });
    let ports = bundle.ports().iter().map(|port| {
        json!({
            "protocol": port.protocol,
            "port": port.port,
            "label": bundle.labels().get(port.label).map(|label| &label.name),
            "precision": decimal(port.precision),
        })
    });
    let hosts = bundle.hosts().map(|hosts| {
        let confidence = decimal(hosts.confidence);
        json!({"flows": hosts.flows, "min_flows": hosts.min_flows, "confidence": confidence})
    });
    let labels = bundle.labels().iter();
    let labels = labels.map(|label| json!({"name": label.name, "taxonomy": label.taxonomy}));
    json!({
        "name": bundle.name(),
        "version": bundle.version(),
        "sha256": bundle.sha256(),
        "precision": bundle.precision(),
        "unit": bundle.unit(),
        "features": bundle.features(),
        "input": input,
        "context": context,
        "output": {"name": bundle.output_name(), "shape": ["N", shape.classes]},
        "midstream": bundle.midstream(),
        "min_confidence": decimal(bundle.min_confidence()),
        "depths": depths.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
        "hosts": hosts,
        "golden_rows": bundle.golden().inputs.len(),
        "labels": labels.collect::<Vec<_>>(),
    })
}

/// The number as the manifest has it: 0.9, not the nearest f32 in sixteen digits.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
