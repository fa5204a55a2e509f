//! Plans the next key changes of a device.
//!
//! Does: find, from the key state alone, the steps that bring the device to keys set by the server,
//! and to new ones when they are due or requested.
//! Does not: store; the caller does, before it performs a step.
//! Contract: repeated after any outcome, it converges. The steps of a plan are of different
//! partitions, or there is only one.

use sealstone_crypto::dh::{DhGroup, DhSecret};
use sealstone_mds_protocol::KeyLevel;
use sealstone_osd::cdb::{DhStep, KeyToSet, SetKey, SetMasterKey};
use sealstone_osd::master_key::BothValues;
use sealstone_osd::{AttributeId, Command, ObjectId, Permissions};
use sealstone_seal::exchange::EXCHANGE_MS;
use sealstone_seal::{KeySelector, selector};

use super::step::{KeyAction, KeyStep, KeyStepKind, credential, set_key};
use super::{
    ASKED_MASTER, ASKED_PARTITION, ASKED_REVOKE, ASKED_ROOT, ASKED_WORKING, DeviceKeyState, KEY_MARGIN_MS,
    Keys, LEVEL_OVERWRITE, PartitionKeyState, PendingKey, UnsavedKeys, VERSIONS,
};
use crate::entropy::{Entropy, random};
use crate::error::Result;
use crate::store::MetaError;

/// Space for the device's value: the largest group, with its length in front.
const DEVICE_VALUE_MAX: u32 = 4 + 512;

/// Time after a seed exchange in which its change step may still be accepted, milliseconds: ten
/// seconds and the difference of clocks.
const SETTLE_MS: u64 = EXCHANGE_MS + 2_000;
/// Maximum time in the future at which a key may have been set by another server, milliseconds.
const AHEAD_OK_MS: u64 = 60_000;

/// Conditions for periodic key changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RotationPolicy {
    /// A working key is superseded at this age, milliseconds.
    pub(crate) working_age_ms: u64,
    /// A partition's pair is replaced at this age, milliseconds.
    pub(crate) partition_age_ms: u64,
    /// A working key is superseded after this many grants.
    pub(crate) credentials_max: u64,
    /// Lifetime of a grant: a superseded key is kept this long, milliseconds.
    pub(crate) grant_ms: u64,
    /// Group of SET MASTER KEY.
    pub(crate) group: DhGroup,
}

/// A seed exchange in progress: before the device's value, or with both values before the change
/// step.
pub(crate) enum SeedExchange {
    Begun(DhSecret),
    Agreed { group: DhGroup, client: Vec<u8>, device: Vec<u8> },
}

/// Returns the next steps, at most `limit`. The changed state has to be stored before the first
/// step is performed.
pub(crate) fn plan(
    key_state: &mut DeviceKeyState,
    keys: &Keys,
    exchange: &mut Option<SeedExchange>,
    policy: &RotationPolicy,
    limit: usize,
    now_ms: u64,
    rng: &mut dyn Entropy,
) -> Result<(Vec<KeyStep>, UnsavedKeys)> {
    let mut touched = UnsavedKeys::default();
    match top(key_state, keys, exchange, policy, &mut touched, now_ms, rng)? {
        TopPlan::Step(step) => return Ok((vec![*step], touched)),
        TopPlan::Wait => return Ok((Vec::new(), touched)),
        TopPlan::Settled => {}
    }
    let mut steps = Vec::new();
    let root_version = key_state.current(keys, 0);
    let mut counter = key_state.counter;
    for (&id, part) in &mut key_state.parts {
        if steps.len() >= limit {
            break;
        }
        let mut turn = PartitionPlanner { id, keys, policy, now_ms, counter: &mut counter, root_version };
        if let Some(step) = turn.next(part, &mut touched, rng)? {
            steps.push(step);
            // Other partitions can be changed only after partition zero accepts our key.
            if id == 0 {
                break;
            }
        }
    }
    if counter != key_state.counter {
        key_state.counter = counter;
        touched.top = true;
    }
    Ok((steps, touched))
}

fn next_number(counter: &mut u64) -> u64 {
    let number = *counter;
    *counter = counter.wrapping_add(1);
    number
}

/// Next step for master and root key.
enum TopPlan {
    Step(Box<KeyStep>),
    /// A step is due, but not yet.
    Wait,
    Settled,
}

impl From<KeyStep> for TopPlan {
    fn from(step: KeyStep) -> Self {
        Self::Step(Box::new(step))
    }
}

/// Plans master and root key.
fn top(
    key_state: &mut DeviceKeyState,
    keys: &Keys,
    exchange: &mut Option<SeedExchange>,
    policy: &RotationPolicy,
    touched: &mut UnsavedKeys,
    now_ms: u64,
    rng: &mut dyn Entropy,
) -> Result<TopPlan> {
    if let Some(pending) = key_state.pending.clone() {
        let set =
            SetKey { partition: 0, key: KeyToSet::Root, identifier: pending.identifier, seed: pending.seed };
        if pending.level == KeyLevel::Root.code() {
            return set_key(keys, set, KeyStepKind::Root, rng).map(TopPlan::from);
        }
        if let Some(SeedExchange::Agreed { group, client, device }) = exchange.take() {
            return change_master(keys, key_state.master_identifier, group, &client, &device, rng)
                .map(TopPlan::from);
        }
        if key_state.proposed_refused {
            // While the device may still accept a late change step, wait. `abs_diff`, so that a
            // clock set back does not extend the wait.
            if now_ms.abs_diff(key_state.exchanged_ms) < SETTLE_MS {
                return Ok(TopPlan::Wait);
            }
            let mut set = set;
            set.identifier[6] ^= 1;
            return set_key(keys, set, KeyStepKind::RootUnderOld, rng).map(TopPlan::from);
        }
        let mut next = keys.clone();
        if !next.accept_master(key_state.master_identifier) {
            return Err(MetaError::Damaged("pending master key without its keys").into());
        }
        return set_key(&next, set, KeyStepKind::RootUnderNew, rng).map(TopPlan::from);
    }
    *exchange = None;
    if key_state.master_set_ms == 0 || key_state.asked & ASKED_MASTER != 0 {
        let secret = DhSecret::draw(policy.group, &mut |into: &mut [u8]| rng.fill_bytes(into));
        let value = secret.public();
        *exchange = Some(SeedExchange::Begun(secret));
        let set = SetMasterKey {
            step: DhStep::SeedExchange,
            group: policy.group.code(),
            identifier: [0; 7],
            parameter_length: value.len() as u32,
            allocation: DEVICE_VALUE_MAX,
        };
        let credential = master_credential(keys, &Command::SetMasterKey(set), rng)?;
        return Ok(KeyStep {
            action: KeyAction::ExchangeSeeds { set, value },
            credential,
            kind: KeyStepKind::SeedExchange,
        }
        .into());
    }
    let root_is_set = keys.signing_key(KeySelector::Root).is_some();
    if key_state.root_set_ms == 0 || !root_is_set || key_state.asked & ASKED_ROOT != 0 {
        let seed = random(rng);
        let mut next = keys.clone();
        next.set_root(&seed, [0; 7]);
        let identifier = next_identifier(&next, KeySelector::Root, &mut key_state.counter);
        let pending = PendingKey { level: KeyLevel::Root.code(), version: 0, seed, identifier };
        key_state.pending = Some(pending);
        touched.top = true;
        let set = SetKey { partition: 0, key: KeyToSet::Root, identifier, seed };
        return set_key(keys, set, KeyStepKind::Root, rng).map(TopPlan::from);
    }
    Ok(TopPlan::Settled)
}

fn master_credential(
    keys: &Keys,
    command: &Command,
    rng: &mut dyn Entropy,
) -> Result<sealstone_seal::Credential> {
    let permissions = Permissions::POL_SEC.union(Permissions::DEV_MGMT);
    credential(keys, selector(command, 0), ObjectId::ROOT, permissions, 0, rng)
}

fn change_master(
    keys: &Keys,
    identifier: [u8; 7],
    group: DhGroup,
    client: &[u8],
    device: &[u8],
    rng: &mut dyn Entropy,
) -> Result<KeyStep> {
    let values =
        BothValues { client, device }.encode().ok_or(MetaError::Damaged("values of a seed exchange"))?;
    let set = SetMasterKey {
        step: DhStep::ChangeMasterKey,
        group: group.code(),
        identifier,
        parameter_length: values.len() as u32,
        allocation: 0,
    };
    let credential = master_credential(keys, &Command::SetMasterKey(set), rng)?;
    Ok(KeyStep {
        action: KeyAction::ChangeMaster { set, values },
        credential,
        kind: KeyStepKind::ChangeMaster,
    })
}

/// Returns an identifier that no other key of the device has; it also differs each time the same
/// key is set.
pub(super) fn next_identifier(keys: &Keys, selector: KeySelector, counter: &mut u64) -> [u8; 7] {
    let number = next_number(counter);
    keys.signing_key(selector).map_or([0; 7], |key| key.identifier(number))
}

/// Plans the keys of one partition.
struct PartitionPlanner<'a> {
    id: u64,
    keys: &'a Keys,
    policy: &'a RotationPolicy,
    now_ms: u64,
    counter: &'a mut u64,
    root_version: Option<u8>,
}

impl PartitionPlanner<'_> {
    fn next(
        &mut self,
        part: &mut PartitionKeyState,
        touched: &mut UnsavedKeys,
        rng: &mut dyn Entropy,
    ) -> Result<Option<KeyStep>> {
        if part.pending.is_none() {
            if self.id != 0 && !part.created {
                return self.create(rng).map(Some);
            }
            part.pending = self.next_change(part, rng);
            if part.pending.is_some() {
                touched.parts.insert(self.id);
            }
        }
        if let Some(pending) = &part.pending {
            let partition = self.id;
            let (key, kind) = if pending.level == KeyLevel::Partition.code() {
                (KeyToSet::Partition, KeyStepKind::Partition(partition))
            } else if pending.level == LEVEL_OVERWRITE {
                (KeyToSet::Working(pending.version), KeyStepKind::Overwrite(partition))
            } else {
                (KeyToSet::Working(pending.version), KeyStepKind::Working(partition))
            };
            let set = SetKey { partition, key, identifier: pending.identifier, seed: pending.seed };
            return set_key(self.keys, set, kind, rng).map(Some);
        }
        if part.checked {
            return Ok(None);
        }
        self.check(part, rng).map(Some)
    }

    fn create(&self, rng: &mut dyn Entropy) -> Result<KeyStep> {
        let version = self.root_version.ok_or(MetaError::Damaged("partition zero has no working key"))?;
        let object = ObjectId::of_partition(self.id);
        let key = KeySelector::Working { partition: 0, version };
        // Its policy access tags are set with the same command.
        let rights = Permissions::CREATE.union(Permissions::SET_ATTR).union(Permissions::POL_SEC);
        let credential = credential(self.keys, key, object, rights, version, rng)?;
        Ok(KeyStep {
            action: KeyAction::CreatePartition { partition: self.id, policy: Vec::new() },
            credential,
            kind: KeyStepKind::Create(self.id),
        })
    }

    fn check(&self, part: &PartitionKeyState, rng: &mut dyn Entropy) -> Result<KeyStep> {
        let (partition, version) = (self.id, part.current);
        let object = if partition == 0 { ObjectId::ROOT } else { ObjectId::of_partition(partition) };
        let ids = identifiers(self.keys, partition, version).into_iter().map(|(id, _)| id).collect();
        let permissions = Permissions::GET_ATTR.union(Permissions::POL_SEC);
        let key = KeySelector::Working { partition, version };
        let credential = credential(self.keys, key, object, permissions, version, rng)?;
        Ok(KeyStep {
            action: KeyAction::Identifiers { object, ids },
            credential,
            kind: KeyStepKind::Check(partition),
        })
    }

    /// Returns the key change that is due for the partition; it has to be stored first.
    fn next_change(&mut self, part: &PartitionKeyState, rng: &mut dyn Entropy) -> Option<PendingKey> {
        let (partition, now_ms) = (self.id, self.now_ms);
        let has_pair = self.keys.signing_key(KeySelector::Partition(partition)).is_some();
        // A key set in the future was set with a wrong clock: its credentials would be valid too
        // long.
        let aged = |since: u64, age: u64| {
            now_ms.saturating_sub(since) >= age || since.saturating_sub(now_ms) > AHEAD_OK_MS
        };
        if !has_pair
            || part.pair_set_ms == 0
            || part.asked & ASKED_PARTITION != 0
            || aged(part.pair_set_ms, self.policy.partition_age_ms)
        {
            let seed = random(rng);
            let mut next = self.keys.clone();
            next.set_partition(partition, &seed, [0; 7]).ok()?;
            let identifier = next_identifier(&next, KeySelector::Partition(partition), self.counter);
            return Some(PendingKey { level: KeyLevel::Partition.code(), version: 0, seed, identifier });
        }
        let wanted = match part.current_set_ms() {
            None => true,
            Some(since) => {
                part.asked & ASKED_WORKING != 0
                    || aged(since, self.policy.working_age_ms)
                    || part.credentials >= self.policy.credentials_max
            }
        };
        let version = (part.current + 1) % VERSIONS;
        let alive = |version: u8| {
            part.versions.iter().any(|known| known.version == version && known.dead_ms > now_ms)
        };
        if wanted && !alive(version) {
            let level = KeyLevel::Working.code();
            return self.working(level, version, rng);
        }
        let dead = part.versions.iter().find(|known| known.dead_ms <= now_ms)?.version;
        self.working(LEVEL_OVERWRITE, dead, rng)
    }

    fn working(&mut self, level: u8, version: u8, rng: &mut dyn Entropy) -> Option<PendingKey> {
        let seed = random(rng);
        let mut next = self.keys.clone();
        next.set_working(self.id, version, &seed, [0; 7]).ok()?;
        let identifier =
            next_identifier(&next, KeySelector::Working { partition: self.id, version }, self.counter);
        Some(PendingKey { level, version, seed, identifier })
    }
}

/// Returns the time at which a superseded version may be overwritten.
pub(super) fn dead_ms(part: &PartitionKeyState, policy: &RotationPolicy, now_ms: u64) -> u64 {
    if part.asked & ASKED_REVOKE != 0 {
        return now_ms;
    }
    now_ms.saturating_add(policy.grant_ms).max(part.grants_until_ms).saturating_add(KEY_MARGIN_MS)
}

/// Returns the attributes with the device's key identifiers for a partition (zero: the root's), and
/// their expected values.
pub(super) fn identifiers(keys: &Keys, partition: u64, version: u8) -> [(AttributeId, Option<[u8; 7]>); 2] {
    const ROOT_POLICY: u32 = 0x9000_0005;
    const PARTITION_POLICY: u32 = 0x3000_0005;
    if partition == 0 {
        return [
            (AttributeId::new(ROOT_POLICY, 0x7FFD), keys.identifier(KeySelector::Master)),
            (AttributeId::new(ROOT_POLICY, 0x7FFE), keys.identifier(KeySelector::Root)),
        ];
    }
    [
        (AttributeId::new(PARTITION_POLICY, 0x7FFF), keys.identifier(KeySelector::Partition(partition))),
        (
            AttributeId::new(PARTITION_POLICY, 0x8000 + u32::from(version)),
            keys.identifier(KeySelector::Working { partition, version }),
        ),
    ]
}
