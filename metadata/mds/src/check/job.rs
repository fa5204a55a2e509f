//! A running or finished check: progress, findings, and requests to stop.
//!
//! Does: keep the last check and its findings, and return them in pages.
//! Does not: read the store; the other modules of `check` do.
//! Truth: docs/standards/mds/operations.md §5.10.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sealstone_mds_protocol::{
    CheckFinding, CheckPhase, CheckScope, CheckStatus, ErrorCode, FindingKind, InodeId, Text, Wire as _,
    WireWriter,
};

use crate::error::{MdsError, Result};

/// Maximum number of findings that are kept; further ones are only counted.
const FINDINGS_MAX: usize = 10_000;
/// Maximum bytes of findings in a response; a frame has space for one more of the largest size.
const PAGE_BYTES: usize = 48 * 1024;

/// Mutable state of a check.
pub(super) struct CheckState {
    phase: CheckPhase,
    pub(super) findings: Vec<CheckFinding>,
    problem: Text<512>,
}

/// A running or finished check.
pub struct CheckJob {
    number: u64,
    pub(super) scope: CheckScope,
    pub(super) repair: bool,
    began_ms: u64,
    nodes_all: u64,
    taken: AtomicBool,
    stopped: AtomicBool,
    pub(super) nodes: AtomicU64,
    pub(super) names: AtomicU64,
    objects: AtomicU64,
    found: AtomicU64,
    repaired: AtomicU64,
    pub(super) state: Mutex<CheckState>,
}

impl CheckJob {
    fn new(number: u64, (scope, repair): (CheckScope, bool), nodes_all: u64, began_ms: u64) -> Self {
        let state = CheckState { phase: CheckPhase::Nodes, findings: Vec::new(), problem: Text::default() };
        Self {
            number,
            scope,
            repair,
            began_ms,
            nodes_all,
            taken: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            nodes: AtomicU64::new(0),
            names: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            found: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

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
    pub(super) fn ensure_running(&self) -> Result<()> {
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
pub(super) fn finding(kind: FindingKind, node: Option<InodeId>, text: &str) -> CheckFinding {
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

impl LastCheck {
    /// Begins a check, which replaces the last one.
    ///
    /// # Errors
    /// `Exists` if one is running.
    pub(super) fn begin(&self, what: (CheckScope, bool), nodes_all: u64, now_ms: u64) -> Result<CheckStatus> {
        let mut last = self.0.lock();
        if last.as_ref().is_some_and(|last| !last.is_over()) {
            return Err(MdsError::refused(ErrorCode::Exists, "a check is already running"));
        }
        let number = last.as_ref().map_or(1, |last| last.number + 1);
        let job = Arc::new(CheckJob::new(number, what, nodes_all, now_ms));
        *last = Some(Arc::clone(&job));
        Ok(job.to_wire())
    }

    /// Returns the progress of the last check.
    pub(super) fn status(&self) -> Option<CheckStatus> {
        self.0.lock().as_ref().map(|job| job.to_wire())
    }

    /// Returns a page of the findings of the check with this number, and whether there are more.
    ///
    /// # Errors
    /// `NotFound` if it is not the last one.
    pub(super) fn findings(&self, number: u64, from: u32) -> Result<(Vec<CheckFinding>, bool)> {
        let last = self.0.lock();
        let job = last.as_ref().filter(|job| job.number == number);
        let job = job.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, "that check"))?;
        Ok(job.page(from))
    }

    /// Takes a requested check that has not been taken yet.
    pub(super) fn take(&self) -> Option<Arc<CheckJob>> {
        let last = self.0.lock();
        last.as_ref().filter(|job| !job.taken.swap(true, Ordering::AcqRel)).cloned()
    }
}
