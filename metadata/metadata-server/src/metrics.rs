//! Metrics and health of a running metadata server.

use std::sync::Arc;

use sealstone_daemon::AuditState;
use sealstone_daemon::metrics::{MetricKind, Observed, Page};
use sealstone_daemon::time::Following;
use sealstone_mds_server::Server;

/// Sources of the metrics page.
pub(crate) struct ObservedMds {
    pub(crate) server: Arc<Server>,
    pub(crate) audit: Arc<AuditState>,
    pub(crate) following: Option<Arc<Following>>,
}

impl Observed for ObservedMds {
    fn observe(&self, page: &mut Page) {
        page.raw(&self.server.metrics());
        for (name, help, value) in [
            ("sealstone_mds_audit_records_total", "Audit records written.", self.audit.records()),
            (
                "sealstone_mds_audit_suppressed_total",
                "Audit records that are in the count of another line.",
                self.audit.suppressed(),
            ),
            ("sealstone_mds_audit_lost_total", "Audit records that the disk refused.", self.audit.lost()),
        ] {
            page.family(MetricKind::Counter, name, help, [(&[][..], value)]);
        }
        if let Some(following) = &self.following {
            following.observe("mds", page);
        }
    }

    fn health(&self) -> Result<(), String> {
        if self.audit.is_failing() {
            return Err("cannot write the audit log".into());
        }
        if self.server.healthy() { Ok(()) } else { Err("the metadata store refuses transactions".into()) }
    }
}
