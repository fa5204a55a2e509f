//! The get and set attributes parameters of a command.
//!
//! Does: parse the parameters in all three formats, check them before the command's work starts,
//! set attributes, and encode the retrieved ones.
//! Does not: decide the order; `execute` does.
//! Contract: allocations are bounded by the lengths of the lists. Output beyond the allocation
//! length is truncated, but the lengths in it are those of the full output.
//! Truth: docs/design/t10-osd.md 1.5, 3.2–3.4; traps T3, T8, T9, T22, T27.

use sealstone_osd::attribute::list::{GetNames, ListError, RetrievedWriter, Values};
use sealstone_osd::cdb::{AttributeParameters, Cdb};
use sealstone_osd::{AttributeId, Generation, ObjectId, ObjectType, SecurityMethod};
use sealstone_seal::{Authentic, DeviceFacts as _, Permit};

use super::change::{self, AttributeChange};
use super::limits::{GET_LIST_MAX, SET_LIST_MAX};
use super::rows::{self, CURRENT_COMMAND, PageKind};
use super::view::{AttributePair, AttributeView};
use crate::catalog::be;
use crate::device::OsdDevice;
use crate::failure::{ATTRIBUTES, OsdFailure};
use crate::report::OsdRefusal;

/// Longest encoded list of retrieved attributes in bytes, whatever the allocation length.
const RETRIEVED_MAX: u32 = 4 * 1024 * 1024;

/// Work budget of one command in bytes. It bounds repeated names and wildcards, which are short but
/// expensive.
const WORK_MAX: u64 = 16 * 1024 * 1024;
/// Work of one lookup, in addition to the bytes that it finds.
const LOOKUP_WORK: u64 = 64;
/// Work of listing all pages of an object.
const PAGES_WORK: u64 = 1024 * 1024;
/// Work of looking up the name of an application page, which requires to check that the page
/// exists.
const PAGE_NAME_WORK: u64 = 128 * 1024;
/// Attributes that one CREATE sets on all its objects together; each object counts as one too.
const CREATED_MAX: u64 = 1 << 18;
/// Bytes of values that one CREATE sets on all its objects together.
const CREATED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Attributes to retrieve.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AttributesToGet {
    Nothing,
    Page(u32),
    List(Vec<AttributeId>),
}

/// One attribute to set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AttributeSetting<'a> {
    pub(crate) id: AttributeId,
    pub(crate) value: &'a [u8],
}

/// The get and set parameters of one command.
#[derive(Debug)]
pub(crate) struct AttributeRequest<'a> {
    pub(crate) get: AttributesToGet,
    pub(crate) set: Vec<AttributeSetting<'a>>,
    generation: Generation,
    /// Allocation length for retrieved attributes.
    pub(crate) allocation: usize,
    /// Whether the attributes are named in the CDB instead of a list. Errors then point to the CDB.
    in_cdb: bool,
}

/// Checks the length limits of the lists, before any byte of them is parsed.
pub(crate) fn check_lengths(cdb: &Cdb) -> Result<(), OsdFailure> {
    let get = cdb.attributes.get_list_segment().map_or(0, |segment| segment.length);
    let set = cdb.attributes.set_segment().map_or(0, |segment| segment.length);
    if get > GET_LIST_MAX || set > SET_LIST_MAX { Err(OsdFailure::ListLength) } else { Ok(()) }
}

impl<'a> AttributeRequest<'a> {
    /// Returns a request that sets one attribute, for a function.
    pub(crate) fn of_one(id: AttributeId, value: &'a [u8]) -> Self {
        Self {
            get: AttributesToGet::Nothing,
            set: vec![AttributeSetting { id, value }],
            generation: Generation::Osd2,
            allocation: 0,
            in_cdb: false,
        }
    }

    /// Parses the lists.
    pub(crate) fn parse(cdb: &'a Cdb, parts: &Authentic<'a>) -> Result<Self, OsdFailure> {
        let retrieved = cdb.attributes.retrieved_segment().map_or(0, |segment| segment.length);
        let mut attribute_request = Self {
            get: AttributesToGet::Nothing,
            set: Vec::new(),
            generation: cdb.generation,
            allocation: usize::try_from(retrieved.min(RETRIEVED_MAX)).unwrap_or(0),
            in_cdb: true,
        };
        match &cdb.attributes {
            AttributeParameters::One { id, length, value } => {
                let value = value.get(..usize::from(*length)).unwrap_or(value);
                attribute_request.set.push(AttributeSetting { id: *id, value });
            }
            AttributeParameters::Page { get, set } => {
                if let Some(get) = get {
                    attribute_request.get = AttributesToGet::Page(get.page);
                }
                if let Some(set) = set {
                    attribute_request
                        .set
                        .push(AttributeSetting { id: set.id, value: parts.set_attributes() });
                }
            }
            AttributeParameters::List { get, set } => {
                attribute_request.in_cdb = false;
                if let Some(get) = get {
                    let names = GetNames::parse(cdb.generation, parts.get_attributes())
                        .map_err(|error| list_failure(error, get.list.offset))?;
                    attribute_request.get = AttributesToGet::List(names.iter().collect());
                }
                if let Some(set) = set {
                    let values = Values::parse_set(cdb.generation, parts.set_attributes())
                        .map_err(|error| list_failure(error, set.offset))?;
                    attribute_request.set =
                        values.iter().map(|(id, value)| AttributeSetting { id, value }).collect();
                }
            }
        }
        Ok(attribute_request)
    }

    /// Makes an error point to the CDB or to the list, where the attribute is named.
    fn blame(&self, failure: OsdFailure) -> OsdFailure {
        match failure {
            OsdFailure::Attribute(_) if self.in_cdb => OsdFailure::Field(ATTRIBUTES),
            other => other,
        }
    }

    /// Checks that all attributes may be set on an object of this type.
    pub(crate) fn check_set(
        &self,
        device: &OsdDevice,
        object: ObjectId,
        kind: ObjectType,
        permit: &Permit,
    ) -> Result<(), OsdRefusal> {
        for setting in &self.set {
            permit.check_set(setting.id, setting.value, device)?;
            change::check(kind, setting.id, setting.value).map_err(|failure| self.blame(failure))?;
            change::check_profile(device, object, kind, setting.id, setting.value)
                .map_err(|failure| self.blame(failure))?;
            let floor = floor_behind(device, object, kind, setting.id);
            // Lowering a floor requires a credential of the level above, which no supported command
            // carries. If the operator configured a weaker minimum, the floor may be lowered to
            // that.
            let least = device.config.least_method();
            let possible = least < SecurityMethod::CmdRsp && change::wanted_method(setting.value) >= least;
            if change::lowers_floor(kind, setting.id, setting.value, floor) && !possible {
                return Err(self.blame(OsdFailure::Attribute(setting.id)).into());
            }
            if change::is_clock(kind, setting.id) {
                let now_ms = device.clock.now_ms().map_err(|_| OsdFailure::ClockNotSet)?;
                let possible = device.clock.adjustment(be(setting.value), now_ms).is_some();
                if !possible {
                    return Err(self.blame(OsdFailure::Attribute(setting.id)).into());
                }
            }
        }
        Ok(())
    }

    /// Checks that all attributes may be retrieved from an object of this type. A wildcard page
    /// skips those that may not.
    pub(crate) fn check_get(
        &self,
        device: &OsdDevice,
        kind: ObjectType,
        several: bool,
        permit: &Permit,
    ) -> Result<(), OsdRefusal> {
        let ids: &[AttributeId] = match &self.get {
            AttributesToGet::Nothing => &[],
            AttributesToGet::Page(page) if several && *page != CURRENT_COMMAND => {
                return Err(OsdFailure::ListLength.into());
            }
            AttributesToGet::Page(page) => &[AttributeId::new(*page, rows::ALL)],
            AttributesToGet::List(ids) => ids,
        };
        for &id in ids.iter().filter(|id| id.page != rows::ALL) {
            permit.check_get(id, device)?;
            if rows::sort_page(kind, id.page) == PageKind::Foreign {
                return Err(self.blame(OsdFailure::Attribute(id)).into());
            }
        }
        Ok(())
    }

    /// Whether the request changes collection memberships of the object.
    pub(crate) fn sets_memberships(&self) -> bool {
        self.set.iter().any(|setting| setting.id.page == rows::USER + rows::page::COLLECTIONS)
    }

    /// Whether the request sets attributes that a crash must not revert: tags, floors, frozen keys,
    /// nonce limits.
    pub(crate) fn sets_security(&self, kind: ObjectType) -> bool {
        self.set.iter().any(|setting| rows::is_security_page(kind, setting.id.page))
    }

    /// Whether the request sets the adjustable clock.
    pub(crate) fn sets_clock(&self, kind: ObjectType) -> bool {
        self.set.iter().any(|setting| change::is_clock(kind, setting.id))
    }

    /// LIST_ATTR: checks that there is only a get list, which selects the attributes of the
    /// entries.
    pub(crate) fn check_list(&self) -> Result<(), OsdFailure> {
        let other = matches!(self.get, AttributesToGet::Page(_)) || !self.set.is_empty();
        if other { Err(OsdFailure::Field(ATTRIBUTES)) } else { Ok(()) }
    }

    /// Sets all attributes. If one fails, cached policies still reflect those set before it.
    pub(crate) fn apply(&self, device: &OsdDevice, id: ObjectId, kind: ObjectType) -> Result<(), OsdFailure> {
        if self.set.is_empty() {
            return Ok(());
        }
        let change = AttributeChange { device, id, kind };
        let set = self.set.iter().try_for_each(|setting| change.set(setting.id, setting.value));
        let finished = change.finish();
        set.map_err(|failure| self.blame(failure)).and(finished)
    }

    /// Encodes the requested attributes of one object.
    pub(crate) fn retrieve(&self, view: &AttributeView<'_>, permit: &Permit) -> Result<Vec<u8>, OsdFailure> {
        match &self.get {
            AttributesToGet::Nothing => Ok(Vec::new()),
            AttributesToGet::Page(page) => view.page_format(self.generation, *page, self.allocation),
            AttributesToGet::List(ids) => {
                let mut bytes = Vec::new();
                let mut out = RetrievedWriter::new(self.generation, &mut bytes, self.allocation);
                each(view, ids, permit, &mut WorkBudget(WORK_MAX), |id, value| out.push(id, value))?;
                out.finish();
                Ok(bytes)
            }
        }
    }

    /// Checks that the attributes are few enough to be set on every object of a CREATE.
    pub(crate) fn check_created(&self, count: u16) -> Result<(), OsdFailure> {
        let (count, set) = (u64::from(count), self.set.len() as u64);
        let bytes: u64 = self.set.iter().map(|setting| setting.value.len() as u64).sum();
        let possible = count * (1 + set) <= CREATED_MAX && count.saturating_mul(bytes) <= CREATED_BYTES_MAX;
        if possible { Ok(()) } else { Err(OsdFailure::TooMuchWork) }
    }

    /// Encodes the requested attributes of the objects that one CREATE created. All have entries of
    /// equal length, so those beyond the allocation length need not be read.
    pub(crate) fn retrieve_created(
        &self,
        views: &[AttributeView<'_>],
        permit: &Permit,
    ) -> Result<Vec<u8>, OsdFailure> {
        let (AttributesToGet::List(_), [_, _, ..]) = (&self.get, views) else {
            return views.last().map_or(Ok(Vec::new()), |view| self.retrieve(view, permit));
        };
        let mut bytes = Vec::new();
        let mut out = RetrievedWriter::by_object(self.generation, &mut bytes, self.allocation);
        let mut one = 0;
        for (at, view) in views.iter().enumerate() {
            if at > 0 && out.full() >= self.allocation as u64 {
                out.skip((views.len() - at) as u64 * one);
                break;
            }
            let before = out.full();
            let pairs = self.pairs(view, permit)?;
            let pairs: Vec<_> = pairs.iter().map(|(id, value)| (*id, value.as_slice())).collect();
            out.push_object(view.id.object, view.kind, &pairs);
            one = out.full() - before;
        }
        out.finish();
        Ok(bytes)
    }

    /// Encodes the requested attributes of several new objects.
    pub(crate) fn retrieve_all(
        &self,
        views: &[AttributeView<'_>],
        permit: &Permit,
    ) -> Result<Vec<u8>, OsdFailure> {
        let (AttributesToGet::List(_), [_, _, ..]) = (&self.get, views) else {
            return views.last().map_or(Ok(Vec::new()), |view| self.retrieve(view, permit));
        };
        let mut bytes = Vec::new();
        let mut out = RetrievedWriter::by_object(self.generation, &mut bytes, self.allocation);
        for view in views {
            let pairs = self.pairs(view, permit)?;
            let pairs: Vec<_> = pairs.iter().map(|(id, value)| (*id, value.as_slice())).collect();
            out.push_object(view.id.object, view.kind, &pairs);
        }
        out.finish();
        Ok(bytes)
    }

    /// Returns the attributes of the get list for one object. An undefined attribute has an empty
    /// value.
    pub(crate) fn pairs(
        &self,
        view: &AttributeView<'_>,
        permit: &Permit,
    ) -> Result<Vec<AttributePair>, OsdFailure> {
        let mut pairs = Vec::new();
        if let AttributesToGet::List(ids) = &self.get {
            each(view, ids, permit, &mut WorkBudget(WORK_MAX), |id, value| pairs.push((id, value.to_vec())))?;
        }
        Ok(pairs)
    }
}

/// Converts a list error. `base` is the offset of the list in the Data-Out Buffer.
fn list_failure(error: ListError, base: u64) -> OsdFailure {
    let byte = |at: usize| u16::try_from(base.saturating_add(at as u64)).unwrap_or(u16::MAX);
    match error {
        ListError::Length { .. } => OsdFailure::ListLength,
        ListError::Type { .. } => OsdFailure::Parameter(byte(0)),
        ListError::Wildcard { at } => OsdFailure::Parameter(byte(at)),
    }
}

/// Remaining work budget of a command in bytes.
struct WorkBudget(u64);

impl WorkBudget {
    fn spend(&mut self, bytes: u64) -> Result<(), OsdFailure> {
        self.0 = self.0.checked_sub(bytes).ok_or(OsdFailure::TooMuchWork)?;
        Ok(())
    }

    fn lookup(&mut self, value: &[u8]) -> Result<(), OsdFailure> {
        self.spend(LOOKUP_WORK + value.len() as u64)
    }

    /// Spends the work of reading a page.
    fn page(&mut self, kind: ObjectType, page: u32) -> Result<(), OsdFailure> {
        let directory = rows::sort_page(kind, page) == PageKind::Directory;
        self.spend(if directory { PAGES_WORK } else { LOOKUP_WORK })
    }
}

/// Calls `found` for every attribute in a list, in its order. An undefined attribute has an empty
/// value.
fn each(
    view: &AttributeView<'_>,
    ids: &[AttributeId],
    permit: &Permit,
    work: &mut WorkBudget,
    mut found: impl FnMut(AttributeId, &[u8]),
) -> Result<(), OsdFailure> {
    let allowed = |id: AttributeId| permit.check_get(id, view.device).is_ok();
    let whole = |page: u32, work: &mut WorkBudget, found: &mut dyn FnMut(AttributeId, &[u8])| {
        work.page(view.kind, page)?;
        for (id, value) in view.page(page)? {
            work.lookup(&value)?;
            found(id, &value);
        }
        Ok::<(), OsdFailure>(())
    };
    for &id in ids {
        match (id.page, id.number) {
            (rows::ALL, number) => {
                work.spend(PAGES_WORK)?;
                for page in view.pages()? {
                    let name = AttributeId::new(page, number);
                    if !allowed(name) {
                        continue;
                    }
                    if number == rows::ALL {
                        whole(page, work, &mut found)?;
                    } else if let Some(value) = one(view, name, work)? {
                        found(name, &value);
                    }
                }
            }
            (page, rows::ALL) => whole(page, work, &mut found)?,
            _ => found(id, one(view, id, work)?.as_deref().unwrap_or_default()),
        }
    }
    Ok(())
}

fn one(
    view: &AttributeView<'_>,
    id: AttributeId,
    work: &mut WorkBudget,
) -> Result<Option<Vec<u8>>, OsdFailure> {
    let names = rows::sort_page(view.kind, id.page) == PageKind::Directory
        && rows::sort_page(view.kind, id.number) == PageKind::Application;
    if names {
        work.spend(PAGE_NAME_WORK)?;
    }
    let value = view.value(id)?;
    work.lookup(value.as_deref().unwrap_or_default())?;
    Ok(value)
}

/// Returns the current floor behind a floor attribute; NOSEC for any other attribute.
fn floor_behind(device: &OsdDevice, object: ObjectId, kind: ObjectType, id: AttributeId) -> SecurityMethod {
    let root = device.catalog.root();
    match kind {
        ObjectType::Root if id.number == 6 => root.partition_method,
        ObjectType::Root => root.policy.default_method,
        ObjectType::Partition => device.floor(ObjectId::of_partition(object.partition)),
        ObjectType::User | ObjectType::Collection => device
            .facts(object)
            .ok()
            .and_then(|facts| SecurityMethod::from_nibble(facts.method))
            .unwrap_or(SecurityMethod::NoSec),
    }
}
