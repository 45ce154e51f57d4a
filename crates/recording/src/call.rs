//! Calls of a device in a round, and its answers.

use accel::{Classification, DeviceError};

use super::codec::{Cursor, Malformed, put_json, put_u64, read_json};
use super::settings::{ReadError, WrittenError};

/// A call of a device, with its outcome.
#[derive(Debug)]
pub enum Call {
    /// Polled: no batch was ready.
    Nothing,
    /// Polled: these are the results.
    Results(Vec<Classification>),
    /// Polled: the batch failed.
    Failed(DeviceError),
    /// A batch of so many rows was submitted; `input` is [`hash_of`] its rows.
    Submitted {
        rows: usize,
        input: u32,
        refused: Option<DeviceError>,
    },
}

/// Two calls are equal if their bytes in the file are: `DeviceError` has no equality.
impl PartialEq for Call {
    fn eq(&self, other: &Call) -> bool {
        let bytes = |call: &Call| {
            let mut bytes = Vec::new();
            call.encode(&mut bytes);
            bytes
        };
        bytes(self) == bytes(other)
    }
}

/// FNV-1a of a batch's input: enough to notice that a replay submits other series.
pub fn hash_of(input: &[f32]) -> u32 {
    input.iter().fold(0x811c_9dc5, |hash, value| {
        (hash ^ value.to_bits()).wrapping_mul(0x0100_0193)
    })
}

impl Call {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Call::Nothing => out.push(0),
            Call::Results(results) => encode_results(out, results),
            Call::Failed(error) => encode_failed(out, error),
            Call::Submitted {
                rows,
                input,
                refused,
            } => encode_submitted(out, *rows, *input, refused.as_ref()),
        }
    }

    pub fn read(cursor: &mut Cursor<'_>) -> Result<Call, Malformed> {
        Ok(match cursor.u8()? {
            0 => Call::Nothing,
            1 => {
                let results = (0..cursor.count(5)?).map(|_| {
                    Ok(Classification {
                        class: cursor.u16()?,
                        confidence: cursor.f32()?,
                    })
                });
                Call::Results(results.collect::<Result<_, Malformed>>()?)
            }
            2 => Call::Failed(read_json::<ReadError>(cursor)?.0),
            kind @ (3 | 4) => Call::Submitted {
                rows: cursor.u32()? as usize,
                input: cursor.u32()?,
                refused: match kind {
                    4 => Some(read_json::<ReadError>(cursor)?.0),
                    _ => None,
                },
            },
            kind => {
                return Err(Malformed::new(format!(
                    "no call of a device is of the kind {kind}"
                )));
            }
        })
    }
}

/// [`Call::Results`], from where they lie.
pub fn encode_results(out: &mut Vec<u8>, results: &[Classification]) {
    out.push(1);
    put_u64(out, results.len() as u64);
    for result in results {
        put_u64(out, result.class.into());
        out.extend_from_slice(&result.confidence.to_le_bytes());
    }
}

/// [`Call::Failed`].
pub fn encode_failed(out: &mut Vec<u8>, error: &DeviceError) {
    out.push(2);
    put_json(out, &WrittenError(error));
}

/// [`Call::Submitted`].
pub fn encode_submitted(out: &mut Vec<u8>, rows: usize, input: u32, refused: Option<&DeviceError>) {
    out.push(3 + u8::from(refused.is_some()));
    put_u64(out, rows as u64);
    put_u64(out, input.into());
    if let Some(error) = refused {
        put_json(out, &WrittenError(error));
    }
}
