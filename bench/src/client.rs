//! Client of one device in this process, with the runtime and the device handle that the client
//! library uses.

use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_digest::{CoveredDigests, DigestCover, Profile};
use sealstone_initiator::{
    Bearer, Operation, OsdClient, OsdError, OsdOptions, SystemEnvironment, TargetUrl, TcpDial,
};
use sealstone_osd::{AttributeId, ObjectId};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::Outcome;
use crate::contender::Contender;
use crate::credential::Issuer;
use crate::daemon::Osd;
use crate::settings::Settings;
use crate::workload::{Direction, Offsets, SIZES, Workload};

/// Threads that run tasks, as in the real client.
const WORKERS: usize = 2;
/// Objects of a partition: one is read, one is written.
const READ_NUMBER: u64 = 1 << 16;
const WRITTEN_NUMBER: u64 = READ_NUMBER + 1;

/// Returns the partition of the objects with these stored digests.
const fn partition(profile: Profile) -> u64 {
    match profile {
        Profile::Blake3 => 1 << 16,
        other => (1 << 16) + other.code() as u64,
    }
}
/// Bytes of one command while the objects are filled.
const FILL_BYTES: u64 = 1 << 20;
/// Project partition page, attribute 1: the profile of stored digests.
const PROFILE: AttributeId = AttributeId::new(0x3000_F006, 1);

/// A connected client with a credential for each method and object.
pub(crate) struct DeviceClient {
    runtime: Runtime,
    device: OsdClient,
    /// Another connection, inside TLS.
    sealed: OsdClient,
    /// Credentials for the object that is read, and for the one that is written.
    bearers: Vec<(Contender, [(ObjectId, Bearer); 2])>,
    /// Credential for anything, on a device that accepts it.
    anything: Bearer,
    payload: Bytes,
    object_bytes: u64,
    /// Buffers of earlier turns, so that a turn's first commands do not fault in new pages.
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// Operations completed in a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnResult {
    pub(crate) operations: u64,
    pub(crate) time: Duration,
}

impl DeviceClient {
    /// Connects, creates the objects and fills them.
    pub(crate) fn connect(osd: &Osd, settings: &Settings) -> Outcome<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
        let url: TargetUrl = osd.url.parse()?;
        let environment = Arc::new(SystemEnvironment);
        let options = OsdOptions::new(&*environment);
        let client =
            |dial: TcpDial| OsdClient::new(Arc::new(dial), &url, environment.clone(), options.clone());
        let device = client(TcpDial::new(&url));
        let sealed = client(TcpDial::sealed(&url, osd.pin.parse()?, "bench.sealstone.invalid".to_owned()));
        let anything = Issuer::of(&osd.data, partition(Profile::Blake3))?.anything()?;
        let mut bearers = Vec::new();
        let mut profiles = Vec::new();
        for contender in settings.contenders.iter().copied() {
            let Some(method) = contender.method() else { continue };
            let profile = contender.profile();
            let partition = partition(profile);
            if !profiles.contains(&profile) {
                profiles.push(profile);
                runtime.block_on(device.create_partition(&anything, partition))?;
                if profile != Profile::DEFAULT {
                    let code = Bytes::copy_from_slice(&[profile.code()]);
                    let set = vec![(PROFILE, code)];
                    runtime.block_on(device.set_attributes(
                        &anything,
                        ObjectId::of_partition(partition),
                        set,
                    ))?;
                }
            }
            let issuer = Issuer::of(&osd.data, partition)?;
            let bearer = |number| {
                let object = ObjectId::new(partition, number);
                Outcome::Ok((object, issuer.object(object, method, contender.slot())?))
            };
            bearers.push((contender, [bearer(READ_NUMBER)?, bearer(WRITTEN_NUMBER)?]));
        }
        let largest = SIZES.into_iter().max().unwrap_or(0).max(usize::try_from(FILL_BYTES)?);
        let mut payload = vec![0; largest];
        getrandom::fill(&mut payload).map_err(|error| error.to_string())?;
        let client = Self {
            runtime,
            device,
            sealed,
            bearers,
            anything,
            payload: payload.into(),
            object_bytes: settings.object_bytes,
            buffers: Arc::default(),
        };
        for profile in profiles {
            for number in [READ_NUMBER, WRITTEN_NUMBER] {
                client.fill(ObjectId::new(partition(profile), number))?;
            }
        }
        client.flush()?;
        Ok(client)
    }

    fn fill(&self, object: ObjectId) -> Outcome {
        self.runtime.block_on(async {
            self.device.create(&self.anything, object).await?;
            for offset in (0..self.object_bytes).step_by(FILL_BYTES as usize) {
                let data = self.payload.slice(..FILL_BYTES as usize);
                self.device.write(&self.anything, object, offset, data).await?;
            }
            Ok(())
        })
    }

    /// Flushes everything, so that earlier writes do not affect the next measurement.
    pub(crate) fn flush(&self) -> Outcome {
        Ok(self.runtime.block_on(self.device.flush_osd(&self.anything))?)
    }

    /// Keeps `workload.depth` commands in flight for `time`, then waits for the last of them.
    pub(crate) fn turn(
        &self,
        workload: &Workload,
        contender: Contender,
        time: Duration,
        seed: u64,
    ) -> Outcome<TurnResult> {
        let own = self.bearers.iter().find(|(other, _)| *other == contender);
        let (_, [reader, writer]) = own.ok_or("no credentials for this method")?;
        let (object, bearer) = match workload.direction {
            Direction::Read => reader,
            Direction::Write => writer,
        };
        let offsets = Arc::new(Mutex::new(Offsets::new(workload, self.object_bytes, seed)));
        let begin = Instant::now();
        let operations = self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..workload.depth {
                let lane = CommandLoop {
                    device: if contender.in_plain_text().is_some() { &self.sealed } else { &self.device }
                        .clone(),
                    bearer: bearer.clone(),
                    object: *object,
                    offsets: offsets.clone(),
                    payload: self.payload.slice(..workload.bytes),
                    direction: workload.direction,
                    hashed: (contender == Contender::NoSecHashed).then_some(self.object_bytes),
                    buffers: self.buffers.clone(),
                };
                tasks.spawn(lane.run(begin + time));
            }
            let mut operations = 0;
            while let Some(done) = tasks.join_next().await {
                operations += done??;
            }
            Outcome::Ok(operations)
        })?;
        Ok(TurnResult { operations, time: begin.elapsed() })
    }
}

/// Sends one command at a time.
struct CommandLoop {
    device: OsdClient,
    bearer: Bearer,
    object: ObjectId,
    offsets: Arc<Mutex<Offsets>>,
    payload: Bytes,
    direction: Direction,
    /// Length of the object, if digests of read data are computed and discarded.
    hashed: Option<u64>,
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl CommandLoop {
    async fn run(self, until: Instant) -> Result<u64, OsdError> {
        let lent = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = lent().pop().unwrap_or_default();
        let mut operations = 0;
        // At least one command, however short the time is.
        while operations == 0 || Instant::now() < until {
            let offset = self.offsets.lock().unwrap_or_else(PoisonError::into_inner).next().unwrap_or(0);
            let operation = match self.direction {
                Direction::Read => {
                    Operation::Read { object: self.object, offset, length: self.payload.len(), buffer }
                }
                Direction::Write => {
                    Operation::Write { object: self.object, offset, data: self.payload.clone() }
                }
            };
            // Buffers are reused, as in the real client.
            buffer = self.device.execute(&self.bearer, operation).await?.data;
            if let Some(length) = self.hashed.filter(|_| self.direction == Direction::Read) {
                let cover = DigestCover::new(Profile::Blake3, offset, buffer.len() as u64, length);
                black_box(CoveredDigests::of(cover, &buffer));
            }
            operations += 1;
        }
        lent().push(buffer);
        Ok(operations)
    }
}
