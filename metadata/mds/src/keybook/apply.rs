//! Applies the outcome of a step to keys and key state.
//!
//! Contract: only a signed answer changes a key here. An unsigned refusal moves the next plan one
//! level up, where it is proven or refused in turn. It never drops a key that the device may have.

use sealstone_mds_protocol::KeyLevel;
use sealstone_osd::cdb::{KeyToSet, SetKey};
use sealstone_seal::KeySelector;
use sealstone_seal::exchange;

use super::plan::{Exchange, Policy, dead_ms, identifiers, name};
use super::step::{KeyAction, KeyStep, Kind, StepOutcome};
use super::{
    ASKED_MASTER, ASKED_PARTITION, ASKED_REVOKE, ASKED_ROOT, ASKED_WORKING, Book, Keys, Pending, Touched,
    VersionRecord,
};
use crate::entropy::{Entropy, random};

/// Whether further steps make sense now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The state changed: plan again.
    Going,
    /// The device did not answer, or refused a step at the top level.
    Stuck,
    /// The device accepts none of our keys.
    Lost,
}

/// Handles the device's value of a seed exchange. From now on the device may have one of two master
/// keys.
pub(crate) fn receive(
    book: &mut Book,
    keys: &mut Keys,
    waiting: &mut Option<Exchange>,
    device: Vec<u8>,
    touched: &mut Touched,
    now_ms: u64,
    rng: &mut dyn Entropy,
) -> Progress {
    let Some(Exchange::Begun(secret)) = waiting.take() else { return Progress::Stuck };
    let (group, client) = (secret.group(), secret.public());
    let Ok(agreed) = secret.agree(&device) else { return Progress::Stuck };
    let pair = keys.exchanged(&exchange::Exchange {
        derivation: group.derivation(),
        group: group.code(),
        client: &client,
        device: &device,
        secret: &agreed,
    });
    keys.propose_master(pair);
    let seed = random(rng);
    book.master_identifier = name(keys, KeySelector::NextMaster, &mut book.counter);
    let mut next = keys.clone();
    next.accept_master(book.master_identifier);
    next.set_root(&seed, [0; 7]);
    let identifier = name(&next, KeySelector::Root, &mut book.counter);
    book.pending = Some(Pending { level: KeyLevel::Master.code(), version: 0, seed, identifier });
    book.exchanged_ms = now_ms;
    book.doubt = false;
    touched.top = true;
    *waiting = Some(Exchange::Agreed { group, client, device });
    Progress::Going
}

/// Applies the outcome of a step; [`receive`] handles seed exchanges.
pub(crate) fn apply(
    book: &mut Book,
    keys: &mut Keys,
    step: &KeyStep,
    outcome: &StepOutcome,
    policy: &Policy,
    touched: &mut Touched,
    now_ms: u64,
) -> Progress {
    match outcome {
        StepOutcome::Done => done(book, keys, step, policy, touched, now_ms),
        StepOutcome::Identifiers(values) => compare(book, keys, step.kind, values, touched),
        StepOutcome::Denied => denied(book, step.kind, touched),
        StepOutcome::NoPartition => {
            let (Kind::Partition(id) | Kind::Working(id) | Kind::Kill(id) | Kind::Check(id)) = step.kind
            else {
                return Progress::Stuck;
            };
            let Some(part) = book.parts.get_mut(&id).filter(|_| id != 0) else { return Progress::Stuck };
            part.void();
            part.created = false;
            touched.parts.insert(id);
            Progress::Going
        }
        StepOutcome::Failed | StepOutcome::Value(_) => Progress::Stuck,
    }
}

fn done(
    book: &mut Book,
    keys: &mut Keys,
    step: &KeyStep,
    policy: &Policy,
    touched: &mut Touched,
    now_ms: u64,
) -> Progress {
    let set = match &step.action {
        KeyAction::SetKey(set) => Some(*set),
        _ => None,
    };
    match (step.kind, set) {
        (Kind::ChangeMaster, _) => {
            keys.accept_master(book.master_identifier);
            book.master_set_ms = now_ms;
            book.asked &= !ASKED_MASTER;
            // The root key of the same change is next, and its master key is now known.
            if let Some(pending) = &mut book.pending {
                pending.level = KeyLevel::Root.code();
            }
            book.void_below_master(touched);
        }
        (Kind::RootUnderNew, Some(set)) => {
            keys.accept_master(book.master_identifier);
            book.master_set_ms = now_ms;
            book.asked &= !ASKED_MASTER;
            root_is_set(book, keys, &set, touched, now_ms);
        }
        (Kind::RootUnderOld, Some(set)) => {
            keys.abandon_master();
            root_is_set(book, keys, &set, touched, now_ms);
        }
        (Kind::Root, Some(set)) => root_is_set(book, keys, &set, touched, now_ms),
        (Kind::Create(id), _) => {
            let Some(part) = book.parts.get_mut(&id) else { return Progress::Stuck };
            part.created = true;
            part.void();
            touched.parts.insert(id);
        }
        (Kind::Partition(id), Some(set)) => {
            if keys.set_partition(id, &set.seed, set.identifier).is_err() {
                return Progress::Stuck;
            }
            let Some(part) = book.parts.get_mut(&id) else { return Progress::Stuck };
            part.void();
            part.pair_set_ms = now_ms;
            part.asked &= !ASKED_PARTITION;
            touched.parts.insert(id);
        }
        (Kind::Working(id), Some(set)) => {
            return working_is_set(book, keys, id, &set, policy, touched, now_ms);
        }
        (Kind::Kill(id), Some(SetKey { key: KeyToSet::Working(version), .. })) => {
            keys.unset_working(id, version);
            let Some(part) = book.parts.get_mut(&id) else { return Progress::Stuck };
            part.versions.retain(|known| known.version != version);
            part.pending = None;
            touched.parts.insert(id);
        }
        _ => return Progress::Stuck,
    }
    Progress::Going
}

fn root_is_set(book: &mut Book, keys: &mut Keys, set: &SetKey, touched: &mut Touched, now_ms: u64) {
    keys.set_root(&set.seed, set.identifier);
    book.pending = None;
    book.doubt = false;
    book.asked &= !ASKED_ROOT;
    book.root_set_ms = now_ms;
    touched.top = true;
    book.void_below_root(touched);
}

fn working_is_set(
    book: &mut Book,
    keys: &mut Keys,
    id: u64,
    set: &SetKey,
    policy: &Policy,
    touched: &mut Touched,
    now_ms: u64,
) -> Progress {
    let KeyToSet::Working(version) = set.key else { return Progress::Stuck };
    if keys.set_working(id, version, &set.seed, set.identifier).is_err() {
        return Progress::Stuck;
    }
    let Some(part) = book.parts.get_mut(&id) else { return Progress::Stuck };
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
    Progress::Going
}

/// Handles an unsigned refusal: the next plan tries the key one level up.
fn denied(book: &mut Book, kind: Kind, touched: &mut Touched) -> Progress {
    match kind {
        Kind::Check(id) | Kind::Create(id) => {
            // The credential's key is that of the partition, or of partition zero for a partition
            // to be created.
            let id = if matches!(kind, Kind::Create(_)) { 0 } else { id };
            if let Some(part) = book.parts.get_mut(&id) {
                part.asked |= ASKED_WORKING;
                touched.parts.insert(id);
            }
        }
        Kind::Working(id) | Kind::Kill(id) => {
            if let Some(part) = book.parts.get_mut(&id) {
                part.pending = None;
                part.asked |= ASKED_PARTITION;
                touched.parts.insert(id);
            }
        }
        Kind::Partition(id) => {
            if let Some(part) = book.parts.get_mut(&id) {
                part.pending = None;
                part.asked |= ASKED_PARTITION;
                touched.parts.insert(id);
            }
            book.asked |= ASKED_ROOT;
            touched.top = true;
        }
        Kind::RootUnderNew if !book.doubt => book.doubt = true,
        Kind::RootUnderNew | Kind::RootUnderOld => {
            book.doubt = false;
            return Progress::Lost;
        }
        // The proposed key decides: the next plan sets the root key below it.
        Kind::ChangeMaster => {}
        Kind::Root | Kind::Exchange => return Progress::Lost,
    }
    Progress::Going
}

/// Compares the device's key identifiers with ours. Our key was accepted, so differing identifiers
/// mean that another party changed the device or that the store is an old copy. Then everything
/// from the root down is set again.
fn compare(
    book: &mut Book,
    keys: &Keys,
    kind: Kind,
    values: &[Option<Vec<u8>>],
    touched: &mut Touched,
) -> Progress {
    let Kind::Check(id) = kind else { return Progress::Stuck };
    let Some(part) = book.parts.get_mut(&id) else { return Progress::Stuck };
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
        book.asked |= ASKED_ROOT;
        touched.top = true;
    }
    Progress::Going
}
