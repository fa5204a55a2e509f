//! Accepting connections and leaving in good order.

use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use sealstone_channel::{Admission, Origin, Ticket};
use sealstone_iscsi::target::SenseFormat;
use sealstone_scsi::{
    additional::REPORTED_LUNS_CHANGED,
    lu::{ChannelToken, LogicalUnit},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::watch,
    task::JoinSet,
};

use crate::{
    Config, ConfigError, Counter, Counters, Memory,
    arrivals::{Arrivals, Limits, Place, Turned, source},
    connection,
    door::{Failures, Resets},
    heavy::Heavy,
    luns::Luns,
    sessions::Sessions,
    tls::Tls,
    watch::{EVERY_MS, Refusals},
};

/// Pause after a failed accept: mostly descriptors have run out, and more tries at once cannot help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How much longer than its drain time a connection may take before its task is ended.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Connections that came too fast and are reset in a row, before the others get the thread for [`TURNED_PAUSE`]: whoever
/// knocks without end costs a small part of one core. Meanwhile the system keeps up to 1024 that wait.
const TURNED_MAX: u32 = 16;
/// The pause; timers count in milliseconds.
const TURNED_PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) protocol: Arc<sealstone_iscsi::target::Config>,
    pub(crate) luns: Luns,
    pub(crate) memory: Arc<Memory>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) failures: Arc<Failures>,
    pub(crate) resets: Resets,
    pub(crate) refusals: Refusals,
    arrivals: Arc<Arrivals>,
    /// Where long commands run; `None`: where they were received.
    pub(crate) heavy: Option<Heavy>,
    admission: Arc<Admission>,
    leaving: watch::Sender<bool>,
}

impl SenseFormat for Shared {
    fn is_descriptor(&self, lun: u64) -> bool {
        self.luns.find(lun, None).is_some_and(|(_, unit)| unit.has_descriptor_sense())
    }
}

/// One connection's part of both limits; free again when dropped.
pub(crate) struct Slot {
    pub(crate) ticket: Ticket,
    pub(crate) place: Place,
}

/// One iSCSI target with its logical units.
#[derive(Clone)]
pub struct Target(Arc<Shared>);

impl Target {
    /// A target that answers for these logical units, each under its number.
    ///
    /// # Errors
    /// [`ConfigError`] if it could never work.
    pub fn new(config: Config, units: Vec<(u64, Arc<dyn LogicalUnit>)>) -> Result<Self, ConfigError> {
        config.check()?;
        let counters = Arc::new(Counters::default());
        let limits = Limits {
            open_max: config.connections_per_source_max,
            rate: config.arrivals_per_source,
            memory_max: config.memory_per_source_max,
            long_max: config.long_per_source_max,
        };
        Ok(Self(Arc::new(Shared {
            protocol: Arc::new(config.protocol.clone()),
            luns: Luns::new(units)?,
            memory: Memory::new(config.memory_max, Arc::clone(&counters)),
            sessions: Sessions::new(Arc::clone(&counters)),
            failures: Failures::new(config.clock.clone(), Arc::clone(&counters)),
            resets: Resets::new(),
            refusals: Refusals::new(config.watch.clone(), config.clock.clone()),
            arrivals: Arrivals::new(limits, config.clock.clone()),
            heavy: config.pace.short_first.then(|| Heavy::new(config.pace.slices)),
            counters,
            admission: Admission::new(config.admission()),
            leaving: watch::channel(false).0,
            config,
        })))
    }

    /// One more logical unit under this number; living sessions hear that the list has changed.
    ///
    /// # Errors
    /// [`ConfigError::Lun`] if the number cannot be or is taken, or there are 2047 already.
    pub fn attach(&self, number: u64, unit: Arc<dyn LogicalUnit>) -> Result<(), ConfigError> {
        self.0.luns.insert(number, Arc::clone(&unit))?;
        self.0.sessions.each(|nexus, port| unit.nexus_established(nexus, port));
        self.luns_changed();
        Ok(())
    }

    /// Takes a logical unit away; commands under way end as they would. False if there is none of this number.
    pub fn detach(&self, number: u64) -> bool {
        let Some(unit) = self.0.luns.remove(number) else { return false };
        self.0.sessions.each(|nexus, _| unit.nexus_lost(nexus));
        self.luns_changed();
        true
    }

    fn luns_changed(&self) {
        for unit in self.0.luns.units() {
            self.0.sessions.each(|nexus, _| unit.attention(nexus, REPORTED_LUNS_CHANGED));
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.0.counters
    }

    /// The data buffers.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// Serves `listener` until `shutdown`; then asks initiators to log out, waits
    /// [`Config::drain_seconds`](crate::Config::drain_seconds) for them and returns when all are gone.
    ///
    /// # Errors
    /// Never for a single connection's sake; when the listener has no address.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let local = listener.local_addr()?;
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let mut tell = tokio::time::interval(Duration::from_millis(EVERY_MS));
        let mut turned = 0;
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                _ = tell.tick() => {
                    self.0.refusals.flush(false);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let peer = peer.to_string();
            let slot = match self.slot(&peer) {
                Ok(slot) => slot,
                Err(Turned::TooFast) => {
                    // A reset leaves nothing behind on this side, where an orderly end would wait for a minute.
                    let _ = stream.set_zero_linger();
                    drop(stream);
                    turned += 1;
                    if turned >= TURNED_MAX {
                        turned = 0;
                        tokio::time::sleep(TURNED_PAUSE).await;
                    }
                    continue;
                }
                Err(_) => continue,
            };
            turned = 0;
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
            }
            let address = stream.local_addr().unwrap_or(local).to_string();
            let target = self.clone();
            connections.spawn(async move { target.welcome(stream, address, peer, slot).await });
        }
        drop(listener);
        self.leave();
        let patience = Duration::from_secs(u64::from(self.0.config.drain_seconds)) + DRAIN_GRACE;
        let gone = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(patience, gone).await.is_err() {
            tracing::warn!("connections did not end in time and were cut off");
            connections.shutdown().await;
        }
        self.0.refusals.flush(true);
        Ok(())
    }

    /// Serves one connection that came by another way, on a simulated network say; with `channel` inside of a sealed
    /// channel. `local` is the address that discovery tells.
    pub async fn serve_stream<S>(&self, stream: S, local: String, peer: String, channel: Option<ChannelToken>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let Ok(slot) = self.slot(&peer) {
            self.run(stream, local, peer, channel, slot).await;
        }
    }

    /// Asks all initiators to log out; [`Self::serve`] does it on shutdown.
    pub fn leave(&self) {
        self.0.leaving.send_replace(true);
    }

    fn slot(&self, peer: &str) -> Result<Slot, Turned> {
        let counters = &self.0.counters;
        counters.add(Counter::ConnectionsAccepted, 1);
        let source = source(peer);
        let slot = self.0.arrivals.enter(source.clone()).map(|place| {
            let origin = peer.parse::<SocketAddr>();
            let origin = origin.map_or_else(|_| Origin::named(&source), |peer| Origin::from(peer.ip()));
            Slot { ticket: self.0.admission.enter(origin), place }
        });
        if let Err(turned) = &slot {
            counters.add(turned.counter(), 1);
            self.0.refusals.add(&source, "", "connect", turned.reason());
        }
        slot
    }

    /// Completes when the target is being shut down.
    pub(crate) async fn leaving(&self) {
        let mut leaving = self.0.leaving.subscribe();
        // An error means that the target is gone, which it cannot be before us.
        let _ = leaving.wait_for(|leaving| *leaving).await;
    }

    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.0.config.tls.as_ref()
    }

    /// Connections that were closed for others so far.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.0.admission.evicted()
    }

    /// For the audit log: a connection of this source ended before its login.
    pub(crate) fn turned_away(&self, source: &str, reason: &'static str) {
        self.0.refusals.add(source, "", "connect", reason);
    }

    pub(crate) async fn run<S>(
        &self,
        stream: S,
        local: String,
        peer: String,
        channel: Option<ChannelToken>,
        slot: Slot,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let leaving = self.0.leaving.subscribe();
        connection::serve(Arc::clone(&self.0), stream, local, peer, channel, leaving, slot).await;
    }
}
