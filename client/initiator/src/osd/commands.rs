//! Methods of [`OsdClient`] for single commands.

use bytes::Bytes;
use sealstone_osd::cdb::Rewrite;
use sealstone_osd::function::paper::PaperRequest;
use sealstone_osd::function::{ExecuteRequest, JobRequest, REPLY_MAX, ReplyParts, RunRequest};
use sealstone_osd::map::MapExtent;
use sealstone_osd::rewrite::RewriteOperation;
use sealstone_osd::{AttributeId, ObjectId};

use super::bearer::Bearer;
use super::client::OsdClient;
use crate::operation::MAP_EXTENTS_MAX;
use crate::{Listed, Operation, OsdError};

/// One method for each command.
impl OsdClient {
    /// Runs CREATE PARTITION; id 0 lets the device choose. Returns the id.
    ///
    /// # Errors
    /// As [`OsdClient::execute`], as do all typed commands.
    pub async fn create_partition(&self, bearer: &Bearer, partition: u64) -> Result<u64, OsdError> {
        let done = self.execute(bearer, Operation::CreatePartition { partition }).await?;
        Ok(done.created.map_or(partition, |created| created.partition))
    }

    /// Runs REMOVE PARTITION; the partition must be empty.
    ///
    /// # Errors
    /// `NotEmpty` among others.
    pub async fn remove_partition(&self, bearer: &Bearer, partition: u64) -> Result<(), OsdError> {
        self.execute(bearer, Operation::RemovePartition { partition }).await.map(drop)
    }

    /// Runs CREATE; object number 0 lets the device choose. Returns the object's id.
    ///
    /// # Errors
    /// `Exists` among others.
    pub async fn create(&self, bearer: &Bearer, object: ObjectId) -> Result<ObjectId, OsdError> {
        let done = self.execute(bearer, Operation::Create { object }).await?;
        Ok(done.created.unwrap_or(object))
    }

    /// Runs CREATE AND WRITE; object number 0 lets the device choose. Returns the object's id.
    ///
    /// # Errors
    /// `Exists`, `NoSpace` among others.
    pub async fn create_and_write(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        offset: u64,
        data: Bytes,
    ) -> Result<ObjectId, OsdError> {
        let done = self.execute(bearer, Operation::CreateAndWrite { object, offset, data }).await?;
        Ok(done.created.unwrap_or(object))
    }

    /// Runs WRITE.
    ///
    /// # Errors
    /// `NoSpace` among others.
    pub async fn write(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        offset: u64,
        data: Bytes,
    ) -> Result<(), OsdError> {
        self.execute(bearer, Operation::Write { object, offset, data }).await.map(drop)
    }

    /// Runs APPEND. Returns the offset of the bytes.
    ///
    /// # Errors
    /// `OutcomeUnknown` among others.
    pub async fn append(&self, bearer: &Bearer, object: ObjectId, data: Bytes) -> Result<u64, OsdError> {
        let done = self.execute(bearer, Operation::Append { object, data }).await?;
        done.appended_at.ok_or(OsdError::Malformed("no offset in the answer to APPEND"))
    }

    /// Runs READ: returns exactly `length` bytes.
    ///
    /// # Errors
    /// `ReadPastEnd` with the existing bytes, among others.
    pub async fn read(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, OsdError> {
        let operation = Operation::Read { object, offset, length, buffer: Vec::new() };
        Ok(self.execute(bearer, operation).await?.data)
    }

    /// Runs CLEAR, which zeroes a range.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn clear(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        offset: u64,
        length: u64,
    ) -> Result<(), OsdError> {
        self.execute(bearer, Operation::Clear { object, offset, length }).await.map(drop)
    }

    /// Runs PUNCH, which removes a range.
    ///
    /// # Errors
    /// `OutcomeUnknown` among others.
    pub async fn punch(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        offset: u64,
        length: u64,
    ) -> Result<(), OsdError> {
        self.execute(bearer, Operation::Punch { object, offset, length }).await.map(drop)
    }

    /// Runs REMOVE.
    ///
    /// # Errors
    /// `NotFound`, `OutcomeUnknown` among others.
    pub async fn remove(&self, bearer: &Bearer, object: ObjectId) -> Result<(), OsdError> {
        self.execute(bearer, Operation::Remove { object }).await.map(drop)
    }

    /// Runs FLUSH: returns when the object is durable.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn flush(&self, bearer: &Bearer, object: ObjectId) -> Result<(), OsdError> {
        self.execute(bearer, Operation::Flush { object }).await.map(drop)
    }

    /// Runs FLUSH PARTITION: returns when the partition and everything in it is durable.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn flush_partition(&self, bearer: &Bearer, partition: u64) -> Result<(), OsdError> {
        self.execute(bearer, Operation::FlushPartition { partition }).await.map(drop)
    }

    /// Runs FLUSH OSD: returns when everything is durable.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn flush_osd(&self, bearer: &Bearer) -> Result<(), OsdError> {
        self.execute(bearer, Operation::FlushOsd).await.map(drop)
    }

    /// Runs LIST: returns ids in a partition, or of partitions with partition 0, from `from` on.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn list(
        &self,
        bearer: &Bearer,
        partition: u64,
        from: u64,
        ids_max: usize,
    ) -> Result<Listed, OsdError> {
        let done = self.execute(bearer, Operation::List { partition, from, ids_max }).await?;
        done.listed.ok_or(OsdError::Malformed("the list of ids"))
    }

    /// Runs GET ATTRIBUTES; returns at most 64 KiB of attributes in the requested order.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn attributes(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        ids: Vec<AttributeId>,
    ) -> Result<Vec<(AttributeId, Option<Bytes>)>, OsdError> {
        let operation = Operation::GetAttributes { object, ids, length_max: 64 << 10 };
        Ok(self.execute(bearer, operation).await?.attributes)
    }

    /// Runs SET ATTRIBUTES.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn set_attributes(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        values: Vec<(AttributeId, Bytes)>,
    ) -> Result<(), OsdError> {
        self.execute(bearer, Operation::SetAttributes { object, values, durable: false }).await.map(drop)
    }

    /// Runs FORMAT OSD, which erases everything.
    ///
    /// # Errors
    /// `OutcomeUnknown` among others.
    pub async fn format(&self, bearer: &Bearer, capacity: u64) -> Result<(), OsdError> {
        self.execute(bearer, Operation::FormatOsd { capacity }).await.map(drop)
    }

    /// Runs COPY USER OBJECTS; returns the copy's id. `reading` is the credential to read the
    /// source.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NoSpace`, `OutcomeUnknown` among others.
    pub async fn copy(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        source: ObjectId,
        attributes: bool,
        reading: &Bearer,
    ) -> Result<ObjectId, OsdError> {
        let operation = Operation::Copy { object, source, attributes, reading: reading.clone() };
        Ok(self.execute(bearer, operation).await?.created.unwrap_or(object))
    }

    /// Runs CREATE SNAPSHOT; id 0 lets the device choose. Returns the id.
    ///
    /// # Errors
    /// `OutcomeUnknown` among others, as do all commands on snapshots and clones.
    pub async fn create_snapshot(
        &self,
        bearer: &Bearer,
        partition: u64,
        source: u64,
    ) -> Result<u64, OsdError> {
        let done = self.execute(bearer, Operation::CreateSnapshot { partition, source }).await?;
        Ok(done.created.map_or(partition, |created| created.partition))
    }

    /// Runs CREATE CLONE; id 0 lets the device choose. Returns the id.
    ///
    /// # Errors
    /// As [`OsdClient::create_snapshot`].
    pub async fn create_clone(&self, bearer: &Bearer, partition: u64, source: u64) -> Result<u64, OsdError> {
        let done = self.execute(bearer, Operation::CreateClone { partition, source }).await?;
        Ok(done.created.map_or(partition, |created| created.partition))
    }

    /// Runs DETACH CLONE.
    ///
    /// # Errors
    /// As [`OsdClient::create_snapshot`].
    pub async fn detach_clone(&self, bearer: &Bearer, partition: u64) -> Result<(), OsdError> {
        self.execute(bearer, Operation::DetachClone { partition }).await.map(drop)
    }

    /// Runs REFRESH SNAPSHOT OR CLONE.
    ///
    /// # Errors
    /// As [`OsdClient::create_snapshot`].
    pub async fn refresh(&self, bearer: &Bearer, partition: u64) -> Result<(), OsdError> {
        self.execute(bearer, Operation::Refresh { partition }).await.map(drop)
    }

    /// Runs RESTORE PARTITION FROM SNAPSHOT.
    ///
    /// # Errors
    /// As [`OsdClient::create_snapshot`].
    pub async fn restore(&self, bearer: &Bearer, partition: u64, snapshot: u64) -> Result<(), OsdError> {
        self.execute(bearer, Operation::Restore { partition, snapshot }).await.map(drop)
    }

    /// Runs READ MAP: returns extents from a byte on; continue from the end of the last one.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn map(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        from: u64,
    ) -> Result<Vec<MapExtent>, OsdError> {
        let extents_max = MAP_EXTENTS_MAX;
        let operation = Operation::ReadMap { object, from, extents_max, compare: false };
        Ok(self.execute(bearer, operation).await?.map)
    }

    /// Runs READ MAPS AND COMPARE: returns where an object differs from the one that it was
    /// duplicated from.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn differences(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        from: u64,
    ) -> Result<Vec<MapExtent>, OsdError> {
        let operation = Operation::ReadMap { object, from, extents_max: MAP_EXTENTS_MAX, compare: true };
        Ok(self.execute(bearer, operation).await?.map)
    }

    /// Runs OBJECT STRUCTURE CHECK; the findings are in the Error Recovery attributes.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn check_structure(&self, bearer: &Bearer, object: ObjectId) -> Result<(), OsdError> {
        self.execute(bearer, Operation::CheckStructure { object }).await.map(drop)
    }

    /// Runs REWRITE; returns the requested result.
    ///
    /// # Errors
    /// `OutcomeUnknown` among others; a failed condition is a refusal with MISCOMPARE.
    pub async fn rewrite(
        &self,
        bearer: &Bearer,
        rewrite: Rewrite,
        operations: Vec<(RewriteOperation, Bytes)>,
        values: Vec<(AttributeId, Bytes)>,
    ) -> Result<Vec<u8>, OsdError> {
        Ok(self.execute(bearer, Operation::Rewrite { rewrite, operations, values }).await?.data)
    }

    /// Runs EXECUTE FUNCTION on a function object. `data` has the credentials for the object
    /// entries of the request, in their order.
    ///
    /// # Errors
    /// `AccessDenied`, `NotImplemented` without the engine, `Busy` beyond the job limits, and
    /// `OutcomeUnknown` among others. A function that failed is no error: the reply has its state.
    pub async fn execute_function(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        request: RunRequest,
        data: &[Bearer],
    ) -> Result<ReplyParts, OsdError> {
        self.function_request(bearer, object, ExecuteRequest::Run(request), data.to_vec()).await
    }

    /// Runs EXECUTE FUNCTION with the descriptor of the ASF paper (0003h). Each of `data` is a
    /// handle of the function, with the rights of that credential.
    ///
    /// # Errors
    /// `PaperFunctionsOff` if the options of this client do not permit it, `NotImplemented` by a
    /// device without the paper profile, and as [`OsdClient::execute_function`].
    pub async fn execute_paper_function(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        request: PaperRequest,
        data: &[Bearer],
    ) -> Result<ReplyParts, OsdError> {
        let (request, reply_max) = (Box::new(request), REPLY_MAX as u32);
        let operation = Operation::ExecutePaperFunction { object, request, reply_max, data: data.to_vec() };
        let done = self.execute(bearer, operation).await?;
        ReplyParts::parse(&done.data).map_err(|_| OsdError::Malformed("the reply to EXECUTE FUNCTION"))
    }

    /// Runs EXECUTE FUNCTION about a job of a function object: status, wait, cancel, log, result.
    ///
    /// # Errors
    /// As [`OsdClient::execute_function`].
    pub async fn function_job(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        request: JobRequest,
    ) -> Result<ReplyParts, OsdError> {
        self.function_request(bearer, object, ExecuteRequest::Job(request), Vec::new()).await
    }

    async fn function_request(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        request: ExecuteRequest,
        data: Vec<Bearer>,
    ) -> Result<ReplyParts, OsdError> {
        let (request, reply_max) = (Box::new(request), REPLY_MAX as u32);
        let operation = Operation::ExecuteFunction { object, request, reply_max, data };
        let done = self.execute(bearer, operation).await?;
        ReplyParts::parse(&done.data).map_err(|_| OsdError::Malformed("the reply to EXECUTE FUNCTION"))
    }
}
