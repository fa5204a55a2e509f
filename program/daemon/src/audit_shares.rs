//! Shares of the audit log per principal, so that a flood of one does not hide records of others.
//!
//! Does: writes records within the share of their principal, then counts similar ones.
//! Does not: format lines or read clocks; `audit_log` does.
//! Contract: a principal has a budget of [`REFUSALS`] lines for refused or failed requests, and
//! [`DONE_BYTES`] for others. Further records are in the `count` of one line every
//! [`SUMMARY_EVERY_MS`], for up to [`KINDS_MAX`] kinds. Memory is bounded by [`OWNERS_MAX`] and
//! [`KINDS_MAX`].

use std::collections::HashMap;
use std::mem;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// Capacity of the bucket.
    burst: u64,
    /// Refill per second.
    per_second: u64,
}

/// Budget of lines of a principal for refused or failed requests.
const REFUSALS: Budget = Budget { burst: 1024, per_second: 1 };
/// Budget of bytes of a principal for successful requests.
const DONE_BYTES: Budget = Budget { burst: 32 << 20, per_second: 512 << 10 };
/// Interval between two lines about counted records, ms.
const SUMMARY_EVERY_MS: u64 = 10_000;
/// Maximum number of kinds of a principal that are counted separately.
const KINDS_MAX: usize = 16;
/// Maximum number of principals with a share; further ones have a common share.
const OWNERS_MAX: usize = 4096;
/// Time after which an unused share is full and removed, ms.
const FORGET_MS: u64 = (REFUSALS.burst / REFUSALS.per_second + 1) * 1000;

#[derive(Clone, Copy)]
struct Tokens {
    /// Tokens in thousandths.
    left: u64,
    at_ms: u64,
}

impl Tokens {
    const fn full(budget: Budget, now_ms: u64) -> Self {
        Self { left: budget.burst * 1000, at_ms: now_ms }
    }

    fn take(&mut self, budget: Budget, cost: u64, now_ms: u64) -> bool {
        let back = now_ms.saturating_sub(self.at_ms).saturating_mul(budget.per_second);
        self.left = self.left.saturating_add(back).min(budget.burst * 1000);
        self.at_ms = now_ms;
        match self.left.checked_sub(cost.saturating_mul(1000)) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

struct SuppressedRecords {
    since_ms: u64,
    count: u64,
    line: Vec<u8>,
}

struct AuditShare {
    refusals: Tokens,
    done: Tokens,
    touched_ms: u64,
    kinds: HashMap<(String, String), SuppressedRecords>,
}

/// Subject of a record.
#[derive(Clone, Copy, Debug)]
pub struct RecordSubject<'a> {
    /// Its principal.
    pub owner: &'a str,
    /// The requested action.
    pub action: &'a str,
    /// Its result.
    pub verdict: &'a str,
    /// Whether it succeeded.
    pub is_done: bool,
}

/// Shares of all principals.
#[derive(Default)]
pub(crate) struct AuditShares {
    owners: HashMap<String, AuditShare>,
    suppressed: u64,
}

impl AuditShares {
    /// Adds a record. Returns the line if it is written now.
    pub(crate) fn add(&mut self, about: RecordSubject<'_>, line: Vec<u8>, now_ms: u64) -> Option<Vec<u8>> {
        let share = self.share(about.owner, now_ms);
        share.touched_ms = now_ms;
        let allowed = match about.is_done {
            true => share.done.take(DONE_BYTES, line.len() as u64, now_ms),
            false => share.refusals.take(REFUSALS, 1, now_ms),
        };
        if allowed {
            return Some(line);
        }
        let mut kind = (about.action.to_owned(), about.verdict.to_owned());
        // The last counter is for all further kinds.
        if share.kinds.len() + 1 >= KINDS_MAX && !share.kinds.contains_key(&kind) {
            kind = Default::default();
        }
        let new = || SuppressedRecords { since_ms: now_ms, count: 0, line: Vec::new() };
        let pending = share.kinds.entry(kind).or_insert_with(new);
        pending.count += 1;
        pending.line = line;
        self.suppressed += 1;
        None
    }

    /// Returns the due lines about counted records, with their counts; with `all` every line.
    pub(crate) fn flush(&mut self, all: bool, now_ms: u64) -> Vec<(Vec<u8>, u64)> {
        let mut lines = Vec::new();
        self.owners.retain(|_, share| {
            share.kinds.retain(|_, pending| {
                let due = all || now_ms.saturating_sub(pending.since_ms) >= SUMMARY_EVERY_MS;
                if due {
                    lines.push((mem::take(&mut pending.line), pending.count));
                }
                !due
            });
            !share.kinds.is_empty() || now_ms.saturating_sub(share.touched_ms) < FORGET_MS
        });
        lines
    }

    /// Returns the number of records without a line of their own.
    pub(crate) const fn suppressed(&self) -> u64 {
        self.suppressed
    }

    fn share(&mut self, owner: &str, now_ms: u64) -> &mut AuditShare {
        let known = self.owners.contains_key(owner);
        if !known && self.owners.len() >= OWNERS_MAX {
            self.owners.retain(|_, share| {
                !share.kinds.is_empty() || now_ms.saturating_sub(share.touched_ms) < FORGET_MS
            });
        }
        let owner = if known || self.owners.len() < OWNERS_MAX { owner } else { "" };
        self.owners.entry(owner.to_owned()).or_insert_with(|| AuditShare {
            refusals: Tokens::full(REFUSALS, now_ms),
            done: Tokens::full(DONE_BYTES, now_ms),
            touched_ms: now_ms,
            kinds: HashMap::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<'a>(owner: &'a str, action: &'a str) -> RecordSubject<'a> {
        RecordSubject { owner, action, verdict: "Denied", is_done: false }
    }

    #[test]
    fn flood_of_one_principal_is_counted() {
        let mut shares = AuditShares::default();
        let written = (0..100_000u64)
            .filter(|n| shares.add(refused("eve", "Remove"), vec![0; 300], n / 100).is_some())
            .count() as u64;
        assert_eq!(written, REFUSALS.burst);
        assert!(shares.add(refused("alice", "Remove"), vec![1], 1000).is_some());
        let lines = shares.flush(false, 1000 + SUMMARY_EVERY_MS);
        assert_eq!(lines.iter().map(|(_, count)| count).sum::<u64>() + written, 100_000);
        assert_eq!((lines.len(), shares.suppressed()), (1, 100_000 - written));
    }

    #[test]
    fn kinds_and_principals_are_bounded() {
        let mut shares = AuditShares::default();
        for n in 0..REFUSALS.burst + 100 {
            shares.add(refused("eve", &n.to_string()), Vec::new(), 0);
        }
        assert_eq!(shares.flush(true, 0).len(), KINDS_MAX);
        for n in 0..2 * OWNERS_MAX {
            shares.add(refused(&n.to_string(), "Remove"), Vec::new(), 0);
        }
        assert!(shares.owners.len() <= OWNERS_MAX + 1);
        shares.flush(false, 2 * FORGET_MS);
        assert!(shares.owners.is_empty());
    }

    #[test]
    fn successful_requests_have_a_byte_budget() {
        let mut shares = AuditShares::default();
        let done = RecordSubject { owner: "bob", action: "Create", verdict: "ok", is_done: true };
        let lines = (0..).take_while(|_| shares.add(done, vec![0; 1 << 20], 0).is_some()).count();
        assert_eq!(lines, 32);
        assert!(shares.add(done, vec![0; 1 << 20], 2_000).is_some(), "it comes back");
    }
}
