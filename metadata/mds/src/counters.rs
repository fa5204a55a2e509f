//! Figures for `/metrics`: one row per request of the table, one per error code.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_mds_protocol::{ErrorCode, REQUESTS};

/// What happened since the process began.
pub struct Counters {
    requests: Vec<AtomicU64>,
    failures: Vec<AtomicU64>,
    /// Logins that succeeded.
    pub logins: AtomicU64,
    /// Sessions taken up again.
    pub resumed: AtomicU64,
    /// Logins refused: wrong password, unknown user, too late.
    pub login_refused: AtomicU64,
    /// Logins not looked at because of a rate limit.
    pub login_limited: AtomicU64,
    /// Logins that were asked for a cookie.
    pub cookies: AtomicU64,
    /// Accounts whose users chose their password with a code.
    pub enrolled: AtomicU64,
    /// Questions to the directory.
    pub directory_questions: AtomicU64,
    /// Of them, those without an answer.
    pub directory_silent: AtomicU64,
    /// Sessions that ended because of what the directory said, or because it said nothing for too long.
    pub directory_ended: AtomicU64,
    /// Frames that broke the protocol.
    pub violations: AtomicU64,
    /// Grants given out.
    pub grants: AtomicU64,
    /// Leases given out.
    pub leases_given: AtomicU64,
    /// Leases called back.
    pub leases_recalled: AtomicU64,
    /// Leases to write that were not given back, and whose holders were kept from writing.
    pub leases_fenced: AtomicU64,
    /// Files that holders had locked when they were not heard of any more, and that they were kept from writing.
    pub locks_fenced: AtomicU64,
    /// Objects removed from devices.
    pub reaped: AtomicU64,
    /// Creates that expired.
    pub expired_intents: AtomicU64,
    /// Files and creates whose objects were longer than recorded, and were cut or given up.
    pub overlong_cut: AtomicU64,
    /// Keys of devices changed.
    pub keys_changed: AtomicU64,
    /// Files carried over to another layout.
    pub carried: AtomicU64,
    /// Their bytes.
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

/// Adds to a figure.
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

    /// Prometheus text.
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
            ("sessions_resumed", "Connections that went on with a session.", &self.resumed),
            (
                "logins_refused",
                "Logins that failed or were given up half way, and resumptions refused.",
                &self.login_refused,
            ),
            ("logins_limited", "Logins put off because of too many attempts.", &self.login_limited),
            ("login_cookies", "Logins that were asked to come again with a cookie.", &self.cookies),
            ("enrolments", "Passwords chosen with an enrolment code.", &self.enrolled),
            ("directory_questions", "Questions to the directory of users.", &self.directory_questions),
            ("directory_silent", "Questions that the directory did not answer.", &self.directory_silent),
            (
                "directory_sessions_ended",
                "Sessions that ended by the directory's word, or by its silence.",
                &self.directory_ended,
            ),
            ("protocol_violations", "Connections closed for a protocol violation.", &self.violations),
            ("grants", "Credentials given for objects.", &self.grants),
            ("leases_given", "Leases on files given.", &self.leases_given),
            ("leases_recalled", "Leases on files called back.", &self.leases_recalled),
            (
                "leases_fenced",
                "Leases to write that were not given back: their holders were kept from writing.",
                &self.leases_fenced,
            ),
            (
                "locks_fenced",
                "Files locked by holders that were not heard of any more: they were kept from writing.",
                &self.locks_fenced,
            ),
            ("objects_reaped", "Objects of removed files that are gone from their devices.", &self.reaped),
            ("creates_expired", "Creates that nobody finished.", &self.expired_intents),
            (
                "overlong_cut",
                "Files and creates in quotas with objects longer than recorded, which were cut or given up.",
                &self.overlong_cut,
            ),
            ("keys_changed", "Keys of devices that were set or overwritten.", &self.keys_changed),
            ("files_carried", "Files carried over to another layout.", &self.carried),
            ("carried_bytes", "Bytes of files carried over to another layout.", &self.carried_bytes),
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
