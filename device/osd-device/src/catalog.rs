//! In-memory state of the root and of the partitions.
//!
//! Does: cache policies, quotas, used capacity and object counts, so that commands need not look
//! them up.
//! Does not: hold anything that is not in the store; all of it is loaded at every start.
//! Contract: after a change of an attribute of the root or a partition, call `reload_*` under that
//! object's lock.
//! Truth: docs/design/t10-osd.md 3.5 (quotas, policy/security), 4.6, 4.10.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use sealstone_osd::cdb::Isolation;
use sealstone_osd::{AttributeId, ObjectId, ObjectType, SecurityMethod};
use sealstone_store::{ObjectStore, StoreError};

use crate::attributes::rows::{
    BYPASS, FROZEN_AUDITS, INTERNAL, PARTITION, POLICY_ACCESS_TAG, ROOT, USER_OBJECT_TAG, page,
};
use crate::duplicates::{self, Lineage};
use crate::isolation;

/// Objects per `list` call of the scan at start.
const SCAN_STEP: usize = 4096;
/// Value of a quota attribute for no limit.
pub(crate) const UNLIMITED: u64 = u64::MAX;
/// Nonces older than this are refused, in milliseconds. Attributes can only lower the limit.
pub(crate) const OLDEST_NONCE_MS: u64 = sealstone_seal::freshness::OLD_MS;
/// Nonces further ahead than this are refused, in milliseconds. Attributes can only lower the
/// limit.
pub(crate) const NEWEST_NONCE_MS: u64 = sealstone_seal::freshness::NEW_MS;
/// Value of a timestamp bypass attribute that suppresses timestamps.
const BYPASS_ALL: u8 = 0x7F;

/// Formatted capacity, in the internal page of the root.
const FORMATTED_CAPACITY: AttributeId = AttributeId::new(INTERNAL, 1);
/// Offset of the device's clock to the machine's clock in milliseconds, in the internal page of the
/// root.
const CLOCK_OFFSET: AttributeId = AttributeId::new(INTERNAL, 2);

/// Attributes of the root or of a partition that commands depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerPolicy {
    /// Minimum security method of operations on it.
    pub(crate) default_method: SecurityMethod,
    /// Oldest acceptable nonce, in milliseconds before now.
    pub(crate) oldest_nonce_ms: u64,
    /// Newest acceptable nonce, in milliseconds after now.
    pub(crate) newest_nonce_ms: u64,
    /// Bit n: credentials of working key n are refused.
    pub(crate) frozen_keys: u16,
    /// Policy access tag of the partition itself.
    pub(crate) tag: u32,
    /// Tag of new user objects.
    pub(crate) user_object_tag: u32,
    /// Created time in milliseconds.
    pub(crate) created_ms: u64,
    /// Whether timestamps of objects in it are not kept.
    pub(crate) bypass_timestamps: bool,
    /// Longest user object of a new partition (root) or in the partition, in bytes.
    pub(crate) max_length: u64,
    /// Capacity quota in bytes.
    pub(crate) capacity: u64,
    /// Quota of user objects and collections.
    pub(crate) objects: u64,
    /// Collections that one user object may be a member of.
    pub(crate) collections_per_object: u32,
    /// Source of the partition, if it is a duplicate.
    pub(crate) lineage: Lineage,
}

/// Policy of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootPolicy {
    pub(crate) policy: ContainerPolicy,
    /// Default method of new partitions.
    pub(crate) partition_method: SecurityMethod,
    /// Quota of partitions.
    pub(crate) partitions: u64,
    /// Usable bytes after FORMAT OSD.
    pub(crate) formatted_capacity: u64,
    /// Isolation of commands that do not select one.
    pub(crate) isolation: Isolation,
}

/// One partition.
pub(crate) struct Partition {
    pub(crate) id: u64,
    used: AtomicU64,
    objects: AtomicU64,
    collections: AtomicU64,
    /// Number of changes of its objects and memberships, so that a series of lists can detect them.
    changes: AtomicU64,
    next_object: AtomicU64,
    policy: RwLock<ContainerPolicy>,
}

impl Partition {
    pub(crate) fn policy(&self) -> ContainerPolicy {
        *self.policy.read()
    }

    /// Sets the counts after all contents were replaced.
    pub(crate) fn recount(&self, objects: u64, collections: u64, used: u64, next_object: u64) {
        self.objects.store(objects, Ordering::Relaxed);
        self.collections.store(collections, Ordering::Relaxed);
        self.note_change();
        self.used.store(used, Ordering::Relaxed);
        self.next_object.store(next_object.max(ObjectId::FIRST_ASSIGNABLE), Ordering::Relaxed);
    }

    /// Returns the bytes that its user objects use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of its user objects.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Returns the number of its collections.
    pub(crate) fn collections(&self) -> u64 {
        self.collections.load(Ordering::Relaxed)
    }

    /// Returns the number of user objects and collections, which the object count quota limits.
    pub(crate) fn population(&self) -> u64 {
        self.objects().saturating_add(self.collections())
    }

    /// Counts a new collection.
    pub(crate) fn collection_created(&self, object: u64) {
        self.collections.fetch_add(1, Ordering::Relaxed);
        self.next_object.fetch_max(object.saturating_add(1), Ordering::Relaxed);
        self.note_change();
    }

    /// Counts a removed collection.
    pub(crate) fn collection_removed(&self) {
        self.collections.fetch_sub(1, Ordering::Relaxed);
        self.note_change();
    }

    /// Counts a change of objects or memberships.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of changes since the start.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Reserves `bytes` of the capacity quota, to be settled later. Returns false if they exceed
    /// it.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let quota = self.policy().capacity;
        let reserved = |used: u64| used.checked_add(bytes).filter(|&after| bytes == 0 || after <= quota);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserved).is_ok()
    }

    /// Replaces a reservation by the real change of an object's used bytes.
    pub(crate) fn settle(&self, reserved: u64, before: u64, after: u64) {
        let settled = |used: u64| Some((used + after).saturating_sub(reserved + before));
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, settled);
    }

    /// Counts a new user object.
    pub(crate) fn object_created(&self, object: u64) {
        self.objects.fetch_add(1, Ordering::Relaxed);
        self.next_object.fetch_max(object.saturating_add(1), Ordering::Relaxed);
        self.note_change();
    }

    /// Counts a removed user object that used `used` bytes.
    pub(crate) fn object_removed(&self, used: u64) {
        self.objects.fetch_sub(1, Ordering::Relaxed);
        self.note_change();
        self.settle(0, used, 0);
    }

    /// Returns the first candidate for a free object id.
    pub(crate) fn next_object(&self) -> u64 {
        self.next_object.load(Ordering::Relaxed)
    }
}

/// Security methods of a new device where no attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MethodDefaults {
    pub(crate) root_method: SecurityMethod,
    pub(crate) partition_method: SecurityMethod,
}

/// The root and all partitions.
pub(crate) struct Catalog {
    defaults: MethodDefaults,
    root: RwLock<RootPolicy>,
    partitions: RwLock<BTreeMap<u64, Arc<Partition>>>,
    /// Hidden partitions: their contents are being created or replaced.
    unfinished: RwLock<BTreeMap<u64, Arc<Partition>>>,
    /// Audit values whose credentials are refused.
    frozen_audits: RwLock<BTreeSet<[u8; 20]>>,
    /// Number of created and removed partitions.
    changes: AtomicU64,
    /// Latest created time of any removed object. Later objects must get a later one.
    retired_ms: Mutex<u64>,
}

impl Catalog {
    /// Loads everything from the store. Creates the root object in a new store. A damaged record of
    /// an object or a partition leaves all others usable.
    pub(crate) fn load(store: &dyn ObjectStore, defaults: MethodDefaults) -> Result<Self, StoreError> {
        match store.stat(ObjectId::ROOT) {
            Err(StoreError::NotFound(_)) => store.create(ObjectId::ROOT, ObjectType::Root)?,
            other => drop(other?),
        }
        let catalog = Self {
            defaults,
            root: RwLock::new(read_root(store, defaults)?),
            partitions: RwLock::new(BTreeMap::new()),
            unfinished: RwLock::new(BTreeMap::new()),
            frozen_audits: RwLock::new(read_frozen_audits(store)?),
            changes: AtomicU64::new(0),
            retired_ms: Mutex::new(0),
        };
        let mut from = ObjectId::of_partition(ObjectId::FIRST_ASSIGNABLE);
        loop {
            let found = store.list_known(from, SCAN_STEP)?;
            let Some(&(last, _)) = found.last() else { break };
            for (id, kind) in found {
                match kind {
                    ObjectType::Partition => match catalog.add(store, id.partition) {
                        Err(StoreError::IndexDamaged { .. }) => log_unavailable(id),
                        added => drop(added?),
                    },
                    // The store lists an object with a damaged record as a user object.
                    ObjectType::User if id.is_partition() => log_unavailable(id),
                    ObjectType::User => {
                        if let Some(partition) = catalog.partition(id.partition) {
                            partition.object_created(id.object);
                            partition.settle(0, 0, used_bytes(store, id)?);
                        }
                    }
                    ObjectType::Collection => {
                        if let Some(partition) = catalog.partition(id.partition) {
                            partition.collection_created(id.object);
                        }
                    }
                    ObjectType::Root => {}
                }
            }
            let Some(next) = successor(last) else { break };
            from = next;
        }
        Ok(catalog)
    }

    pub(crate) fn root(&self) -> RootPolicy {
        *self.root.read()
    }

    pub(crate) fn partition(&self, id: u64) -> Option<Arc<Partition>> {
        self.partitions.read().get(&id).cloned()
    }

    /// Returns how far nonces of a partition (0: of the root) may be before and after the clock, in
    /// milliseconds.
    pub(crate) fn nonce_window(&self, partition: u64) -> (u64, u64) {
        let root = self.root().policy;
        let own = self.partition(partition).map_or(root, |partition| partition.policy());
        let oldest = own.oldest_nonce_ms.min(root.oldest_nonce_ms);
        (oldest, own.newest_nonce_ms.min(root.newest_nonce_ms))
    }

    /// Returns how many partitions were created or removed since the start.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(crate) fn partition_count(&self) -> u64 {
        self.partitions.read().len() as u64
    }

    /// Returns up to `max` ids of partitions from `from` on, ascending.
    pub(crate) fn partition_ids(&self, from: u64, max: usize) -> Vec<u64> {
        self.partitions.read().range(from..).take(max).map(|(&id, _)| id).collect()
    }

    /// Returns the ids of hidden partitions.
    pub(crate) fn unfinished_ids(&self) -> Vec<u64> {
        self.unfinished.read().keys().copied().collect()
    }

    /// Whether the partition is hidden at the moment.
    pub(crate) fn is_hidden(&self, id: u64) -> bool {
        self.unfinished.read().contains_key(&id)
    }

    /// Returns the policy of a partition, even if it is hidden: it must be protected then too.
    pub(crate) fn policy(&self, id: u64) -> Option<ContainerPolicy> {
        let hidden = || self.unfinished.read().get(&id).cloned();
        self.partition(id).or_else(hidden).map(|partition| partition.policy())
    }

    /// Whether the partition id is in use, hidden or not.
    pub(crate) fn is_taken(&self, id: u64) -> bool {
        self.partitions.read().contains_key(&id) || self.unfinished.read().contains_key(&id)
    }

    /// Hides a partition until it is published.
    pub(crate) fn hide(&self, id: u64) {
        let hidden = self.partitions.write().remove(&id);
        self.unfinished.write().extend(hidden.map(|partition| (id, partition)));
    }

    /// Makes a hidden partition visible and returns it.
    pub(crate) fn publish(&self, id: u64) -> Option<Arc<Partition>> {
        let partition = self.unfinished.write().remove(&id)?;
        self.partitions.write().insert(id, Arc::clone(&partition));
        Some(partition)
    }

    /// Returns the smallest partition id that is free and assignable.
    pub(crate) fn free_partition_id(&self) -> Option<u64> {
        let last = |partitions: &BTreeMap<u64, _>| partitions.keys().next_back().copied();
        let last = last(&self.partitions.read()).max(last(&self.unfinished.read()));
        let after_last = last.map_or(Some(ObjectId::FIRST_ASSIGNABLE), |last| last.checked_add(1));
        after_last.or_else(|| (ObjectId::FIRST_ASSIGNABLE..).find(|id| !self.is_taken(*id)))
    }

    /// Adds a partition that exists in the store.
    pub(crate) fn add(&self, store: &dyn ObjectStore, id: u64) -> Result<Arc<Partition>, StoreError> {
        let partition = Arc::new(Partition {
            id,
            used: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            collections: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            next_object: AtomicU64::new(ObjectId::FIRST_ASSIGNABLE),
            policy: RwLock::new(read_partition(store, id, self.defaults)?),
        });
        let visible = duplicates::unfinished(store, id)?.is_none();
        let map = if visible { &self.partitions } else { &self.unfinished };
        map.write().insert(id, Arc::clone(&partition));
        self.changes.fetch_add(1, Ordering::Relaxed);
        Ok(partition)
    }

    pub(crate) fn remove(&self, id: u64) {
        self.partitions.write().remove(&id);
        self.unfinished.write().remove(&id);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// FORMAT OSD: forgets all partitions.
    pub(crate) fn clear(&self) {
        self.partitions.write().clear();
        self.unfinished.write().clear();
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reload_root(&self, store: &dyn ObjectStore) -> Result<(), StoreError> {
        let fresh = read_root(store, self.defaults)?;
        *self.root.write() = fresh;
        let frozen = read_frozen_audits(store)?;
        *self.frozen_audits.write() = frozen;
        Ok(())
    }

    /// Whether credentials with this audit value are refused.
    pub(crate) fn audit_frozen(&self, audit: &[u8; 20]) -> bool {
        self.frozen_audits.read().contains(audit)
    }

    pub(crate) fn reload_partition(&self, store: &dyn ObjectStore, id: u64) -> Result<(), StoreError> {
        let hidden = || self.unfinished.read().get(&id).cloned();
        if let Some(partition) = self.partition(id).or_else(hidden) {
            let fresh = read_partition(store, id, self.defaults)?;
            *partition.policy.write() = fresh;
        }
        Ok(())
    }

    /// Records the created time of a removed object.
    pub(crate) fn retire(&self, created_ms: u64) {
        let mut retired = self.retired_ms.lock();
        *retired = (*retired).max(created_ms);
    }

    /// Returns a created time that no removed object had, so that a reused id is distinguishable.
    pub(crate) fn birth(&self, now_ms: u64) -> u64 {
        now_ms.max(self.retired_ms.lock().saturating_add(1))
    }
}

/// Stores the usable capacity given to FORMAT OSD.
pub(crate) fn store_formatted_capacity(store: &dyn ObjectStore, capacity: u64) -> Result<(), StoreError> {
    set(store, ObjectId::ROOT, FORMATTED_CAPACITY, &capacity.to_be_bytes())
}

/// Stores the offset to the machine's clock.
pub(crate) fn store_clock_offset(store: &dyn ObjectStore, offset_ms: i64) -> Result<(), StoreError> {
    set(store, ObjectId::ROOT, CLOCK_OFFSET, &offset_ms.to_be_bytes())
}

/// Returns the offset to the machine's clock; 0 if none was set.
pub(crate) fn clock_offset(store: &dyn ObjectStore) -> Result<i64, StoreError> {
    match get(store, ObjectId::ROOT, CLOCK_OFFSET) {
        Ok(value) => Ok(value.and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_be_bytes)),
        // A new store has no root yet.
        Err(StoreError::NotFound(_)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Returns the next id in LIST order.
pub(crate) fn successor(id: ObjectId) -> Option<ObjectId> {
    match id.object.checked_add(1) {
        Some(object) => Some(ObjectId::new(id.partition, object)),
        None => id.partition.checked_add(1).map(ObjectId::of_partition),
    }
}

/// Returns one stored attribute.
pub(crate) fn get(
    store: &dyn ObjectStore,
    object: ObjectId,
    id: AttributeId,
) -> Result<Option<Vec<u8>>, StoreError> {
    store.attribute(object, id)
}

/// Stores one attribute.
pub(crate) fn set(
    store: &dyn ObjectStore,
    object: ObjectId,
    id: AttributeId,
    value: &[u8],
) -> Result<(), StoreError> {
    store.set_attribute(object, id, value)
}

/// Returns a stored big-endian number of at most 8 bytes.
pub(crate) fn number(
    store: &dyn ObjectStore,
    object: ObjectId,
    id: AttributeId,
    default: u64,
) -> Result<u64, StoreError> {
    Ok(get(store, object, id)?.map_or(default, |value| be(&value)))
}

/// Returns the last 8 bytes of a big-endian number.
pub(crate) fn be(value: &[u8]) -> u64 {
    value.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// Encodes milliseconds as the 6 bytes of an attribute.
pub(crate) fn time(ms: u64) -> [u8; 6] {
    let [_, _, bytes @ ..] = ms.min((1 << 48) - 1).to_be_bytes();
    bytes
}

fn read_root(store: &dyn ObjectStore, defaults: MethodDefaults) -> Result<RootPolicy, StoreError> {
    let object = ObjectId::ROOT;
    let at = |page: u32, number: u32| AttributeId::new(ROOT + page, number);
    let policy = read_policy(store, object, ROOT, defaults.root_method)?;
    Ok(RootPolicy {
        policy,
        partition_method: method(
            number(store, object, at(page::SECURITY, 6), defaults.partition_method as u64)?,
            defaults.partition_method,
        ),
        partitions: number(store, object, at(page::QUOTAS, 0x20002), UNLIMITED)?,
        formatted_capacity: number(store, object, FORMATTED_CAPACITY, UNLIMITED)?.min(store.space().total),
        isolation: get(store, object, at(page::INFORMATION, 0x110))?
            .and_then(|value| isolation::method(&value))
            .unwrap_or(isolation::DEFAULT_METHOD),
    })
}

fn read_frozen_audits(store: &dyn ObjectStore) -> Result<BTreeSet<[u8; 20]>, StoreError> {
    let stored = store.attributes(ObjectId::ROOT, Some(ROOT + FROZEN_AUDITS))?;
    Ok(stored.into_iter().filter_map(|(_, value)| value.try_into().ok()).collect())
}

/// Logs a partition that is not in the catalog, so that commands do not find it.
fn log_unavailable(partition: ObjectId) {
    tracing::error!(%partition, "a record of the partition is damaged; it is unavailable");
}

/// Returns the bytes that an object uses; 0 if its record is damaged, so that the object can be
/// removed.
fn used_bytes(store: &dyn ObjectStore, id: ObjectId) -> Result<u64, StoreError> {
    match store.stat(id) {
        Err(StoreError::IndexDamaged { .. }) => {
            tracing::error!(object = %id, "the record of the object is damaged");
            Ok(0)
        }
        stat => Ok(stat?.used_bytes),
    }
}

fn read_partition(
    store: &dyn ObjectStore,
    id: u64,
    defaults: MethodDefaults,
) -> Result<ContainerPolicy, StoreError> {
    read_policy(store, ObjectId::of_partition(id), PARTITION, defaults.partition_method)
}

fn read_policy(
    store: &dyn ObjectStore,
    object: ObjectId,
    base: u32,
    default_method: SecurityMethod,
) -> Result<ContainerPolicy, StoreError> {
    let get = |page: u32, attribute: u32, default: u64| {
        number(store, object, AttributeId::new(base + page, attribute), default)
    };
    Ok(ContainerPolicy {
        default_method: method(get(page::SECURITY, 1, default_method as u64)?, default_method),
        oldest_nonce_ms: get(page::SECURITY, 2, OLDEST_NONCE_MS)?,
        newest_nonce_ms: get(page::SECURITY, 3, NEWEST_NONCE_MS)?,
        frozen_keys: (get(page::SECURITY, 5, 0)? & 0xFFFF) as u16,
        tag: low32(get(page::SECURITY, POLICY_ACCESS_TAG, 0)?),
        user_object_tag: low32(get(page::SECURITY, USER_OBJECT_TAG, 0)?),
        created_ms: get(page::TIMESTAMPS, 1, 0)?,
        bypass_timestamps: get(page::TIMESTAMPS, BYPASS, 0)? == u64::from(BYPASS_ALL),
        max_length: get(page::QUOTAS, 1, UNLIMITED)?,
        capacity: get(page::QUOTAS, 0x10001, UNLIMITED)?,
        objects: get(page::QUOTAS, 0x10002, UNLIMITED)?,
        collections_per_object: low32(get(page::QUOTAS, 0x10081, UNLIMITED)?),
        lineage: if object.is_root() { Lineage::default() } else { Lineage::read(store, object)? },
    })
}

fn low32(value: u64) -> u32 {
    (value & 0xFFFF_FFFF) as u32
}

/// Returns a stored method. Values are checked when set, so an invalid byte falls back to the
/// default.
fn method(value: u64, default: SecurityMethod) -> SecurityMethod {
    u8::try_from(value).ok().and_then(SecurityMethod::from_nibble).unwrap_or(default)
}
