//! Budgets of calls that have no engine yet.
//!
//! Does: counts the code of admitted calls. Contract: a permit returns its share when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_osd_device::FunctionCall;

/// Bytes of code that calls without an engine may have.
pub(super) struct CodeBudget(AtomicU64);

/// The share of one call. Dropped when an engine has its code.
pub(super) struct CodePermit {
    budget: Arc<CodeBudget>,
    bytes: u64,
}

/// A call whose code is counted.
pub(super) struct BudgetedCall {
    pub(super) call: FunctionCall,
    pub(super) permit: CodePermit,
}

impl CodeBudget {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(bytes)))
    }

    /// Counts the code of a call; `None` if the budget is used up.
    pub(super) fn admit(self: &Arc<Self>, call: FunctionCall) -> Option<BudgetedCall> {
        let bytes = call.code.len() as u64;
        let take = |free: u64| free.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(BudgetedCall { call, permit: CodePermit { budget: Arc::clone(self), bytes } })
    }
}

impl Drop for CodePermit {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
