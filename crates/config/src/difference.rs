//! What another configuration would change, key by key.

use std::collections::BTreeMap;

use toml::Value;

use crate::effective::{Effective, EffectiveKey};
use crate::keys::Change;

/// A key with another value than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Section and name. Entries of maps, and keys of devices and tasks, each count as a key.
    pub key: String,
    /// The value before, as TOML; `None`: the key was not set.
    pub from: Option<String>,
    /// The value that was read, as TOML; `None`: the key is no longer set.
    pub to: Option<String>,
    /// Where the new value was set.
    pub origin: Option<String>,
}

/// The keys in which two configurations differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// Keys that a reload changes.
    pub live: Vec<Difference>,
    /// Keys that change with the next start.
    pub restart: Vec<Difference>,
    /// How many keys have the same value.
    pub unchanged: usize,
}

impl Effective {
    /// The keys whose values differ from `before`.
    pub fn differences(&self, before: &Effective) -> Differences {
        let by_key = |effective: &'_ Effective| -> BTreeMap<String, EffectiveKey> {
            let rows = effective.config.iter();
            rows.map(|row| (row.key.clone(), row.clone())).collect()
        };
        let mode = |effective: &Effective| -> Option<Value> {
            let mut rows = effective.config.iter();
            let row = rows.find(|row| row.key == "io.mode");
            row.map(|row| row.value.clone())
        };
        let is_other_mode = mode(self) != mode(before);
        let mut gone = by_key(before);
        let mut differences = Differences::default();
        for row in &self.config {
            let old = gone.remove(&row.key);
            match old {
                Some(old) if old.value == row.value => differences.unchanged += 1,
                // The default of another mode comes with that mode.
                Some(old)
                    if is_other_mode && old.origin.is_default() && row.origin.is_default() =>
                {
                    let mut row = row.clone();
                    row.change = Change::Restart;
                    differences.add(Some(&old), Some(&row));
                }
                old => differences.add(old.as_ref(), Some(row)),
            }
        }
        for old in gone.values() {
            differences.add(Some(old), None);
        }
        differences
    }
}

impl Differences {
    fn add(&mut self, old: Option<&EffectiveKey>, new: Option<&EffectiveKey>) {
        let Some(row) = new.or(old) else { return };
        let value = |row: &EffectiveKey| shown(&row.value);
        let difference = Difference {
            key: row.key.clone(),
            from: old.map(value),
            to: new.map(value),
            origin: new.map(|row| row.origin.to_string()),
        };
        match row.change {
            Change::Live => self.live.push(difference),
            Change::Restart => self.restart.push(difference),
        }
    }
}

fn shown(value: &Value) -> String {
    value.to_string()
}

#[cfg(test)]
mod tests {
    use crate::tests::load;

    #[test]
    fn keys_are_sorted_by_what_they_need() {
        let (_, before) = load("[tag.dscp]\nTLS = 1\nHTTP = 2", &[], &[]).unwrap();
        let file = "[flow]\nidle_timeout_s = 7\nmax_flows = 128\n[tag.dscp]\nTLS = 1\nQUIC = 3\n\
                    [device.slow]\nprovider = \"simulated\"";
        let (_, after) = load(file, &[], &[]).unwrap();
        let differences = after.differences(&before);
        let keys = |rows: &[super::Difference]| -> Vec<String> {
            let row = |row: &super::Difference| {
                let [from, to] = [&row.from, &row.to].map(|it| it.as_deref().unwrap_or("-"));
                format!("{} {from} {to}", row.key)
            };
            rows.iter().map(row).collect()
        };
        assert_eq!(
            keys(&differences.live),
            [
                "flow.idle_timeout_s 30 7",
                "tag.dscp.QUIC - 3",
                "device.slow.provider - \"simulated\"",
                "tag.dscp.HTTP 2 -"
            ]
        );
        assert_eq!(keys(&differences.restart), ["flow.max_flows 1048576 128"]);
        assert_eq!(differences.live[0].origin.as_deref(), Some("c.toml:2"), "where it was read");
        let rows = before.config.len();
        assert_eq!(differences.unchanged, rows - 3);
        let same = before.differences(&before);
        assert_eq!((same.live.len(), same.restart.len(), same.unchanged), (0, 0, rows));
    }
}
