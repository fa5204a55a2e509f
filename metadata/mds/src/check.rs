//! Checks of all metadata (fsck), while the server works.
//!
//! Does: count, compare, and repair where possible.
//! Does not: start by itself, or access devices; the server takes a requested check and runs it on
//! a thread of its own.
//! Contract: a check compares one state of the store and delays no request. Memory is bounded
//! except for directories (about 50 bytes each). A repair is a short transaction that keeps all
//! changes since the compared state.
//! Truth: docs/standards/mds/operations.md §5.10; docs/adr/0052-online-metadata-check.md.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{
    CheckFinding, CheckPhase, CheckScope, DeviceId, FindingKind, InodeId, ObjectRef, Response,
};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::namespace::queue_objects;
use crate::quota;
use crate::records::{count, counter, figure};
use crate::server::Mds;

pub(crate) mod job;
mod names;
mod objects;
mod paths;

pub use job::CheckJob;
use job::finding;
pub use objects::{ObjectDiff, ObjectWindow};

/// Maximum number of recounts after a repair of counts.
const ROUNDS_MAX: usize = 3;
/// Number of nodes checked together, so that memory is bounded.
const NODES_MAX: usize = 1 << 20;
/// Counts or objects repaired in one transaction, so that other writers get their turn.
const REPAIR_BATCH: usize = 256;

impl Mds {
    pub(crate) fn check_begin(
        &self,
        principal: &Principal,
        (scope, repair): (CheckScope, bool),
        now_ms: u64,
    ) -> Result<Response> {
        principal.needs_admin()?;
        let view = self.store.snapshot()?;
        let nodes_all = figure(&*view, counter::FILES)?.saturating_add(figure(&*view, counter::DIRECTORIES)?);
        let check = self.checks.begin((scope, repair), nodes_all, now_ms)?;
        Ok(Response::Check { check: Some(check) })
    }

    pub(crate) fn check_show(&self, principal: &Principal) -> Result<Response> {
        principal.needs_admin()?;
        Ok(Response::Check { check: self.checks.status() })
    }

    pub(crate) fn check_findings(&self, principal: &Principal, number: u64, from: u32) -> Result<Response> {
        principal.needs_admin()?;
        let (findings, more) = self.checks.findings(number, from)?;
        Ok(Response::CheckFindings { findings, more })
    }

    /// Takes a requested check that has not been taken yet. The caller runs [`Mds::check_records`],
    /// checks objects if [`CheckJob::checks_objects`], and reports the end.
    #[must_use]
    pub fn take_check(&self) -> Option<Arc<CheckJob>> {
        self.checks.take()
    }

    /// Checks all records. Runs as long as needed, without delaying requests.
    ///
    /// # Errors
    /// `Store`; `Refused` if it was stopped.
    pub fn check_records(&self, job: &CheckJob) -> Result<()> {
        self.check_records_in(job, NODES_MAX)
    }

    /// Checks all records, `nodes_max` nodes at a time.
    pub(crate) fn check_records_in(&self, job: &CheckJob, nodes_max: usize) -> Result<()> {
        if job.scope >= CheckScope::Names {
            let view = self.store.snapshot()?;
            let figures = names::check(&*view, job, nodes_max)?;
            drop(view);
            self.check_figures(job, &figures)?;
        }
        // Last, because a damaged node makes counting impossible; by then that node has been
        // reported.
        job.set_phase(CheckPhase::Nodes);
        self.check_counts(job)
    }

    /// Checks the usage of users and trees.
    fn check_counts(&self, job: &CheckJob) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            job.nodes.store(0, Ordering::Relaxed);
            let drifts = quota::count(&*self.store.snapshot()?, || {
                job.nodes.fetch_add(1, Ordering::Relaxed);
                job.ensure_running()
            })?;
            if job.repair && !drifts.is_empty() {
                for part in drifts.chunks(REPAIR_BATCH) {
                    self.update(|tx| quota::apply_drifts(tx, part))?;
                }
            }
            let none = drifts.is_empty();
            for drift in drifts {
                let text = format!(
                    "{}: counted {} bytes in {} files, found {} bytes in {} files",
                    drift.place, drift.bytes, drift.nodes, drift.bytes_found, drift.nodes_found
                );
                let found = finding(FindingKind::Count, None, &text);
                job.add_finding(CheckFinding { drift: Some(drift), repaired: job.repair, ..found });
            }
            if none || !job.repair {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Checks the stored totals.
    fn check_figures(&self, job: &CheckJob, figures: &[names::StoredTotal]) -> Result<()> {
        let wrong: Vec<_> = figures.iter().filter(|figure| figure.stored != figure.found).collect();
        // A node with a damaged record may still exist.
        let unsure = job.state.lock().findings.iter().any(|finding| finding.kind == FindingKind::Record);
        let repair = job.repair && !unsure;
        if repair && !wrong.is_empty() {
            // Nodes created and removed since then are in the current total.
            self.update(|tx| {
                wrong.iter().try_for_each(|figure| {
                    let drift = figure.found.wrapping_sub(figure.stored).cast_signed();
                    Ok(count(tx, figure.name, drift)?)
                })
            })?;
        }
        for figure in wrong {
            let text = format!("{}: stored total {}, found {}", figure.name, figure.stored, figure.found);
            job.add_finding(CheckFinding { repaired: repair, ..finding(FindingKind::Count, None, &text) });
        }
        Ok(())
    }

    /// Compares objects that devices listed before this call with the current records.
    ///
    /// # Errors
    /// `Store`; `Refused` if the check was stopped.
    pub fn compare_objects(&self, job: &CheckJob, window: &ObjectWindow) -> Result<ObjectDiff> {
        objects::compare(&*self.store.snapshot()?, job, window, |device| self.device_name(device))
    }

    /// Whether the object still belongs to this file.
    ///
    /// # Errors
    /// `Store`.
    pub fn has_object(&self, node: InodeId, object: ObjectRef) -> Result<bool> {
        objects::has(&*self.store.snapshot()?, node, object)
    }

    /// Reports an object of a file that is missing on its device.
    pub fn report_lost(&self, job: &CheckJob, node: InodeId, object: ObjectRef) {
        let text = format!("{} is not on {}", object.object, self.device_name(object.device));
        job.add_finding(finding(FindingKind::Lost, Some(node), &text));
    }

    /// Reports a device that could not be checked.
    pub fn report_unchecked(&self, job: &CheckJob, device: DeviceId, why: &str) {
        let text = format!("{} was not checked: {why}", self.device_name(device));
        job.add_finding(finding(FindingKind::Silent, None, &text));
    }

    /// Reports objects on devices that belong to no file. A check that repairs queues them for
    /// removal.
    ///
    /// # Errors
    /// `Store`.
    pub fn report_leaked(&self, job: &CheckJob, leaked: &[ObjectRef], now_ms: u64) -> Result<()> {
        if job.repair && !leaked.is_empty() {
            for part in leaked.chunks(REPAIR_BATCH) {
                self.update(|tx| queue_objects(tx, part, now_ms, 0))?;
            }
        }
        for object in leaked {
            let text = format!("{} on {} belongs to no file", object.object, self.device_name(object.device));
            job.add_finding(CheckFinding {
                repaired: job.repair,
                ..finding(FindingKind::Leaked, None, &text)
            });
        }
        Ok(())
    }

    fn device_name(&self, device: DeviceId) -> String {
        let known = self.devices.get(device);
        known.map_or_else(|| format!("device {}", device.0), |known| known.name.shown().into_owned())
    }

    /// Adds paths to findings about nodes; called last.
    ///
    /// # Errors
    /// `Store`; `Refused` if the check was stopped.
    pub fn check_paths(&self, job: &CheckJob) -> Result<()> {
        let mut findings = job.state.lock().findings.clone();
        if findings.iter().any(|finding| finding.node.is_some()) {
            paths::add(&*self.store.snapshot()?, job, &mut findings)?;
            job.state.lock().findings = findings;
        }
        Ok(())
    }
}

/// Describes why a check failed.
#[must_use]
pub fn check_failure(error: &MdsError) -> String {
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(error));
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
