//! Counters for `/metrics`: one row for each request and one for each error code.
//!
//! Does: counts, and renders the counters in the text format of Prometheus.
//! Does not: serve them; the daemon does.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_mds_protocol::{ErrorCode, REQUESTS};

/// Events since the process started.
pub struct Counters {
    requests: Vec<AtomicU64>,
    failures: Vec<AtomicU64>,
    /// Logins that succeeded.
    pub logins: AtomicU64,
    /// Sessions resumed.
    pub resumed: AtomicU64,
    /// Logins refused: wrong password, unknown user, or too late.
    pub login_refused: AtomicU64,
    /// Logins rejected by a rate limit, without a check.
    pub login_limited: AtomicU64,
    /// Logins that were answered with a cookie challenge.
    pub cookies: AtomicU64,
    /// Accounts whose users set their password with an enrolment code.
    pub enrolled: AtomicU64,
    /// Queries to the directory.
    pub directory_questions: AtomicU64,
    /// Queries that the directory did not answer.
    pub directory_silent: AtomicU64,
    /// Sessions that ended because of the directory's answer, or because it was unavailable for too
    /// long.
    pub directory_ended: AtomicU64,
    /// Protocol violations.
    pub violations: AtomicU64,
    /// Grants issued.
    pub grants: AtomicU64,
    /// Leases granted.
    pub leases_given: AtomicU64,
    /// Leases recalled.
    pub leases_recalled: AtomicU64,
    /// Write leases that were not returned and whose clients were fenced.
    pub leases_fenced: AtomicU64,
    /// Files from which clients were fenced that had locks and sent nothing for too long.
    pub locks_fenced: AtomicU64,
    /// Objects removed from devices.
    pub reaped: AtomicU64,
    /// Creates that expired.
    pub expired_intents: AtomicU64,
    /// Files and creates whose objects were longer than recorded, and were truncated or removed.
    pub overlong_cut: AtomicU64,
    /// Device keys changed.
    pub keys_changed: AtomicU64,
    /// Files migrated to another layout.
    pub carried: AtomicU64,
    /// Bytes of files migrated to another layout.
    pub carried_bytes: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let zeros = |n: usize| std::iter::repeat_with(AtomicU64::default).take(n).collect();
        Self {
            requests: zeros(REQUESTS.len()),
            failures: zeros(ErrorCode::ALL.len()),
            logins: AtomicU64::default(),
            resumed: AtomicU64::default(),
            login_refused: AtomicU64::default(),
            login_limited: AtomicU64::default(),
            cookies: AtomicU64::default(),
            enrolled: AtomicU64::default(),
            directory_questions: AtomicU64::default(),
            directory_silent: AtomicU64::default(),
            directory_ended: AtomicU64::default(),
            violations: AtomicU64::default(),
            grants: AtomicU64::default(),
            leases_given: AtomicU64::default(),
            leases_recalled: AtomicU64::default(),
            leases_fenced: AtomicU64::default(),
            locks_fenced: AtomicU64::default(),
            reaped: AtomicU64::default(),
            expired_intents: AtomicU64::default(),
            overlong_cut: AtomicU64::default(),
            keys_changed: AtomicU64::default(),
            carried: AtomicU64::default(),
            carried_bytes: AtomicU64::default(),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(figure: &AtomicU64, by: u64) {
    figure.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn request(&self, operation: u16) {
        if let Ok(row) = REQUESTS.binary_search_by_key(&operation, |row| row.0) {
            add(&self.requests[row], 1);
        }
    }

    pub(crate) fn failure(&self, code: ErrorCode) {
        if let Ok(row) = ErrorCode::ALL.binary_search(&code) {
            add(&self.failures[row], 1);
        }
    }

    /// Returns the counters as Prometheus text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        header(&mut text, "requests", "Requests received, by kind.");
        let value = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        for ((_, name), figure) in REQUESTS.iter().zip(&self.requests) {
            let _ = writeln!(text, "sealstone_mds_requests_total{{request=\"{name}\"}} {}", value(figure));
        }
        header(&mut text, "failures", "Requests that failed, by reason.");
        for (code, figure) in ErrorCode::ALL.iter().zip(&self.failures) {
            let _ =
                writeln!(text, "sealstone_mds_failures_total{{code=\"{}\"}} {}", code.name(), value(figure));
        }
        for (name, help, figure) in [
            ("logins", "Logins with a password.", &self.logins),
            ("sessions_resumed", "Sessions resumed on a new connection.", &self.resumed),
            (
                "logins_refused",
                "Logins that failed or were abandoned, and resumptions refused.",
                &self.login_refused,
            ),
            ("logins_limited", "Logins rejected because of too many attempts.", &self.login_limited),
            ("login_cookies", "Logins that were answered with a cookie challenge.", &self.cookies),
            ("enrolments", "Passwords set with an enrolment code.", &self.enrolled),
            ("directory_questions", "Queries to the user directory.", &self.directory_questions),
            ("directory_silent", "Queries that the user directory did not answer.", &self.directory_silent),
            (
                "directory_sessions_ended",
                "Sessions ended because of the user directory's answer, or because it was unavailable.",
                &self.directory_ended,
            ),
            ("protocol_violations", "Connections closed for a protocol violation.", &self.violations),
            ("grants", "Credentials issued for objects.", &self.grants),
            ("leases_given", "Leases on files granted.", &self.leases_given),
            ("leases_recalled", "Leases on files recalled.", &self.leases_recalled),
            (
                "leases_fenced",
                "Write leases that were not returned in time; their clients were fenced.",
                &self.leases_fenced,
            ),
            (
                "locks_fenced",
                "Files with locks of unresponsive clients, which were fenced.",
                &self.locks_fenced,
            ),
            (
                "objects_reaped",
                "Objects of removed files that were removed from their devices.",
                &self.reaped,
            ),
            ("creates_expired", "Creates that expired unfinished.", &self.expired_intents),
            (
                "overlong_cut",
                "Files and creates in quotas with objects longer than recorded, which were truncated or discarded.",
                &self.overlong_cut,
            ),
            ("keys_changed", "Keys of devices that were set or overwritten.", &self.keys_changed),
            ("files_carried", "Files migrated to another layout.", &self.carried),
            ("carried_bytes", "Bytes of files migrated to another layout.", &self.carried_bytes),
        ] {
            header(&mut text, name, help);
            let _ = writeln!(text, "sealstone_mds_{name}_total {}", value(figure));
        }
        text
    }
}

fn header(text: &mut String, name: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ =
        writeln!(text, "# HELP sealstone_mds_{name}_total {help}\n# TYPE sealstone_mds_{name}_total counter");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_and_every_error_has_a_row() {
        let counters = Counters::default();
        for (operation, _) in REQUESTS {
            counters.request(*operation);
        }
        for code in ErrorCode::ALL {
            counters.failure(*code);
        }
        let text = counters.render();
        assert_eq!(
            text.lines().filter(|line| line.ends_with("} 1")).count(),
            REQUESTS.len() + ErrorCode::ALL.len()
        );
    }
}
