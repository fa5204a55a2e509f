//! Sessions to devices, opened when first needed and kept.
//!
//! Does: find or make the one [`OsdClient`] of a device. Does not: know files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sealstone_initiator::{
    Bearer, Completion, Dial, Environment, Operation, OsdClient, OsdError, OsdOptions, SessionError,
    TargetUrl, TcpDial,
};
use sealstone_mds_protocol::{Device, DeviceId};

use crate::Devices;

/// Makes the way to a device from its address; a simulation supplies its own.
pub type DialFactory = Box<dyn Fn(&TargetUrl) -> Arc<dyn Dial> + Send + Sync>;

/// One client for each device that was used so far.
pub struct DevicePool {
    dial: DialFactory,
    environment: Arc<dyn Environment>,
    options: OsdOptions,
    clients: Mutex<BTreeMap<DeviceId, (TargetUrl, OsdClient)>>,
}

impl DevicePool {
    /// Devices over TCP.
    #[must_use]
    pub fn tcp(environment: Arc<dyn Environment>, options: OsdOptions) -> Self {
        Self::new(Box::new(|url| Arc::new(TcpDial::new(url))), environment, options)
    }

    /// Devices over streams that `dial` makes.
    #[must_use]
    pub fn new(dial: DialFactory, environment: Arc<dyn Environment>, options: OsdOptions) -> Self {
        Self { dial, environment, options, clients: Mutex::default() }
    }

    /// The client of one device; a device that moved gets a new one.
    ///
    /// # Errors
    /// `Session` if its address cannot be read.
    pub fn client(&self, device: &Device) -> Result<OsdClient, OsdError> {
        let url: TargetUrl = device
            .url
            .as_str()
            .parse()
            .map_err(|_| SessionError::Unreachable(std::io::ErrorKind::InvalidInput))?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, client)) = clients.get(&device.id)
            && *known == url
        {
            return Ok(client.clone());
        }
        let client = OsdClient::new((self.dial)(&url), &url, self.environment.clone(), self.options.clone());
        clients.insert(device.id, (url, client.clone()));
        Ok(client)
    }

    /// Logs out of every device.
    pub async fn close(&self) {
        let clients = core::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        for (_, client) in clients.into_values() {
            client.close().await;
        }
    }
}

impl Devices for DevicePool {
    async fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> Result<Completion, OsdError> {
        self.client(device)?.execute(bearer, operation).await
    }
}
