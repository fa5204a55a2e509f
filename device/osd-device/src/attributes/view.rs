//! Reads attributes of one object at one point in time.
//!
//! Does: values by number, whole pages, all pages.
//! Does not: check permissions or encode lists.
//! Contract: the caller has the object's lock. `None` is an undefined attribute, which is not an
//! error. A page of another object type is an error.
//! Truth: docs/design/t10-osd.md 3.1, 3.5.

use std::collections::BTreeSet;

use sealstone_crypto::dh::DhGroup;
use sealstone_digest::Profile;
use sealstone_osd::attribute::{self, page as format};
use sealstone_osd::{AttributeId, Generation, ObjectId, ObjectType};
use sealstone_seal::KeySelector;

use super::current::CurrentCommandPage;
use super::rows::{self, AttributeRow, IDENTIFICATION, LiveValue, PageKind, ValueSource, page};
use crate::catalog::{NEWEST_NONCE_MS, OLDEST_NONCE_MS, be, get, time};
use crate::commands::MemberSet;
use crate::commands::collections::{self, CollectionKind};
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::tracking_page;

/// Runs of attributes longer than this are read from the store instead of number by number.
const RUN_MAX: u32 = 64;

/// An attribute with its value.
pub(crate) type AttributePair = (AttributeId, Vec<u8>);

/// The attributes of one object at one point in time.
pub(crate) struct AttributeView<'a> {
    pub(crate) device: &'a OsdDevice,
    pub(crate) id: ObjectId,
    pub(crate) kind: ObjectType,
    pub(crate) now_ms: u64,
    pub(crate) current: &'a CurrentCommandPage,
}

impl AttributeView<'_> {
    /// Returns one attribute. Wildcards are not allowed.
    pub(crate) fn value(&self, id: AttributeId) -> Result<Option<Vec<u8>>, OsdFailure> {
        let kind = rows::sort_page(self.kind, id.page);
        if id.number == IDENTIFICATION && kind != PageKind::Application {
            return match rows::identification(self.kind, id.page) {
                None if kind == PageKind::Foreign => Err(OsdFailure::Attribute(id)),
                identification => Ok(identification.map(|bytes| bytes.to_vec())),
            };
        }
        match kind {
            PageKind::Foreign => Err(OsdFailure::Attribute(id)),
            PageKind::Empty => Ok(None),
            PageKind::CurrentCommand => Ok(self.current.value(id.number)),
            PageKind::Directory => self.page_name(id.number),
            PageKind::Application => Ok(self.get(id)?),
            PageKind::Own => match rows::row(self.kind, id) {
                Some(row) => self.own(row, id),
                None => Ok(None),
            },
        }
    }

    /// Returns every defined attribute of a page, ascending.
    pub(crate) fn page(&self, page: u32) -> Result<Vec<AttributePair>, OsdFailure> {
        match rows::sort_page(self.kind, page) {
            PageKind::Foreign => Err(OsdFailure::Attribute(AttributeId::new(page, rows::ALL))),
            PageKind::Empty => Ok(Vec::new()),
            PageKind::Application => self.stored(Some(page)),
            PageKind::CurrentCommand => self.defined(page, self.current.numbers()),
            PageKind::Directory => {
                let pages = self.pages()?;
                self.defined(page, pages.into_iter().filter(|&number| number != page))
            }
            PageKind::Own => {
                let rows = rows::page_rows(self.kind, page).unwrap_or_default();
                self.defined(page, self.own_numbers(page, rows)?)
            }
        }
    }

    /// Returns every page with a defined attribute, ascending, without the Current Command page.
    pub(crate) fn pages(&self) -> Result<BTreeSet<u32>, OsdFailure> {
        let mut pages: BTreeSet<u32> = rows::own_pages(self.kind).collect();
        pages.insert(rows::base(self.kind) + page::DIRECTORY);
        pages.extend(self.stored(None)?.iter().map(|(id, _)| id.page));
        Ok(pages)
    }

    /// Returns a page in page format, truncated to `allocation` bytes.
    pub(crate) fn page_format(
        &self,
        generation: Generation,
        page: u32,
        allocation: usize,
    ) -> Result<Vec<u8>, OsdFailure> {
        if rows::sort_page(self.kind, page) == PageKind::Foreign {
            return Err(OsdFailure::Attribute(AttributeId::new(page, rows::ALL)));
        }
        if self.kind == ObjectType::User && page == rows::USER + page::COLLECTIONS {
            return self.memberships(allocation);
        }
        let fields = format::layout(generation, page).map_or(&[][..], |layout| layout.fields);
        let mut values: Vec<(u32, Vec<u8>)> = Vec::with_capacity(fields.len());
        for field in fields {
            let (format::Field::Value { number, .. } | format::Field::Defined { number, .. }) = *field;
            if let Some(value) = self.value(AttributeId::new(page, number))? {
                values.push((number, value));
            }
        }
        let find = |number: u32| values.iter().find(|(n, _)| *n == number).map(|(_, value)| value.as_slice());
        let mut bytes = Vec::new();
        format::encode(generation, page, find, &mut bytes, allocation);
        Ok(bytes)
    }

    /// Returns the Collections page in page format.
    fn memberships(&self, allocation: usize) -> Result<Vec<u8>, OsdFailure> {
        let page = rows::USER + page::COLLECTIONS;
        let stored = self.device.store.attributes(self.id, Some(page))?;
        let collections: Vec<u64> = stored.iter().map(|(_, value)| be(value)).collect();
        let mut bytes = Vec::new();
        format::encode_memberships(&collections, &mut bytes, allocation);
        Ok(bytes)
    }

    /// Returns the identification, then the attributes of `numbers` that have a value.
    fn defined(
        &self,
        page: u32,
        numbers: impl IntoIterator<Item = u32>,
    ) -> Result<Vec<AttributePair>, OsdFailure> {
        let mut pairs = Vec::new();
        for number in core::iter::once(IDENTIFICATION).chain(numbers) {
            let id = AttributeId::new(page, number);
            if let Some(value) = self.value(id)? {
                pairs.push((id, value));
            }
        }
        Ok(pairs)
    }

    /// Returns numbers of a page of the table that may be defined: all of short runs, the stored
    /// ones of long runs.
    fn own_numbers(&self, page: u32, rows: &[AttributeRow]) -> Result<Vec<u32>, OsdFailure> {
        let is_long = |row: &&AttributeRow| row.last - row.first > RUN_MAX;
        let mut numbers: Vec<u32> =
            rows.iter().filter(|row| !is_long(row)).flat_map(|row| row.first..=row.last).collect();
        if rows.iter().any(|row| is_long(&row)) {
            let stored = self.device.store.attributes(self.id, Some(page))?.into_iter();
            let runs =
                |number| rows.iter().filter(is_long).any(|row| (row.first..=row.last).contains(&number));
            numbers.extend(stored.map(|(id, _)| id.number).filter(|&number| runs(number)));
            numbers.sort_unstable();
        }
        Ok(numbers)
    }

    /// Returns a stored attribute. The spontaneous collection is not stored and has none.
    fn get(&self, id: AttributeId) -> Result<Option<Vec<u8>>, OsdFailure> {
        if collections::is_everything(self.id) {
            return Ok(None);
        }
        Ok(get(&*self.device.store, self.id, id)?)
    }

    /// Returns the attributes that applications stored, on one page or on all.
    fn stored(&self, page: Option<u32>) -> Result<Vec<AttributePair>, OsdFailure> {
        if collections::is_everything(self.id) {
            return Ok(Vec::new());
        }
        let found = self.device.store.attributes(self.id, page)?;
        let visible = |page| rows::sort_page(self.kind, page) == PageKind::Application;
        Ok(found.into_iter().filter(|(id, _)| visible(id.page)).collect())
    }

    /// Returns a directory entry: the identification of a page, if the page exists.
    fn page_name(&self, page: u32) -> Result<Option<Vec<u8>>, OsdFailure> {
        match rows::sort_page(self.kind, page) {
            PageKind::Foreign | PageKind::Empty => Ok(None),
            PageKind::Own | PageKind::Directory | PageKind::CurrentCommand => {
                Ok(rows::identification(self.kind, page).map(|bytes| bytes.to_vec()))
            }
            PageKind::Application => {
                let identification = AttributeId::new(page, IDENTIFICATION);
                if let Some(value) = self.get(identification)? {
                    return Ok(Some(value));
                }
                let there = !self.stored(Some(page))?.is_empty();
                Ok(there.then(|| attribute::unidentified().to_vec()))
            }
        }
    }

    fn own(&self, row: &AttributeRow, id: AttributeId) -> Result<Option<Vec<u8>>, OsdFailure> {
        let defined = |value: &[u8]| (!value.is_empty()).then(|| value.to_vec());
        match row.source {
            ValueSource::Fixed(value) => Ok(defined(value)),
            ValueSource::Stored(default) => Ok(self.get(id)?.or_else(|| defined(default))),
            ValueSource::Live(live) => self.live(live, id),
        }
    }

    fn live(&self, live: LiveValue, id: AttributeId) -> Result<Option<Vec<u8>>, OsdFailure> {
        let device = self.device;
        let be = |value: u64| Ok(Some(value.to_be_bytes().to_vec()));
        let stored = |default: &[u8]| {
            let value = self.get(id)?;
            Ok(Some(value.unwrap_or_else(|| default.to_vec())))
        };
        match live {
            LiveValue::SystemId => Ok(Some(device.system_id.to_vec())),
            LiveValue::SerialNumber => Ok(Some(device.serial_number().into_bytes())),
            LiveValue::DeviceName => stored(device.name.as_bytes()),
            LiveValue::TotalCapacity => be(device.total_capacity()),
            LiveValue::SharedSpace => Ok(device.store.space().shared.map(|shared| {
                [&shared.id[..], &shared.free.to_be_bytes(), &shared.own.to_be_bytes()].concat()
            })),
            LiveValue::UsedCapacity => match self.kind {
                ObjectType::Root => be(device.store.space().used),
                ObjectType::Partition => be(self.partition_state(|partition| partition.used())?),
                // Members are counted where they are stored.
                ObjectType::Collection => be(0),
                ObjectType::User => be(device.store.stat(self.id)?.used_bytes),
            },
            LiveValue::PartitionCount => be(device.catalog.partition_count()),
            LiveValue::Clock => Ok(Some(time(self.now_ms).to_vec())),
            LiveValue::PartitionId => be(self.id.partition),
            LiveValue::ObjectId => be(self.id.object),
            LiveValue::ObjectCount => be(self.partition_state(|partition| partition.population())?),
            LiveValue::LogicalLength => be(device.store.stat(self.id)?.length),
            LiveValue::DataAccessed => match device.cache.accesses(self.id).data_ms {
                Some(ms) => Ok(Some(time(ms).to_vec())),
                None => stored(&[0; 6]),
            },
            LiveValue::AttributesAccessed => match device.cache.accesses(self.id).attributes_ms {
                Some(ms) => Ok(Some(time(ms).to_vec())),
                None => stored(&[0; 6]),
            },
            LiveValue::DataModified => match device.cache.accesses(self.id).modified_ms {
                Some(ms) => Ok(Some(time(ms).to_vec())),
                None => stored(&[0; 6]),
            },
            LiveValue::DefaultMethod => {
                let method = match self.kind {
                    ObjectType::Root => device.catalog.root().policy.default_method,
                    _ => self.partition_state(|partition| partition.policy().default_method)?,
                };
                Ok(Some(vec![method as u8]))
            }
            LiveValue::PartitionDefaultMethod => Ok(Some(vec![device.catalog.root().partition_method as u8])),
            LiveValue::SupportedMethods => Ok(Some(device.supported_methods().to_be_bytes().to_vec())),
            LiveValue::BootEpoch => Ok(Some(device.boot_epoch.to_be_bytes().to_vec())),
            LiveValue::IcvAlgorithm => {
                let slot = usize::try_from(id.number & 0xF).unwrap_or(0);
                Ok(Some(vec![device.slots.codes()[slot]]))
            }
            LiveValue::OldestNonce => stored(&time(OLDEST_NONCE_MS)),
            LiveValue::NewestNonce => stored(&time(NEWEST_NONCE_MS)),
            LiveValue::Profile => {
                Ok(Some(vec![device.store.profile(self.id.partition).map_or(0, Profile::code)]))
            }
            LiveValue::CollectionType => Ok(Some(vec![collections::kind(device, self.id)? as u8])),
            LiveValue::MemberCount => be(MemberSet::of(device, self.id)?.count(device)?),
            LiveValue::Tracking if collections::kind(device, self.id)? == CollectionKind::Tracking => {
                tracking_page::value(device, self.id, id.number)
            }
            LiveValue::Tracking => Ok(None),
            LiveValue::NonceListDepth => stored(&u16::MAX.to_be_bytes()),
            LiveValue::KeyIdentifier => Ok(self.key_identifier(id.number)),
            LiveValue::MethodCipher => Ok(device.concealment.public()),
            LiveValue::Engine => {
                let engines = device.functions.get().map(|runner| runner.engines()).unwrap_or_default();
                let wanted = engines.iter().find(|one| u32::from(one.engine.code()) == id.number);
                Ok(wanted.map(|one| one.entry.encode()))
            }
            LiveValue::DhGroup => {
                let slot = usize::try_from(id.number & 0xF).unwrap_or(0);
                Ok(Some(vec![DhGroup::ALL.get(slot).map_or(0, |group| group.code())]))
            }
        }
    }

    /// Returns the identifier of a key. It is undefined for factory keys and for keys that are not
    /// set.
    fn key_identifier(&self, number: u32) -> Option<Vec<u8>> {
        let partition = self.id.partition;
        let selector = match number {
            0x7FFD => KeySelector::Master,
            0x7FFE => KeySelector::Root,
            0x7FFF => KeySelector::Partition(partition),
            _ => KeySelector::Working { partition, version: u8::try_from(number & 0xF).unwrap_or(0) },
        };
        let keys = self.device.guard.keys.read();
        keys.identifier(selector).map(|identifier| identifier.to_vec())
    }

    fn partition_state<T>(
        &self,
        look: impl FnOnce(&crate::catalog::Partition) -> T,
    ) -> Result<T, OsdFailure> {
        let partition = self.device.catalog.partition(self.id.partition);
        partition.map(|partition| look(&partition)).ok_or(OsdFailure::Field(crate::failure::PARTITION))
    }
}
