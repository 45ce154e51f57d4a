//! Built-in values that depend on the memory there is.

use toml::Value;

use crate::keys::Section;
use crate::origin::Origin;
use crate::settings::{Setting, Settings};

/// Keys whose built-in value is too much for little memory; the bytes of memory for each flow or
/// block, and the least value. A flow takes 0.36 kB, a counted flow 88 bytes for each interface, a
/// block 128 kB.
const BY_MEMORY: [(&str, u64, u64); 3] =
    [("flow.max_flows", 4096, 4096), ("io.counted_flows", 4096, 4096), ("io.blocks", 8 << 20, 16)];

impl Settings {
    /// The defaults of these sections for this much memory, in bytes: the built-in ones, or less.
    /// Less is rounded up to a power of two, as a machine of 256 MB has some 240 for programs.
    pub(crate) fn within(sections: Vec<&'static Section>, memory: u64) -> Settings {
        let mut defaults = Settings::new(sections);
        for (path, share, least) in BY_MEMORY {
            let fits = (memory / share).next_power_of_two().max(least) as i64;
            if let Some(setting) = defaults.setting_mut(path)
                && setting.value.as_integer().is_some_and(|built_in| fits < built_in)
            {
                *setting = Setting::accepted(Value::Integer(fits), Origin::Memory(memory));
            }
        }
        defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checked::SECTIONS;
    use crate::{Config, Loaded};

    const MIB: u64 = 1 << 20;

    fn within(memory: u64, sets: &[&str]) -> Loaded {
        let defaults = Settings::within(SECTIONS.to_vec(), memory);
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Config::from_layers(defaults, &[], &[], &sets, Vec::new()).unwrap()
    }

    #[test]
    fn little_memory_has_smaller_tables_and_rings() {
        for (mib, flows, counted, blocks) in [
            (8, 4096, 4096, 16),
            (64, 16_384, 16_384, 16),
            (240, 65_536, 65_536, 32),
            (256, 65_536, 65_536, 32),
            (1000, 262_144, 131_072, 128),
            (2048, 524_288, 131_072, 256),
            (3900, 1_048_576, 131_072, 256),
            (1 << 40, 1_048_576, 131_072, 256),
        ] {
            let Config { flow, io, .. } = within(mib * MIB, &[]).config;
            let found = (flow.max_flows, io.counted_flows, io.blocks);
            assert_eq!((found, flow.buckets), ((flows, counted, blocks), flows / 4), "{mib} MiB");
        }
    }

    #[test]
    fn what_somebody_set_stays_and_origins_tell() {
        let loaded = within(256 * MIB, &["flow.max_flows=1048576"]);
        assert_eq!((loaded.config.flow.max_flows, loaded.config.flow.buckets), (1 << 20, 1 << 18));
        let of = |key: &str| {
            let row = loaded.effective().config.into_iter().find(|row| row.key == key).unwrap();
            row.origin.to_string()
        };
        assert_eq!(of("flow.max_flows"), "--set");
        assert_eq!(of("io.blocks"), "default for 256 MiB of memory");
        assert_eq!(of("io.burst"), "built-in");
    }

    /// Also where another file no longer sets the key.
    #[test]
    fn a_run_keeps_its_table_until_it_is_restarted() {
        let running = within(256 * MIB, &["flow.max_flows=4096"]);
        let next = within(256 * MIB, &["flow.idle_timeout_s=9"]);
        assert_eq!(next.taken_over_by(&running).unwrap().config.flow.max_flows, 4096);
        assert_eq!(running.taken_over_by(&next).unwrap().config.flow.max_flows, 65_536);
    }
}
