//! Budgets of calls: code in memory, and threads of commands.
//!
//! Does: counts both.
//! Contract: a permit returns its share when it is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::job_table::JobUser;
use crate::limits::{
    CODE_BYTES_MAX, CODE_BYTES_PER_USER_MAX, COMMAND_THREADS_MAX, COMMAND_THREADS_PER_USER_MAX,
};

/// Bytes of code in memory, by user.
#[derive(Default)]
pub(super) struct CodeBudget(Mutex<HashMap<JobUser, u64>>);

/// The code of one call. Dropped when an engine has its code.
pub(super) struct CodePermit {
    budget: Arc<CodeBudget>,
    user: JobUser,
    bytes: u64,
}

impl CodeBudget {
    /// Counts code of a user; `None` if a limit would be exceeded.
    pub(super) fn reserve(self: &Arc<Self>, user: JobUser, bytes: u64) -> Option<CodePermit> {
        let mut users = self.0.lock();
        let of_user = users.get(&user).copied().unwrap_or(0).checked_add(bytes)?;
        let of_all = users.values().sum::<u64>().checked_add(bytes)?;
        if of_user > CODE_BYTES_PER_USER_MAX || of_all > CODE_BYTES_MAX {
            return None;
        }
        users.insert(user, of_user);
        Some(CodePermit { budget: Arc::clone(self), user, bytes })
    }
}

impl Drop for CodePermit {
    fn drop(&mut self) {
        let mut users = self.budget.0.lock();
        if let Some(of_user) = users.get_mut(&self.user) {
            *of_user -= self.bytes;
            if *of_user == 0 {
                users.remove(&self.user);
            }
        }
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
    fn code_has_limits_by_user_and_device() {
        let budget = Arc::<CodeBudget>::default();
        let reserve = |user, bytes| budget.reserve(JobUser([user; 16]), bytes);
        let first = reserve(1, CODE_BYTES_PER_USER_MAX).unwrap();
        assert!(reserve(1, 1).is_none(), "the share of the user");
        let second = reserve(2, CODE_BYTES_MAX - CODE_BYTES_PER_USER_MAX).unwrap();
        assert!(reserve(3, 1).is_none(), "the bound of the device");
        assert!(reserve(3, u64::MAX).is_none());
        drop(first);
        let third = reserve(3, 1).unwrap();
        drop((second, third, reserve(4, 0)));
        assert!(budget.0.lock().is_empty());
    }

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
