//! The wire format of protobuf: reads a message as a sequence of fields without knowing their
//! meaning.
//!
//! It accepts less than the C++ implementation that ONNX Runtime uses, and never reads a field
//! differently. Whatever that implementation might understand differently is refused as malformed:
//! a tag of more than 32 bits, which it truncates; a number of more than 64 bits; a group.
//!
//! Source: <https://protobuf.dev/programming-guides/encoding/>

/// The bytes are not a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// What a field holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// An integer, a bool or an enum.
    Number(u64),
    /// A string, bytes, a message or packed numbers.
    Bytes(&'a [u8]),
    /// A number of four or eight bytes.
    Fixed,
}

/// Iterates over the fields of a message. It ends after the first error.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let tag = u32::try_from(self.number()?).map_err(|_| Malformed)?;
        let number = tag >> 3;
        if number == 0 {
            return Err(Malformed);
        }
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.number()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok((number, value))
    }

    /// A number of up to ten bytes with seven bits each, lowest first.
    fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Malformed);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

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

    fn read(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
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
            (3, Value::Fixed),
            (4, Value::Fixed),
        ];
        assert_eq!(read(&bytes).unwrap(), expected);
        assert_eq!(read(&[]), Ok(vec![]));
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
            assert_eq!(read(bytes), Err(Malformed), "{bytes:02x?}");
        }
    }
}
