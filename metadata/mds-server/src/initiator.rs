//! Operations of the metadata server at devices, over iSCSI.
//!
//! Does: implements [`Devices`] with one session per device, opened at first use; translates errors
//! to [`DeviceError`].

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sealstone_channel::device_name;
use sealstone_initiator::{
    Bearer, Dial, Environment, Operation, OsdClient, OsdError, OsdOptions, Proofs, SessionError,
    SystemEnvironment, TargetUrl, TcpDial, TlsError,
};
use sealstone_mds::{
    AttributeValue, DeviceAddress, KeyAction, KeyStep, RetagItem, SharedSpace, StepOutcome, object_attribute,
    partition_attributes,
};
use sealstone_mds_protocol::{DeviceId, DevicePin};
use sealstone_osd::attribute::root_information::{OSD_SYSTEM_ID, TOTAL_CAPACITY, USED_CAPACITY};
use sealstone_osd::attribute::user_information::LOGICAL_LENGTH;
use sealstone_osd::function::attributes::FunctionAttributes;
use sealstone_osd::map::{self, MapExtent};
use sealstone_osd::master_key::parse_device_value;
use sealstone_osd::{AttributeId, ObjectId};
use sealstone_seal::Credential;

use crate::devices::{Capacity, CopyResult, CopyStep, DeviceError, DeviceFuture, Devices};

/// Maximum reconnects for one operation: about 1.5 s.
const RECONNECTS_MAX: u32 = 5;

/// The boot epoch as an attribute of user objects, in a project page (docs/standards/device.md).
const BOOT_EPOCH: AttributeId = AttributeId::new(0xF003, 1);

/// Maximum extents of one request, holes included.
const EXTENTS: usize = 4096;
/// Space of a file system that the device shares with other users: a root attribute in a project
/// page.
const SHARED_SPACE: AttributeId = AttributeId::new(0x9000_F007, 1);

/// Buffer for two identifiers of 7 bytes with their headers.
const IDENTIFIERS_ROOM: usize = 256;

type Dialer = dyn Fn(&TargetUrl, &DeviceAddress) -> Arc<dyn Dial> + Send + Sync;

/// URL, pin and session of a device.
type DeviceSession = (String, Option<DevicePin>, OsdClient);

/// One session per device, created at first use and kept.
pub struct InitiatorDevices {
    sessions: Mutex<HashMap<DeviceId, DeviceSession>>,
    environment: Arc<dyn Environment>,
    dialer: Box<Dialer>,
    proofs: Proofs,
    conceal_method: bool,
}

/// Joins the entries of a map; all but holes are data. Damaged extents count as data, so that the
/// read reports the damage.
fn extents(from: u64, stretches: &[MapExtent]) -> Result<CopyResult, DeviceError> {
    let (mut data, mut end): (Vec<Range<u64>>, _) = (Vec::new(), from);
    for stretch in stretches.iter().filter(|stretch| stretch.length > 0) {
        let range = stretch.offset..stretch.offset.saturating_add(u64::from(stretch.length));
        if range.start < end {
            return Err(DeviceError::Refused("extents listed out of order".to_owned()));
        }
        end = range.end;
        match data.last_mut() {
            _ if stretch.kind == map::HOLE => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => data.push(range),
        }
    }
    Ok(CopyResult::Extents { data, next: (end > from).then_some(end) })
}

impl Default for InitiatorDevices {
    fn default() -> Self {
        Self::new(Arc::new(SystemEnvironment), Box::new(over_tcp))
    }
}

impl InitiatorDevices {
    /// Connects to devices through `dialer`.
    #[must_use]
    pub fn new(environment: Arc<dyn Environment>, dialer: Box<Dialer>) -> Self {
        Self {
            sessions: Mutex::default(),
            environment,
            dialer,
            proofs: Proofs::default(),
            conceal_method: false,
        }
    }

    /// Connects to devices over TCP, with the given clock.
    #[must_use]
    pub fn over_tcp_by(environment: Arc<dyn Environment>) -> Self {
        Self::new(environment, Box::new(over_tcp))
    }

    /// Authenticates to devices that require it (CHAP).
    #[must_use]
    pub fn proving(mut self, proofs: Proofs) -> Self {
        self.proofs = proofs;
        self
    }

    /// Conceals the method of each command, for devices that require it.
    #[must_use]
    pub const fn concealing(mut self, conceal_method: bool) -> Self {
        self.conceal_method = conceal_method;
        self
    }

    fn session(&self, device: &DeviceAddress) -> Result<OsdClient, DeviceError> {
        let mut sessions = self.sessions.lock();
        if let Some((url, pin, client)) = sessions.get(&device.id)
            && (url, pin) == (&device.url, &device.pin)
        {
            return Ok(client.clone());
        }
        let url: TargetUrl = device
            .url
            .parse()
            .map_err(|error| DeviceError::Unreachable(format!("{}: {error}", device.url)))?;
        // Housekeeping retries by itself, so an unreachable device must not delay the others.
        let mut options =
            OsdOptions { reconnects_max: RECONNECTS_MAX, ..OsdOptions::new(&*self.environment) };
        options.session.proofs = self.proofs.clone();
        options.conceal_method = self.conceal_method;
        let client = OsdClient::new((self.dialer)(&url, device), &url, self.environment.clone(), options);
        sessions.insert(device.id, (device.url.clone(), device.pin, client.clone()));
        Ok(client)
    }
}

/// Returns a TCP dialer, with TLS if the device has a pin.
fn over_tcp(url: &TargetUrl, device: &DeviceAddress) -> Arc<dyn Dial> {
    Arc::new(match device.pin {
        Some(pin) => TcpDial::sealed(url, pin.into(), device_name(&device.system_id)),
        None => TcpDial::new(url),
    })
}

fn values(attributes: &[(AttributeId, [u8; 4])]) -> Vec<(AttributeId, Bytes)> {
    attributes.iter().map(|(id, value)| (*id, Bytes::copy_from_slice(value))).collect()
}

fn bearer(credential: &Credential) -> Result<Bearer, DeviceError> {
    Bearer::of(credential).map_err(|error| DeviceError::Refused(error.to_string()))
}

fn failed(error: OsdError) -> DeviceError {
    match error {
        OsdError::Session(SessionError::Tls(TlsError::WrongCertificate { found, .. })) => {
            DeviceError::OtherCertificate(found.to_string())
        }
        OsdError::Session(SessionError::Tls(TlsError::NotByAuthority { why, .. })) => {
            DeviceError::OtherCertificate(format!("no certificate of the pinned authority: {why}"))
        }
        OsdError::Session(ref session) if session.is_denied() => DeviceError::NotAdmitted(error.to_string()),
        OsdError::Session(_) | OsdError::OutcomeUnknown { .. } | OsdError::Busy | OsdError::NotReady(_) => {
            DeviceError::Unreachable(error.to_string())
        }
        // The key is correct, but the clocks differ.
        error if error.is_about_time() => DeviceError::Refused(error.to_string()),
        OsdError::AccessDenied { .. } | OsdError::KeyFrozen | OsdError::IntegrityFailure(_) => {
            DeviceError::Denied(error.to_string())
        }
        other => DeviceError::Refused(other.to_string()),
    }
}

impl Devices for InitiatorDevices {
    fn keys<'a>(&'a self, device: &'a DeviceAddress, step: &'a KeyStep) -> DeviceFuture<'a, StepOutcome> {
        Box::pin(async move {
            let operation = match &step.action {
                KeyAction::ExchangeSeeds { set, value: data }
                | KeyAction::ChangeMaster { set, values: data } => {
                    Operation::SetMasterKey { set: *set, data_out: Bytes::copy_from_slice(data) }
                }
                KeyAction::SetKey(set) => Operation::SetKey { set: *set },
                KeyAction::CreatePartition { partition, policy } => {
                    let mut values = values(&partition_attributes());
                    values.extend(policy.iter().map(|(id, value)| (*id, Bytes::copy_from_slice(value))));
                    Operation::CreateWith { object: ObjectId::of_partition(*partition), values }
                }
                KeyAction::Identifiers { object, ids } => {
                    let length_max = IDENTIFIERS_ROOM;
                    Operation::GetAttributes { object: *object, ids: ids.clone(), length_max }
                }
            };
            let answer = self.session(device)?.execute(&bearer(&step.credential)?, operation).await;
            let done = match answer {
                Ok(done) => done,
                Err(OsdError::Exists) => return Ok(StepOutcome::Done),
                Err(OsdError::NotFound) => return Ok(StepOutcome::NoPartition),
                Err(OsdError::AccessDenied { .. }) => return Ok(StepOutcome::Denied),
                Err(error) => return Err(failed(error)),
            };
            Ok(match &step.action {
                KeyAction::ExchangeSeeds { .. } => match parse_device_value(&done.data) {
                    Some(value) => StepOutcome::Value(value.to_vec()),
                    None => {
                        return Err(DeviceError::Refused("malformed key exchange value".to_owned()));
                    }
                },
                KeyAction::Identifiers { ids, .. } => {
                    let value = |id: &AttributeId| {
                        let found = done.attributes.iter().find(|(found, _)| found == id);
                        found.and_then(|(_, value)| value.as_deref().map(<[u8]>::to_vec))
                    };
                    StepOutcome::Identifiers(ids.iter().map(value).collect())
                }
                _ => StepOutcome::Done,
            })
        })
    }

    fn capacity<'a>(
        &'a self,
        device: &'a DeviceAddress,
        credential: Credential,
    ) -> DeviceFuture<'a, Capacity> {
        Box::pin(async move {
            let ids = vec![OSD_SYSTEM_ID, TOTAL_CAPACITY, USED_CAPACITY, SHARED_SPACE];
            let values = self
                .session(device)?
                .attributes(&bearer(&credential)?, ObjectId::ROOT, ids)
                .await
                .map_err(failed)?;
            let value = |id| values.iter().find(|(found, _)| *found == id)?.1.as_deref();
            // The signed answer comes from a device that has the keys, but the address may be
            // another device's.
            if value(OSD_SYSTEM_ID) != Some(device.system_id.as_slice()) {
                return Err(DeviceError::OtherDevice);
            }
            let figure = |id| Some(u64::from_be_bytes(value(id)?.try_into().ok()?));
            match (figure(TOTAL_CAPACITY), figure(USED_CAPACITY)) {
                (Some(total), Some(used)) => {
                    let shared = value(SHARED_SPACE).and_then(SharedSpace::parse);
                    Ok(Capacity { total, used, shared })
                }
                _ => Err(DeviceError::Refused("no capacity reported".to_owned())),
            }
        })
    }

    fn tag_partition<'a>(
        &'a self,
        device: &'a DeviceAddress,
        partition: u64,
        policy: Vec<AttributeValue>,
        credential: Credential,
    ) -> DeviceFuture<'a, bool> {
        Box::pin(async move {
            let (session, bearer) = (self.session(device)?, bearer(&credential)?);
            let (object, wanted) = (ObjectId::of_partition(partition), values(&partition_attributes()));
            let ids = wanted.iter().map(|(id, _)| *id).collect();
            let found = session.attributes(&bearer, object, ids).await.map_err(failed)?;
            let has = |(id, value): &(AttributeId, Bytes)| {
                found.iter().any(|(known, is)| known == id && is.as_deref() == Some(&value[..]))
            };
            if !policy.is_empty() {
                // Durable, so that no restart of the device brings the former policy back.
                let values = policy.iter().map(|(id, value)| (*id, Bytes::copy_from_slice(value))).collect();
                let set = Operation::SetAttributes { object, values, durable: true };
                session.execute(&bearer, set).await.map_err(failed)?;
            }
            if wanted.iter().all(has) {
                return Ok(false);
            }
            let set = Operation::SetAttributes { object, values: wanted, durable: false };
            session.execute(&bearer, set).await.map_err(failed)?;
            Ok(true)
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

    fn list<'a>(
        &'a self,
        device: &'a DeviceAddress,
        partition: u64,
        from: u64,
        objects_max: usize,
        credential: Credential,
    ) -> DeviceFuture<'a, Vec<u64>> {
        Box::pin(async move {
            match self.session(device)?.list(&bearer(&credential)?, partition, from, objects_max).await {
                Ok(listed) => Ok(listed.ids),
                Err(OsdError::NotFound) => Ok(Vec::new()),
                Err(error) => Err(failed(error)),
            }
        })
    }

    fn cut<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        length: u64,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            let (session, bearer) = (self.session(device)?, bearer(&credential)?);
            let values = vec![(LOGICAL_LENGTH, Bytes::copy_from_slice(&length.to_be_bytes()))];
            let cut = Operation::SetAttributes { object, values, durable: false };
            for operation in [cut, Operation::Flush { object }] {
                match session.execute(&bearer, operation).await {
                    Ok(_) => {}
                    // Nothing was ever written to the object.
                    Err(OsdError::NotFound) => return Ok(()),
                    Err(error) => return Err(failed(error)),
                }
            }
            Ok(())
        })
    }

    fn length<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        credential: Credential,
    ) -> DeviceFuture<'a, u64> {
        Box::pin(async move {
            let (session, bearer) = (self.session(device)?, bearer(&credential)?);
            let found = match session.attributes(&bearer, object, vec![LOGICAL_LENGTH]).await {
                Ok(found) => found,
                Err(OsdError::NotFound) => return Ok(0),
                Err(error) => return Err(failed(error)),
            };
            let value =
                found.iter().find(|(id, _)| *id == LOGICAL_LENGTH).and_then(|(_, value)| value.as_deref());
            let length = value.and_then(|value| Some(u64::from_be_bytes(value.try_into().ok()?)));
            length.ok_or_else(|| DeviceError::Refused("no object length reported".to_owned()))
        })
    }

    fn copy<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        step: CopyStep,
        credential: Credential,
    ) -> DeviceFuture<'a, CopyResult> {
        Box::pin(async move {
            let (session, bearer) = (self.session(device)?, bearer(&credential)?);
            let operation = match step {
                CopyStep::Map { offset } => {
                    let list =
                        Operation::ReadMap { object, from: offset, extents_max: EXTENTS, compare: false };
                    return match session.execute(&bearer, list).await {
                        Ok(completion) => extents(offset, &completion.map),
                        Err(OsdError::NotFound) => Ok(CopyResult::Missing),
                        Err(error) => Err(failed(error)),
                    };
                }
                CopyStep::Read { offset, length } => {
                    Operation::Read { object, offset, length, buffer: Vec::new() }
                }
                CopyStep::ReadDescription => {
                    let ids = FunctionAttributes::ALL.to_vec();
                    let found = session.attributes(&bearer, object, ids).await.map_err(failed)?;
                    let present = |(id, value): (AttributeId, Option<Bytes>)| {
                        value.filter(|value| !value.is_empty()).map(|value| (id, value))
                    };
                    return Ok(CopyResult::Description(found.into_iter().filter_map(present).collect()));
                }
                CopyStep::Describe(values) => Operation::SetAttributes { object, values, durable: false },
                CopyStep::Create => Operation::Create { object },
                CopyStep::Write { offset, data } => Operation::Write { object, offset, data },
                CopyStep::Flush => Operation::Flush { object },
                CopyStep::BootEpoch => {
                    let answer =
                        session.attributes(&bearer, object, vec![BOOT_EPOCH]).await.map_err(failed)?;
                    let value = answer.first().and_then(|(_, value)| value.as_deref()?.try_into().ok());
                    let life = value.map(u16::from_be_bytes);
                    return life
                        .map(CopyResult::BootEpoch)
                        .ok_or_else(|| DeviceError::Refused("no boot epoch reported".to_owned()));
                }
            };
            let reads = matches!(operation, Operation::Read { .. });
            match session.execute(&bearer, operation).await {
                Ok(completion) if reads => Ok(CopyResult::Data(completion.data)),
                Ok(_) => Ok(CopyResult::Done),
                Err(OsdError::ReadPastEnd { data }) => Ok(CopyResult::Data(data)),
                Err(OsdError::NotFound) if reads => Ok(CopyResult::Missing),
                Err(error) => Err(failed(error)),
            }
        })
    }

    fn retag<'a>(
        &'a self,
        device: &'a DeviceAddress,
        item: RetagItem,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            let object = item.object.object;
            let (session, bearer) = (self.session(device)?, bearer(&credential)?);
            let values = values(&[object_attribute(item.tag)]);
            let set = Operation::SetAttributes { object, values: values.clone(), durable: false };
            match session.execute(&bearer, set.clone()).await {
                Ok(_) => return Ok(()),
                Err(OsdError::NotFound) if !item.creates => return Ok(()),
                Err(OsdError::NotFound) => {}
                Err(error) => return Err(failed(error)),
            }
            // Creates the object with the new tag, so that an older credential to create it finds
            // it existing.
            match session.execute(&bearer, Operation::CreateWith { object, values }).await {
                Ok(_) => Ok(()),
                Err(OsdError::Exists) => session.execute(&bearer, set).await.map(drop).map_err(failed),
                Err(error) => Err(failed(error)),
            }
        })
    }
}
