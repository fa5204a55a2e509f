//! Isolation of concurrent commands.
//!
//! Does: define the supported methods, and the lock scope of a command that uses one.
//! Does not: lock; `locks` does.
//! Contract: commands on one object are always isolated as under STRICT: they hold its lock from
//! the first check to the last attribute. The methods differ for commands on several objects. Under
//! NONE and RANGE each object is consistent, but not all of them at one moment. Under STRICT and
//! FUNCTIONAL nothing else runs in their partition (for the root: on the device).
//! Truth: docs/design/t10-osd.md 1.1, 3.5; docs/standards/device.md (the meaning of the methods is
//! our interpretation).

use sealstone_osd::ObjectId;
use sealstone_osd::cdb::{Cdb, Command, Isolation, Timestamps, pointer};

use crate::failure::OsdFailure;

/// Method of commands that select none, until the attribute is set.
pub(crate) const DEFAULT_METHOD: Isolation = Isolation::Range;
/// Code of [`DEFAULT_METHOD`].
pub(crate) const DEFAULT: u8 = 4;
/// Attribute R+1/111h: one bit per method, from the left: NONE, STRICT, RANGE, FUNCTIONAL.
pub(crate) const SUPPORTED: [u8; 32] = {
    let mut bits = [0; 32];
    bits[0] = 0x40 | 0x20 | 0x08 | 0x04;
    bits
};

/// Returns the method for a value of the default isolation attribute; `None` if unsupported.
pub(crate) fn method(value: &[u8]) -> Option<Isolation> {
    match value {
        [1] => Some(Isolation::None),
        [2] => Some(Isolation::Strict),
        [4] => Some(Isolation::Range),
        [5] => Some(Isolation::Functional),
        _ => None,
    }
}

/// Returns the isolation method of a command.
///
/// # Errors
/// Vendor-specific isolation methods and timestamp controls are not supported.
pub(crate) fn check_options(cdb: &Cdb, default: Isolation) -> Result<Isolation, OsdFailure> {
    if let Timestamps::Vendor(_) = cdb.timestamps {
        return Err(OsdFailure::Field(pointer::TIMESTAMPS));
    }
    match cdb.options.isolation {
        Isolation::Default => Ok(default),
        Isolation::Vendor => Err(OsdFailure::Field(pointer::OPTIONS)),
        method => Ok(method),
    }
}

/// Whether nothing else may run meanwhile. No source defines FUNCTIONAL exactly; STRICT satisfies
/// every interpretation.
pub(crate) fn needs_the_whole(command: &Command, method: Isolation) -> bool {
    matches!(method, Isolation::Strict | Isolation::Functional) && reaches_several(command)
}

/// Whether the command accesses objects other than the one it names.
fn reaches_several(command: &Command) -> bool {
    match command {
        Command::List(list) | Command::ListCollection(list) => list.with_attributes,
        Command::Query(_)
        | Command::GetMemberAttributes(_)
        | Command::SetMemberAttributes(_)
        | Command::RemoveMemberObjects(_)
        | Command::RemoveCollection(_)
        | Command::CreateTrackingCollection(_) => true,
        _ => false,
    }
}

/// Returns the partition whose contents a command changes or lists.
pub(crate) fn container(object: ObjectId) -> Option<ObjectId> {
    (object.partition != 0).then(|| ObjectId::of_partition(object.partition))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_isolation_methods_can_be_set() {
        // Bit n from the left stands for code n.
        for code in 0..8u8 {
            let supported = SUPPORTED[0] & 0x80 >> code != 0;
            assert_eq!(supported, method(&[code]).is_some(), "code {code}");
        }
        assert_eq!(method(&[DEFAULT]), Some(DEFAULT_METHOD));
        assert_eq!(method(&[]), None);
        assert_eq!(method(&[0, 4]), None);
    }
}
