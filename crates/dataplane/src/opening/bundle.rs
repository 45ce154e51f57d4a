//! Finds and opens the bundle, and maps its features and classes to the data path's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use accel::{Bundle, BundleError, Depth, Thresholds};
use cring::{Context, Feature, Unit, in_words};
use flowmgr::{Asked, DepthConfig, PortLabel, Target, TargetOf, TaskConfig};
use policy::{Action, Dscp, Label};

use crate::Error;
use config::Config;
use config::checked::Task;

/// Name of the class of a flow whose likeliest class is not likely enough.
pub const UNKNOWN: &str = "unknown";

/// Classes that stand for everything without a class of its own.
pub const OUTLIERS: [&str; 2] = ["other", UNKNOWN];

/// The shipped bundle.
const SHIPPED: &str = "models/protocol";
/// The default of `flow.k`; with it, K follows the bundle.
const K_BUILT_IN: usize = 10;
/// The folder where a package installs shipped files.
const INSTALLED: &str = "/usr/share/fenxi";

/// The bundle's folder: `--model`, or else `model.path`, or else the shipped one
/// ([`find_shipped`]).
///
/// # Errors
/// The shipped bundle is at none of the places; the error names them all.
pub fn find_bundle(config: &Config, option: Option<&Path>) -> Result<PathBuf, Error> {
    match option.or(config.model.path.as_deref()) {
        Some(dir) => Ok(dir.to_owned()),
        None => find_shipped_bundle(),
    }
}

fn find_shipped_bundle() -> Result<PathBuf, Error> {
    find_shipped(SHIPPED).map_err(|looked_at| {
        Error::no_input(format!(
            "the shipped model is not installed; looked at {looked_at}; name a bundle with --model \
             DIR or model.path"
        ))
    })
}

/// A file or folder that is shipped with the program. The working directory is not searched: a user
/// who can write there must not choose the model of a program that another user starts.
///
/// # Errors
/// It is at none of the places, which the error lists.
pub fn find_shipped(path: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().ok();
    let places = places(program.as_deref());
    let candidates: Vec<PathBuf> = places.iter().map(|dir| dir.join(path)).collect();
    let found = candidates.iter().find(|candidate| candidate.exists());
    found.cloned().ok_or_else(|| {
        let looked_at = candidates.iter().map(|candidate| candidate.display().to_string());
        looked_at.collect::<Vec<_>>().join(", ")
    })
}

/// The folders where shipped files can be: the program's folder, `../share/fenxi` from there, the
/// checkout where the program was built, and the folder of the package.
fn places(program: Option<&Path>) -> Vec<PathBuf> {
    let folder = program.and_then(Path::parent);
    let shared = folder.and_then(Path::parent).map(|prefix| prefix.join("share/fenxi"));
    let places = folder.map(Path::to_owned).into_iter().chain(shared);
    let mut places: Vec<PathBuf> = places.chain(program.and_then(checkout)).collect();
    if !places.contains(&PathBuf::from(INSTALLED)) {
        places.push(INSTALLED.into());
    }
    places
}

/// The checkout of a program that cargo built, as `CHECKOUT/target/PROFILE/fenxi`, or one or two
/// folders deeper.
fn checkout(program: &Path) -> Option<PathBuf> {
    const DEPTH: usize = 4;
    let mut above = program.ancestors().skip(2).take(DEPTH - 1);
    let target = above.find(|dir| dir.file_name().is_some_and(|name| name == "target"))?;
    target.parent().map(Path::to_owned)
}

/// Opens the bundle of the first task and compares it with the configuration.
///
/// # Errors
/// The bundle is damaged or contradicts itself, or has another K than the user asks for, or lacks
/// depths of the task.
pub fn open_bundle(config: &Config, dir: &Path) -> Result<Bundle, Error> {
    match config.tasks.first() {
        Some(first) => open_of_task(config, first, dir),
        None => open(dir, ""),
    }
}

/// Opens the bundle that the command line names, with all its depths, or else the first task's.
///
/// # Errors
/// As [`find_bundle`] and [`open_bundle`].
pub fn open_named_bundle(config: &Config, named: Option<&Path>) -> Result<Bundle, Error> {
    let dir = find_bundle(config, named)?;
    match (named, config.tasks.first()) {
        (Some(_), Some(first)) => {
            let task = Task { depths: Vec::new(), ..first.clone() };
            open_of_task(config, &task, &dir)
        }
        _ => open_bundle(config, &dir),
    }
}

/// Opens the bundles of all tasks, in their order. What they say of each other is left to
/// [`check_tasks`](crate::opening::task_check::check_tasks).
///
/// # Errors
/// As [`find_bundle`] and [`open_bundle`], for the first task that has one.
pub fn open_bundles(config: &Config) -> Result<Vec<Bundle>, Error> {
    let open = |task: &Task| {
        let dir = match &task.model {
            Some(dir) => dir.clone(),
            None => find_shipped_bundle()?,
        };
        open_of_task(config, task, &dir)
    };
    config.tasks.iter().map(open).collect()
}

/// `key` stands before the error.
fn open(dir: &Path, key: &str) -> Result<Bundle, Error> {
    Bundle::open(dir).map_err(|error| match error {
        BundleError::Missing { .. } => Error::no_input(format!("{key}{error}")),
        error => Error::data(format!("{key}{error}")),
    })
}

fn open_of_task(config: &Config, task: &Task, dir: &Path) -> Result<Bundle, Error> {
    let name = &task.name;
    let key = match config.tasks.len() {
        0..=1 => String::new(),
        _ => format!("{}: task.{name}.model: ", task.model_origin),
    };
    let bundle = open(dir, &key)?.at_depths(&task.depths).map_err(|error| {
        let origin = &task.depths_origin;
        Error::config(format!("{origin}: task.{name}.depths: {error}"))
    })?;
    check_k(config, task, &bundle)?;
    Ok(bundle)
}

/// Holds what the model wants at the deepest of its depths against `flow.k`.
fn check_k(config: &Config, task: &Task, bundle: &Bundle) -> Result<(), Error> {
    let (k, most) = (bundle.k(), config.flow.k);
    let depths = bundle.depths().iter().map(|depth| depth.elements);
    let deepest = depths.max().unwrap_or(k);
    // One model gets what the user asks for; of several, or at some of its depths, none gets more.
    let fits = match (config.tasks.len(), task.depths.is_empty()) {
        (2.., _) => deepest <= most,
        (_, true) => k == most,
        (_, false) => (deepest..=k).contains(&most),
    };
    // A configuration that was written out has the built-in value too, and must mean the same when
    // it is read.
    if most == K_BUILT_IN || fits {
        return Ok(());
    }
    let who = match config.tasks.len() {
        0..=1 => format!("the model {}", bundle.name()),
        _ => format!("task {} (model {})", task.name, bundle.name()),
    };
    Err(Error::config(format!(
        "{}: flow.k = {most}: {who} wants k = {deepest} packets; set flow.k = {deepest}, or take \
         another model",
        config.flow.k_origin
    )))
}

/// The task that makes flow managers collect the bundle's series at each depth, and before the
/// first one where ports name flows with their first packets. It is asked about every flow.
pub fn task_config(bundle: &Bundle) -> TaskConfig {
    let of_ports = DepthConfig { k: 0, sure: 0, contradicts: None };
    let of_depth = |depth: &Depth| DepthConfig {
        k: depth.elements,
        sure: in_words(depth.confidence),
        contradicts: depth.contradiction.filter(|least| *least < 1.0).map(in_words),
    };
    let of_port = |port: &accel::PortLabel| PortLabel {
        protocol: port.protocol,
        port: port.port,
        class: port.label as u16,
        precision: in_words(port.precision),
    };
    let unit = Unit::ALL.into_iter().find(|it| it.name() == bundle.unit());
    let of_ports = bundle.is_ports_first().then_some(of_ports);
    TaskConfig {
        unit: unit.unwrap_or_default(),
        features: features(bundle).into_iter().collect(),
        midstream: bundle.midstream(),
        // One more for flows that are below the bundle's confidence.
        classes: bundle.labels().len() + 1,
        depths: of_ports.into_iter().chain(bundle.depths().iter().map(of_depth)).collect(),
        asked: Asked::default(),
        ports: bundle.ports().iter().map(of_port).collect(),
        target: target(bundle),
    }
}

/// What the labels are bands of, if they are. A bundle names only what is in [`accel::TARGETS`],
/// and a test compares that list with [`TargetOf::ALL`].
pub fn target(bundle: &Bundle) -> Option<Target> {
    let target = bundle.target()?;
    let of = TargetOf::ALL.into_iter().find(|it| it.name() == target.of)?;
    Some(Target { of, edges: target.edges.clone() })
}

/// What the model wants of a flow beside its series, in the order of its second input. A bundle
/// names only what is in [`accel::CONTEXT`], and a test compares that list with [`Context::ALL`].
pub fn context(bundle: &Bundle) -> Vec<Context> {
    let names = bundle.context().iter();
    let context = |name: &String| Context::ALL.into_iter().find(|it| it.name() == name);
    names.filter_map(context).collect()
}

/// The first number that the model wants of the memory of servers, if it wants one.
pub fn local_context(bundle: &Bundle) -> Option<Context> {
    context(bundle).into_iter().find(|number| number.is_local())
}

/// Cells of the memory of servers in each flow manager; `None` where no model reads it.
pub fn servers<'a>(
    config: &Config,
    bundles: impl IntoIterator<Item = &'a Bundle>,
) -> Option<usize> {
    let is_read = bundles.into_iter().any(|bundle| local_context(bundle).is_some());
    is_read.then_some(config.servers.entries)
}

/// The bundle's features, in the order of its model's channels. A bundle names only features that
/// are in [`accel::FEATURES`], and a test compares that list with [`Feature::ALL`].
pub fn features(bundle: &Bundle) -> Vec<Feature> {
    let names = bundle.features().iter();
    let feature = |name: &String| Feature::ALL.into_iter().find(|it| it.name() == name);
    names.filter_map(feature).collect()
}

/// Class names in the order of the model's outputs, then [`UNKNOWN`].
pub fn classes(bundle: &Bundle) -> Arc<[String]> {
    let labels = bundle.labels().iter().map(|label| label.name.clone());
    labels.chain([UNKNOWN.to_owned()]).collect()
}

/// The same with their taxonomies; [`UNKNOWN`] has none.
pub fn labels(bundle: &Bundle) -> Arc<[Label]> {
    let target = bundle.target().map_or("", |target| &target.of);
    let labels = bundle.labels().iter().map(|label| Label {
        name: label.name.clone(),
        taxonomy: label.taxonomy.clone(),
        target: target.to_owned(),
    });
    let unknown = Label { name: UNKNOWN.to_owned(), ..Label::default() };
    labels.chain([unknown]).collect()
}

/// DSCP by class, the last for [`UNKNOWN`]. Labels that only the built-in mapping names may be
/// absent from the model; those that the user named may not.
///
/// # Errors
/// The configuration names a label that the model does not have.
pub fn dscp_by_class(config: &Config, bundle: &Bundle) -> Result<Vec<Option<u8>>, Error> {
    let actions = policy::actions(&config.tag.rules(), &labels(bundle))
        .map_err(|error| Error::config(error.of_model(bundle.name()).to_string()))?;
    let code_point = |action: Action| action.dscp.map(Dscp::code_point);
    Ok(actions.into_iter().map(code_point).collect())
}

/// The bundle's minimum confidences, overridden by the configuration's.
///
/// # Errors
/// The configuration names a label that the model does not have.
pub fn thresholds(config: &Config, bundle: &Bundle) -> Result<Thresholds, Error> {
    let mut thresholds = Thresholds::from_bundle(bundle);
    if let Some(least) = config.model.min_confidence {
        thresholds.all(least);
    }
    for entry in &config.model.class_confidence {
        let mut labels = bundle.labels().iter();
        let Some(class) = labels.position(|label| label.name == entry.label) else {
            let labels: Vec<&str> = bundle.labels().iter().map(|l| l.name.as_str()).collect();
            return Err(Error::config(format!(
                "{}: model.class_confidence: the model {} has no label \"{}\"; it has {}",
                entry.origin,
                bundle.name(),
                entry.label,
                labels.join(", ")
            )));
        };
        thresholds.set(class, entry.value);
    }
    Ok(thresholds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(program: &str) -> Vec<String> {
        let places = places(Some(Path::new(program)));
        places.iter().map(|place| place.display().to_string()).collect()
    }

    #[test]
    fn units_features_and_targets_have_the_same_names_everywhere() {
        assert_eq!(Feature::ALL.map(Feature::name), accel::FEATURES);
        assert_eq!(Unit::ALL.map(Unit::name), accel::UNITS);
        assert_eq!(Unit::default().name(), accel::UNITS[0]);
        assert_eq!(TargetOf::ALL.map(TargetOf::name), accel::TARGETS);
        assert_eq!(Context::ALL.map(Context::name), accel::CONTEXT);
    }

    #[test]
    fn k_follows_the_bundle_where_nobody_sets_it() {
        let config = Config::load(None, &[]).unwrap();
        assert_eq!(config.flow.k, K_BUILT_IN);
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/bundles"));
        let open = |config: &Config| open_bundle(config, &dir.join("data-k3"));
        assert_eq!(task_config(&open(&config).unwrap()).k_max(), 3);
        let config = Config::load(None, &["flow.k=4".to_owned()]).unwrap();
        let refused = open(&config).unwrap_err().to_string();
        assert!(
            refused.starts_with("--set: flow.k = 4: the model ")
                && refused.contains(" wants k = 3 packets; set flow.k = 3, or take another model"),
            "{refused}"
        );
    }

    #[test]
    fn a_task_asks_its_model_at_some_depths() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let open = |depths: &str| {
            let sets = ["task.a.name=a".to_owned(), format!("task.a.depths={depths}")];
            let config = Config::load(None, &sets).unwrap();
            open_bundle(&config, &root.join("models/protocol"))
        };
        // The ports name flows in front of the depths.
        let ks = |depths: &str| -> Vec<usize> {
            let task = task_config(&open(depths).unwrap());
            task.depths.iter().map(|depth| depth.k).collect()
        };
        assert_eq!(ks("[3, 10]"), [0, 3, 10]);
        assert_eq!(ks("[]").len(), 6);
        assert_eq!(ks("[3]"), [0, 3]);
        let sets = ["task.a.depths=[3]", "flow.k=5"];
        let config = Config::load(None, &sets.map(str::to_owned)).unwrap();
        open_bundle(&config, &root.join("models/protocol")).unwrap();
        let refused = open("[3, 4]").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "--set: task.a.depths: the model protocol has the depths [1, 2, 3, 5, 10]; name some \
             of them"
        );
        assert!(matches!(refused, Error::Config(_)));
    }

    #[test]
    fn what_is_collected_is_what_the_bundle_asks_for() {
        let bundle = |name: &str| {
            let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
            Bundle::open(&root.join(name)).unwrap()
        };
        let shipped = bundle("models/app-id-k10");
        assert_eq!(task_config(&shipped), TaskConfig::lengths(10, 9));
        let data = task_config(&bundle("tests/bundles/data-k3"));
        assert_eq!((data.k_max(), data.unit, data.classes), (3, Unit::Data, 13));
        let times = bundle("tests/bundles/times-k10");
        let order = [Feature::SignedLength, Feature::InterArrival];
        assert_eq!(features(&times), order);
        assert_eq!(task_config(&times).features, order.into_iter().collect());
    }

    #[test]
    fn shipped_files_are_beside_the_program_or_where_it_was_installed_or_built() {
        assert_eq!(shown("/usr/bin/fenxi"), ["/usr/bin", "/usr/share/fenxi"]);
        assert_eq!(
            shown("/opt/f/bin/fenxi"),
            ["/opt/f/bin", "/opt/f/share/fenxi", "/usr/share/fenxi"]
        );
        for program in [
            "/src/fenxi/target/release/fenxi",
            "/src/fenxi/target/debug/deps/fenxi-0123",
            "/src/fenxi/target/x86_64-unknown-linux-gnu/release/fenxi",
        ] {
            assert!(shown(program).contains(&"/src/fenxi".to_owned()), "{program}");
        }
        assert_eq!(places(None), [PathBuf::from("/usr/share/fenxi")]);
    }
}
