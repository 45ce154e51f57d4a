//! Providers: the parts of ONNX Runtime that run models on a kind of device.
//!
//! ONNX Runtime runs every part of a model that a provider does not support on its CPU provider, and if a provider
//! cannot even start, some versions continue without it and only log that. Neither may go unnoticed here. A session
//! gets exactly one provider, and for all but `cpu` the key `session.disable_cpu_ep_fallback` makes ONNX Runtime refuse
//! a session in which any node is left to the CPU. (It does not check the bodies of loops and branches, which our
//! models do not have.) So a session that exists proves that the requested provider runs the whole model. The crate
//! `ort` has no call to read back which node runs where.

use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProvider};
use ort::session::builder::SessionBuilder;

use super::library::Library;
use super::plugin::Plugin;
use super::spec::DeviceSpec;

/// A provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// ONNX Runtime's own kernels for the CPU, which every library has.
    Cpu,
    /// Intel's OpenVINO. Its option `device_type` chooses CPU, GPU or NPU.
    OpenVino,
    /// NVIDIA GPUs through CUDA.
    Cuda,
    /// NVIDIA GPUs through TensorRT. Fixed batch sizes only.
    TensorRt,
    /// Huawei's Ascend NPUs.
    Cann,
    /// Qualcomm's NPUs. Fixed batch sizes only.
    Qnn,
    /// Any other provider, from a plug-in library.
    Plugin,
}

impl Provider {
    /// Every provider.
    pub const ALL: [Self; 7] = [
        Self::Cpu,
        Self::OpenVino,
        Self::Cuda,
        Self::TensorRt,
        Self::Cann,
        Self::Qnn,
        Self::Plugin,
    ];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::OpenVino => "openvino",
            Self::Cuda => "cuda",
            Self::TensorRt => "tensorrt",
            Self::Cann => "cann",
            Self::Qnn => "qnn",
            Self::Plugin => "plugin",
        }
    }

    /// The provider with this name in the configuration.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|provider| provider.name() == name)
    }

    /// Name in ONNX Runtime; none for a plug-in, which brings its own.
    pub(super) fn runtime_name(self) -> Option<&'static str> {
        match self {
            Self::Cpu => Some(ep::CPU::NAME),
            Self::OpenVino => Some(ep::OpenVINO::NAME),
            Self::Cuda => Some(ep::CUDA::NAME),
            Self::TensorRt => Some(ep::TensorRT::NAME),
            Self::Cann => Some(ep::CANN::NAME),
            Self::Qnn => Some(ep::QNN::NAME),
            Self::Plugin => None,
        }
    }

    /// Whether the loaded library was built with this provider.
    pub(super) fn is_compiled_in(self) -> bool {
        let available = match self {
            Self::Cpu => ep::CPU::is_available(),
            Self::OpenVino => ep::OpenVINO::is_available(),
            Self::Cuda => ep::CUDA::is_available(),
            Self::TensorRt => ep::TensorRT::is_available(),
            Self::Cann => ep::CANN::is_available(),
            Self::Qnn => ep::QNN::is_available(),
            Self::Plugin => Ok(false),
        };
        available.unwrap_or(false)
    }

    /// Whether this provider compiles a model for one batch size at a time.
    pub(super) fn needs_fixed_sizes(self) -> bool {
        matches!(self, Self::TensorRt | Self::Qnn)
    }
}

/// Lists the providers that the library was built with and fenxi knows, by their names in ONNX Runtime. A listed
/// provider may still fail to run: it may lack its toolkit or its device.
pub fn providers(_loaded: &Library) -> Vec<String> {
    Provider::ALL
        .into_iter()
        .filter(|provider| provider.is_compiled_in())
        .filter_map(Provider::runtime_name)
        .map(str::to_owned)
        .collect()
}

/// Adds the provider to a session.
pub(super) fn with_provider(
    builder: SessionBuilder,
    library: &Library,
    spec: &DeviceSpec,
    plugin: Option<&Plugin>,
) -> ort::Result<SessionBuilder> {
    if let Some(plugin) = plugin {
        return plugin.append(builder.with_disable_cpu_fallback()?, library, &spec.options);
    }
    let options = options(spec.provider, &spec.options);
    let provider = match spec.provider {
        Provider::Cpu => return on_the_cpu(builder, library),
        Provider::OpenVino => with_options(ep::OpenVINO::default(), options).build(),
        Provider::Cuda => with_options(ep::CUDA::default(), options).build(),
        Provider::TensorRt => with_options(ep::TensorRT::default(), options).build(),
        Provider::Cann => with_options(ep::CANN::default(), options).build(),
        Provider::Qnn => with_options(ep::QNN::default(), options).build(),
        Provider::Plugin => return Err(ort::Error::new("no plug-in is named")),
    };
    let builder = builder.with_disable_cpu_fallback()?;
    Ok(builder.with_execution_providers([provider.error_on_failure()])?)
}

/// The options that a session gets: the user's, and fenxi's defaults for those that the user does
/// not name.
fn options(provider: Provider, user: &[(String, String)]) -> Vec<(&str, &str)> {
    let is_elsewhere = |(key, value): &(String, String)| key == "device_type" && value != "CPU";
    let defaults: &[(&str, &str)] = match provider {
        // A device is one thread, but OpenVINO uses all cores of the machine by default.
        Provider::OpenVino if !user.iter().any(is_elsewhere) => &[("num_of_threads", "1")],
        Provider::Cuda => &[
            // cuDNN plans convolutions anew whenever the size of the batch changes. Its default,
            // an exhaustive search, took 30 ms on an H100, this one 0.2 to 2 ms.
            ("cudnn_conv_algo_search", "DEFAULT"),
            // TF32 has 10 bits of mantissa: outputs differ by 4e-4, more than fp32 may.
            ("use_tf32", "0"),
        ],
        _ => &[],
    };
    let is_unnamed = |(key, _): &&(&str, &str)| user.iter().all(|(named, _)| named != key);
    let defaults = defaults.iter().filter(is_unnamed).copied();
    let user = user
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    defaults.chain(user).collect()
}

fn with_options<P: ArbitrarilyConfigurableExecutionProvider>(
    provider: P,
    options: Vec<(&str, &str)>,
) -> P {
    options
        .into_iter()
        .fold(provider, |provider, (key, value)| {
            provider.with_arbitrary_config(key, value)
        })
}

/// Names the CPU provider explicitly, so that a plug-in that was registered for another device cannot be chosen
/// instead.
pub(super) fn on_the_cpu(
    builder: SessionBuilder,
    library: &Library,
) -> ort::Result<SessionBuilder> {
    let cpu = library
        .environment
        .devices()
        .filter(|device| device.ep().is_ok_and(|name| name == ep::CPU::NAME));
    Ok(builder.with_devices(cpu.take(1), None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(provider: Provider, user: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        let user: Vec<_> = user.iter().map(owned).collect();
        options(provider, &user).iter().map(owned).collect()
    }

    #[test]
    fn cuda_computes_in_full_precision_and_plans_convolutions_quickly() {
        let search = ("cudnn_conv_algo_search".to_owned(), "DEFAULT".to_owned());
        let exact = ("use_tf32".to_owned(), "0".to_owned());
        assert_eq!(given(Provider::Cuda, &[]), [search, exact]);
        assert_eq!(given(Provider::TensorRt, &[]), []);
    }

    #[test]
    fn options_of_the_user_replace_the_defaults() {
        let user = [("device_id", "1"), ("use_tf32", "1")];
        let given = given(Provider::Cuda, &user);
        let of = |key| {
            let values = given.iter().filter(|(name, _)| name == key);
            values.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(of("use_tf32"), ["1"]);
        assert_eq!(of("device_id"), ["1"]);
        assert_eq!(of("cudnn_conv_algo_search"), ["DEFAULT"]);
    }

    #[test]
    fn openvino_gets_one_thread_on_the_cpu_alone() {
        let threads = |user: &[(&str, &str)]| {
            let given = given(Provider::OpenVino, user);
            let named = given.iter().find(|(key, _)| key == "num_of_threads");
            named.map(|(_, value)| value.clone())
        };
        assert_eq!(threads(&[]).as_deref(), Some("1"));
        assert_eq!(threads(&[("device_type", "CPU")]).as_deref(), Some("1"));
        assert_eq!(threads(&[("device_type", "GPU")]), None);
    }
}
