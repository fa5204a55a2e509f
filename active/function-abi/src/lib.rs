//! The interface between a function and the device that runs it.
//!
//! Does: the [table of calls](CALLS), from which the C header and the reference page are generated;
//! the layout of the shared memory, its ring entries and the call descriptor; limits and error
//! numbers.
//! Does not: map memory or run anything; `sealstone-function-ring` does.
//! Contract: all numbers are little-endian, and all references are offsets. Arbitrary bytes parse
//! to a value within every limit, or to an [`EntryError`] or [`DescriptorError`].
//! Truth: `docs/reference/function-api.md`, generated from the table.

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod call;
mod descriptor;
mod entry;
mod errno;
#[cfg(test)]
mod header;
pub mod layout;
pub mod limits;

pub use call::{
    CALLS, CallCode, CallParameter, CallTransport, FunctionCallRow, ParameterKind, ReturnKind, find_call,
};
pub use descriptor::{
    CallDescriptor, DescriptorError, DescriptorPart, GUEST_CALL_BYTES, GUEST_OBJECT_BYTES, GuestCall,
    GuestObject, ObjectKind, ObjectRights, OwnedCallDescriptor,
};
pub use entry::{CompletionEntry, EntryError, HeapRange, RequestBody, RingCompletion, SubmissionEntry};
pub use errno::CallErrno;

/// Major version of the interface: incompatible versions differ here.
pub const API_MAJOR: u16 = 1;
/// Minor version of the interface: later ones only add calls.
pub const API_MINOR: u16 = 1;
