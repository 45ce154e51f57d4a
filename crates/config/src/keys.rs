//! Keys: what each accepts, what it is for, and the field that holds its value.
//!
//! A section of the configuration is a struct, declared with [`section!`](crate::section): each
//! field with its key, and the field's doc comment says what the key is for. Reading files, the
//! environment and `--set`, `config show`, suggestions, the man page and the test of
//! `configs/1-1-1.toml` all work from these declarations. A default is written as TOML and read by
//! the same code as a user's value.

use serde::Serialize;

use crate::kind::Kind;
use crate::settings::{Setting, Settings, Table};

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
        self.path.split_once('.').map_or(self.path, |(section, _)| section)
    }

    /// The part after the last dot.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
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

/// A section as it is declared.
#[derive(Debug)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// How it is written.
    pub shape: Shape,
    /// Its keys in the order of the declaration.
    pub keys: &'static [Key],
    /// Reports values that mean nothing, and combinations that are wrong.
    pub check: fn(&Settings, &mut Vec<String>),
}

/// How a section is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `[flow]`.
    One,
    /// `[device.NAME]`: tables with names of the user's choice, without environment variables.
    Named,
    /// `[[task]]`: the same, in an order, with the key `name`.
    List,
}

impl Section {
    /// The key called `name`.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.keys.iter().position(|key| key.name() == name)
    }

    /// How messages ask for its tables.
    pub(crate) fn how_to_write(&self) -> String {
        let name = self.name;
        match self.shape {
            Shape::One => format!("{name} is a section: write [{name}] and its keys below"),
            Shape::Named => {
                format!("{name} is a section of tables: write [{name}.NAME] and its keys below")
            }
            Shape::List => {
                format!("{name} is a list of tables: write [[{name}]] and its keys below")
            }
        }
    }
}

/// Whether a value was stored; if not, why, for the user.
pub type Stored = Result<(), String>;

/// A struct whose fields are the keys of a section.
pub trait Keyed: Default {
    /// The declaration.
    const SECTION: &'static Section;

    /// Stores the value of the key called `name` in its field.
    ///
    /// # Errors
    /// The value does not mean what the key wants.
    fn store(&mut self, name: &str, setting: &Setting) -> Stored;

    /// The built-in values.
    fn defaults() -> Self {
        let mut keyed = Self::default();
        for key in Self::SECTION.keys {
            // A test holds each default against its key.
            let _ = keyed.store(key.name(), &Setting::built_in(key));
        }
        keyed
    }

    /// Stores what a table sets over the values so far.
    fn store_table(&mut self, table: &Table, problems: &mut Vec<String>) {
        for (key, setting) in table.set() {
            if let Err(why) = self.store(key.name(), setting)
                && !setting.refused
            {
                problems.push(table.complaint(key, setting, &why));
            }
        }
    }
}

/// Declares a section: its struct and, field by field, `live` or `restart` (when another value
/// takes effect), the key, its kind, default and unit, and the function that makes the field's
/// value of the [`Setting`], where it is not [`Setting::get`]. With `impl` in place of
/// `pub struct`, the section fills the fields of an existing struct.
#[macro_export]
macro_rules! section {
    (
        $(#[$about:meta])*
        pub struct $Name:ident = $shape:ident $section:literal $(, checked by $check:path)?;
        $(
            $(#[doc = $why:literal])+
            $field:ident: $Type:ty =
                $change:ident $key:literal, $kind:expr, $default:expr, $unit:expr $(=> $from:expr)?;
        )+
        $(with { $( $(#[$plain_about:meta])* pub $plain:ident: $Plain:ty, )+ })?
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq)]
        #[allow(rustdoc::broken_intra_doc_links)]
        pub struct $Name {
            $( $(#[doc = $why])+ pub $field: $Type, )+
            $( $( $(#[$plain_about])* pub $plain: $Plain, )+ )?
        }

        $crate::section! {
            impl $Name = $shape $section $(, checked by $check)?;
            $( $(#[doc = $why])+ $field: $Type =
                $change $key, $kind, $default, $unit $(=> $from)?; )+
        }
    };
    (
        impl $Name:ty = $shape:ident $section:literal $(, checked by $check:path)?;
        $(
            $(#[doc = $why:literal])+
            $field:ident: $Type:ty =
                $change:ident $key:literal, $kind:expr, $default:expr, $unit:expr $(=> $from:expr)?;
        )+
    ) => {
        impl $crate::Keyed for $Name {
            const SECTION: &'static $crate::Section = &$crate::Section {
                name: $section,
                shape: $crate::Shape::$shape,
                keys: &[ $( $crate::Key {
                    path: $crate::section!(@path $shape $section $key),
                    kind: $kind,
                    default: $default,
                    unit: $unit,
                    why: concat!($($why),+).trim_ascii_start(),
                    change: $crate::section!(@change $change),
                }, )+ ],
                check: $crate::section!(@check $Name $(, $check)?),
            };

            fn store(&mut self, name: &str, setting: &$crate::Setting) -> $crate::Stored {
                match name {
                    $( $key => self.$field = $crate::section!(@read setting $Type $(, $from)?), )+
                    _ => {}
                }
                Ok(())
            }
        }
    };
    (@path One $section:literal $key:literal) => { concat!($section, ".", $key) };
    (@path $shape:ident $section:literal $key:literal) => { concat!($section, ".NAME.", $key) };
    (@change live) => { $crate::Change::Live };
    (@change restart) => { $crate::Change::Restart };
    (@check $Name:ty) => { $crate::stored::<$Name> };
    (@check $Name:ty, $check:path) => { $check };
    (@read $setting:ident $Type:ty) => { $setting.get()? };
    (@read $setting:ident $Type:ty, $from:expr) => {{
        let from: fn(&$crate::Setting) -> Result<$Type, String> = $from;
        from($setting)?
    }};
}

/// The check of a section without rules of its own.
pub fn stored<T: Keyed>(settings: &Settings, problems: &mut Vec<String>) {
    for table in settings.tables(T::SECTION.name) {
        T::default().store_table(table, problems);
    }
}
