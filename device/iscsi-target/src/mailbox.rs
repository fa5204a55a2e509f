//! Signals between connections: an unbounded queue without duplicates.
//!
//! Contract: a signal that is already queued is not added again. There are about as many different
//! signals as logical units, so the queue is bounded although no signal is dropped.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use crate::sessions::SessionSignal;

#[derive(Debug, Default)]
struct MailboxState {
    waiting: VecDeque<SessionSignal>,
    reader: Option<Waker>,
}

/// The sending end. Clones send to the same mailbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct MailboxSender(Arc<Mutex<MailboxState>>);

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Mailbox(Arc<Mutex<MailboxState>>);

/// Returns both ends of an empty mailbox.
pub(crate) fn mailbox() -> (MailboxSender, Mailbox) {
    let sender = MailboxSender::default();
    let mailbox = Mailbox(Arc::clone(&sender.0));
    (sender, mailbox)
}

impl MailboxSender {
    /// Queues a signal and wakes the receiver.
    pub(crate) fn send(&self, control: SessionSignal) {
        let reader = {
            let mut letters = self.0.lock();
            if !letters.waiting.contains(&control) {
                letters.waiting.push_back(control);
            }
            letters.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Mailbox {
    /// Returns the oldest signal.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<SessionSignal> {
        let mut letters = self.0.lock();
        match letters.waiting.pop_front() {
            Some(control) => Poll::Ready(control),
            None => {
                letters.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn try_recv(&self) -> Option<SessionSignal> {
        self.0.lock().waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_and_nothing_waits_twice() {
        let (sender, mailbox) = mailbox();
        for _ in 0..1000 {
            for lun in 0..3 {
                sender.send(SessionSignal::EndCommands { lun: Some(lun), cleared: lun == 1 });
            }
            sender.send(SessionSignal::Reset);
        }
        let all: Vec<SessionSignal> = std::iter::from_fn(|| mailbox.try_recv()).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(
            (all[1], all[3]),
            (SessionSignal::EndCommands { lun: Some(1), cleared: true }, SessionSignal::Reset)
        );
        sender.send(SessionSignal::Reset);
        assert!(mailbox.try_recv().is_some(), "a signal that was read can be queued again");
    }
}
