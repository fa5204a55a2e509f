//! Reauthentication within a session, required before the password or key is changed.
//!
//! Does: another OPAQUE exchange, bound to the session.
//! Does not: open a session.
//! Contract: a session has at most one reauthentication in progress, and it permits one change. The
//! caller has counted the attempt, whether it is finished or not.
//! Truth: docs/standards/mds/login.md §4.9.

use sealstone_login::{AccountRecord, LoginContext, Stretch};
use sealstone_mds_protocol::ErrorCode;
use sealstone_mds_protocol::login::{LoginChallenge, LoginFinish, LoginStart};

use crate::access::Principal;
use crate::accounts;
use crate::audit::AuditRecord;
use crate::counters::add;
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::records::AccountCredential;
use crate::server::Mds;
use crate::sessions::Reauth;

/// Time limit from the challenge to the change: the client stretches two passwords in it, on a slow
/// machine perhaps.
pub(crate) const REAUTH_MS: u64 = 60_000;

impl Mds {
    /// Starts a reauthentication and returns its challenge.
    pub(crate) fn reauth_start(
        &self,
        principal: &Principal,
        start: &LoginStart,
        now_ms: u64,
        mut rng: &mut dyn Entropy,
    ) -> Result<LoginChallenge> {
        if start.user != principal.user {
            return Err(MdsError::refused(ErrorCode::Invalid, "proof for another account"));
        }
        if Stretch::for_suite(start.suite).is_err() {
            return Err(MdsError::refused(ErrorCode::Invalid, "login suite"));
        }
        let account = accounts::existing_enabled(&*self.store.snapshot()?, &principal.user)?;
        let credential = account.and_then(|account| account.credential(start.suite).cloned());
        let record = credential.as_ref().and_then(|one| AccountRecord::parse(&one.record).ok());
        let context = LoginContext::again(&self.server_id, &principal.session);
        let (id, skew) = (random(rng), self.config.clock_error_ms);
        let (challenge, started) = self
            .login_keys
            .challenge(&mut rng, record.as_ref(), start, context, id, now_ms, skew)
            .map_err(|_| MdsError::refused(ErrorCode::Invalid, "proof"))?;
        let until_ms = now_ms.saturating_add(REAUTH_MS);
        if self.sessions.set_reauth(&principal.session, Reauth { started, credential, until_ms }).is_some() {
            // The trace of a wrong guess: the client notices it in the challenge and sends no
            // proof.
            add(&self.counters.login_refused, 1);
            self.audit.record(&AuditRecord {
                time_ms: now_ms,
                user: principal.user.as_str(),
                session: Some(&principal.session),
                proven: true,
                source: None,
                action: "prove",
                subject: None,
                verdict: "abandoned",
            });
        }
        Ok(challenge)
    }

    /// Finishes a reauthentication and returns the proven credential. The transaction of the change
    /// checks that it is still the current one.
    pub(crate) fn reauth_finish(
        &self,
        principal: &Principal,
        finish: &LoginFinish,
        now_ms: u64,
    ) -> Result<AccountCredential> {
        let denied = |what: &str| MdsError::refused(ErrorCode::Denied, what);
        let reauth = self.sessions.take_reauth(&principal.session);
        let reauth = reauth.filter(|reauth| now_ms <= reauth.until_ms);
        let Reauth { started, credential, .. } =
            *reauth.ok_or_else(|| denied("no proof was started, or it expired"))?;
        if started.finish(finish).is_err() {
            add(&self.counters.login_refused, 1);
            return Err(denied("wrong current password or key"));
        }
        let credential = credential.ok_or_else(|| denied("wrong current password or key"))?;
        Ok(credential)
    }
}
