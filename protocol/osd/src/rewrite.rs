//! The operations of REWRITE, our own command: changes to a range of a user object.
//!
//! Does: converts between operations and their 32 bytes; checks the rules that need no object.
//! Does not: run them.
//! Contract: parsed operations stay within the range and within the operands of the command.
//! Source of truth: docs/design/security.md 4.7; `docs/standards/osd.md`, REWRITE.

use alloc::vec::Vec;

use crate::AttributeId;
use crate::bytes::{u8_at, u16_at, u32_at, u64_at};

/// Maximum number of operations of one command.
pub const OPERATIONS_MAX: usize = 1024;
/// Bytes of one operation.
pub const OPERATION_LEN: usize = 32;
/// Maximum length of a range, and of the operands, in bytes.
pub const RANGE_MAX: u32 = 16 << 20;
/// Maximum bytes that the operations of one command touch or read together: the object is locked
/// meanwhile.
pub const OPERATED_MAX: u64 = 64 << 20;
/// Bytes of a digest: SHA-256.
pub const DIGEST_LEN: u32 = 32;

/// One operation on `length` bytes at `offset` of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteOperation {
    /// The action.
    pub action: RewriteAction,
    /// First byte, from the start of the range.
    pub offset: u64,
    /// Bytes that it touches or reads.
    pub length: u32,
    /// Offset of its operand in the command data.
    pub operand: u64,
}

/// The action of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteAction {
    /// Replaces the bytes with the operand.
    Replace,
    /// Exclusive or with the operand.
    Xor,
    /// And with the operand.
    And,
    /// Or with the operand.
    Or,
    /// Adds little-endian numbers of this many bytes (1, 2, 4, 8); a carry out of a number is lost.
    Add(u8),
    /// Repeats the operand of this many bytes (1, 2, 4, 8).
    Fill(u8),
    /// Copies bytes of the range from this offset, as they were before the operation.
    Copy(u64),
    /// Does nothing if the operand equals the bytes; otherwise the command ends and nothing is
    /// done.
    Compare,
    /// Like `Compare`, with the SHA-256 of the bytes.
    CompareDigest,
    /// Like `Compare`, with an attribute of the object; no bytes if it is undefined.
    CompareAttribute(AttributeId),
}

impl RewriteAction {
    /// Whether it is a condition.
    #[must_use]
    pub const fn is_condition(self) -> bool {
        matches!(self, Self::Compare | Self::CompareDigest | Self::CompareAttribute(_))
    }

    /// Whether its outcome reveals or moves existing bytes.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Compare | Self::CompareDigest | Self::Copy(_))
    }

    const fn code(self) -> (u8, u8, u64) {
        match self {
            Self::Replace => (0, 0, 0),
            Self::Xor => (1, 0, 0),
            Self::And => (2, 0, 0),
            Self::Or => (3, 0, 0),
            Self::Add(width) => (4, width, 0),
            Self::Fill(width) => (5, width, 0),
            Self::Copy(from) => (6, 0, from),
            Self::Compare => (7, 0, 0),
            Self::CompareDigest => (8, 0, 0),
            Self::CompareAttribute(id) => (9, 0, (id.page as u64) << 32 | id.number as u64),
        }
    }

    fn parse(code: u8, width: u8, aux: u64) -> Option<Self> {
        let sized = matches!(code, 4 | 5);
        if sized != matches!(width, 1 | 2 | 4 | 8)
            || !sized && width != 0
            || !matches!(code, 6 | 9) && aux != 0
        {
            return None;
        }
        Some(match code {
            0 => Self::Replace,
            1 => Self::Xor,
            2 => Self::And,
            3 => Self::Or,
            4 => Self::Add(width),
            5 => Self::Fill(width),
            6 => Self::Copy(aux),
            7 => Self::Compare,
            8 => Self::CompareDigest,
            9 => {
                let id = AttributeId::new((aux >> 32) as u32, (aux & 0xFFFF_FFFF) as u32);
                if id.is_wildcard() {
                    return None;
                }
                Self::CompareAttribute(id)
            }
            _ => return None,
        })
    }
}

impl RewriteOperation {
    /// Returns the bytes of its operand.
    #[must_use]
    pub const fn operand_len(&self) -> u64 {
        match self.action {
            RewriteAction::Copy(_) => 0,
            RewriteAction::Fill(width) => width as u64,
            RewriteAction::CompareDigest => DIGEST_LEN as u64,
            _ => self.length as u64,
        }
    }

    /// Whether it stays within a range of `range` bytes and `operands` bytes of command data.
    #[must_use]
    pub fn fits(&self, range: u64, operands: u64) -> bool {
        let within = |at: u64, length: u64, all: u64| at.checked_add(length).is_some_and(|end| end <= all);
        let length = u64::from(self.length);
        let place = match self.action {
            // The attribute is not part of the range.
            RewriteAction::CompareAttribute(_) => self.offset == 0,
            RewriteAction::Add(width) | RewriteAction::Fill(width) => {
                within(self.offset, length, range) && length % u64::from(width) == 0
            }
            RewriteAction::Copy(from) => within(self.offset, length, range) && within(from, length, range),
            _ => within(self.offset, length, range),
        };
        place && within(self.operand, self.operand_len(), operands)
    }

    /// Returns the 32 bytes of an operation.
    #[must_use]
    pub fn write(&self) -> [u8; OPERATION_LEN] {
        let (code, width, aux) = self.action.code();
        let mut bytes = [0; OPERATION_LEN];
        bytes[0] = code;
        bytes[1] = width;
        bytes[4..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_be_bytes());
        bytes[16..24].copy_from_slice(&aux.to_be_bytes());
        bytes[24..].copy_from_slice(&self.operand.to_be_bytes());
        bytes
    }

    fn read(entry: &[u8]) -> Option<Self> {
        if u16_at(entry, 2)? != 0 {
            return None;
        }
        Some(Self {
            action: RewriteAction::parse(u8_at(entry, 0)?, u8_at(entry, 1)?, u64_at(entry, 16)?)?,
            length: u32_at(entry, 4)?,
            offset: u64_at(entry, 8)?,
            operand: u64_at(entry, 24)?,
        })
    }
}

/// Parses the operations of a command on a range of `range` bytes with `operands` bytes of command
/// data.
///
/// # Errors
/// The number of the first invalid operation: an unknown one, one that leaves the range or the
/// operands, or one with which they touch more than [`OPERATED_MAX`] bytes together.
pub(crate) fn read(data: &[u8], range: u64, operands: u64) -> Result<Vec<RewriteOperation>, usize> {
    if data.is_empty()
        || !data.len().is_multiple_of(OPERATION_LEN)
        || data.len() / OPERATION_LEN > OPERATIONS_MAX
    {
        return Err(0);
    }
    let mut left = OPERATED_MAX;
    let read = |(number, entry): (usize, &[u8])| {
        let operation = RewriteOperation::read(entry).filter(|operation| operation.fits(range, operands));
        let operation = operation.ok_or(number)?;
        left = left.checked_sub(operation.length.into()).ok_or(number)?;
        Ok(operation)
    };
    data.chunks_exact(OPERATION_LEN).enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_action() -> impl Strategy<Value = RewriteAction> {
        let width = prop_oneof![Just(1_u8), Just(2), Just(4), Just(8)];
        prop_oneof![
            Just(RewriteAction::Replace),
            Just(RewriteAction::Xor),
            Just(RewriteAction::And),
            Just(RewriteAction::Or),
            width.clone().prop_map(RewriteAction::Add),
            width.prop_map(RewriteAction::Fill),
            (0_u64..1000).prop_map(RewriteAction::Copy),
            Just(RewriteAction::Compare),
            Just(RewriteAction::CompareDigest),
            (any::<u32>(), any::<u32>()).prop_map(|(page, number)| RewriteAction::CompareAttribute(
                AttributeId::new(page >> 1, number >> 1)
            )),
        ]
    }

    #[test]
    fn operations_above_the_byte_total_are_refused() {
        let whole =
            RewriteOperation { action: RewriteAction::Fill(8), offset: 0, length: RANGE_MAX, operand: 0 };
        let encoded = |count: usize| -> Vec<u8> { whole.write().repeat(count) };
        assert_eq!(read(&encoded(4), RANGE_MAX.into(), 8).map(|all| all.len()), Ok(4));
        assert_eq!(read(&encoded(5), RANGE_MAX.into(), 8), Err(4));
    }

    proptest! {
        #[test]
        fn operations_read_back_if_they_fit(
            action in any_action(), offset in 0_u64..1000, length in 0_u32..1000, operand in 0_u64..1000,
        ) {
            let operation = RewriteOperation { action, offset, length, operand };
            let read = read(&operation.write(), 1000, 1500);
            prop_assert_eq!(read, if operation.fits(1000, 1500) { Ok(std::vec![operation]) } else { Err(0) });
        }

        #[test]
        fn arbitrary_operations_stay_within_range_and_operands(bytes in proptest::collection::vec(any::<u8>(), 0..200), narrow: bool) {
            let mut bytes = bytes;
            if narrow {
                // Small numbers, so that some fit.
                for entry in bytes.chunks_mut(OPERATION_LEN) {
                    for (at, byte) in entry.iter_mut().enumerate() {
                        if !matches!(at, 7 | 15 | 23 | 31) { *byte = if at == 0 { *byte % 11 } else { 0 }; }
                    }
                }
            }
            if let Ok(operations) = read(&bytes, 300, 300) {
                for operation in operations {
                    prop_assert!(operation.fits(300, 300));
                    prop_assert!(operation.operand + operation.operand_len() <= 300);
                }
            }
        }
    }

    #[test]
    fn first_invalid_operation_is_reported() {
        let sound = RewriteOperation { action: RewriteAction::Replace, offset: 4, length: 4, operand: 0 };
        let with = |change: fn(&mut [u8; OPERATION_LEN])| {
            let mut second = sound.write();
            change(&mut second);
            read(&[sound.write(), second].concat(), 8, 4)
        };
        assert_eq!(with(|_| ()).map(|operations| operations.len()), Ok(2));
        assert_eq!(with(|bytes| bytes[0] = 10), Err(1), "unknown");
        assert_eq!(with(|bytes| bytes[1] = 1), Err(1), "a width where there is none");
        assert_eq!(with(|bytes| bytes[3] = 1), Err(1), "flags");
        assert_eq!(with(|bytes| bytes[7] = 5), Err(1), "beyond the range");
        assert_eq!(with(|bytes| bytes[8] = 0xFF), Err(1), "an offset that overflows");
        assert_eq!(with(|bytes| bytes[31] = 1), Err(1), "beyond the operands");
        assert_eq!(
            with(|bytes| {
                bytes[0] = 4;
                bytes[1] = 3
            }),
            Err(1),
            "a width of 3"
        );
        assert_eq!(
            with(|bytes| {
                bytes[0] = 4;
                bytes[1] = 8
            }),
            Err(1),
            "not a multiple of the width"
        );
        assert_eq!(
            with(|bytes| {
                bytes[0] = 6;
                bytes[23] = 5
            }),
            Err(1),
            "copied from beyond the range"
        );
        assert_eq!(read(&[], 8, 4), Err(0));
        assert_eq!(read(&sound.write().repeat(OPERATIONS_MAX + 1), 8, 4), Err(0));
    }
}
