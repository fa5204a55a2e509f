//! The compact protocol of Apache Thrift, in which Parquet files describe themselves.
//!
//! Does: read and write structures as trees, and walk over them without a tree.
//! Contract: a length is compared with the bytes that are left before anything is allocated, and
//! depth and number of values are limited.
//! Source of truth: the compact protocol specification of Apache Thrift.

/// Maximum depth of structures and lists.
const DEPTH_MAX: usize = 32;
/// Maximum number of values in a tree.
const TREE_VALUES_MAX: usize = 1 << 20;
/// Codes of types.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
/// Code of a list in the header of a field.
pub const LIST: u8 = 9;
const SET: u8 = 10;
/// Code of a structure in the header of a field or list.
pub const STRUCT: u8 = 12;

/// Bytes that are not of the protocol, or exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThriftError {
    /// The bytes end within a value.
    #[error("it ends early")]
    Truncated,
    /// A value is not of the protocol.
    #[error("invalid value at byte {0}")]
    Invalid(usize),
    /// Structures are nested too deeply.
    #[error("more than {DEPTH_MAX} levels of structures")]
    Depth,
    /// A tree has too many values.
    #[error("more than {TREE_VALUES_MAX} values")]
    Values,
}

/// Fields of a structure by their numbers.
pub type ThriftFields = Vec<(i16, ThriftValue)>;

/// A value of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThriftValue {
    /// A truth value.
    Bool(bool),
    /// A number, with the code of its type.
    Number(u8, i64),
    /// The bytes of a floating-point number.
    Double([u8; 8]),
    /// Bytes or text.
    Binary(Vec<u8>),
    /// A list, with the code of the type of its elements; a truth value has that of true.
    List(u8, Vec<ThriftValue>),
    /// A structure.
    Struct(ThriftFields),
}

impl ThriftValue {
    /// Returns the number; `None` for another type.
    #[must_use]
    pub const fn number(&self) -> Option<i64> {
        match self {
            Self::Number(_, value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the fields of a structure; `None` for another type.
    #[must_use]
    pub const fn fields(&self) -> Option<&ThriftFields> {
        match self {
            Self::Struct(fields) => Some(fields),
            _ => None,
        }
    }
}

/// Returns a field by its number.
#[must_use]
pub fn field_of(fields: &ThriftFields, number: i16) -> Option<&ThriftValue> {
    fields.iter().find(|(id, _)| *id == number).map(|(_, value)| value)
}

/// Reads values one after the other.
pub struct ThriftReader<'b> {
    bytes: &'b [u8],
    position: usize,
    values: usize,
}

impl<'b> ThriftReader<'b> {
    /// Returns a reader at the start of the bytes.
    #[must_use]
    pub const fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, position: 0, values: 0 }
    }

    /// Returns the number of bytes that were read.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    fn byte(&mut self) -> Result<u8, ThriftError> {
        let byte = *self.bytes.get(self.position).ok_or(ThriftError::Truncated)?;
        self.position += 1;
        Ok(byte)
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], ThriftError> {
        let rest = &self.bytes[self.position..];
        let taken = rest.get(..count).ok_or(ThriftError::Truncated)?;
        self.position += count;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ThriftError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ThriftError::Invalid(self.position))
    }

    fn length(&mut self) -> Result<usize, ThriftError> {
        // Each element has at least one byte.
        let length = usize::try_from(self.varint()?).map_err(|_| ThriftError::Truncated)?;
        if length > self.bytes.len() - self.position { Err(ThriftError::Truncated) } else { Ok(length) }
    }

    /// Reads a number of any size.
    pub fn number(&mut self) -> Result<i64, ThriftError> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Reads the header of a field: its number and the code of its type; `None` at the end of the
    /// structure. `previous` is the number of the field before, 0 at first.
    pub fn field(&mut self, previous: i16) -> Result<Option<(i16, u8)>, ThriftError> {
        let header = self.byte()?;
        if header == 0 {
            return Ok(None);
        }
        let invalid = ThriftError::Invalid(self.position);
        let number = match header >> 4 {
            0 => i16::try_from(self.number()?).map_err(|_| invalid)?,
            step => previous.checked_add(step.into()).ok_or(invalid)?,
        };
        Ok(Some((number, header & 0xf)))
    }

    /// Reads the header of a list: the code of the type of its elements, and their number.
    pub fn list(&mut self) -> Result<(u8, usize), ThriftError> {
        let header = self.byte()?;
        let length = match header >> 4 {
            15 => self.length()?,
            short => usize::from(short),
        };
        if length > self.bytes.len() - self.position {
            return Err(ThriftError::Truncated);
        }
        Ok((header & 0xf, length))
    }

    /// Skips the value of a field.
    pub fn skip(&mut self, code: u8) -> Result<(), ThriftError> {
        self.skip_value(code, 0)
    }

    fn skip_value(&mut self, code: u8, depth: usize) -> Result<(), ThriftError> {
        if depth == DEPTH_MAX {
            return Err(ThriftError::Depth);
        }
        match code {
            TRUE | FALSE => {}
            BYTE => drop(self.byte()?),
            I16 | I32 | I64 => drop(self.varint()?),
            DOUBLE => drop(self.take(8)?),
            BINARY => {
                let length = self.length()?;
                self.take(length)?;
            }
            LIST | SET => {
                let (element, length) = self.list()?;
                for _ in 0..length {
                    match element {
                        TRUE | FALSE => drop(self.byte()?),
                        _ => self.skip_value(element, depth + 1)?,
                    }
                }
            }
            STRUCT => {
                let mut previous = 0;
                while let Some((number, code)) = self.field(previous)? {
                    self.skip_value(code, depth + 1)?;
                    previous = number;
                }
            }
            _ => return Err(ThriftError::Invalid(self.position)),
        }
        Ok(())
    }

    /// Reads a structure as a tree.
    pub fn structure(&mut self) -> Result<ThriftFields, ThriftError> {
        self.structure_at(0)
    }

    fn structure_at(&mut self, depth: usize) -> Result<ThriftFields, ThriftError> {
        let (mut fields, mut previous) = (Vec::new(), 0);
        while let Some((number, code)) = self.field(previous)? {
            fields.push((number, self.value(code, depth + 1)?));
            previous = number;
        }
        Ok(fields)
    }

    fn value(&mut self, code: u8, depth: usize) -> Result<ThriftValue, ThriftError> {
        self.values += 1;
        if self.values > TREE_VALUES_MAX {
            return Err(ThriftError::Values);
        }
        if depth == DEPTH_MAX {
            return Err(ThriftError::Depth);
        }
        Ok(match code {
            TRUE | FALSE => ThriftValue::Bool(code == TRUE),
            BYTE => ThriftValue::Number(BYTE, self.byte()?.cast_signed().into()),
            I16 | I32 | I64 => ThriftValue::Number(code, self.number()?),
            DOUBLE => {
                let bytes = self.take(8)?.try_into().map_err(|_| ThriftError::Truncated)?;
                ThriftValue::Double(bytes)
            }
            BINARY => {
                let length = self.length()?;
                ThriftValue::Binary(self.take(length)?.to_vec())
            }
            LIST | SET => {
                let (element, length) = self.list()?;
                let mut values = Vec::new();
                for _ in 0..length {
                    values.push(match element {
                        TRUE | FALSE => {
                            let is_true = self.byte()? == TRUE;
                            self.values += 1;
                            ThriftValue::Bool(is_true)
                        }
                        _ => self.value(element, depth + 1)?,
                    });
                }
                ThriftValue::List(if element == FALSE { TRUE } else { element }, values)
            }
            STRUCT => ThriftValue::Struct(self.structure_at(depth)?),
            _ => return Err(ThriftError::Invalid(self.position)),
        })
    }
}

fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn push_number(value: i64, out: &mut Vec<u8>) {
    push_varint((value << 1 ^ value >> 63).cast_unsigned(), out);
}

const fn code_of(value: &ThriftValue) -> u8 {
    match value {
        ThriftValue::Bool(true) => TRUE,
        ThriftValue::Bool(false) => FALSE,
        ThriftValue::Number(code, _) => *code,
        ThriftValue::Double(_) => DOUBLE,
        ThriftValue::Binary(_) => BINARY,
        ThriftValue::List(..) => LIST,
        ThriftValue::Struct(_) => STRUCT,
    }
}

/// Appends a structure in the compact protocol.
pub fn write_structure(fields: &ThriftFields, out: &mut Vec<u8>) {
    let mut previous = 0i16;
    for (number, value) in fields {
        match number.checked_sub(previous).filter(|step| (1..=15).contains(step)) {
            Some(step) => out.push((step as u8) << 4 | code_of(value)),
            None => {
                out.push(code_of(value));
                push_number((*number).into(), out);
            }
        }
        previous = *number;
        write_value(value, out);
    }
    out.push(0);
}

fn write_value(value: &ThriftValue, out: &mut Vec<u8>) {
    match value {
        // The header of the field has the value.
        ThriftValue::Bool(_) => {}
        ThriftValue::Number(BYTE, value) => out.push(*value as u8),
        ThriftValue::Number(_, value) => push_number(*value, out),
        ThriftValue::Double(bytes) => out.extend_from_slice(bytes),
        ThriftValue::Binary(bytes) => {
            push_varint(bytes.len() as u64, out);
            out.extend_from_slice(bytes);
        }
        ThriftValue::List(element, values) => {
            match values.len() {
                length @ 0..15 => out.push((length as u8) << 4 | element),
                length => {
                    out.push(0xf0 | element);
                    push_varint(length as u64, out);
                }
            }
            for value in values {
                match value {
                    ThriftValue::Bool(is_true) => out.push(if *is_true { TRUE } else { FALSE }),
                    other => write_value(other, out),
                }
            }
        }
        ThriftValue::Struct(fields) => write_structure(fields, out),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_value() -> impl Strategy<Value = ThriftValue> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(ThriftValue::Bool),
            any::<i8>().prop_map(|value| ThriftValue::Number(BYTE, value.into())),
            any::<i64>().prop_map(|value| ThriftValue::Number(I64, value)),
            any::<[u8; 8]>().prop_map(ThriftValue::Double),
            proptest::collection::vec(any::<u8>(), 0..20).prop_map(ThriftValue::Binary),
            proptest::collection::vec(any::<bool>(), 0..20)
                .prop_map(|list| ThriftValue::List(TRUE, list.into_iter().map(ThriftValue::Bool).collect())),
        ];
        leaf.prop_recursive(3, 20, 6, |inner| {
            prop_oneof![
                proptest::collection::vec((any::<i16>(), inner.clone()), 0..6).prop_map(ThriftValue::Struct),
                proptest::collection::vec((any::<i16>(), inner), 0..20).prop_map(|fields| {
                    let one = |field| ThriftValue::Struct(vec![field]);
                    ThriftValue::List(STRUCT, fields.into_iter().map(one).collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_structure_is_read_again(fields in proptest::collection::vec((any::<i16>(), any_value()), 0..6)) {
            let mut bytes = Vec::new();
            write_structure(&fields, &mut bytes);
            let mut reader = ThriftReader::new(&bytes);
            prop_assert_eq!(reader.structure().unwrap(), fields);
            prop_assert_eq!(reader.position(), bytes.len());
            let mut skipped = ThriftReader::new(&bytes);
            skipped.skip(STRUCT).unwrap();
            prop_assert_eq!(skipped.position(), bytes.len());
        }

        #[test]
        fn arbitrary_structure_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let read = ThriftReader::new(&bytes).structure();
            let skipped = ThriftReader::new(&bytes).skip(STRUCT);
            prop_assert_eq!(read.is_ok(), skipped.is_ok());
        }
    }

    #[test]
    fn lengths_and_depth_are_limited() {
        // A field with a list of 2^40 structures.
        let long = [0x19, 0xfc, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20];
        assert_eq!(ThriftReader::new(&long).structure(), Err(ThriftError::Truncated));
        assert_eq!(ThriftReader::new(&[0x1c; 100]).structure(), Err(ThriftError::Depth));
        assert_eq!(ThriftReader::new(&[0x1c; 100]).skip(STRUCT), Err(ThriftError::Depth));
    }
}
