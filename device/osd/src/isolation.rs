//! Isolation: what commands that run at the same time may see of each other.
//!
//! Does: say which methods there are, and what a command that asks for one has to lock.
//! Does not: lock; `locks` does.
//! Contract: commands that address one object are always isolated as STRICT asks: they hold its lock from the first
//! check to the last attribute. The methods differ for commands that reach several objects: under NONE and RANGE each
//! object is seen at rest, but not all of them at one moment; under STRICT and FUNCTIONAL nothing else runs in their partition (of the root: on the device).
//! Truth: docs/design/t10-osd.md 1.1, 3.5; docs/standards/device.md (what the methods mean is our reading).

use sealstone_osd::ObjectId;
use sealstone_osd::cdb::{Cdb, Command, Isolation, Timestamps, pointer};

use crate::failure::Failure;

/// The method of commands that do not say one, until the attribute is set.
pub(crate) const DEFAULT_METHOD: Isolation = Isolation::Range;
/// Its code.
pub(crate) const DEFAULT: u8 = 4;
/// Attribute R+1/111h: a bit for each method, from the left: NONE, STRICT, RANGE, FUNCTIONAL.
pub(crate) const SUPPORTED: [u8; 32] = {
    let mut bits = [0; 32];
    bits[0] = 0x40 | 0x20 | 0x08 | 0x04;
    bits
};

/// The method that a value of the default isolation attribute names; `None` if the device has none of that code.
pub(crate) fn method(value: &[u8]) -> Option<Isolation> {
    match value {
        [1] => Some(Isolation::None),
        [2] => Some(Isolation::Strict),
        [4] => Some(Isolation::Range),
        [5] => Some(Isolation::Functional),
        _ => None,
    }
}

/// The method that a command runs under.
///
/// # Errors
/// The device has no method of its own, and no timestamps control of its own either.
pub(crate) fn check_options(cdb: &Cdb, default: Isolation) -> Result<Isolation, Failure> {
    if let Timestamps::Vendor(_) = cdb.timestamps {
        return Err(Failure::Field(pointer::TIMESTAMPS));
    }
    match cdb.options.isolation {
        Isolation::Default => Ok(default),
        Isolation::Vendor => Err(Failure::Field(pointer::OPTIONS)),
        method => Ok(method),
    }
}

/// Must nothing else run meanwhile? What exactly FUNCTIONAL asks for, no source says; STRICT includes it under any
/// reading.
pub(crate) fn needs_the_whole(command: &Command, method: Isolation) -> bool {
    matches!(method, Isolation::Strict | Isolation::Functional) && reaches_several(command)
}

/// Does it look at objects besides the one it names?
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

/// The partition whose contents a command changes or lists.
pub(crate) fn container(object: ObjectId) -> Option<ObjectId> {
    (object.partition != 0).then(|| ObjectId::of_partition(object.partition))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_supported_methods_are_those_that_can_be_set() {
        // Bit n from the left of the string stands for code n.
        for code in 0..8u8 {
            let supported = SUPPORTED[0] & 0x80 >> code != 0;
            assert_eq!(supported, method(&[code]).is_some(), "code {code}");
        }
        assert_eq!(method(&[DEFAULT]), Some(DEFAULT_METHOD));
        assert_eq!(method(&[]), None);
        assert_eq!(method(&[0, 4]), None);
    }
}
