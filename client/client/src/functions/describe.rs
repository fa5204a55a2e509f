//! The description of a function: the attributes of its objects; and the engines of devices.

use bytes::Bytes;
use sealstone_initiator::{Bearer, Operation};
use sealstone_mds_protocol::{Access, ChecksumKind, DeviceId, Method, Request, Response, Stat};
use sealstone_osd::function::attributes::{
    ENGINE_ENTRY_MAX, EngineEntry, FunctionAttributes, MANIFEST_MAX, TEXT_MAX,
};
use sealstone_osd::function::{CODE_DIGEST_LEN, EngineType};
use sealstone_osd::{AttributeId, ObjectId};

use super::FunctionError;
use crate::client::file_path;
use crate::open::OpenObjects;
use crate::{Client, ClientError, Devices, Metadata, get};

/// Maximum bytes of the answer with all attributes: the values, and a header for each.
const DESCRIPTION_BYTES_MAX: usize = MANIFEST_MAX + 4 * 1024;

/// The attributes of a function, as they are stored with each copy.
pub type FunctionDescription = FunctionAttributes;

/// A function file.
#[derive(Clone, Debug)]
pub struct FunctionDetails {
    /// Attributes of the file.
    pub stat: Stat,
    /// Digest of the code as the metadata server recorded it; none for a file that is no function,
    /// or was changed since.
    pub digest: Option<[u8; CODE_DIGEST_LEN]>,
    /// The description.
    pub description: FunctionDescription,
    /// The devices that have a copy, by number and name.
    pub copies: Vec<(DeviceId, String)>,
}

/// An engine of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEngine {
    /// The engine.
    pub engine: EngineType,
    /// Its versions, and whether functions can run in it.
    pub entry: EngineEntry,
}

/// Returns the digest of the code that the metadata server recorded.
pub(super) fn recorded_digest(stat: &Stat) -> Option<[u8; CODE_DIGEST_LEN]> {
    stat.checksum.filter(|checksum| checksum.kind == ChecksumKind::Blake3).map(|checksum| checksum.value)
}

/// Checks the limits of a description.
pub(super) fn check(description: &FunctionDescription) -> Result<(), FunctionError> {
    let refused = |field, problem| Err(FunctionError::Description { field, problem });
    if description.engine.is_none() {
        return refused("engine", "a function needs an engine");
    }
    for (field, text) in [("version", &description.version), ("publisher", &description.publisher)] {
        if text.len() > TEXT_MAX {
            return refused(field, "it has more than 128 bytes");
        }
    }
    if description.manifest.len() > MANIFEST_MAX {
        return refused("manifest", "it has more than 16384 bytes");
    }
    if description.api.is_some_and(|(lowest, highest)| lowest > highest) {
        return refused("api", "the lowest version is above the highest");
    }
    Ok(())
}

/// Reads the description of an object. None if it has none.
pub(super) async fn read<M: Metadata, D: Devices>(
    objects: &OpenObjects<M, D>,
    index: usize,
) -> Result<Option<FunctionDescription>, ClientError> {
    let ask = |object| Operation::GetAttributes {
        object,
        ids: FunctionDescription::ALL.to_vec(),
        length_max: DESCRIPTION_BYTES_MAX,
    };
    let answer = objects.execute(index, ask).await?;
    let value = |id: AttributeId| {
        answer.attributes.iter().find(|(known, _)| *known == id).and_then(|(_, value)| value.as_deref())
    };
    let description = FunctionDescription::parse(value)
        .map_err(|_| ClientError::Protocol("a device returned an invalid description of a function"))?;
    Ok(description.engine.is_some().then_some(description))
}

/// Writes the description of an object durably. This flushes earlier writes of the object too.
pub(super) async fn write<M: Metadata, D: Devices>(
    objects: &OpenObjects<M, D>,
    index: usize,
    description: &FunctionDescription,
) -> Result<(), ClientError> {
    let values: Vec<(AttributeId, Bytes)> =
        description.encode().into_iter().map(|(id, value)| (id, Bytes::from(value))).collect();
    let set = |object| Operation::SetAttributes { object, values: values.clone(), durable: true };
    objects.execute(index, set).await.map(drop)
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Returns a function file with its description. Needs the right to execute it, or to read it.
    ///
    /// # Errors
    /// `NotDescribed` for a file that is no function; `Refused` with `NotFound` or `Denied` among
    /// others.
    pub async fn function(
        &self,
        path: impl AsRef<[u8]>,
        method: Method,
    ) -> Result<FunctionDetails, FunctionError> {
        let path = file_path(path)?;
        let opened = match get::open(&self.core, &path, Access::Execute, method).await {
            Err(ClientError::Refused(failure)) if failure.code.is_denial() => {
                get::open(&self.core, &path, Access::CallRead, method).await
            }
            opened => opened,
        };
        let (stat, objects) = opened?;
        let not_described = || FunctionError::NotDescribed { path: path.shown().into_owned() };
        if stat.size == 0 || !objects.layout.is_whole_in_each() {
            return Err(not_described());
        }
        let description = read(&objects, 0).await?.ok_or_else(not_described)?;
        let mut copies = Vec::with_capacity(objects.layout.width());
        for object in objects.layout.objects() {
            copies.push((object.device, self.core.device_label(object.device).await));
        }
        Ok(FunctionDetails { digest: recorded_digest(&stat), stat, description, copies })
    }

    /// Returns the engines of a device; none if it runs no functions.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others; `Device`.
    pub async fn device_engines(
        &self,
        id: DeviceId,
        method: Method,
    ) -> Result<Vec<DeviceEngine>, ClientError> {
        let device = self.core.device(id).await?;
        let request = Request::DeviceAttributes { id, method };
        let Response::DeviceGrant { grant } = self.core.metadata.call(request).await? else {
            return Err(ClientError::OTHER_ANSWER);
        };
        let bearer = Bearer::new(grant.capability.as_slice(), grant.key.expose())
            .map_err(|_| ClientError::Protocol("a grant without a usable credential"))?;
        let ids: Vec<AttributeId> = EngineType::ALL.iter().copied().map(EngineEntry::attribute).collect();
        let length_max = ids.len() * (ENGINE_ENTRY_MAX + 16) + 64;
        let ask = Operation::GetAttributes { object: ObjectId::ROOT, ids, length_max };
        let answer = self.core.devices.execute(&device, &bearer, ask).await.map_err(|error| {
            ClientError::Device { device: id, name: device.name.shown().into_owned(), error }
        })?;
        let entry = |engine: EngineType| {
            let (_, value) =
                answer.attributes.iter().find(|(id, _)| *id == EngineEntry::attribute(engine))?;
            let entry = EngineEntry::parse(value.as_deref().filter(|value| !value.is_empty())?)?;
            Some(DeviceEngine { engine, entry })
        };
        Ok(EngineType::ALL.iter().copied().filter_map(entry).collect())
    }
}
