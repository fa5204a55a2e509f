//! Timestamps that operations update implicitly.
//!
//! Does: the same updates for commands and for functions.
//! Does not: decide whether a command updates any.
//! Contract: the caller has the lock of the object.
//! Truth: docs/design/t10-osd.md 3.5 (timestamps).

use sealstone_osd::attribute::user_timestamps::{ATTRIBUTES_MODIFIED, DATA_MODIFIED};
use sealstone_osd::{AttributeId, ObjectId, ObjectType};

use crate::attributes::rows::{self, page};
use crate::cache::AccessTimes;
use crate::catalog;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::isolation;

/// The events that an operation records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimestampEvents {
    pub(crate) data_modified: bool,
    pub(crate) attributes_modified: bool,
    pub(crate) data_read: bool,
    pub(crate) attributes_read: bool,
}

/// Whether the contents of a partition cannot change, because it is a snapshot.
pub(crate) fn is_read_only(device: &OsdDevice, id: ObjectId) -> bool {
    let partition = device.catalog.partition(id.partition);
    partition.is_some_and(|partition| partition.policy().lineage.is_read_only())
}

/// Whether timestamps of an object are not updated.
pub(crate) fn are_bypassed(device: &OsdDevice, id: ObjectId) -> bool {
    if id.object != 0 && is_read_only(device, id) {
        return true;
    }
    match device.catalog.partition(id.partition) {
        Some(partition) => partition.policy().bypass_timestamps,
        None => device.catalog.root().policy.bypass_timestamps,
    }
}

/// Records events of an object.
pub(crate) fn record(
    device: &OsdDevice,
    id: ObjectId,
    kind: ObjectType,
    events: TimestampEvents,
    now_ms: u64,
) -> Result<(), OsdFailure> {
    let page = rows::base(kind) + page::TIMESTAMPS;
    // The pages of all types have the same numbers.
    let set = |attribute: AttributeId| {
        let attribute = AttributeId::new(page, attribute.number);
        catalog::set(&*device.store, id, attribute, &catalog::time(now_ms))
    };
    if events.data_modified {
        set(DATA_MODIFIED)?;
    }
    if events.attributes_modified {
        set(ATTRIBUTES_MODIFIED)?;
    }
    let accesses = AccessTimes {
        data_ms: events.data_read.then_some(now_ms),
        attributes_ms: events.attributes_read.then_some(now_ms),
        modified_ms: None,
    };
    if accesses == AccessTimes::default() { Ok(()) } else { device.note(id, accesses) }
}

/// Records that an object was added to its container or removed from it.
pub(crate) fn record_population(device: &OsdDevice, id: ObjectId, now_ms: u64) -> Result<(), OsdFailure> {
    match isolation::container(id) {
        Some(container) if !are_bypassed(device, container) => {
            let accesses = AccessTimes { modified_ms: Some(now_ms), ..AccessTimes::default() };
            device.note(container, accesses)
        }
        Some(_) | None => Ok(()),
    }
}
