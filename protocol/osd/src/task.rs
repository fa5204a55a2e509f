//! PERFORM TASK MANAGEMENT FUNCTION: its functions, and its response (OSD-2 §6.16).

use sealstone_scsi::SenseKey;

use crate::bytes::u16_at;

/// A task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskFunction {
    /// ABORT TASK.
    AbortTask = 0x01,
    /// ABORT TASK SET.
    AbortTaskSet = 0x02,
    /// CLEAR TASK SET.
    ClearTaskSet = 0x04,
    /// LOGICAL UNIT RESET.
    LogicalUnitReset = 0x08,
    /// I_T NEXUS RESET.
    NexusReset = 0x10,
    /// CLEAR ACA.
    ClearAca = 0x40,
    /// QUERY TASK.
    QueryTask = 0x80,
    /// QUERY TASK SET.
    QueryTaskSet = 0x81,
    /// QUERY UNIT ATTENTION.
    QueryUnitAttention = 0x82,
}

impl TaskFunction {
    /// Returns the function of a wire byte; `None` for a reserved one.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x01 => Self::AbortTask,
            0x02 => Self::AbortTaskSet,
            0x04 => Self::ClearTaskSet,
            0x08 => Self::LogicalUnitReset,
            0x10 => Self::NexusReset,
            0x40 => Self::ClearAca,
            0x80 => Self::QueryTask,
            0x81 => Self::QueryTaskSet,
            0x82 => Self::QueryUnitAttention,
            _ => return None,
        })
    }
}

/// SERVICE RESPONSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ServiceResponse {
    /// FUNCTION COMPLETE.
    Complete = 0x00,
    /// FUNCTION SUCCEEDED.
    Succeeded = 0x05,
    /// FUNCTION REJECTED.
    Rejected = 0x08,
    /// INCORRECT LOGICAL UNIT NUMBER.
    IncorrectLun = 0x09,
}

/// Bytes of the response.
pub const RESPONSE_LEN: usize = 8;
/// ADDITIONAL LENGTH: bytes after the field.
const ADDITIONAL: u16 = 6;

/// The response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskResponse {
    /// The outcome.
    pub response: ServiceResponse,
    /// UADE DEPTH with QUERY UNIT ATTENTION, two bits.
    pub attention_depth: u8,
    /// Sense key of the unit attention, else NO SENSE.
    pub key: SenseKey,
    /// Its ASC and ASCQ.
    pub code: [u8; 2],
}

impl TaskResponse {
    /// Returns the response to all functions but QUERY UNIT ATTENTION.
    #[must_use]
    pub const fn new(response: ServiceResponse) -> Self {
        Self { response, attention_depth: 0, key: SenseKey::NoSense, code: [0, 0] }
    }

    /// Returns the wire form.
    #[must_use]
    pub const fn encode(&self) -> [u8; RESPONSE_LEN] {
        let [high, low] = ADDITIONAL.to_be_bytes();
        let attention = (self.attention_depth & 0x03) << 4 | self.key.nibble();
        [high, low, 0, 0, self.response as u8, attention, self.code[0], self.code[1]]
    }

    /// Parses a response; `None` if it is truncated, or a code is reserved.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if u16_at(bytes, 0)? < ADDITIONAL {
            return None;
        }
        let &[_, _, _, _, response, attention, asc, ascq] = bytes.first_chunk()?;
        let response = match response {
            0x00 => ServiceResponse::Complete,
            0x05 => ServiceResponse::Succeeded,
            0x08 => ServiceResponse::Rejected,
            0x09 => ServiceResponse::IncorrectLun,
            _ => return None,
        };
        let key = SenseKey::from_nibble(attention)?;
        Some(Self { response, attention_depth: attention >> 4 & 0x03, key, code: [asc, ascq] })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_read_back() {
        let response = ServiceResponse::Succeeded;
        let answer =
            TaskResponse { response, attention_depth: 2, key: SenseKey::UnitAttention, code: [0x29, 0] };
        assert_eq!(answer.encode(), [0, 6, 0, 0, 5, 0x26, 0x29, 0]);
        assert_eq!(TaskResponse::parse(&answer.encode()), Some(answer));
    }

    #[test]
    fn every_function_round_trips() {
        assert_eq!(
            (0..=u8::MAX)
                .filter(|byte| TaskFunction::from_byte(*byte).is_some_and(|one| one as u8 == *byte))
                .count(),
            9
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let _ = TaskResponse::parse(&bytes);
        }
    }
}
