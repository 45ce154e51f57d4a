//! The wire format of protobuf: reads a message as a sequence of fields without knowing their
//! meaning.
//!
//! It accepts less than the C++ implementation that ONNX Runtime uses, and never reads a field
//! differently. Whatever that implementation might understand differently is refused as malformed:
//! a tag of more than 32 bits, which it truncates; a number of more than 64 bits; a group.
//!
//! Source: <https://protobuf.dev/programming-guides/encoding/>

use crate::error::Error;

const MALFORMED: Error = Error::Malformed("its bytes are not protobuf");

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer, a bool or an enum.
    Number(u64),
    /// A string, bytes, a message or packed numbers.
    Bytes(&'a [u8]),
    /// A number of four bytes.
    Fixed32(u32),
    /// A number of eight bytes.
    Fixed64,
}

impl<'a> Value<'a> {
    /// A string, bytes, a message or packed numbers.
    ///
    /// # Errors
    /// The field holds something else.
    pub fn bytes(self) -> Result<&'a [u8], Error> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::Malformed("a field has another type")),
        }
    }

    /// A string in UTF-8.
    ///
    /// # Errors
    /// The field holds something else.
    pub fn text(self) -> Result<&'a str, Error> {
        str::from_utf8(self.bytes()?).map_err(|_| Error::Malformed("a name is not UTF-8"))
    }

    /// An integer.
    ///
    /// # Errors
    /// The field holds something else.
    pub fn number(self) -> Result<i64, Error> {
        match self {
            Self::Number(number) => Ok(number.cast_signed()),
            _ => Err(Error::Malformed("a field has another type")),
        }
    }

    /// Appends the integers of a repeated field: one, or a packed list.
    ///
    /// # Errors
    /// The field holds something else.
    pub fn numbers_into(self, found: &mut Vec<i64>) -> Result<(), Error> {
        match self {
            Self::Bytes(packed) => {
                let mut fields = Fields::new(packed);
                while !fields.0.is_empty() {
                    found.push(fields.number()?.cast_signed());
                }
            }
            one => found.push(one.number()?),
        }
        Ok(())
    }

    /// Appends the floats of a repeated field: one, or a packed list.
    ///
    /// # Errors
    /// The field holds something else.
    pub fn floats_into(self, found: &mut Vec<f32>) -> Result<(), Error> {
        match self {
            Self::Fixed32(bits) => found.push(f32::from_bits(bits)),
            packed => {
                let (floats, []) = packed.bytes()?.as_chunks() else { return Err(MALFORMED) };
                found.extend(floats.iter().map(|&bytes| f32::from_le_bytes(bytes)));
            }
        }
        Ok(())
    }
}

/// Iterates over the fields of a message. It ends after the first error.
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of these bytes.
    pub fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Error> {
        let tag = u32::try_from(self.number()?).map_err(|_| MALFORMED)?;
        let number = tag >> 3;
        if number == 0 {
            return Err(MALFORMED);
        }
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            1 => self.take(8).map(|_| Value::Fixed64)?,
            2 => {
                let length = self.number()?;
                Value::Bytes(self.take(length)?)
            }
            5 => {
                let (bytes, rest) = self.0.split_first_chunk().ok_or(MALFORMED)?;
                self.0 = rest;
                Value::Fixed32(u32::from_le_bytes(*bytes))
            }
            _ => return Err(MALFORMED),
        };
        Ok((number, value))
    }

    /// A number of up to ten bytes with seven bits each, lowest first.
    fn number(&mut self) -> Result<u64, Error> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(MALFORMED)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(MALFORMED);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(MALFORMED)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Error> {
        let length = usize::try_from(length).map_err(|_| MALFORMED)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Error> {
        Fields::new(bytes).collect()
    }

    #[test]
    fn fields_of_all_kinds() {
        let bytes = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 2, b'o', b'k'],
            &[0x19, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x25, 1, 2, 3, 4],
        ]
        .concat();
        let expected = [
            (1, Value::Number(150)),
            (2, Value::Bytes(b"ok")),
            (3, Value::Fixed64),
            (4, Value::Fixed32(0x0403_0201)),
        ];
        assert_eq!(read(&bytes).unwrap(), expected);
        assert_eq!(read(&[]), Ok(vec![]));
    }

    #[test]
    fn lists_are_read_packed_and_one_by_one() {
        let mut found = vec![];
        Value::Number(u64::MAX).numbers_into(&mut found).unwrap();
        Value::Bytes(&[5, 0x96, 1]).numbers_into(&mut found).unwrap();
        assert_eq!(found, [-1, 5, 150]);
        assert!(Value::Bytes(&[0x96]).numbers_into(&mut found).is_err());

        let mut found = vec![];
        Value::Fixed32(0x3f80_0000).floats_into(&mut found).unwrap();
        Value::Bytes(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]).floats_into(&mut found).unwrap();
        assert_eq!(found, [1.0, 1.0, 2.0]);
        assert!(Value::Bytes(&[0; 5]).floats_into(&mut found).is_err());
    }

    #[test]
    fn what_other_readers_might_take_for_something_else_is_refused() {
        let largest = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(read(&largest), Ok(vec![(1, Value::Number(u64::MAX))]));
        let mut beyond = largest;
        beyond[10] = 2;
        for bytes in [
            &beyond[..],
            // Field 14, if the tag is cut to 32 bits.
            &[0xf2, 0x80, 0x80, 0x80, 0x10, 0],
            &[0x00, 0],
            // A group, its end, and kinds that do not exist.
            &[0x0b, 0x0c],
            &[0x0c],
            &[0x0e, 0],
            &[0x0f, 0],
            // Cut short.
            &[0x08],
            &[0x08, 0x80],
            &[0x12, 2, b'o'],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x19, 1, 2, 3, 4, 5, 6, 7],
            &[0x25, 1, 2, 3],
        ] {
            assert!(read(bytes).is_err(), "{bytes:02x?}");
        }
    }
}
