//! Shared memory between a device and the engine of a function.
//!
//! Does: two sealed memory files with a submission ring, a completion ring, a call descriptor and a
//! heap; the host's side ([`HostRing`]) and the engine's side ([`EngineRing`]).
//! Does not: start processes, or access objects; `sealstone-function-service` does.
//! Contract: the host trusts no byte that the engine writes. It copies each entry once, checks the
//! copy, and does not read the entry again. Every malformed entry is a [`RingViolation`], after
//! which the engine must be killed. No wait of the host is longer than its timeout.
//! Truth: `sealstone-function-abi` has the layout, `docs/reference/function-api.md` the calls.

mod engine;
mod host;
mod memory;
mod process_ring;
mod read_ahead;
mod stream;
mod wait;

pub use engine::{AttachError, EngineRing, RequestTicket};
pub use host::{BeginCallError, HostMemory, HostRing, RingControl, RingOptions, RingRequest, RingViolation};
pub use process_ring::ProcessRing;
pub use stream::StreamId;
