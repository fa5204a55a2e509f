//! The gate of a device: checks a command in a fixed order before any other code sees it.
//!
//! Does: policy floor, key, check value, freshness, in that order; returns [`Admitted`].
//! Does not: parse the CDB, access objects, or check what the capability allows;
//! [`Admitted::permit`] does that, under the object's lock.
//! Contract: whether to check follows from the device's own policy, never from a field of the CDB.
//! No cache entry is made, and nothing else changes, before the check value matched.
//! Source of truth: docs/design/security.md 1.4, 3.3, 4.4; `docs/standards/security.md` maps each
//! step to its test.

use alloc::boxed::Box;
use alloc::sync::Arc;

use sealstone_osd::capability::offset;
use sealstone_osd::cdb::{Action, DhStep, KeyToSet};
use sealstone_osd::{Capability, Cdb, Command, ObjectId, Permissions, SecurityMethod};

use crate::algorithm::AlgorithmSlots;
use crate::cache::{CREDENTIALS_MAX, CredentialCache, ProvenCredential};
use crate::cover::DataLocation;
use crate::denial::Denial;
use crate::facts::DeviceFacts;
use crate::freshness::{CredentialId, NonceLimits, NonceMemory};
use crate::grant::{AdmissionBasis, Admitted, SignedBy, Verified};
use crate::hierarchy::{FACTORY_KEY_VERSION, KeyHierarchy, KeyIdentity, KeySelector};
use crate::icv::{IcvKeys, SecurityToken};
use crate::keyed_hash::KeyedHash;
use crate::nonce::Nonce;
use crate::provider::{Locks, Provider, Random};
use crate::reply::ReplySeal;
use crate::sealed;

/// Settings of the administrator of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatePolicy {
    /// The algorithm slots.
    pub slots: AlgorithmSlots,
    /// Accepts NOSEC where the attributes allow it; without this no floor is ever NOSEC.
    /// `--insecure-nosec`.
    pub insecure_nosec: bool,
    /// Accepts CAPKEY on a nexus without a secure channel, where its token can be sniffed.
    pub insecure_capkey: bool,
    /// Minimum method of any command, whatever the attributes say. It can only raise the floor.
    pub least: SecurityMethod,
    /// Requires sealed capabilities for commands that a working key signs.
    pub sealed_only: bool,
    /// Number of cached credentials.
    pub credentials: usize,
    /// Limits of the nonce memory.
    pub nonces: NonceLimits,
}

impl Default for GatePolicy {
    fn default() -> Self {
        Self {
            slots: AlgorithmSlots::DEFAULT,
            insecure_nosec: false,
            insecure_capkey: false,
            least: SecurityMethod::NoSec,
            sealed_only: false,
            credentials: CREDENTIALS_MAX,
            nonces: NonceLimits::default(),
        }
    }
}

/// Properties of the nexus of a command that the gate checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NexusSecurity {
    /// The security token in VPD page B1h; drawn at random for every nexus.
    pub token: Option<SecurityToken>,
    /// Whether the connection is inside TLS.
    pub secure_channel: bool,
}

/// One command at the gate.
pub struct GateRequest<'a, P: Provider> {
    /// The CDB, parsed from `bytes`.
    pub cdb: &'a Cdb,
    /// The bytes of the CDB as received, with or without transport padding.
    pub bytes: &'a [u8],
    /// The nexus of the command.
    pub nexus: &'a NexusSecurity,
    /// The device's clock, milliseconds since 1970-01-01 UT.
    pub clock_ms: u64,
    /// The device's boot epoch.
    pub boot_epoch: u16,
    /// The device's keys.
    pub keys: &'a KeyHierarchy<P>,
    /// The device's information about its objects.
    pub facts: &'a dyn DeviceFacts,
}

/// A refusal, and the means to seal its reply so that the client can verify it.
pub struct GateRefusal<P: Provider> {
    /// The reason.
    pub denial: Denial,
    /// Seals the reply; does nothing if possession of the credential was not proven.
    pub reply: ReplySeal<P>,
}

impl<P: Provider> From<Denial> for GateRefusal<P> {
    fn from(denial: Denial) -> Self {
        Self { denial, reply: ReplySeal::open() }
    }
}

/// The gate of one device; shared by all its threads.
pub struct Gate<P: Provider, L: Locks> {
    policy: GatePolicy,
    hash: KeyedHash,
    cache: CredentialCache<P, L>,
    nonces: NonceMemory<L>,
}

impl<P: Provider, L: Locks> Gate<P, L> {
    /// Creates a gate with empty memories. `lease_ms` is the nonce lease last persisted, 0 for a
    /// new device; see [`NonceMemory::new`].
    #[must_use]
    pub fn new(policy: GatePolicy, lease_ms: u64, random: &mut dyn Random) -> Self {
        let mut draw = || {
            let mut seed = [0; 16];
            random.fill(&mut seed);
            seed
        };
        Self {
            policy,
            hash: KeyedHash::new(&draw()),
            cache: CredentialCache::new(policy.credentials),
            nonces: NonceMemory::new(policy.nonces, &draw(), lease_ms),
        }
    }

    /// Returns the nonce memory, for its lease and for metrics.
    #[must_use]
    pub const fn nonces(&self) -> &NonceMemory<L> {
        &self.nonces
    }

    /// Returns the credential cache, for metrics.
    #[must_use]
    pub const fn credentials(&self) -> &CredentialCache<P, L> {
        &self.cache
    }

    /// Returns the administrator's settings.
    #[must_use]
    pub const fn policy(&self) -> &GatePolicy {
        &self.policy
    }

    /// Checks one command: steps 2 to 6 of the order of checks, and the time-dependent part of step
    /// 8.
    ///
    /// # Errors
    /// [`GateRefusal`]; nothing changed except, where the nonce was fresh, the nonce memory.
    pub fn admit(&self, request: &GateRequest<'_, P>) -> Result<Admitted<P>, GateRefusal<P>> {
        let cdb = request.cdb;
        let method = claimed_method(cdb)?;
        let floor = self.floor(request);
        if method < floor {
            return Err(Denial::BelowFloor { method, floor }.into());
        }
        if self.policy.sealed_only && !cdb.capability.is_sealed() && is_signed_by_working_key(&cdb.command) {
            return Err(Denial::Seal.into());
        }
        if method == SecurityMethod::NoSec {
            // Reached only if the device's own floor is NOSEC.
            let permissions = if cdb.capability.is_sealed() {
                unseal(request)?.permissions
            } else {
                claimed_permissions(cdb)
            };
            return Ok(Admitted::new(AdmissionBasis::Unsecured(permissions), None, ReplySeal::open()));
        }
        let (proven, capability) = self.prove(request)?;
        let nonce = Nonce(cdb.security.nonce);
        let reply =
            ReplySeal::sealed(Arc::clone(&proven), cdb.generation, method, nonce, DataLocation::of(cdb));
        let refuse = |denial| GateRefusal { denial, reply: reply.clone() };
        if method >= SecurityMethod::CmdRsp {
            self.nonces
                .admit(proven.id(), &nonce, request.clock_ms)
                .map_err(|error| refuse(Denial::of_nonce(error, request.clock_ms)))?;
        }
        current(&capability, request).map_err(refuse)?;
        let signed = SignedBy { selector: selector(&cdb.command, capability.key_version), key: proven.key() };
        Ok(Admitted::new(AdmissionBasis::Proven(Verified::by_the_gate(capability)), Some(signed), reply))
    }

    /// Step 3: returns the minimum method that policy accepts for this command.
    fn floor(&self, request: &GateRequest<'_, P>) -> SecurityMethod {
        let command = &request.cdb.command;
        let object = self.object_floor(request, command.object());
        object.max(command_floor(command, self.policy.insecure_nosec))
    }

    /// Returns the minimum method that policy accepts for an object, whatever the command does.
    pub(crate) fn object_floor(&self, request: &GateRequest<'_, P>, object: ObjectId) -> SecurityMethod {
        let nexus = self.nexus_floor(request.nexus);
        nexus.max(request.facts.floor(object)).max(self.policy.least)
    }

    /// Returns the minimum method that policy accepts on this nexus.
    const fn nexus_floor(&self, nexus: &NexusSecurity) -> SecurityMethod {
        match (nexus.secure_channel, self.policy.insecure_nosec) {
            (_, true) => SecurityMethod::NoSec,
            (true, false) => SecurityMethod::CapKey,
            (false, false) if self.policy.insecure_capkey => SecurityMethod::CapKey,
            (false, false) => SecurityMethod::CmdRsp,
        }
    }

    /// Steps 2 and 5: capability shape, algorithm, key, check value.
    fn prove(&self, request: &GateRequest<'_, P>) -> Result<(Arc<ProvenCredential<P>>, Capability), Denial> {
        let cdb = request.cdb;
        let bytes = &cdb.capability;
        let clear = bytes.clear().map_err(Denial::Capability)?;
        let parsed = if bytes.is_sealed() {
            None
        } else {
            let capability = bytes.parse().map_err(Denial::Capability)?;
            if capability.format != cdb.generation {
                return Err(Denial::Format);
            }
            Some(capability)
        };
        if bytes.generation() != cdb.generation {
            return Err(Denial::Format);
        }
        let slot = clear.icv_algorithm;
        let algorithm = self
            .policy
            .slots
            .get(slot)
            .filter(|algorithm| algorithm.hash().tag_len() <= cdb.generation.icv_len())
            .ok_or(Denial::Algorithm(slot))?;
        // An unset key costs the same work as a wrong check value: the master key is used instead
        // and cannot match.
        let selector = selector(&cdb.command, clear.key_version);
        let (signing, known) = match request.keys.signing_key(selector) {
            Some(key) => (key, true),
            None => (request.keys.stand_in(), false),
        };
        let id = self.credential_id(bytes, signing.identity());
        let cached = self.cache.get(id, bytes, signing.identity());
        let (proven, fresh) = match cached {
            Some(proven) => (proven, false),
            None => {
                let unsealed = match parsed {
                    Some(capability) if capability.encode() != *bytes => return Err(Denial::Reserved),
                    Some(_) => None,
                    None => Some(Box::new(unseal(request)?)),
                };
                let key = signing.capability_key(algorithm, bytes, request.keys.system_id());
                let keys = IcvKeys::new(algorithm, &key, clear.method);
                (Arc::new(ProvenCredential::new(*bytes, unsealed, signing.identity(), id, keys)), true)
            }
        };
        let expected = match clear.method {
            SecurityMethod::NoSec | SecurityMethod::CapKey => {
                proven.keys.token(request.nexus.token.as_ref().ok_or(Denial::NoToken)?)
            }
            SecurityMethod::CmdRsp | SecurityMethod::AllData => {
                let wire = request.bytes.get(..cdb.generation.cdb_len()).unwrap_or(&[]);
                proven.keys.request(cdb.generation, wire).ok_or(Denial::RequestIcv)?
            }
        };
        if !expected.matches(&cdb.security.request_icv[..cdb.generation.icv_len()]) {
            return Err(if known { Denial::RequestIcv } else { Denial::KeyUnknown });
        }
        if !known {
            return Err(Denial::KeyUnknown);
        }
        if fresh {
            self.cache.insert(Arc::clone(&proven));
        }
        let capability = parsed.or_else(|| proven.unsealed()).ok_or(Denial::Seal)?;
        Ok((proven, capability))
    }

    fn credential_id(&self, capability: &[u8], key: KeyIdentity) -> CredentialId {
        let mut input = [0; KeyIdentity::LEN + 104];
        let (head, tail) = input.split_at_mut(KeyIdentity::LEN);
        head.copy_from_slice(&key.0);
        tail[..capability.len()].copy_from_slice(capability);
        CredentialId(self.hash.hash(&input[..KeyIdentity::LEN + capability.len()]))
    }
}

/// Decrypts a sealed capability, if it was sealed by the key that signs for this command. The
/// method is inside.
fn unseal<P: Provider>(request: &GateRequest<'_, P>) -> Result<Capability, Denial> {
    let bytes = &request.cdb.capability;
    let version = bytes.clear().map_err(Denial::Capability)?.key_version;
    match request.keys.signing_key(selector(&request.cdb.command, version)) {
        Some(key) => sealed::open(bytes, key, request.keys.system_id()).ok_or(Denial::Seal),
        // Costs the same work as a wrong key.
        None => {
            sealed::open(bytes, request.keys.stand_in(), request.keys.system_id());
            Err(Denial::KeyUnknown)
        }
    }
}

/// Whether a working key of some version signs the capabilities of this command.
fn is_signed_by_working_key(command: &Command) -> bool {
    matches!(selector(command, FACTORY_KEY_VERSION), KeySelector::Working { .. })
}

/// Returns the method nibble of the capability, whatever the rest of it says.
fn claimed_method(cdb: &Cdb) -> Result<SecurityMethod, Denial> {
    let byte = cdb.capability.get(usize::from(offset::METHOD)).copied().unwrap_or(0);
    SecurityMethod::from_nibble(byte)
        .ok_or(Denial::Capability(sealstone_osd::CapabilityError::Method(byte & 0x0F)))
}

/// Returns the unproven permission bits of a NOSEC capability. Open-osd fills in these, and no
/// other field correctly.
fn claimed_permissions(cdb: &Cdb) -> Permissions {
    let at = usize::from(offset::PERMISSIONS);
    let bits = cdb.capability.get(at..).and_then(|rest| rest.first_chunk()).copied();
    bits.map_or(Permissions::NONE, Permissions::from_bytes)
}

/// Returns the minimum method of commands that change keys or partitions or run code. With
/// `--insecure-nosec` only the key commands have one: open-osd formats over NOSEC.
const fn command_floor(command: &Command, insecure_nosec: bool) -> SecurityMethod {
    match command.action() {
        Action::SetKey | Action::SetMasterKey => SecurityMethod::CmdRsp,
        Action::FormatOsd
        | Action::CreatePartition
        | Action::RemovePartition
        | Action::CreateSnapshot
        | Action::CreateClone
        | Action::DetachClone
        | Action::RefreshSnapshotOrClone
        | Action::RestorePartition
        | Action::ExecuteFunction
            if !insecure_nosec =>
        {
            SecurityMethod::CmdRsp
        }
        _ => SecurityMethod::NoSec,
    }
}

/// Returns the key that signs the capabilities of a command (security.md 3.6; t10-osd 4.7).
#[must_use]
pub fn selector(command: &Command, version: u8) -> KeySelector {
    match command {
        Command::SetKey(set) => match set.key {
            KeyToSet::Root => KeySelector::Master,
            KeyToSet::Partition => KeySelector::Root,
            KeyToSet::Working(_) => KeySelector::Partition(set.partition),
        },
        Command::SetMasterKey(set) => match set.step {
            DhStep::SeedExchange => KeySelector::Master,
            DhStep::ChangeMasterKey => KeySelector::NextMaster,
        },
        Command::CreatePartition(_)
        | Command::RemovePartition(_)
        | Command::CreateSnapshot(_)
        | Command::CreateClone(_)
        // It reads the current source, like creating a new duplicate.
        | Command::RefreshSnapshotOrClone(_) => KeySelector::Working { partition: 0, version },
        other => KeySelector::Working { partition: other.object().partition, version },
    }
}

/// The part of step 8 that needs no object: key and audit value not frozen, not expired, this start
/// of the device.
fn current<P: Provider>(capability: &Capability, request: &GateRequest<'_, P>) -> Result<(), Denial> {
    current_under(capability, selector(&request.cdb.command, capability.key_version), request)
}

fn is_key_frozen(selector: KeySelector, facts: &dyn DeviceFacts) -> bool {
    match selector {
        KeySelector::Working { partition, version } => facts.frozen_keys(partition) >> version & 1 != 0,
        _ => false,
    }
}

/// The part of it that an administrator can change during a long command: key and audit value not
/// frozen.
pub(crate) fn unfrozen(
    capability: &Capability,
    selector: KeySelector,
    facts: &dyn DeviceFacts,
) -> Result<(), Denial> {
    if is_key_frozen(selector, facts) {
        return Err(Denial::KeyFrozen);
    }
    if facts.audit_frozen(&capability.audit) { Err(Denial::AuditFrozen) } else { Ok(()) }
}

/// Like `current`, for a capability that a given key signed.
pub(crate) fn current_under<P: Provider>(
    capability: &Capability,
    selector: KeySelector,
    request: &GateRequest<'_, P>,
) -> Result<(), Denial> {
    if is_key_frozen(selector, request.facts) {
        return Err(Denial::KeyFrozen);
    }
    if capability.expires_ms != 0 && request.clock_ms > capability.expires_ms {
        return Err(Denial::Expired);
    }
    let epoch = capability.descriptor.scope().unwrap_or_default().boot_epoch;
    if epoch != 0 && epoch != request.boot_epoch {
        return Err(Denial::BootEpoch);
    }
    if request.facts.audit_frozen(&capability.audit) {
        return Err(Denial::AuditFrozen);
    }
    Ok(())
}
