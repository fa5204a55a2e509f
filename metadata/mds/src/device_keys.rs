//! State of all keys of one device: which were set when, what is due, and interrupted changes.
//!
//! Does: hold and store this state with the keys; find the next steps (`plan`), apply their
//! outcomes (`apply`).
//! Does not: access devices; the daemon performs steps.
//! Contract: a step that changes a key is durably stored, with its seed, before it is sent, and
//! stays stored until the device's signed answer is stored too. Both ends may crash at any point: a
//! repeated SET KEY sets the same key, and of a master key both candidates are kept until one is
//! proven.
//! Truth: docs/design/security.md 3.6; docs/standards/mds/store.md §8.4.

mod apply;
mod plan;
mod step;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use sealstone_crypto::RustCrypto;
use sealstone_mds_protocol::{
    DeviceId, FILE_PARTITION, KeyInfo, KeyLevel, KeyUse, Wire, WireError, WireReader, WireWriter, record,
};
use sealstone_seal::{Hash, InitialKey, KeyHierarchy, KeySelector};
use zeroize::Zeroizing;

use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{decode, load, save};
use crate::store::{MetaError, Snapshot, Transaction};

pub(crate) use apply::{StepProgress, apply, apply_device_value};
pub(crate) use plan::{RotationPolicy, SeedExchange, plan};
pub use step::{KeyAction, KeyStep, StepOutcome};

/// Seed exchanges in progress, by device. The holder of its lock may change key states.
pub(crate) type SeedExchanges = BTreeMap<DeviceId, Option<SeedExchange>>;

/// The key hierarchy of a device.
pub(crate) type Keys = KeyHierarchy<RustCrypto>;

/// Number of versions of a working key; a nibble in the capability selects one.
pub(crate) const VERSIONS: u8 = 16;
/// A superseded key is kept this much longer than the last grant under it, because clocks differ,
/// milliseconds.
pub(crate) const KEY_MARGIN_MS: u64 = 10_000;
/// Maximum bytes of encoded keys in one record: a partition with all its keys has 740.
const KEYS_BYTES_MAX: usize = 4096;
/// First bytes of a whole hierarchy in one record, the format before partitions had records of
/// their own.
const WHOLE: &[u8] = b"OSDKH";
/// Maximum number of partitions of a device that are loaded.
const PARTITIONS_READ_MAX: usize = 65_536;

/// Encoded keys; wiped when dropped.
#[derive(Clone)]
pub(crate) struct KeyBytes(Zeroizing<Vec<u8>>);

impl Wire for KeyBytes {
    fn put(&self, out: &mut WireWriter) {
        out.lv16(&self.0);
    }

    fn get(input: &mut WireReader<'_>) -> std::result::Result<Self, WireError> {
        Ok(Self(Zeroizing::new(input.lv16(KEYS_BYTES_MAX)?.to_vec())))
    }
}

record! {
    /// A key change that may have been sent to the device.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct PendingKey {
        /// A [`KeyLevel`], or 5 for a working key that is to be overwritten.
        pub level: u8,
        /// Version of a working key.
        pub version: u8,
        /// Seed of the key; not secret by itself.
        pub seed: [u8; 20],
        /// Key identifier.
        pub identifier: [u8; 7],
    }
}

/// [`PendingKey::level`] of a superseded working key that is overwritten with a random one.
const LEVEL_OVERWRITE: u8 = 5;

record! {
    /// Record of master and root key.
    #[derive(Clone)]
    pub struct TopRecord {
        /// `KeyHierarchy::encode_top`, with the proposed master key while one is pending.
        pub keys: KeyBytes,
        /// Identity of the master key that the device was added with.
        pub initial: [u8; 16],
        /// Counter for key identifiers.
        pub counter: u64,
        /// Time at which a master key known only to device and server was set; 0: not yet.
        pub master_set_ms: u64,
        /// Time at which the root key was set.
        pub root_set_ms: u64,
        /// Pending change. For the master key: the change step was sent, and the seed is that of
        /// the root key below the new master key.
        pub pending: Option<PendingKey>,
        /// Identifier of the proposed master key.
        pub master_identifier: [u8; 7],
        /// Time of the seed exchange.
        pub exchanged_ms: u64,
        /// Requested changes that are not done: bits [`ASKED_MASTER`], [`ASKED_ROOT`].
        pub asked: u8,
    }
}

record! {
    /// A version of a working key.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct VersionRecord {
        /// Version number.
        pub version: u8,
        /// Time at which it was set.
        pub set_ms: u64,
        /// All grants under it have expired at this time; `u64::MAX` for the current version.
        pub dead_ms: u64,
    }
}

record! {
    /// The keys of a partition.
    #[derive(Clone)]
    pub struct PartitionRecord {
        /// Encoded by `KeyHierarchy::encode_partition`.
        pub keys: KeyBytes,
        /// Whether the partition exists on the device.
        pub created: bool,
        /// Time at which its key pair was set; 0: not yet.
        pub pair_set_ms: u64,
        /// Version for new grants.
        pub current: u8,
        /// Versions that the device has.
        pub versions: Vec<VersionRecord>,
        /// Number of grants under the current version when the record was written.
        pub credentials: u64,
        /// Pending change.
        pub pending: Option<PendingKey>,
        /// Requested changes that are not done: [`ASKED_PARTITION`], [`ASKED_WORKING`],
        /// [`ASKED_REVOKE`].
        pub asked: u8,
    }
}

pub(crate) const ASKED_MASTER: u8 = 1;
pub(crate) const ASKED_ROOT: u8 = 2;
pub(crate) const ASKED_PARTITION: u8 = 4;
pub(crate) const ASKED_WORKING: u8 = 8;
/// Superseded versions are overwritten at once.
pub(crate) const ASKED_REVOKE: u8 = 16;

/// State of one partition; its keys are in the hierarchy.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartitionKeyState {
    pub(crate) created: bool,
    pub(crate) pair_set_ms: u64,
    pub(crate) current: u8,
    pub(crate) versions: Vec<VersionRecord>,
    pub(crate) credentials: u64,
    pub(crate) pending: Option<PendingKey>,
    pub(crate) asked: u8,
    /// Whether the device's key identifiers were compared with ours since the start.
    pub(crate) checked: bool,
    /// Expiry time of the last grant; not stored, because the record of credentials has it.
    pub(crate) grants_until_ms: u64,
}

impl PartitionKeyState {
    fn current_set_ms(&self) -> Option<u64> {
        self.versions.iter().find(|version| version.version == self.current).map(|version| version.set_ms)
    }

    /// Whether a key is requested, being replaced, or superseded and not overwritten yet.
    fn is_pending(&self, now_ms: u64) -> bool {
        let dying = self.versions.iter().any(|version| version.dead_ms <= now_ms);
        self.pending.is_some() || self.asked != 0 || self.versions.is_empty() || dying
    }

    /// Marks all keys below the pair as unknown.
    fn void(&mut self) {
        self.pair_set_ms = 0;
        self.versions.clear();
        self.pending = None;
        self.checked = false;
    }
}

/// State of all keys of one device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceKeyState {
    pub(crate) initial: [u8; 16],
    pub(crate) counter: u64,
    pub(crate) master_set_ms: u64,
    pub(crate) root_set_ms: u64,
    pub(crate) pending: Option<PendingKey>,
    pub(crate) master_identifier: [u8; 7],
    pub(crate) exchanged_ms: u64,
    pub(crate) asked: u8,
    pub(crate) parts: BTreeMap<u64, PartitionKeyState>,
    /// Whether the last answer under the proposed master key was a refusal: the current one is
    /// tried next.
    pub(crate) proposed_refused: bool,
}

/// Maximum number of partitions whose keys one transaction stores; one in tests, whose devices have
/// two.
const STORE_BATCH: usize = if cfg!(test) { 1 } else { 256 };

/// Parts of the key state that have to be stored.
#[derive(Default)]
pub(crate) struct UnsavedKeys {
    pub(crate) top: bool,
    pub(crate) parts: BTreeSet<u64>,
    /// Whether the stored keys of these partitions are void because a key above them was set.
    pub(crate) voided: bool,
}

impl UnsavedKeys {
    pub(crate) fn is_empty(&self) -> bool {
        !self.top && self.parts.is_empty() && !self.voided
    }
}

/// Records the first partition whose stored keys are void; none: no partition.
fn note_void(tx: &mut dyn Transaction, device: DeviceId, from: Option<u64>) -> Result<()> {
    let key = keys::void_keys(device);
    match from {
        Some(from) => Ok(save(tx, &key, &from)?),
        // Most commits find no record, and deleting nothing would count as a change.
        None if tx.get(&key)?.is_none() => Ok(()),
        None => Ok(tx.delete(&key)?),
    }
}

/// Returns the file partitions of a device.
pub(crate) fn file_partitions(count: u64) -> impl Iterator<Item = u64> {
    (0..count.max(1)).map(|n| FILE_PARTITION + n)
}

/// Returns keys and key state of a device that no server has taken over yet.
pub(crate) fn new_key_state(
    initial: &InitialKey,
    system_id: [u8; 20],
    partitions: u64,
) -> Result<(Keys, DeviceKeyState)> {
    let keys = Keys::factory(Hash::Sha256, initial, system_id);
    let mut key_state = DeviceKeyState::of(&keys);
    let mut keys = keys;
    key_state.parts.insert(0, PartitionKeyState { created: true, ..PartitionKeyState::factory() });
    add_partitions(&mut keys, &mut key_state, partitions);
    Ok((keys, key_state))
}

/// Adds entries for missing file partitions; returns whether there were any.
fn add_partitions(keys: &mut Keys, key_state: &mut DeviceKeyState, partitions: u64) -> bool {
    let mut added = false;
    for id in file_partitions(partitions) {
        if let Entry::Vacant(place) = key_state.parts.entry(id) {
            // The device gives a new partition these keys; the next plan replaces them.
            let known = keys.add_partition(id).is_ok() || keys.add_partition_unset(id).is_err();
            place.insert(if known { PartitionKeyState::factory() } else { PartitionKeyState::default() });
            added = true;
        }
    }
    added
}

impl PartitionKeyState {
    /// Creates the state with factory keys, which are valid until they are replaced.
    fn factory() -> Self {
        let versions = vec![VersionRecord { version: 0, set_ms: 0, dead_ms: u64::MAX }];
        Self { versions, ..Self::default() }
    }
}

impl DeviceKeyState {
    fn of(keys: &Keys) -> Self {
        let initial = keys.signing_key(KeySelector::Master).map(|key| *key.identity().as_bytes());
        Self {
            initial: initial.unwrap_or_default(),
            counter: 1,
            master_set_ms: 0,
            root_set_ms: 0,
            pending: None,
            master_identifier: [0; 7],
            exchanged_ms: 0,
            asked: 0,
            parts: BTreeMap::new(),
            proposed_refused: false,
        }
    }

    /// Whether the device was added with this initial key.
    pub(crate) fn has_initial(&self, initial: &InitialKey, system_id: [u8; 20]) -> bool {
        let keys = Keys::factory(Hash::Sha256, initial, system_id);
        sealstone_seal::ct_eq(&Self::of(&keys).initial, &self.initial)
    }

    /// Whether both devices were registered with the same initial key.
    pub(crate) fn has_same_initial(&self, other: &Self) -> bool {
        sealstone_seal::ct_eq(&self.initial, &other.initial)
    }

    /// Whether the factory master key was replaced, or may have been.
    pub(crate) fn is_taken_over(&self) -> bool {
        self.master_set_ms != 0 || self.pending.is_some()
    }

    /// Whether all keys were set by the server and all partitions exist.
    pub(crate) fn is_ready(&self) -> bool {
        self.master_set_ms != 0
            && self.root_set_ms != 0
            && self.pending.is_none()
            && self
                .parts
                .values()
                .all(|part| part.created && part.pair_set_ms != 0 && !part.versions.is_empty())
    }

    /// Returns the version for new grants of a partition; none while a key above it is being
    /// changed.
    pub(crate) fn current(&self, keys: &Keys, partition: u64) -> Option<u8> {
        let part = self.parts.get(&partition)?;
        let changing =
            part.pending.as_ref().is_some_and(|pending| pending.level == KeyLevel::Partition.code());
        let version = part.current;
        let is_set = keys.signing_key(KeySelector::Working { partition, version }).is_some();
        (self.pending.is_none() && !changing && is_set).then_some(version)
    }

    /// Marks the root key and all keys below it as void.
    fn void_below_master(&mut self, touched: &mut UnsavedKeys) {
        self.root_set_ms = 0;
        touched.top = true;
        self.void_below_root(touched);
    }

    fn void_below_root(&mut self, touched: &mut UnsavedKeys) {
        for (id, part) in &mut self.parts {
            part.void();
            touched.parts.insert(*id);
        }
        touched.voided = true;
    }

    /// Loads keys and key state of a device. The result also says what has to be stored again
    /// because of an older format or an interrupted change.
    pub(crate) fn load<S: Snapshot + ?Sized>(
        view: &S,
        device: DeviceId,
        partitions: u64,
    ) -> Result<(Keys, Self, UnsavedKeys)> {
        let bytes = view.get(&keys::device_key(device))?.ok_or(MetaError::Damaged("device without keys"))?;
        let bytes = Zeroizing::new(bytes);
        let damaged = |_| MetaError::Damaged("device keys");
        let mut touched = UnsavedKeys::default();
        let (mut keys, mut key_state) = if bytes.starts_with(WHOLE) {
            let keys = Keys::decode(&bytes).map_err(damaged)?;
            let mut key_state = Self::of(&keys);
            for id in keys.partitions() {
                key_state
                    .parts
                    .insert(id, PartitionKeyState { created: true, ..PartitionKeyState::factory() });
                touched.parts.insert(id);
            }
            touched.top = true;
            (keys, key_state)
        } else {
            let top: TopRecord = decode(&bytes)?;
            let mut keys = Keys::decode_top(&top.keys.0).map_err(damaged)?;
            let mut key_state = Self {
                initial: top.initial,
                counter: top.counter,
                master_set_ms: top.master_set_ms,
                root_set_ms: top.root_set_ms,
                pending: top.pending,
                master_identifier: top.master_identifier,
                exchanged_ms: top.exchanged_ms,
                asked: top.asked,
                parts: BTreeMap::new(),
                proposed_refused: false,
            };
            let void_from: Option<u64> = load(view, &keys::void_keys(device))?;
            // Even without such a record, the note itself has to be deleted.
            touched.voided = void_from.is_some();
            let all = keys::partition_keys(device);
            for (key, value) in view.scan(&all, &keys::after_prefix(&all), PARTITIONS_READ_MAX)? {
                let value = Zeroizing::new(value);
                let id = keys::partition_of(&key).ok_or(MetaError::Damaged("partition keys"))?;
                let PartitionRecord {
                    keys: bytes,
                    created,
                    pair_set_ms,
                    current,
                    versions,
                    credentials,
                    pending,
                    asked,
                } = decode(&value)?;
                let is_void = void_from.is_some_and(|from| id >= from);
                if is_void {
                    keys.add_partition_unset(id).map_err(|_| MetaError::Damaged("partition keys"))?;
                } else {
                    keys.put_partition(id, &bytes.0).map_err(damaged)?;
                }
                let mut part = PartitionKeyState {
                    created,
                    pair_set_ms,
                    current,
                    versions,
                    credentials,
                    pending,
                    asked,
                    checked: false,
                    grants_until_ms: 0,
                };
                if is_void {
                    part.void();
                    touched.parts.insert(id);
                }
                key_state.parts.insert(id, part);
            }
            (keys, key_state)
        };
        let before: BTreeSet<u64> = key_state.parts.keys().copied().collect();
        if add_partitions(&mut keys, &mut key_state, partitions) {
            touched.parts.extend(key_state.parts.keys().filter(|id| !before.contains(id)));
        }
        Ok((keys, key_state, touched))
    }

    /// Stores the touched parts.
    pub(crate) fn store(
        &self,
        tx: &mut dyn Transaction,
        device: DeviceId,
        keys: &Keys,
        touched: &UnsavedKeys,
    ) -> Result<()> {
        if touched.top {
            let record = TopRecord {
                keys: KeyBytes(keys.encode_top()),
                initial: self.initial,
                counter: self.counter,
                master_set_ms: self.master_set_ms,
                root_set_ms: self.root_set_ms,
                pending: self.pending.clone(),
                master_identifier: self.master_identifier,
                exchanged_ms: self.exchanged_ms,
                asked: self.asked,
            };
            save(tx, &keys::device_key(device), &record)?;
        }
        for id in &touched.parts {
            let (Some(part), Some(bytes)) = (self.parts.get(id), keys.encode_partition(*id)) else {
                return Err(MdsError::Store(MetaError::Damaged("partition without an entry for keys")));
            };
            let record = PartitionRecord {
                keys: KeyBytes(bytes),
                created: part.created,
                pair_set_ms: part.pair_set_ms,
                current: part.current,
                versions: part.versions.clone(),
                credentials: part.credentials,
                pending: part.pending.clone(),
                asked: part.asked,
            };
            save(tx, &keys::partition_key(device, *id), &record)?;
        }
        Ok(())
    }

    /// Stores a new device, or one that restarts with another initial key, with the keys of at most
    /// [`STORE_BATCH`] partitions. Returns what [`DeviceKeyState::store_in_steps`] has to store
    /// after the transaction.
    pub(crate) fn store_first(
        &self,
        tx: &mut dyn Transaction,
        device: DeviceId,
        keys: &Keys,
    ) -> Result<UnsavedKeys> {
        let parts: Vec<u64> = self.parts.keys().copied().collect();
        let (first, rest) = parts.split_at(parts.len().min(STORE_BATCH));
        let touched = UnsavedKeys { top: true, parts: first.iter().copied().collect(), voided: true };
        self.store(tx, device, keys, &touched)?;
        note_void(tx, device, rest.first().copied())?;
        let voided = !rest.is_empty();
        Ok(UnsavedKeys { top: false, parts: rest.iter().copied().collect(), voided })
    }

    /// Stores the touched parts in transactions of at most [`STORE_BATCH`] partitions, each run by
    /// `commit`. A crash in between leaves a record of the first partition whose stored keys are
    /// void.
    pub(crate) fn store_in_steps(
        &self,
        device: DeviceId,
        keys: &Keys,
        touched: &UnsavedKeys,
        mut commit: impl FnMut(&dyn Fn(&mut dyn Transaction) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        if touched.is_empty() {
            return Ok(());
        }
        let parts: Vec<u64> = touched.parts.iter().copied().collect();
        let (mut top, mut rest) = (touched.top, &parts[..]);
        loop {
            let (batch, after) = rest.split_at(rest.len().min(STORE_BATCH));
            let step = UnsavedKeys { top, parts: batch.iter().copied().collect(), voided: touched.voided };
            commit(&|tx| {
                self.store(tx, device, keys, &step)?;
                if step.voided { note_void(tx, device, after.first().copied()) } else { Ok(()) }
            })?;
            (top, rest) = (false, after);
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Describes master and root key.
    pub(crate) fn top_infos(&self, device: DeviceId, keys: &Keys) -> Vec<KeyInfo> {
        let info = |level: KeyLevel, selector, set_ms| {
            let pending = self.pending.as_ref().is_some_and(|pending| pending.level <= level.code());
            KeyInfo {
                device,
                level,
                partition: 0,
                version: 0,
                identifier: keys.identifier(selector),
                set_ms,
                dead_ms: 0,
                usage: if pending {
                    KeyUse::Changing
                } else if keys.signing_key(selector).is_none() {
                    KeyUse::Unset
                } else if set_ms == 0 {
                    KeyUse::Factory
                } else {
                    KeyUse::Current
                },
                credentials: 0,
            }
        };
        vec![
            info(KeyLevel::Master, KeySelector::Master, self.master_set_ms),
            info(KeyLevel::Root, KeySelector::Root, self.root_set_ms),
        ]
    }

    /// Describes the keys of a partition.
    pub(crate) fn part_infos(&self, device: DeviceId, keys: &Keys, partition: u64) -> Vec<KeyInfo> {
        let Some(part) = self.parts.get(&partition) else { return Vec::new() };
        let pending = |level: u8| part.pending.as_ref().is_some_and(|pending| pending.level == level);
        let factory = |set_ms| if set_ms == 0 { KeyUse::Factory } else { KeyUse::Current };
        let pair = KeyInfo {
            device,
            level: KeyLevel::Partition,
            partition,
            version: 0,
            identifier: keys.identifier(KeySelector::Partition(partition)),
            set_ms: part.pair_set_ms,
            dead_ms: 0,
            usage: if pending(KeyLevel::Partition.code()) {
                KeyUse::Changing
            } else if keys.signing_key(KeySelector::Partition(partition)).is_none() {
                KeyUse::Unset
            } else {
                factory(part.pair_set_ms)
            },
            credentials: 0,
        };
        let working = part.versions.iter().map(|version| {
            let current = version.version == part.current;
            KeyInfo {
                device,
                level: KeyLevel::Working,
                partition,
                version: version.version,
                identifier: keys.identifier(KeySelector::Working { partition, version: version.version }),
                set_ms: version.set_ms,
                dead_ms: if version.dead_ms == u64::MAX { 0 } else { version.dead_ms },
                usage: if current { factory(version.set_ms) } else { KeyUse::Superseded },
                credentials: if current { part.credentials } else { 0 },
            }
        });
        std::iter::once(pair).chain(working).collect()
    }

    /// Counts pending key changes. A partition with a superseded version that is due to be
    /// overwritten counts, so that a revocation is not done before the last old key is gone.
    pub(crate) fn pending_count(&self, now_ms: u64) -> u64 {
        let top = u64::from(self.pending.is_some() || self.asked != 0);
        top + self.parts.values().filter(|part| part.is_pending(now_ms)).count() as u64
    }

    /// Whether no key of these partitions is requested or being replaced.
    pub(crate) fn are_replaced(&self, partitions: &[u64], now_ms: u64) -> bool {
        let above = self.pending.is_some() || self.asked != 0;
        let open = |id: &u64| self.parts.get(id).is_some_and(|part| part.is_pending(now_ms));
        !above && !partitions.iter().any(open)
    }
}
