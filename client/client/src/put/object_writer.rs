//! Writing one object of a file that is being stored.
//!
//! Does: sends its commands, keeps their bytes until a flush made them durable, sends them again if
//! the device restarted in between.
//! Does not: read the source, or decide when to flush.
//! Contract: bytes leave memory when a FLUSH that began after their acknowledgement succeeded in
//! the same boot epoch, or when their single command created the object. So no acknowledged put
//! lacks a byte, whatever restarts.
//! Truth: docs/adr/0006-puts-survive-restarts.md; docs/standards/device.md (boot epoch).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use sealstone_initiator::{Operation, OsdError};
use tokio::sync::{OnceCell, RwLock, Semaphore};

use crate::open::{DeviceEpoch, OpenObjects};
use crate::{ClientError, Devices, Metadata};

/// Maximum times that bytes of one object are sent again because its device restarted, before the
/// put fails.
pub(crate) const REDOS_MAX: u32 = 8;

/// One object, its commands, and the bytes that may still be lost.
pub(crate) struct ObjectWriter<M, D> {
    objects: Arc<OpenObjects<M, D>>,
    index: usize,
    /// Shared by writes; exclusive for sending again.
    gate: RwLock<()>,
    depth: Semaphore,
    made: OnceCell<()>,
    /// Serializes requests for the boot epoch, so that it is requested once.
    asking: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By order of dispatch.
    held: BTreeMap<u64, Held>,
    next: u64,
    /// The device's boot epoch as of before the second command.
    life: Option<DeviceEpoch>,
    /// Whether a flush succeeded: a restart cannot lose the object.
    durable: bool,
    /// Whether the device reported the object as missing.
    lost: bool,
    /// Acknowledged bytes that are not flushed.
    unflushed_bytes: usize,
}

struct Held {
    offset: u64,
    data: Bytes,
    acknowledged: bool,
}

/// The result of a flush.
enum FlushOutcome {
    Durable,
    /// The device restarted: unflushed bytes may be lost.
    Restarted,
}

impl<M: Metadata, D: Devices> ObjectWriter<M, D> {
    pub(crate) fn new(objects: Arc<OpenObjects<M, D>>, index: usize) -> Arc<Self> {
        let depth = Semaphore::new(objects.core.tuning.depth);
        Arc::new(Self {
            objects,
            index,
            gate: RwLock::new(()),
            depth,
            made: OnceCell::new(),
            asking: tokio::sync::Mutex::new(()),
            state: Mutex::default(),
        })
    }

    /// Number of acknowledged bytes that are not flushed.
    pub(crate) fn unflushed_bytes(&self) -> usize {
        self.state().unflushed_bytes
    }

    /// Whether a flush is needed.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.state();
        !state.durable || !state.held.is_empty()
    }

    /// Takes over bytes; returns the number to pass to [`ObjectWriter::send`].
    pub(crate) fn accept(&self, offset: u64, data: Bytes) -> u64 {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.held.insert(number, Held { offset, data, acknowledged: false });
        number
    }

    /// Sends the bytes that [`ObjectWriter::accept`] took over.
    pub(crate) async fn send(&self, number: u64) -> Result<(), ClientError> {
        let _shared = self.gate.read().await;
        let _turn = self.depth.acquire().await;
        let held = self.state().held.get(&number).map(|held| (held.offset, held.data.clone()));
        // Already sent again and flushed after a restart.
        let Some((offset, data)) = held else { return Ok(()) };
        let mut done = false;
        // The first command creates the object with its own bytes; the others wait for it.
        let make = async {
            self.create(Some((offset, data.clone()))).await?;
            done = true;
            Ok::<(), ClientError>(())
        };
        if let Err(error) = self.made.get_or_try_init(|| make).await {
            // The device restarted again while it was checked whether the first restart lost the
            // object.
            return self.lost_or(error);
        }
        let written = if done { Ok(()) } else { self.write_once_more(offset, data).await };
        match written {
            Ok(()) => {
                self.acknowledge(number);
                Ok(())
            }
            Err(error) => self.lost_or(error),
        }
    }

    /// Treats a lost object as no failure: the next flush sends its bytes again.
    fn lost_or(&self, error: ClientError) -> Result<(), ClientError> {
        if self.may_be_lost(&error) {
            self.state().lost = true;
            return Ok(());
        }
        Err(error)
    }

    /// Returns when all acknowledged bytes are durable and the object exists.
    pub(crate) async fn flush_durable(&self) -> Result<(), ClientError> {
        if !self.made.initialized() {
            // Nothing was sent: an object without bytes.
            self.made.get_or_try_init(|| self.create(None)).await?;
        }
        for _ in 0..=REDOS_MAX {
            if let FlushOutcome::Durable = self.flush().await? {
                return Ok(());
            }
            tracing::debug!(
                device = self.device().0,
                "the device restarted; sending again what it may have lost"
            );
            self.send_again().await?;
        }
        Err(ClientError::Restarted(self.objects.core.device_label(self.device()).await))
    }

    async fn flush(&self) -> Result<FlushOutcome, ClientError> {
        let (acknowledged, life) = {
            let state = self.state();
            if state.lost {
                return Ok(FlushOutcome::Restarted);
            }
            let numbers = state.held.iter().filter(|(_, held)| held.acknowledged).map(|(number, _)| *number);
            (numbers.collect::<Vec<_>>(), state.life)
        };
        // All of it must have been written in one boot epoch. The existence of the object proves
        // nothing: the server may have created it again, empty, to fence it.
        match self.objects.execute_in(self.index, |object| Operation::Flush { object }).await {
            Ok(now) if now.is_some() && now == life => {}
            Ok(_) => return Ok(FlushOutcome::Restarted),
            Err(error) if self.may_be_lost(&error) => return Ok(FlushOutcome::Restarted),
            Err(error) => return Err(error),
        }
        let mut state = self.state();
        state.durable = true;
        for number in acknowledged {
            if let Some(held) = state.held.remove(&number) {
                state.unflushed_bytes -= held.data.len();
            }
        }
        Ok(FlushOutcome::Durable)
    }

    /// Sends all unflushed bytes again with no other write in flight. The next flush finds what is
    /// lost once more.
    async fn send_again(&self) -> Result<(), ClientError> {
        let _alone = self.gate.write().await;
        let held: Vec<(u64, u64, Bytes)> = {
            let mut state = self.state();
            state.lost = false;
            state.held.iter().map(|(number, held)| (*number, held.offset, held.data.clone())).collect()
        };
        match self.resend(&held).await {
            Err(error) if self.may_be_lost(&error) => self.state().lost = true,
            Err(error) => return Err(error),
            Ok(()) => held.iter().for_each(|(number, ..)| self.acknowledge(*number)),
        }
        Ok(())
    }

    async fn resend(&self, held: &[(u64, u64, Bytes)]) -> Result<(), ClientError> {
        let mut rest = held;
        match self.epoch().await {
            Ok(life) => self.state().life = Some(life),
            Err(error) if self.may_be_lost(&error) => {
                let first = held.split_first();
                self.create(first.map(|((_, offset, data), _)| (*offset, data.clone()))).await?;
                rest = first.map_or(rest, |(_, rest)| rest);
            }
            Err(error) => return Err(error),
        }
        for (_, offset, data) in rest {
            self.write(*offset, data.clone()).await?;
        }
        Ok(())
    }

    /// Writes after the first command, which requires a known boot epoch.
    async fn write_once_more(&self, offset: u64, data: Bytes) -> Result<(), ClientError> {
        {
            let _asking = self.asking.lock().await;
            if self.state().life.is_none() {
                let life = self.epoch().await?;
                self.state().life = Some(life);
            }
        }
        self.write(offset, data).await
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<(), ClientError> {
        let make = |object| Operation::Write { object, offset, data: data.clone() };
        self.objects.execute(self.index, make).await.map(drop)
    }

    async fn create(&self, first: Option<(u64, Bytes)>) -> Result<(), ClientError> {
        let make = |object| match &first {
            Some((offset, data)) => Operation::CreateAndWrite { object, offset: *offset, data: data.clone() },
            None => Operation::Create { object },
        };
        let life = self.objects.execute_in(self.index, make).await?;
        self.state().life = life;
        Ok(())
    }

    /// Reads the boot epoch of the device through the object.
    async fn epoch(&self) -> Result<DeviceEpoch, ClientError> {
        self.objects.device_epoch(self.index).await
    }

    fn acknowledge(&self, number: u64) {
        let mut state = self.state();
        if let Some(held) = state.held.get_mut(&number)
            && !held.acknowledged
        {
            held.acknowledged = true;
            state.unflushed_bytes += state.held[&number].data.len();
        }
    }

    /// Whether the error means that a restart of the device lost the object; impossible once it was
    /// durable.
    fn may_be_lost(&self, error: &ClientError) -> bool {
        matches!(error, ClientError::Device { error: OsdError::NotFound, .. }) && !self.state().durable
    }

    fn device(&self) -> sealstone_mds_protocol::DeviceId {
        self.objects.layout.objects()[self.index].device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
