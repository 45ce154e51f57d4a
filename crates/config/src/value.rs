//! From values of TOML to the types of the fields that hold them.

use accel::Provider;
use packetio::Backend;
use policy::Dscp;
use toml::Value;

/// Types that a value of TOML converts to.
pub trait FromValue: Sized {
    /// `value` in this type; `None` where it is of another.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($Type:ty: $value:ident => $from:expr;)+) => { $(
        impl FromValue for $Type {
            fn from_value($value: &Value) -> Option<$Type> {
                $from
            }
        }
    )+ };
}

from_value! {
    i64: value => value.as_integer();
    u64: value => value.as_integer()?.try_into().ok();
    u32: value => value.as_integer()?.try_into().ok();
    u16: value => value.as_integer()?.try_into().ok();
    u8: value => value.as_integer()?.try_into().ok();
    usize: value => value.as_integer()?.try_into().ok();
    f64: value => value.as_float();
    f32: value => value.as_float().map(|float| float as f32);
    bool: value => value.as_bool();
    String: value => value.as_str().map(str::to_owned);
    &'static Backend: value => Backend::parse(value.as_str()?);
    &'static Provider: value => Provider::parse(value.as_str()?);
    // By its number, which is what a name was turned into when it was checked.
    Dscp: value => Dscp::new(u8::from_value(value)?);
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
