//! The checks of a specification that need no library.

use super::{DeviceSpec, OpenError};
use crate::bundle::Bundle;
use crate::device::Sizes;

/// Checks a specification by itself.
pub(crate) fn check(spec: &DeviceSpec, bundle: &Bundle) -> Result<(), OpenError> {
    let provider = spec.provider.name;
    let fixed = matches!(spec.sizes, Sizes::Fixed(_));
    let has_nul = |(key, value): &(String, String)| key.contains('\0') || value.contains('\0');
    let ascending = match &spec.sizes {
        Sizes::Any { cap } => *cap > 0,
        Sizes::Fixed(sizes) => {
            sizes.first().is_some_and(|&size| size > 0) && sizes.is_sorted_by(|a, b| a < b)
        }
    };
    let problem = if !ascending {
        format!("batch sizes {} are not ascending from 1", spec.sizes)
    } else if spec.provider.needs_fixed_sizes && !fixed {
        format!("provider {provider} takes fixed batch sizes only; name them")
    } else if spec.provider.needs_plugin && spec.plugin.is_none() {
        format!("provider {provider} needs the path of its library")
    } else if spec.plugin.is_some() && !matches!(provider, "plugin" | "qnn") {
        format!("provider {provider} takes no plug-in library; for one, ask for provider plugin")
    } else if spec.provider.is_cpu && !spec.options.is_empty() {
        format!("provider {provider} has no options, but {} is given", spec.options[0].0)
    } else if spec.options.iter().any(has_nul) {
        "an option holds a NUL character".to_owned()
    } else if !spec.thresholds.fit(bundle) {
        "its thresholds belong to another bundle".to_owned()
    } else {
        return Ok(());
    };
    Err(OpenError::Spec(format!("device {}: {problem}", spec.name)))
}
