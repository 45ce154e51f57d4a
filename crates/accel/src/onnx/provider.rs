//! Providers: the parts of ONNX Runtime that run models on a kind of device.
//!
//! ONNX Runtime runs every part of a model that a provider does not support on its CPU provider,
//! and if a provider cannot even start, some versions continue without it and only log that.
//! Neither may go unnoticed here. A session gets exactly one provider, and for all but `cpu` the
//! key `session.disable_cpu_ep_fallback` makes ONNX Runtime refuse a session in which any node is
//! left to the CPU. (It does not check the bodies of loops and branches, which our models do not
//! have.) So a session that exists proves that the requested provider runs the whole model. The
//! crate `ort` has no call to read back which node runs where.

use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProvider};
use ort::session::builder::SessionBuilder;

use super::library::Library;
use super::plugin::Plugin;
use crate::provider::{DeviceSpec, Provider};

/// Name in ONNX Runtime; none for a plug-in, which brings its own.
pub(super) fn runtime_name(provider: &Provider) -> Option<&'static str> {
    Some(match provider.name {
        "cpu" => ep::CPU::NAME,
        "openvino" => ep::OpenVINO::NAME,
        "cuda" => ep::CUDA::NAME,
        "tensorrt" => ep::TensorRT::NAME,
        "cann" => ep::CANN::NAME,
        "qnn" => ep::QNN::NAME,
        _ => return None,
    })
}

/// Whether the loaded library was built with this provider.
pub(super) fn is_compiled_in(provider: &Provider) -> bool {
    let available = match provider.name {
        "cpu" => ep::CPU::is_available(),
        "openvino" => ep::OpenVINO::is_available(),
        "cuda" => ep::CUDA::is_available(),
        "tensorrt" => ep::TensorRT::is_available(),
        "cann" => ep::CANN::is_available(),
        "qnn" => ep::QNN::is_available(),
        _ => Ok(false),
    };
    available.unwrap_or(false)
}

/// Lists the providers that the library was built with and fenxi knows, by their names in ONNX
/// Runtime. A listed provider may still fail to run: it may lack its toolkit or its device.
pub fn providers(_loaded: &Library) -> Vec<String> {
    Provider::all()
        .filter(|provider| is_compiled_in(provider))
        .filter_map(runtime_name)
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
    let provider = match spec.provider.name {
        "cpu" => return on_the_cpu(builder, library),
        "openvino" => with_options(ep::OpenVINO::default(), options).build(),
        "cuda" => with_options(ep::CUDA::default(), options).build(),
        "tensorrt" => with_options(ep::TensorRT::default(), options).build(),
        "cann" => with_options(ep::CANN::default(), options).build(),
        "qnn" => with_options(ep::QNN::default(), options).build(),
        _ => return Err(ort::Error::new("no plug-in is named")),
    };
    let builder = builder.with_disable_cpu_fallback()?;
    Ok(builder.with_execution_providers([provider.error_on_failure()])?)
}

/// The options that a session gets: the user's, and fenxi's defaults for those that the user does
/// not name.
fn options<'a>(provider: &Provider, user: &'a [(String, String)]) -> Vec<(&'a str, &'a str)> {
    let is_elsewhere = |(key, value): &(String, String)| key == "device_type" && value != "CPU";
    let defaults: &[(&str, &str)] = match provider.name {
        // A device is one thread, but OpenVINO uses all cores of the machine by default.
        "openvino" if !user.iter().any(is_elsewhere) => &[("num_of_threads", "1")],
        "cuda" => &[
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
    let user = user.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    defaults.chain(user).collect()
}

fn with_options<P: ArbitrarilyConfigurableExecutionProvider>(
    provider: P,
    options: Vec<(&str, &str)>,
) -> P {
    options
        .into_iter()
        .fold(provider, |provider, (key, value)| provider.with_arbitrary_config(key, value))
}

/// Names the CPU provider explicitly, so that a plug-in that was registered for another device
/// cannot be chosen instead.
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

    fn given(provider: &str, user: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        let user: Vec<_> = user.iter().map(owned).collect();
        options(Provider::parse(provider).unwrap(), &user).iter().map(owned).collect()
    }

    #[test]
    fn cuda_computes_in_full_precision_and_plans_convolutions_quickly() {
        let search = ("cudnn_conv_algo_search".to_owned(), "DEFAULT".to_owned());
        let exact = ("use_tf32".to_owned(), "0".to_owned());
        assert_eq!(given("cuda", &[]), [search, exact]);
        assert_eq!(given("tensorrt", &[]), []);
    }

    #[test]
    fn options_of_the_user_replace_the_defaults() {
        let user = [("device_id", "1"), ("use_tf32", "1")];
        let given = given("cuda", &user);
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
            let given = given("openvino", user);
            let named = given.iter().find(|(key, _)| key == "num_of_threads");
            named.map(|(_, value)| value.clone())
        };
        assert_eq!(threads(&[]).as_deref(), Some("1"));
        assert_eq!(threads(&[("device_type", "CPU")]).as_deref(), Some("1"));
        assert_eq!(threads(&[("device_type", "GPU")]), None);
    }
}
