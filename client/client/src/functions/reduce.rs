//! Reduction: a second function that runs on a device, on the results of the jobs of a call.
//!
//! Does: writes the results to a reserved object on a device that has the function, runs it there,
//! and abandons the object.
//! Contract: the function has one object to read, with all results one after the other. No other
//! user can read it: it has no name, and the server removes it after the run.

use std::sync::Arc;

use sealstone_mds_protocol::DeviceId;
use sealstone_osd::function::{ApiVersion, OBJECTS_MAX};
use tokio::sync::Semaphore;

use super::call::{
    CallGroup, CallReply, FunctionRun, RESULT_PERMIT_BYTES, RESULT_RESERVED_MAX, RESULTS_BYTES_MAX,
};
use super::copies::OpenFunction;
use super::job_run::{CallState, OpenData};
use super::plan::{CallPart, PlannedJob};
use super::result_objects::ResultObjects;
use super::{CallGrouping, FunctionError};
use crate::client::file_path;
use crate::put::write_bytes;
use crate::{Client, Devices, Metadata};

impl FunctionRun {
    /// Runs the function on bytes instead of files, on a device that has a copy of it. A busy
    /// device is replaced by the next one.
    ///
    /// # Errors
    /// `Limit` for more than [`RESULTS_BYTES_MAX`] bytes; those of a call, and of a reservation.
    pub async fn run_on_bytes<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        bytes: &[u8],
    ) -> Result<CallReply, FunctionError> {
        self.check()?;
        if bytes.len() > RESULTS_BYTES_MAX {
            let what = "the bytes of all results that a function reduces";
            return Err(FunctionError::Limit { what, max: RESULTS_BYTES_MAX as u64 });
        }
        let path = file_path(&self.function)?;
        let function = Arc::new(OpenFunction::open(client, &path, self.security).await?);
        let api = self.api_for(function.description().await.ok().as_ref());
        let devices: Vec<DeviceId> =
            function.objects.layout.objects().iter().map(|object| object.device).collect();
        let mut outcome = None;
        for device in devices.into_iter().take(OBJECTS_MAX) {
            let reply = self.run_there(client, &function, (device, api), bytes).await;
            let is_busy = match &reply {
                Ok(reply) => {
                    matches!(reply.outcome, Err(FunctionError::Busy { .. } | FunctionError::NoEngine { .. }))
                }
                // The device takes no new objects, for example.
                Err(FunctionError::Client(_)) => true,
                Err(_) => false,
            };
            outcome = Some(reply);
            if !is_busy {
                break;
            }
        }
        outcome.unwrap_or_else(|| Err(FunctionError::NotWhole { path: path.shown().into_owned() }))
    }

    async fn run_there<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        function: &Arc<OpenFunction<M, D>>,
        (device, api): (DeviceId, ApiVersion),
        bytes: &[u8],
    ) -> Result<CallReply, FunctionError> {
        let size = bytes.len() as u64;
        let input = ResultObjects::new(&client.core, &function.path, self.security, size.max(1));
        let object = input.reserve_on(device).await?;
        let objects = object.objects().clone();
        let ran = async {
            write_bytes(objects.clone(), bytes).await?;
            let mut stat = function.stat.clone();
            stat.size = size;
            let file = OpenData { number: 0, stat, update: false, header: None, objects };
            let reserved = self.result_max.clamp(1, RESULT_RESERVED_MAX) as u64;
            let result_objects = ResultObjects::new(&client.core, &function.path, self.security, reserved);
            let call = Self { files: Vec::new(), grouping: CallGrouping::PerFile, api, ..self.clone() };
            let state = CallState {
                client: client.clone(),
                function: Arc::clone(function),
                engine: None,
                files: vec![file],
                call: Arc::new(call),
                key: None,
                results: Arc::new(Semaphore::new(RESULTS_BYTES_MAX / RESULT_PERMIT_BYTES)),
                result_objects: result_objects.clone(),
            };
            let part = CallPart { file: 0, index: 0, unit: None, width: 1, size };
            let planned = PlannedJob { device, parts: vec![part] };
            let group = CallGroup { first_file: 0, replies: 1 };
            let (reply, _) = state.reply(0, group, planned).await;
            result_objects.end_all().await;
            Ok(reply)
        };
        let ran = ran.await;
        input.end(object).await;
        ran
    }
}
