//! The order to stop, which the parts of a daemon wait for.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

/// Shutdown of a daemon; clones belong to the same one.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// Starts the shutdown of one daemon, at the latest when it is dropped.
#[derive(Debug)]
pub struct ShutdownTrigger(Arc<watch::Sender<bool>>);

impl ShutdownTrigger {
    /// Starts the shutdown; further calls have no effect.
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }
}

impl Drop for ShutdownTrigger {
    fn drop(&mut self) {
        self.trigger();
    }
}

impl Shutdown {
    /// Returns a shutdown that starts with this one, or by its trigger. Must be called in a
    /// runtime.
    #[must_use]
    pub fn child(&self) -> (ShutdownTrigger, Self) {
        let (sender, receiver) = watch::channel(false);
        let (sender, parent) = (Arc::new(sender), self.wait());
        let trigger = ShutdownTrigger(Arc::clone(&sender));
        tokio::spawn(async move {
            tokio::select! {
                () = parent => {
                    sender.send_replace(true);
                }
                // All parts of the daemon have ended.
                () = sender.closed() => {}
            }
        });
        (trigger, Self(receiver))
    }

    /// Starts when the sender sends or is dropped.
    pub fn manual() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Completes when the shutdown starts.
    pub fn wait(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut receiver = self.0.clone();
        async move {
            // A dropped sender is a shutdown as well.
            let _ = receiver.wait_for(|go| *go).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn child_starts_alone_or_with_its_parent() {
        let (stop, parent) = Shutdown::manual();
        let (first, one) = parent.child();
        let (second, two) = parent.child();
        first.trigger();
        one.wait().await;
        let waits = two.wait();
        assert!(tokio::time::timeout(std::time::Duration::from_millis(20), waits).await.is_err());
        drop(second);
        two.wait().await;
        let (_third, three) = parent.child();
        stop.send(true).expect("the parent waits");
        three.wait().await;
    }
}
