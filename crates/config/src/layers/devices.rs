//! The `[device.NAME]` tables: what they hold is known, what they are called is not.

use std::ops::Range;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::super::keys::{DEVICE, DEVICE_KEYS, Key, device_position};
use super::super::kind::{Entry, Kind};
use super::values::{in_order, loose, owned, suggest};
use super::{DeviceSettings, Entries, Layer, Setting};

impl Layer<'_> {
    /// `[device]`, which is made of tables only.
    pub(super) fn read_devices(&mut self, tables: &DeTable<'_>) {
        for (name, value) in in_order(tables) {
            let device = name.get_ref();
            match value.get_ref() {
                DeValue::Table(table) => {
                    self.device(device, name.span());
                    for (key, value) in in_order(table) {
                        self.read_device_key(device, key.get_ref(), key.span(), value);
                    }
                }
                _ => self.problem(
                    name.span(),
                    &format!("{DEVICE}.{device}: every device is a table of its own: write [{DEVICE}.NAME]"),
                ),
            }
        }
    }

    /// `--set device.NAME.KEY=VALUE`, or an option: `device.NAME.options.OPTION`.
    pub(super) fn set_device(&mut self, path: &str, rest: &str, value: &str) {
        let Some((device, key)) = rest.split_once('.') else {
            self.problem(0..0, &format!("{path}: expected {DEVICE}.NAME.KEY=VALUE"));
            return;
        };
        self.device(device, 0..0);
        let option = key.strip_prefix("options.");
        let is_text = device_position(key).is_some_and(|at| DEVICE_KEYS[at].kind.is_text());
        let value = match loose(value, is_text || option.is_some()) {
            Ok(value) => value,
            Err(message) => return self.refuse_device(device, 0..0, key, &message),
        };
        match option {
            Some(option) => self.read_option(device, option, 0..0, &value),
            None => self.read_device_key(device, key, 0..0, &value),
        }
    }

    fn read_device_key(
        &mut self,
        device: &str,
        name: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let Some(position) = device_position(name) else {
            let near = suggest(name, DEVICE_KEYS.iter().map(Key::name));
            self.device(device, at.clone()).refused = true;
            return self.problem(at, &format!("unknown key {DEVICE}.{device}.{name}{near}"));
        };
        let key = &DEVICE_KEYS[position];
        if let (Kind::Map(_), DeValue::Table(table)) = (key.kind, value.get_ref()) {
            self.device(device, at.clone()).options.clear();
            self.accept_device(device, position, at, Value::Table(toml::Table::new()));
            for (option, value) in in_order(table) {
                self.read_option(device, option.get_ref(), option.span(), value);
            }
            return;
        }
        match owned(value).and_then(|value| key.kind.check(value)) {
            Ok(value) => self.accept_device(device, position, at, value),
            Err(found) => {
                let complaint = key.kind.complaint(&found, key.unit);
                self.refuse_device(device, at, name, &complaint);
            }
        }
    }

    fn read_option(
        &mut self,
        device: &str,
        option: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) {
        match self.entry(Entry::Text, at.clone(), value) {
            Ok(setting) => {
                let options = &mut self.device(device, at).options;
                options.insert(option.to_owned(), setting);
            }
            Err(complaint) => {
                self.refuse_device(device, at, &format!("options.{option}"), &complaint);
            }
        }
    }

    fn accept_device(&mut self, device: &str, position: usize, at: Range<usize>, value: Value) {
        let origin = self.source.origin(at.clone());
        self.device(device, at).values[position] = Some(Setting {
            value,
            origin,
            refused: false,
        });
    }

    fn refuse_device(&mut self, device: &str, at: Range<usize>, key: &str, message: &str) {
        self.device(device, at.clone()).refused = true;
        self.problem(at, &format!("{DEVICE}.{device}.{key}: {message}"));
    }

    /// The device's settings so far; made where this is the first that is said of it.
    fn device(&mut self, name: &str, at: Range<usize>) -> &mut DeviceSettings {
        let origin = self.source.origin(at);
        let devices = &mut self.settings.devices;
        devices
            .entry(name.to_owned())
            .or_insert_with(|| DeviceSettings {
                origin,
                values: vec![None; DEVICE_KEYS.len()],
                options: Entries::new(),
                refused: false,
            })
    }
}
