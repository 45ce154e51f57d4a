//! From a checked value of TOML to the typed place where it lands.
//!
//! A value was held against its key's kind before, so these conversions succeed. Where a key is declared with a kind that
//! does not fit its place, each start is refused with the key's name: there is nothing here that could panic.

use std::path::PathBuf;
use std::time::Duration;

use packetio::Backend;
use policy::Dscp;
use toml::Value;

use crate::setting::{EntrySetting, Setting};

/// Whether a value was stored; if not, why, for the user.
pub type Stored = Result<(), String>;

/// Types that a value of TOML converts to.
pub trait FromValue: Sized {
    /// `value` in this type; `None` where it is of another.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! integers {
    ($($Integer:ty),+) => { $(
        impl FromValue for $Integer {
            fn from_value(value: &Value) -> Option<$Integer> {
                <$Integer>::try_from(value.as_integer()?).ok()
            }
        }
    )+ };
}
integers!(i64, u64, u32, u16, u8, usize);

impl FromValue for Dscp {
    /// By its number, which is what a name was turned into when it was checked.
    fn from_value(value: &Value) -> Option<Dscp> {
        Dscp::new(u8::from_value(value)?)
    }
}

impl FromValue for Backend {
    fn from_value(value: &Value) -> Option<Backend> {
        Backend::from_name(value.as_str()?)
    }
}

impl FromValue for f64 {
    fn from_value(value: &Value) -> Option<f64> {
        value.as_float()
    }
}

impl FromValue for f32 {
    fn from_value(value: &Value) -> Option<f32> {
        value.as_float().map(|float| float as f32)
    }
}

impl FromValue for bool {
    fn from_value(value: &Value) -> Option<bool> {
        value.as_bool()
    }
}

impl FromValue for String {
    fn from_value(value: &Value) -> Option<String> {
        value.as_str().map(str::to_owned)
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    fn from_value(value: &Value) -> Option<Vec<T>> {
        value.as_array()?.iter().map(T::from_value).collect()
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<Option<T>> {
        T::from_value(value).map(Some)
    }
}

impl Setting {
    /// The value in the type that is asked for.
    ///
    /// # Errors
    /// It is of another type.
    pub fn get<T: FromValue>(&self) -> Result<T, String> {
        T::from_value(&self.value).ok_or_else(|| self.mismatch())
    }

    /// Stores the value as it is.
    ///
    /// # Errors
    /// As [`Setting::get`], as for all that follow.
    pub fn put<T: FromValue>(&self, place: &mut T) -> Stored {
        *place = self.get()?;
        Ok(())
    }

    /// Stores a number of seconds.
    pub fn put_seconds(&self, place: &mut Duration) -> Stored {
        *place = match &self.value {
            Value::Float(seconds) => Duration::try_from_secs_f64(*seconds).map_err(text)?,
            _ => Duration::from_secs(self.get()?),
        };
        Ok(())
    }

    /// Stores a number of seconds, of which 0 turns something off.
    pub fn put_seconds_or_off(&self, place: &mut Option<Duration>) -> Stored {
        let seconds = self.get()?;
        *place = (seconds > 0).then(|| Duration::from_secs(seconds));
        Ok(())
    }

    /// Stores a number of milliseconds.
    pub fn put_milliseconds(&self, place: &mut Duration) -> Stored {
        let milliseconds: f64 = self.get()?;
        *place = Duration::try_from_secs_f64(milliseconds / 1000.0).map_err(text)?;
        Ok(())
    }

    /// Stores a number of microseconds.
    pub fn put_microseconds(&self, place: &mut Duration) -> Stored {
        *place = Duration::from_micros(self.get()?);
        Ok(())
    }

    /// Stores a path, seen from the place where it was set; an empty one as none.
    pub fn put_path(&self, place: &mut Option<PathBuf>) -> Stored {
        *place = self.path();
        Ok(())
    }

    /// Stores a text; an empty one as none.
    pub fn put_word(&self, place: &mut Option<String>) -> Stored {
        let text: String = self.get()?;
        *place = (!text.is_empty()).then_some(text);
        Ok(())
    }

    /// Stores the entries of a map, each as `build` makes it of label, value and setting.
    pub fn put_entries<T: FromValue, Row>(
        &self,
        place: &mut Vec<Row>,
        build: impl Fn(&str, T, &EntrySetting) -> Row,
    ) -> Stored {
        let rows = self.entries.iter().map(|(label, entry)| {
            let value = T::from_value(&entry.value).ok_or_else(|| self.mismatch())?;
            Ok(build(label, value, entry))
        });
        *place = rows.collect::<Result<_, String>>()?;
        Ok(())
    }

    fn mismatch(&self) -> String {
        format!("{} is of another type than the program uses", self.value)
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
