//! `fenxi devices`: which devices really work on this machine.
//!
//! A library that was built with a provider may still lack its toolkit or hardware, or compute
//! wrong results. So every device is tried with a real model, in a process of its own (this program
//! with `--try`): a provider that hangs is abandoned, one that crashes does no further harm, and
//! the libraries of one do not affect the next.

pub(super) mod trial;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use accel::{Provider, onnx};
use serde::Serialize;

use crate::cli::{ConfigArgs, DevicesArgs};
use crate::exit::{Failure, print};
use crate::sinks;
use config::{Config, Sources};
use dataplane::bundle::{find_bundle, open_named_bundle};
use trial::{Outcome, here, in_a_process};

/// Tries the devices and prints the results.
///
/// # Errors
/// The configuration, the model or the library cannot be used, or no device runs the model. The
/// simulated one does not count.
pub fn devices(args: &DevicesArgs) -> Result<(), Failure> {
    let sets = sets(args);
    let config =
        sinks::known(Sources::of_service(args.config.config.as_deref(), &sets)).load()?.config;
    let dir = find_bundle(&config, args.model.as_deref())?;
    let bundle = open_named_bundle(&config, args.model.as_deref())?;
    if let Some(name) = &args.trial {
        let config = config_for(&args.config, &sets, name)?;
        return print(&to_json(&here(&config, &bundle))?);
    }
    let names = if args.devices.is_empty() {
        every_name(&config, args.plugin.is_some())
    } else {
        args.devices.clone()
    };
    let mut needs_library = false;
    for name in &names {
        let asked = config_for(&args.config, &sets, name)?.accel.devices;
        needs_library |= asked.iter().any(|device| device.provider.needs_library);
    }
    let library = needs_library.then(|| load(&config)).transpose()?;
    let version = library.as_ref().and_then(onnx::Library::version).unwrap_or_default();
    let deadline = Duration::from_secs_f64(args.deadline_s);
    let outcomes = names.iter().map(|name| {
        let arguments = trial_arguments(args, &sets, name, &dir);
        in_a_process(name, &arguments, deadline)
    });
    let found = Found {
        library: library.as_ref().map(|library| library.path().to_owned()),
        library_version: version.to_owned(),
        model: format!("{} {}", bundle.name(), bundle.version()),
        devices: outcomes.collect(),
    };
    print(&if args.json { to_json(&found)? } else { found.page() })?;
    if found.devices.iter().any(Outcome::classifies) {
        return Ok(());
    }
    Err(Failure::unavailable("no device runs the model on this machine"))
}

/// The command line that tries the device `name`.
fn trial_arguments(args: &DevicesArgs, sets: &[String], name: &str, dir: &Path) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["devices".into(), "--try".into(), name.into()];
    line.extend(["--model".into(), dir.into()]);
    if let Some(file) = &args.config.config {
        line.extend(["--config".into(), file.into()]);
    }
    for set in sets {
        line.extend(["--set".into(), set.into()]);
    }
    line
}

/// The results of all devices.
#[derive(Debug, Serialize)]
struct Found {
    /// None if no device needs it.
    library: Option<PathBuf>,
    library_version: String,
    model: String,
    devices: Vec<Outcome>,
}

impl Found {
    /// The report as text.
    fn page(&self) -> String {
        let library = match &self.library {
            Some(path) => format!("{} (ONNX Runtime {})", path.display(), self.library_version),
            None => "none needed".to_owned(),
        };
        let mut page = format!("library  {library}\nmodel    {}\n\n", self.model);
        let width = self.devices.iter().map(|it| it.device.len()).max().unwrap_or(0);
        for outcome in &self.devices {
            // Writing to a string cannot fail.
            let _ = writeln!(page, "{:width$}  {}", outcome.device, outcome.line());
        }
        page
    }
}

/// The `--set` arguments, with `--library` and `--plugin` among them.
fn sets(args: &DevicesArgs) -> Vec<String> {
    let mut sets = args.config.sets.clone();
    if let Some(path) = &args.library {
        sets.push(format!("accel.library={}", quoted(&path.display().to_string())));
    }
    if let Some(path) = &args.plugin {
        sets.push(format!("device.plugin.plugin={}", quoted(&path.display().to_string())));
    }
    sets
}

/// All providers (`plugin` only if a library is given), and the devices that the configuration
/// names.
fn every_name(config: &Config, has_plugin: bool) -> Vec<String> {
    let known = Provider::all().filter(|provider| has_plugin || !provider.needs_plugin);
    let mut names: Vec<String> = known.map(|provider| provider.name.to_owned()).collect();
    for device in &config.accel.devices {
        if !names.contains(&device.name) {
            names.push(device.name.clone());
        }
    }
    names
}

/// The configuration with `name` as its one device, so that a `[device.NAME]` table counts here as
/// in a pipeline.
pub(super) fn config_for(
    args: &ConfigArgs,
    sets: &[String],
    name: &str,
) -> Result<Config, Failure> {
    let mut sets = sets.to_vec();
    sets.push(format!("accel.devices=[{}]", quoted(name)));
    sets.push("pipeline.layout=1:1:1".to_owned());
    Ok(sinks::known(Sources::of_service(args.config.as_deref(), &sets)).load()?.config)
}

/// `text` as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The library that the configuration asks for.
fn load(config: &Config) -> Result<onnx::Library, Failure> {
    onnx::load(config.accel.library.as_deref())
        .map_err(|error| Failure::unavailable(error.to_string()))
}

/// One object on a line.
pub(super) fn to_json(object: &impl Serialize) -> Result<String, Failure> {
    let text =
        serde_json::to_string(object).map_err(|error| Failure::software(error.to_string()))?;
    Ok(text + "\n")
}
