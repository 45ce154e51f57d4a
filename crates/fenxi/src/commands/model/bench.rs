//! `fenxi model bench`: scores a bundle on a table of labelled flows, beside simple baselines.

mod plots;
mod report;
mod text;

use std::time::Duration;

use accel::profile::measure;
use accel::{Bundle, Device};

use self::report::{Fitted, Names, Report, Speed, depths, label_counts};
use crate::cli::BenchArgs;
use crate::commands::devices::{config_for, to_json};
use crate::exit::{Failure, print, remark};
use dataplane::session::session;
use labelled::answers::{BATCH, at_depth};
use labelled::baselines::Folds;
use labelled::flows::Flows;

/// How long batches are timed.
const TIMED: Duration = Duration::from_millis(500);

/// Scores the bundle and prints the report.
///
/// # Errors
/// The bundle, the table, the configuration or the device cannot be used, or a plot cannot be written.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let mut config = config_for(&args.config, &args.config.sets, &args.device)?;
    let bundle = super::open(&args.dir)?;
    let depths_of = || bundle.depths().iter().map(|depth| depth.elements);
    if let Some(dir) = &args.plots {
        plots::check(dir, depths_of())?;
    }
    let flows = Flows::read(&args.labels, &bundle, &args.column, args.group.as_deref())?;
    let [device] = config.accel.devices.as_mut_slice() else {
        return Err(Failure::software("bench takes one device at a time"));
    };
    device.batch_sizes = vec![BATCH];
    let device = device.clone();
    let mut session = session(&config, &bundle, &device)?;
    let report = report(args, &bundle, &flows, session.as_mut())?;
    if let Some(dir) = &args.plots {
        plots::write(dir, &report, &flows.classes)?;
        remark(&format!("fenxi: plots written to {}\n", dir.display()))?;
    }
    match args.json {
        true => print(&to_json(&report)?),
        false => print(&text::page(&report)),
    }
}

/// Asks the model about all flows at all depths, and scores the answers.
fn report(
    args: &BenchArgs,
    bundle: &Bundle,
    flows: &Flows,
    device: &mut dyn Device,
) -> Result<Report, Failure> {
    let failed = |error: accel::DeviceError| Failure::data(format!("{}: {error}", bundle.name()));
    let mut answers = Vec::new();
    for depth in bundle.depths() {
        answers.push(at_depth(flows, depth.elements, device).map_err(failed)?);
        if device.probabilities().is_empty() {
            let name = &args.device;
            return Err(Failure::usage(format!(
                "device {name} computes no probabilities to score; name another --device"
            )));
        }
    }
    let folds = Folds::of(flows);
    Ok(Report {
        model: bundle.name().to_owned(),
        version: bundle.version().to_owned(),
        precision: bundle.precision().to_owned(),
        sha256: bundle.sha256().to_owned(),
        device: device.requested().to_owned(),
        effective: device.effective().to_owned(),
        table: args.labels.display().to_string(),
        column: args.column.clone(),
        rows: flows.counts.clone(),
        others_are: flows
            .outlier
            .map(|class| flows.classes[usize::from(class)].clone()),
        other_labels: label_counts(flows),
        depths: depths(flows, bundle, &answers, folds.as_ref()),
        names: Names::of(flows, bundle, &answers),
        baselines: folds.map(|folds| Fitted {
            folds: folds.count,
            groups: folds.groups,
        }),
        speed: speed(bundle, device).map_err(failed)?,
    })
}

/// Times batches of golden inputs.
fn speed(bundle: &Bundle, device: &mut dyn Device) -> Result<Speed, accel::DeviceError> {
    let measured = measure(device, &[BATCH], &bundle.golden().inputs, TIMED)?;
    let point = measured.points()[0];
    Ok(Speed {
        batch: point.rows,
        batches: point.runs,
        median_us: point.median_us,
        rows_per_second: point.throughput(),
    })
}
