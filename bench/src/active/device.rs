//! One device with a function, and a client that runs it.
//!
//! Does: starts a device, stores objects, and sends EXECUTE FUNCTION with CMDRSP.
//! Contract: the credentials are issued with the device's own key, as by a metadata server.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_initiator::{Bearer, OsdClient, OsdOptions, SystemEnvironment, TargetUrl, TcpDial};
use sealstone_osd::function::{
    ApiVersion, EngineType, ExitReason, FunctionObject, JobAction, JobId, JobRequest, ReplyParts, RunRequest,
};
use sealstone_osd::{ObjectId, ObjectType, Permissions, SecurityMethod};
use zeroize::Zeroizing;

use crate::Outcome;
use crate::credential::Issuer;
use crate::daemon::Osd;

const PARTITION: u64 = 1 << 16;
const FUNCTION: ObjectId = ObjectId::new(PARTITION, 1 << 16);
/// The object that functions read, and the one that they write.
const INPUT: ObjectId = ObjectId::new(PARTITION, (1 << 16) + 1);
const OUTPUT: ObjectId = ObjectId::new(PARTITION, (1 << 16) + 2);
const METHOD: SecurityMethod = SecurityMethod::CmdRsp;
/// Bytes of one command of the client, and commands in flight.
const COMMAND_BYTES: usize = 1 << 20;
const DEPTH: usize = 4;
/// Longest run, in milliseconds.
const TIMEOUT_MS: u32 = 30_000;

/// A device, with a function object, an input and an output object.
pub(super) struct ActiveDevice {
    pub(super) osd: Osd,
    pub(super) client: OsdClient,
    pub(super) input: Bearer,
    output: Bearer,
    function: Bearer,
}

/// A run that succeeded.
pub(super) struct FunctionRun {
    /// Time as the client sees it.
    pub(super) time: Duration,
    pub(super) reply: ReplyParts,
    pub(super) measured: MeasuredCall,
}

/// Measurements by a function itself, or by the same code in a local program. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MeasuredCall {
    pub(super) value: u64,
    pub(super) total: u64,
    pub(super) reading: u64,
    pub(super) working: u64,
    pub(super) writing: u64,
    /// CPU time of the whole process; 0 in an engine.
    pub(super) processor: u64,
}

impl MeasuredCall {
    pub(super) fn of(numbers: &[u64]) -> Option<Self> {
        let &[value, total, reading, working, writing, processor] = numbers else { return None };
        Some(Self { value, total, reading, working, writing, processor })
    }
}

impl ActiveDevice {
    /// Formats and starts a device, and stores the code and the data.
    pub(super) async fn start(
        binary: &Path,
        folder: &Path,
        name: &str,
        code: &Bytes,
        data: &Bytes,
    ) -> Outcome<Self> {
        let osd = Osd::named(binary, &folder.join(name), name)?;
        let url: TargetUrl = osd.url.parse()?;
        let environment = Arc::new(SystemEnvironment);
        let options = OsdOptions::new(&*environment);
        let client = OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment, options);
        let issuer = Issuer::of(&osd.data, PARTITION)?;
        let anything = issuer.anything()?;
        client.create_partition(&anything, PARTITION).await?;
        for (object, bytes) in [(FUNCTION, code), (INPUT, data), (OUTPUT, data)] {
            client.create(&anything, object).await?;
            for (index, at) in (0..bytes.len()).step_by(COMMAND_BYTES).enumerate() {
                let part = bytes.slice(at..bytes.len().min(at + COMMAND_BYTES));
                client.write(&anything, object, (index * COMMAND_BYTES) as u64, part).await?;
            }
        }
        client.flush_osd(&anything).await?;
        Ok(Self {
            input: issuer.bearer(INPUT, METHOD, false)?,
            output: issuer.bearer(OUTPUT, METHOD, false)?,
            function: issuer.function(FUNCTION, METHOD)?,
            osd,
            client,
        })
    }

    fn request(&self, method: &str, length: Option<u64>, timeout_ms: u32) -> (RunRequest, Vec<Bearer>) {
        let object = |object, rights| FunctionObject { object, kind: ObjectType::User, rights };
        let writes_only = matches!(method, "write" | "stream-write");
        let writable = if writes_only { INPUT } else { OUTPUT };
        let (objects, bearers) = match length {
            None => (Vec::new(), Vec::new()),
            Some(_) if writes_only => (vec![object(writable, Permissions::WRITE)], vec![self.input.clone()]),
            Some(_) => (
                vec![object(INPUT, Permissions::READ), object(writable, Permissions::WRITE)],
                vec![self.input.clone(), self.output.clone()],
            ),
        };
        let request = RunRequest {
            job: None,
            engine: Some(EngineType::C),
            secret_arguments: false,
            commit_on_success: false,
            input_digests: false,
            result_entry: false,
            timeout_ms,
            api: ApiVersion::CURRENT,
            digest: None,
            method: method.to_owned(),
            arguments: Zeroizing::new(length.map_or_else(Vec::new, |length| length.to_le_bytes().to_vec())),
            objects,
        };
        (request, bearers)
    }

    /// Runs a method on the first bytes of the input and waits for its end.
    pub(super) async fn run(&self, method: &str, length: u64) -> Outcome<FunctionRun> {
        let (request, bearers) = self.request(method, Some(length), TIMEOUT_MS);
        let begin = Instant::now();
        let reply = self.client.execute_function(&self.function, FUNCTION, request, &bearers).await?;
        let time = begin.elapsed();
        expect_success(method, &reply)?;
        let numbers: Vec<u64> =
            reply.inline.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let measured = MeasuredCall::of(&numbers).ok_or("a function returned no measurement")?;
        Ok(FunctionRun { time, reply, measured })
    }

    /// Runs the empty method. With secret arguments the engine is not used again, so that the next
    /// run has a new one.
    pub(super) async fn run_empty(&self, secret: bool) -> Outcome<(Duration, ReplyParts)> {
        let (request, _) = self.request("empty", None, TIMEOUT_MS);
        let request = RunRequest { secret_arguments: secret, ..request };
        let begin = Instant::now();
        let reply = self.client.execute_function(&self.function, FUNCTION, request, &[]).await?;
        let time = begin.elapsed();
        expect_success("empty", &reply)?;
        Ok((time, reply))
    }

    /// Sends a request about a job.
    pub(super) async fn job(&self, job: JobId, action: JobAction) -> Outcome<(Duration, ReplyParts)> {
        let begin = Instant::now();
        let reply = self.client.function_job(&self.function, FUNCTION, JobRequest { action, job }).await?;
        Ok((begin.elapsed(), reply))
    }

    /// Starts an endless run.
    pub(super) async fn start_loop(&self) -> Outcome<JobId> {
        let (request, _) = self.request("loop", None, 0);
        Ok(self.client.execute_function(&self.function, FUNCTION, request, &[]).await?.header.job)
    }

    /// Reads the first bytes of the input, several commands at a time.
    pub(super) async fn get(&self, length: u64) -> Outcome<Vec<u8>> {
        let mut pieces = tokio::task::JoinSet::new();
        let (mut bytes, mut next) = (vec![0; usize::try_from(length)?], 0);
        loop {
            while pieces.len() < DEPTH && next < length {
                let (client, bearer, at) = (self.client.clone(), self.input.clone(), next);
                let part = usize::try_from(length - next)?.min(COMMAND_BYTES);
                pieces.spawn(async move { (at, client.read(&bearer, INPUT, at, part).await) });
                next += part as u64;
            }
            let Some(piece) = pieces.join_next().await else { return Ok(bytes) };
            let (at, piece) = piece?;
            let (at, piece) = (usize::try_from(at)?, piece?);
            let place = bytes.get_mut(at..at + piece.len()).ok_or("a read returned too many bytes")?;
            place.copy_from_slice(&piece);
        }
    }

    /// Writes bytes to the output, several commands at a time.
    pub(super) async fn put(&self, bytes: &Bytes) -> Outcome {
        let mut pieces = tokio::task::JoinSet::new();
        let mut next = 0;
        loop {
            while pieces.len() < DEPTH && next < bytes.len() {
                let part = bytes.slice(next..bytes.len().min(next + COMMAND_BYTES));
                let (client, bearer, at) = (self.client.clone(), self.output.clone(), next as u64);
                next += part.len();
                pieces.spawn(async move { client.write(&bearer, OUTPUT, at, part).await });
            }
            let Some(piece) = pieces.join_next().await else { return Ok(()) };
            piece??;
        }
    }

    /// Reads pieces of the input at random offsets until `until`; returns their times in
    /// microseconds.
    pub(super) async fn read_randomly(
        &self,
        until: Instant,
        seed: u64,
        length: u64,
        bytes: usize,
    ) -> Outcome<Vec<f64>> {
        let mut state = seed | 1;
        let mut times = Vec::new();
        while Instant::now() < until {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) % (length / bytes as u64) * bytes as u64;
            let begin = Instant::now();
            self.client.read(&self.input, INPUT, at, bytes).await?;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    }
}

fn expect_success(method: &str, reply: &ReplyParts) -> Outcome {
    let header = &reply.header;
    if header.exit == ExitReason::Success {
        return Ok(());
    }
    Err(format!("function {method} failed: {}, error {}", header.exit, header.error).into())
}
