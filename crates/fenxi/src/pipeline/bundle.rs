//! Which bundle is meant, and how its classes meet the configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use accel::{Bundle, BundleError};

use super::UNKNOWN;
use crate::config::Config;
use crate::exit::Failure;

/// The shipped bundle.
const SHIPPED: &str = "models/app-id-k10";
/// Where a package puts what is shipped.
const INSTALLED: &str = "/usr/share/fenxi";

/// The bundle's folder: `--model`, else `model.path`, else the shipped one.
///
/// # Errors
/// The shipped bundle is nowhere to be found.
pub fn find_bundle(config: &Config, option: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(dir) = option.or(config.model.path.as_deref()) {
        return Ok(dir.to_owned());
    }
    find_shipped(SHIPPED).map_err(|looked_at| {
        Failure::no_input(format!(
            "the shipped model is not here; looked at {looked_at}; name a bundle with --model DIR"
        ))
    })
}

/// A file or folder of the project, beside the program or above it, or where a package puts it.
///
/// # Errors
/// It is nowhere: where it was looked for.
pub fn find_shipped(path: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().ok();
    let above = program
        .iter()
        .flat_map(|program| program.ancestors().skip(1));
    let near = above.take(4).chain([Path::new("."), Path::new(INSTALLED)]);
    let candidates: Vec<PathBuf> = near.map(|dir| dir.join(path)).collect();
    let found = candidates.iter().find(|candidate| candidate.exists());
    found.cloned().ok_or_else(|| {
        let looked_at = candidates
            .iter()
            .map(|candidate| candidate.display().to_string());
        looked_at.collect::<Vec<_>>().join(", ")
    })
}

/// Opens a bundle and holds it against the configuration.
///
/// # Errors
/// The bundle is damaged or contradicts itself, or has another K or other features
/// than the flow manager collects.
pub fn open_bundle(config: &Config, dir: &Path) -> Result<Bundle, Failure> {
    let bundle = Bundle::open(dir).map_err(|error| match error {
        BundleError::Missing { .. } => Failure::no_input(error.to_string()),
        error => Failure::data(error.to_string()),
    })?;
    if bundle.k() != config.flow.k {
        return Err(Failure::data(format!(
            "{}: the model wants k = {k} packets and flow.k is {}; set flow.k = {k} or take \
             another model",
            dir.display(),
            config.flow.k,
            k = bundle.k(),
        )));
    }
    Ok(bundle)
}

/// Class names in the order of the model's outputs, then [`UNKNOWN`].
pub(super) fn classes(bundle: &Bundle) -> Arc<[String]> {
    let labels = bundle.labels().iter().map(|label| label.name.clone());
    labels.chain([UNKNOWN.to_owned()]).collect()
}

/// DSCP by class. Labels that only the built-in mapping names may be absent from
/// the model; those that the user named may not.
pub fn dscp_by_class(config: &Config, bundle: &Bundle) -> Result<Vec<Option<u8>>, Failure> {
    let classes = classes(bundle);
    let mut by_class = vec![None; classes.len()];
    if !config.tag.enabled {
        return Ok(by_class);
    }
    for mapping in &config.tag.dscp {
        match classes.iter().position(|class| *class == mapping.label) {
            Some(class) => by_class[class] = Some(mapping.dscp),
            None if mapping.required => {
                return Err(Failure::config(format!(
                    "{}: tag.dscp: the model {} has no label \"{}\"; it has {}",
                    mapping.origin,
                    bundle.name(),
                    mapping.label,
                    classes.join(", ")
                )));
            }
            None => {}
        }
    }
    Ok(by_class)
}
