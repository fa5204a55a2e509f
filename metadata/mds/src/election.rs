//! Leader election of several servers on one store.
//!
//! Does: decide by the stored lease whether this server leads, follows, or may take the lease.
//! Does not: read or store the lease, or keep time; all three are arguments.
//! Contract: the caller stores a lease only if the stored one is still the one that was decided on.
//! Two leaders at the same time, as after a long pause of the first, repeat the same work without
//! harm.
//! Truth: docs/adr/0038-several-servers-one-database.md.

use sealstone_mds_protocol::{ErrorCode, record};

use crate::error::{MdsError, Result};
use crate::server_registry::{SEEN_EVERY_MS, ServerName};

/// A leader that did not renew its lease for this long is no longer the leader, milliseconds. It
/// renews five times as often.
pub const LEASE_MS: u64 = 10_000;

/// Name of the record of the lease.
pub(crate) const LEASE: &str = "leader";

record! {
    /// The leader's lease.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LeaderLease {
        /// Name of the leader.
        pub server: ServerName,
        /// Grows with each renewal.
        pub beat: u64,
    }
}

/// Decision of a server about the stored lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseDecision {
    /// It leads, and need not renew the lease yet.
    Lead,
    /// Another server leads, or may lead.
    Follow,
    /// It may store this lease, and leads then.
    Take(LeaderLease),
}

/// State of a server in the leader election.
#[derive(Debug, Default)]
pub(crate) struct LeaderElection {
    /// The last lease read of another server, and when it was first seen.
    observed: Option<(LeaderLease, u64)>,
    /// This server is the leader until then.
    until_ms: u64,
    /// Last own beat, unless another server became the leader since.
    own_beat: Option<u64>,
    /// Time of the last own sign of life.
    seen_ms: Option<u64>,
}

impl LeaderElection {
    /// Whether this server has to store a sign of life.
    pub(crate) fn is_sign_due(&self, now_ms: u64) -> bool {
        self.seen_ms.is_none_or(|seen_ms| now_ms.saturating_sub(seen_ms) >= SEEN_EVERY_MS)
    }

    /// Notes that a sign of life was stored.
    pub(crate) fn sign_stored(&mut self, now_ms: u64) {
        self.seen_ms = Some(now_ms);
    }

    /// Returns the time until which this server leads.
    pub(crate) const fn until_ms(&self) -> u64 {
        self.until_ms
    }

    /// Decides about the stored lease.
    ///
    /// # Errors
    /// `Exists` if another server has the same name.
    pub(crate) fn decide(
        &mut self,
        found: Option<&LeaderLease>,
        own: ServerName,
        now_ms: u64,
    ) -> Result<LeaseDecision> {
        let own_beat = self.own_beat.take();
        let may_take = match found {
            None => true,
            Some(lease) if lease.server == own => {
                if own_beat.is_some_and(|beat| beat != lease.beat) {
                    self.until_ms = 0;
                    self.own_beat = own_beat;
                    let what =
                        "another server has the same name; if its folder is a copy, remove server-name there";
                    return Err(MdsError::refused(ErrorCode::Exists, what));
                }
                if now_ms < self.until_ms.saturating_sub(LEASE_MS / 2) {
                    self.own_beat = own_beat;
                    return Ok(LeaseDecision::Lead);
                }
                true
            }
            Some(lease) => match &self.observed {
                Some((observed, since_ms)) if observed == lease => {
                    now_ms.saturating_sub(*since_ms) >= LEASE_MS
                }
                _ => {
                    self.observed = Some((lease.clone(), now_ms));
                    false
                }
            },
        };
        self.until_ms = 0;
        if !may_take {
            return Ok(LeaseDecision::Follow);
        }
        let beat = found.map_or(0, |lease| lease.beat).wrapping_add(1);
        Ok(LeaseDecision::Take(LeaderLease { server: own, beat }))
    }

    /// Notes that this server stored its lease.
    pub(crate) fn lease_stored(&mut self, lease: &LeaderLease, now_ms: u64) {
        self.own_beat = Some(lease.beat);
        self.observed = None;
        // Shorter than the time after which others take over.
        self.until_ms = now_ms.saturating_add(LEASE_MS * 8 / 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ServerName = [1; 16];
    const OTHER: ServerName = [2; 16];

    fn taken(decision: Result<LeaseDecision>) -> LeaderLease {
        match decision {
            Ok(LeaseDecision::Take(lease)) => lease,
            other => panic!("expected a lease to store, found {other:?}"),
        }
    }

    #[test]
    fn leader_renews_before_its_lease_ends() {
        let mut election = LeaderElection::default();
        let lease = taken(election.decide(None, OWN, 100));
        assert_eq!((lease.server, lease.beat, election.until_ms()), (OWN, 1, 0));
        election.lease_stored(&lease, 100);
        assert_eq!(election.until_ms(), 100 + LEASE_MS * 8 / 10);
        let renews_ms = election.until_ms() - LEASE_MS / 2;
        assert_eq!(election.decide(Some(&lease), OWN, renews_ms - 1).unwrap(), LeaseDecision::Lead);
        assert_eq!(taken(election.decide(Some(&lease), OWN, renews_ms)).beat, 2);
    }

    #[test]
    fn silent_leader_is_replaced_after_its_lease() {
        let mut election = LeaderElection::default();
        let mut lease = LeaderLease { server: OTHER, beat: 7 };
        assert_eq!(election.decide(Some(&lease), OWN, 1_000).unwrap(), LeaseDecision::Follow);
        // Renewed: the time counts from now.
        lease.beat = 8;
        assert_eq!(election.decide(Some(&lease), OWN, 6_000).unwrap(), LeaseDecision::Follow);
        let last_ms = 6_000 + LEASE_MS - 1;
        assert_eq!(election.decide(Some(&lease), OWN, last_ms).unwrap(), LeaseDecision::Follow);
        assert_eq!(taken(election.decide(Some(&lease), OWN, last_ms + 1)).beat, 9);
    }

    #[test]
    fn beat_of_another_server_with_own_name_fails() {
        let mut election = LeaderElection::default();
        let lease = taken(election.decide(None, OWN, 0));
        election.lease_stored(&lease, 0);
        let foreign = LeaderLease { server: OWN, beat: lease.beat + 1 };
        for now_ms in [1, 2] {
            assert!(election.decide(Some(&foreign), OWN, now_ms).is_err());
            assert_eq!(election.until_ms(), 0);
        }
    }
}
