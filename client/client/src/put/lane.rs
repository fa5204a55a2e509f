//! One object of a file that is being stored.
//!
//! Does: send its commands, keep their bytes until the device has proven them durable, send them again when the device
//! restarted in between. Does not: read the source, decide when to prove.
//! Contract: bytes leave a lane when a FLUSH that began after their acknowledgement succeeded in the same life of the
//! device, or when their one command made the whole object. So no acknowledged put lacks a byte, whatever restarts.
//! Truth: docs/adr/0006-puts-survive-restarts.md; docs/standards/device.md (boot epoch).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use sealstone_initiator::{Operation, OsdError};
use tokio::sync::{OnceCell, RwLock, Semaphore};

use crate::open::{Life, OpenObjects};
use crate::{ClientError, Devices, Metadata};

/// Times that the bytes of one object are sent again because its device restarted, before the put fails.
pub(crate) const REDOS_MAX: u32 = 8;

/// One object, its commands and the bytes that may still be lost.
pub(crate) struct Lane<M, D> {
    objects: Arc<OpenObjects<M, D>>,
    index: usize,
    /// Whoever writes shares it; whoever sends again has it alone.
    gate: RwLock<()>,
    depth: Semaphore,
    made: OnceCell<()>,
    /// Held while the epoch is asked for, so that writers ask once.
    asking: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By order of dispatch.
    held: BTreeMap<u64, Held>,
    next: u64,
    /// The device's boot epoch, asked for before the second command went out.
    life: Option<Life>,
    /// A flush has succeeded: the object cannot be gone any more.
    durable: bool,
    /// The device did not know the object any more.
    lost: bool,
    /// Bytes that were acknowledged and are not proven.
    unproven: usize,
}

struct Held {
    offset: u64,
    data: Bytes,
    acknowledged: bool,
}

/// What a flush proved.
enum Proof {
    Durable,
    /// The device restarted since: what is held may be gone.
    Restarted,
}

impl<M: Metadata, D: Devices> Lane<M, D> {
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

    /// Bytes that were acknowledged and are not proven durable.
    pub(crate) fn unproven(&self) -> usize {
        self.state().unproven
    }

    /// Is there anything that a flush has to prove?
    pub(crate) fn is_open(&self) -> bool {
        let state = self.state();
        !state.durable || !state.held.is_empty()
    }

    /// Takes bytes over, to be sent by [`Lane::send`] with the number this gives.
    pub(crate) fn hold(&self, offset: u64, data: Bytes) -> u64 {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.held.insert(number, Held { offset, data, acknowledged: false });
        number
    }

    /// Sends what [`Lane::hold`] took.
    pub(crate) async fn send(&self, number: u64) -> Result<(), ClientError> {
        let _shared = self.gate.read().await;
        let _turn = self.depth.acquire().await;
        let held = self.state().held.get(&number).map(|held| (held.offset, held.data.clone()));
        // Gone: it was sent with what a restart had lost, and proven since.
        let Some((offset, data)) = held else { return Ok(()) };
        let mut done = false;
        // Whoever comes first makes the object, with its own bytes in it; the others wait for that.
        let make = async {
            self.create(Some((offset, data.clone()))).await?;
            done = true;
            Ok::<(), ClientError>(())
        };
        if let Err(error) = self.made.get_or_try_init(|| make).await {
            // A second restart, while it was being found out whether the first one had lost the object.
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

    /// An object that the device lost is no failure: what was to be sent is held, and the next proof sends it again.
    fn lost_or(&self, error: ClientError) -> Result<(), ClientError> {
        if self.may_be_lost(&error) {
            self.state().lost = true;
            return Ok(());
        }
        Err(error)
    }

    /// Returns when everything that was acknowledged before is durable, and the object exists.
    pub(crate) async fn prove(&self) -> Result<(), ClientError> {
        if !self.made.initialized() {
            // Nothing was ever sent: an object without bytes.
            self.made.get_or_try_init(|| self.create(None)).await?;
        }
        for _ in 0..=REDOS_MAX {
            if let Proof::Durable = self.flush().await? {
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

    async fn flush(&self) -> Result<Proof, ClientError> {
        let (acknowledged, life) = {
            let state = self.state();
            if state.lost {
                return Ok(Proof::Restarted);
            }
            let numbers = state.held.iter().filter(|(_, held)| held.acknowledged).map(|(number, _)| *number);
            (numbers.collect::<Vec<_>>(), state.life)
        };
        // One life of the device has to have seen all of it. That the object is there proves nothing: the server may have
        // made it again, empty, to fence it.
        match self.objects.execute_in(self.index, |object| Operation::Flush { object }).await {
            Ok(now) if now.is_some() && now == life => {}
            Ok(_) => return Ok(Proof::Restarted),
            Err(error) if self.may_be_lost(&error) => return Ok(Proof::Restarted),
            Err(error) => return Err(error),
        }
        let mut state = self.state();
        state.durable = true;
        for number in acknowledged {
            if let Some(held) = state.held.remove(&number) {
                state.unproven -= held.data.len();
            }
        }
        Ok(Proof::Durable)
    }

    /// Sends everything that is held again, alone. What is lost once more, the next flush finds.
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

    /// A command after the first one: several need the life of the device that sees them.
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

    /// The boot epoch of the device, asked of the object.
    async fn epoch(&self) -> Result<Life, ClientError> {
        self.objects.life(self.index).await
    }

    fn acknowledge(&self, number: u64) {
        let mut state = self.state();
        if let Some(held) = state.held.get_mut(&number)
            && !held.acknowledged
        {
            held.acknowledged = true;
            state.unproven += state.held[&number].data.len();
        }
    }

    /// Does this mean that the device lost the object when it restarted? Once it was durable, it cannot have.
    fn may_be_lost(&self, error: &ClientError) -> bool {
        matches!(error, ClientError::Device { error: OsdError::NotFound, .. }) && !self.state().durable
    }

    fn device(&self) -> sealstone_mds_protocol::DeviceId {
        self.objects.layout.objects()[self.index].device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
