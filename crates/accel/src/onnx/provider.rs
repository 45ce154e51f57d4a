//! The providers: which part of ONNX Runtime computes.
//!
//! ONNX Runtime gives every part of a model that a provider does not take to its CPU provider, and where a provider cannot
//! even start some versions go on without it and only log so. Here neither can pass unseen. A session gets exactly one
//! provider, and for all but `cpu` the key `session.disable_cpu_ep_fallback` makes ONNX Runtime refuse a session in which
//! any node is left to the CPU (it does not look into the bodies of loops and branches, which our models do not have). So a
//! session that exists is the proof that the provider asked for runs the whole model. What `ort` has no call for is to read
//! the assignment of nodes back.

use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProvider};
use ort::session::builder::SessionBuilder;

use super::library::Library;
use super::plugin::Plugin;
use super::spec::DeviceSpec;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// ONNX Runtime's own kernels for the CPU, which every library has.
    Cpu,
    /// Intel's OpenVINO: CPU, GPU and NPU by its option `device_type`.
    OpenVino,
    /// NVIDIA GPUs by CUDA.
    Cuda,
    /// NVIDIA GPUs by TensorRT. Fixed batch sizes only.
    TensorRt,
    /// Huawei's Ascend NPUs.
    Cann,
    /// Qualcomm's NPUs. Fixed batch sizes only.
    Qnn,
    /// Any other, from a library of its own.
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

    /// Its name in the configuration.
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

    /// The provider of that name in the configuration.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|provider| provider.name() == name)
    }

    /// Its name in ONNX Runtime; none for a plug-in, which brings its own.
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

    /// Whether the loaded library was built with it.
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

    /// Whether it compiles a model for one batch size at a time.
    pub(super) fn needs_fixed_sizes(self) -> bool {
        matches!(self, Self::TensorRt | Self::Qnn)
    }
}

/// The providers that a library was built with, of those that fenxi knows, by their names in ONNX Runtime. That one is
/// here does not mean that it runs: it may lack its toolkit or its device.
pub fn providers(_loaded: &Library) -> Vec<String> {
    Provider::ALL
        .into_iter()
        .filter(|provider| provider.is_compiled_in())
        .filter_map(Provider::runtime_name)
        .map(str::to_owned)
        .collect()
}

/// Gives the session its one provider.
pub(super) fn with_provider(
    builder: SessionBuilder,
    library: &Library,
    spec: &DeviceSpec,
    plugin: Option<&Plugin>,
) -> ort::Result<SessionBuilder> {
    if let Some(plugin) = plugin {
        return plugin.append(builder.with_disable_cpu_fallback()?, library, &spec.options);
    }
    let options = &spec.options;
    let provider = match spec.provider {
        Provider::Cpu => return on_the_cpu(builder, library),
        Provider::OpenVino => with_options(openvino(options), options).build(),
        Provider::Cuda => with_options(ep::CUDA::default(), options).build(),
        Provider::TensorRt => with_options(ep::TensorRT::default(), options).build(),
        Provider::Cann => with_options(ep::CANN::default(), options).build(),
        Provider::Qnn => with_options(ep::QNN::default(), options).build(),
        Provider::Plugin => return Err(ort::Error::new("no plug-in is named")),
    };
    let builder = builder.with_disable_cpu_fallback()?;
    Ok(builder.with_execution_providers([provider.error_on_failure()])?)
}

/// OpenVINO takes all cores of the machine unless told otherwise. Here a device is one thread, so it gets one on the CPU; an
/// option of the user comes after this and wins.
fn openvino(options: &[(String, String)]) -> ep::OpenVINO {
    let elsewhere = |(key, value): &(String, String)| key == "device_type" && value != "CPU";
    if options.iter().any(elsewhere) {
        ep::OpenVINO::default()
    } else {
        ep::OpenVINO::default().with_num_threads(1)
    }
}

fn with_options<P: ArbitrarilyConfigurableExecutionProvider>(
    provider: P,
    options: &[(String, String)],
) -> P {
    options.iter().fold(provider, |provider, (key, value)| {
        provider.with_arbitrary_config(key, value)
    })
}

/// Names the CPU's provider, so that a plug-in registered for another device cannot be chosen instead.
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
