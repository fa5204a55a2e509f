//! Budgets of calls: code without an engine, and threads of commands.
//!
//! Does: counts both. Contract: a permit returns its share when it is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sealstone_osd_device::FunctionCall;

use crate::job_table::JobUser;
use crate::limits::{COMMAND_THREADS_MAX, COMMAND_THREADS_PER_USER_MAX};

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

/// Commands that occupy a thread of the device until a job ends, by user.
#[derive(Default)]
pub(super) struct CommandThreads(Mutex<HashMap<JobUser, usize>>);

/// The thread of one command.
pub(super) struct CommandThread<'a> {
    threads: &'a CommandThreads,
    user: JobUser,
}

impl CommandThreads {
    /// Counts a command that waits for a job; `None` if it would be one too many.
    pub(super) fn occupy(&self, user: JobUser) -> Option<CommandThread<'_>> {
        let mut users = self.0.lock();
        let of_user = users.get(&user).copied().unwrap_or(0);
        if of_user >= COMMAND_THREADS_PER_USER_MAX || users.values().sum::<usize>() >= COMMAND_THREADS_MAX {
            return None;
        }
        users.insert(user, of_user + 1);
        Some(CommandThread { threads: self, user })
    }
}

impl Drop for CommandThread<'_> {
    fn drop(&mut self) {
        let mut users = self.threads.0.lock();
        if let Some(of_user) = users.get_mut(&self.user) {
            *of_user -= 1;
            if *of_user == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_threads_have_limits() {
        let threads = CommandThreads::default();
        let occupy = |user, count| -> Vec<_> {
            (0..count).map_while(|_| threads.occupy(JobUser([user; 16]))).collect()
        };
        let first = occupy(1, usize::MAX);
        assert_eq!(first.len(), COMMAND_THREADS_PER_USER_MAX);
        let second = occupy(2, usize::MAX);
        assert_eq!(first.len() + second.len(), COMMAND_THREADS_MAX);
        assert!(threads.occupy(JobUser([3; 16])).is_none());
        drop(first);
        assert!(threads.occupy(JobUser([3; 16])).is_some());
        drop(second);
        assert!(threads.0.lock().is_empty());
    }
}
