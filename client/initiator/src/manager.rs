//! Key management of one device by its security manager.
//!
//! Does: SET KEY at every level and SET MASTER KEY with its exchange, and keeps the manager's own
//! hierarchy in step with the device's.
//! Does not: store the hierarchy or decide when to change a key; the caller does, and should store
//! a copy of [`KeyManager::keys`] after every change.
//! Contract: the hierarchy changes only when the device has acknowledged. SET KEY is idempotent, so
//! it is repeated after a lost answer. After an unacknowledged change step of SET MASTER KEY, other
//! changes fail until [`KeyManager::settle_master`] has found out which of the two master keys the
//! device has.
//! Truth: t10-osd 4.7 to 4.9; docs/design/security.md 3.6.

use std::sync::Arc;

use bytes::Bytes;
use sealstone_crypto::RustCrypto;
use sealstone_crypto::dh::{DhGroup, DhSecret, ValueError};
use sealstone_osd::capability::Scope;
use sealstone_osd::cdb::{DhStep, KeyIdentifier, KeyToSet, SetKey, SetMasterKey};
use sealstone_osd::master_key::{BothValues, parse_device_value};
use sealstone_osd::{Capability, Command, Descriptor, Generation, ObjectType, Permissions, SecurityMethod};
use sealstone_seal::algorithm::preferred_slot;
use sealstone_seal::exchange::SeedExchange;
use sealstone_seal::{AlgorithmSlots, Credential, IssueError, KeyError, KeyHierarchy, KeySelector, selector};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::osd::{Bearer, BearerError, OsdClient};
use crate::{Environment, Operation, OsdError};

/// Maximum bytes of the device's value: the largest group, after its length.
const DEVICE_VALUE_MAX: u32 = 4 + 512;

/// Why a key was not changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The device refused, or the outcome is unknown.
    #[error(transparent)]
    Device(#[from] OsdError),
    /// The manager does not have the key that would sign.
    #[error("no credential: {0}")]
    Issue(#[from] IssueError),
    /// The credential cannot be used.
    #[error(transparent)]
    Bearer(#[from] BearerError),
    /// The key to set does not exist.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The device's value of the exchange is invalid.
    #[error("the device's value: {0}")]
    Value(#[from] ValueError),
    /// A change step was not acknowledged: call [`KeyManager::settle_master`] first.
    #[error("it is not known yet whether the device has the last master key")]
    Unsettled,
}

/// The master key of a device after [`KeyManager::settle_master`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterOutcome {
    /// The previous one: nothing changed.
    Old,
    /// The exchanged one: all keys below it are void.
    New,
}

/// A security manager's view of one device.
pub struct KeyManager {
    device: OsdClient,
    keys: KeyHierarchy<RustCrypto>,
    environment: Arc<dyn Environment>,
    /// Identifier of a proposed master key whose change step was not acknowledged.
    unsettled: Option<KeyIdentifier>,
}

impl KeyManager {
    /// Creates a manager; `keys` are those of the device.
    #[must_use]
    pub fn new(device: OsdClient, keys: KeyHierarchy<RustCrypto>, environment: Arc<dyn Environment>) -> Self {
        Self { device, keys, environment, unsettled: None }
    }

    /// Returns the keys of the device, to be stored and to issue credentials.
    #[must_use]
    pub const fn keys(&self) -> &KeyHierarchy<RustCrypto> {
        &self.keys
    }

    /// Runs SET KEY with a random seed. All keys below the new one become void.
    ///
    /// # Errors
    /// [`ManagerError`]; the hierarchy is unchanged. If the outcome is unknown, repeating this or
    /// another call for the same key resolves it.
    pub async fn set_key(
        &mut self,
        key: KeyToSet,
        partition: u64,
        identifier: KeyIdentifier,
    ) -> Result<(), ManagerError> {
        let mut seed = Zeroizing::new([0; 20]);
        self.environment.fill_random(&mut *seed);
        self.set_key_from(SetKey { partition, key, identifier, seed: *seed }).await
    }

    /// Runs SET KEY with a given seed.
    ///
    /// # Errors
    /// As [`Self::set_key`].
    pub async fn set_key_from(&mut self, set: SetKey) -> Result<(), ManagerError> {
        self.settled()?;
        let mut next = self.keys.clone();
        match set.key {
            KeyToSet::Root => next.set_root(&set.seed, set.identifier),
            KeyToSet::Partition => next.set_partition(set.partition, &set.seed, set.identifier)?,
            KeyToSet::Working(version) => {
                next.set_working(set.partition, version, &set.seed, set.identifier)?;
            }
        }
        let bearer = self.bearer(&Command::SetKey(set))?;
        self.device.execute(&bearer, Operation::SetKey { set }).await?;
        self.keys = next;
        Ok(())
    }

    /// Records a partition that the device created: it has default keys under the current root key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn partition_created(&mut self, partition: u64) -> Result<(), KeyError> {
        self.keys.add_partition(partition)
    }

    /// Records a partition that the device removed.
    pub fn partition_removed(&mut self, partition: u64) {
        self.keys.remove_partition(partition);
    }

    /// Runs SET MASTER KEY: exchanges seeds and changes the key. All keys below it become void, so
    /// the root key has to be set next.
    ///
    /// # Errors
    /// [`ManagerError`]. If the change step was not acknowledged, other calls fail with
    /// [`ManagerError::Unsettled`] until [`Self::settle_master`] was called.
    pub async fn set_master_key(
        &mut self,
        group: DhGroup,
        identifier: KeyIdentifier,
    ) -> Result<(), ManagerError> {
        self.settled()?;
        let mut random = |into: &mut [u8]| self.environment.fill_random(into);
        let secret = DhSecret::draw(group, &mut random);
        let client = secret.public();
        let device = self.exchange_seeds(KeySelector::Master, group, identifier, &client).await?;
        let agreed = secret.agree(&device)?;
        let pair = self.keys.exchanged(&SeedExchange {
            derivation: group.derivation(),
            group: group.code(),
            client: &client,
            device: &device,
            secret: &agreed,
        });
        self.keys.propose_master(pair);
        match self.change_master_key(group, identifier, &client, &device).await {
            Ok(()) => {
                self.keys.accept_master(identifier);
                Ok(())
            }
            Err(error) => {
                // A refusal of this step may be forged if it has no check value, so the outcome
                // counts as unknown.
                self.unsettled = Some(identifier);
                Err(error)
            }
        }
    }

    /// Finds out which master key the device has after an unacknowledged change step: only the
    /// current key can begin an exchange. Does nothing if no step is pending.
    ///
    /// # Errors
    /// [`ManagerError`]: still unknown. A device answers 5/2C00 for up to ten seconds while the
    /// previous exchange is pending.
    pub async fn settle_master(&mut self, group: DhGroup) -> Result<MasterOutcome, ManagerError> {
        let Some(identifier) = self.unsettled else { return Ok(MasterOutcome::Old) };
        for (key, outcome) in
            [(KeySelector::NextMaster, MasterOutcome::New), (KeySelector::Master, MasterOutcome::Old)]
        {
            let mut random = |into: &mut [u8]| self.environment.fill_random(into);
            let client = DhSecret::draw(group, &mut random).public();
            match self.exchange_seeds(key, group, identifier, &client).await {
                Ok(_) => {
                    self.unsettled = None;
                    match outcome {
                        MasterOutcome::New => drop(self.keys.accept_master(identifier)),
                        MasterOutcome::Old => self.keys.abandon_master(),
                    }
                    return Ok(outcome);
                }
                Err(ManagerError::Device(error)) if error.is_denied() => {}
                Err(error) => return Err(error),
            }
        }
        Err(ManagerError::Unsettled)
    }

    const fn settled(&self) -> Result<(), ManagerError> {
        if self.unsettled.is_some() { Err(ManagerError::Unsettled) } else { Ok(()) }
    }

    /// Runs the first step under the given master key. Returns the device's value.
    async fn exchange_seeds(
        &self,
        key: KeySelector,
        group: DhGroup,
        identifier: KeyIdentifier,
        client: &[u8],
    ) -> Result<Vec<u8>, ManagerError> {
        let set = SetMasterKey {
            step: DhStep::SeedExchange,
            group: group.code(),
            identifier,
            parameter_length: client.len() as u32,
            allocation: DEVICE_VALUE_MAX,
        };
        let bearer = self.bearer_under(key, &Command::SetMasterKey(set))?;
        let data_out = Bytes::copy_from_slice(client);
        let done = self.device.execute(&bearer, Operation::SetMasterKey { set, data_out }).await?;
        let value = parse_device_value(&done.data).filter(|value| value.len() == group.value_len());
        Ok(value.ok_or(OsdError::Malformed("the device's value of the exchange"))?.to_vec())
    }

    async fn change_master_key(
        &self,
        group: DhGroup,
        identifier: KeyIdentifier,
        client: &[u8],
        device: &[u8],
    ) -> Result<(), ManagerError> {
        let parameters = BothValues { client, device }
            .encode()
            .ok_or(OsdError::Malformed("the values of the exchange"))?;
        let set = SetMasterKey {
            step: DhStep::ChangeMasterKey,
            group: group.code(),
            identifier,
            parameter_length: parameters.len() as u32,
            allocation: 0,
        };
        let bearer = self.bearer(&Command::SetMasterKey(set))?;
        let data_out = Bytes::from(parameters);
        self.device.execute(&bearer, Operation::SetMasterKey { set, data_out }).await?;
        Ok(())
    }

    fn bearer(&self, command: &Command) -> Result<Bearer, ManagerError> {
        self.bearer_under(selector(command, 0), command)
    }

    /// Issues a credential for one key command, signed with the key that the device requires.
    fn bearer_under(&self, key: KeySelector, command: &Command) -> Result<Bearer, ManagerError> {
        let object = command.object();
        let mut discriminator = [0; 12];
        self.environment.fill_random(&mut discriminator);
        let capability = Capability {
            generation: Generation::Osd2,
            format: Generation::Osd2,
            key_version: 0,
            icv_algorithm: preferred_slot(Generation::Osd2, SecurityMethod::AllData),
            // The values of an exchange must not be changed in transit.
            method: SecurityMethod::AllData,
            // The key of this credential is not shared, and its nonce is valid for seconds.
            expires_ms: 0,
            audit: *b"security manager\0\0\0\0",
            discriminator,
            object_created_ms: 0,
            object_type: if object.is_root() { ObjectType::Root } else { ObjectType::Partition },
            permissions: Permissions::POL_SEC.union(Permissions::DEV_MGMT),
            descriptor: Descriptor::Partition { scope: Scope::default(), partition: object.partition },
        };
        let credential = Credential::issue_under(&self.keys, &AlgorithmSlots::DEFAULT, key, &capability)?;
        Ok(Bearer::of(&credential)?)
    }
}
