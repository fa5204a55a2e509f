//! One command to a device, and what came of it.

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
use crate::store::MetaError;

/// What a device is asked to do.
#[derive(Clone, Debug)]
pub enum KeyAction {
    /// The first step of SET MASTER KEY.
    ExchangeSeeds {
        /// The command.
        set: SetMasterKey,
        /// Its data: the server's public value.
        value: Vec<u8>,
    },
    /// The second one.
    ChangeMaster {
        /// The command.
        set: SetMasterKey,
        /// Its data: both public values.
        values: Vec<u8>,
    },
    /// SET KEY.
    SetKey(SetKey),
    /// CREATE PARTITION, with [`crate::tags::partition_attributes`]; one that exists is as good.
    CreatePartition(u64),
    /// Reads attributes.
    Identifiers {
        /// Of the root or a partition.
        object: ObjectId,
        /// Which.
        ids: Vec<AttributeId>,
    },
}

/// A command with the credential for it.
#[derive(Clone)]
pub struct KeyStep {
    /// What to do.
    pub action: KeyAction,
    /// With what.
    pub credential: Credential,
    pub(super) kind: Kind,
}

impl KeyStep {
    /// Would its success be a changed key?
    pub(crate) const fn changes_a_key(&self) -> bool {
        matches!(self.action, KeyAction::SetKey(_) | KeyAction::ChangeMaster { .. })
    }
}

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Exchange,
    ChangeMaster,
    /// The root key under the proposed master key: proves it.
    RootUnderNew,
    /// The root key under the present master key, which proves that the proposed one was not taken.
    RootUnderOld,
    Root,
    Create(u64),
    Partition(u64),
    Working(u64),
    Kill(u64),
    Check(u64),
}

/// What came of a step.
#[derive(Clone, Debug)]
pub enum StepOutcome {
    /// Done, says a signed answer.
    Done,
    /// The device's public value.
    Value(Vec<u8>),
    /// The attributes asked for, in their order.
    Identifiers(Vec<Option<Vec<u8>>>),
    /// The device does not accept the credential. Nobody signed that, so it proves nothing.
    Denied,
    /// The partition is not there, says a signed answer.
    NoPartition,
    /// No answer, or another refusal: nobody knows.
    Failed,
}

/// A credential for a command on keys, made with the key that the device asks for.
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
        // The values of an exchange must not be changed on their way.
        method: SecurityMethod::AllData,
        // Known to nobody else; its nonce is good for seconds.
        expires_ms: 0,
        // Nobody's session: the audit field of the server's own commands is zero.
        audit: [0; 20],
        discriminator: random(rng),
        object_created_ms: 0,
        object_type: if object.is_root() { ObjectType::Root } else { ObjectType::Partition },
        permissions,
        descriptor: Descriptor::Partition { scope: Scope::default(), partition: object.partition },
    };
    // Where a device takes sealed capabilities it may take no others; for keys themselves it takes open ones.
    let issue = match key {
        KeySelector::Working { .. } => Credential::issue_sealed_under,
        _ => Credential::issue_under,
    };
    Ok(issue(keys, &AlgorithmSlots::DEFAULT, key, &capability)
        .map_err(|_| MetaError::Damaged("device keys lack the key that signs"))?)
}

/// A step of SET KEY.
pub(super) fn set_key(keys: &Keys, set: SetKey, kind: Kind, rng: &mut dyn Entropy) -> Result<KeyStep> {
    let command = Command::SetKey(set);
    let permissions = Permissions::POL_SEC.union(Permissions::DEV_MGMT);
    let credential = credential(keys, selector(&command, 0), command.object(), permissions, 0, rng)?;
    Ok(KeyStep { action: KeyAction::SetKey(set), credential, kind })
}
