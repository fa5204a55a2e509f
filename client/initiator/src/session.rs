//! An iSCSI session: the handle that callers share. Its connection runs in one task, `driver`.
//!
//! Does: logs in, takes commands from many callers, limits their memory, logs out.
//! Does not: know CDBs, or reconnect; [`OsdClient`](crate::OsdClient) does both.
//! Contract: every command ends with a status, or with an error that says whether it may have been
//! executed.

use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use sealstone_iscsi::initiator::{DiscoveredTarget, ManagementResult};
use sealstone_iscsi::{Cdb, Gather, Residual};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::block_seals::BlockReports;
use crate::driver::{DataObserver, HandleRequest, QueuedCommand, SessionDriver};
use crate::{SessionConfig, SessionError, TargetUrl};

/// Commands queued for the sending task; more wait at their callers.
const QUEUE: usize = 16;
/// Memory is counted in units of this many bytes.
const MEMORY_UNIT: usize = 4096;

/// One raw command; only lengths are checked.
#[derive(Clone, Debug, Default)]
pub struct ScsiRequest {
    /// The logical unit number.
    pub lun: u16,
    /// The CDB, up to 260 bytes.
    pub cdb: Bytes,
    /// The Data-Out Buffer in pieces, which are sent without a copy.
    pub data_out: Vec<Bytes>,
    /// Maximum bytes of data-in.
    pub data_in_max: usize,
    /// The buffer for data-in, resized to `data_in_max`; if it is empty, a new one is allocated.
    pub buffer: Vec<u8>,
    /// Time limit; that of the session if none.
    pub timeout: Option<Duration>,
}

/// The result of a command.
#[derive(Clone, Debug)]
pub struct ScsiResponse {
    /// SCSI status byte.
    pub status: u8,
    /// Sense data; possible with GOOD too.
    pub sense: Vec<u8>,
    /// The received bytes.
    pub data_in: Vec<u8>,
    /// How much less or more than `data_in_max` the target had.
    pub read_residual: Residual,
    /// How much less or more than the given data-out the target wanted.
    pub write_residual: Residual,
}

/// A session with a target. Clones share it; it ends when the last one is dropped, or by
/// [`Session::logout`].
///
/// ```no_run
/// use sealstone_initiator::{ScsiRequest, Session, SessionConfig, SystemEnvironment, TargetUrl};
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// let url: TargetUrl = "iscsi://127.0.0.1/iqn.2026-11.org.sealstone:osd.a/0".parse()?;
/// let session = Session::connect(&url, SessionConfig::new(None, &SystemEnvironment)).await?;
/// let cdb = vec![0x12, 0, 0, 0, 96, 0].into(); // INQUIRY
/// let inquiry = ScsiRequest { cdb, data_in_max: 96, ..Default::default() };
/// println!("{:02x?}", session.execute(inquiry).await?.data_in);
/// session.logout().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Session {
    asks: mpsc::Sender<HandleRequest>,
    memory: Arc<Semaphore>,
    memory_units: u32,
    command_timeout: Duration,
    reports: BlockReports,
}

impl Session {
    /// Connects over TCP to the target of `url` and logs in; `config.target_name` is taken from
    /// `url`.
    ///
    /// # Errors
    /// As [`Session::over`].
    pub async fn connect(url: &TargetUrl, mut config: SessionConfig) -> Result<Self, SessionError> {
        config.target_name = Some(url.target.clone());
        let stream = tcp(&url.authority(), config.login_timeout).await?;
        Self::over(stream, config).await
    }

    /// Logs in over a connected stream.
    ///
    /// # Errors
    /// `Unreachable` if the stream breaks, `LoginRefused`, `LoginTimeout`, `Protocol`; `Proof` if
    /// [`SessionConfig::proofs`] fails, `TargetUnproven` if the target must prove itself and does
    /// not.
    pub async fn over<S>(stream: S, config: SessionConfig) -> Result<Self, SessionError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // Discovery has no target to select an account for, so it uses none.
        let proof =
            config.target_name.as_deref().map(|target| config.proofs.for_target(target)).transpose()?;
        let (asks, queue) = mpsc::channel(QUEUE);
        let (ready, logged_in) = oneshot::channel();
        let reports = BlockReports::default();
        let driver = SessionDriver::new(stream, &config, proof.flatten(), queue, ready, reports.clone());
        tokio::spawn(driver.run());
        logged_in.await.map_err(|_| SessionError::NexusLost)??;
        let memory_units = units(config.memory_max.max(MEMORY_UNIT));
        let memory = Arc::new(Semaphore::new(memory_units as usize));
        Ok(Self { asks, memory, memory_units, command_timeout: config.command_timeout, reports })
    }

    /// Returns the reports about blocks that this session has read. Only sessions whose blocks have
    /// keys have any.
    #[must_use]
    pub const fn block_reports(&self) -> &BlockReports {
        &self.reports
    }

    /// Runs one command. It is sent as soon as the target's window and the session's memory allow.
    ///
    /// # Errors
    /// `NexusLost` and `Timeout`: it may have been done. `Closed`, `TooLong`: it was not sent.
    /// `Rejected`.
    pub async fn execute(&self, request: ScsiRequest) -> Result<ScsiResponse, SessionError> {
        self.execute_watched(request, None).await
    }

    /// As [`Session::execute`]; `watch` gets data-in while it arrives.
    pub(crate) async fn execute_watched(
        &self,
        request: ScsiRequest,
        watch: Option<Arc<dyn DataObserver>>,
    ) -> Result<ScsiResponse, SessionError> {
        let cdb = Cdb::new(&request.cdb).map_err(|too_long| SessionError::TooLong {
            what: "a CDB",
            actual: too_long.0,
            max: sealstone_iscsi::limits::CDB_MAX,
        })?;
        let data_out = Gather::from(request.data_out);
        let bytes = data_out.len().saturating_add(request.data_in_max);
        let permits = units(bytes).min(self.memory_units);
        let timeout = request.timeout.unwrap_or(self.command_timeout);
        let deadline = Instant::now() + timeout;
        let late = |_| SessionError::Timeout(timeout);
        let memory = timeout_at(deadline, self.memory.clone().acquire_many_owned(permits))
            .await
            .map_err(late)?
            .map_err(|_| SessionError::Closed)?;
        let (reply, answered) = oneshot::channel();
        let order = QueuedCommand {
            lun: wire_lun(request.lun),
            cdb,
            data_out,
            buffer: request.buffer,
            data_in_max: request.data_in_max,
            timeout,
            deadline,
            memory,
            watch,
            reply,
        };
        let send = self.asks.send(HandleRequest::Execute(Box::new(order)));
        timeout_at(deadline, send).await.map_err(late)?.map_err(|_| SessionError::Closed)?;
        answered.await.map_err(|_| SessionError::NexusLost)?
    }

    /// Runs LOGICAL UNIT RESET, which ends all commands of all sessions to the logical unit.
    ///
    /// # Errors
    /// `NexusLost`, `Closed`.
    pub async fn reset_lun(&self, lun: u16) -> Result<ManagementResult, SessionError> {
        let (reply, answered) = oneshot::channel();
        self.asks
            .send(HandleRequest::ResetLun(wire_lun(lun), reply))
            .await
            .map_err(|_| SessionError::Closed)?;
        answered.await.map_err(|_| SessionError::NexusLost)
    }

    /// Whether the session has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.asks.is_closed()
    }

    /// Logs out; commands in flight are lost. Returns when the connection is closed.
    pub async fn logout(&self) {
        let (reply, done) = oneshot::channel();
        if self.asks.send(HandleRequest::Logout(reply)).await.is_ok() {
            let _ = done.await;
        }
    }
}

/// Requests the targets of a portal (SendTargets).
///
/// # Errors
/// As [`Session::over`]; `NexusLost` if there is no answer.
pub async fn discover<S>(stream: S, mut config: SessionConfig) -> Result<Vec<DiscoveredTarget>, SessionError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    config.target_name = None;
    let session = Session::over(stream, config).await?;
    let (reply, answered) = oneshot::channel();
    session.asks.send(HandleRequest::Discover(reply)).await.map_err(|_| SessionError::Closed)?;
    let targets = answered.await.map_err(|_| SessionError::NexusLost);
    session.logout().await;
    targets
}

/// Connects to `HOST:PORT` within `time_limit`.
pub(crate) async fn tcp(authority: &str, time_limit: Duration) -> Result<TcpStream, SessionError> {
    let connect = TcpStream::connect(authority);
    let stream = tokio::time::timeout(time_limit, connect)
        .await
        .map_err(|_| SessionError::LoginTimeout(time_limit))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(MEMORY_UNIT).min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX)
}

/// Peripheral addressing up to 255, flat space addressing above (SAM-5 §4.7).
pub(crate) fn wire_lun(lun: u16) -> u64 {
    let field = if lun < 256 { lun } else { 0x4000 | (lun & crate::url::LUN_MAX) };
    u64::from(field) << 48
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn luns_take_the_two_addressing_methods_of_sam() {
        assert_eq!(wire_lun(0), 0);
        assert_eq!(wire_lun(255), 0x00FF_0000_0000_0000);
        assert_eq!(wire_lun(256), 0x4100_0000_0000_0000);
        assert_eq!(wire_lun(0x3FFF), 0x7FFF_0000_0000_0000);
    }
}
