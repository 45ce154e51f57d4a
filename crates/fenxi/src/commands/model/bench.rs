//! `fenxi model bench`: names the flows of a labelled table as the data path would, and times the
//! model. `fenxi-train compare` scores bundles.

mod flows;
mod names;

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use accel::profile::{Point, measure};
use accel::{Bundle, Device, DeviceError};
use serde_json::json;

use self::flows::{Flow, Flows};
use self::names::{BATCH, NONE, Name, Namer, at_depth};
use crate::cli::BenchArgs;
use crate::commands::devices::config_for;
use crate::escape::escape;
use crate::exit::{Failure, print};
use crate::figures::grouped;
use dataplane::bundle::UNKNOWN;
use dataplane::session::session;

const TIMED: Duration = Duration::from_millis(500);

/// Labels that the text lists of those that the bundle does not have.
const OTHERS_SHOWN: usize = 8;

/// The names that flows end with.
struct Names {
    /// Flows whose beginning was seen, short ones too.
    flows: usize,
    /// Share with a name, which the class for others is not.
    named: f64,
    /// Share of the named flows whose name is right.
    right: f64,
}

/// Names the flows of the table, and prints how many get a name, how many names are right, and
/// how fast the model is. `--rows` has the name of each flow.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let mut config = config_for(&args.config, &args.config.sets, &args.device)?;
    let bundle = super::open(&args.dir)?;
    let flows = Flows::read(&args.labels, &bundle, &args.column)?;
    let [device] = config.accel.devices.as_mut_slice() else {
        return Err(Failure::software("bench takes one device at a time"));
    };
    device.batch_sizes = vec![BATCH];
    let device = device.clone();
    let mut device = session(&config, &bundle, &device)?;
    let failed = |error: DeviceError| Failure::data(format!("{}: {error}", bundle.name()));
    let names = names(&flows, &bundle, device.as_mut()).map_err(failed)?;
    if let Some(path) = &args.rows {
        write_rows(path, &flows, &names)?;
    }
    let speed = measure(device.as_mut(), &[BATCH], &bundle.golden().inputs, TIMED);
    let speed = speed.map_err(failed)?.points()[0];
    let sums = sums(&names, bundle.labels().len(), flows.outlier);
    if args.json {
        let label = |(label, flows): &(&str, usize)| json!({ "label": label, "flows": flows });
        let report = json!({
            "model": bundle.name(),
            "version": bundle.version(),
            "precision": bundle.precision(),
            "sha256": bundle.sha256(),
            "device": device.requested(),
            "effective": device.effective(),
            "table": args.labels.display().to_string(),
            "column": args.column,
            "rows": flows.counts,
            "others_are": flows.other_class(),
            "other_labels": other_labels(&flows).iter().map(label).collect::<Vec<_>>(),
            "names": { "flows": sums.flows, "named": sums.named, "right": sums.right },
            "speed": {
                "batch": speed.rows,
                "batches": speed.runs,
                "median_us": speed.median_us,
                "rows_per_second": speed.throughput(),
            },
        });
        return print(&format!("{report}\n"));
    }
    let head = format!(
        "{} {} ({}) on device {} ({})\n{}, labels in `{}`\n\n",
        bundle.name(),
        bundle.version(),
        bundle.precision(),
        device.requested(),
        device.effective(),
        escape(&args.labels.display().to_string()),
        escape(&args.column)
    );
    print(&(head + &page(&flows, &sums, &speed)))
}

/// The flows that fenxi asks a model about, with their names.
fn names(
    flows: &Flows,
    bundle: &Bundle,
    device: &mut dyn Device,
) -> Result<Vec<(Flow, Name)>, DeviceError> {
    let mut depths = Vec::new();
    for depth in bundle.depths() {
        depths.push(at_depth(flows, depth.elements, bundle.k(), device)?);
    }
    let namer = Namer::of(bundle);
    let asked = flows.flows.iter().enumerate();
    let named = asked.filter(|(_, flow)| flow.is_asked).map(|(at, flow)| {
        let answers: Vec<_> = depths.iter().map(|answers| answers[at]).collect();
        (*flow, namer.name(flow, &answers))
    });
    Ok(named.collect())
}

fn sums(names: &[(Flow, Name)], labels: usize, outlier: Option<u16>) -> Names {
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    let is_named = |name: &Name| usize::from(name.class) < labels && Some(name.class) != outlier;
    let named = || names.iter().filter(|(_, name)| is_named(name));
    let right = named().filter(|(flow, name)| flow.class == name.class);
    Names {
        flows: names.len(),
        named: share(named().count(), names.len()),
        right: share(right.count(), named().count()),
    }
}

/// Writes a row for each flow: its line in the table, truth, name, confidence and what decided.
fn write_rows(path: &Path, flows: &Flows, names: &[(Flow, Name)]) -> Result<(), Failure> {
    let file = File::create(path).map_err(|error| Failure::creating(path, &error))?;
    let mut rows = csv::Writer::from_writer(file);
    let class = |class: u16| match class {
        NONE => "",
        class => flows.classes.get(usize::from(class)).map_or(UNKNOWN, String::as_str),
    };
    let mut write = || {
        rows.write_record(["line", "truth", "label", "confidence", "decided_by"])?;
        for (flow, name) in names {
            rows.write_record([
                &flow.line.to_string(),
                class(flow.class),
                class(name.class),
                &format!("{:.6}", name.confidence),
                &name.by.to_string(),
            ])?;
        }
        rows.flush()
    };
    write().map_err(|error| Failure::writing(&path.display().to_string(), &error))
}

/// Labels that the bundle does not have, the commonest first, with their flows.
fn other_labels(flows: &Flows) -> Vec<(&str, usize)> {
    let mut labels: Vec<(&str, usize)> =
        flows.other_labels.iter().map(|(label, flows)| (label.as_str(), *flows)).collect();
    labels.sort_by_key(|(_, flows)| std::cmp::Reverse(*flows));
    labels
}

fn page(flows: &Flows, names: &Names, speed: &Point) -> String {
    let mut page = String::new();
    let (rows, labels) = (&flows.counts, other_labels(flows));
    let others = others(&labels);
    let (missing, as_other, other) = match flows.other_class() {
        Some(class) => (0, labels.iter().map(|(_, flows)| flows).sum(), class),
        None => (rows.not_in_bundle, 0, ""),
    };
    for (count, what) in [
        (rows.rows, "flows in the table"),
        (rows.scored, "asked about at one depth or more"),
        (rows.short, "not asked about: fewer elements than the first depth"),
        (rows.midstream, "left out: began mid-stream"),
        (rows.unlabelled, "left out: no label"),
        (rows.uncertain, "left out: the label was guessed (column `confidence`)"),
        (missing, &format!("left out: the bundle does not have the label: {others}")),
        (
            as_other,
            &format!("count as {other}, because the bundle does not have the label: {others}"),
        ),
    ] {
        if count > 0 {
            let _ = writeln!(page, "{:>9}  {what}", grouped(count as u64));
        }
    }
    let _ = write!(
        page,
        "\n{:.1} % of {} flows get a name, {:.3} of those are right; of flows that the model was \
         trained on, that says little.\n{} rows per second in batches of {}\n",
        100.0 * names.named,
        grouped(names.flows as u64),
        names.right,
        grouped(speed.throughput() as u64),
        speed.rows,
    );
    page
}

fn others(labels: &[(&str, usize)]) -> String {
    let shown = labels.iter().take(OTHERS_SHOWN);
    let mut names: Vec<String> =
        shown.map(|(label, flows)| format!("{} {flows}", escape(label))).collect();
    if labels.len() > OTHERS_SHOWN {
        names.push(format!("and {} more labels", labels.len() - OTHERS_SHOWN));
    }
    names.join(", ")
}
