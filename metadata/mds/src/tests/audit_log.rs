//! Recorded audit entries, and a server that records them.

use std::sync::Arc;

use parking_lot::Mutex;

use super::world::World;
use crate::Mds;
use crate::audit::{AuditRecord, AuditSink};

/// User, action and verdict of every record.
#[derive(Default)]
pub(super) struct Seen(Mutex<Vec<(String, String, String)>>);

impl AuditSink for Seen {
    fn record(&self, record: &AuditRecord<'_>) {
        let text = |text: &str| text.to_owned();
        self.0.lock().push((text(record.user), text(record.action), text(record.verdict)));
    }
}

impl Seen {
    /// Returns the last record.
    pub(super) fn last(&self) -> (String, String, String) {
        self.0.lock().last().cloned().expect("something was written down")
    }

    /// Returns all records as `user action verdict`.
    pub(super) fn lines(&self) -> Vec<String> {
        let seen = self.0.lock();
        seen.iter().map(|(user, action, verdict)| format!("{user} {action} {verdict}")).collect()
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl World {
    /// Returns the same server with recorded audit entries and a changed configuration.
    pub(super) fn audited(mut self, change: impl FnOnce(&mut crate::Config)) -> (Self, Arc<Seen>) {
        let seen = Arc::new(Seen::default());
        change(&mut self.mds.config);
        let mds = Mds::open(Arc::new(self.disk.clone()), self.mds.config.clone()).unwrap();
        self.mds = mds.with_audit(seen.clone());
        self.take_up();
        (self, seen)
    }
}
