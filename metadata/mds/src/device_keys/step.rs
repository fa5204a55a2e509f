//! One key command for a device, and its outcome, as `plan` requests it and `apply` processes it.

use sealstone_osd::capability::Scope;
use sealstone_osd::cdb::{SetKey, SetMasterKey};
use sealstone_osd::{
    AttributeId, Capability, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod,
};
use sealstone_seal::algorithm::preferred_slot;
use sealstone_seal::{AlgorithmSlots, Credential, KeySelector, selector};

use super::Keys;
use crate::entropy::{Entropy, random};
use crate::error::Result;
use crate::function_policy_record::AttributeValue;
use crate::store::MetaError;

/// Command of a step.
#[derive(Clone, Debug)]
pub enum KeyAction {
    /// First step of SET MASTER KEY.
    ExchangeSeeds {
        /// Command to send.
        set: SetMasterKey,
        /// Its data: the server's public value.
        value: Vec<u8>,
    },
    /// Second step of SET MASTER KEY.
    ChangeMaster {
        /// Command to send.
        set: SetMasterKey,
        /// Its data: both public values.
        values: Vec<u8>,
    },
    /// SET KEY.
    SetKey(SetKey),
    /// CREATE PARTITION with [`crate::tags::partition_attributes`] and its policy about functions;
    /// an existing partition counts as success.
    CreatePartition {
        /// Partition to create.
        partition: u64,
        /// Attributes with the policy.
        policy: Vec<AttributeValue>,
    },
    /// Read attributes.
    Identifiers {
        /// The root or a partition.
        object: ObjectId,
        /// Attributes to read.
        ids: Vec<AttributeId>,
    },
}

/// A command with its credential.
#[derive(Clone)]
pub struct KeyStep {
    /// Command of the step.
    pub action: KeyAction,
    /// Credential for the command.
    pub credential: Credential,
    pub(super) kind: KeyStepKind,
}

impl KeyStep {
    /// Whether the step changes a key if it succeeds.
    pub(crate) const fn changes_a_key(&self) -> bool {
        matches!(self.action, KeyAction::SetKey(_) | KeyAction::ChangeMaster { .. })
    }
}

/// Purpose of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyStepKind {
    SeedExchange,
    ChangeMaster,
    /// Sets the root key under the proposed master key, which proves the latter.
    RootUnderNew,
    /// Sets the root key under the current master key, which proves that the proposed one was not
    /// accepted.
    RootUnderOld,
    Root,
    Create(u64),
    Partition(u64),
    Working(u64),
    Overwrite(u64),
    Check(u64),
}

/// Outcome of a step.
#[derive(Clone, Debug)]
pub enum StepOutcome {
    /// Success, by a signed answer.
    Done,
    /// Public value of the device.
    Value(Vec<u8>),
    /// The requested attributes, in their order.
    Identifiers(Vec<Option<Vec<u8>>>),
    /// The device did not accept the credential. The refusal is unsigned, so it proves nothing.
    Denied,
    /// The partition does not exist, by a signed answer.
    NoPartition,
    /// No answer, or another refusal: the outcome is unknown.
    Failed,
}

/// Returns a credential for a command on keys, signed with the key that the device requires.
pub(super) fn credential(
    keys: &Keys,
    key: KeySelector,
    object: ObjectId,
    permissions: Permissions,
    key_version: u8,
    rng: &mut dyn Entropy,
) -> Result<Credential> {
    let capability = Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version,
        icv_algorithm: preferred_slot(Generation::Osd2, SecurityMethod::AllData),
        // An attacker must not be able to change the values of an exchange.
        method: SecurityMethod::AllData,
        // It is not given to any client, and its nonce is valid for seconds only.
        expires_ms: 0,
        // The server's own commands belong to no session, so their audit field is zero.
        audit: [0; 20],
        discriminator: random(rng),
        object_created_ms: 0,
        object_type: if object.is_root() { ObjectType::Root } else { ObjectType::Partition },
        permissions,
        descriptor: Descriptor::Partition { scope: Scope::default(), partition: object.partition },
    };
    // A device that requires sealed capabilities still accepts open ones for key commands.
    let issue = match key {
        KeySelector::Working { .. } => Credential::issue_sealed_under,
        _ => Credential::issue_under,
    };
    Ok(issue(keys, &AlgorithmSlots::DEFAULT, key, &capability)
        .map_err(|_| MetaError::Damaged("device keys lack the signing key"))?)
}

/// Returns a SET KEY step.
pub(super) fn set_key(keys: &Keys, set: SetKey, kind: KeyStepKind, rng: &mut dyn Entropy) -> Result<KeyStep> {
    let command = Command::SetKey(set);
    let permissions = Permissions::POL_SEC.union(Permissions::DEV_MGMT);
    let credential = credential(keys, selector(&command, 0), command.object(), permissions, 0, rng)?;
    Ok(KeyStep { action: KeyAction::SetKey(set), credential, kind })
}
