//! The two interfaces that the file logic needs: devices and a metadata server.
//!
//! Does: separates the logic from sockets, so that it also runs in a simulation.
//! Contract: implementations read no clock or random source except those that their caller passed
//! in.

use core::future::Future;

use sealstone_initiator::{Bearer, Completion, Operation, OsdError};
use sealstone_mds_protocol::{Device, Request, Response};

use crate::ClientError;

/// Object storage devices.
pub trait Devices: Send + Sync + 'static {
    /// Runs one operation on one device, with the credential of `bearer`.
    ///
    /// # Errors
    /// Any [`OsdError`]. Idempotent operations were already retried.
    fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> impl Future<Output = Result<Completion, OsdError>> + Send;
}

/// A metadata server with a session.
pub trait Metadata: Send + Sync + 'static {
    /// Sends one request; [`Response::Failed`] is returned as an error.
    ///
    /// # Errors
    /// `Refused`, `SessionOver`, `Connection`, `OutcomeUnknown`, `Protocol`.
    fn call(&self, request: Request) -> impl Future<Output = Result<Response, ClientError>> + Send;

    /// Returns a separate connection with the same session, for a long-polling request; none if
    /// such requests are not supported.
    fn second(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}
