//! Numbers and texts as bytes: integers as LEB128, signed ones zigzag before.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Bytes that are no event.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Malformed(pub String);

impl Malformed {
    pub fn new(what: impl Into<String>) -> Malformed {
        Malformed(what.into())
    }
}

pub fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn put_i64(out: &mut Vec<u8>, value: i64) {
    put_u64(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// With their number before them.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what the functions above wrote. Never trusts a length.
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    /// Nothing may be left over.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(Malformed::new(format!("{left} bytes too many"))),
        }
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or_else(short)?;
        self.rest = rest;
        Ok(*first)
    }

    /// So many bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.rest.split_first_chunk().ok_or_else(short)?;
        self.rest = rest;
        Ok(*first)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed::new("a number of more than 64 bits"))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let value = self.u64()?;
        u32::try_from(value).map_err(|_| Malformed::new("a number of more than 32 bits"))
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        let value = self.u64()?;
        u16::try_from(value).map_err(|_| Malformed::new("a number of more than 16 bits"))
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        let value = self.u64()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A float's bits, little endian.
    pub fn f32(&mut self) -> Result<f32, Malformed> {
        let bits = self.take(4)?;
        Ok(f32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.count(1)?;
        self.take(count)
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        let text = str::from_utf8(self.bytes()?);
        text.map(str::to_owned)
            .map_err(|_| Malformed::new("a text that is not UTF-8"))
    }

    /// How many elements follow, of `least` bytes each at least: no more than the bytes that are there can hold.
    pub fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u64()?).map_err(|_| short())?;
        match count <= self.rest.len() / least {
            true => Ok(count),
            false => Err(short()),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(short)?;
        self.rest = rest;
        Ok(taken)
    }
}

fn short() -> Malformed {
    Malformed::new("it ends too early")
}

/// Writes a value as JSON text, for rare values with many fields.
pub fn put_json(out: &mut Vec<u8>, value: &impl Serialize) {
    // Numbers, texts, lists, and maps with texts as keys: nothing that JSON cannot say.
    let text = serde_json::to_string(value).unwrap_or_default();
    put_bytes(out, text.as_bytes());
}

/// Reads what [`put_json`] wrote.
pub fn read_json<T: DeserializeOwned>(cursor: &mut Cursor<'_>) -> Result<T, Malformed> {
    serde_json::from_slice(cursor.bytes()?).map_err(|error| Malformed::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(u in any::<u64>(), i in any::<i64>(), text in ".{0,40}") {
            let mut bytes = Vec::new();
            put_u64(&mut bytes, u);
            put_i64(&mut bytes, i);
            put_bytes(&mut bytes, text.as_bytes());
            let mut cursor = Cursor::new(&bytes);
            prop_assert_eq!(cursor.u64(), Ok(u));
            prop_assert_eq!(cursor.i64(), Ok(i));
            prop_assert_eq!(cursor.text(), Ok(text));
            prop_assert_eq!(cursor.end(), Ok(()));
        }
    }

    #[test]
    fn numbers_that_are_too_large_are_refused() {
        assert!(Cursor::new(&[0xff; 20]).u64().is_err());
        let most = [[0xff; 9].as_slice(), &[1]].concat();
        assert_eq!(Cursor::new(&most).u64(), Ok(u64::MAX));
        let more = [[0xff; 9].as_slice(), &[2]].concat();
        assert!(Cursor::new(&more).u64().is_err());
        assert!(Cursor::new(&[0x80, 0x80, 0x04]).u16().is_err());
    }
}
