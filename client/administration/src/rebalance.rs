//! Rebalances: devices become equally full.

use std::time::{Duration, Instant};

use sealstone_client::{Client, Metadata, RebalanceState};
use sealstone_failure::text::human_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{Request, Response};
use sealstone_units::utc;
use serde_json::{Value, json};

use crate::observer::{OperationObserver, OperationProgress, OperationUnit, WaitLimit};

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A step in the rebalance of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebalanceAction {
    /// Start it, with at most so many bytes per second, and wait for its end.
    Start {
        /// Bytes per second; 0: unlimited.
        rate: u64,
        /// How long to wait.
        wait: WaitLimit,
    },
    /// Stop it.
    Stop,
    /// Show its progress.
    Show,
}

/// The last rebalance, if there was one.
#[derive(Clone, Debug)]
pub struct RebalanceReport(Option<RebalanceState>);

impl RebalanceReport {
    /// Returns the report as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        state_json(self.0.as_ref())
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        text(self.0.as_ref())
    }
}

/// Starts, stops or shows the rebalance of the devices.
///
/// # Errors
/// The server refuses, or the rebalance did not end in time.
pub async fn rebalance(
    client: &Client,
    action: RebalanceAction,
    observer: &dyn OperationObserver,
) -> Outcome<RebalanceReport> {
    let (request, wait) = match action {
        RebalanceAction::Show => (Request::RebalanceShow {}, WaitLimit::None),
        RebalanceAction::Stop => (Request::RebalanceStop {}, WaitLimit::None),
        RebalanceAction::Start { rate, wait } => (Request::Rebalance { rate }, wait),
    };
    let mut state = request_state(client, request).await?;
    if wait == WaitLimit::None {
        return Ok(RebalanceReport(state));
    }
    let progress = OperationProgress::begin(observer, OperationUnit::Bytes, 1, "devices");
    let begun = Instant::now();
    while let Some(now) = state.as_ref().filter(|state| state.done_ms.is_none()) {
        if wait.is_over(begun) {
            let message = format!("timed out: at least {} remain to be moved", human_bytes(now.left_bytes));
            let hint = "the metadata server continues; `sealstone osd rebalance --show` shows the progress";
            return Err(Failure::operation(message).hint(hint));
        }
        progress.set(now.moved_bytes, now.moved_bytes.saturating_add(now.left_bytes));
        tokio::time::sleep(POLL_INTERVAL).await;
        state = request_state(client, Request::RebalanceShow {}).await?;
    }
    if state.as_ref().is_some_and(|state| state.stopped) {
        return Err(Failure::operation("the rebalance was stopped by another command"));
    }
    Ok(RebalanceReport(state))
}

async fn request_state(client: &Client, request: Request) -> Outcome<Option<RebalanceState>> {
    match client.metadata().call(request).await? {
        Response::Rebalance { rebalance } => Ok(rebalance),
        _ => Err(Failure::unexpected_response()),
    }
}

/// Returns the progress as `--json` prints it.
fn state_json(state: Option<&RebalanceState>) -> Value {
    let Some(state) = state else { return json!({ "rebalance": null }) };
    let problem = Some(state.problem.as_str()).filter(|problem| !problem.is_empty());
    let rebalance = json!({
        "began_ms": state.began_ms, "rate": state.rate, "done_ms": state.done_ms, "stopped": state.stopped,
        "moved_objects": state.moved_objects, "moved_bytes": state.moved_bytes,
        "left_bytes": state.left_bytes, "in_use": state.in_use, "problem": problem,
    });
    json!({ "rebalance": rebalance })
}

fn text(state: Option<&RebalanceState>) -> String {
    let Some(state) = state else { return "no rebalance has run".to_owned() };
    let mut line = match state.done_ms {
        None => format!("since {}", utc(state.began_ms)),
        Some(done_ms) if state.stopped => format!("ended by command at {}", utc(done_ms)),
        Some(done_ms) => format!("done at {}", utc(done_ms)),
    };
    line += &format!(": {} objects ({}) moved", state.moved_objects, human_bytes(state.moved_bytes));
    match (state.left_bytes, state.done_ms) {
        (0, Some(_)) => line += ", every device is as full as the others, within 2 %",
        (left, None) => line += &format!(", {} to be moved at least", human_bytes(left)),
        (left, Some(_)) => line += &format!(", {} could not be moved", human_bytes(left)),
    }
    if state.in_use > 0 {
        line += &format!(", {} objects were in use", state.in_use);
    }
    if !state.problem.as_str().is_empty() {
        line += &format!("; {}", state.problem.as_str());
    }
    line
}
