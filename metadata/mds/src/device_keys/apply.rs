//! Applies the outcome of a step to keys and key state.
//!
//! Contract: only a signed answer changes a key here. An unsigned refusal moves the next plan one
//! level up, where it is proven or refused in turn. It never drops a key that the device may have.

use sealstone_mds_protocol::KeyLevel;
use sealstone_osd::cdb::{KeyToSet, SetKey};
use sealstone_seal::KeySelector;
use sealstone_seal::exchange;

use super::plan::{RotationPolicy, SeedExchange, dead_ms, identifiers, next_identifier};
use super::step::{KeyAction, KeyStep, KeyStepKind, StepOutcome};
use super::{
    ASKED_MASTER, ASKED_PARTITION, ASKED_REVOKE, ASKED_ROOT, ASKED_WORKING, DeviceKeyState, Keys, PendingKey,
    UnsavedKeys, VersionRecord,
};
use crate::entropy::{Entropy, random};

/// Whether further steps make sense now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepProgress {
    /// The state changed: plan again.
    Going,
    /// The device did not answer, or refused a step at the top level.
    Stuck,
    /// The device accepts none of our keys.
    Lost,
}

/// Handles the device's value of a seed exchange. From now on the device may have one of two master
/// keys.
pub(crate) fn apply_device_value(
    key_state: &mut DeviceKeyState,
    keys: &mut Keys,
    waiting: &mut Option<SeedExchange>,
    device: Vec<u8>,
    touched: &mut UnsavedKeys,
    now_ms: u64,
    rng: &mut dyn Entropy,
) -> StepProgress {
    let Some(SeedExchange::Begun(secret)) = waiting.take() else { return StepProgress::Stuck };
    let (group, client) = (secret.group(), secret.public());
    let Ok(agreed) = secret.agree(&device) else { return StepProgress::Stuck };
    let pair = keys.exchanged(&exchange::SeedExchange {
        derivation: group.derivation(),
        group: group.code(),
        client: &client,
        device: &device,
        secret: &agreed,
    });
    keys.propose_master(pair);
    let seed = random(rng);
    key_state.master_identifier = next_identifier(keys, KeySelector::NextMaster, &mut key_state.counter);
    let mut next = keys.clone();
    next.accept_master(key_state.master_identifier);
    next.set_root(&seed, [0; 7]);
    let identifier = next_identifier(&next, KeySelector::Root, &mut key_state.counter);
    key_state.pending = Some(PendingKey { level: KeyLevel::Master.code(), version: 0, seed, identifier });
    key_state.exchanged_ms = now_ms;
    key_state.proposed_refused = false;
    touched.top = true;
    *waiting = Some(SeedExchange::Agreed { group, client, device });
    StepProgress::Going
}

/// Applies the outcome of a step; [`apply_device_value`] handles seed exchanges.
pub(crate) fn apply(
    key_state: &mut DeviceKeyState,
    keys: &mut Keys,
    step: &KeyStep,
    outcome: &StepOutcome,
    policy: &RotationPolicy,
    touched: &mut UnsavedKeys,
    now_ms: u64,
) -> StepProgress {
    match outcome {
        StepOutcome::Done => apply_success(key_state, keys, step, policy, touched, now_ms),
        StepOutcome::Identifiers(values) => compare(key_state, keys, step.kind, values, touched),
        StepOutcome::Denied => apply_refusal(key_state, step.kind, touched),
        StepOutcome::NoPartition => {
            let (KeyStepKind::Partition(id)
            | KeyStepKind::Working(id)
            | KeyStepKind::Overwrite(id)
            | KeyStepKind::Check(id)) = step.kind
            else {
                return StepProgress::Stuck;
            };
            let Some(part) = key_state.parts.get_mut(&id).filter(|_| id != 0) else {
                return StepProgress::Stuck;
            };
            part.void();
            part.created = false;
            touched.parts.insert(id);
            StepProgress::Going
        }
        StepOutcome::Failed | StepOutcome::Value(_) => StepProgress::Stuck,
    }
}

fn apply_success(
    key_state: &mut DeviceKeyState,
    keys: &mut Keys,
    step: &KeyStep,
    policy: &RotationPolicy,
    touched: &mut UnsavedKeys,
    now_ms: u64,
) -> StepProgress {
    let set = match &step.action {
        KeyAction::SetKey(set) => Some(*set),
        _ => None,
    };
    match (step.kind, set) {
        (KeyStepKind::ChangeMaster, _) => {
            keys.accept_master(key_state.master_identifier);
            key_state.master_set_ms = now_ms;
            key_state.asked &= !ASKED_MASTER;
            // The root key of the same change is next, and its master key is now known.
            if let Some(pending) = &mut key_state.pending {
                pending.level = KeyLevel::Root.code();
            }
            key_state.void_below_master(touched);
        }
        (KeyStepKind::RootUnderNew, Some(set)) => {
            keys.accept_master(key_state.master_identifier);
            key_state.master_set_ms = now_ms;
            key_state.asked &= !ASKED_MASTER;
            root_is_set(key_state, keys, &set, touched, now_ms);
        }
        (KeyStepKind::RootUnderOld, Some(set)) => {
            keys.abandon_master();
            root_is_set(key_state, keys, &set, touched, now_ms);
        }
        (KeyStepKind::Root, Some(set)) => root_is_set(key_state, keys, &set, touched, now_ms),
        (KeyStepKind::Create(id), _) => {
            let Some(part) = key_state.parts.get_mut(&id) else { return StepProgress::Stuck };
            part.created = true;
            part.void();
            touched.parts.insert(id);
        }
        (KeyStepKind::Partition(id), Some(set)) => {
            if keys.set_partition(id, &set.seed, set.identifier).is_err() {
                return StepProgress::Stuck;
            }
            let Some(part) = key_state.parts.get_mut(&id) else { return StepProgress::Stuck };
            part.void();
            part.pair_set_ms = now_ms;
            part.asked &= !ASKED_PARTITION;
            touched.parts.insert(id);
        }
        (KeyStepKind::Working(id), Some(set)) => {
            return working_is_set(key_state, keys, id, &set, policy, touched, now_ms);
        }
        (KeyStepKind::Overwrite(id), Some(SetKey { key: KeyToSet::Working(version), .. })) => {
            keys.unset_working(id, version);
            let Some(part) = key_state.parts.get_mut(&id) else { return StepProgress::Stuck };
            part.versions.retain(|known| known.version != version);
            part.pending = None;
            touched.parts.insert(id);
        }
        _ => return StepProgress::Stuck,
    }
    StepProgress::Going
}

fn root_is_set(
    key_state: &mut DeviceKeyState,
    keys: &mut Keys,
    set: &SetKey,
    touched: &mut UnsavedKeys,
    now_ms: u64,
) {
    keys.set_root(&set.seed, set.identifier);
    key_state.pending = None;
    key_state.proposed_refused = false;
    key_state.asked &= !ASKED_ROOT;
    key_state.root_set_ms = now_ms;
    touched.top = true;
    key_state.void_below_root(touched);
}

fn working_is_set(
    key_state: &mut DeviceKeyState,
    keys: &mut Keys,
    id: u64,
    set: &SetKey,
    policy: &RotationPolicy,
    touched: &mut UnsavedKeys,
    now_ms: u64,
) -> StepProgress {
    let KeyToSet::Working(version) = set.key else { return StepProgress::Stuck };
    if keys.set_working(id, version, &set.seed, set.identifier).is_err() {
        return StepProgress::Stuck;
    }
    let Some(part) = key_state.parts.get_mut(&id) else { return StepProgress::Stuck };
    let dead = dead_ms(part, policy, now_ms);
    part.versions.retain(|known| known.version != version);
    for known in &mut part.versions {
        // A revocation also ends versions that were superseded before it.
        known.dead_ms = if part.asked & ASKED_REVOKE != 0 { now_ms } else { known.dead_ms.min(dead) };
    }
    part.versions.push(VersionRecord { version, set_ms: now_ms, dead_ms: u64::MAX });
    part.current = version;
    part.credentials = 0;
    part.pending = None;
    part.asked &= !(ASKED_WORKING | ASKED_REVOKE);
    // A signed answer set it, so no comparison is needed.
    part.checked = true;
    touched.parts.insert(id);
    StepProgress::Going
}

/// Handles an unsigned refusal: the next plan tries the key one level up.
fn apply_refusal(
    key_state: &mut DeviceKeyState,
    kind: KeyStepKind,
    touched: &mut UnsavedKeys,
) -> StepProgress {
    match kind {
        KeyStepKind::Check(id) | KeyStepKind::Create(id) => {
            // The credential's key is that of the partition, or of partition zero for a partition
            // to be created.
            let id = if matches!(kind, KeyStepKind::Create(_)) { 0 } else { id };
            if let Some(part) = key_state.parts.get_mut(&id) {
                part.asked |= ASKED_WORKING;
                touched.parts.insert(id);
            }
        }
        KeyStepKind::Working(id) | KeyStepKind::Overwrite(id) => {
            if let Some(part) = key_state.parts.get_mut(&id) {
                part.pending = None;
                part.asked |= ASKED_PARTITION;
                touched.parts.insert(id);
            }
        }
        KeyStepKind::Partition(id) => {
            if let Some(part) = key_state.parts.get_mut(&id) {
                part.pending = None;
                part.asked |= ASKED_PARTITION;
                touched.parts.insert(id);
            }
            key_state.asked |= ASKED_ROOT;
            touched.top = true;
        }
        KeyStepKind::RootUnderNew if !key_state.proposed_refused => key_state.proposed_refused = true,
        KeyStepKind::RootUnderNew | KeyStepKind::RootUnderOld => {
            key_state.proposed_refused = false;
            return StepProgress::Lost;
        }
        // The proposed key decides: the next plan sets the root key below it.
        KeyStepKind::ChangeMaster => {}
        KeyStepKind::Root | KeyStepKind::SeedExchange => return StepProgress::Lost,
    }
    StepProgress::Going
}

/// Compares the device's key identifiers with ours. Our key was accepted, so differing identifiers
/// mean that another party changed the device or that the store is an old copy. Then everything
/// from the root down is set again.
fn compare(
    key_state: &mut DeviceKeyState,
    keys: &Keys,
    kind: KeyStepKind,
    values: &[Option<Vec<u8>>],
    touched: &mut UnsavedKeys,
) -> StepProgress {
    let KeyStepKind::Check(id) = kind else { return StepProgress::Stuck };
    let Some(part) = key_state.parts.get_mut(&id) else { return StepProgress::Stuck };
    let ours = identifiers(keys, id, part.current);
    let same = ours.iter().zip(values).all(|((_, ours), theirs)| match (ours, theirs) {
        (Some(ours), Some(theirs)) => ours[..] == theirs[..],
        (None, theirs) => theirs.as_ref().is_none_or(Vec::is_empty),
        (Some(_), None) => false,
    });
    part.checked = true;
    if !same || values.len() != ours.len() {
        tracing::warn!(
            partition = id,
            "device has unknown keys; setting all keys below the master key again"
        );
        key_state.asked |= ASKED_ROOT;
        touched.top = true;
    }
    StepProgress::Going
}
