//! RFC 7143 iSCSI, both ends, as sans-I/O state machines.
//!
//! Does: framing, digests, login with CHAP, text negotiation, full feature phase with bidirectional
//! commands and extended CDBs, at error recovery level 0 with one connection per session.
//! Does not: touch sockets, clocks or threads, nor know what a CDB or sense data means.
//! Contract: see [`target_side::TargetConnection`] and [`initiator::InitiatorConnection`].
//! Source of truth: RFC 7143; `docs/standards/iscsi.md` maps clauses to tests and lists our
//! choices.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod buffer;
mod cdb;
pub mod chap;
mod digest;
mod extension;
mod frame;
mod gather;
pub mod initiator;
pub mod limits;
mod parameters;
mod pdu;
mod serial;
pub mod target_side;
mod text;
mod transmit;

pub use buffer::{Buffer, Pool};
pub use cdb::{Cdb, CdbTooLong};
pub use digest::{Crc32c, crc32c_append};
pub use extension::{ExtensionOutcome, ExtensionRefused, LoginExtension, LoginFacts};
pub use frame::FrameError;
pub use gather::Gather;
pub use parameters::{DigestChoice, Parameters, Policy};
pub use text::TextError;

/// SAM task attribute of a command (RFC 7143 §11.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskAttribute {
    /// No attribute given.
    Untagged,
    /// The SIMPLE attribute.
    #[default]
    Simple,
    /// The ORDERED attribute.
    Ordered,
    /// HEAD OF QUEUE.
    HeadOfQueue,
    /// The ACA attribute.
    Aca,
}

impl TaskAttribute {
    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits & 7 {
            0 => Self::Untagged,
            1 => Self::Simple,
            2 => Self::Ordered,
            3 => Self::HeadOfQueue,
            4 => Self::Aca,
            _ => return None,
        })
    }

    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::Untagged => 0,
            Self::Simple => 1,
            Self::Ordered => 2,
            Self::HeadOfQueue => 3,
            Self::Aca => 4,
        }
    }
}

/// One task of one connection; its number is never reused on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u64);

/// Difference to the expected transfer length (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// Exactly the expected length.
    #[default]
    None,
    /// This many bytes less than expected.
    Underflow(u32),
    /// This many bytes did not fit.
    Overflow(u32),
}

impl Residual {
    /// Returns the residual of the initiator's expected length and the logical unit's actual or
    /// wanted length, in bytes.
    pub(crate) fn between(expected: u32, wanted: u64) -> Self {
        let expected = u64::from(expected);
        if wanted > expected {
            Self::Overflow(u32::try_from(wanted - expected).unwrap_or(u32::MAX))
        } else if wanted < expected {
            Self::Underflow(u32::try_from(expected - wanted).unwrap_or(u32::MAX))
        } else {
            Self::None
        }
    }

    /// Returns (overflow bit, underflow bit, count).
    pub(crate) const fn parts(self) -> (bool, bool, u32) {
        match self {
            Self::None => (false, false, 0),
            Self::Underflow(count) => (false, true, count),
            Self::Overflow(count) => (true, false, count),
        }
    }

    pub(crate) const fn from_parts(overflow: bool, underflow: bool, count: u32) -> Self {
        match (overflow, underflow) {
            (true, false) => Self::Overflow(count),
            (false, true) => Self::Underflow(count),
            _ => Self::None,
        }
    }
}
