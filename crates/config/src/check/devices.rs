//! `accel.devices` and the `[device.NAME]` tables: from names to devices that can be opened.

use std::time::Duration;

use accel::{Faults, Profile, onnx};

use super::{Reader, size_of_value};
use crate::checked::{Device, DeviceThread, Provider};
use crate::keys::{DEVICE, PROVIDERS, nearest};
use crate::layers::DeviceSettings;
use crate::layout::Layout;

/// One device for each of the layout's, as far as `accel.devices` names any.
pub(super) fn devices(
    read: &Reader<'_>,
    layout: &Layout,
    problems: &mut Vec<String>,
) -> Vec<Device> {
    for (name, table) in &read.settings.devices {
        if !table.refused && provider_of(name, Some(table)).is_none() {
            problems.push(format!(
                "{}: {DEVICE}.{name}.provider: is missing; expected one of {}",
                table.origin,
                PROVIDERS.join(", ")
            ));
        }
        check_sizes(name, table, problems);
        check_faults(name, table, problems);
    }
    let mut devices = Vec::new();
    for name in read.list("accel.devices") {
        let name = name.as_str().unwrap_or_default();
        let table = read.settings.devices.get(name);
        match provider_of(name, table) {
            Some(provider) => devices.push(device(read, layout, name, provider, table)),
            // What is wrong with the table was said above.
            None if table.is_some() => {}
            None => problems.push(format!(
                "{}: accel.devices: {}",
                read.origin("accel.devices"),
                unknown(read, name)
            )),
        }
    }
    if let [device] = devices.as_slice() {
        return vec![device.clone(); layout.devices];
    }
    devices
}

/// What a list of faults says; nothing where it is empty.
fn faults(text: &str) -> Result<Option<Faults>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let faults = text.parse::<Faults>().map_err(|error| error.to_string())?;
    Ok(Some(faults))
}

fn check_faults(name: &str, table: &DeviceSettings, problems: &mut Vec<String>) {
    let Some(setting) = table.setting("faults") else {
        return;
    };
    if let Err(error) = faults(setting.value.as_str().unwrap_or_default()) {
        let origin = &setting.origin;
        problems.push(format!("{origin}: {DEVICE}.{name}.faults: {error}"));
    }
}

fn check_sizes(name: &str, table: &DeviceSettings, problems: &mut Vec<String>) {
    let Some(setting) = table.setting("batch_sizes") else {
        return;
    };
    let sizes: Vec<usize> = list(&setting.value);
    if !sizes.is_sorted_by(|a, b| a < b) {
        problems.push(format!(
            "{}: {DEVICE}.{name}.batch_sizes = {}: batch sizes must ascend, and none may stand twice",
            setting.origin, setting.value
        ));
    }
}

fn unknown(read: &Reader<'_>, name: &str) -> String {
    let tables = read.settings.devices.keys().map(String::as_str);
    let near = nearest(name, PROVIDERS.into_iter().chain(tables));
    let near = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
    format!(
        "unknown device \"{name}\"; expected NAME of a [{DEVICE}.NAME], or one of {}{near}",
        PROVIDERS.join(", ")
    )
}

/// The provider that a device's table names, or else its own name.
fn provider_of(name: &str, table: Option<&DeviceSettings>) -> Option<Provider> {
    let given = table.and_then(|table| table.setting("provider")?.value.as_str());
    Provider::parse(given.unwrap_or(name))
}

fn device(
    read: &Reader<'_>,
    layout: &Layout,
    name: &str,
    provider: Provider,
    table: Option<&DeviceSettings>,
) -> Device {
    let value = |key: &str| table.and_then(|table| Some(&table.setting(key)?.value));
    let float = |key: &str| value(key).and_then(toml::Value::as_float);
    let text = |key: &str| value(key).and_then(toml::Value::as_str).unwrap_or_default();
    let path = |key: &str| table.and_then(|table| table.setting(key)?.path());
    let wants_fixed = matches!(
        provider,
        Provider::Onnx(onnx::Provider::Qnn | onnx::Provider::TensorRt)
    );
    let is_only_one = layout.devices <= layout.analytics_managers;
    let shares = provider == Provider::Simulated || (provider == CPU && is_only_one);
    let deadline_ms = float("deadline_ms").unwrap_or(DEADLINE_MS);
    let options = table.into_iter().flat_map(|table| &table.options);
    Device {
        name: name.to_owned(),
        provider,
        plugin: path("plugin"),
        options: options
            .map(|(name, entry)| {
                let value = entry.value.as_str().unwrap_or_default();
                (name.clone(), value.to_owned())
            })
            .collect(),
        batch_sizes: value("batch_sizes").map_or_else(|| read.sizes("analytics.batch_sizes"), list),
        fixed_sizes: value("fixed_sizes")
            .and_then(toml::Value::as_bool)
            .unwrap_or(wants_fixed || read.bool("accel.fixed_sizes")),
        thread: match text("thread") {
            "own" => DeviceThread::Own,
            "shared" => DeviceThread::Shared,
            _ if shares => DeviceThread::Shared,
            _ => DeviceThread::Own,
        },
        deadline: (deadline_ms > 0.0).then(|| Duration::from_secs_f64(deadline_ms / 1000.0)),
        profile: path("profile"),
        simulated: Profile {
            t0_us: float("simulated_t0_us").unwrap_or_else(|| read.float("accel.simulated_t0_us")),
            t1_us: float("simulated_t1_us").unwrap_or_else(|| read.float("accel.simulated_t1_us")),
        },
        faults: faults(text("faults")).ok().flatten(),
    }
}

const CPU: Provider = Provider::Onnx(onnx::Provider::Cpu);

/// How long a batch may take unless a table says otherwise.
const DEADLINE_MS: f64 = 1000.0;

fn list(value: &toml::Value) -> Vec<usize> {
    let items = value.as_array().into_iter().flatten();
    items.map(size_of_value).collect()
}
