//! Built-in values that depend on another key.

use packetio::Backend;
use policy::DSCP_MASK;
use toml::Value;

use crate::checked::{Capture, IoMode, MarkAs, PolicyName};
use crate::origin::Origin;
use crate::settings::{Setting, Settings, Table};

impl Settings {
    /// The built-in values that depend on another key, so that what is shown is what is in effect.
    pub(crate) fn settle(&mut self) {
        let holds_dscp = self.word("mark.as") == MarkAs::Dscp.name();
        if let Some(mask) = self.setting_mut("mark.mask")
            && holds_dscp
            && mask.origin == Origin::BuiltIn
            && !mask.refused
        {
            mask.value = Value::Integer(DSCP_MASK.into());
        }
        let is_mark = self.word("io.mode") == IoMode::Mark.name();
        let backend = Backend::parse(self.word("io.backend"));
        let is_first = is_mark && backend.is_some_and(|it| it.has_first_packets);
        let capture = if is_first { Capture::First } else { Capture::All };
        self.set_default("io.capture", capture.name(), is_first);
        // A connection gets its mark while its first packets pass, so labels must not wait for a
        // batch.
        let is_mark = is_mark && !self.has_other_batching();
        let policy = if is_mark { PolicyName::Slo } else { PolicyName::CarryOver };
        self.set_default("analytics.policy", policy.name(), is_mark);
    }

    pub(crate) fn setting_mut(&mut self, path: &str) -> Option<&mut Setting> {
        let (section, name) = path.split_once('.')?;
        let mut tables = self.tables.iter_mut();
        let table = tables.find(|table| table.section.name == section)?;
        let at = table.section.position(name)?;
        table.values[at].as_mut()
    }

    /// Sets the default of a key, unless the key was set; `is_of_mark`: the default belongs to mode
    /// mark.
    fn set_default(&mut self, path: &str, value: &str, is_of_mark: bool) {
        if let Some(setting) = self.setting_mut(path)
            && setting.origin.is_default()
            && !setting.refused
        {
            setting.value = Value::String(value.to_owned());
            setting.origin = match is_of_mark {
                true => Origin::Mode(IoMode::Mark.name()),
                false => Origin::BuiltIn,
            };
        }
    }

    /// Whether somebody set a key of the built-in policy, or the policy of a task that tasks with a
    /// goal of slo cannot stand beside.
    fn has_other_batching(&self) -> bool {
        let keys = ["analytics.timeout_ms", "analytics.phi", "analytics.max_wait_ms"];
        let is_set = |path: &&str| !self.setting(path).origin.is_default();
        let is_other = |task: &Table| match task.get("policy") {
            Some(policy) => policy.value.as_str() == Some(PolicyName::OnOff.name()),
            None => ["timeout_ms", "max_wait_ms"].iter().any(|key| task.get(key).is_some()),
        };
        keys.iter().any(is_set) || self.tables("task").any(is_other)
    }
}
