//! A gate in the way of commands and requests: a test decides who goes through when.

use std::sync::Mutex;

use tokio::sync::Semaphore;

/// Stops the next one of a name.
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
    /// The next of this name waits here.
    pub fn close(&self, name: &'static str) {
        *self.closed.lock().unwrap() = Some(name);
    }

    /// Returns when somebody waits.
    pub async fn reached(&self) {
        self.waiting.acquire().await.unwrap().forget();
    }

    /// Lets whoever waits go on.
    pub fn open(&self) {
        self.opened.add_permits(1);
    }

    /// Goes through, or waits.
    pub async fn pass(&self, name: &str) {
        let stops = self.closed.lock().unwrap().take_if(|closed| *closed == name).is_some();
        if stops {
            self.waiting.add_permits(1);
            self.opened.acquire().await.unwrap().forget();
        }
    }
}
