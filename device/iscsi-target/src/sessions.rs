//! Registry of live sessions, and the signals between them: reinstatement and resets.
//!
//! Contract: a [`SessionEntry`] is registered while it exists; [`SessionRegistry::enter`] waits for
//! the entry that it replaces.

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

use crate::{Counter, TargetCounters, mailbox::MailboxSender};

/// Longest wait of a login for the session that it replaces.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(2);
/// Initiator ports whose lost session is remembered. Further ports get POWER ON instead of NEXUS
/// LOSS.
const LOST_PORTS_MAX: usize = 4096;

/// A signal to the task of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionSignal {
    /// A new login of the same port replaces the session.
    Replaced,
    /// End the commands of this logical unit (in wire form), or of all (`None`). `cleared`: by
    /// CLEAR TASK SET, which is reported to the initiator.
    EndCommands { lun: Option<u64>, cleared: bool },
    /// TARGET COLD RESET.
    Reset,
    /// The target shuts down.
    Leave,
}

/// Initiator port of a session: name and ISID.
type SessionPort = (String, [u8; 6]);

struct LiveSession {
    /// Account that CHAP authenticated.
    user: Option<String>,
    nexus: NexusId,
    tsih: u16,
    cid: u16,
    channel: Option<ChannelToken>,
    control: MailboxSender,
    gone: watch::Receiver<()>,
}

pub(crate) struct SessionRegistry {
    live: Mutex<HashMap<SessionPort, LiveSession>>,
    lost: Mutex<HashSet<SessionPort>>,
    next_nexus: AtomicU64,
    next_tsih: AtomicU16,
    counters: Arc<TargetCounters>,
}

/// One live normal session. Dropping it removes it from the registry.
pub(crate) struct SessionEntry {
    sessions: Arc<SessionRegistry>,
    port: SessionPort,
    /// Account that CHAP authenticated.
    user: Option<String>,
    pub(crate) nexus: NexusId,
    pub(crate) tsih: u16,
    /// Whether an earlier session of this port was lost.
    returns: bool,
    channel: Option<ChannelToken>,
    /// Dropped with the entry, which wakes waiters in [`SessionRegistry::enter`].
    _gone: watch::Sender<()>,
}

/// Why a login gets no session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LoginDenial {
    /// The session to be replaced does not end.
    Stuck,
    /// No session of this port has this TSIH.
    NoSuchSession,
    /// A second connection for a session.
    TooManyConnections,
    /// The session to be replaced belongs to another account.
    OtherAccount,
}

/// Session that a login requests (RFC 7143 §6.3.1).
pub(crate) struct SessionRequest {
    pub(crate) initiator: String,
    /// Account that CHAP authenticated.
    pub(crate) user: Option<String>,
    pub(crate) isid: [u8; 6],
    /// Zero for a new session.
    pub(crate) tsih: u16,
    pub(crate) cid: u16,
    pub(crate) channel: Option<ChannelToken>,
}

impl SessionRegistry {
    pub(crate) fn new(counters: Arc<TargetCounters>) -> Arc<Self> {
        Arc::new(Self {
            live: Mutex::default(),
            lost: Mutex::default(),
            next_nexus: AtomicU64::new(1),
            next_tsih: AtomicU16::new(1),
            counters,
        })
    }

    /// Returns a session handle that is not zero and not in use.
    pub(crate) fn tsih(&self) -> u16 {
        self.free_tsih(&self.live.lock())
    }

    fn free_tsih(&self, live: &HashMap<SessionPort, LiveSession>) -> u16 {
        // There are far fewer live sessions than handles.
        loop {
            let next = self.next_tsih.fetch_add(1, Ordering::Relaxed);
            if next != 0 && !live.values().any(|session| session.tsih == next) {
                return next;
            }
        }
    }

    pub(crate) fn fresh_nexus(&self) -> NexusId {
        NexusId(self.next_nexus.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a session after ending the one of the same port: session reinstatement, or with
    /// its TSIH and CID connection reinstatement (RFC 7143 §6.3.1, §6.3.4, §6.3.5). At recovery
    /// level 0 no task outlives its connection, so the latter keeps only the handle.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        wanted: SessionRequest,
        control: MailboxSender,
    ) -> Result<SessionEntry, LoginDenial> {
        let SessionRequest { initiator, user, isid, tsih, cid, channel } = wanted;
        let port = (initiator, isid);
        let deadline = tokio::time::Instant::now() + REPLACE_TIMEOUT;
        let mut kept = None;
        if tsih != 0 {
            match self.live.lock().get(&port) {
                Some(session) if session.tsih == tsih && session.cid == cid => kept = Some(tsih),
                Some(session) if session.tsih == tsih => return Err(LoginDenial::TooManyConnections),
                _ => return Err(LoginDenial::NoSuchSession),
            }
        }
        loop {
            let mut gone = {
                let mut live = self.live.lock();
                match live.get(&port) {
                    None => {
                        let nexus = self.fresh_nexus();
                        let (sender, gone) = watch::channel(());
                        let tsih = kept.unwrap_or_else(|| self.free_tsih(&live));
                        let session =
                            LiveSession { user: user.clone(), nexus, tsih, cid, channel, control, gone };
                        live.insert(port.clone(), session);
                        self.counters.add(Counter::SessionsOpen, 1);
                        let returns = self.lost.lock().contains(&port);
                        let sessions = Arc::clone(self);
                        return Ok(SessionEntry {
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
                    // Initiator names are not authenticated, accounts are. So a login cannot end a
                    // session of another account.
                    Some(older) if older.user != user => return Err(LoginDenial::OtherAccount),
                    Some(older) => {
                        older.control.send(SessionSignal::Replaced);
                        older.gone.clone()
                    }
                }
            };
            self.counters.add(Counter::SessionsReinstated, 1);
            // The sender is dropped without sending.
            if tokio::time::timeout_at(deadline, gone.changed()).await.is_err() {
                return Err(LoginDenial::Stuck);
            }
        }
    }

    /// Calls `visit` for every live session, with its initiator port as logical units see it.
    pub(crate) fn each(&self, mut visit: impl FnMut(NexusId, &InitiatorPort<'_>)) {
        for ((name, isid), session) in &*self.live.lock() {
            let port = InitiatorPort {
                name,
                isid: *isid,
                account: session.user.as_deref(),
                channel: session.channel,
                returns: false,
            };
            visit(session.nexus, &port);
        }
    }

    /// Signals to all other sessions that the commands of a logical unit have ended.
    pub(crate) fn end_commands(&self, except: NexusId, lun: Option<u64>, cleared: bool) {
        self.signal_others(except, SessionSignal::EndCommands { lun, cleared });
    }

    /// Signals to all other sessions that the target was reset.
    pub(crate) fn reset(&self, except: NexusId) {
        self.signal_others(except, SessionSignal::Reset);
    }

    fn signal_others(&self, except: NexusId, what: SessionSignal) {
        for session in self.live.lock().values().filter(|session| session.nexus != except) {
            session.control.send(what);
        }
    }
}

impl SessionEntry {
    /// Returns the initiator port as logical units see it.
    pub(crate) fn port(&self) -> InitiatorPort<'_> {
        let (name, isid) = &self.port;
        let account = self.user.as_deref();
        InitiatorPort { name, isid: *isid, account, channel: self.channel, returns: self.returns }
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        let mut lost = self.sessions.lost.lock();
        if lost.len() < LOST_PORTS_MAX {
            lost.insert(self.port.clone());
        }
        drop(lost);
        let mut live = self.sessions.live.lock();
        if live.get(&self.port).is_some_and(|session| session.nexus == self.nexus) {
            live.remove(&self.port);
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
        let sessions = SessionRegistry::new(Arc::default());
        let (control, letters) = mailbox();
        let first = sessions.enter(wanted(1, 0, 0), control.clone()).await.unwrap();
        let other = sessions.enter(wanted(2, 0, 0), control.clone()).await.unwrap();
        assert!(letters.try_recv().is_none(), "another ISID is another port");
        assert!(
            sessions.enter(wanted(1, 0, 0), control.clone()).await.is_err(),
            "the first session does not end"
        );
        assert!(letters.try_recv() == Some(SessionSignal::Replaced));
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

    fn wanted(isid: u8, tsih: u16, cid: u16) -> SessionRequest {
        SessionRequest { initiator: "a".into(), user: None, isid: [isid; 6], tsih, cid, channel: None }
    }

    #[tokio::test(start_paused = true)]
    async fn tsih_rejoins_only_its_own_session() {
        let sessions = SessionRegistry::new(Arc::default());
        let (control, letters) = mailbox();
        let first = sessions.enter(wanted(1, 0, 5), control.clone()).await.unwrap();
        let tsih = first.tsih;
        let denied =
            async |isid, tsih, cid| sessions.enter(wanted(isid, tsih, cid), control.clone()).await.err();
        assert_eq!(denied(1, tsih, 6).await, Some(LoginDenial::TooManyConnections));
        assert_eq!(denied(1, tsih + 1, 5).await, Some(LoginDenial::NoSuchSession));
        assert_eq!(denied(2, tsih, 5).await, Some(LoginDenial::NoSuchSession), "another port");
        assert!(letters.try_recv().is_none(), "no session was signalled");
        let waiting = tokio::spawn({
            let (sessions, control) = (Arc::clone(&sessions), control.clone());
            async move { sessions.enter(wanted(1, tsih, 5), control).await }
        });
        tokio::task::yield_now().await;
        assert!(letters.try_recv() == Some(SessionSignal::Replaced));
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        assert!(second.tsih == tsih && second.port().returns, "connection reinstatement keeps the handle");
    }

    #[tokio::test(start_paused = true)]
    async fn login_cannot_replace_session_of_other_account() {
        let sessions = SessionRegistry::new(Arc::default());
        let (control, letters) = mailbox();
        let of = |user: Option<&str>| SessionRequest { user: user.map(str::to_owned), ..wanted(1, 0, 0) };
        let first = sessions.enter(of(Some("ann")), control.clone()).await.unwrap();
        for user in [None, Some("bob")] {
            assert_eq!(
                sessions.enter(of(user), control.clone()).await.err(),
                Some(LoginDenial::OtherAccount)
            );
        }
        assert!(letters.try_recv().is_none(), "no session was signalled");
        drop(first);
        assert!(sessions.enter(of(Some("bob")), control).await.is_ok(), "the first session has ended");
    }

    #[test]
    fn session_handles_are_nonzero_and_unused() {
        let sessions = SessionRegistry::new(Arc::default());
        assert!((0..70_000).all(|_| sessions.tsih() != 0));
    }
}
