//! Replay cache: runs a request exactly once, however often it is repeated.
//!
//! Does: store the answer in the transaction of the change; return it for a repeated request;
//! expire it after a day.
//! Does not: store refusals, which changed nothing: a repeated request is checked again.
//! Contract: one server of a store applies a request, once. A request with a lower sequence number
//! than the last one of its slot is refused, and an answer is returned only for the same request.
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
use crate::limits::REPLAY_MS;
use crate::store::{MetaError, Snapshot, Transaction, each_between};

/// How long an answer is kept while a user has more than half of the maximum.
pub(crate) const REPLAY_CROWDED_MS: u64 = 3600 * 1000;
/// Maximum number of stored answers of one user.
pub(crate) const ANSWERS_BY_USER_MAX: usize = 8192;
/// Interval of the expiry scan.
const LOOK_MS: u64 = 60_000;
/// Answers deleted in one transaction.
pub(crate) const FORGET_BATCH: usize = 256;
/// Delay before a request of a user with too many answers is repeated.
const RETRY_MS: u32 = 1_000;
/// Version of the record.
const VERSION: u8 = 1;
/// Length of the digest of a request.
const DIGEST_BYTES: usize = 32;
/// Version, sequence number, time, digest.
const HEAD_BYTES: usize = 1 + 8 + 8 + DIGEST_BYTES;
/// Domain separation label of the digest.
const LABEL: &[u8] = b"sealstone change v1";

/// Number of stored answers by user, as of the last scan plus those since.
#[derive(Default)]
struct ReplayCounts {
    looked_ms: Option<u64>,
    by_user: HashMap<UserName, usize>,
}

/// The replay cache; the answers themselves are in the store.
#[derive(Default)]
pub(crate) struct ReplayCache(Mutex<ReplayCounts>);

/// A stored answer that has expired: its key and its time.
pub(crate) type ExpiredAnswer = (Vec<u8>, u64);

/// Request id and digest of a request.
pub(crate) struct ReplayKey {
    id: RequestId,
    digest: Option<Tag>,
}

impl ReplayKey {
    /// Returns the client id.
    pub(crate) const fn client_id(&self) -> ClientId {
        self.id.client_id
    }

    pub(crate) fn new(id: RequestId, change: &ChangeRequest) -> Self {
        let key = RustCrypto::mac_key(Hash::Sha256, LABEL);
        let digest = change.request().encode(0).ok().map(|body| RustCrypto::tag(&key, &[&body]));
        Self { id, digest }
    }
}

/// The slot record of a request.
pub(crate) struct ReplayEntry<'a> {
    key: Vec<u8>,
    number: u64,
    digest: Tag,
    user: &'a UserName,
    now_ms: u64,
    cache: &'a ReplayCache,
}

/// Outcome of a request.
pub(crate) struct OnceOutcome {
    pub(crate) response: Response,
    /// Whether it was applied now. Otherwise the answer was stored, and its node may have changed
    /// since.
    pub(crate) now: bool,
}

impl ReplayCache {
    /// Returns the slot record of a request.
    ///
    /// # Errors
    /// `Invalid` if the slot does not exist.
    pub(crate) fn entry<'a>(
        &'a self,
        user: &'a UserName,
        replay_key: &ReplayKey,
        now_ms: u64,
    ) -> Result<ReplayEntry<'a>> {
        let id = replay_key.id;
        let Some(digest) = replay_key.digest.filter(|_| id.slot < SLOTS_MAX) else {
            let reason = format!("a client has {SLOTS_MAX} slots");
            return Err(MdsError::refused(ErrorCode::Invalid, reason));
        };
        let (key, number) = (keys::answer(user, id.client_id, id.slot), id.sequence);
        Ok(ReplayEntry { key, number, digest, user, now_ms, cache: self })
    }

    /// Whether the expiry scan is due, once a minute; the next one is due a minute later.
    pub(crate) fn begin_scan(&self, now_ms: u64) -> bool {
        let mut counts = self.0.lock();
        let due = counts.looked_ms.is_none_or(|last_ms| now_ms.abs_diff(last_ms) >= LOOK_MS);
        if due {
            counts.looked_ms = Some(now_ms);
        }
        due
    }

    /// Returns the expired answers, and counts the others again. O(answers).
    pub(crate) fn scan<S: Snapshot + ?Sized>(&self, view: &S, now_ms: u64) -> Result<Vec<ExpiredAnswer>> {
        let mut by_user: HashMap<UserName, Vec<ExpiredAnswer>> = HashMap::new();
        let mut old = Vec::new();
        let prefix = keys::answers();
        each_between(view, &prefix, &keys::after_prefix(&prefix), |key, value| {
            let at_ms = StoredAnswer::read(value)?.at_ms;
            match keys::answer_user(key) {
                Some(user) => by_user.entry(user).or_default().push((key.to_vec(), at_ms)),
                None => old.push((key.to_vec(), at_ms)),
            }
            Ok::<_, MetaError>(())
        })?;
        let mut left = HashMap::new();
        for (user, answers) in by_user {
            let many = answers.len() > ANSWERS_BY_USER_MAX / 2;
            let max_ms = if many { REPLAY_CROWDED_MS } else { REPLAY_MS };
            // A clock that was set back expires nothing.
            let (over, kept): (Vec<_>, Vec<_>) =
                answers.into_iter().partition(|(_, at_ms)| now_ms.saturating_sub(*at_ms) > max_ms);
            old.extend(over);
            left.insert(user, kept.len());
        }
        self.0.lock().by_user = left;
        Ok(old)
    }
}

/// Deletes expired answers: at most [`FORGET_BATCH`] in one transaction.
pub(crate) fn forget(tx: &mut dyn Transaction, batch: &[ExpiredAnswer]) -> Result<()> {
    for (key, at_ms) in batch {
        // The slot may have been reused meanwhile.
        let value = tx.get(key)?;
        if value.is_some_and(|value| StoredAnswer::read(&value).is_ok_and(|found| found.at_ms == *at_ms)) {
            tx.delete(key)?;
        }
    }
    Ok(())
}

/// Applies a request, or returns its stored answer.
///
/// # Errors
/// `Stale` if a later request used the slot; `Invalid` if the sequence number belongs to another
/// request; `Busy` if too many answers of the user are stored; errors of the request.
pub(crate) fn answer(
    tx: &mut dyn Transaction,
    replay_entry: Option<&ReplayEntry<'_>>,
    change: impl FnOnce(&mut dyn Transaction) -> Result<Response>,
) -> Result<OnceOutcome> {
    let Some(replay_entry) = replay_entry else {
        return Ok(OnceOutcome { response: change(tx)?, now: true });
    };
    let before = tx.get(&replay_entry.key)?;
    if let Some(value) = &before {
        let known = StoredAnswer::read(value)?;
        if known.number == replay_entry.number {
            if !ct_eq(known.digest, replay_entry.digest.as_bytes()) {
                return Err(MdsError::refused(
                    ErrorCode::Invalid,
                    "the sequence number belongs to another request",
                ));
            }
            let (_, response) = Response::decode(known.body).map_err(|_| MetaError::Damaged("answer"))?;
            return Ok(OnceOutcome { response, now: false });
        }
        if known.number > replay_entry.number {
            return Err(MdsError::refused(ErrorCode::Stale, "a later request used the slot"));
        }
    }
    if before.is_none() {
        replay_entry.check_capacity()?;
    }
    let response = change(tx)?;
    let body = response.encode(0).map_err(|_| MdsError::refused(ErrorCode::Limit, "answer"))?;
    let mut value = Vec::with_capacity(HEAD_BYTES + body.len());
    value.push(VERSION);
    value.extend_from_slice(&replay_entry.number.to_be_bytes());
    value.extend_from_slice(&replay_entry.now_ms.to_be_bytes());
    value.extend_from_slice(replay_entry.digest.as_bytes());
    value.extend_from_slice(&body);
    tx.put(&replay_entry.key, &value)?;
    if before.is_none() {
        replay_entry.count();
    }
    Ok(OnceOutcome { response, now: true })
}

impl ReplayEntry<'_> {
    /// Whether this request or a later one of the slot was already applied.
    pub(crate) fn is_known<S: Snapshot + ?Sized>(&self, view: &S) -> Result<bool> {
        let known = view.get(&self.key)?;
        Ok(known.map(|value| Ok::<_, MetaError>(StoredAnswer::read(&value)?.number)).transpose()?
            >= Some(self.number))
    }

    fn check_capacity(&self) -> Result<()> {
        let count = self.cache.0.lock().by_user.get(self.user).copied().unwrap_or_default();
        if count < ANSWERS_BY_USER_MAX { Ok(()) } else { Err(MdsError::Refused(Failure::busy(RETRY_MS))) }
    }

    /// Counts one more answer; counted twice after a transaction conflict, until the next scan.
    fn count(&self) {
        *self.cache.0.lock().by_user.entry(self.user.clone()).or_default() += 1;
    }
}

/// A stored answer.
struct StoredAnswer<'a> {
    number: u64,
    at_ms: u64,
    digest: &'a [u8],
    body: &'a [u8],
}

impl<'a> StoredAnswer<'a> {
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
