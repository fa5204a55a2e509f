//! Changes that are done once, however often they are asked for.
//!
//! Does: remember, in the transaction of a change, what it was answered; answer the same to who asks again; forget after a
//! day. Does not: remember refusals, which changed nothing: who asks again is judged again.
//! Contract: of all servers of a store one does a change, once; a request that comes after a later one of its place does nothing,
//! and an answer is told to nobody who asks for something else.
//! O(1) for a change: one record of some 400 bytes beside what it changes, [`SLOTS_MAX`] for a holder at most.
//! Truth: docs/standards/mds/nodes.md §5.8; docs/adr/0045-replay-cache.md.

use std::collections::HashMap;

use parking_lot::Mutex;
use sealstone_crypto::RustCrypto;
use sealstone_mds_protocol::{
    ChangeRequest, ClientId, ErrorCode, Failure, RequestId, Response, SLOTS_MAX, UserName,
};
use sealstone_seal::{Hash, Provider, Tag, ct_eq};

use crate::error::{MdsError, Result};
use crate::keys;
use crate::server::Mds;
use crate::store::{MetaError, Snapshot, Transaction, each_between};

/// How long an answer is remembered. Clients ask for less long again.
pub(crate) const REMEMBERED_MS: u64 = 24 * 3600 * 1000;
/// The same where a user has more than half of what he may have.
pub(crate) const REMEMBERED_OF_MANY_MS: u64 = 3600 * 1000;
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
/// Bytes of the digest of what was asked for.
const DIGEST_BYTES: usize = 32;
/// Version, number, time, digest.
const HEAD_BYTES: usize = 1 + 8 + 8 + DIGEST_BYTES;
/// Of what the digest is.
const LABEL: &[u8] = b"sealstone change v1";

/// How many answers are remembered for whom, as of the last look and what came since.
#[derive(Default)]
pub(crate) struct Remembered {
    looked_ms: Option<u64>,
    by_user: HashMap<UserName, usize>,
}

/// What is asked for, and which of the asker's changes it is.
pub(crate) struct Asked {
    turn: RequestId,
    digest: Option<Tag>,
}

impl Asked {
    /// Whose change it is.
    pub(crate) const fn client_id(&self) -> ClientId {
        self.turn.client_id
    }

    pub(crate) fn new(turn: RequestId, change: &ChangeRequest) -> Self {
        let key = RustCrypto::mac_key(Hash::Sha256, LABEL);
        let digest = change.request().encode(0).ok().map(|body| RustCrypto::tag(&key, &[&body]));
        Self { turn, digest }
    }
}

/// Where the answer to a change is remembered.
pub(crate) struct Memo<'a> {
    key: Vec<u8>,
    number: u64,
    digest: Tag,
    user: &'a UserName,
    now_ms: u64,
    remembered: &'a Mutex<Remembered>,
}

/// A change that was done.
pub(crate) struct Told {
    pub(crate) response: Response,
    /// Was it done now? Else it is remembered: what it was about may be another one's since.
    pub(crate) now: bool,
}

impl Mds {
    /// Where a user's change is remembered.
    ///
    /// # Errors
    /// `Invalid` if there is no such place.
    pub(crate) fn memo<'a>(&'a self, user: &'a UserName, asked: &Asked, now_ms: u64) -> Result<Memo<'a>> {
        let turn = asked.turn;
        let Some(digest) = asked.digest.filter(|_| turn.slot < SLOTS_MAX) else {
            let reason = format!("a holder has {SLOTS_MAX} places for changes");
            return Err(MdsError::refused(ErrorCode::Invalid, reason));
        };
        let (key, number) = (keys::answer(user, turn.client_id, turn.slot), turn.sequence);
        Ok(Memo { key, number, digest, user, now_ms, remembered: &self.remembered })
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
        let mut by_user: HashMap<UserName, Vec<(Vec<u8>, u64)>> = HashMap::new();
        let mut old = Vec::new();
        let prefix = keys::answers();
        let view = self.store.snapshot()?;
        each_between(&*view, &prefix, &keys::after_prefix(&prefix), |key, value| {
            let at_ms = Answer::read(value)?.at_ms;
            match keys::answer_user(key) {
                Some(user) => by_user.entry(user).or_default().push((key.to_vec(), at_ms)),
                None => old.push((key.to_vec(), at_ms)),
            }
            Ok::<_, MetaError>(())
        })?;
        drop(view);
        let mut left = HashMap::new();
        for (user, answers) in by_user {
            let many = answers.len() > ANSWERS_BY_USER_MAX / 2;
            let max_ms = if many { REMEMBERED_OF_MANY_MS } else { REMEMBERED_MS };
            // A clock that went back forgets nothing.
            let (over, kept): (Vec<_>, Vec<_>) =
                answers.into_iter().partition(|(_, at_ms)| now_ms.saturating_sub(*at_ms) > max_ms);
            old.extend(over);
            left.insert(user, kept.len());
        }
        self.remembered.lock().by_user = left;
        for batch in old.chunks(FORGET_BATCH) {
            self.update(|tx| {
                for (key, at_ms) in batch {
                    // Somebody may have had the place meanwhile.
                    if tx
                        .get(key)?
                        .is_some_and(|value| Answer::read(&value).is_ok_and(|found| found.at_ms == *at_ms))
                    {
                        tx.delete(key)?;
                    }
                }
                Ok(())
            })?;
        }
        self.forget_ahead(now_ms)
    }
}

/// Does a change, or tells what it was answered.
///
/// # Errors
/// `Stale` if its place was taken by a later one; `Invalid` if its number was another change's; `Busy` if too much is
/// remembered for its user; those of the change.
pub(crate) fn answer(
    tx: &mut dyn Transaction,
    memo: Option<&Memo<'_>>,
    change: impl FnOnce(&mut dyn Transaction) -> Result<Response>,
) -> Result<Told> {
    let Some(memo) = memo else { return Ok(Told { response: change(tx)?, now: true }) };
    let before = tx.get(&memo.key)?;
    if let Some(value) = &before {
        let known = Answer::read(value)?;
        if known.number == memo.number {
            if !ct_eq(known.digest, memo.digest.as_bytes()) {
                return Err(MdsError::refused(ErrorCode::Invalid, "the number of another change"));
            }
            let (_, response) = Response::decode(known.body).map_err(|_| MetaError::Damaged("answer"))?;
            return Ok(Told { response, now: false });
        }
        if known.number > memo.number {
            return Err(MdsError::refused(ErrorCode::Stale, "a later change was asked for in its place"));
        }
    }
    if before.is_none() {
        memo.is_there_room()?;
    }
    let response = change(tx)?;
    let body = response.encode(0).map_err(|_| MdsError::refused(ErrorCode::Limit, "answer"))?;
    let mut value = Vec::with_capacity(HEAD_BYTES + body.len());
    value.push(VERSION);
    value.extend_from_slice(&memo.number.to_be_bytes());
    value.extend_from_slice(&memo.now_ms.to_be_bytes());
    value.extend_from_slice(memo.digest.as_bytes());
    value.extend_from_slice(&body);
    tx.put(&memo.key, &value)?;
    if before.is_none() {
        memo.count();
    }
    Ok(Told { response, now: true })
}

impl Memo<'_> {
    /// Is the change done already, or one that came after it?
    pub(crate) fn is_known<S: Snapshot + ?Sized>(&self, view: &S) -> Result<bool> {
        let known = view.get(&self.key)?;
        Ok(known.map(|value| Ok::<_, MetaError>(Answer::read(&value)?.number)).transpose()?
            >= Some(self.number))
    }

    fn is_there_room(&self) -> Result<()> {
        let count = self.remembered.lock().by_user.get(self.user).copied().unwrap_or_default();
        if count < ANSWERS_BY_USER_MAX { Ok(()) } else { Err(MdsError::Refused(Failure::busy(RETRY_MS))) }
    }

    /// One more for the user; twice if another transaction was faster, until the next look.
    fn count(&self) {
        *self.remembered.lock().by_user.entry(self.user.clone()).or_default() += 1;
    }
}

/// What is remembered.
struct Answer<'a> {
    number: u64,
    at_ms: u64,
    digest: &'a [u8],
    body: &'a [u8],
}

impl<'a> Answer<'a> {
    fn read(value: &'a [u8]) -> core::result::Result<Self, MetaError> {
        let head = value.split_first().filter(|(version, _)| **version == VERSION);
        let answer = head.and_then(|(_, rest)| {
            let (number, rest) = rest.split_first_chunk()?;
            let (at_ms, rest) = rest.split_first_chunk()?;
            let (digest, body) = rest.split_at_checked(DIGEST_BYTES)?;
            Some(Self {
                number: u64::from_be_bytes(*number),
                at_ms: u64::from_be_bytes(*at_ms),
                digest,
                body,
            })
        });
        answer.ok_or(MetaError::Damaged("answer"))
    }
}
