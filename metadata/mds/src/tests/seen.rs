//! What was written down, and a server that writes it down.

use std::sync::Arc;

use parking_lot::Mutex;

use super::world::World;
use crate::Mds;
use crate::audit::{AuditRecord, AuditSink};

/// User, action, verdict of every record.
#[derive(Default)]
pub(super) struct Seen(Mutex<Vec<(String, String, String)>>);

impl AuditSink for Seen {
    fn record(&self, record: &AuditRecord<'_>) {
        let text = |text: &str| text.to_owned();
        self.0.lock().push((text(record.user), text(record.action), text(record.verdict)));
    }
}

impl Seen {
    /// The last one.
    pub(super) fn last(&self) -> (String, String, String) {
        self.0.lock().last().cloned().expect("something was written down")
    }

    /// All of them, as `user action verdict`.
    pub(super) fn lines(&self) -> Vec<String> {
        let seen = self.0.lock();
        seen.iter().map(|(user, action, verdict)| format!("{user} {action} {verdict}")).collect()
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl World {
    /// The same server, written down, with this changed.
    pub(super) fn audited(mut self, change: impl FnOnce(&mut crate::Config)) -> (Self, Arc<Seen>) {
        let seen = Arc::new(Seen::default());
        change(&mut self.mds.config);
        let mds = Mds::open(Arc::new(self.disk.clone()), self.mds.config.clone()).unwrap();
        self.mds = mds.with_audit(seen.clone());
        self.take_up();
        (self, seen)
    }
}
