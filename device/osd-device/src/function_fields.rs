//! Bytes of the continuation segment of EXECUTE FUNCTION that sense data point to.

/// First byte of the data of descriptor FF01h, if it is the first one of the segment.
const REQUEST_AT: u16 = 48;
/// Byte of ENGINE in the segment.
pub(crate) const ENGINE_FIELD: u16 = REQUEST_AT + 2;
/// Byte of CODE DIGEST in the segment.
pub(crate) const DIGEST_FIELD: u16 = REQUEST_AT + 48;
/// Byte of OPERATION in the segment, to which a refusal by the policy points.
pub(crate) const OPERATION_FIELD: u16 = REQUEST_AT + 1;
/// Byte of API VERSION in the segment.
pub(crate) const API_FIELD: u16 = REQUEST_AT + 4;
/// Byte of TIMEOUT in the segment.
pub(crate) const TIMEOUT_FIELD: u16 = REQUEST_AT + 8;
/// Byte of JOB ID in the segment.
pub(crate) const JOB_FIELD: u16 = REQUEST_AT + 32;
