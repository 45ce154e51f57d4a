//! What a device was asked in a round, and what it answered.

use accel::{Classification, DeviceError, Sizes};

use super::codec::{Cursor, Malformed, put_bytes, put_json, put_u64, read_json};
use super::settings::SizesForm;

/// A call of a device, with its outcome.
#[derive(Debug)]
pub enum Call {
    /// Polled: no batch was ready.
    Nothing,
    /// Polled: these are the results.
    Results(Vec<Classification>),
    /// Polled: the batch failed.
    Failed(DeviceError),
    /// A batch of so many rows was submitted; `input` is [`hash_of`] them.
    Submitted {
        rows: usize,
        input: u32,
        refused: Option<DeviceError>,
    },
}

/// As `DeviceError` has no equality: the same in the file.
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

/// FNV-1a of a batch's input: enough to notice that a replay submits something else.
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
            2 => Call::Failed(read_error(cursor)?),
            kind @ (3 | 4) => Call::Submitted {
                rows: cursor.u32()? as usize,
                input: cursor.u32()?,
                refused: match kind {
                    4 => Some(read_error(cursor)?),
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
    put_error(out, error);
}

/// [`Call::Submitted`].
pub fn encode_submitted(out: &mut Vec<u8>, rows: usize, input: u32, refused: Option<&DeviceError>) {
    out.push(3 + u8::from(refused.is_some()));
    put_u64(out, rows as u64);
    put_u64(out, input.into());
    if let Some(error) = refused {
        put_error(out, error);
    }
}

fn put_error(out: &mut Vec<u8>, error: &DeviceError) {
    let mut put = |kind: u8, text: &str, numbers: &[u64]| {
        out.push(kind);
        put_bytes(out, text.as_bytes());
        numbers.iter().for_each(|&number| put_u64(out, number));
    };
    match error {
        DeviceError::Busy { device } => put(0, device, &[]),
        DeviceError::Rows {
            device,
            rows,
            sizes,
        } => {
            put(1, device, &[*rows as u64]);
            put_json(out, &SizesForm::from(sizes));
        }
        DeviceError::Run {
            device,
            rows,
            cause,
        } => {
            put(2, device, &[*rows as u64]);
            put_bytes(out, cause.as_bytes());
        }
        DeviceError::Output {
            device,
            rows,
            classes,
            found,
        } => {
            put(3, device, &[*rows as u64, *classes as u64]);
            put_bytes(out, found.as_bytes());
        }
        DeviceError::NotAProbability { row, class, value } => {
            put(4, "", &[*row as u64, *class as u64]);
            out.extend_from_slice(&value.to_le_bytes());
        }
        DeviceError::Gone { device, cause } => {
            put(5, device, &[]);
            put_bytes(out, cause.as_bytes());
        }
    }
}

fn read_error(cursor: &mut Cursor<'_>) -> Result<DeviceError, Malformed> {
    let (kind, device) = (cursor.u8()?, cursor.text()?);
    Ok(match kind {
        0 => DeviceError::Busy { device },
        1 => DeviceError::Rows {
            device,
            rows: cursor.u32()? as usize,
            sizes: Sizes::from(read_json::<SizesForm>(cursor)?),
        },
        2 => DeviceError::Run {
            device,
            rows: cursor.u32()? as usize,
            cause: cursor.text()?,
        },
        3 => DeviceError::Output {
            device,
            rows: cursor.u32()? as usize,
            classes: cursor.u32()? as usize,
            found: cursor.text()?,
        },
        4 => DeviceError::NotAProbability {
            row: cursor.u32()? as usize,
            class: cursor.u32()? as usize,
            value: cursor.f32()?,
        },
        5 => DeviceError::Gone {
            device,
            cause: cursor.text()?,
        },
        kind => {
            return Err(Malformed::new(format!(
                "no error of a device is of the kind {kind}"
            )));
        }
    })
}
