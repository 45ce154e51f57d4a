//! `[device.NAME]` tables: from names to devices that can be opened.

use accel::{PROVIDERS, Profile, Provider};

use crate::checked::{AccelKeys, Device, DeviceKeys, DeviceThread};
use crate::keys::Keyed;
use crate::nearest;
use crate::settings::{Settings, Table};

/// The tables, each with what it says.
pub(super) struct DeviceTables<'a>(Vec<(&'a Table, DeviceKeys)>);

impl<'a> DeviceTables<'a> {
    /// Holds each table against itself.
    pub fn check(settings: &'a Settings, problems: &mut Vec<String>) -> DeviceTables<'a> {
        let own = |table: &'a Table| {
            let mut own = plain();
            own.store_table(table, problems);
            own.provider = own.provider.or_else(|| Provider::parse(&table.name));
            check_together(table, &own, problems);
            (table, own)
        };
        DeviceTables(settings.tables("device").map(own).collect())
    }

    /// The device called `name`, which is a table's or a provider's.
    ///
    /// # Errors
    /// There is none; the message is empty where [`DeviceTables::check`] said what is wrong.
    pub fn find(&self, name: &str, accel: &AccelKeys, of: Use<'_>) -> Result<Device, String> {
        let table = self.0.iter().find(|(table, _)| table.name == name);
        let plain = plain();
        let own = table.map_or(&plain, |(_, own)| own);
        match own.provider.or_else(|| Provider::parse(name)) {
            Some(provider) => Ok(device(name, provider, own, accel, of)),
            None if table.is_some() => Err(String::new()),
            None => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> String {
        let tables = self.0.iter().map(|(table, _)| table.name.as_str());
        let near = nearest(name, PROVIDERS.into_iter().chain(tables));
        let near = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
        format!(
            "unknown device \"{name}\"; expected NAME of a [device.NAME], or one of {}{near}",
            PROVIDERS.join(", ")
        )
    }
}

/// A device that says nothing of itself.
fn plain() -> DeviceKeys {
    let deadline = DeviceKeys::defaults().deadline;
    DeviceKeys { deadline, ..DeviceKeys::default() }
}

/// What the use of a device says about it.
#[derive(Clone, Copy)]
pub(super) struct Use<'a> {
    /// Its analytics manager has no other device to wait for.
    pub is_only_one: bool,
    /// Batch sizes of the task.
    pub batch_sizes: &'a [usize],
}

/// The rules between the keys of one table.
fn check_together(table: &Table, own: &DeviceKeys, problems: &mut Vec<String>) {
    let (origin, name) = (&table.origin, &table.name);
    if !table.refused && own.provider.is_none() {
        problems.push(format!(
            "{origin}: device.{name}.provider: is missing; expected one of {}",
            PROVIDERS.join(", ")
        ));
    }
    let sizes = own.batch_sizes.as_deref().unwrap_or_default();
    if let Some(setting) = table.get("batch_sizes")
        && !sizes.is_sorted_by(|a, b| a < b)
    {
        problems.push(format!(
            "{}: device.{name}.batch_sizes = {}: batch sizes must ascend, each of them named once",
            setting.origin, setting.value
        ));
    }
}

fn device(
    name: &str,
    provider: &'static Provider,
    own: &DeviceKeys,
    accel: &AccelKeys,
    of: Use<'_>,
) -> Device {
    // A simulated device computes nothing. The CPU gains nothing from a thread of its own, unless
    // its manager has other devices to serve meanwhile.
    let shares = !provider.computes || (provider.is_cpu && of.is_only_one);
    let batch_sizes = own.batch_sizes.as_deref();
    Device {
        name: name.to_owned(),
        provider,
        plugin: own.plugin.clone(),
        options: own.options.clone(),
        batch_sizes: batch_sizes.unwrap_or(of.batch_sizes).to_vec(),
        fixed_sizes: own.fixed_sizes.unwrap_or(provider.needs_fixed_sizes || accel.fixed_sizes),
        thread: own.thread.unwrap_or(match shares {
            true => DeviceThread::Shared,
            false => DeviceThread::Own,
        }),
        deadline: own.deadline,
        profile: own.profile.clone(),
        simulated: Profile {
            t0_us: own.simulated_t0_us.unwrap_or(accel.simulated_t0_us),
            t1_us: own.simulated_t1_us.unwrap_or(accel.simulated_t1_us),
        },
        faults: own.faults.clone(),
        otherwise: None,
        number: 0,
    }
}
