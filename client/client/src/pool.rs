//! Sessions to devices, opened on first use and kept.
//!
//! Does: finds or creates the [`OsdClient`] of a device.
//! Does not: know files.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_initiator::{
    Bearer, Completion, Dial, Environment, Operation, OsdClient, OsdError, OsdOptions, Pin, SessionError,
    TargetUrl, TcpDial,
};
use sealstone_mds_protocol::{Device, DeviceId, DevicePin};

use crate::Devices;

/// Creates the connection factory of a device from its address; a simulation supplies its own.
pub type DialFactory = Box<dyn Fn(&TargetUrl, &Device) -> Result<Arc<dyn Dial>, SessionError> + Send + Sync>;

/// The client of a device at one address with one pin.
type Known = (TargetUrl, Option<DevicePin>, OsdClient);

/// The clients of all devices that were used so far.
pub struct DevicePool {
    dial: DialFactory,
    environment: Arc<dyn Environment>,
    options: OsdOptions,
    clients: Mutex<BTreeMap<DeviceId, Known>>,
}

impl DevicePool {
    /// Creates a pool over TCP, with TLS according to `options` and the pins of devices.
    #[must_use]
    pub fn tcp(environment: Arc<dyn Environment>, options: OsdOptions) -> Self {
        let policy = options.tls;
        let dial = move |url: &TargetUrl, device: &Device| {
            let dial = TcpDial::by_policy(url, device.pin.map(Pin::from), &device.system_id, policy)?;
            Ok(Arc::new(dial) as Arc<dyn Dial>)
        };
        Self::new(Box::new(dial), environment, options)
    }

    /// Creates a pool over connections that `dial` makes.
    #[must_use]
    pub fn new(dial: DialFactory, environment: Arc<dyn Environment>, options: OsdOptions) -> Self {
        Self { dial, environment, options, clients: Mutex::default() }
    }

    /// Returns the client of a device; a device with a new address or pin gets a new one.
    ///
    /// # Errors
    /// `Session` if the address cannot be parsed, or the TLS policy forbids the connection.
    pub fn client(&self, device: &Device) -> Result<OsdClient, OsdError> {
        let url: TargetUrl = device
            .url
            .as_str()
            .parse()
            .map_err(|_| SessionError::Unreachable(std::io::ErrorKind::InvalidInput))?;
        let mut clients = self.clients.lock();
        if let Some((known, pin, client)) = clients.get(&device.id)
            && (known, pin) == (&url, &device.pin)
        {
            return Ok(client.clone());
        }
        let dial = (self.dial)(&url, device)?;
        let client = OsdClient::new(dial, &url, self.environment.clone(), self.options.clone());
        clients.insert(device.id, (url, device.pin, client.clone()));
        Ok(client)
    }

    /// Logs out of all devices.
    pub async fn close(&self) {
        let clients = core::mem::take(&mut *self.clients.lock());
        for (.., client) in clients.into_values() {
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
