//! Protobuf's wire format: a sequence of numbered fields.

use super::ProtobufError;

/// One field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    pub(super) value: Value<'a>,
}

/// A field's value by wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// Iterates over the fields of a message; ends after the first error.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn field(&mut self) -> Option<Field<'a>> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|n| *n != 0)?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some(Field { number, value })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Field<'a>, ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(ProtobufError::Damaged))
    }
}

/// The numbers of a packed list.
pub(super) fn varints(bytes: &[u8]) -> Result<Vec<u64>, ProtobufError> {
    let mut reader = Reader::new(bytes);
    let mut out = Vec::new();
    while !reader.rest.is_empty() {
        out.push(reader.varint().ok_or(ProtobufError::Damaged)?);
    }
    Ok(out)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn varint(mut value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let low = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                out.push(low);
                return out;
            }
            out.push(low | 0x80);
        }
    }

    #[test]
    fn varints_round_trip_and_end() {
        for value in [0, 1, 127, 128, 300, u64::MAX] {
            assert_eq!(varints(&varint(value)).unwrap(), [value]);
        }
        assert_eq!(varints(&[0x80; 11]), Err(ProtobufError::Damaged));
    }
}
