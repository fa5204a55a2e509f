//! Extension capabilities: rights of one command on further objects, each with its own proof of
//! possession.
//!
//! Does: checks an extension capability of a continuation segment.
//! Does not: decide which one a command needs.
//! Contract: the proof is the request check value of the same CDB under the extension's own
//! capability key (under CAPKEY, that of the nexus's token). The CDB contains the nonce and the
//! first capability, so a proof is valid for one command of one bearer. It cannot serve as a
//! request check value, since a CDB with the extension as its capability differs.
//! Source of truth: docs/standards/security.md, extension capabilities (the standard's text was not
//! available: ours).

use sealstone_osd::capability::Range;
use sealstone_osd::{Capability, CapabilityBytes, Descriptor, SecurityMethod};

use crate::denial::Denial;
use crate::facts::DeviceFacts;
use crate::gate::{Gate, GateRequest, current_under};
use crate::grant::{Permit, RequiredRights, SignedBy, Verified};
use crate::hierarchy::KeySelector;
use crate::icv::IcvKeys;
use crate::provider::{Locks, Provider};

/// An extension capability whose proof was verified, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedExtension {
    capability: Verified<Capability>,
    signed: SignedBy,
    /// The weaker method of both capabilities.
    method: SecurityMethod,
}

impl VerifiedExtension {
    /// Compares the capability with what the command needs of the second object, whose floor may
    /// have been raised. Call it again before each step of a long command, under that object's
    /// lock.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn permit(&self, need: &RequiredRights, facts: &dyn DeviceFacts) -> Result<Permit, Denial> {
        self.capability.check_unfrozen(self.signed, facts)?;
        let permit = self.capability.permit(need, facts)?.under(self.method);
        permit.check_floor(need.object, facts)?;
        Ok(permit)
    }

    /// Checks that it has not expired. Call it together with [`Self::permit`].
    ///
    /// # Errors
    /// [`Denial::Expired`].
    pub fn check_expiry(&self, clock_ms: u64) -> Result<(), Denial> {
        self.capability.check_expiry(clock_ms)
    }

    /// Returns the time at which it expires, milliseconds since 1970; 0 for never.
    #[must_use]
    pub fn expires_ms(&self) -> u64 {
        self.capability.expires_ms
    }

    /// Returns the bytes that it allows; all of them for another type than a user object.
    #[must_use]
    pub fn range(&self) -> Range {
        match self.capability.descriptor {
            Descriptor::User { range, .. } => range,
            Descriptor::None | Descriptor::Partition { .. } | Descriptor::Collection { .. } => Range::ALL,
        }
    }

    /// Returns the key that signed it: [`SignedBy::holds`] applies to it as to the first
    /// capability's key.
    #[must_use]
    pub const fn signed_by(&self) -> SignedBy {
        self.signed
    }
}

impl<P: Provider, L: Locks> Gate<P, L> {
    /// Checks one extension capability of a command that [`Gate::admit`] admitted.
    ///
    /// # Errors
    /// [`Denial`]; the reply is sealed with the keys of the first capability, which was proven.
    pub fn extend(
        &self,
        request: &GateRequest<'_, P>,
        bytes: &CapabilityBytes,
        proof: &[u8],
    ) -> Result<VerifiedExtension, Denial> {
        let cdb = request.cdb;
        let generation = cdb.generation;
        // A sealed one would hide its partition, which selects the key.
        let capability = bytes.parse().map_err(Denial::Capability)?;
        if capability.format != generation || bytes.generation() != generation {
            return Err(Denial::Format);
        }
        if capability.encode() != *bytes {
            return Err(Denial::Reserved);
        }
        let method = capability.method;
        // Its proof can be sniffed where that of a first capability could be, so the floor of the
        // nexus applies too.
        let object = capability.descriptor.allowed();
        let floor = object.map_or(SecurityMethod::AllData, |object| self.object_floor(request, object));
        // Both sign this command: the weaker method counts.
        let first = cdb.capability.clear().map_or(SecurityMethod::NoSec, |first| first.method);
        let weaker = method.min(first);
        if weaker < floor || method == SecurityMethod::NoSec {
            return Err(Denial::BelowFloor { method: weaker, floor });
        }
        let slot = capability.icv_algorithm;
        let algorithm = self
            .policy()
            .slots
            .get(slot)
            .filter(|algorithm| algorithm.hash().tag_len() <= generation.icv_len())
            .ok_or(Denial::Algorithm(slot))?;
        let selector = KeySelector::of_capability(&capability);
        // An unset key costs the same work as a wrong proof.
        let (signing, known) = match request.keys.signing_key(selector) {
            Some(key) => (key, true),
            None => (request.keys.stand_in(), false),
        };
        let key = signing.capability_key(algorithm, bytes, request.keys.system_id());
        let keys = IcvKeys::<P>::new(algorithm, &key, method);
        let expected = if method >= SecurityMethod::CmdRsp {
            let wire = request.bytes.get(..generation.cdb_len()).unwrap_or(&[]);
            keys.request(generation, wire).ok_or(Denial::RequestIcv)?
        } else {
            keys.token(request.nexus.token.as_ref().ok_or(Denial::NoToken)?)
        };
        let field = proof.get(..generation.icv_len()).unwrap_or(&[]);
        if !expected.matches(field) || !known {
            return Err(if known { Denial::RequestIcv } else { Denial::KeyUnknown });
        }
        current_under(&capability, selector, request)?;
        let signed = SignedBy { selector, key: signing.identity() };
        Ok(VerifiedExtension { capability: Verified::by_the_gate(capability), signed, method: weaker })
    }
}
