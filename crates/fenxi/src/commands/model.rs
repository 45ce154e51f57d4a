//! `fenxi model`: prints a bundle's manifest, checks its outputs, compares it with the bundle it
//! was derived from, names labelled flows, and compiles its network into a file.

mod bench;
mod columns;
mod compare;
mod kernel;
mod table;

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use accel::{Bundle, BundleError, GoldenReport, Provider, Sizes, Target, check_golden};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

pub use self::bench::bench;
use self::compare::{Comparison, Model, Samples};
use crate::cli::{CheckArgs, CompileArgs, InfoArgs, TryArgs};
use crate::exit::{Failure, print};
use crate::sinks;
use config::{Config, Sources};
use dataplane::session::plain_device;

/// Loads the bundle on the devices of the CPU and compares their outputs with the golden ones, then
/// with each other, or with another bundle if one is named.
///
/// # Errors
/// A bundle is missing or damaged, no device runs it, the outputs differ from the golden ones, or
/// the other bundle cannot be compared. A loss of accuracy is not an error.
pub fn check(args: &CheckArgs) -> Result<(), Failure> {
    let config = sinks::known(Sources::named(None, &[])).load()?.config;
    let (mut models, refused) = load(&config, &args.dir)?;
    let mut goldens = Vec::new();
    for model in &mut models {
        goldens.push((model.device.effective().to_owned(), golden(model, &args.dir)?));
    }
    let mut model = models.remove(0);
    let mut against = match &args.against {
        Some(dir) => Some(comparable(&model.bundle, load(&config, dir)?.0.remove(0))?),
        None => models.pop(),
    };
    let comparisons = match &mut against {
        Some(against) => compare_all(args, &mut model, against)?,
        None => Vec::new(),
    };
    let differs = |why| Failure::data(format!("{}: in the kernel, {why}", args.dir.display()));
    let in_kernel = kernel::check(&model.bundle).map_err(differs)?;
    if args.json {
        let mut report = as_json(&model, &goldens, &refused, against.as_ref(), &comparisons);
        report["kernel"] = match &in_kernel {
            Ok(rows) => json!({"rows": rows}),
            Err(why) => json!({"refused": why}),
        };
        return print(&format!("{report}\n"));
    }
    let mut page = String::new();
    for (device, golden) in &goldens {
        let of = if page.is_empty() { title(&model.bundle) } else { format!("on {device}") };
        page += &format!("{of}: golden outputs agree: {}\n", found(*golden));
    }
    page.extend(refused.iter().map(|why| format!("{why}\n")));
    page += &match in_kernel {
        Ok(rows) => format!("in the kernel: all {rows} golden rows as native\n"),
        Err(why) => format!("in the kernel: not run; {why}\n"),
    };
    if let Some(against) = &against {
        let against = match &args.against {
            Some(_) => title(&against.bundle),
            None => against.device.effective().to_owned(),
        };
        page += &format!("against {against}:\n");
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
    let mut model = load(&config, &args.dir)?.0.remove(0);
    let checked = check_golden(&model.bundle, model.device.as_mut());
    checked.map(drop).map_err(|error| Failure::data(format!("{}: {error}", args.dir.display())))
}

pub fn open(dir: &Path) -> Result<Bundle, Failure> {
    Bundle::open(dir).map_err(|error| match error {
        BundleError::Missing { .. } => Failure::no_input(error.to_string()),
        error => Failure::data(error.to_string()),
    })
}

/// The bundle on each device of the CPU that runs it, one at least; and why others do not.
fn load(config: &Config, dir: &Path) -> Result<(Vec<Model>, Vec<String>), Failure> {
    let bundle = open(dir)?;
    let (mut models, mut refused) = (Vec::new(), Vec::new());
    // A library that somebody named must be there.
    let is_named = config.accel.library.is_some() || env::var_os("FENXI_ONNXRUNTIME").is_some();
    for provider in Provider::all().filter(|it| it.computes && it.is_cpu) {
        let sizes = Sizes::Any { cap: compare::BATCH };
        match plain_device(config, provider, &bundle, sizes).map_err(Failure::from) {
            Ok(device) => models.push(Model { bundle: bundle.clone(), device }),
            Err(failure) if failure.is_unavailable() && !(is_named && provider.needs_library) => {
                refused.push(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    match models.is_empty() {
        true => Err(refused.remove(0)),
        false => Ok((models, refused.iter().map(Failure::to_string).collect())),
    }
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
        vec![Comparison::measure("golden inputs".to_owned(), &golden, model, against)?];
    for path in &args.series {
        let samples = compare::of_table(path, &model.bundle)?;
        comparisons.push(Comparison::measure(
            path.display().to_string(),
            &samples,
            model,
            against,
        )?);
    }
    for path in &args.capture {
        let samples = compare::of_capture(path, &model.bundle)?;
        comparisons.push(Comparison::measure(
            path.display().to_string(),
            &samples,
            model,
            against,
        )?);
    }
    Ok(comparisons)
}

fn as_json(
    model: &Model,
    goldens: &[(String, GoldenReport)],
    refused: &[String],
    against: Option<&Model>,
    comparisons: &[Comparison],
) -> Value {
    let named = |model: &Model| {
        json!({
            "name": model.bundle.name(),
            "version": model.bundle.version(),
            "precision": model.bundle.precision(),
            "sha256": model.bundle.sha256(),
            "device": model.device.effective(),
        })
    };
    let golden = |(device, golden): &(String, GoldenReport)| {
        json!({
            "device": device,
            "rows": golden.rows,
            "max_difference": golden.max_abs_difference,
            "other_class": golden.argmax_differences,
        })
    };
    let goldens: Vec<Value> = goldens.iter().map(golden).collect();
    let comparisons: Vec<Value> = comparisons.iter().map(Comparison::as_json).collect();
    json!({
        "model": named(model),
        "golden": goldens.first(),
        "goldens": goldens,
        "refused": refused,
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

/// `fenxi model compile`: the network's integers, or its trees, with the manifest.
pub fn compile(args: &CompileArgs) -> Result<(), Failure> {
    let bundle = open(&args.dir)?;
    let refused = |error: &dyn Display| Failure::data(format!("{}: {error}", args.dir.display()));
    let model = bundle.read_model().map_err(|error| Failure::data(error.to_string()))?;
    let manifest = fs::read_to_string(args.dir.join("model.toml")).map_err(|it| refused(&it))?;
    let about = [("model", bundle.sha256()), ("manifest", &manifest)];
    let file = engine::snapshot(&model, bundle.ranges(), &about).map_err(|it| refused(&it))?;
    fs::write(&args.out, &file).map_err(|error| Failure::creating(&args.out, &error))?;
    print(&format!("{}: {} bytes, {}\n", args.out.display(), file.len(), title(&bundle)))
}

/// `fenxi model info`: what a bundle declares.
pub fn info(args: &InfoArgs) -> Result<(), Failure> {
    let bundle = open(&args.dir)?;
    print(&match args.json {
        true => format!("{}\n", info_json(&bundle)),
        false => info_page(&bundle),
    })
}

fn info_page(bundle: &Bundle) -> String {
    let shape = bundle.shape();
    let mut page = String::new();
    let mut line = |name: &str, value: String| {
        page += &format!("{name:15} {value}\n");
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
    if let Some(Target { of, edges }) = bundle.target() {
        let edges: Vec<String> = edges.iter().map(u64::to_string).collect();
        line("target", format!("{of:15} edges {}", edges.join(", ")));
    }
    line("golden rows", bundle.golden().inputs.len().to_string());
    for label in bundle.labels() {
        line("label", format!("{:15} {}", label.name, label.taxonomy));
    }
    page
}

fn info_json(bundle: &Bundle) -> Value {
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
    let target = bundle.target().map(|it| json!({"of": it.of, "edges": it.edges}));
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
        "target": target,
        "golden_rows": bundle.golden().inputs.len(),
        "labels": labels.collect::<Vec<_>>(),
    })
}

/// The number as the manifest has it: 0.9, not the nearest f32 in sixteen digits.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
