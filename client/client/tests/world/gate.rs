//! Gates for commands and requests: a test decides when each one passes.

use std::sync::Mutex;

use tokio::sync::Semaphore;

/// Stops the next command or request of a name.
pub struct Gate {
    closed: Mutex<Option<&'static str>>,
    waiting: Semaphore,
    opened: Semaphore,
}

impl Default for Gate {
    fn default() -> Self {
        Self { closed: Mutex::default(), waiting: Semaphore::new(0), opened: Semaphore::new(0) }
    }
}

impl Gate {
    /// Stops the next one of this name.
    pub fn close(&self, name: &'static str) {
        *self.closed.lock().unwrap() = Some(name);
    }

    /// Waits until one has stopped at the gate.
    pub async fn reached(&self) {
        self.waiting.acquire().await.unwrap().forget();
    }

    /// Releases the stopped one.
    pub fn open(&self) {
        self.opened.add_permits(1);
    }

    /// Passes the gate, or stops at it.
    pub async fn pass(&self, name: &str) {
        let stops = self.closed.lock().unwrap().take_if(|closed| *closed == name).is_some();
        if stops {
            self.waiting.add_permits(1);
            self.opened.acquire().await.unwrap().forget();
        }
    }
}
