//! Checks of all metadata (fsck), while the server works.
//!
//! Does: hold the running check and its findings; count, compare, and repair where possible.
//! Does not: start by itself, or access devices; the server takes a requested check and runs it on
//! a thread of its own.
//! Contract: a check compares one state of the store and delays no request. Memory is bounded
//! except for directories (about 50 bytes each). A repair is a short transaction that keeps all
//! changes since the compared state.
//! Truth: docs/standards/mds/operations.md §5.10; docs/adr/0052-online-metadata-check.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sealstone_mds_protocol::{
    CheckFinding, CheckPhase, CheckScope, CheckStatus, DeviceId, ErrorCode, FindingKind, InodeId, ObjectRef,
    Response, Text, Wire as _, WireWriter,
};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::namespace::queue_objects;
use crate::quota;
use crate::records::{count, counter, figure};
use crate::server::Mds;

mod names;
mod objects;
mod paths;

pub use objects::{ObjectDiff, ObjectWindow};

/// Maximum number of findings that are kept; further ones are only counted.
const FINDINGS_MAX: usize = 10_000;
/// Maximum bytes of findings in a response; a frame has space for one more of the largest size.
const PAGE_BYTES: usize = 48 * 1024;
/// Maximum number of recounts after a repair of counts.
const ROUNDS_MAX: usize = 3;
/// Number of nodes checked together, so that memory is bounded.
const NODES_MAX: usize = 1 << 20;
/// Counts or objects repaired in one transaction, so that other writers get their turn.
const REPAIR_BATCH: usize = 256;

/// Mutable state of a check.
struct CheckState {
    phase: CheckPhase,
    findings: Vec<CheckFinding>,
    problem: Text<512>,
}

/// A running or finished check.
pub struct CheckJob {
    number: u64,
    scope: CheckScope,
    repair: bool,
    began_ms: u64,
    nodes_all: u64,
    taken: AtomicBool,
    stopped: AtomicBool,
    nodes: AtomicU64,
    names: AtomicU64,
    objects: AtomicU64,
    found: AtomicU64,
    repaired: AtomicU64,
    state: Mutex<CheckState>,
}

impl CheckJob {
    /// Whether objects on devices are checked.
    #[must_use]
    pub fn checks_objects(&self) -> bool {
        self.scope == CheckScope::Objects
    }

    /// Whether findings are repaired where possible.
    #[must_use]
    pub const fn repairs(&self) -> bool {
        self.repair
    }

    /// Stops the check soon: the server shuts down.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Adds to the number of checked objects.
    pub fn count_objects(&self, more: usize) {
        self.objects.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Records a finding.
    pub fn add_finding(&self, finding: CheckFinding) {
        self.found.fetch_add(1, Ordering::Relaxed);
        self.repaired.fetch_add(u64::from(finding.repaired), Ordering::Relaxed);
        tracing::warn!(kind = finding.kind.name(), detail = %finding.said, repaired = finding.repaired, "check found a problem");
        let mut state = self.state.lock();
        if state.findings.len() < FINDINGS_MAX {
            state.findings.push(finding);
        }
    }

    /// Sets the current phase.
    pub fn set_phase(&self, phase: CheckPhase) {
        self.state.lock().phase = phase;
    }

    /// Records the end of the check, with the error if it failed.
    pub fn finish(&self, outcome: std::result::Result<(), String>) {
        let mut state = self.state.lock();
        match outcome {
            Ok(()) => state.phase = CheckPhase::Done,
            Err(why) => {
                state.phase = CheckPhase::Failed;
                state.problem = Text::truncated(&why);
            }
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.state.lock().phase, CheckPhase::Done | CheckPhase::Failed)
    }

    /// Fails if the check was stopped.
    fn ensure_running(&self) -> Result<()> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(MdsError::refused(ErrorCode::Busy, "the server shuts down")),
            false => Ok(()),
        }
    }

    fn to_wire(&self) -> CheckStatus {
        let state = self.state.lock();
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        CheckStatus {
            number: self.number,
            scope: self.scope,
            repair: self.repair,
            phase: state.phase,
            began_ms: self.began_ms,
            nodes: of(&self.nodes),
            nodes_all: self.nodes_all,
            names: of(&self.names),
            objects: of(&self.objects),
            findings: of(&self.found),
            repaired: of(&self.repaired),
            problem: state.problem.clone(),
        }
    }

    fn page(&self, from: u32) -> (Vec<CheckFinding>, bool) {
        let state = self.state.lock();
        let (mut page, mut bytes) = (Vec::new(), 0);
        let mut rest = state.findings.iter().skip(from as usize).peekable();
        while let Some(finding) = rest.next_if(|_| bytes <= PAGE_BYTES) {
            let mut out = WireWriter::new();
            finding.put(&mut out);
            bytes += out.len();
            page.push(finding.clone());
        }
        (page, rest.peek().is_some())
    }
}

/// Returns a finding about a node, or about none.
fn finding(kind: FindingKind, node: Option<InodeId>, text: &str) -> CheckFinding {
    CheckFinding {
        kind,
        node,
        path: Text::default(),
        said: Text::truncated(text),
        drift: None,
        repaired: false,
    }
}

/// The last check.
#[derive(Default)]
pub(crate) struct LastCheck(Mutex<Option<Arc<CheckJob>>>);

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
        let mut last = self.checks.0.lock();
        if last.as_ref().is_some_and(|last| !last.is_over()) {
            return Err(MdsError::refused(ErrorCode::Exists, "a check is already running"));
        }
        let state = CheckState { phase: CheckPhase::Nodes, findings: Vec::new(), problem: Text::default() };
        let job = Arc::new(CheckJob {
            number: last.as_ref().map_or(1, |last| last.number + 1),
            scope,
            repair,
            began_ms: now_ms,
            nodes_all,
            taken: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            nodes: AtomicU64::new(0),
            names: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            found: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
            state: Mutex::new(state),
        });
        *last = Some(Arc::clone(&job));
        Ok(Response::Check { check: Some(job.to_wire()) })
    }

    pub(crate) fn check_show(&self, principal: &Principal) -> Result<Response> {
        principal.needs_admin()?;
        Ok(Response::Check { check: self.checks.0.lock().as_ref().map(|job| job.to_wire()) })
    }

    pub(crate) fn check_findings(&self, principal: &Principal, number: u64, from: u32) -> Result<Response> {
        principal.needs_admin()?;
        let last = self.checks.0.lock();
        let job = last.as_ref().filter(|job| job.number == number);
        let job = job.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, "that check"))?;
        let (findings, more) = job.page(from);
        Ok(Response::CheckFindings { findings, more })
    }

    /// Takes a requested check that has not been taken yet. The caller runs [`Mds::check_records`],
    /// checks objects if [`CheckJob::checks_objects`], and reports the end.
    #[must_use]
    pub fn take_check(&self) -> Option<Arc<CheckJob>> {
        let last = self.checks.0.lock();
        last.as_ref().filter(|job| !job.taken.swap(true, Ordering::AcqRel)).cloned()
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
