//! The specification of a device, and the checks that need no library.

use std::path::PathBuf;

use super::error::SessionError;
use super::provider::Provider;
use crate::bundle::Bundle;
use crate::device::Sizes;
use crate::thresholds::Thresholds;

/// The specification of a device.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// The device's name in the configuration: "cpu", or one that the user chose.
    pub name: String,
    /// The provider that runs the model.
    pub provider: Provider,
    /// Options for the provider, passed on unchanged.
    pub options: Vec<(String, String)>,
    /// The library of a plug-in provider: for [`Provider::Plugin`], and for [`Provider::Qnn`] if it is a plug-in.
    pub plugin: Option<PathBuf>,
    /// The batch sizes that the device takes.
    pub sizes: Sizes,
    /// The minimum confidence of each class.
    pub thresholds: Thresholds,
}

impl DeviceSpec {
    /// The device `cpu`, with the bundle's thresholds.
    pub fn cpu(bundle: &Bundle, sizes: Sizes) -> Self {
        Self {
            name: Provider::Cpu.name().to_owned(),
            provider: Provider::Cpu,
            options: Vec::new(),
            plugin: None,
            sizes,
            thresholds: Thresholds::of(bundle),
        }
    }

    /// Checks what can be checked without a library.
    pub(super) fn check(&self, bundle: &Bundle) -> Result<(), SessionError> {
        let provider = self.provider.name();
        let fixed = matches!(self.sizes, Sizes::Fixed(_));
        let has_nul = |(key, value): &(String, String)| key.contains('\0') || value.contains('\0');
        let ascending = match &self.sizes {
            Sizes::Any { cap } => *cap > 0,
            Sizes::Fixed(sizes) => {
                sizes.first().is_some_and(|&size| size > 0) && sizes.is_sorted_by(|a, b| a < b)
            }
        };
        let problem = if !ascending {
            format!("batch sizes {} are not ascending from 1", self.sizes)
        } else if self.provider.needs_fixed_sizes() && !fixed {
            format!("provider {provider} takes fixed batch sizes only; name them")
        } else if self.provider == Provider::Plugin && self.plugin.is_none() {
            format!("provider {provider} needs the path of its library")
        } else if self.plugin.is_some()
            && !matches!(self.provider, Provider::Plugin | Provider::Qnn)
        {
            format!(
                "provider {provider} takes no plug-in library; for one, ask for provider plugin"
            )
        } else if self.provider == Provider::Cpu && !self.options.is_empty() {
            format!(
                "provider {provider} has no options, but {} is given",
                self.options[0].0
            )
        } else if self.options.iter().any(has_nul) {
            "an option holds a NUL character".to_owned()
        } else if !self.thresholds.fit(bundle) {
            "its thresholds are those of another bundle".to_owned()
        } else {
            return Ok(());
        };
        let device = self.name.clone();
        Err(SessionError::Spec { device, problem })
    }
}
