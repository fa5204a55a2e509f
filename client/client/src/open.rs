//! The objects of one file and the credentials for them, renewed before they expire.
//!
//! Does: hold grants, renew all of them in one request, run operations under them; follow an object to another device when it is
//! moved there, and a file that was carried over to other objects, for who has it open by its path.
//! Does not: know files or stripes; `put` and `get` do.
//! Contract: at most one renewal of a file is under way; for one command a refused credential is renewed
//! five times at most: while keys or tags are being changed, one that was fresh may be refused again. An object that
//! moved to another device is found there by the same renewal; one that belongs to another content of the file is not
//! taken for it.
//! Truth: security.md §3.5 (client cache).

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

/// A credential is renewed this long before it expires, milliseconds.
pub const RENEW_BEFORE_MS: u64 = 5_000;
/// Before each renewal for one command, and thereby how many there are at most: a device may hear of a new key or tag a
/// moment after the metadata server uses it.
const RENEWAL_PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_millis(1000),
];
/// The boot epoch as an attribute of user objects, a page of ours (docs/standards/device.md).
const BOOT_EPOCH: AttributeId = AttributeId::new(0xF003, 1);
/// Pages of the device list read at most: as many devices as that are 1 048 576.
const DEVICE_PAGES_MAX: usize = 4096;

/// Somebody asks for an object that the layout does not have.
const OUTSIDE: ClientError = ClientError::Protocol("an object outside the layout");

/// Was the file cut, carried over or removed meanwhile?
pub(crate) fn is_stale(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Stale)
}

/// Is what it was about not there any more?
pub(crate) fn is_gone(error: &ClientError) -> bool {
    is_stale(error) || matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::NotFound)
}

fn other_objects() -> ClientError {
    Failure::new(ErrorCode::Stale, "the file has other objects meanwhile").into()
}

/// A life of a device: which device, and its boot epoch. What was written in one and flushed in another may be lost.
pub(crate) type Life = (DeviceId, u16);

/// What all transfers of a client share.
pub(crate) struct Core<M, D> {
    pub(crate) metadata: M,
    pub(crate) devices: D,
    pub(crate) environment: Arc<dyn Environment>,
    /// Server's clock minus ours, milliseconds: grants speak of the server's clock.
    pub(crate) clock_offset_ms: Arc<AtomicI64>,
    pub(crate) known: Mutex<BTreeMap<DeviceId, Arc<Device>>>,
    pub(crate) budget: crate::MemoryBudget,
    pub(crate) buffers: crate::buffers::Buffers,
    pub(crate) tuning: crate::Tuning,
}

impl<M: Metadata, D: Devices> Core<M, D> {
    /// The server's clock, milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.environment.now_ms().saturating_add_signed(self.clock_offset_ms.load(Ordering::Relaxed))
    }

    /// Returns the name of a device for a message; its number if the list of devices is not available.
    pub(crate) async fn device_label(&self, id: DeviceId) -> String {
        match self.device(id).await {
            Ok(device) => device.name.shown().into_owned(),
            Err(_) => format!("number {}", id.0),
        }
    }

    /// A device by number; an unknown one makes us ask for the list again.
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

    /// Every device that the server knows.
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
                return Err(ClientError::Protocol("the device list does not ascend"));
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

/// What is it if bytes within the size of a file are not in its objects?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// A loss.
    Lost,
    /// Zeros: nobody wrote them.
    Zeros,
    /// The same of all of it: there are no objects.
    All,
}

/// An open file, or a create under way, as its objects.
pub(crate) struct OpenObjects<M, D> {
    pub(crate) core: Arc<Core<M, D>>,
    pub(crate) layout: Layout,
    pub(crate) missing: Missing,
    /// None: by a capability file; nothing is renewed.
    handle: Option<OpenHandle>,
    method: Method,
    bearers: Mutex<Bearers>,
    /// Of the file, when it was opened by its path.
    generation: Option<u32>,
    /// The objects of the same content that took the place of these.
    successor: OnceLock<Arc<Self>>,
}

struct Bearers {
    /// Counts renewals, so that two commands refused under one credential make one renewal.
    generation: u64,
    expires_ms: u64,
    /// One per object of the layout; none where a capability file has none.
    bearers: Vec<Option<Bearer>>,
    /// Where each object is, as the credentials say.
    places: Vec<Place>,
}

/// Where an object is.
#[derive(Clone)]
struct Place {
    device: Arc<Device>,
    object: ObjectId,
}

/// What an operation on an object needs.
struct Ready {
    bearer: Bearer,
    generation: u64,
    /// Was the metadata server asked for it just now?
    fresh: bool,
    place: Place,
}

impl Bearers {
    fn new(generation: u64, places: Vec<Place>, grants: &[Grant]) -> Result<Self, ClientError> {
        let same = |(grant, place): (&Grant, &Place)| {
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
        // 0 means "never" in a capability; the server gives none of those for files, but it would be honoured.
        let expires_ms = grants
            .iter()
            .map(|grant| if grant.expires_ms == 0 { u64::MAX } else { grant.expires_ms })
            .min()
            .unwrap_or(u64::MAX);
        Ok(Self { generation, expires_ms, bearers, places })
    }
}

/// Where objects are.
async fn places<M: Metadata, D: Devices>(
    core: &Core<M, D>,
    objects: &[ObjectRef],
) -> Result<Vec<Place>, ClientError> {
    let mut places = Vec::with_capacity(objects.len());
    for object in objects {
        places.push(Place { device: core.device(object.device).await?, object: object.object });
    }
    Ok(places)
}

impl<M: Metadata, D: Devices> OpenObjects<M, D> {
    /// Takes over what Create or Open answered.
    pub(crate) async fn new(
        core: Arc<Core<M, D>>,
        handle: OpenHandle,
        method: Method,
        layout: Layout,
        grants: &[Grant],
    ) -> Result<Self, ClientError> {
        let places = places(&core, layout.objects()).await?;
        let bearers = Mutex::new(Bearers::new(0, places, grants)?);
        let (missing, handle, successor) = (Missing::Lost, Some(handle), OnceLock::new());
        Ok(Self { core, layout, missing, handle, method, bearers, generation: None, successor })
    }

    /// The same of a file that was opened by its path: `generation` tells its content from another one.
    pub(crate) fn of_file(mut self, generation: u32, missing: Missing) -> Self {
        (self.generation, self.missing) = (Some(generation), missing);
        self
    }

    /// By a capability file: some objects of the layout, nothing to be renewed.
    pub(crate) fn delegated(
        core: Arc<Core<M, D>>,
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
            places.push(Place { device, object: object.object });
        }
        let bearers = Mutex::new(Bearers { generation: 0, expires_ms: u64::MAX, bearers, places });
        let (missing, method, successor) = (Missing::Lost, Method::AllData, OnceLock::new());
        Ok(Self { core, layout, missing, handle: None, method, bearers, generation: None, successor })
    }

    /// A file without objects: all of it is zeros, and no device is asked.
    pub(crate) fn empty(core: Arc<Core<M, D>>) -> Self {
        // Never asked for; it makes the arithmetic of one object.
        let nowhere = ObjectRef { device: DeviceId(0), object: ObjectId::new(0, 0) };
        let bearers =
            Bearers { generation: 0, expires_ms: u64::MAX, bearers: Vec::new(), places: Vec::new() };
        Self {
            core,
            layout: Layout::single(nowhere),
            missing: Missing::All,
            handle: None,
            method: Method::AllData,
            bearers: Mutex::new(bearers),
            generation: None,
            successor: OnceLock::new(),
        }
    }

    /// These objects, or those that have the same content now, as far as is known here.
    pub(crate) fn latest(self: &Arc<Self>) -> Arc<Self> {
        let mut latest = self;
        while let Some(next) = latest.successor.get() {
            latest = next;
        }
        latest.clone()
    }

    /// The file has other objects. Is it the same content in another shape?
    async fn succeed(&self, layout: Layout, generation: u32, grants: &[Grant]) -> Result<(), ClientError> {
        if let Some(handle) = self.handle.filter(|_| self.generation == Some(generation)) {
            let next = Self::new(self.core.clone(), handle, self.method, layout, grants).await?;
            _ = self.successor.set(Arc::new(next.of_file(generation, self.missing)));
        }
        Ok(())
    }

    /// The life of an object's device, asked of the object.
    pub(crate) async fn life(&self, index: usize) -> Result<Life, ClientError> {
        let ask = |object| Operation::GetAttributes { object, ids: vec![BOOT_EPOCH], length_max: 64 };
        let (device, answer) = self.execute_at(index, ask).await?;
        told_life(device, &answer).ok_or(ClientError::Protocol("a device that does not tell its boot epoch"))
    }

    /// Runs an operation as [`OpenObjects::execute`] does; also tells in which life of its device it was done. None if that
    /// is not known, since the answer was lost.
    pub(crate) async fn execute_in(
        &self,
        index: usize,
        mut make: impl FnMut(ObjectId) -> Operation + Send,
    ) -> Result<Option<Life>, ClientError> {
        let ask = |object| Operation::Asking { operation: Box::new(make(object)), ids: vec![BOOT_EPOCH] };
        let (device, answer) = self.execute_at(index, ask).await?;
        Ok(told_life(device, &answer))
    }

    /// Are the objects where these are, as far as is known here?
    pub(crate) async fn is_at(&self, objects: &[ObjectRef]) -> bool {
        let held = self.bearers.lock().await;
        let known = held.places.iter().map(|place| (place.device.id, place.object));
        known.eq(objects.iter().map(|object| (object.device, object.object)))
    }

    /// The device that an object is on, as far as is known here.
    pub(crate) async fn device_of(&self, index: usize) -> Result<DeviceId, ClientError> {
        let held = self.bearers.lock().await;
        held.places.get(index).map(|place| place.device.id).ok_or(OUTSIDE)
    }

    /// Runs an operation on object `index`; `make` is called again if a refused credential is renewed, or if the object is
    /// somewhere else by now.
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
        // Is an object that is not where it was known to be nowhere? Else nobody may take that for a hole, or make it there.
        let mut sure = !matches!(self.handle, Some(OpenHandle::File { .. } | OpenHandle::Node { .. }));
        for pause in RENEWAL_PAUSES {
            let Err(error) = &outcome else { break };
            // It may have moved, and its old device with it; what is being created stays where it is.
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
            // One that is silent is waited for by whoever asked, not here again.
            if gone && !moved && (renewed.fresh || silent) {
                sure = true;
                break;
            }
            ready = renewed;
            outcome = self.run(&ready, &mut make).await;
        }
        if !sure && matches!(outcome, Err(OsdError::NotFound)) {
            return Err(Failure::new(ErrorCode::Busy, "an object that moves again and again").into());
        }
        let Place { device, object } = ready.place;
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

    /// What object `index` is reached with; renewed if it is about to expire or is of the generation `refused`.
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
            let Response::Grants { layout, generation, grants } = self.core.metadata.call(request).await?
            else {
                return Err(ClientError::OTHER_ANSWER);
            };
            if layout.number() != self.layout.number() {
                // Carried over, or cut to nothing and written anew by somebody else.
                self.succeed(layout, generation, &grants).await?;
                return Err(other_objects());
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

    /// Is the file still what it was when it was opened?
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

    /// Is this what a device says when an object has fewer bytes than asked for?
    pub(crate) const fn is_short(error: &ClientError) -> bool {
        matches!(error, ClientError::Device { error: OsdError::ReadPastEnd { .. } | OsdError::NotFound, .. })
    }
}

/// What a device said of its boot epoch.
fn told_life(device: DeviceId, answer: &Completion) -> Option<Life> {
    let value = answer.attributes.first().and_then(|(_, value)| value.as_deref()?.try_into().ok());
    Some((device, u16::from_be_bytes(value?)))
}
