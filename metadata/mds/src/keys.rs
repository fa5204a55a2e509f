//! Keys of records in the metadata store: the first byte is the family; numbers are big-endian, so
//! that ranges are in order.
//!
//! Truth: docs/standards/mds/store.md §8 has the same table.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    ClientId, DeviceId, GroupName, InodeId, IntentId, Name, ObjectRef, QuotaCursor, UserName, XattrName,
};
use sealstone_osd::ObjectId;

mod disks;
mod function_policy;

pub(crate) use disks::{
    disk, disk_key, disk_key_user, disk_keys, disk_of_user, disk_of_user_name, disk_public_key, disks_of_user,
};
pub(crate) use function_policy::{
    device_of_policy_due, function_policies, function_policy, policies_due, policy_due,
};

/// Version marker, server id, login keys, counters.
const META: u8 = b'm';
const INODE: u8 = b'i';
const ENTRY: u8 = b'd';
const INTENT: u8 = b't';
const INTENT_EXPIRY: u8 = b'e';
/// Quota charges of creates.
const CREATE_CHARGE: u8 = b'E';
/// Number of creates that users have begun.
const CREATE_COUNT: u8 = b'C';
/// Creates that ended before their credentials expired; they count until then.
const CREATE_SPENT: u8 = b'S';
/// Reservations for results of users.
const RESULT_COUNTS: u8 = b'I';
/// Reservations for results that ended before their credentials expired.
const RESULT_SPENT: u8 = b'J';
/// Bytes of an open create that are charged.
const CREATE_BYTES: u8 = b'D';
/// Maximum bytes of creates that are results of functions.
const FUNCTION_RESULT: u8 = b'R';
/// Creates that are copies of functions.
const FUNCTION_COPY: u8 = b'P';
const REAP: u8 = b'r';
const DEVICE: u8 = b'v';
const DEVICE_KEY: u8 = b'k';
const USER: u8 = b'u';
const GROUP: u8 = b'g';
const GROUP_OF_USER: u8 = b'h';
const MEMBER_OF_GROUP: u8 = b'j';
const SESSION: u8 = b's';
const SESSION_OF_USER: u8 = b'w';
const PAPER_KEY: u8 = b'p';
const PAPER_SESSION: u8 = b'q';
/// Policy access tags of objects whose tag is not the initial one.
const TAG: u8 = b'a';
/// Objects whose current tag is not yet set on their device.
const RETAG: u8 = b'o';
const REVOCATION: u8 = b'x';
/// Devices whose working keys a revocation replaces.
const REVOKED_KEYS: u8 = b'X';
/// Servers that use the store.
const SERVER: u8 = b'z';
const XATTR: u8 = b'y';
/// Orphans: files without a name that are open.
const ORPHAN: u8 = b'n';
/// Clients with open files.
const CLIENT: u8 = b'f';
/// Files whose objects hold truncated bytes.
const CLEAR: u8 = b'c';
/// Usage and limits of trees.
const QUOTA_OF_TREE: u8 = b'T';
/// Usage and limits of users.
const QUOTA_OF_USER: u8 = b'U';
/// Files with an object being moved to another device.
const MOVE: u8 = b'b';
/// Files being migrated to another layout.
const CARRY: u8 = b'B';
/// Files that may have outgrown their layout.
const OUTGROWN: u8 = b'G';
/// Devices that are being drained.
const DRAIN: u8 = b'l';

/// Locks of clients on files.
const LOCKED: u8 = b'L';
/// Number of locks of each user, if several servers share the store.
const LOCK_COUNT: u8 = b'K';
/// Fences of clients from files.
const FENCE: u8 = b'F';

/// Directory delegations.
const DELEGATION: u8 = b'A';
/// Inode numbers reserved for clients.
const RESERVED: u8 = b'N';

/// Addresses that accounts have logged in from.
const FAMILIAR: u8 = b'W';

/// Entries of the replay cache.
const ANSWER: u8 = b'1';

/// Name of the rebalance record.
pub(crate) const REBALANCE: &str = "rebalance";
/// Name of the record with the server's login keys.
pub(crate) const LOGIN_KEYS: &str = "login-keys";

fn key(family: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(family);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

/// Returns the smallest key above all keys that begin with `prefix`. It exists because families are
/// below FFh.
pub(crate) fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// Ranges of records that must stay secret from readers of the store: login keys, device keys,
/// sessions, and account and session keys of the paper's profile.
pub(crate) fn secrets() -> Vec<(Vec<u8>, Vec<u8>)> {
    let login_keys = meta(LOGIN_KEYS);
    let after = [&login_keys[..], &[0]].concat();
    let family = |first: u8| (vec![first], vec![first + 1]);
    vec![family(DEVICE_KEY), (login_keys, after), family(PAPER_KEY), family(PAPER_SESSION), family(SESSION)]
}

/// Whether the key is in one of the ranges of [`secrets`].
pub(crate) fn is_secret(key: &[u8]) -> bool {
    match key {
        [DEVICE_KEY | PAPER_KEY | PAPER_SESSION | SESSION, ..] => true,
        [META, name @ ..] => name == LOGIN_KEYS.as_bytes(),
        _ => false,
    }
}

pub(crate) fn meta(name: &str) -> Vec<u8> {
    key(META, &[name.as_bytes()])
}

pub(crate) fn inode(id: InodeId) -> Vec<u8> {
    key(INODE, &[&id.0.to_be_bytes()])
}

pub(crate) fn quota_of_user(name: &UserName) -> Vec<u8> {
    key(QUOTA_OF_USER, &[name.as_str().as_bytes()])
}

pub(crate) fn quotas_of_users() -> Vec<u8> {
    vec![QUOTA_OF_USER]
}

pub(crate) fn quota_of_tree(id: InodeId) -> Vec<u8> {
    key(QUOTA_OF_TREE, &[&id.0.to_be_bytes()])
}

pub(crate) fn quotas_of_trees() -> Vec<u8> {
    vec![QUOTA_OF_TREE]
}

/// Returns the user or tree of a quota key.
pub(crate) fn quota_subject(key: &[u8]) -> Option<QuotaCursor> {
    match key {
        [QUOTA_OF_USER, name @ ..] => {
            Some(QuotaCursor::User(UserName::new(std::str::from_utf8(name).ok()?).ok()?))
        }
        [QUOTA_OF_TREE, id @ ..] => Some(QuotaCursor::Tree(InodeId(u64::from_be_bytes(id.try_into().ok()?)))),
        _ => None,
    }
}

/// Returns the range of the inodes after this one, or of all.
pub(crate) fn inodes(after: Option<InodeId>) -> (Vec<u8>, Vec<u8>) {
    let from = after.map_or_else(|| vec![INODE], |id| [&inode(id)[..], &[0]].concat());
    (from, vec![INODE + 1])
}

/// Returns the number in an `inode` key.
pub(crate) fn inode_id(key: &[u8]) -> Option<InodeId> {
    Some(InodeId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

/// Returns the inode if the key is of an inode record.
pub(crate) fn changed_inode(key: &[u8]) -> Option<InodeId> {
    if key.first() == Some(&INODE) { inode_id(key) } else { None }
}

pub(crate) fn object_move(id: InodeId) -> Vec<u8> {
    key(MOVE, &[&id.0.to_be_bytes()])
}

pub(crate) fn object_moves() -> Vec<u8> {
    vec![MOVE]
}

pub(crate) fn migration(id: InodeId) -> Vec<u8> {
    key(CARRY, &[&id.0.to_be_bytes()])
}

pub(crate) fn migrations() -> Vec<u8> {
    vec![CARRY]
}

pub(crate) fn outgrown(id: InodeId) -> Vec<u8> {
    key(OUTGROWN, &[&id.0.to_be_bytes()])
}

/// Returns the range of the marks after that of `after`.
pub(crate) fn outgrowns(after: Option<InodeId>) -> (Vec<u8>, Vec<u8>) {
    let from = after.map_or(vec![OUTGROWN], |after| [&outgrown(after)[..], &[0]].concat());
    (from, after_prefix(&[OUTGROWN]))
}

/// Returns the file of an `outgrown` key.
pub(crate) fn outgrown_inode(key: &[u8]) -> Option<InodeId> {
    inode_id(key)
}

/// Returns the file of a `object_move` or `migration` key.
pub(crate) fn moving_inode(key: &[u8]) -> Option<InodeId> {
    inode_id(key)
}

pub(crate) fn drain(id: DeviceId) -> Vec<u8> {
    key(DRAIN, &[&id.0.to_be_bytes()])
}

pub(crate) fn drains() -> Vec<u8> {
    vec![DRAIN]
}

/// Returns the device of a `drain` key.
pub(crate) fn drain_device(key: &[u8]) -> Option<DeviceId> {
    Some(DeviceId(u32::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

pub(crate) fn entries(parent: InodeId) -> Vec<u8> {
    key(ENTRY, &[&parent.0.to_be_bytes()])
}

/// Prefix of the entries of all directories.
pub(crate) fn all_entries() -> Vec<u8> {
    vec![ENTRY]
}

/// Returns the directory of an entry's key, or the node of an extended attribute's key.
pub(crate) fn entry_parent(key: &[u8]) -> Option<InodeId> {
    Some(InodeId(u64::from_be_bytes(*key.get(1..)?.first_chunk()?)))
}

pub(crate) fn entry(parent: InodeId, name: &Name) -> Vec<u8> {
    key(ENTRY, &[&parent.0.to_be_bytes(), name.as_bytes()])
}

/// Returns the name in an entry's key.
pub(crate) fn entry_name(key: &[u8]) -> Option<Name> {
    Name::new(key.get(9..)?).ok()
}

pub(crate) fn xattr(id: InodeId, name: &XattrName) -> Vec<u8> {
    key(XATTR, &[&id.0.to_be_bytes(), name.as_bytes()])
}

pub(crate) fn xattrs(id: InodeId) -> Vec<u8> {
    key(XATTR, &[&id.0.to_be_bytes()])
}

/// Prefix of the extended attributes of all nodes.
pub(crate) fn all_xattrs() -> Vec<u8> {
    vec![XATTR]
}

/// Returns the name in the key of an extended attribute.
pub(crate) fn xattr_name(key: &[u8]) -> Option<XattrName> {
    XattrName::new(key.get(9..)?).ok()
}

pub(crate) fn orphan(due_ms: u64, id: InodeId) -> Vec<u8> {
    key(ORPHAN, &[&due_ms.to_be_bytes(), &id.0.to_be_bytes()])
}

pub(crate) fn all_orphans() -> Vec<u8> {
    vec![ORPHAN]
}

/// Returns due time and number of an `orphan` key.
pub(crate) fn orphan_parts(key: &[u8]) -> Option<(u64, InodeId)> {
    let (due, rest) = key.get(1..)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*due), InodeId(u64::from_be_bytes(rest.try_into().ok()?))))
}

/// Returns the range of orphans due at or before `due_ms`.
pub(crate) fn due_orphans(due_ms: u64) -> (Vec<u8>, Vec<u8>) {
    (vec![ORPHAN], key(ORPHAN, &[&due_ms.saturating_add(1).to_be_bytes()]))
}

pub(crate) fn client(user: &UserName, client_id: ClientId) -> Vec<u8> {
    key(CLIENT, &[user.as_str().as_bytes(), &[0], &client_id.number.to_be_bytes()])
}

pub(crate) fn clients() -> Vec<u8> {
    vec![CLIENT]
}

/// Returns user and number of a `client` key.
pub(crate) fn client_parts(key: &[u8]) -> Option<(UserName, ClientId)> {
    let (user, number) = key.get(1..)?.split_last_chunk()?;
    let user = UserName::new(std::str::from_utf8(user.strip_suffix(&[0])?).ok()?).ok()?;
    Some((user, ClientId { number: u64::from_be_bytes(*number) }))
}

fn of_node_and_client(family: u8, id: InodeId, (user, client_id): &(UserName, ClientId)) -> Vec<u8> {
    let (user, client_id) = (user.as_str().as_bytes(), client_id.number.to_be_bytes());
    key(family, &[&id.0.to_be_bytes(), user, &[0], &client_id])
}

pub(crate) fn locked(id: InodeId, client: &(UserName, ClientId)) -> Vec<u8> {
    of_node_and_client(LOCKED, id, client)
}

/// Prefix of the locks of all clients on a file.
pub(crate) fn locked_of(id: InodeId) -> Vec<u8> {
    key(LOCKED, &[&id.0.to_be_bytes()])
}

pub(crate) fn all_locked() -> Vec<u8> {
    vec![LOCKED]
}

/// Returns file and client of a `locked` or `fence` key.
pub(crate) fn locked_parts(key: &[u8]) -> Option<(InodeId, (UserName, ClientId))> {
    let (id, rest) = key.get(1..)?.split_first_chunk()?;
    let (user, number) = rest.split_last_chunk()?;
    let user = UserName::new(std::str::from_utf8(user.strip_suffix(&[0])?).ok()?).ok()?;
    Some((InodeId(u64::from_be_bytes(*id)), (user, ClientId { number: u64::from_be_bytes(*number) })))
}

pub(crate) fn lock_count(user: &UserName) -> Vec<u8> {
    key(LOCK_COUNT, &[user.as_str().as_bytes()])
}

pub(crate) fn fence(id: InodeId, client: &(UserName, ClientId)) -> Vec<u8> {
    of_node_and_client(FENCE, id, client)
}

pub(crate) fn fences() -> Vec<u8> {
    vec![FENCE]
}

pub(crate) fn delegation(id: InodeId) -> Vec<u8> {
    key(DELEGATION, &[&id.0.to_be_bytes()])
}

pub(crate) fn delegations() -> Vec<u8> {
    vec![DELEGATION]
}

/// Returns the directory of a `delegation` key.
pub(crate) fn delegation_directory(key: &[u8]) -> Option<InodeId> {
    inode_id(key)
}

pub(crate) fn reserved_inodes((user, client_id): &(UserName, ClientId)) -> Vec<u8> {
    key(RESERVED, &[user.as_str().as_bytes(), &[0], &client_id.number.to_be_bytes()])
}

/// Prefix of the numbers reserved for a user's clients.
pub(crate) fn reserved_inodes_of(user: &UserName) -> Vec<u8> {
    key(RESERVED, &[user.as_str().as_bytes(), &[0]])
}

pub(crate) fn all_reserved_inodes() -> Vec<u8> {
    vec![RESERVED]
}

pub(crate) fn answer(user: &UserName, client_id: ClientId, place: u16) -> Vec<u8> {
    let (client_id, place) = (client_id.number.to_be_bytes(), place.to_be_bytes());
    key(ANSWER, &[user.as_str().as_bytes(), &[0], &client_id, &place])
}

pub(crate) fn answers() -> Vec<u8> {
    vec![ANSWER]
}

/// Returns the user of an `answer` key.
pub(crate) fn answer_user(key: &[u8]) -> Option<UserName> {
    let (user, _place) = key.get(1..)?.split_last_chunk::<10>()?;
    UserName::new(std::str::from_utf8(user.strip_suffix(&[0])?).ok()?).ok()
}

pub(crate) fn clear(id: InodeId) -> Vec<u8> {
    key(CLEAR, &[&id.0.to_be_bytes()])
}

/// Returns the range of the clear records after this one, or of all.
pub(crate) fn clears(after: Option<InodeId>) -> (Vec<u8>, Vec<u8>) {
    let from = after.map_or_else(|| vec![CLEAR], |id| [&clear(id)[..], &[0]].concat());
    (from, vec![CLEAR + 1])
}

/// Returns the file of a `clear` key.
pub(crate) fn clear_inode(key: &[u8]) -> Option<InodeId> {
    Some(InodeId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

pub(crate) fn intent(id: IntentId) -> Vec<u8> {
    key(INTENT, &[&id.0.to_be_bytes()])
}

pub(crate) fn intents() -> Vec<u8> {
    vec![INTENT]
}

/// Returns the create of an `intent` key.
pub(crate) fn intent_id(key: &[u8]) -> Option<IntentId> {
    Some(IntentId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

pub(crate) fn intent_expiry(expires_ms: u64, id: IntentId) -> Vec<u8> {
    key(INTENT_EXPIRY, &[&expires_ms.to_be_bytes(), &id.0.to_be_bytes()])
}

pub(crate) fn all_expiries() -> Vec<u8> {
    vec![INTENT_EXPIRY]
}

/// Returns the expiry time in an `intent_expiry` key.
pub(crate) fn expiry_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*key.get(1..)?.first_chunk()?))
}

pub(crate) fn intent_of_expiry(key: &[u8]) -> Option<IntentId> {
    Some(IntentId(u64::from_be_bytes(*key.get(9..)?.first_chunk()?)))
}

pub(crate) fn create_charge(id: IntentId) -> Vec<u8> {
    key(CREATE_CHARGE, &[&id.0.to_be_bytes()])
}

pub(crate) fn create_bytes(id: IntentId) -> Vec<u8> {
    key(CREATE_BYTES, &[&id.0.to_be_bytes()])
}

pub(crate) fn function_result(id: IntentId) -> Vec<u8> {
    key(FUNCTION_RESULT, &[&id.0.to_be_bytes()])
}

pub(crate) fn function_results() -> Vec<u8> {
    vec![FUNCTION_RESULT]
}

pub(crate) fn function_copy(id: IntentId) -> Vec<u8> {
    key(FUNCTION_COPY, &[&id.0.to_be_bytes()])
}

pub(crate) fn create_charges() -> Vec<u8> {
    vec![CREATE_CHARGE]
}

pub(crate) fn create_count(user: &UserName) -> Vec<u8> {
    key(CREATE_COUNT, &[user.as_str().as_bytes()])
}

pub(crate) fn create_spent(until_ms: u64, id: IntentId) -> Vec<u8> {
    key(CREATE_SPENT, &[&until_ms.to_be_bytes(), &id.0.to_be_bytes()])
}

pub(crate) fn result_counts(user: &UserName) -> Vec<u8> {
    key(RESULT_COUNTS, &[user.as_str().as_bytes()])
}

pub(crate) fn result_spent(until_ms: u64, id: IntentId) -> Vec<u8> {
    key(RESULT_SPENT, &[&until_ms.to_be_bytes(), &id.0.to_be_bytes()])
}

/// Returns the range of `result_spent` keys due at or before `now_ms`.
pub(crate) fn due_result_spent(now_ms: u64) -> (Vec<u8>, Vec<u8>) {
    (vec![RESULT_SPENT], key(RESULT_SPENT, &[&now_ms.saturating_add(1).to_be_bytes()]))
}

/// Returns the range of `create_spent` keys due at or before `now_ms`.
pub(crate) fn due_spent(now_ms: u64) -> (Vec<u8>, Vec<u8>) {
    (vec![CREATE_SPENT], key(CREATE_SPENT, &[&now_ms.saturating_add(1).to_be_bytes()]))
}

/// Returns the range of creates that expire at or before `now_ms`.
pub(crate) fn expired_intents(now_ms: u64) -> (Vec<u8>, Vec<u8>) {
    (vec![INTENT_EXPIRY], key(INTENT_EXPIRY, &[&now_ms.saturating_add(1).to_be_bytes()]))
}

pub(crate) fn reap(due_ms: u64, object: ObjectRef) -> Vec<u8> {
    let ObjectRef { device, object } = object;
    let parts: [&[u8]; 4] = [
        &due_ms.to_be_bytes(),
        &device.0.to_be_bytes(),
        &object.partition.to_be_bytes(),
        &object.object.to_be_bytes(),
    ];
    key(REAP, &parts)
}

pub(crate) fn all_reaps() -> Vec<u8> {
    vec![REAP]
}

/// Returns due time and object of a `reap` key.
pub(crate) fn reap_parts(key: &[u8]) -> Option<(u64, ObjectRef)> {
    let (due, rest) = key.get(1..)?.split_first_chunk()?;
    let (device, rest) = rest.split_first_chunk()?;
    let (partition, rest) = rest.split_first_chunk()?;
    let object = rest.try_into().ok()?;
    let object = ObjectId::new(u64::from_be_bytes(*partition), u64::from_be_bytes(object));
    Some((u64::from_be_bytes(*due), ObjectRef { device: DeviceId(u32::from_be_bytes(*device)), object }))
}

fn of_object(family: u8, ObjectRef { device, object }: ObjectRef) -> Vec<u8> {
    let parts: [&[u8]; 3] =
        [&device.0.to_be_bytes(), &object.partition.to_be_bytes(), &object.object.to_be_bytes()];
    key(family, &parts)
}

pub(crate) fn tag(object: ObjectRef) -> Vec<u8> {
    of_object(TAG, object)
}

pub(crate) fn retag(object: ObjectRef) -> Vec<u8> {
    of_object(RETAG, object)
}

pub(crate) fn retags() -> Vec<u8> {
    vec![RETAG]
}

pub(crate) fn retags_of(device: DeviceId) -> Vec<u8> {
    key(RETAG, &[&device.0.to_be_bytes()])
}

/// Returns the object of a `retag` key.
pub(crate) fn retag_object(key: &[u8]) -> Option<ObjectRef> {
    let (device, rest) = key.get(1..)?.split_first_chunk()?;
    let (partition, rest) = rest.split_first_chunk()?;
    let object = ObjectId::new(u64::from_be_bytes(*partition), u64::from_be_bytes(rest.try_into().ok()?));
    Some(ObjectRef { device: DeviceId(u32::from_be_bytes(*device)), object })
}

pub(crate) fn revocation(id: u64) -> Vec<u8> {
    key(REVOCATION, &[&id.to_be_bytes()])
}

pub(crate) fn revocations() -> Vec<u8> {
    vec![REVOCATION]
}

/// Returns the number of a `revocation` key.
pub(crate) fn revocation_id(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..)?.try_into().ok()?))
}

pub(crate) fn revoked_keys(id: u64, device: DeviceId) -> Vec<u8> {
    key(REVOKED_KEYS, &[&id.to_be_bytes(), &device.0.to_be_bytes()])
}

/// Prefix of all `revoked_keys` of a revocation.
pub(crate) fn revoked_keys_of(id: u64) -> Vec<u8> {
    key(REVOKED_KEYS, &[&id.to_be_bytes()])
}

pub(crate) fn all_revoked_keys() -> Vec<u8> {
    vec![REVOKED_KEYS]
}

/// Returns revocation and device of a `revoked_keys` key.
pub(crate) fn revoked_keys_parts(key: &[u8]) -> Option<(u64, DeviceId)> {
    let (id, device) = key.get(1..)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*id), DeviceId(u32::from_be_bytes(device.try_into().ok()?))))
}

/// Returns the range of objects to be reaped at or before `now_ms`.
pub(crate) fn due_reaps(now_ms: u64) -> (Vec<u8>, Vec<u8>) {
    (vec![REAP], key(REAP, &[&now_ms.saturating_add(1).to_be_bytes()]))
}

pub(crate) fn server(name: &[u8; 16]) -> Vec<u8> {
    key(SERVER, &[name])
}

pub(crate) fn servers() -> Vec<u8> {
    vec![SERVER]
}

/// Returns the name in a `server` key.
pub(crate) fn server_name(key: &[u8]) -> Option<[u8; 16]> {
    key.get(1..)?.try_into().ok()
}

/// Whether the record is one that every server caches: a device or its keys.
pub(crate) fn is_device_record(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(DEVICE | DEVICE_KEY)))
}

/// Whether the record determines rights: users, groups and memberships.
pub(crate) fn is_account_record(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(USER | GROUP | GROUP_OF_USER | MEMBER_OF_GROUP)))
}

/// Whether the key is of a session.
pub(crate) fn is_session(key: &[u8]) -> bool {
    key.first() == Some(&SESSION)
}

pub(crate) fn device(id: DeviceId) -> Vec<u8> {
    key(DEVICE, &[&id.0.to_be_bytes()])
}

pub(crate) fn devices() -> Vec<u8> {
    vec![DEVICE]
}

/// Returns the number of a `device` key.
pub(crate) fn device_id(key: &[u8]) -> Option<DeviceId> {
    Some(DeviceId(u32::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

pub(crate) fn device_key(id: DeviceId) -> Vec<u8> {
    key(DEVICE_KEY, &[&id.0.to_be_bytes()])
}

/// Prefix of the partition keys of a device; they follow the device's own.
pub(crate) fn partition_keys(id: DeviceId) -> Vec<u8> {
    key(DEVICE_KEY, &[&id.0.to_be_bytes(), b"p"])
}

pub(crate) fn partition_key(id: DeviceId, partition: u64) -> Vec<u8> {
    key(DEVICE_KEY, &[&id.0.to_be_bytes(), b"p", &partition.to_be_bytes()])
}

/// Key of the record with the first partition whose stored keys are void.
pub(crate) fn void_keys(id: DeviceId) -> Vec<u8> {
    key(DEVICE_KEY, &[&id.0.to_be_bytes(), b"v"])
}

/// Returns the partition of a `partition_key`.
pub(crate) fn partition_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(6..)?.try_into().ok()?))
}

pub(crate) fn user(name: &UserName) -> Vec<u8> {
    key(USER, &[name.as_str().as_bytes()])
}

pub(crate) fn users() -> Vec<u8> {
    vec![USER]
}

pub(crate) fn group(name: &GroupName) -> Vec<u8> {
    key(GROUP, &[name.as_str().as_bytes()])
}

pub(crate) fn groups() -> Vec<u8> {
    vec![GROUP]
}

/// User and group names contain no zero byte, so one ends the first name.
pub(crate) fn groups_of(user: &UserName) -> Vec<u8> {
    key(GROUP_OF_USER, &[user.as_str().as_bytes(), &[0]])
}

pub(crate) fn group_of(user: &UserName, group: &GroupName) -> Vec<u8> {
    key(GROUP_OF_USER, &[user.as_str().as_bytes(), &[0], group.as_str().as_bytes()])
}

pub(crate) fn members_of(group: &GroupName) -> Vec<u8> {
    key(MEMBER_OF_GROUP, &[group.as_str().as_bytes(), &[0]])
}

pub(crate) fn member_of(group: &GroupName, user: &UserName) -> Vec<u8> {
    key(MEMBER_OF_GROUP, &[group.as_str().as_bytes(), &[0], user.as_str().as_bytes()])
}

/// Returns the rest of the key after a prefix: the last name in it.
pub(crate) fn name_after<'a>(prefix: &[u8], key: &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(key.strip_prefix(prefix)?).ok()
}

pub(crate) fn session(id: &SessionId) -> Vec<u8> {
    key(SESSION, &[id])
}

pub(crate) fn sessions() -> Vec<u8> {
    vec![SESSION]
}

/// Prefix of all sessions of the paper's profile.
pub(crate) fn paper_sessions() -> Vec<u8> {
    vec![PAPER_SESSION]
}

/// Prefix of the sessions of all users.
pub(crate) fn sessions_of_users() -> Vec<u8> {
    vec![SESSION_OF_USER]
}

/// User names contain no zero byte, so one ends the name.
pub(crate) fn sessions_of(user: &UserName) -> Vec<u8> {
    key(SESSION_OF_USER, &[user.as_str().as_bytes(), &[0]])
}

pub(crate) fn session_of(user: &UserName, id: &SessionId) -> Vec<u8> {
    key(SESSION_OF_USER, &[user.as_str().as_bytes(), &[0], id])
}

/// Key of the record with addresses that an account has logged in from.
pub(crate) fn familiar(name: &UserName) -> Vec<u8> {
    key(FAMILIAR, &[name.as_str().as_bytes()])
}

pub(crate) fn paper_key(name: &UserName) -> Vec<u8> {
    key(PAPER_KEY, &[name.as_str().as_bytes()])
}

/// Key of the secret keys of a session of the paper's profile.
pub(crate) fn paper_session(id: &SessionId) -> Vec<u8> {
    key(PAPER_SESSION, &[id])
}

/// Returns the session in a `session_of` key: its last 16 bytes.
pub(crate) fn session_of_id(key: &[u8]) -> Option<SessionId> {
    key.last_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_decode_to_their_parts(due: u64, device: u32, partition: u64, object: u64, intent: u64) {
            let object = ObjectRef { device: DeviceId(device), object: ObjectId::new(partition, object) };
            prop_assert_eq!(reap_parts(&reap(due, object)), Some((due, object)));
            prop_assert_eq!(retag_object(&retag(object)), Some(object));
            prop_assert_eq!(revocation_id(&revocation(due)), Some(due));
            prop_assert_eq!(orphan_parts(&orphan(due, InodeId(intent))), Some((due, InodeId(intent))));
            let client_id = (UserName::new("bob").unwrap(), ClientId { number: due });
            prop_assert_eq!(client_parts(&client(&client_id.0, client_id.1)), Some(client_id));
            prop_assert_eq!(clear_inode(&clear(InodeId(due))), Some(InodeId(due)));
            prop_assert_eq!(inode_id(&inode(InodeId(due))), Some(InodeId(due)));
            prop_assert_eq!(moving_inode(&object_move(InodeId(due))), Some(InodeId(due)));
            prop_assert_eq!(drain_device(&drain(DeviceId(device))), Some(DeviceId(device)));
            prop_assert_eq!(intent_id(&super::intent(IntentId(intent))), Some(IntentId(intent)));
            prop_assert_eq!(partition_of(&partition_key(DeviceId(device), due)), Some(due));
            prop_assert_eq!(intent_of_expiry(&intent_expiry(due, IntentId(intent))), Some(IntentId(intent)));
        }

        #[test]
        fn after_prefix_is_above_all_its_keys(prefix in prop::collection::vec(any::<u8>(), 0..6), tail in prop::collection::vec(any::<u8>(), 0..6)) {
            let prefix = [&[ENTRY][..], &prefix].concat();
            let key = [&prefix[..], &tail].concat();
            prop_assert!(prefix <= key && key < after_prefix(&prefix));
        }

        #[test]
        fn damaged_keys_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = (inode_id(&bytes), drain_device(&bytes), client_parts(&bytes), orphan_parts(&bytes), clear_inode(&bytes), xattr_name(&bytes), retag_object(&bytes), revocation_id(&bytes), intent_id(&bytes), partition_of(&bytes), reap_parts(&bytes), intent_of_expiry(&bytes), entry_name(&bytes), session_of_id(&bytes));
        }
    }

    #[test]
    fn secret_ranges_contain_exactly_the_secrets() {
        let within = |key: &[u8]| secrets().iter().any(|(from, until)| &from[..] <= key && key < &until[..]);
        for first in 0..=u8::MAX {
            for key in [vec![first], vec![first, 0], meta(LOGIN_KEYS), meta("login-keyz"), meta("version")] {
                assert_eq!(within(&key), is_secret(&key), "{key:?}");
            }
        }
    }

    #[test]
    fn the_longest_names_fit_into_keys() {
        let name = Name::new("x".repeat(255)).unwrap();
        assert!(entry(InodeId(u64::MAX), &name).len() <= crate::store::KEY_MAX);
    }
}
