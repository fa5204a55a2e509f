//! The target server: accepts connections within the limits, attaches and detaches logical units,
//! and shuts down in order.
//!
//! The daemon and `sealstone up` create one [`IscsiTarget`] for each device.

use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use sealstone_block_protection::ProtectionSettings;
use sealstone_channel::{Admission, AdmissionTicket, ChannelSecret, ConnectionOrigin};
use sealstone_iscsi::target_side::SenseFormat;
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
    BufferPool, ConfigError, Counter, TargetConfig, TargetCounters, connection,
    heavy::HeavyPool,
    luns::{LunMap, VisibleLuns},
    refusals::{EVERY_MS, RefusalLog},
    sessions::SessionRegistry,
    sources::{ConnectionRefusal, SourceLimits, SourceSlot, SourceTable, source},
    throttle::{LoginFailures, ResetThrottle},
    tls::ListenerTls,
};

/// Pause after a failed accept. Mostly descriptors have run out, so an immediate retry cannot help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time after the drain time after which the task of a connection is aborted.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Connections reset in a row, because their source connects too fast, before this task sleeps for
/// [`RESETS_PAUSE`]. A flood of connections thus costs a small part of one core, while the system
/// queues up to 1024 more.
const RESETS_IN_A_ROW_MAX: u32 = 16;
/// Length of that pause. Timers have a resolution of one millisecond.
const RESETS_PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct TargetState {
    pub(crate) config: TargetConfig,
    pub(crate) protocol: Arc<sealstone_iscsi::target_side::PortalConfig>,
    pub(crate) luns: LunMap,
    pub(crate) memory: Arc<BufferPool>,
    pub(crate) sessions: Arc<SessionRegistry>,
    pub(crate) counters: Arc<TargetCounters>,
    pub(crate) failures: Arc<LoginFailures>,
    pub(crate) resets: ResetThrottle,
    pub(crate) refusals: RefusalLog,
    sources: Arc<SourceTable>,
    /// Threads for long commands. `None`: they run on the thread that received them.
    pub(crate) heavy: Option<HeavyPool>,
    admission: Arc<Admission>,
    leaving: watch::Sender<bool>,
}

impl SenseFormat for TargetState {
    fn is_descriptor(&self, lun: u64) -> bool {
        self.luns.find(lun, VisibleLuns::ALL).is_some_and(|(_, unit)| unit.has_descriptor_sense())
    }
}

/// Slot of one connection in the global and the per-source limits. Dropping it frees the slot.
pub(crate) struct ConnectionSlot {
    pub(crate) ticket: AdmissionTicket,
    pub(crate) place: SourceSlot,
}

/// One iSCSI target with its logical units.
#[derive(Clone)]
pub struct IscsiTarget(Arc<TargetState>);

impl IscsiTarget {
    /// Creates a target that serves `units`, each under its LUN.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration cannot work.
    pub fn new(config: TargetConfig, units: Vec<(u64, Arc<dyn LogicalUnit>)>) -> Result<Self, ConfigError> {
        config.check()?;
        let counters = Arc::new(TargetCounters::default());
        let limits = SourceLimits {
            open_max: config.connections_per_source_max,
            rate: config.connection_rate_per_source,
            memory_max: config.memory_per_source_max,
            long_max: config.long_per_source_max,
        };
        Ok(Self(Arc::new(TargetState {
            protocol: Arc::new(config.protocol.clone()),
            luns: LunMap::new(units)?,
            memory: BufferPool::new(config.memory_max, Arc::clone(&counters)),
            sessions: SessionRegistry::new(Arc::clone(&counters)),
            failures: LoginFailures::new(config.clock.clone(), Arc::clone(&counters)),
            resets: ResetThrottle::new(),
            refusals: RefusalLog::new(config.refusal_sink.clone(), config.clock.clone()),
            sources: SourceTable::new(limits, config.clock.clone()),
            heavy: config.pace.short_first.then(|| HeavyPool::new(config.pace.slices)),
            counters,
            admission: Admission::new(config.admission()),
            leaving: watch::channel(false).0,
            config,
        })))
    }

    /// Adds a logical unit under this number. Open sessions get a unit attention that the list has
    /// changed.
    ///
    /// # Errors
    /// [`ConfigError::Lun`] if the number is invalid or in use, or there are 2047 units already.
    pub fn attach(&self, number: u64, unit: Arc<dyn LogicalUnit>) -> Result<(), ConfigError> {
        self.attach_unit(number, unit, None)
    }

    /// As [`Self::attach`]; the unit exists only in sessions that fulfil this protection, which
    /// needs CHAP. Other sessions do not see the unit.
    ///
    /// # Errors
    /// [`ConfigError::Protection`] if the level protects nothing; as for `attach`.
    pub fn attach_protected(
        &self,
        number: u64,
        unit: Arc<dyn LogicalUnit>,
        settings: ProtectionSettings,
    ) -> Result<(), ConfigError> {
        if settings.level.key_scheme().is_none() && settings.level.records().is_none() {
            return Err(ConfigError::Protection(settings.level.name()));
        }
        self.attach_unit(number, unit, Some(settings))
    }

    fn attach_unit(
        &self,
        number: u64,
        unit: Arc<dyn LogicalUnit>,
        protection: Option<ProtectionSettings>,
    ) -> Result<(), ConfigError> {
        self.0.luns.insert(number, Arc::clone(&unit), protection)?;
        self.0.sessions.each(|nexus, port| unit.nexus_established(nexus, port));
        self.luns_changed();
        Ok(())
    }

    /// Removes a logical unit; its running commands finish normally. Returns false if the number
    /// has no unit.
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

    /// Returns the event counters.
    #[must_use]
    pub fn counters(&self) -> &Arc<TargetCounters> {
        &self.0.counters
    }

    /// Returns the pool of data buffers.
    #[must_use]
    pub fn memory(&self) -> &Arc<BufferPool> {
        &self.0.memory
    }

    /// Serves `listener` until `shutdown`, then requests initiators to log out. Waits
    /// [`TargetConfig::drain_seconds`](crate::TargetConfig::drain_seconds) for them, and returns
    /// when all connections have ended.
    ///
    /// # Errors
    /// If the listener has no address. Failures of a single connection are not returned.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let local = listener.local_addr()?;
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let mut report = tokio::time::interval(Duration::from_millis(EVERY_MS));
        let mut turned = 0;
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                _ = report.tick() => {
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
                Err(ConnectionRefusal::TooFast) => {
                    // A reset leaves no state on this side. An orderly close would stay in
                    // TIME-WAIT for a minute.
                    let _ = stream.set_zero_linger();
                    drop(stream);
                    turned += 1;
                    if turned >= RESETS_IN_A_ROW_MAX {
                        turned = 0;
                        tokio::time::sleep(RESETS_PAUSE).await;
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
            connections.spawn(async move { target.accept_connection(stream, address, peer, slot).await });
        }
        drop(listener);
        self.leave();
        let timeout = Duration::from_secs(u64::from(self.0.config.drain_seconds)) + DRAIN_GRACE;
        let gone = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(timeout, gone).await.is_err() {
            tracing::warn!("connections still open after the drain time; closing them");
            connections.shutdown().await;
        }
        self.0.refusals.flush(true);
        Ok(())
    }

    /// Serves one connection that was not accepted by [`Self::serve`], for example on a simulated
    /// network. `channel` identifies the TLS channel around it; `local` is the address that
    /// discovery reports.
    pub async fn serve_stream<S>(&self, stream: S, local: String, peer: String, channel: Option<ChannelToken>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let Ok(slot) = self.slot(&peer) {
            self.run(stream, local, peer, channel.map(|token| (token, None)), slot).await;
        }
    }

    /// Requests all initiators to log out. [`Self::serve`] does this on shutdown.
    pub fn leave(&self) {
        self.0.leaving.send_replace(true);
    }

    fn slot(&self, peer: &str) -> Result<ConnectionSlot, ConnectionRefusal> {
        let counters = &self.0.counters;
        counters.add(Counter::ConnectionsAccepted, 1);
        let source = source(peer);
        let slot = self.0.sources.enter(source.clone()).map(|place| {
            let origin = peer.parse::<SocketAddr>();
            let origin = origin
                .map_or_else(|_| ConnectionOrigin::named(&source), |peer| ConnectionOrigin::from(peer.ip()));
            ConnectionSlot { ticket: self.0.admission.enter(origin), place }
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
        // An error means that the target was dropped, which cannot happen while `self` exists.
        let _ = leaving.wait_for(|leaving| *leaving).await;
    }

    pub(crate) fn tls(&self) -> Option<&ListenerTls> {
        self.0.config.tls.as_ref()
    }

    /// Returns how many connections were closed in favour of others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.0.admission.evicted()
    }

    /// Records for the audit log that a connection of this source ended before its login.
    pub(crate) fn record_refusal(&self, source: &str, reason: &'static str) {
        self.0.refusals.add(source, "", "connect", reason);
    }

    pub(crate) async fn run<S>(
        &self,
        stream: S,
        local: String,
        peer: String,
        channel: Option<(ChannelToken, Option<ChannelSecret>)>,
        slot: ConnectionSlot,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let leaving = self.0.leaving.subscribe();
        connection::serve(Arc::clone(&self.0), stream, local, peer, channel, leaving, slot).await;
    }
}
