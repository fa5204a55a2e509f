//! The objects of one file and the credentials for them.
//!
//! Does: renews all credentials of a file in one request before they expire; runs operations under
//! them; finds objects that moved to another device. For a file opened by path, follows a migration
//! to other objects.
//! Does not: know files or stripes; `put` and `get` do.
//! Contract: one renewal of a file is in progress at a time. For one command a refused credential
//! is renewed at most five times, since during a change of keys or tags a fresh one may be refused
//! too. Objects with different content of the file are never used in place of these.
//! Truth: docs/design/security.md §3.5 (client cache).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sealstone_initiator::{Bearer, Completion, Environment, Operation, OsdError, SessionError};
use sealstone_mds_protocol::{
    Device, DeviceId, ErrorCode, Failure, Grant, Layout, Method, ObjectRef, OpenHandle, PAGE_MAX, Request,
    Response,
};
use sealstone_osd::{AttributeId, ObjectId};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::{ClientError, Devices, Metadata};

/// Time before expiry at which a credential is renewed, in milliseconds.
pub const RENEW_BEFORE_MS: u64 = 5_000;
/// Pauses before the renewals for one command; their number is the limit. A device may receive a
/// new key or tag a moment after the metadata server uses it.
const RENEWAL_PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_millis(1000),
];
/// The boot epoch as an attribute of user objects, on a page of ours (docs/standards/device.md).
const BOOT_EPOCH: AttributeId = AttributeId::new(0xF003, 1);
/// Maximum pages of the device list, for 1 048 576 devices.
const DEVICE_PAGES_MAX: usize = 4096;

/// The index is not one of the layout's objects.
const OUTSIDE: ClientError = ClientError::Protocol("an object outside the layout");

/// Whether the file was truncated, migrated or removed meanwhile.
pub(crate) fn is_stale(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Stale)
}

/// Whether the file was removed, truncated or migrated meanwhile.
pub(crate) fn is_not_found_or_stale(error: &ClientError) -> bool {
    is_stale(error) || matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::NotFound)
}

fn other_objects() -> ClientError {
    Failure::new(ErrorCode::Stale, "the file was moved to other objects").into()
}

/// A device and its boot epoch. Bytes that were written in one epoch and flushed in another may be
/// lost.
pub(crate) type DeviceEpoch = (DeviceId, u16);

/// State that all transfers of a client share.
pub(crate) struct ClientCore<M, D> {
    pub(crate) metadata: M,
    pub(crate) devices: D,
    pub(crate) environment: Arc<dyn Environment>,
    /// Server's clock minus ours, in milliseconds: credentials expire by the server's clock.
    pub(crate) clock_offset_ms: Arc<AtomicI64>,
    pub(crate) known: Mutex<BTreeMap<DeviceId, Arc<Device>>>,
    pub(crate) budget: crate::MemoryBudget,
    pub(crate) buffers: crate::buffers::Buffers,
    pub(crate) tuning: crate::Tuning,
}

impl<M: Metadata, D: Devices> ClientCore<M, D> {
    /// Returns the server's time, in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.environment.now_ms().saturating_add_signed(self.clock_offset_ms.load(Ordering::Relaxed))
    }

    /// Returns the name of a device for a message; its number if the list of devices is not
    /// available.
    pub(crate) async fn device_label(&self, id: DeviceId) -> String {
        match self.device(id).await {
            Ok(device) => device.name.shown().into_owned(),
            Err(_) => format!("number {}", id.0),
        }
    }

    /// Returns a device by number; requests the device list if it is not known.
    pub(crate) async fn device(&self, id: DeviceId) -> Result<Arc<Device>, ClientError> {
        let mut known = self.known.lock().await;
        if let Some(device) = known.get(&id) {
            return Ok(device.clone());
        }
        for device in self.list_devices().await? {
            known.insert(device.id, Arc::new(device));
        }
        known.get(&id).cloned().ok_or(ClientError::UnknownDevice(id))
    }

    /// Requests the list of all devices.
    pub(crate) async fn list_devices(&self) -> Result<Vec<Device>, ClientError> {
        let mut all = Vec::new();
        let mut after = None;
        for _ in 0..DEVICE_PAGES_MAX {
            let request = Request::DeviceList { after, limit: PAGE_MAX };
            let Response::Devices { devices, more } = self.metadata.call(request).await? else {
                return Err(ClientError::OTHER_ANSWER);
            };
            let last = devices.last().map(|device| device.id);
            if last.is_some() && last <= after {
                return Err(ClientError::Protocol("device list out of order"));
            }
            all.extend(devices);
            if !more || last.is_none() {
                break;
            }
            after = last;
        }
        Ok(all)
    }
}

/// How missing bytes within the size of a file are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingData {
    /// They are lost: an error.
    Lost,
    /// They were never written and read as zeros.
    Zeros,
    /// There are no objects; all bytes read as zeros.
    All,
}

/// The objects of an open file, or of a create in progress.
pub(crate) struct OpenObjects<M, D> {
    pub(crate) core: Arc<ClientCore<M, D>>,
    pub(crate) layout: Layout,
    pub(crate) missing: MissingData,
    /// None for a capability file: then nothing is renewed.
    handle: Option<OpenHandle>,
    method: Method,
    bearers: Mutex<Bearers>,
    /// The file's generation when it was opened by path.
    generation: Option<u32>,
    /// The objects with the same content that replaced these in a migration.
    successor: OnceLock<Arc<Self>>,
}

struct Bearers {
    /// Number of renewals, so that two commands refused under one credential cause one renewal.
    generation: u64,
    expires_ms: u64,
    /// One for each object of the layout; none where a capability file has none.
    bearers: Vec<Option<Bearer>>,
    /// The location of each object, according to the credentials.
    places: Vec<ObjectLocation>,
}

/// The location of an object.
#[derive(Clone)]
struct ObjectLocation {
    device: Arc<Device>,
    object: ObjectId,
}

/// An object and a credential for it.
pub(crate) struct ObjectGrant {
    pub(crate) device: Arc<Device>,
    pub(crate) object: ObjectId,
    pub(crate) bearer: Bearer,
}

/// Everything that an operation on an object needs.
struct Ready {
    bearer: Bearer,
    generation: u64,
    /// Whether the credential was renewed by this call.
    fresh: bool,
    place: ObjectLocation,
}

impl Bearers {
    fn new(generation: u64, places: Vec<ObjectLocation>, grants: &[Grant]) -> Result<Self, ClientError> {
        let same = |(grant, place): (&Grant, &ObjectLocation)| {
            (grant.object.device, grant.object.object) == (place.device.id, place.object)
        };
        if grants.len() != places.len() || !grants.iter().zip(&places).all(same) {
            return Err(ClientError::Protocol("grants that do not match the layout"));
        }
        let bearers = grants
            .iter()
            .map(|grant| Bearer::new(grant.capability.as_slice(), grant.key.expose()).map(Some))
            .collect::<Result<_, _>>()
            .map_err(|_| ClientError::Protocol("a grant without a usable credential"))?;
        // 0 means "never" in a capability. The server issues none for files, but it would be
        // honoured.
        let expires_ms = grants
            .iter()
            .map(|grant| if grant.expires_ms == 0 { u64::MAX } else { grant.expires_ms })
            .min()
            .unwrap_or(u64::MAX);
        Ok(Self { generation, expires_ms, bearers, places })
    }
}

/// Returns the locations of objects.
async fn places<M: Metadata, D: Devices>(
    core: &ClientCore<M, D>,
    objects: &[ObjectRef],
) -> Result<Vec<ObjectLocation>, ClientError> {
    let mut places = Vec::with_capacity(objects.len());
    for object in objects {
        places.push(ObjectLocation { device: core.device(object.device).await?, object: object.object });
    }
    Ok(places)
}

impl<M: Metadata, D: Devices> OpenObjects<M, D> {
    /// Creates them from the answer to Create or Open.
    pub(crate) async fn new(
        core: Arc<ClientCore<M, D>>,
        handle: OpenHandle,
        method: Method,
        layout: Layout,
        grants: &[Grant],
    ) -> Result<Self, ClientError> {
        let places = places(&core, layout.objects()).await?;
        let bearers = Mutex::new(Bearers::new(0, places, grants)?);
        let (missing, handle, successor) = (MissingData::Lost, Some(handle), OnceLock::new());
        Ok(Self { core, layout, missing, handle, method, bearers, generation: None, successor })
    }

    /// Marks them as opened by path: `generation` identifies the content.
    pub(crate) fn of_file(mut self, generation: u32, missing: MissingData) -> Self {
        (self.generation, self.missing) = (Some(generation), missing);
        self
    }

    /// Creates them from a capability file, which has credentials for some objects of the layout.
    pub(crate) fn delegated(
        core: Arc<ClientCore<M, D>>,
        layout: Layout,
        grants: &[Grant],
        known: &BTreeMap<DeviceId, Arc<Device>>,
    ) -> Result<Self, ClientError> {
        const UNUSABLE: ClientError = ClientError::CapabilityFile("a credential in it cannot be used");
        let mut bearers = Vec::with_capacity(layout.width());
        let mut places = Vec::with_capacity(layout.width());
        for object in layout.objects() {
            let grant = grants.iter().find(|grant| grant.object == *object);
            let bearer = grant.map(|grant| Bearer::new(grant.capability.as_slice(), grant.key.expose()));
            bearers.push(bearer.transpose().map_err(|_| UNUSABLE)?);
            let device = known.get(&object.device).ok_or(ClientError::UnknownDevice(object.device))?.clone();
            places.push(ObjectLocation { device, object: object.object });
        }
        let bearers = Mutex::new(Bearers { generation: 0, expires_ms: u64::MAX, bearers, places });
        let (missing, method, successor) = (MissingData::Lost, Method::AllData, OnceLock::new());
        Ok(Self { core, layout, missing, handle: None, method, bearers, generation: None, successor })
    }

    /// Creates the objects of a file without data, which reads as zeros without any device.
    pub(crate) fn empty(core: Arc<ClientCore<M, D>>) -> Self {
        // Never accessed; a layout needs one object.
        let nowhere = ObjectRef { device: DeviceId(0), object: ObjectId::new(0, 0) };
        let bearers =
            Bearers { generation: 0, expires_ms: u64::MAX, bearers: Vec::new(), places: Vec::new() };
        Self {
            core,
            layout: Layout::single(nowhere),
            missing: MissingData::All,
            handle: None,
            method: Method::AllData,
            bearers: Mutex::new(bearers),
            generation: None,
            successor: OnceLock::new(),
        }
    }

    /// Returns these objects, or the latest ones with the same content that are known.
    pub(crate) fn latest(self: &Arc<Self>) -> Arc<Self> {
        let mut latest = self;
        while let Some(next) = latest.successor.get() {
            latest = next;
        }
        latest.clone()
    }

    /// Records other objects of the file as successor, if they have the same content.
    async fn succeed(&self, layout: Layout, generation: u32, grants: &[Grant]) -> Result<(), ClientError> {
        if let Some(handle) = self.handle.filter(|_| self.generation == Some(generation)) {
            let next = Self::new(self.core.clone(), handle, self.method, layout, grants).await?;
            _ = self.successor.set(Arc::new(next.of_file(generation, self.missing)));
        }
        Ok(())
    }

    /// Reads the boot epoch of an object's device through the object.
    pub(crate) async fn device_epoch(&self, index: usize) -> Result<DeviceEpoch, ClientError> {
        let ask = |object| Operation::GetAttributes { object, ids: vec![BOOT_EPOCH], length_max: 64 };
        let (device, answer) = self.execute_at(index, ask).await?;
        device_epoch_of(device, &answer).ok_or(ClientError::Protocol("device returned no boot epoch"))
    }

    /// As [`OpenObjects::execute`]; returns the boot epoch in which the operation ran. None if it
    /// is not known, since the answer was lost.
    pub(crate) async fn execute_in(
        &self,
        index: usize,
        mut make: impl FnMut(ObjectId) -> Operation + Send,
    ) -> Result<Option<DeviceEpoch>, ClientError> {
        let ask = |object| Operation::Asking { operation: Box::new(make(object)), ids: vec![BOOT_EPOCH] };
        let (device, answer) = self.execute_at(index, ask).await?;
        Ok(device_epoch_of(device, &answer))
    }

    /// Whether these are the known locations of the objects.
    pub(crate) async fn is_at(&self, objects: &[ObjectRef]) -> bool {
        let held = self.bearers.lock().await;
        let known = held.places.iter().map(|place| (place.device.id, place.object));
        known.eq(objects.iter().map(|object| (object.device, object.object)))
    }

    /// Returns the known device of an object.
    pub(crate) async fn device_of(&self, index: usize) -> Result<DeviceId, ClientError> {
        let held = self.bearers.lock().await;
        held.places.get(index).map(|place| place.device.id).ok_or(OUTSIDE)
    }

    /// Runs an operation on object `index`. `make` is called again after a renewed credential or a
    /// move of the object.
    pub(crate) async fn execute(
        &self,
        index: usize,
        make: impl FnMut(ObjectId) -> Operation + Send,
    ) -> Result<Completion, ClientError> {
        Ok(self.execute_at(index, make).await?.1)
    }

    async fn execute_at(
        &self,
        index: usize,
        mut make: impl FnMut(ObjectId) -> Operation + Send,
    ) -> Result<(DeviceId, Completion), ClientError> {
        let mut ready = self.ready(index, None).await?;
        let mut outcome = self.run(&ready, &mut make).await;
        // An object that is missing at its known location may have moved. Until that is ruled out
        // it must not count as a hole or be created.
        let mut sure = !matches!(self.handle, Some(OpenHandle::File { .. } | OpenHandle::Node { .. }));
        for pause in RENEWAL_PAUSES {
            let Err(error) = &outcome else { break };
            // The object may have moved, perhaps because its device is down. Objects of a create do
            // not move.
            let silent = matches!(error, OsdError::Session(SessionError::Unreachable(_)));
            let gone = !matches!(self.handle, Some(OpenHandle::Intent(_)))
                && (silent || matches!(error, OsdError::NotFound));
            if !(error.is_denied() || gone) || self.handle.is_none() {
                break;
            }
            tracing::debug!(device = ready.place.device.id.0, %error, "renewing a credential");
            if !gone {
                sleep(pause).await;
            }
            let renewed = match self.ready(index, Some(ready.generation)).await {
                Ok(renewed) => renewed,
                Err(error) if silent && !is_stale(&error) => break,
                Err(error) => return Err(error),
            };
            let moved = (renewed.place.device.id, renewed.place.object)
                != (ready.place.device.id, ready.place.object);
            // The caller retries a device that does not answer.
            if gone && !moved && (renewed.fresh || silent) {
                sure = true;
                break;
            }
            ready = renewed;
            outcome = self.run(&ready, &mut make).await;
        }
        if !sure && matches!(outcome, Err(OsdError::NotFound)) {
            return Err(Failure::new(ErrorCode::Busy, "the object keeps moving between devices").into());
        }
        let ObjectLocation { device, object } = ready.place;
        match outcome {
            Ok(completion) => Ok((device.id, completion)),
            Err(error @ OsdError::Medium { .. }) => Err(ClientError::Damaged {
                device: device.id,
                name: device.name.shown().into_owned(),
                object,
                error,
            }),
            Err(error) => {
                let name = device.name.shown().into_owned();
                Err(ClientError::Device { device: device.id, name, error })
            }
        }
    }

    async fn run(
        &self,
        ready: &Ready,
        make: &mut (impl FnMut(ObjectId) -> Operation + Send),
    ) -> Result<Completion, OsdError> {
        let operation = make(ready.place.object);
        self.core.devices.execute(&ready.place.device, &ready.bearer, operation).await
    }

    /// Returns credential and location of object `index`. Renews them if they expire soon or are of
    /// the generation `refused`.
    async fn ready(&self, index: usize, refused: Option<u64>) -> Result<Ready, ClientError> {
        let mut held = self.bearers.lock().await;
        if self.successor.get().is_some() {
            return Err(other_objects());
        }
        let about_to_expire = self.core.now_ms().saturating_add(RENEW_BEFORE_MS) >= held.expires_ms;
        let mut fresh = false;
        if let Some(handle) = self.handle
            && (about_to_expire || refused == Some(held.generation))
        {
            fresh = true;
            let request = Request::RenewGrants { handle, method: self.method };
            let Response::Grants { layout, generation, mut grants } =
                self.core.metadata.call(request).await?
            else {
                return Err(ClientError::OTHER_ANSWER);
            };
            if layout.number() != self.layout.number() {
                // Migrated, or truncated to zero and written again by another client.
                self.succeed(layout, generation, &grants).await?;
                return Err(other_objects());
            }
            // Copies that were added since the open are further objects at the end of the layout.
            if layout.is_copied() {
                grants.truncate(self.layout.width());
            }
            if grants.len() != self.layout.width() {
                return Err(ClientError::Protocol("grants that do not match the layout"));
            }
            let objects: Vec<ObjectRef> = grants.iter().map(|grant| grant.object).collect();
            let places = places(&self.core, &objects).await?;
            *held = Bearers::new(held.generation + 1, places, &grants)?;
        }
        let bearer = held.bearers.get(index).ok_or(OUTSIDE)?;
        let bearer = bearer.clone().ok_or(ClientError::NotDelegated("an object without a credential"))?;
        let place = held.places.get(index).ok_or(OUTSIDE)?.clone();
        Ok(Ready { bearer, generation: held.generation, fresh, place })
    }

    /// Returns device, object and credential of object `index`. With `renew`, a fresh credential.
    pub(crate) async fn object_grant(&self, index: usize, renew: bool) -> Result<ObjectGrant, ClientError> {
        let mut ready = self.ready(index, None).await?;
        if renew && !ready.fresh && self.handle.is_some() {
            ready = self.ready(index, Some(ready.generation)).await?;
        }
        let ObjectLocation { device, object } = ready.place;
        Ok(ObjectGrant { device, object, bearer: ready.bearer })
    }

    /// Checks that the file was not replaced or removed since the open.
    ///
    /// # Errors
    /// `Refused` with `Stale` if it was replaced or removed.
    pub(crate) async fn check_current(&self) -> Result<(), ClientError> {
        if self.handle.is_none() {
            return Ok(());
        }
        let generation = self.bearers.lock().await.generation;
        self.ready(0, Some(generation)).await.map(drop)
    }

    /// Whether the error says that an object has fewer bytes than requested.
    pub(crate) const fn is_short(error: &ClientError) -> bool {
        matches!(error, ClientError::Device { error: OsdError::ReadPastEnd { .. } | OsdError::NotFound, .. })
    }
}

/// Returns the boot epoch from an answer.
fn device_epoch_of(device: DeviceId, answer: &Completion) -> Option<DeviceEpoch> {
    let value = answer.attributes.first().and_then(|(_, value)| value.as_deref()?.try_into().ok());
    Some((device, u16::from_be_bytes(value?)))
}
