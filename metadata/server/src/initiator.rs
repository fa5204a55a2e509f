//! Devices over iSCSI.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_initiator::{
    Bearer, Dial, Environment, OsdClient, OsdError, OsdOptions, Proofs, SystemEnvironment, TargetUrl, TcpDial,
};
use sealstone_mds::DeviceAddress;
use sealstone_mds_protocol::DeviceId;
use sealstone_osd::ObjectId;
use sealstone_osd::attribute::root_information::{OSD_SYSTEM_ID, TOTAL_CAPACITY, USED_CAPACITY};
use sealstone_seal::Credential;

use crate::devices::{Capacity, DeviceError, DeviceFuture, Devices};

/// Times that a lost connection is made again for one operation: a second and a half.
const RECONNECTS_MAX: u32 = 5;

type Dialer = dyn Fn(&TargetUrl) -> Arc<dyn Dial> + Send + Sync;

/// One session per device, made when it is first needed and kept.
pub struct InitiatorDevices {
    sessions: Mutex<HashMap<DeviceId, (String, OsdClient)>>,
    environment: Arc<dyn Environment>,
    dialer: Box<Dialer>,
    proofs: Proofs,
}

impl Default for InitiatorDevices {
    fn default() -> Self {
        Self::new(Arc::new(SystemEnvironment), Box::new(|url| Arc::new(TcpDial::new(url))))
    }
}

impl InitiatorDevices {
    /// Devices reached as `dialer` says.
    #[must_use]
    pub fn new(environment: Arc<dyn Environment>, dialer: Box<Dialer>) -> Self {
        Self { sessions: Mutex::default(), environment, dialer, proofs: Proofs::default() }
    }

    /// Proves itself to devices that ask who logs in.
    #[must_use]
    pub fn proving(mut self, proofs: Proofs) -> Self {
        self.proofs = proofs;
        self
    }

    fn session(&self, device: &DeviceAddress) -> Result<OsdClient, DeviceError> {
        let mut sessions = self.sessions.lock();
        if let Some((url, client)) = sessions.get(&device.id)
            && *url == device.url
        {
            return Ok(client.clone());
        }
        let url: TargetUrl = device
            .url
            .parse()
            .map_err(|error| DeviceError::Unreachable(format!("{}: {error}", device.url)))?;
        // Housekeeping comes round again by itself; a device that is away must not hold up the others.
        let mut options =
            OsdOptions { reconnects_max: RECONNECTS_MAX, ..OsdOptions::new(&*self.environment) };
        options.session.proofs = self.proofs.clone();
        let client = OsdClient::new((self.dialer)(&url), &url, self.environment.clone(), options);
        sessions.insert(device.id, (device.url.clone(), client.clone()));
        Ok(client)
    }
}

fn bearer(credential: &Credential) -> Result<Bearer, DeviceError> {
    Bearer::of(credential).map_err(|error| DeviceError::Refused(error.to_string()))
}

fn failed(error: OsdError) -> DeviceError {
    match error {
        OsdError::Session(ref session) if session.is_denied() => DeviceError::NotAdmitted(error.to_string()),
        OsdError::Session(_) | OsdError::OutcomeUnknown { .. } | OsdError::Busy | OsdError::NotReady(_) => {
            DeviceError::Unreachable(error.to_string())
        }
        OsdError::AccessDenied { .. } | OsdError::KeyFrozen | OsdError::IntegrityFailure(_) => {
            DeviceError::Denied(error.to_string())
        }
        other => DeviceError::Refused(other.to_string()),
    }
}

impl Devices for InitiatorDevices {
    fn create_partition<'a>(
        &'a self,
        device: &'a DeviceAddress,
        partition: u64,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            match self.session(device)?.create_partition(&bearer(&credential)?, partition).await {
                Ok(_) | Err(OsdError::Exists) => Ok(()),
                Err(error) => Err(failed(error)),
            }
        })
    }

    fn capacity<'a>(
        &'a self,
        device: &'a DeviceAddress,
        credential: Credential,
    ) -> DeviceFuture<'a, Capacity> {
        Box::pin(async move {
            let ids = vec![OSD_SYSTEM_ID, TOTAL_CAPACITY, USED_CAPACITY];
            let values = self
                .session(device)?
                .attributes(&bearer(&credential)?, ObjectId::ROOT, ids)
                .await
                .map_err(failed)?;
            let value = |id| values.iter().find(|(found, _)| *found == id)?.1.as_deref();
            // The answer is signed, so it comes from whoever holds the keys; still, say it if the address is wrong.
            if value(OSD_SYSTEM_ID) != Some(device.system_id.as_slice()) {
                return Err(DeviceError::OtherDevice);
            }
            let figure = |id| Some(u64::from_be_bytes(value(id)?.try_into().ok()?));
            match (figure(TOTAL_CAPACITY), figure(USED_CAPACITY)) {
                (Some(total), Some(used)) => Ok(Capacity { total, used }),
                _ => Err(DeviceError::Refused("it does not tell its capacity".to_owned())),
            }
        })
    }

    fn remove<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            match self.session(device)?.remove(&bearer(&credential)?, object).await {
                Ok(()) | Err(OsdError::NotFound) => Ok(()),
                Err(error) => Err(failed(error)),
            }
        })
    }
}
