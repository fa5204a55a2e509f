//! Blocking waits for the database, on any thread, inside or outside a runtime.
//!
//! The protocol runs in a runtime of the store; the caller's thread only blocks until the response,
//! as for a disk.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;
use std::thread::Thread;
use std::time::Instant;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for the outcome; `None` at the deadline, after which the request may still be executed.
pub(super) fn wait<F: Future>(until: Instant, future: F) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return Some(outcome);
        }
        let now = Instant::now();
        if now >= until {
            return None;
        }
        std::thread::park_timeout(until - now);
    }
}

/// Sends the request of `future` without waiting for the response.
pub(super) fn send<F: Future>(future: F) {
    let mut context = Context::from_waker(Waker::noop());
    let _ = pin!(future).poll(&mut context);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn wait_ends_at_the_deadline() {
        let until = Instant::now() + Duration::from_millis(20);
        assert_eq!(wait(until, core::future::pending::<()>()), None);
        assert!(Instant::now() >= until);
        assert_eq!(
            wait(until, async { 7 }),
            Some(7),
            "a finished outcome is returned after the deadline too"
        );
    }

    #[test]
    fn answer_of_another_thread_wakes_the_waiter() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || sender.send(3));
        let outcome = wait(Instant::now() + Duration::from_secs(60), receiver);
        assert_eq!(outcome, Some(Ok(3)));
        thread.join().unwrap().unwrap();
    }
}
