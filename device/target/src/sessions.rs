//! Which sessions live, and how they hear of each other: reinstatement and resets across sessions.
//!
//! Contract: an [`Entry`] is registered as long as it lives; [`Sessions::enter`] waits for the one it replaces.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sealstone_scsi::lu::{InitiatorPort, NexusId};
use tokio::sync::{mpsc, watch};

use crate::{Counter, Counters};

/// How long a login waits for the session that it replaces to be gone.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(2);
/// Messages that may wait for a connection's task; one that does not take them is closed instead.
const MAILBOX: usize = 64;

/// Most initiator ports whose lost session is remembered; more of them hear POWER ON instead of NEXUS LOSS.
const LOST_PORTS_MAX: usize = 4096;

/// What one connection is told by others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    /// A new login took over.
    Replaced,
    /// Another session reset this logical unit (wire form of its LUN).
    EndCommands(u64),
    /// The target shuts down.
    Leave,
}

pub(crate) type Mailbox = mpsc::Receiver<Control>;

/// The initiator port of a session: name and ISID.
type Port = (String, [u8; 6]);

struct Living {
    nexus: NexusId,
    secure: bool,
    control: mpsc::Sender<Control>,
    gone: watch::Receiver<()>,
}

pub(crate) struct Sessions {
    living: Mutex<HashMap<Port, Living>>,
    lost: Mutex<HashSet<Port>>,
    next_nexus: AtomicU64,
    counters: Arc<Counters>,
}

/// A living normal session; leaves the register when dropped.
pub(crate) struct Entry {
    sessions: Arc<Sessions>,
    port: Port,
    pub(crate) nexus: NexusId,
    /// A session of the same port was lost before.
    returns: bool,
    secure: bool,
    /// Dropped with the entry: tells who waits in [`Sessions::enter`].
    _gone: watch::Sender<()>,
}

/// The session to be replaced does not end.
#[derive(Debug)]
pub(crate) struct Stuck;

impl Sessions {
    pub(crate) fn new(counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            living: Mutex::default(),
            lost: Mutex::default(),
            next_nexus: AtomicU64::new(1),
            counters,
        })
    }

    pub(crate) fn mailbox() -> (mpsc::Sender<Control>, Mailbox) {
        mpsc::channel(MAILBOX)
    }

    /// A handle for a session: not zero, and not used by one of the last 65534.
    pub(crate) fn tsih(nexus: NexusId) -> u16 {
        u16::try_from(nexus.0 % 0xFFFF).map_or(1, |rest| rest + 1)
    }

    pub(crate) fn fresh_nexus(&self) -> NexusId {
        NexusId(self.next_nexus.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a session, after ending the one of the same port (RFC 7143 §6.3.5).
    pub(crate) async fn enter(
        self: &Arc<Self>,
        initiator: String,
        isid: [u8; 6],
        secure: bool,
        control: mpsc::Sender<Control>,
    ) -> Result<Entry, Stuck> {
        let port = (initiator, isid);
        let deadline = tokio::time::Instant::now() + REPLACE_TIMEOUT;
        loop {
            let mut gone = {
                let mut living = self.living.lock();
                match living.get(&port) {
                    None => {
                        let nexus = self.fresh_nexus();
                        let (sender, gone) = watch::channel(());
                        living.insert(port.clone(), Living { nexus, secure, control, gone });
                        self.counters.add(Counter::SessionsOpen, 1);
                        let returns = self.lost.lock().contains(&port);
                        let sessions = Arc::clone(self);
                        return Ok(Entry { sessions, port, nexus, returns, secure, _gone: sender });
                    }
                    Some(older) => {
                        // A full mailbox has a reader that does not read: it runs into the deadline.
                        let _ = older.control.try_send(Control::Replaced);
                        older.gone.clone()
                    }
                }
            };
            self.counters.add(Counter::SessionsReinstated, 1);
            // The sender is dropped without a word.
            if tokio::time::timeout_at(deadline, gone.changed()).await.is_err() {
                return Err(Stuck);
            }
        }
    }

    /// Every living session, as logical units know it.
    pub(crate) fn each(&self, mut tell: impl FnMut(NexusId, &InitiatorPort<'_>)) {
        for ((name, isid), session) in &*self.living.lock() {
            let port = InitiatorPort { name, isid: *isid, secure_channel: session.secure, returns: false };
            tell(session.nexus, &port);
        }
    }

    /// Tells all other sessions that the commands of a logical unit have ended.
    pub(crate) fn end_commands(&self, except: NexusId, lun: u64) {
        for session in self.living.lock().values().filter(|session| session.nexus != except) {
            let _ = session.control.try_send(Control::EndCommands(lun));
        }
    }
}

impl Entry {
    /// What logical units are told of it.
    pub(crate) fn port(&self) -> InitiatorPort<'_> {
        let (name, isid) = &self.port;
        InitiatorPort { name, isid: *isid, secure_channel: self.secure, returns: self.returns }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut lost = self.sessions.lost.lock();
        if lost.len() < LOST_PORTS_MAX {
            lost.insert(self.port.clone());
        }
        drop(lost);
        let mut living = self.sessions.living.lock();
        if living.get(&self.port).is_some_and(|session| session.nexus == self.nexus) {
            living.remove(&self.port);
        }
        self.sessions.counters.sub(Counter::SessionsOpen, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_has_one_session_at_a_time() {
        let sessions = Sessions::new(Arc::default());
        let (control, mut mailbox) = Sessions::mailbox();
        let first = sessions.enter("a".into(), [1; 6], false, control.clone()).await.unwrap();
        let other = sessions.enter("a".into(), [2; 6], false, control.clone()).await.unwrap();
        assert!(mailbox.try_recv().is_err(), "another ISID is another port");
        assert!(
            sessions.enter("a".into(), [1; 6], false, control.clone()).await.is_err(),
            "the first does not go"
        );
        assert!(matches!(mailbox.try_recv(), Ok(Control::Replaced)));
        let waiting = tokio::spawn({
            let (sessions, control) = (Arc::clone(&sessions), control.clone());
            async move { sessions.enter("a".into(), [1; 6], false, control).await }
        });
        tokio::task::yield_now().await;
        let old = first.nexus;
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        assert!(second.nexus != old && second.nexus != other.nexus);
        assert!(second.port().returns && !other.port().returns, "its nexus was lost");
        assert_eq!(sessions.counters.get(Counter::SessionsOpen), 2);
    }

    #[test]
    fn handles_are_never_zero() {
        for nexus in [0, 1, 0xFFFE, 0xFFFF, 0x1_0000, u64::MAX] {
            assert_ne!(Sessions::tsih(NexusId(nexus)), 0);
        }
    }
}
