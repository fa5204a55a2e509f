//! Permission checks of a command beyond its own object: the source of a copy, the second
//! collection of a QUERY or of CREATE USER TRACKING COLLECTION, the operations of REWRITE.
//!
//! Does: check permissions that depend on the continuation segment.
//! Does not: run anything.
//! Contract: called under the command's locks, after its own permit, before anything is done. The
//! result is checked again, under the lock of the second object, before each step of a command that
//! continues.
//! Truth: docs/standards/security.md, extension capabilities; docs/design/security.md 4.7.

use sealstone_crypto::RustCrypto;
use sealstone_osd::capability::Range;
use sealstone_osd::cdb::{BytesNeeded, Command, pointer};
use sealstone_osd::rewrite::RewriteAction;
use sealstone_osd::{Generation, ObjectId, ObjectType, Permissions};
use sealstone_seal::{
    Admitted, Denial, NOT_ENFORCED_WITHOUT_SECURITY, Permit, RequiredRights, VerifiedExtension,
};

use crate::continued::Continued;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::guard::CommandContext;
use crate::report::OsdRefusal;

/// Authority for a second object, from an extension capability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceAccess {
    extended: VerifiedExtension,
    need: RequiredRights,
}

impl SourceAccess {
    /// Checks whether the authority is still valid.
    pub(crate) fn check(&self, device: &OsdDevice) -> Result<(), OsdRefusal> {
        if !device.guard.still_signed(Some(self.extended.signed_by())) {
            return Err(OsdFailure::KeysChanged.into());
        }
        let permit = self.extended.permit(&self.need, device).map_err(OsdRefusal::ExtensionDenied)?;
        if permit.is_for_nothing() {
            // The object is named in the segment, not in the CDB.
            return Err(OsdFailure::Field(pointer::CONTINUATION).into());
        }
        Ok(())
    }
}

/// Checks the authority that the segment requires in addition.
pub(crate) fn check(
    device: &OsdDevice,
    context: &CommandContext<'_>,
    admitted: &Admitted<RustCrypto>,
    permit: &Permit,
    continued: &Continued,
) -> Result<Option<SourceAccess>, OsdRefusal> {
    let need = match context.cdb.command {
        Command::Rewrite(_) => return check_rewrite(device, permit, continued).map(|()| None),
        Command::CopyUserObjects(_) => copied(continued)?,
        // Filling a collection changes what its other readers find in it.
        Command::Query(query) if query.matches != 0 => {
            collection(query.object.partition, query.matches, Permissions::M_OBJECT)
        }
        Command::CreateTrackingCollection(create) if create.source != 0 => {
            collection(create.object.partition, create.source, Permissions::READ)
        }
        _ => return Ok(None),
    };
    extended(device, context, admitted, permit, continued, need)
}

/// The source of a copy is read completely, so a capability for a byte range is not sufficient.
fn copied(continued: &Continued) -> Result<RequiredRights, OsdRefusal> {
    let source = continued.segment.copy_source.ok_or(OsdFailure::Field(pointer::CONTINUATION))?;
    let permissions =
        if source.attributes { Permissions::READ | Permissions::GET_ATTR } else { Permissions::READ };
    Ok(RequiredRights {
        generation: Generation::Osd2,
        object: source.object,
        types: &[ObjectType::User],
        subject: source.object,
        permissions,
        bytes: BytesNeeded::Range(Range { start: 0, length: u64::MAX }),
        scattered: false,
    })
}

/// Returns the need for a second collection of the same partition.
fn collection(partition: u64, number: u64, permissions: Permissions) -> RequiredRights {
    let object = ObjectId::new(partition, number);
    RequiredRights {
        generation: Generation::Osd2,
        object,
        types: &[ObjectType::Collection],
        subject: object,
        permissions,
        bytes: BytesNeeded::None,
        scattered: false,
    }
}

/// Checks the extension capability for a second object, which is authenticated like the first one.
fn extended(
    device: &OsdDevice,
    context: &CommandContext<'_>,
    admitted: &Admitted<RustCrypto>,
    permit: &Permit,
    continued: &Continued,
    need: RequiredRights,
) -> Result<Option<SourceAccess>, OsdRefusal> {
    if admitted.capability().is_none() {
        // NOSEC: nothing is authenticated anyway, but the object may require that it is.
        permit.check_floor(need.object, device)?;
        let required = need.permissions.without(NOT_ENFORCED_WITHOUT_SECURITY);
        return if permit.allows(required) { Ok(None) } else { Err(Denial::Permission.into()) };
    }
    let segment = &continued.segment;
    let ([capability], [proof]) = (&segment.extensions[..], &segment.proofs[..]) else {
        return Err(if segment.extensions.is_empty() {
            OsdRefusal::ExtensionDenied(Denial::Permission)
        } else {
            OsdFailure::Field(pointer::CONTINUATION).into()
        });
    };
    let extended =
        device.guard.extend(device, context, capability, proof).map_err(OsdRefusal::ExtensionDenied)?;
    let source_access = SourceAccess { extended, need };
    source_access.check(device)?;
    Ok(Some(source_access))
}

/// Operations that return or move existing data need READ; those that read an attribute need
/// permission for it.
fn check_rewrite(device: &OsdDevice, permit: &Permit, continued: &Continued) -> Result<(), OsdRefusal> {
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
