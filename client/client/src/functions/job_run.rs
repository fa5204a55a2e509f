//! One job of a call: its request, its object for a long result, its reply.
//!
//! Contract: a job that may have been started is never started again.

use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{DeviceId, ErrorCode, Failure, IntentId, Stat};
use sealstone_osd::function::{
    ARGUMENTS_MAX, EngineType, ExecuteRequest, ExitReason, FunctionObject, JobAction, JobId, JobRequest,
    JobState, OBJECTS_MAX, REPLY_MAX, RunRequest,
};
use sealstone_osd::{ObjectId, ObjectType, Permissions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zeroize::Zeroizing;

use super::call::{CallGroup, CallReply, FunctionRun, QueuedReply, RESULT_PERMIT_BYTES};
use super::copies::OpenFunction;
use super::job::{self, JobHandle, JobStatus};
use super::key_file::KeyFile;
use super::plan::{CallPart, PlannedJob};
use super::result_objects::{ResultObject, ResultObjects};
use super::{FunctionError, StartingJob};
use crate::open::{ObjectGrant, OpenObjects};
use crate::{Client, ClientError, Devices, Metadata};

/// Offset of FLAGS in the request for a run.
const FLAGS_AT: u16 = 3;
/// Offset of TIMEOUT in the request for a run.
const TIMEOUT_AT: u16 = 8;

/// A file of a call, opened.
pub(super) struct OpenData<M, D> {
    /// Number of the file in the call.
    pub(super) number: usize,
    pub(super) stat: Stat,
    pub(super) update: bool,
    /// First line, if the call needs it.
    pub(super) header: Option<String>,
    pub(super) objects: Arc<OpenObjects<M, D>>,
}

/// State that the jobs of some files share.
pub(super) struct CallState<M, D> {
    pub(super) client: Client<M, D>,
    pub(super) function: Arc<OpenFunction<M, D>>,
    pub(super) engine: Option<EngineType>,
    pub(super) files: Vec<OpenData<M, D>>,
    pub(super) call: Arc<FunctionRun>,
    pub(super) key: Option<Arc<KeyFile<M, D>>>,
    /// Permits for results, in units of [`RESULT_PERMIT_BYTES`].
    pub(super) results: Arc<Semaphore>,
    pub(super) result_objects: Arc<ResultObjects<M, D>>,
}

/// A started or ended job.
struct JobEnd {
    status: JobStatus,
    handle: JobHandle,
    result: Vec<u8>,
    receipt: Vec<u8>,
    permit: Option<OwnedSemaphorePermit>,
    reserved: Option<IntentId>,
}

impl<M: Metadata, D: Devices> CallState<M, D> {
    /// Runs one job to its end, or starts it.
    pub(super) async fn reply(&self, number: usize, group: CallGroup, planned: PlannedJob) -> QueuedReply {
        let device = self.client.core.device_label(planned.device).await;
        let arguments = self.arguments(&planned.parts);
        let (arguments, ended) = match arguments {
            Ok(arguments) => {
                let ended = self.run_job(&planned, &device, &arguments).await;
                (arguments, ended)
            }
            Err(error) => (Zeroizing::default(), Err(error)),
        };
        let (outcome, handle, result, receipt, permit, reserved) = match ended {
            Ok(JobEnd { status, handle, result, receipt, permit, reserved }) => {
                (Ok(status), Some(handle), result, receipt, permit, reserved)
            }
            Err(error) => (Err(error), None, Vec::new(), Vec::new(), None, None),
        };
        let parts = planned.parts;
        let reply =
            CallReply { number, group, device, parts, arguments, outcome, handle, result, receipt, reserved };
        (reply, permit)
    }

    /// Returns an open file by its number in the call.
    fn file(&self, number: usize) -> Result<&OpenData<M, D>, FunctionError> {
        let found = self.files.binary_search_by_key(&number, |file| file.number);
        Ok(found.ok().and_then(|at| self.files.get(at)).ok_or_else(moved)?)
    }

    /// Returns the arguments of a job: those of the call, the geometry of striped files, and the
    /// headers of tables.
    fn arguments(&self, parts: &[CallPart]) -> Result<Zeroizing<Vec<u8>>, FunctionError> {
        let mut arguments = self.call.arguments.clone();
        for (at, part) in parts.iter().enumerate() {
            if let Some(geometry) = part.geometry() {
                arguments.add(&format!("stripe.{at}"), &geometry)?;
            }
            if let Some(header) = &self.file(part.file)?.header {
                arguments.add(&format!("header.{at}"), header)?;
            }
        }
        if self.key.is_some() {
            if parts.len() >= OBJECTS_MAX {
                let what = "the number of objects of a job, with that of the key";
                return Err(FunctionError::Limit { what, max: OBJECTS_MAX as u64 });
            }
            arguments.add("key-object", &parts.len().to_string())?;
        }
        let length = arguments.bytes().len();
        if length > ARGUMENTS_MAX {
            return Err(FunctionError::ArgumentsTooLong { length, max: ARGUMENTS_MAX });
        }
        Ok(Zeroizing::new(arguments.bytes().to_vec()))
    }

    /// Runs a job to its end, with an object for a long result, or starts it.
    async fn run_job(
        &self,
        planned: &PlannedJob,
        device_name: &str,
        arguments: &Zeroizing<Vec<u8>>,
    ) -> Result<JobEnd, FunctionError> {
        let is_async = self.call.timeout_ms == 0;
        let objects = planned.parts.len() + usize::from(self.key.is_some());
        let object = match self.call.long_results && objects < OBJECTS_MAX {
            true if is_async => self.result_objects.reserve_for_job(planned.device).await,
            true => self.result_objects.take(planned.device).await,
            false => None,
        };
        let mut job = None;
        let ended = self.run_with(planned, device_name, arguments, object.as_ref(), &mut job).await;
        if let (Some(hook), Some(job), Err(error)) = (&self.call.on_start, job, &ended)
            && error.is_refusal()
        {
            (hook.forget)(job);
        }
        let Some(object) = object else { return ended };
        match ended {
            Ok(end) if is_async && (!end.status.state.is_final() || end.status.result_object.is_some()) => {
                Ok(JobEnd { reserved: Some(object.intent()), ..end })
            }
            // The job may have started, and then needs the object. Otherwise it expires.
            Err(error) if is_async && !error.is_refusal() => Err(error),
            Ok(end) if end.status.state == JobState::Done && end.status.result_object.is_none() => {
                match is_async {
                    true => self.result_objects.end(object).await,
                    false => self.result_objects.put_back(planned.device, object).await,
                }
                Ok(end)
            }
            ended => {
                self.result_objects.end(object).await;
                ended
            }
        }
    }

    /// Chooses the id of an asynchronous job, and has it recorded.
    fn record_start(
        &self,
        planned: &PlannedJob,
        device_name: &str,
        object: ObjectId,
        reserved: Option<IntentId>,
    ) -> Result<Option<JobId>, FunctionError> {
        let hook = self.call.on_start.as_ref().filter(|_| self.call.timeout_ms == 0);
        let Some(hook) = hook else { return Ok(None) };
        let mut job = JobId::NONE;
        self.client.core.environment.fill_random(&mut job.0);
        let handle = self.handle(planned.device, device_name, object, job);
        (hook.record)(&StartingJob { handle, parts: planned.parts.clone(), reserved })
            .map_err(|problem| FunctionError::NotRecorded { problem })?;
        Ok(Some(job))
    }

    fn handle(&self, device: DeviceId, device_name: &str, object: ObjectId, job: JobId) -> JobHandle {
        let function = self.function.path.clone();
        JobHandle { function, device, device_name: device_name.to_owned(), object, job }
    }

    async fn run_with(
        &self,
        planned: &PlannedJob,
        device_name: &str,
        arguments: &Zeroizing<Vec<u8>>,
        result_object: Option<&ResultObject<M, D>>,
        job: &mut Option<JobId>,
    ) -> Result<JobEnd, FunctionError> {
        let index = self.function.copy_on(planned.device).ok_or_else(moved)?;
        let (mut renew, mut result_object) = (false, result_object);
        let mut chooses_id = true;
        let (parts, object) = loop {
            let function = self.function.objects.object_grant(index, renew).await?;
            let (mut objects, mut data) = self.data(planned, renew).await?;
            if let Some(result) = result_object {
                let (entry, bearer) = result.entry(planned.device, renew).await?;
                objects.push(entry);
                data.push(bearer);
            }
            let object = function.object;
            if chooses_id && job.is_none() {
                let reserved = result_object.map(ResultObject::intent);
                *job = self.record_start(planned, device_name, object, reserved)?;
            }
            let request = RunRequest {
                engine: None,
                // The memory of the engine has the key afterwards, so it is not used again either.
                secret_arguments: self.call.secret_arguments || self.key.is_some(),
                commit_on_success: self.call.commit_on_success,
                input_digests: self.call.input_digests,
                timeout_ms: self.call.timeout_ms,
                api: self.call.api,
                digest: Some(self.function.digest),
                method: self.call.method.clone(),
                arguments: arguments.clone(),
                objects,
                result_entry: result_object.is_some(),
                job: *job,
            };
            let operation = Operation::ExecuteFunction {
                object,
                request: Box::new(ExecuteRequest::Run(request)),
                reply_max: REPLY_MAX as u32,
                data,
            };
            let done = self.client.core.devices.execute(&function.device, &function.bearer, operation).await;
            match done {
                Ok(done) => break (job::parse(&done.data)?, object),
                // Nothing was started. A credential may have been revoked or its key replaced.
                Err(error) if error.is_denied() && !renew => renew = true,
                // The timeout of an asynchronous job is 0, which is valid.
                Err(OsdError::FunctionRequestUnknown { at: TIMEOUT_AT })
                    if result_object.is_some() && self.call.timeout_ms == 0 =>
                {
                    return Err(FunctionError::ResultExpires { device: device_name.to_owned() });
                }
                // An older device knows no entry for a result, and returns short results.
                Err(OsdError::FunctionRequestUnknown { at: FLAGS_AT }) if result_object.is_some() => {
                    result_object = None;
                }
                // An older device chooses all ids.
                Err(OsdError::UnknownJob) if job.is_some() => {
                    if let (Some(hook), Some(job)) = (&self.call.on_start, job.take()) {
                        (hook.forget)(job);
                    }
                    chooses_id = false;
                }
                Err(OsdError::CodeMismatch) => {
                    return Err(FunctionError::DigestMismatch {
                        path: self.function.path.shown().into_owned(),
                    });
                }
                Err(error) => {
                    let name = device_name.to_owned();
                    let error = ClientError::Device { device: planned.device, name, error };
                    return Err(FunctionError::of_call(error, self.engine));
                }
            }
        };
        let handle = self.handle(planned.device, device_name, object, parts.header.job);
        let (status, result, receipt) = (parts.header, parts.inline, parts.receipt);
        let mut end = JobEnd { status, handle, result, receipt, permit: None, reserved: None };
        if end.status.exit == ExitReason::EngineMissing {
            return Err(FunctionError::NoEngine { device: device_name.to_owned(), engine: self.engine });
        }
        // The result of an asynchronous job is fetched later, even if it has ended.
        if end.status.state.is_final() && self.call.timeout_ms > 0 {
            self.fetch_rest(index, &mut end, result_object).await?;
        }
        Ok(end)
    }

    /// Returns the objects of a job and their credentials.
    async fn data(
        &self,
        planned: &PlannedJob,
        renew: bool,
    ) -> Result<(Vec<FunctionObject>, Vec<sealstone_initiator::Bearer>), FunctionError> {
        let mut objects = Vec::with_capacity(planned.parts.len());
        let mut bearers = Vec::with_capacity(planned.parts.len());
        for part in &planned.parts {
            let file = self.file(part.file)?;
            let ObjectGrant { device, object, bearer } = file.objects.object_grant(part.index, renew).await?;
            if device.id != planned.device {
                return Err(moved().into());
            }
            // Without GET_ATTR the function can read bytes, but no attributes.
            let has_attributes = bearer
                .capability()
                .is_none_or(|capability| capability.permissions.contains(Permissions::GET_ATTR));
            let attributes = if has_attributes { Permissions::GET_ATTR } else { Permissions::NONE };
            let reads = Permissions::READ | attributes;
            let writes = Permissions::WRITE | Permissions::OBJ_MGMT;
            let rights = if file.update { reads | writes } else { reads };
            objects.push(FunctionObject { object, kind: ObjectType::User, rights });
            bearers.push(bearer);
        }
        if let Some(key) = &self.key {
            let ObjectGrant { object, bearer, .. } = key.grant_on(planned.device, renew).await?;
            objects.push(FunctionObject { object, kind: ObjectType::User, rights: Permissions::READ });
            bearers.push(bearer);
        }
        Ok((objects, bearers))
    }

    /// Fetches the bytes of a result that were not in the reply.
    async fn fetch_rest(
        &self,
        index: usize,
        end: &mut JobEnd,
        result_object: Option<&ResultObject<M, D>>,
    ) -> Result<(), FunctionError> {
        let total = end.status.total_length;
        if total > self.call.result_max as u64 {
            return Err(FunctionError::Limit { what: "the result", max: self.call.result_max as u64 });
        }
        // A job holds no other permit of this kind, so that all of them get theirs.
        let permits = usize::try_from(total).unwrap_or(usize::MAX).div_ceil(RESULT_PERMIT_BYTES);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        end.permit = self.results.clone().acquire_many_owned(permits).await.ok();
        if let (Some(object), Some(_)) = (result_object, end.status.result_object) {
            end.result = object.read(total).await?;
            return Ok(());
        }
        while (end.result.len() as u64) < total {
            let action = JobAction::Result { offset: end.result.len() as u64 };
            let request = JobRequest { action, job: end.handle.job };
            let page = job::execute(&self.function.objects, index, &request)
                .await
                .map_err(|error| FunctionError::of_call(error, self.engine))?;
            let is_next = page.header.offset == end.result.len() as u64 && !page.inline.is_empty();
            if !is_next || page.inline.len() as u64 > total - end.result.len() as u64 {
                return Err(ClientError::Protocol("a device returned other bytes of a result").into());
            }
            end.result.extend_from_slice(&page.inline);
            if end.receipt.is_empty() {
                end.receipt = page.receipt;
            }
        }
        Ok(())
    }
}

/// An object moved to another device between planning and the start of its job.
pub(super) fn moved() -> ClientError {
    Failure::new(ErrorCode::Busy, "an object moved to another device; run the function again").into()
}
