//! `fenxi model`: prints a bundle's manifest, checks its outputs, compares it with the bundle it
//! was derived from, and names labelled flows.

mod bench;
mod columns;
mod compare;
mod info;
mod series;
mod table;

use std::path::Path;
use std::time::Duration;

use accel::{Bundle, BundleError, GoldenReport, Sizes, check_golden};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

pub use self::bench::bench;
use self::compare::{Comparison, Model};
pub use self::info::info;
use self::series::Samples;
use crate::cli::{CheckArgs, TryArgs};
use crate::exit::{Failure, print};
use crate::sinks;
use config::{Config, Sources};
use dataplane::session::cpu_device;

/// Loads the bundle on the CPU and compares its outputs with the golden ones, then with another
/// bundle if one is named.
///
/// # Errors
/// A bundle or the library is missing or damaged, the outputs differ from the golden ones, or the
/// other bundle cannot be compared. A loss of accuracy is not an error.
pub fn check(args: &CheckArgs) -> Result<(), Failure> {
    let config = sinks::known(Sources::named(None, &[])).load()?.config;
    let mut model = load(&config, &args.dir)?;
    let golden = golden(&mut model, &args.dir)?;
    let mut against = match &args.against {
        Some(dir) => Some(comparable(&model.bundle, load(&config, dir)?)?),
        None => None,
    };
    let comparisons = match &mut against {
        Some(against) => compare_all(args, &mut model, against)?,
        None => Vec::new(),
    };
    let against = against.map(|against| against.bundle);
    if args.json {
        let report = as_json(&model.bundle, golden, against.as_ref(), &comparisons);
        return print(&format!("{report}\n"));
    }
    let mut page = format!("{}: golden outputs agree: {}\n", title(&model.bundle), found(golden));
    if let Some(against) = &against {
        page += &format!("against {}:\n", title(against));
    }
    page.extend(comparisons.iter().map(Comparison::as_text));
    print(&page)
}

/// A trial exits by itself this long after its deadline, unless its parent has killed it before.
const TRIAL_SLACK: Duration = Duration::from_secs(1);

/// Opens the bundle on the CPU and runs its golden inputs. The outputs are not compared: the trial
/// shows that the model neither crashes nor hangs.
pub fn trial(args: &TryArgs) -> Result<(), Failure> {
    // All three only keep a bad model from harming the machine; the trial is valid without them.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let last = Duration::from_secs_f64(args.within_s) + TRIAL_SLACK;
    let _ = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(last);
        signal_hook::low_level::exit(75);
    });
    let mut config = sinks::known(Sources::named(None, &[])).load()?.config;
    config.accel.library = args.library.clone();
    let mut model = load(&config, &args.dir)?;
    let checked = check_golden(&model.bundle, model.device.as_mut());
    checked.map(drop).map_err(|error| Failure::data(format!("{}: {error}", args.dir.display())))
}

pub fn open(dir: &Path) -> Result<Bundle, Failure> {
    Bundle::open(dir).map_err(|error| match error {
        BundleError::Missing { .. } => Failure::no_input(error.to_string()),
        error => Failure::data(error.to_string()),
    })
}

fn load(config: &Config, dir: &Path) -> Result<Model, Failure> {
    let bundle = open(dir)?;
    let cap = compare::BATCH;
    let device = cpu_device(config, &bundle, Sizes::Any { cap })?;
    Ok(Model { bundle, device })
}

fn golden(model: &mut Model, dir: &Path) -> Result<GoldenReport, Failure> {
    let report = check_golden(&model.bundle, model.device.as_mut())
        .map_err(|error| Failure::data(format!("{}: {error}", dir.display())))?;
    if report.agrees() {
        return Ok(report);
    }
    Err(Failure::data(format!(
        "{}: golden outputs differ by more than {:.0e}: {}; the model, the library and the golden \
         files do not belong together",
        dir.display(),
        report.tolerance,
        found(report),
    )))
}

/// Returns the other model if both have the same input and the same classes.
fn comparable(bundle: &Bundle, against: Model) -> Result<Model, Failure> {
    let other = &against.bundle;
    let series = |bundle: &Bundle| {
        (
            bundle.unit().to_owned(),
            bundle.k(),
            bundle.features().to_vec(),
            bundle.context().to_vec(),
        )
    };
    let difference = if series(bundle) != series(other) {
        "take different input (unit, k, features or context)"
    } else if !bundle
        .labels()
        .iter()
        .map(|label| &label.name)
        .eq(other.labels().iter().map(|label| &label.name))
    {
        "have different labels, or the same in another order"
    } else {
        return Ok(against);
    };
    Err(Failure::data(format!(
        "{} and {} {difference}; --against needs a bundle made from the same model",
        title(bundle),
        title(other),
    )))
}

/// Compares on the golden inputs, then the tables, then the captures.
fn compare_all(
    args: &CheckArgs,
    model: &mut Model,
    against: &mut Model,
) -> Result<Vec<Comparison>, Failure> {
    let golden = Samples {
        rows: model.bundle.golden().inputs.clone(),
        contexts: model.bundle.golden().contexts.clone(),
        classes: Vec::new(),
    };
    let mut comparisons =
        vec![Comparison::of("golden inputs".to_owned(), &golden, model, against)?];
    for path in &args.series {
        let samples = series::of_table(path, &model.bundle)?;
        comparisons.push(Comparison::of(path.display().to_string(), &samples, model, against)?);
    }
    for path in &args.capture {
        let samples = series::of_capture(path, &model.bundle)?;
        comparisons.push(Comparison::of(path.display().to_string(), &samples, model, against)?);
    }
    Ok(comparisons)
}

fn as_json(
    bundle: &Bundle,
    golden: GoldenReport,
    against: Option<&Bundle>,
    comparisons: &[Comparison],
) -> Value {
    let named = |bundle: &Bundle| {
        json!({
            "name": bundle.name(),
            "version": bundle.version(),
            "precision": bundle.precision(),
            "sha256": bundle.sha256(),
        })
    };
    let comparisons: Vec<Value> = comparisons.iter().map(Comparison::as_json).collect();
    json!({
        "model": named(bundle),
        "golden": {
            "rows": golden.rows,
            "max_difference": golden.max_abs_difference,
            "other_class": golden.argmax_differences,
        },
        "against": against.map(named),
        "comparisons": comparisons,
    })
}

fn title(bundle: &Bundle) -> String {
    format!("{} {} ({})", bundle.name(), bundle.version(), bundle.precision())
}

fn found(report: GoldenReport) -> String {
    format!(
        "{} rows, largest difference {:.2e}, {} with another class",
        report.rows, report.max_abs_difference, report.argmax_differences
    )
}
