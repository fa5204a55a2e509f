//! Tasks that end with their host.

use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::history::History;

/// The tasks of one run of a host.
pub struct TaskSet {
    handles: Mutex<Vec<AbortHandle>>,
    history: Arc<History>,
}

/// Reports a panic of its task.
struct TaskGuard(Arc<History>, &'static str);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.violate(format!("a task of {} panicked", self.1));
        }
    }
}

impl TaskSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new(history: Arc<History>) -> Arc<Self> {
        Arc::new(Self { handles: Mutex::default(), history })
    }

    /// Starts a task; a panic in it is a violation.
    pub fn spawn(&self, whose: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let witness = TaskGuard(self.history.clone(), whose);
        let task = tokio::spawn(async move {
            let _witness = witness;
            work.await;
        });
        let mut handles = self.handles.lock();
        handles.retain(|handle| !handle.is_finished());
        handles.push(task.abort_handle());
    }

    /// Aborts all tasks.
    pub fn end(&self) {
        self.handles.lock().drain(..).for_each(|handle| handle.abort());
    }
}
