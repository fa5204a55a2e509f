//! What a command does beyond the object that its capability is about: the source of a copy, the operations of REWRITE.
//!
//! Does: ask for the rights that only the continuation segment tells. Does not: run anything.
//! Contract: called under the command's locks, after its own permit, before anything is done.
//! Truth: docs/standards/security.md, extension capabilities; docs/design/security.md 4.7.

use sealstone_crypto::RustCrypto;
use sealstone_osd::capability::Range;
use sealstone_osd::cdb::{Command, pointer};
use sealstone_osd::rewrite::RewriteAction;
use sealstone_osd::{Generation, ObjectType, Permissions};
use sealstone_seal::{Admitted, Denial, Need, Permit};

use crate::continued::Continued;
use crate::device::Device;
use crate::failure::Failure;
use crate::guard::Came;
use crate::report::Refusal;

/// Checks what the segment asks for besides.
pub(crate) fn check(
    device: &Device,
    came: &Came<'_>,
    admitted: &Admitted<RustCrypto>,
    permit: &Permit,
    continued: &Continued,
) -> Result<(), Refusal> {
    match came.cdb.command {
        Command::CopyUserObjects(_) => check_copy(device, came, admitted, permit, continued),
        Command::Rewrite(_) => check_rewrite(device, permit, continued),
        _ => Ok(()),
    }
}

/// The source of a copy is read: its own capability must grant that, proven like the first one.
fn check_copy(
    device: &Device,
    came: &Came<'_>,
    admitted: &Admitted<RustCrypto>,
    permit: &Permit,
    continued: &Continued,
) -> Result<(), Refusal> {
    let segment = &continued.segment;
    let source = segment.copy_source.ok_or(Failure::Field(pointer::CONTINUATION))?;
    let permissions =
        if source.attributes { Permissions::READ | Permissions::GET_ATTR } else { Permissions::READ };
    if admitted.capability().is_none() {
        // NOSEC: nothing is proven anyway.
        return if permit.allows(permissions) { Ok(()) } else { Err(Denial::Permission.into()) };
    }
    let ([capability], [proof]) = (&segment.extensions[..], &segment.proofs[..]) else {
        return Err(if segment.extensions.is_empty() {
            Denial::Permission.into()
        } else {
            Failure::Field(pointer::CONTINUATION).into()
        });
    };
    let verified = device.guard.extend(device, came, capability, proof)?;
    let need = Need {
        generation: Generation::Osd2,
        object: source.object,
        types: &[ObjectType::User],
        subject: source.object,
        permissions,
        // All of it: a capability for some bytes of the object is not enough.
        range: Some(Range { start: 0, length: u64::MAX }),
        scattered: true,
    };
    verified.permit(&need, device)?;
    Ok(())
}

/// Operations that tell or move what is there need READ; those that look at an attribute, the right to it.
fn check_rewrite(device: &Device, permit: &Permit, continued: &Continued) -> Result<(), Refusal> {
    for operation in &continued.segment.rewrite {
        if operation.action.reads() && !permit.allows(Permissions::READ) {
            return Err(Denial::Permission.into());
        }
        if let RewriteAction::CompareAttribute(id) = operation.action {
            permit.check_get(id, device)?;
        }
    }
    Ok(())
}
