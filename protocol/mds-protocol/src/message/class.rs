//! Classifies a request by its operation number, before the body is decoded, so that the server can
//! choose where to run it: at once, as a request that waits, or after refreshing device capacities.

use super::Request;
use crate::wire::{Wire as _, WireReader};

impl Request {
    /// Whether the body is a request that reads a single node and changes nothing. False for bytes
    /// that are not a request.
    #[must_use]
    pub fn only_looks_up(body: &[u8]) -> bool {
        let mut input = WireReader::new(body);
        let operation = u64::get(&mut input).and_then(|_id| u16::get(&mut input));
        // Lookup, GetNode, ReadLink, GetXattr, ListXattr.
        matches!(operation, Ok(0x0060 | 0x0061 | 0x0068 | 0x006D | 0x006F))
    }
}

impl Request {
    /// Whether the body is a request that the server may keep pending.
    #[must_use]
    pub fn waits(body: &[u8]) -> bool {
        let mut input = WireReader::new(body);
        let operation = u64::get(&mut input).and_then(|_id| u16::get(&mut input));
        // The number of the request Recalls.
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
