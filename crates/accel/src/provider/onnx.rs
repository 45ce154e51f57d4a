//! The providers of ONNX Runtime, by their names in the configuration.

use super::Provider;
use crate::onnx::{open, probe};

/// ONNX Runtime's own kernels for the CPU, which every library has.
pub(super) const CPU: Provider = Provider {
    name: "cpu",
    computes: true,
    is_cpu: true,
    needs_fixed_sizes: false,
    needs_library: true,
    answers_at_once: false,
    needs_plugin: false,
    open,
    probe: None,
};

/// What the others have in common.
const ACCELERATOR: Provider = Provider { is_cpu: false, probe: Some(probe), ..CPU };

/// Intel's OpenVINO. Its option `device_type` chooses CPU, GPU or NPU.
pub(super) const OPENVINO: Provider = Provider { name: "openvino", ..ACCELERATOR };

/// NVIDIA GPUs through CUDA.
pub(super) const CUDA: Provider = Provider { name: "cuda", ..ACCELERATOR };

/// NVIDIA GPUs through TensorRT.
pub(super) const TENSORRT: Provider =
    Provider { name: "tensorrt", needs_fixed_sizes: true, ..ACCELERATOR };

/// Huawei's Ascend NPUs.
pub(super) const CANN: Provider = Provider { name: "cann", ..ACCELERATOR };

/// Qualcomm's NPUs, compiled in or as a plug-in.
pub(super) const QNN: Provider = Provider { name: "qnn", needs_fixed_sizes: true, ..ACCELERATOR };

/// Any other provider, from a plug-in library.
pub(super) const PLUGIN: Provider = Provider { name: "plugin", needs_plugin: true, ..ACCELERATOR };
