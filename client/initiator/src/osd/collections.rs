//! Commands on collections: drafts, answers, and methods of [`OsdClient`].
//!
//! Truth: t10-osd §1.8, §1.9, §3.3.

use bytes::Bytes;
use sealstone_osd::attribute::list::{self, ObjectValues};
use sealstone_osd::cdb::{
    ContainerScope, CreateTracking, FlushContainer, List, Members, Query, RemoveCollection, Target,
};
use sealstone_osd::continuation::{PROOF_LEN, Segment};
use sealstone_osd::listing::{MATCHES_HEADER, parse_matches};
use sealstone_osd::query::{Criterion, QueryList, QueryType};
use sealstone_osd::{AttributeId, Command, Generation, ObjectId};

use super::assemble::CommandDraft;
use super::bearer::Bearer;
use super::client::OsdClient;
use crate::collections::COLLECTIONS_PAGE;
use crate::operation::{ATTRIBUTES_LENGTH_MAX, LIST_IDS_MAX};
use crate::{CollectionOperation, Listed, MemberAttributes, Operation, OsdError, QueryCriteria};

/// Bytes before the ids of a LIST COLLECTION.
const LIST_HEADER: usize = sealstone_osd::listing::HEADER;

fn bounded(what: &'static str, actual: usize, max: usize) -> Result<(), OsdError> {
    if actual > max { Err(OsdError::TooLong { what, actual, max }) } else { Ok(()) }
}

/// Returns the command of an operation.
pub(super) fn draft(generation: Generation, what: &CollectionOperation) -> Result<CommandDraft, OsdError> {
    let plain = |command| CommandDraft::new(command, Bytes::new());
    Ok(match what {
        CollectionOperation::Create { collection } => {
            plain(Command::CreateCollection(Target { object: *collection }))
        }
        CollectionOperation::Track { collection, source, reading, immediate } => {
            let command = Command::CreateTrackingCollection(CreateTracking {
                object: *collection,
                source: *source,
                immediate: *immediate,
            });
            match reading {
                Some(reading) if *source != 0 => continued(command, Segment::default(), Some(reading))?,
                _ => plain(command),
            }
        }
        CollectionOperation::Remove { collection, force } => {
            let remove = RemoveCollection { object: *collection, force: *force };
            CommandDraft { durable: true, ..plain(Command::RemoveCollection(remove)) }
        }
        CollectionOperation::List { collection, from, ids_max } => {
            bounded("a list", *ids_max, LIST_IDS_MAX)?;
            plain(Command::ListCollection(List {
                object: *collection,
                list_id: 0,
                allocation: (LIST_HEADER + 8 * ids_max) as u64,
                initial: *from,
                with_attributes: false,
            }))
        }
        CollectionOperation::Flush { collection } => plain(Command::FlushCollection(FlushContainer {
            object: *collection,
            scope: ContainerScope::Everything,
        })),
        CollectionOperation::Query { collection, question, ids_max } => {
            bounded("a list", *ids_max, LIST_IDS_MAX)?;
            let allocation = (MATCHES_HEADER + 8 * ids_max) as u64;
            query(Query { object: *collection, allocation, matches: 0, immediate: false }, question, None)?
        }
        CollectionOperation::QueryInto { collection, question, matches, filling, immediate } => {
            let immediate = *immediate;
            let into = Query { object: *collection, allocation: 0, matches: *matches, immediate };
            query(into, question, filling.as_ref())?
        }
        CollectionOperation::GetMemberAttributes { collection, ids, length_max } => {
            bounded("an attribute list", *length_max, ATTRIBUTES_LENGTH_MAX)?;
            let command = Command::GetMemberAttributes(Members { object: *collection, immediate: false });
            CommandDraft {
                get: list::encode_get(generation, ids),
                retrieved_max: *length_max as u32,
                ..plain(command)
            }
        }
        CollectionOperation::SetMemberAttributes { collection, values, immediate } => {
            let set = list::encode_set(generation, values.iter().map(|(id, value)| (*id, &value[..])));
            bounded("an attribute list", set.len(), ATTRIBUTES_LENGTH_MAX)?;
            let members = Members { object: *collection, immediate: *immediate };
            CommandDraft { set, ..plain(Command::SetMemberAttributes(members)) }
        }
        CollectionOperation::RemoveMembers { collection, immediate } => {
            let members = Members { object: *collection, immediate: *immediate };
            CommandDraft { durable: true, ..plain(Command::RemoveMemberObjects(members)) }
        }
    })
}

fn query(query: Query, question: &QueryCriteria, filling: Option<&Bearer>) -> Result<CommandDraft, OsdError> {
    let criteria = question.criteria.iter();
    let criteria = criteria.map(|one| Criterion { id: one.id, min: &one.min, max: &one.max }).collect();
    let kind = if question.any { QueryType::Union } else { QueryType::Intersection };
    let cannot = OsdError::Malformed("the query cannot be encoded");
    let encoded = QueryList { kind, criteria }.encode().ok_or(cannot)?;
    continued(Command::Query(query), Segment { query: Some(encoded), ..Segment::default() }, filling)
}

/// A command with its continuation segment, and in it the capability for a second collection.
fn continued(
    command: Command,
    mut segment: Segment,
    further: Option<&Bearer>,
) -> Result<CommandDraft, OsdError> {
    if let Some(further) = further {
        segment.extensions = vec![*further.capability_bytes()];
        segment.proofs = vec![[0; PROOF_LEN]];
    }
    let cannot = OsdError::Malformed("the command cannot be encoded");
    let continuation = segment.encode(command.row().osd2.unwrap_or_default()).ok_or(cannot)?;
    let extensions = further.cloned().into_iter().collect();
    Ok(CommandDraft { continuation, extensions, ..CommandDraft::new(command, Bytes::new()) })
}

/// The ids that a QUERY found, and how many there are in all.
pub(super) fn matches(data: &[u8], ids_max: usize) -> Result<(Listed, u64), OsdError> {
    const SHORT: OsdError = OsdError::Malformed("the answer to a query");
    let mut ids = parse_matches(data).ok_or(SHORT)?;
    let length: &[u8; 8] = data.first_chunk().ok_or(SHORT)?;
    ids.truncate(ids_max);
    if !ids.is_sorted() {
        return Err(SHORT);
    }
    // The header counts 4 bytes, in older drafts 5.
    let total = u64::from_be_bytes(*length) / 8;
    Ok((Listed { ids, next: None }, total))
}

/// The attributes of all members, as far as there was room; the last one may be cut.
pub(super) fn members(attributes: &[u8]) -> Result<Vec<MemberAttributes>, OsdError> {
    if attributes.is_empty() {
        return Ok(Vec::new());
    }
    let all = ObjectValues::parse(attributes).map_err(|_| OsdError::Malformed("the members' attributes"))?;
    let owned = |value: &[u8]| (!value.is_empty()).then(|| Bytes::copy_from_slice(value));
    Ok(all
        .map(|one| MemberAttributes {
            object: one.object,
            attributes: one.values.iter().map(|(id, value)| (id, owned(value))).collect(),
        })
        .collect())
}

/// The commands on collections.
impl OsdClient {
    /// Runs any operation on a collection.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn on_collection(
        &self,
        bearer: &Bearer,
        what: CollectionOperation,
    ) -> Result<crate::Completion, OsdError> {
        self.execute(bearer, Operation::Collection(what)).await
    }

    /// Runs CREATE COLLECTION; object number 0 lets the device choose. Returns the collection's id.
    ///
    /// # Errors
    /// `Exists` among others.
    pub async fn create_collection(
        &self,
        bearer: &Bearer,
        collection: ObjectId,
    ) -> Result<ObjectId, OsdError> {
        let done = self.on_collection(bearer, CollectionOperation::Create { collection }).await?;
        Ok(done.created.unwrap_or(collection))
    }

    /// Runs REMOVE COLLECTION; the members stay.
    ///
    /// # Errors
    /// `NotEmpty`, unless `force`, among others.
    pub async fn remove_collection(
        &self,
        bearer: &Bearer,
        collection: ObjectId,
        force: bool,
    ) -> Result<(), OsdError> {
        self.on_collection(bearer, CollectionOperation::Remove { collection, force }).await.map(drop)
    }

    /// Runs LIST COLLECTION: lists members, or with object number 0 the collections of a partition,
    /// from `from` on.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn list_collection(
        &self,
        bearer: &Bearer,
        collection: ObjectId,
        from: u64,
        ids_max: usize,
    ) -> Result<Listed, OsdError> {
        let done =
            self.on_collection(bearer, CollectionOperation::List { collection, from, ids_max }).await?;
        done.listed.ok_or(OsdError::Malformed("the list of ids"))
    }

    /// Runs QUERY: returns members that match, and the number of all matches.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn query(
        &self,
        bearer: &Bearer,
        collection: ObjectId,
        question: QueryCriteria,
        ids_max: usize,
    ) -> Result<(Vec<u64>, u64), OsdError> {
        let done =
            self.on_collection(bearer, CollectionOperation::Query { collection, question, ids_max }).await?;
        let listed = done.listed.ok_or(OsdError::Malformed("the answer to a query"))?;
        Ok((listed.ids, done.matches_total.unwrap_or(0)))
    }

    /// Makes `object` a member of a collection, in membership `number`; collection 0 removes that
    /// membership.
    ///
    /// # Errors
    /// `NoSpace` beyond the quota, among others.
    pub async fn join(
        &self,
        bearer: &Bearer,
        object: ObjectId,
        number: u32,
        collection: u64,
    ) -> Result<(), OsdError> {
        let value = match collection {
            0 => Bytes::new(),
            _ => Bytes::copy_from_slice(&collection.to_be_bytes()),
        };
        self.set_attributes(bearer, object, vec![(AttributeId::new(COLLECTIONS_PAGE, number), value)]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_panics(data: Vec<u8>, ids_max in 0usize..100) {
            let _ = (matches(&data, ids_max), members(&data));
        }
    }

    #[test]
    fn truncated_answer_reports_number_of_matches() {
        let mut data = sealstone_osd::listing::matches_header(100).to_vec();
        data.extend([5_u64, 7].iter().flat_map(|id| id.to_be_bytes()));
        let (listed, total) = matches(&data, 2).unwrap();
        assert_eq!((listed.ids, total), (vec![5, 7], 100));
    }

    #[test]
    fn query_criteria_are_in_continuation_segment() {
        let collection = ObjectId::new(0x1_0000, 0x2_0000);
        let id = AttributeId::new(0x1_0000, 1);
        let within = crate::AttributeRange { id, min: Bytes::from_static(b"a"), max: Bytes::new() };
        let question = QueryCriteria { any: true, criteria: vec![within] };
        let what = CollectionOperation::Query { collection, question, ids_max: 10 };
        let draft = draft(Generation::Osd2, &what).unwrap();
        let segment = Segment::parse(&draft.command, &draft.continuation).unwrap();
        let bytes = segment.query.unwrap();
        let list = QueryList::parse(&bytes).unwrap();
        assert_eq!((list.kind, list.criteria[0].id, list.criteria[0].min), (QueryType::Union, id, &b"a"[..]));
    }
}
