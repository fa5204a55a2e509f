//! What the metadata server does at devices, over iSCSI: prepare, measure, remove.

use std::sync::Arc;

use sealstone_client::SystemEnvironment;
use sealstone_initiator::{Bearer, OsdClient, OsdError, OsdOptions, TargetUrl, TcpDial};
use sealstone_mds::DeviceAddress;
use sealstone_mds_server::{Capacity, DeviceError, DeviceFuture, Devices};
use sealstone_osd::{AttributeId, ObjectId};
use sealstone_seal::Credential;
use tokio::sync::Mutex;

/// Root Information page (T10 OSD-2 §7.1.3.8).
const ROOT_INFORMATION: u32 = 0x9000_0001;
const OSD_SYSTEM_ID: AttributeId = AttributeId::new(ROOT_INFORMATION, 3);
const TOTAL_CAPACITY: AttributeId = AttributeId::new(ROOT_INFORMATION, 0x80);
const USED_CAPACITY: AttributeId = AttributeId::new(ROOT_INFORMATION, 0x81);

/// Sessions with devices, kept open between rounds.
#[derive(Default)]
pub(crate) struct OverIscsi {
    clients: Mutex<std::collections::BTreeMap<String, OsdClient>>,
}

impl OverIscsi {
    async fn client(&self, device: &DeviceAddress) -> Result<OsdClient, DeviceError> {
        let mut clients = self.clients.lock().await;
        if let Some(client) = clients.get(&device.url) {
            return Ok(client.clone());
        }
        let url: TargetUrl =
            device.url.parse().map_err(|error| DeviceError::Unreachable(format!("{}: {error}", device.url)))?;
        let environment = Arc::new(SystemEnvironment);
        let options = OsdOptions::new(&*environment);
        let client = OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment, options);
        clients.insert(device.url.clone(), client.clone());
        Ok(client)
    }
}

fn bearer(credential: &Credential) -> Result<Bearer, DeviceError> {
    Bearer::of(credential).map_err(|error| DeviceError::Refused(error.to_string()))
}

fn translate(error: OsdError) -> DeviceError {
    match error {
        OsdError::Session(_) | OsdError::Busy | OsdError::NotReady(_) | OsdError::OutcomeUnknown { .. } => {
            DeviceError::Unreachable(error.to_string())
        }
        other => DeviceError::Refused(other.to_string()),
    }
}

impl Devices for OverIscsi {
    fn create_partition<'a>(
        &'a self,
        device: &'a DeviceAddress,
        partition: u64,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            let client = self.client(device).await?;
            match client.create_partition(&bearer(&credential)?, partition).await {
                Ok(_) | Err(OsdError::Exists) => Ok(()),
                Err(error) => Err(translate(error)),
            }
        })
    }

    fn capacity<'a>(&'a self, device: &'a DeviceAddress, credential: Credential) -> DeviceFuture<'a, Capacity> {
        Box::pin(async move {
            let client = self.client(device).await?;
            let wanted = vec![OSD_SYSTEM_ID, TOTAL_CAPACITY, USED_CAPACITY];
            let values =
                client.attributes(&bearer(&credential)?, ObjectId::ROOT, wanted).await.map_err(translate)?;
            let value = |id: AttributeId| {
                values.iter().find(|(found, _)| *found == id).and_then(|(_, value)| value.as_deref()).unwrap_or_default()
            };
            let number = |id| {
                value(id)
                    .try_into()
                    .map(u64::from_be_bytes)
                    .map_err(|_| DeviceError::Refused("capacity attributes are missing".into()))
            };
            // The answer is signed, so it comes from whoever holds the keys; still, say it if the address moved.
            if value(OSD_SYSTEM_ID) != device.system_id {
                return Err(DeviceError::Refused("another device answers at this address".into()));
            }
            Ok(Capacity { total: number(TOTAL_CAPACITY)?, used: number(USED_CAPACITY)? })
        })
    }

    fn remove<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            let client = self.client(device).await?;
            match client.remove(&bearer(&credential)?, object).await {
                Ok(()) | Err(OsdError::NotFound) => Ok(()),
                Err(error) => Err(translate(error)),
            }
        })
    }
}
