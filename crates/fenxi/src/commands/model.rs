//! `fenxi model`: what a bundle says of itself, and whether it does it.

use std::fmt::Write as _;

use accel::{Bundle, BundleError, Sizes, TOLERANCE, check_golden};

use crate::cli::BundleArgs;
use crate::config::Config;
use crate::exit::{Failure, print};
use crate::pipeline::cpu_device;

/// Prints the bundle's manifest.
///
/// # Errors
/// The bundle is missing or damaged.
pub fn info(args: &BundleArgs) -> Result<(), Failure> {
    let bundle = open(args)?;
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
    line("features", bundle.features().join(", "));
    line(
        "input",
        format!(
            "{}: float32 [N, {}, {}]",
            bundle.input_name(),
            shape.channels,
            shape.k
        ),
    );
    line(
        "output",
        format!("{}: float32 [N, {}]", bundle.output_name(), shape.classes),
    );
    line("min_confidence", bundle.min_confidence().to_string());
    line("golden rows", bundle.golden().inputs.len().to_string());
    for label in bundle.labels() {
        line("label", format!("{:15} {}", label.name, label.taxonomy));
    }
    print(&page)
}

/// Loads the bundle on the CPU and holds it against its golden outputs.
///
/// # Errors
/// The bundle or the library is missing or damaged, or the outputs differ.
pub fn check(args: &BundleArgs) -> Result<(), Failure> {
    let bundle = open(args)?;
    let (config, _) = Config::load(None, &[])?;
    let rows = bundle.golden().inputs.len().max(1);
    let mut device = cpu_device(&config, &bundle, Sizes::Any { cap: rows })?;
    let report = check_golden(&bundle, &mut device)
        .map_err(|error| Failure::data(format!("{}: {error}", args.dir.display())))?;
    let found = format!(
        "{} rows, largest difference {:.2e}, {} with another class",
        report.rows, report.max_abs_difference, report.argmax_differences
    );
    if report.agrees() {
        return print(&format!(
            "{} {}: golden outputs agree: {found}\n",
            bundle.name(),
            bundle.version()
        ));
    }
    Err(Failure::data(format!(
        "{}: golden outputs differ by more than {TOLERANCE:.0e}: {found}; the model, the library or \
         the golden files are not those that were made together",
        args.dir.display()
    )))
}

fn open(args: &BundleArgs) -> Result<Bundle, Failure> {
    Bundle::open(&args.dir).map_err(|error| match error {
        BundleError::Missing { .. } => Failure::no_input(error.to_string()),
        error => Failure::data(error.to_string()),
    })
}
