//! Metrics and health of a running device.

use std::sync::Arc;

use sealstone_daemon::AuditState;
use sealstone_daemon::metrics::{MetricKind, Observed, Page};
use sealstone_daemon::time::Following;
use sealstone_function_service::FunctionService;
use sealstone_iscsi_target::{Counter, IscsiTarget};
use sealstone_osd_device::OsdUnit;
use sealstone_store::{BLOCK, DiskStore, ObjectStore as _};

use crate::blocks::Blocks;
use crate::scrub::Scrubber;

/// Sources of the metrics page.
pub(crate) struct ObservedOsd {
    pub(crate) name: String,
    pub(crate) unit: Arc<OsdUnit>,
    pub(crate) store: Arc<DiskStore>,
    pub(crate) target: IscsiTarget,
    pub(crate) audit: Arc<AuditState>,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) scrubber: Arc<Scrubber>,
    pub(crate) functions: Arc<FunctionService>,
    pub(crate) time: Option<Arc<Following>>,
    pub(crate) insecure_adhash: bool,
}

impl Observed for ObservedOsd {
    fn observe(&self, page: &mut Page) {
        page.raw(&self.unit.metrics().prometheus(&self.name));
        self.blocks.observe(&self.name, page);
        self.scrubber.observe(page);
        page.raw(&self.functions.prometheus(&self.name));
        if let Some(time) = &self.time {
            time.observe(&self.name, page);
        }
        let usage = self.unit.usage();
        let labels = [("device", self.name.as_str())];
        let mechanism = [("device", self.name.as_str()), ("mechanism", "adhash")];
        let insecure = [(&mechanism[..], u64::from(self.insecure_adhash))];
        page.family(
            MetricKind::Gauge,
            "sealstone_osd_insecure_profile",
            "Enabled mechanisms that are known to be broken.",
            insecure,
        );
        let mut one =
            |kind, name: &str, help: &str, value| page.family(kind, name, help, [(&labels[..], value)]);
        one(MetricKind::Gauge, "sealstone_osd_capacity_bytes", "Bytes that objects may use.", usage.total);
        one(MetricKind::Gauge, "sealstone_osd_used_bytes", "Bytes in use.", usage.used);
        let (free, handed_out) = self.store.fragmentation();
        let help = "Runs of free blocks of 4 KiB in the store.";
        one(MetricKind::Gauge, "sealstone_store_free_runs", help, free.runs);
        let help = "Length of the longest run of free blocks.";
        one(MetricKind::Gauge, "sealstone_store_free_run_longest_bytes", help, free.longest * BLOCK);
        one(MetricKind::Gauge, "sealstone_store_free_bytes", "Bytes of free blocks.", free.blocks * BLOCK);
        let help = "Bytes of blocks allocated for writes since the start.";
        one(MetricKind::Counter, "sealstone_store_allocated_bytes_total", help, handed_out.blocks * BLOCK);
        let help = "Runs of these blocks: more runs per MiB mean more fragmented data.";
        one(MetricKind::Counter, "sealstone_store_allocated_runs_total", help, handed_out.runs);
        let inline = self.store.inline_use();
        let help = "Small objects whose bytes are in the store's index.";
        one(MetricKind::Gauge, "sealstone_store_inline_objects", help, inline.blocks);
        let help = "Bytes of small objects in the index.";
        one(MetricKind::Gauge, "sealstone_store_inline_bytes", help, inline.bytes);
        let help = "Maximum bytes of small objects in the index; further ones use blocks.";
        one(MetricKind::Gauge, "sealstone_store_inline_limit_bytes", help, inline.bytes_max);
        one(MetricKind::Gauge, "sealstone_osd_partitions", "Partitions.", usage.partitions);
        let work = self.unit.work_counts();
        one(
            MetricKind::Gauge,
            "sealstone_osd_immediate_commands",
            "Immediate commands in progress.",
            work.immediate,
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_immediate_commands_ended_total",
            "Finished immediate commands.",
            work.immediate_ended,
        );
        one(
            MetricKind::Gauge,
            "sealstone_osd_stranded_partitions",
            "Partitions that are hidden because a restore or refresh is incomplete; it is retried.",
            work.stranded,
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_audit_records_total",
            "Audit records written.",
            self.audit.records(),
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_audit_suppressed_total",
            "Audit records that are in the count of another line.",
            self.audit.suppressed(),
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_audit_lost_total",
            "Audit records that the disk refused.",
            self.audit.lost(),
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_connections_evicted_total",
            "Connections closed in favour of accounts or addresses with fewer.",
            self.target.evicted(),
        );
        let hashing = self.unit.hashing();
        for (name, help, value) in [
            (
                "sealstone_osd_alldata_hashed_bytes_total",
                "Bytes of data hashed for check values of reads.",
                hashing.hashed_bytes,
            ),
            (
                "sealstone_osd_alldata_stored_units_total",
                "Units of reads whose stored digest was used.",
                hashing.stored_units,
            ),
            (
                "sealstone_osd_alldata_stored_pages_total",
                "Attribute pages whose stored digest was used.",
                hashing.stored_pages,
            ),
        ] {
            one(MetricKind::Counter, name, help, value);
        }
        let counters = self.target.counters();
        for &counter in Counter::ALL {
            let kind =
                if counter.name().ends_with("_total") { MetricKind::Counter } else { MetricKind::Gauge };
            one(kind, &format!("sealstone_iscsi_{}", counter.name()), counter.help(), counters.get(counter));
        }
    }

    fn health(&self) -> Result<(), String> {
        if self.audit.is_failing() {
            return Err("cannot write the audit log".into());
        }
        if self.store.is_poisoned() {
            let faults: Vec<String> = self.store.health().faults.iter().map(ToString::to_string).collect();
            return Err(match faults.is_empty() {
                true => "the store failed to flush and refuses writes; restart the device".into(),
                false => format!("the store is read-only: {}", faults.join("; ")),
            });
        }
        let space = self.store.space();
        if space.used > space.total { Err("the store uses more than its capacity".into()) } else { Ok(()) }
    }
}
