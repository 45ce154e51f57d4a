//! How types of other crates are written: their fields, as serde's derive needs them.

use cring::Feature;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A module for serde's `with`: a field is written as another type, and read back from it.
macro_rules! written_as {
    ($module:ident, $type:ty as $form:ty, $write:expr, $read:expr) => {
        mod $module {
            use super::*;

            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$type) -> $form = $write;
                write(value).serialize(to)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let read: fn($form) -> $type = $read;
                <$form>::deserialize(from).map(read)
            }
        }
    };
}

/// The same for a list whose items have a form.
macro_rules! list {
    ($module:ident, $type:ty, $form:literal) => {
        mod $module {
            use super::*;

            #[derive(Serialize, Deserialize)]
            struct Item(#[serde(with = $form)] $type);

            pub fn serialize<S: Serializer>(list: &[$type], to: S) -> Result<S::Ok, S::Error> {
                to.collect_seq(list.iter().cloned().map(Item))
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<$type>, D::Error> {
                let items = Vec::<Item>::deserialize(from)?;
                Ok(items.into_iter().map(|item| item.0).collect())
            }
        }
    };
}

mod flow;
mod task;

pub use flow::{ActionForm, FlowConfigForm, FlowSettingsForm};
pub use task::{DeviceFacts, DeviceFailure, ModelSwap, TaskConfig, TaskStart, TaskSwap};

list!(features, Feature, "FeatureForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "Feature", rename_all = "snake_case")]
enum FeatureForm {
    SignedLength,
    PayloadLength,
    InterArrival,
    TcpFlags,
}
