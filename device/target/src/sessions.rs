//! Which sessions live, and how they hear of each other: reinstatement and resets across sessions.
//!
//! Contract: an [`Entry`] is registered as long as it lives; [`Sessions::enter`] waits for the one it replaces.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sealstone_scsi::lu::{ChannelToken, InitiatorPort, NexusId};
use tokio::sync::watch;

use crate::{Counter, Counters, mailbox::Sender};

/// How long a login waits for the session that it replaces to be gone.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(2);
/// Most initiator ports whose lost session is remembered; more of them hear POWER ON instead of NEXUS LOSS.
const LOST_PORTS_MAX: usize = 4096;

/// What one connection is told by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// A new login took over.
    Replaced,
    /// Another session reset this logical unit, or all (`None`); or it cleared its task set, which must be told. The LUN
    /// is in wire form.
    EndCommands { lun: Option<u64>, cleared: bool },
    /// TARGET COLD RESET.
    Reset,
    /// The target shuts down.
    Leave,
}

/// The initiator port of a session: name and ISID.
type Port = (String, [u8; 6]);

struct Living {
    /// CHAP name that was proven.
    user: Option<String>,
    nexus: NexusId,
    tsih: u16,
    cid: u16,
    channel: Option<ChannelToken>,
    control: Sender,
    gone: watch::Receiver<()>,
}

pub(crate) struct Sessions {
    living: Mutex<HashMap<Port, Living>>,
    lost: Mutex<HashSet<Port>>,
    next_nexus: AtomicU64,
    next_tsih: AtomicU16,
    counters: Arc<Counters>,
}

/// A living normal session; leaves the register when dropped.
pub(crate) struct Entry {
    sessions: Arc<Sessions>,
    port: Port,
    /// CHAP name that was proven.
    user: Option<String>,
    pub(crate) nexus: NexusId,
    pub(crate) tsih: u16,
    /// A session of the same port was lost before.
    returns: bool,
    channel: Option<ChannelToken>,
    /// Dropped with the entry: tells who waits in [`Sessions::enter`].
    _gone: watch::Sender<()>,
}

/// Why a login gets no session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The session to be replaced does not end.
    Stuck,
    /// A TSIH that no session of this port has.
    NoSuchSession,
    /// A second connection for a session.
    TooManyConnections,
    /// The session to be replaced belongs to another account.
    OfAnother,
}

/// What a login says of the session that it wants (RFC 7143 §6.3.1).
pub(crate) struct Wanted {
    pub(crate) initiator: String,
    /// CHAP name that was proven.
    pub(crate) user: Option<String>,
    pub(crate) isid: [u8; 6],
    /// Zero for a new session.
    pub(crate) tsih: u16,
    pub(crate) cid: u16,
    pub(crate) channel: Option<ChannelToken>,
}

impl Sessions {
    pub(crate) fn new(counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            living: Mutex::default(),
            lost: Mutex::default(),
            next_nexus: AtomicU64::new(1),
            next_tsih: AtomicU16::new(1),
            counters,
        })
    }

    /// A handle for a session: not zero, and of no living one.
    pub(crate) fn tsih(&self) -> u16 {
        self.free_tsih(&self.living.lock())
    }

    fn free_tsih(&self, living: &HashMap<Port, Living>) -> u16 {
        // Far fewer sessions live than there are handles.
        loop {
            let next = self.next_tsih.fetch_add(1, Ordering::Relaxed);
            if next != 0 && !living.values().any(|session| session.tsih == next) {
                return next;
            }
        }
    }

    pub(crate) fn fresh_nexus(&self) -> NexusId {
        NexusId(self.next_nexus.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a session, after ending the one of the same port: session reinstatement, or, with its TSIH and CID,
    /// connection reinstatement (RFC 7143 §6.3.1, §6.3.4, §6.3.5). At recovery level 0 no task outlives its connection,
    /// so that the latter keeps the handle and nothing else.
    pub(crate) async fn enter(self: &Arc<Self>, wanted: Wanted, control: Sender) -> Result<Entry, Denied> {
        let Wanted { initiator, user, isid, tsih, cid, channel } = wanted;
        let port = (initiator, isid);
        let deadline = tokio::time::Instant::now() + REPLACE_TIMEOUT;
        let mut kept = None;
        if tsih != 0 {
            match self.living.lock().get(&port) {
                Some(session) if session.tsih == tsih && session.cid == cid => kept = Some(tsih),
                Some(session) if session.tsih == tsih => return Err(Denied::TooManyConnections),
                _ => return Err(Denied::NoSuchSession),
            }
        }
        loop {
            let mut gone = {
                let mut living = self.living.lock();
                match living.get(&port) {
                    None => {
                        let nexus = self.fresh_nexus();
                        let (sender, gone) = watch::channel(());
                        let tsih = kept.unwrap_or_else(|| self.free_tsih(&living));
                        let session = Living { user: user.clone(), nexus, tsih, cid, channel, control, gone };
                        living.insert(port.clone(), session);
                        self.counters.add(Counter::SessionsOpen, 1);
                        let returns = self.lost.lock().contains(&port);
                        let sessions = Arc::clone(self);
                        return Ok(Entry {
                            sessions,
                            port,
                            user,
                            nexus,
                            tsih,
                            returns,
                            channel,
                            _gone: sender,
                        });
                    }
                    // Names are said, accounts are proven: nobody ends the session of another by saying its name.
                    Some(older) if older.user != user => return Err(Denied::OfAnother),
                    Some(older) => {
                        older.control.send(Control::Replaced);
                        older.gone.clone()
                    }
                }
            };
            self.counters.add(Counter::SessionsReinstated, 1);
            // The sender is dropped without a word.
            if tokio::time::timeout_at(deadline, gone.changed()).await.is_err() {
                return Err(Denied::Stuck);
            }
        }
    }

    /// Every living session, as logical units know it.
    pub(crate) fn each(&self, mut tell: impl FnMut(NexusId, &InitiatorPort<'_>)) {
        for ((name, isid), session) in &*self.living.lock() {
            let port = InitiatorPort {
                name,
                isid: *isid,
                account: session.user.as_deref(),
                channel: session.channel,
                returns: false,
            };
            tell(session.nexus, &port);
        }
    }

    /// Tells all other sessions that the commands of a logical unit have ended.
    pub(crate) fn end_commands(&self, except: NexusId, lun: Option<u64>, cleared: bool) {
        self.tell(except, Control::EndCommands { lun, cleared });
    }

    /// Tells all other sessions that the target was reset.
    pub(crate) fn reset(&self, except: NexusId) {
        self.tell(except, Control::Reset);
    }

    fn tell(&self, except: NexusId, what: Control) {
        for session in self.living.lock().values().filter(|session| session.nexus != except) {
            session.control.send(what);
        }
    }
}

impl Entry {
    /// What logical units are told of it.
    pub(crate) fn port(&self) -> InitiatorPort<'_> {
        let (name, isid) = &self.port;
        let account = self.user.as_deref();
        InitiatorPort { name, isid: *isid, account, channel: self.channel, returns: self.returns }
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
    use crate::mailbox::mailbox;

    #[tokio::test(start_paused = true)]
    async fn a_port_has_one_session_at_a_time() {
        let sessions = Sessions::new(Arc::default());
        let (control, letters) = mailbox();
        let first = sessions.enter(wanted(1, 0, 0), control.clone()).await.unwrap();
        let other = sessions.enter(wanted(2, 0, 0), control.clone()).await.unwrap();
        assert!(letters.try_recv().is_none(), "another ISID is another port");
        assert!(sessions.enter(wanted(1, 0, 0), control.clone()).await.is_err(), "the first does not go");
        assert!(letters.try_recv() == Some(Control::Replaced));
        let waiting = tokio::spawn({
            let (sessions, control) = (Arc::clone(&sessions), control.clone());
            async move { sessions.enter(wanted(1, 0, 0), control).await }
        });
        tokio::task::yield_now().await;
        let old = first.nexus;
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        assert!(second.nexus != old && second.nexus != other.nexus);
        assert!(second.port().returns && !other.port().returns, "its nexus was lost");
        assert_eq!(sessions.counters.get(Counter::SessionsOpen), 2);
    }

    fn wanted(isid: u8, tsih: u16, cid: u16) -> Wanted {
        Wanted { initiator: "a".into(), user: None, isid: [isid; 6], tsih, cid, channel: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_handle_joins_its_own_session_and_no_other() {
        let sessions = Sessions::new(Arc::default());
        let (control, letters) = mailbox();
        let first = sessions.enter(wanted(1, 0, 5), control.clone()).await.unwrap();
        let tsih = first.tsih;
        let denied =
            async |isid, tsih, cid| sessions.enter(wanted(isid, tsih, cid), control.clone()).await.err();
        assert_eq!(denied(1, tsih, 6).await, Some(Denied::TooManyConnections));
        assert_eq!(denied(1, tsih + 1, 5).await, Some(Denied::NoSuchSession));
        assert_eq!(denied(2, tsih, 5).await, Some(Denied::NoSuchSession), "another port");
        assert!(letters.try_recv().is_none(), "nobody was disturbed");
        let waiting = tokio::spawn({
            let (sessions, control) = (Arc::clone(&sessions), control.clone());
            async move { sessions.enter(wanted(1, tsih, 5), control).await }
        });
        tokio::task::yield_now().await;
        assert!(letters.try_recv() == Some(Control::Replaced));
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        assert!(second.tsih == tsih && second.port().returns, "connection reinstatement keeps the handle");
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_does_not_replace_the_session_of_another() {
        let sessions = Sessions::new(Arc::default());
        let (control, letters) = mailbox();
        let of = |user: Option<&str>| Wanted { user: user.map(str::to_owned), ..wanted(1, 0, 0) };
        let first = sessions.enter(of(Some("ann")), control.clone()).await.unwrap();
        for user in [None, Some("bob")] {
            assert_eq!(sessions.enter(of(user), control.clone()).await.err(), Some(Denied::OfAnother));
        }
        assert!(letters.try_recv().is_none(), "nobody was disturbed");
        drop(first);
        assert!(sessions.enter(of(Some("bob")), control).await.is_ok(), "it is over");
    }

    #[test]
    fn handles_are_never_zero_and_never_of_a_living_session() {
        let sessions = Sessions::new(Arc::default());
        assert!((0..70_000).all(|_| sessions.tsih() != 0));
    }
}
