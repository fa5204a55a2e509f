//! Changes that are done once, however often they are asked for.
//!
//! Does: remember, in the transaction of a change, what it was answered; answer the same to who asks again; forget after a
//! day. Does not: remember refusals, which changed nothing: who asks again is judged again.
//! Contract: of all servers of a store one does a change, once; a request that comes after a later one of its place does nothing.
//! O(1) for a change: one record of some 400 bytes beside what it changes, [`PLACES_MAX`] for a holder at most.
//! Truth: docs/standards/mds.md §5.8; docs/adr/0045-changes-that-are-done-once.md.

use std::collections::HashMap;

use parking_lot::Mutex;
use sealstone_mds_protocol::{ErrorCode, Failure, PLACES_MAX, Response, Turn, UserName};

use crate::error::{MdsError, Result};
use crate::keys;
use crate::server::Mds;
use crate::store::{MetaError, Transaction, each_between};

/// How long an answer is remembered. Clients ask for less long again.
pub(crate) const REMEMBERED_MS: u64 = 24 * 3600 * 1000;
/// Answers that are remembered for one user at most.
pub(crate) const ANSWERS_BY_USER_MAX: usize = 8192;
/// How often is looked for what can be forgotten.
const LOOK_MS: u64 = 60_000;
/// Answers forgotten in one transaction.
const FORGET_BATCH: usize = 256;
/// Whoever has too many asks again after this.
const RETRY_MS: u32 = 1_000;
/// Version of the record.
const VERSION: u8 = 1;
/// Version, number, time.
const HEAD_BYTES: usize = 1 + 8 + 8;

/// How many answers are remembered for whom, as of the last look and what came since.
#[derive(Default)]
pub(crate) struct Remembered {
    looked_ms: Option<u64>,
    by_user: HashMap<UserName, usize>,
}

/// Where the answer to a change is remembered.
pub(crate) struct Memo<'a> {
    key: Vec<u8>,
    number: u64,
    user: &'a UserName,
    now_ms: u64,
    remembered: &'a Mutex<Remembered>,
}

impl Mds {
    /// Where a user's change is remembered.
    ///
    /// # Errors
    /// `Invalid` if there is no such place.
    pub(crate) fn memo<'a>(&'a self, user: &'a UserName, turn: Turn, now_ms: u64) -> Result<Memo<'a>> {
        if turn.place >= PLACES_MAX {
            let reason = format!("a holder has {PLACES_MAX} places for changes");
            return Err(MdsError::refused(ErrorCode::Invalid, reason));
        }
        let (key, number) = (keys::answer(user, turn.holder, turn.place), turn.number);
        Ok(Memo { key, number, user, now_ms, remembered: &self.remembered })
    }

    /// Forgets answers that nobody asks for any more. Looks once a minute: O(answers).
    pub(crate) fn forget_answers(&self, now_ms: u64) -> Result<()> {
        {
            let mut remembered = self.remembered.lock();
            if remembered.looked_ms.is_some_and(|last_ms| now_ms.abs_diff(last_ms) < LOOK_MS) {
                return Ok(());
            }
            remembered.looked_ms = Some(now_ms);
        }
        let (mut old, mut by_user) = (Vec::new(), HashMap::new());
        let prefix = keys::answers();
        let view = self.store.snapshot()?;
        each_between(&*view, &prefix, &keys::after_prefix(&prefix), |key, value| {
            let (_, at_ms, _) = parts(value)?;
            // A clock that went back forgets nothing.
            if now_ms.saturating_sub(at_ms) > REMEMBERED_MS {
                old.push((key.to_vec(), at_ms));
            } else if let Some(user) = keys::answer_user(key) {
                *by_user.entry(user).or_default() += 1;
            }
            Ok::<_, MetaError>(())
        })?;
        drop(view);
        self.remembered.lock().by_user = by_user;
        for batch in old.chunks(FORGET_BATCH) {
            self.update(|tx| {
                for (key, at_ms) in batch {
                    // Somebody may have had the place meanwhile.
                    if tx.get(key)?.is_some_and(|value| parts(&value).is_ok_and(|found| found.1 == *at_ms)) {
                        tx.delete(key)?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Does a change, or tells what it was answered.
///
/// # Errors
/// `Stale` if its place was taken by a later one; `Busy` if too much is remembered for its user; those of the change.
pub(crate) fn answer(
    tx: &mut dyn Transaction,
    memo: Option<&Memo<'_>>,
    change: impl FnOnce(&mut dyn Transaction) -> Result<Response>,
) -> Result<Response> {
    let Some(memo) = memo else { return change(tx) };
    let before = tx.get(&memo.key)?;
    if let Some(value) = &before {
        let (number, _, body) = parts(value)?;
        if number == memo.number {
            let (_, response) = Response::decode(body).map_err(|_| MetaError::Damaged("answer"))?;
            return Ok(response);
        }
        if number > memo.number {
            return Err(MdsError::refused(ErrorCode::Stale, "a later change was asked for in its place"));
        }
    }
    if before.is_none() {
        memo.count()?;
    }
    let response = change(tx)?;
    let body = response.encode(0).map_err(|_| MdsError::refused(ErrorCode::Limit, "answer"))?;
    let mut value = Vec::with_capacity(HEAD_BYTES + body.len());
    value.push(VERSION);
    value.extend_from_slice(&memo.number.to_be_bytes());
    value.extend_from_slice(&memo.now_ms.to_be_bytes());
    value.extend_from_slice(&body);
    tx.put(&memo.key, &value)?;
    Ok(response)
}

impl Memo<'_> {
    /// One more for the user; counted too often if the change is refused then, until the next look.
    fn count(&self) -> Result<()> {
        let mut remembered = self.remembered.lock();
        let count = remembered.by_user.entry(self.user.clone()).or_default();
        if *count >= ANSWERS_BY_USER_MAX {
            return Err(MdsError::Refused(Failure::busy(RETRY_MS)));
        }
        *count += 1;
        Ok(())
    }
}

/// Number, time and answer.
fn parts(value: &[u8]) -> core::result::Result<(u64, u64, &[u8]), MetaError> {
    let head = value.split_first().filter(|(version, _)| **version == VERSION);
    let numbers = head.and_then(|(_, rest)| {
        let (number, rest) = rest.split_first_chunk()?;
        let (at_ms, body) = rest.split_first_chunk()?;
        Some((u64::from_be_bytes(*number), u64::from_be_bytes(*at_ms), body))
    });
    numbers.ok_or(MetaError::Damaged("answer"))
}
