//! What connections tell each other: a box that forgets nothing and holds each message once.
//!
//! Contract: a message that waits already is not added again, and there are as many different ones as the target has
//! logical units, give or take: so the box is bounded although nothing that was sent is ever dropped.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use crate::sessions::Control;

#[derive(Debug, Default)]
struct Letters {
    waiting: VecDeque<Control>,
    reader: Option<Waker>,
}

/// The way in; clones lead to the same box.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sender(Arc<Mutex<Letters>>);

/// The one that reads.
#[derive(Debug)]
pub(crate) struct Mailbox(Arc<Mutex<Letters>>);

/// An empty box.
pub(crate) fn mailbox() -> (Sender, Mailbox) {
    let sender = Sender::default();
    let mailbox = Mailbox(Arc::clone(&sender.0));
    (sender, mailbox)
}

impl Sender {
    /// Sends, and wakes the reader.
    pub(crate) fn send(&self, control: Control) {
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
    /// The oldest message.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<Control> {
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
    pub(crate) fn try_recv(&self) -> Option<Control> {
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
                sender.send(Control::EndCommands { lun: Some(lun), cleared: lun == 1 });
            }
            sender.send(Control::Reset);
        }
        let all: Vec<Control> = std::iter::from_fn(|| mailbox.try_recv()).collect();
        assert_eq!(all.len(), 4);
        assert_eq!((all[1], all[3]), (Control::EndCommands { lun: Some(1), cleared: true }, Control::Reset));
        sender.send(Control::Reset);
        assert!(mailbox.try_recv().is_some(), "one that was read may come again");
    }
}
