//! What a request's body is about, before it is read as a whole.

use super::Request;
use crate::wire::{Wire as _, WireReader};

impl Request {
    /// Is this the body of one that looks up a single node, or something of it, and changes nothing? Bytes that are no body
    /// are not.
    #[must_use]
    pub fn only_looks_up(body: &[u8]) -> bool {
        let mut input = WireReader::new(body);
        let operation = u64::get(&mut input).and_then(|_id| u16::get(&mut input));
        // Lookup, GetNode, ReadLink, GetXattr, ListXattr.
        matches!(operation, Ok(0x0060 | 0x0061 | 0x0068 | 0x006D | 0x006F))
    }
}

impl Request {
    /// Is this the body of one that the server may keep waiting?
    #[must_use]
    pub fn waits(body: &[u8]) -> bool {
        let mut input = WireReader::new(body);
        let operation = u64::get(&mut input).and_then(|_id| u16::get(&mut input));
        // Recalls.
        matches!(operation, Ok(0x0076))
    }

    /// Whether this is the body of a request for the space of devices.
    #[must_use]
    pub fn reads_space(body: &[u8]) -> bool {
        let mut input = WireReader::new(body);
        let operation = u64::get(&mut input).and_then(|_id| u16::get(&mut input));
        // DiskFree, DeviceList, StatFs.
        matches!(operation, Ok(0x0020 | 0x0021 | 0x0071))
    }
}
