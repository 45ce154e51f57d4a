//! Keys: what each accepts, what it is for, and where its value lands.
//!
//! Each key is declared once, in [`catalogue`] or [`tables`]. Reading files, the environment and `--set`, `config show`,
//! suggestions and the test of `configs/1-1-1.toml` all work from these declarations. A default is written as TOML and read
//! by the same code as a user's value, so a default that breaks its own key's rules cannot go unnoticed.

use std::ops::RangeInclusive;

use serde::Serialize;

use crate::kind::Kind;

mod catalogue;
mod tables;

pub use catalogue::{KEYS, KeyId};
pub use tables::{
    DEVICE_KEYS, DeviceKey, GOAL_KEYS, NFT_SET_KEYS, NftSetKey, PROVIDERS, TASK_KEYS, TaskKey,
};

/// One configuration key.
#[derive(Debug)]
pub struct Key {
    /// Section and name, as in `flow.k`.
    pub path: &'static str,
    /// Type and range of the value.
    pub kind: Kind,
    /// Built-in default, as TOML.
    pub default: &'static str,
    /// Unit of the value; empty where it has none.
    pub unit: &'static str,
    /// What the key is for, in one line.
    pub why: &'static str,
    /// When another value takes effect.
    pub change: Change,
}

/// When another value of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// With a reload.
    Live,
    /// With the next start.
    Restart,
}

impl Key {
    /// The part before the dot.
    pub fn section(&self) -> &'static str {
        self.path
            .split_once('.')
            .map_or(self.path, |(section, _)| section)
    }

    /// The part after the last dot.
    pub fn name(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or(self.path, |(_, name)| name)
    }

    /// Whether a reload can change it.
    pub fn is_live(&self) -> bool {
        self.change == Change::Live
    }

    /// The environment variable that sets the key: `FENXI_FLOW_IDLE_TIMEOUT_S` for
    /// `flow.idle_timeout_s`.
    pub fn variable(&self) -> String {
        format!("FENXI_{}", self.path.replace('.', "_").to_ascii_uppercase())
    }
}

/// The keys outside of tables with names of the user's choice, and those of devices, for tests that hold others against
/// them.
pub static KEYS_AND_DEVICES: [&[Key]; 2] = [KEYS, DEVICE_KEYS];

/// Position in [`KEYS`] of the key called `path`.
pub fn position(path: &str) -> Option<usize> {
    KEYS.iter().position(|key| key.path == path)
}

/// Names of the sections, in the order of the catalogue.
pub fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = KEYS.iter().map(Key::section).collect();
    sections.dedup();
    sections
}

/// Declares keys: an identifier, `live` or `restart` (when another value takes effect), path, kind, default, unit and
/// purpose, and how a value that was checked is stored in the draft.
macro_rules! keys {
    (
        $(#[$about:meta])*
        $Id:ident of $KEYS:ident, stored in $Draft:ty {
            $(
                $id:ident: $change:ident $path:literal, $kind:expr, $default:expr, $unit:expr, $why:expr
                => $store:expr;
            )+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $Id {
            $( #[doc = concat!("`", $path, "`.")] $id, )+
        }

        /// The keys in the order of the declaration.
        pub static $KEYS: &[$crate::keys::Key] = &[
            $( $crate::keys::Key {
                path: $path,
                kind: $kind,
                default: $default,
                unit: $unit,
                why: $why,
                change: $crate::keys::keys!(@change $change),
            }, )+
        ];

        impl $Id {
            /// All of them, in the order of the declaration.
            pub const ALL: &'static [$Id] = &[$($Id::$id),+];

            /// The key as it is declared.
            pub fn key(self) -> &'static $crate::keys::Key {
                &$KEYS[self as usize]
            }

            /// Stores the key's value where it belongs.
            ///
            /// # Errors
            /// The value does not mean what the key wants.
            pub fn store(
                self,
                draft: &mut $Draft,
                setting: &$crate::setting::Setting,
            ) -> $crate::store::Stored {
                let store: fn(&mut $Draft, &$crate::setting::Setting) -> $crate::store::Stored = match self {
                    $( $Id::$id => $store, )+
                };
                store(draft, setting)
            }
        }
    };
    (@change live) => { $crate::keys::Change::Live };
    (@change restart) => { $crate::keys::Change::Restart };
}

use keys;

/// A whole number in a range, ends included.
const fn integer(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

/// A number in a range, ends included.
const fn float(min: f64, max: f64) -> Kind {
    Kind::Float { min, max }
}

/// A number in the range that the crate which uses it declares.
const fn number_in(range: RangeInclusive<f64>) -> Kind {
    float(*range.start(), *range.end())
}

/// A whole number in the range that the crate which uses it declares.
const fn seconds_in(range: RangeInclusive<u16>) -> Kind {
    integer(*range.start() as i64, *range.end() as i64)
}

/// A power of two in a range, ends included.
const fn power_of_two(min: i64, max: i64) -> Kind {
    Kind::PowerOfTwo {
        min,
        max,
        or_zero: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_variables_are_unique_and_sections_stand_together() {
        let mut paths: Vec<_> = KEYS.iter().map(|key| key.path).collect();
        let mut variables: Vec<_> = KEYS.iter().map(Key::variable).collect();
        let mut sections = sections();
        for list in [&mut paths, &mut sections] {
            let before = list.len();
            list.sort_unstable();
            list.dedup();
            assert_eq!(list.len(), before);
        }
        variables.sort_unstable();
        variables.dedup();
        assert_eq!(variables.len(), KEYS.len());
        assert!(variables.contains(&"FENXI_FLOW_IDLE_TIMEOUT_S".to_owned()));
        // A section name with an underscore would make variables ambiguous to a reader.
        assert!(
            KEYS.iter()
                .all(|key| !key.section().contains('_') && !key.name().contains('.'))
        );
        assert!(
            KEYS.iter()
                .all(|key| !key.why.is_empty() && !key.why.contains('\n'))
        );
    }
}
