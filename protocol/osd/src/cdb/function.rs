//! EXECUTE FUNCTION: runs a function object beside the data (our own command, OSD-2 only).
//!
//! Source of truth: `docs/standards/active.md`.

use super::error::{CdbError, Fault};
use super::operands::{Operands, object_of, set_object};
use super::pointer;
use super::wire::{CdbWire, GenericOperands};
use crate::ObjectId;
use crate::function::{REPLY_HEADER_LEN, REPLY_MAX};

/// Operands of EXECUTE FUNCTION; the request is in the continuation segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecuteFunction {
    /// The function object.
    pub object: ObjectId,
    /// ALLOCATION LENGTH: maximum bytes of the reply, [`REPLY_HEADER_LEN`] to [`REPLY_MAX`].
    pub allocation: u32,
}

impl Operands for ExecuteFunction {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let bounds = REPLY_HEADER_LEN as u64..=REPLY_MAX as u64;
        let wrong = CdbError::Field { at: pointer::length(wire.generation), fault: Fault::Length };
        let length = Some(wire.generic().length).filter(|length| bounds.contains(length)).ok_or(wrong)?;
        Ok(Self { object: object_of(wire), allocation: u32::try_from(length).map_err(|_| wrong)? })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        wire.set_generic(GenericOperands { length: self.allocation.into(), ..GenericOperands::default() });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn sizes(&self) -> (u64, u64) {
        (0, self.allocation.into())
    }
}
