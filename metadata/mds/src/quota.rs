//! Quotas: usage of each user and tree, and limits on it.
//!
//! Does: count nodes, their sizes, the bytes of their extended attributes, and open creates, for
//! every owner and every directory that is a tree; refuse changes beyond a limit; recount.
//! Does not: check the right to set limits, or count blocks of a device.
//! Contract: usage is updated in the transaction that changes the counted node, so it is exact
//! after every commit and crash. Each update reads and writes one record; nothing is walked.
//! Truth: docs/standards/mds/operations.md §5.9; docs/adr/0044-quotas.md;
//! docs/adr/0062-bounds-per-user.md.

use std::collections::BTreeMap;

use sealstone_mds_protocol::{
    ErrorCode, FilePath, InodeId, PAGE_MAX, Quota, QuotaChange, QuotaCursor, QuotaDrift, UserName, Wire as _,
    WireWriter, record,
};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Inode, decode, load, save};
use crate::store::{MetaError, Snapshot, Transaction, each_between};

/// Maximum bytes of quotas in a page; a frame has space for one more of the largest size.
const PAGE_BYTES: usize = 48 * 1024;

record! {
    /// Usage and limits of a user or tree.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct QuotaRecord {
        /// Total bytes of nodes, extended attributes and open creates.
        pub bytes: u64,
        /// Number of nodes.
        pub nodes: u64,
        /// Limit of bytes.
        pub bytes_max: Option<u64>,
        /// Limit of nodes.
        pub nodes_max: Option<u64>,
        /// Path of a tree when its limits were last set.
        pub path: Option<FilePath>,
    }
}

record! {
    /// The usage that an open create is charged with in one quota.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct QuotaCharge {
        /// Charged user or tree.
        pub place: QuotaCursor,
        /// Announced size minus the size of the replaced file.
        pub bytes: u64,
        /// 1, or 0 if it replaces a file of the same quota.
        pub nodes: u64,
    }
}

/// Usage of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UsageAmount {
    bytes: u64,
    nodes: u64,
}

impl UsageAmount {
    fn of(node: &Inode) -> Self {
        Self { bytes: node.size.saturating_add(u64::from(node.xattr_bytes)), nodes: 1 }
    }

    const fn bytes(bytes: u64) -> Self {
        Self { bytes, nodes: 0 }
    }
}

/// A user or tree whose usage includes a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UsageCount<'a> {
    User(&'a UserName),
    Tree(InodeId),
}

impl UsageCount<'_> {
    fn key(self) -> Vec<u8> {
        match self {
            Self::User(name) => keys::quota_of_user(name),
            Self::Tree(id) => keys::quota_of_tree(id),
        }
    }

    fn place(self) -> QuotaCursor {
        match self {
            Self::User(name) => QuotaCursor::User(name.clone()),
            Self::Tree(id) => QuotaCursor::Tree(id),
        }
    }

    /// Returns the additional usage of a node that replaces `instead`.
    fn more(self, node: &Inode, instead: Option<&Inode>) -> UsageAmount {
        let more = UsageAmount::of(node);
        // A file with other names, or an open one, may continue to exist; its removal is counted
        // later.
        match instead.filter(|old| old.links <= 1 && counts(old).any(|of| of == self)) {
            Some(old) => {
                UsageAmount { bytes: more.bytes.saturating_sub(UsageAmount::of(old).bytes), nodes: 0 }
            }
            None => more,
        }
    }

    /// Loads the record; empty if there is none.
    fn load<S: Snapshot + ?Sized>(self, view: &S) -> Result<QuotaRecord> {
        Ok(load(view, &self.key())?.unwrap_or_default())
    }

    /// Saves the record, or deletes it if it has neither usage nor limits. A tree counts its own
    /// directory, so a tree without nodes no longer exists and loses its limits.
    fn save(self, tx: &mut dyn Transaction, record: &QuotaRecord) -> Result<()> {
        let unlimited = record.bytes_max.is_none() && record.nodes_max.is_none();
        let needless = record.nodes == 0 && record.bytes == 0 && (unlimited || matches!(self, Self::Tree(_)));
        let saved = if needless { tx.delete(&self.key()) } else { save(tx, &self.key(), record) };
        Ok(saved?)
    }

    fn refused(self, code: ErrorCode, used: &str, record: &QuotaRecord) -> MdsError {
        let whose = match (self, &record.path) {
            (Self::User(name), _) => format!("user {name}"),
            (Self::Tree(_), Some(path)) => format!("tree {path}"),
            (Self::Tree(id), None) => format!("tree of node {}", id.0),
        };
        MdsError::refused(code, format!("{whose}: {used}"))
    }

    /// Returns the record with additional usage, if its limits allow it.
    fn with_added(self, mut record: QuotaRecord, more: UsageAmount) -> Result<QuotaRecord> {
        let bytes = record
            .bytes
            .checked_add(more.bytes)
            .ok_or_else(|| self.refused(ErrorCode::Limit, "total size exceeds 64 bits", &record))?;
        let nodes = record.nodes.saturating_add(more.nodes);
        if let Some(max) = record.bytes_max.filter(|max| more.bytes > 0 && bytes > *max) {
            let used = format!("{} of {max} bytes in use, {} more requested", record.bytes, more.bytes);
            return Err(self.refused(ErrorCode::Quota, &used, &record));
        }
        if let Some(max) = record.nodes_max.filter(|max| more.nodes > 0 && nodes > *max) {
            let used = format!("{} of {max} files in use", record.nodes);
            return Err(self.refused(ErrorCode::Quota, &used, &record));
        }
        (record.bytes, record.nodes) = (bytes, nodes);
        Ok(record)
    }

    fn subtract(self, tx: &mut dyn Transaction, less: UsageAmount) -> Result<()> {
        let mut record = self.load(tx)?;
        // Never below zero: a wrong count must not block removals, and a check finds it.
        record.bytes = record.bytes.saturating_sub(less.bytes);
        record.nodes = record.nodes.saturating_sub(less.nodes);
        self.save(tx, &record)
    }
}

/// Returns the user and tree whose usage includes a node.
fn counts(node: &Inode) -> impl Iterator<Item = UsageCount<'_>> {
    core::iter::once(UsageCount::User(&node.owner)).chain(node.tree.map(UsageCount::Tree))
}

/// Adds usage to all counts of a node, or to none if one of them refuses.
fn add(tx: &mut dyn Transaction, node: &Inode, more: UsageAmount) -> Result<()> {
    let mut added = Vec::with_capacity(2);
    for count in counts(node) {
        added.push((count, count.with_added(count.load(tx)?, more)?));
    }
    added.into_iter().try_for_each(|(count, record)| count.save(tx, &record))
}

/// Adds the usage of a new node; the caller saves the node.
pub(crate) fn charge_node(tx: &mut dyn Transaction, node: &Inode) -> Result<()> {
    add(tx, node, UsageAmount::of(node))
}

/// Subtracts the usage of a node that is dropped: for an open file at the last close, not at the
/// removal of its last name.
pub(crate) fn release_node(tx: &mut dyn Transaction, node: &Inode) -> Result<()> {
    counts(node).try_for_each(|count| count.subtract(tx, UsageAmount::of(node)))
}

/// Updates usage for a new size of a node, which still has the old one. If it fails, nothing is
/// changed.
pub(crate) fn resize(tx: &mut dyn Transaction, node: &Inode, size: u64) -> Result<()> {
    change_bytes(tx, node, node.size, size)
}

/// Updates usage for a new total of the extended attributes of a node. If it fails, nothing is
/// changed.
pub(crate) fn resize_xattrs(tx: &mut dyn Transaction, node: &Inode, bytes: u32) -> Result<()> {
    change_bytes(tx, node, node.xattr_bytes.into(), bytes.into())
}

fn change_bytes(tx: &mut dyn Transaction, node: &Inode, before: u64, after: u64) -> Result<()> {
    match after.checked_sub(before) {
        Some(0) => Ok(()),
        Some(more) => add(tx, node, UsageAmount::bytes(more)),
        None => counts(node).try_for_each(|count| count.subtract(tx, UsageAmount::bytes(before - after))),
    }
}

/// Charges a create of this node before it exists; `instead` is the replaced file. If it fails,
/// nothing is changed.
pub(crate) fn reserve(
    tx: &mut dyn Transaction,
    node: &Inode,
    instead: Option<&Inode>,
) -> Result<Vec<QuotaCharge>> {
    check_replacement(tx, node, instead)?;
    let mut charges = Vec::with_capacity(2);
    for count in counts(node) {
        let (mut record, more) = (count.load(tx)?, count.more(node, instead));
        record.bytes = record.bytes.saturating_add(more.bytes);
        record.nodes = record.nodes.saturating_add(more.nodes);
        count.save(tx, &record)?;
        charges.push(QuotaCharge { place: count.place(), bytes: more.bytes, nodes: more.nodes });
    }
    Ok(charges)
}

/// Whether one of these quotas limits bytes.
pub(crate) fn limits_bytes<S: Snapshot + ?Sized>(view: &S, charges: &[QuotaCharge]) -> Result<bool> {
    for charge in charges {
        if of(&charge.place).load(view)?.bytes_max.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Charges an open create with more bytes. If it fails, nothing is changed.
pub(crate) fn charge_more(tx: &mut dyn Transaction, charges: &mut [QuotaCharge], bytes: u64) -> Result<()> {
    let mut records = Vec::with_capacity(charges.len());
    for charge in &*charges {
        let of = of(&charge.place);
        records.push(of.with_added(of.load(tx)?, UsageAmount::bytes(bytes))?);
    }
    for (charge, record) in charges.iter_mut().zip(&records) {
        of(&charge.place).save(tx, record)?;
        charge.bytes = charge.bytes.saturating_add(bytes);
    }
    Ok(())
}

/// Subtracts the charges of a create that ends.
pub(crate) fn release(tx: &mut dyn Transaction, charges: &[QuotaCharge]) -> Result<()> {
    for QuotaCharge { place, bytes, nodes } in charges {
        of(place).subtract(tx, UsageAmount { bytes: *bytes, nodes: *nodes })?;
    }
    Ok(())
}

const fn of(place: &QuotaCursor) -> UsageCount<'_> {
    match place {
        QuotaCursor::User(name) => UsageCount::User(name),
        QuotaCursor::Tree(id) => UsageCount::Tree(*id),
    }
}

/// Fails for further names of a node by other users if its owner or tree has a limit: the owner
/// could not free usage that such a name keeps.
pub(crate) fn check_link<S: Snapshot + ?Sized>(view: &S, principal: &Principal, node: &Inode) -> Result<()> {
    if principal.user == node.owner || principal.is_admin() {
        return Ok(());
    }
    for count in counts(node) {
        let record = count.load(view)?;
        if record.bytes_max.is_some() || record.nodes_max.is_some() {
            let why = "file counts in a quota: only its owner may add names";
            return Err(MdsError::refused(ErrorCode::NotPermitted, why));
        }
    }
    Ok(())
}

/// Moves the usage of a node to another owner.
pub(crate) fn move_usage(tx: &mut dyn Transaction, node: &Inode, owner: &UserName) -> Result<()> {
    UsageCount::User(&node.owner).subtract(tx, UsageAmount::of(node))?;
    let record = UsageCount::User(owner).load(tx)?;
    UsageCount::User(owner).save(tx, &UsageCount::User(owner).with_added(record, UsageAmount::of(node))?)
}

/// Checks whether [`charge_node`] would succeed if `instead` was removed before.
pub(crate) fn check_replacement<S: Snapshot + ?Sized>(
    view: &S,
    node: &Inode,
    instead: Option<&Inode>,
) -> Result<()> {
    for count in counts(node) {
        count.with_added(count.load(view)?, count.more(node, instead))?;
    }
    Ok(())
}

/// Returns the number of bytes by which a node may grow; none: no limit.
pub(crate) fn free_bytes<S: Snapshot + ?Sized>(view: &S, node: &Inode) -> Result<Option<u64>> {
    let mut free = None;
    for count in counts(node) {
        let record = count.load(view)?;
        if let Some(max) = record.bytes_max {
            let left = max.saturating_sub(record.bytes);
            free = Some(free.map_or(left, |free: u64| free.min(left)));
        }
    }
    Ok(free)
}

/// Fails unless a node may grow by this number of bytes. Changes nothing.
pub(crate) fn check_growth<S: Snapshot + ?Sized>(view: &S, node: &Inode, more: u64) -> Result<()> {
    for count in counts(node) {
        count.with_added(count.load(view)?, UsageAmount::bytes(more))?;
    }
    Ok(())
}

/// Space and node counts as in `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceFigures {
    pub(crate) total: u64,
    pub(crate) used: u64,
    pub(crate) nodes: u64,
    pub(crate) nodes_free: u64,
}

/// Applies the limits of a user and a tree to the figures.
pub(crate) fn limit_figures<S: Snapshot + ?Sized>(
    view: &S,
    user: &UserName,
    tree: Option<InodeId>,
    mut quota_info: SpaceFigures,
) -> Result<SpaceFigures> {
    for count in core::iter::once(UsageCount::User(user)).chain(tree.map(UsageCount::Tree)) {
        let record = count.load(view)?;
        if let Some(max) = record.bytes_max {
            let free = quota_info.total.saturating_sub(quota_info.used).min(max.saturating_sub(record.bytes));
            quota_info.total = quota_info.total.min(max).max(free);
            quota_info.used = quota_info.total - free;
        }
        if let Some(max) = record.nodes_max {
            let free = max.saturating_sub(record.nodes);
            if free < quota_info.nodes_free {
                (quota_info.nodes, quota_info.nodes_free) = (record.nodes, free);
            }
        }
    }
    Ok(quota_info)
}

fn apply(record: &mut QuotaRecord, change: &QuotaChange) {
    record.bytes_max = change.bytes_max.unwrap_or(record.bytes_max);
    record.nodes_max = change.nodes_max.unwrap_or(record.nodes_max);
}

fn quota_info(place: QuotaCursor, record: QuotaRecord) -> Quota {
    let QuotaRecord { bytes, nodes, bytes_max, nodes_max, path } = record;
    Quota { place, path, bytes, nodes, bytes_max, nodes_max }
}

/// Returns usage and limits of a user.
pub(crate) fn of_user<S: Snapshot + ?Sized>(view: &S, name: &UserName) -> Result<Quota> {
    Ok(quota_info(QuotaCursor::User(name.clone()), UsageCount::User(name).load(view)?))
}

/// Returns usage and limits of a tree; its path may be outdated.
pub(crate) fn of_tree<S: Snapshot + ?Sized>(view: &S, tree: InodeId) -> Result<Quota> {
    Ok(quota_info(QuotaCursor::Tree(tree), UsageCount::Tree(tree).load(view)?))
}

/// Sets a user's limits. Usage may already exceed them; then it only cannot grow.
pub(crate) fn set_user(tx: &mut dyn Transaction, name: &UserName, change: &QuotaChange) -> Result<Quota> {
    let mut record = UsageCount::User(name).load(tx)?;
    apply(&mut record, change);
    UsageCount::User(name).save(tx, &record)?;
    Ok(quota_info(QuotaCursor::User(name.clone()), record))
}

/// Sets the limits of a tree. A directory without a tree, which must be empty, becomes one.
pub(crate) fn set_tree(
    tx: &mut dyn Transaction,
    (id, directory): (InodeId, &mut Inode),
    path: &FilePath,
    change: &QuotaChange,
) -> Result<Quota> {
    let mut record = UsageCount::Tree(id).load(tx)?;
    if directory.tree.is_none() {
        directory.tree = Some(id);
        save(tx, &keys::inode(id), directory)?;
        let UsageAmount { bytes, nodes } = UsageAmount::of(directory);
        (record.bytes, record.nodes) = (bytes, nodes);
    }
    record.path = Some(path.clone());
    apply(&mut record, change);
    UsageCount::Tree(id).save(tx, &record)?;
    Ok(quota_info(QuotaCursor::Tree(id), record))
}

/// Removes the limits of a tree. If its directory is `empty` and no node of it is open, the
/// directory is no longer a tree.
pub(crate) fn clear_tree(
    tx: &mut dyn Transaction,
    (id, directory): (InodeId, &mut Inode),
    empty: bool,
) -> Result<Quota> {
    let mut record = UsageCount::Tree(id).load(tx)?;
    (record.bytes_max, record.nodes_max) = (None, None);
    if empty && record.nodes == 1 {
        directory.tree = None;
        save(tx, &keys::inode(id), directory)?;
        (record.bytes, record.nodes) = (0, 0);
    }
    UsageCount::Tree(id).save(tx, &record)?;
    Ok(quota_info(QuotaCursor::Tree(id), record))
}

/// Returns a page of all quotas: users by name, then trees.
pub(crate) fn list<S: Snapshot + ?Sized>(
    view: &S,
    after: Option<&QuotaCursor>,
    limit: u16,
) -> Result<(Vec<Quota>, bool)> {
    let limit = usize::from(limit.clamp(1, PAGE_MAX));
    let (users, trees) = (keys::quotas_of_users(), keys::quotas_of_trees());
    let from = |place: &QuotaCursor| [&key(place)[..], &[0]].concat();
    // In the store trees come before users, in the list after them.
    let mut ranges = Vec::new();
    match after {
        Some(place @ QuotaCursor::Tree(_)) => ranges.push((from(place), keys::after_prefix(&trees))),
        _ => {
            ranges.push((after.map_or_else(|| users.clone(), from), keys::after_prefix(&users)));
            ranges.push((trees.clone(), keys::after_prefix(&trees)));
        }
    }
    let (mut quotas, mut bytes) = (Vec::new(), 0);
    for (from, until) in ranges {
        for (key, value) in view.scan(&from, &until, limit + 1 - quotas.len())? {
            if quotas.len() == limit || bytes > PAGE_BYTES {
                return Ok((quotas, true));
            }
            let quota = quota_info(place(&key)?, decode(&value)?);
            let mut out = WireWriter::new();
            quota.put(&mut out);
            bytes += out.len();
            quotas.push(quota);
        }
    }
    Ok((quotas, false))
}

fn key(place: &QuotaCursor) -> Vec<u8> {
    match place {
        QuotaCursor::User(name) => keys::quota_of_user(name),
        QuotaCursor::Tree(id) => keys::quota_of_tree(*id),
    }
}

fn place(key: &[u8]) -> Result<QuotaCursor> {
    Ok(keys::quota_subject(key).ok_or(MetaError::Damaged("quota record without a user or tree"))?)
}

/// Counts all nodes again and returns the counts that differ. O(nodes), memory O(owners and trees).
/// `seen` is called for each node and may end the count.
pub(crate) fn count<S: Snapshot + ?Sized>(
    view: &S,
    seen: impl Fn() -> Result<()>,
) -> Result<Vec<QuotaDrift>> {
    let mut found: BTreeMap<Vec<u8>, UsageAmount> = BTreeMap::new();
    let (start, end) = keys::inodes(None);
    each_between(view, &start, &end, |_, value| {
        let node: Inode = decode(value)?;
        for count in counts(&node) {
            let amount = found.entry(count.key()).or_default();
            let own = UsageAmount::of(&node);
            amount.nodes = amount.nodes.saturating_add(own.nodes);
            amount.bytes = amount.bytes.saturating_add(own.bytes);
        }
        seen()
    })?;
    let charges = keys::create_charges();
    each_between(view, &charges, &keys::after_prefix(&charges), |_, value| {
        for charge in decode::<Vec<QuotaCharge>>(value)? {
            let amount = found.entry(key(&charge.place)).or_default();
            amount.nodes = amount.nodes.saturating_add(charge.nodes);
            amount.bytes = amount.bytes.saturating_add(charge.bytes);
        }
        seen()
    })?;
    let mut drifts = Vec::new();
    let mut compare = |key: &[u8], had: UsageAmount, is: UsageAmount| {
        if had != is {
            drifts.push(QuotaDrift {
                place: place(key)?,
                bytes: had.bytes,
                nodes: had.nodes,
                bytes_found: is.bytes,
                nodes_found: is.nodes,
            });
        }
        Ok::<_, MdsError>(())
    };
    for family in [keys::quotas_of_users(), keys::quotas_of_trees()] {
        each_between(view, &family, &keys::after_prefix(&family), |key, value| {
            let record: QuotaRecord = decode(value)?;
            let is = found.remove(key).unwrap_or_default();
            compare(key, UsageAmount { bytes: record.bytes, nodes: record.nodes }, is)
        })?;
    }
    for (key, is) in found {
        compare(&key, UsageAmount::default(), is)?;
    }
    Ok(drifts)
}

/// Applies the differences that [`count`] found to the current counts. Changes in between are kept,
/// unless a count would fall below zero; the next count finds that.
pub(crate) fn apply_drifts(tx: &mut dyn Transaction, drifts: &[QuotaDrift]) -> Result<()> {
    for drift in drifts {
        let of = match &drift.place {
            QuotaCursor::User(name) => UsageCount::User(name),
            QuotaCursor::Tree(id) => UsageCount::Tree(*id),
        };
        let mut record = of.load(tx)?;
        let moved = |now: u64, had: u64, is: u64| now.saturating_add(is).saturating_sub(had);
        record.bytes = moved(record.bytes, drift.bytes, drift.bytes_found);
        record.nodes = moved(record.nodes, drift.nodes, drift.nodes_found);
        of.save(tx, &record)?;
    }
    Ok(())
}
