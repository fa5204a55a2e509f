//! The two things the file logic needs: devices that do operations, and a metadata server that answers.
//!
//! Does: cut the seams, so that the logic above them runs on sockets and in a simulation alike.
//! Contract: neither implementation reads a clock or a random source that its caller did not hand in.

use core::future::Future;

use sealstone_initiator::{Bearer, Completion, Operation, OsdError};
use sealstone_mds_protocol::{Device, Request, Response};

use crate::ClientError;

/// Object storage devices, wherever they are.
pub trait Devices: Send + Sync + 'static {
    /// Does one operation on one device, under the credential of `bearer`.
    ///
    /// # Errors
    /// Any [`OsdError`]; what may be retried without changing the outcome has been retried.
    fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> impl Future<Output = Result<Completion, OsdError>> + Send;
}

/// A metadata server with a session of ours.
pub trait Metadata: Send + Sync + 'static {
    /// Asks one thing; [`Response::Failed`] comes back as an error.
    ///
    /// # Errors
    /// `Refused`, `SessionOver`, `Connection`, `OutcomeUnknown`, `Protocol`.
    fn call(&self, request: Request) -> impl Future<Output = Result<Response, ClientError>> + Send;

    /// The same server and user by a connection of its own, for a question that waits; none: such are not asked.
    fn second(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}
