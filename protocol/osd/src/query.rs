//! QUERY: the list of criteria, and the list of matches (OSD-2 §6.20, §5.4.3).
//!
//! Source of truth: `docs/standards/osd.md`, query.

use alloc::vec::Vec;

use thiserror::Error;

use crate::AttributeId;
use crate::bytes::{u8_at, u16_at, u32_at};

/// Maximum number of criteria of a query.
pub const CRITERIA_MAX: usize = 64;

/// How criteria combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryType {
    /// Any of them.
    Union,
    /// All of them.
    Intersection,
}

/// One criterion: an attribute within inclusive bounds; an empty bound is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criterion<'a> {
    /// The attribute, of a user object page.
    pub id: AttributeId,
    /// Lower bound.
    pub min: &'a [u8],
    /// Upper bound.
    pub max: &'a [u8],
}

impl Criterion<'_> {
    /// Whether a value is within the bounds. Values compare as byte strings; an undefined (empty)
    /// one matches nothing.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        let above = self.min.is_empty() || value >= self.min;
        let below = self.max.is_empty() || value <= self.max;
        !value.is_empty() && above && below
    }
}

/// A query list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryList<'a> {
    /// How criteria combine.
    pub kind: QueryType,
    /// The criteria; none selects every member.
    pub criteria: Vec<Criterion<'a>>,
}

/// Why bytes are not a query list; `0` is the offset of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    /// A query type other than union and intersection.
    #[error("unknown query type {0}")]
    Type(u8),
    /// An entry that is truncated or has contradictory lengths.
    #[error("malformed query entry at byte {0}")]
    Entry(usize),
    /// An attribute that is not of a user object page.
    #[error("query entry at byte {0} is not for user objects")]
    Page(usize),
    /// More criteria than [`CRITERIA_MAX`].
    #[error("more than {CRITERIA_MAX} query criteria")]
    TooMany,
}

/// First page that is not a user object's.
const USER_PAGES_END: u32 = 0x3000_0000;
/// Bytes of the list's header.
const HEADER: usize = 4;
/// ENTRY LENGTH counts the bytes after it.
const ENTRY_LENGTH_END: usize = 4;

impl<'a> QueryList<'a> {
    /// Parses a query list; zero bytes at the end (an entry length of 0) are padding.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, QueryError> {
        let kind = match u8_at(bytes, 0).ok_or(QueryError::Entry(0))? & 0x0F {
            0 => QueryType::Union,
            1 => QueryType::Intersection,
            other => return Err(QueryError::Type(other)),
        };
        let mut criteria = Vec::new();
        let mut at = HEADER;
        while bytes.get(at..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0)) {
            if criteria.len() == CRITERIA_MAX {
                return Err(QueryError::TooMany);
            }
            let (criterion, length) = entry(&bytes[at..]).ok_or(QueryError::Entry(at))?;
            if criterion.id.page >= USER_PAGES_END {
                return Err(QueryError::Page(at));
            }
            criteria.push(criterion);
            at += length;
        }
        Ok(Self { kind, criteria })
    }

    /// Returns the wire form, padded with zeros to a multiple of 8; `None` beyond the limits of its
    /// length fields.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let kind = match self.kind {
            QueryType::Union => 0,
            QueryType::Intersection => 1,
        };
        let mut out = alloc::vec![kind, 0, 0, 0];
        if self.criteria.len() > CRITERIA_MAX {
            return None;
        }
        for Criterion { id, min, max } in &self.criteria {
            let (min_len, max_len) = (u16::try_from(min.len()).ok()?, u16::try_from(max.len()).ok()?);
            let entry_len = u16::try_from(12 + min.len() + max.len()).ok()?;
            out.extend([0, 0]);
            out.extend(entry_len.to_be_bytes());
            out.extend(id.page.to_be_bytes());
            out.extend(id.number.to_be_bytes());
            out.extend(min_len.to_be_bytes());
            out.extend_from_slice(min);
            out.extend(max_len.to_be_bytes());
            out.extend_from_slice(max);
        }
        out.resize(out.len().next_multiple_of(8), 0);
        Some(out)
    }

    /// Whether a member matches, given the values of its attributes (empty if undefined).
    #[must_use]
    pub fn matches<'v>(&self, mut value: impl FnMut(AttributeId) -> &'v [u8]) -> bool {
        match self.kind {
            _ if self.criteria.is_empty() => true,
            QueryType::Union => self.criteria.iter().any(|one| one.matches(value(one.id))),
            QueryType::Intersection => self.criteria.iter().all(|one| one.matches(value(one.id))),
        }
    }
}

/// Parses one entry; returns it with its whole length.
fn entry(bytes: &[u8]) -> Option<(Criterion<'_>, usize)> {
    let whole = ENTRY_LENGTH_END + usize::from(u16_at(bytes, 2)?);
    let bytes = bytes.get(..whole)?;
    let id = AttributeId::new(u32_at(bytes, 4)?, u32_at(bytes, 8)?);
    let min = bytes.get(14..)?.get(..usize::from(u16_at(bytes, 12)?))?;
    let max_at = 14 + min.len();
    let max = bytes.get(max_at + 2..)?.get(..usize::from(u16_at(bytes, max_at)?))?;
    (max_at + 2 + max.len() == whole).then_some((Criterion { id, min, max }, whole))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: AttributeId = AttributeId::new(0x1_0003, 1);

    #[test]
    fn bounds_are_inclusive_and_empty_ones_unlimited() {
        let one = |min, max| Criterion { id: ID, min, max };
        assert!(
            one(b"b", b"d").matches(b"b") && one(b"b", b"d").matches(b"d") && !one(b"b", b"d").matches(b"e")
        );
        assert!(one(b"", b"d").matches(b"a") && one(b"b", b"").matches(b"z") && !one(b"", b"").matches(b""));
    }

    #[test]
    fn no_criteria_select_everything_and_types_combine() {
        let (low, high) =
            (Criterion { id: ID, min: b"a", max: b"b" }, Criterion { id: ID, min: b"x", max: b"z" });
        let query = |kind, criteria| QueryList { kind, criteria };
        assert!(query(QueryType::Union, std::vec![]).matches(|_| b""));
        assert!(query(QueryType::Union, std::vec![low, high]).matches(|_| b"y"));
        assert!(!query(QueryType::Intersection, std::vec![low, high]).matches(|_| b"y"));
    }

    #[test]
    fn other_pages_and_types_are_refused() {
        let page = Criterion { id: AttributeId::new(0x3000_0001, 1), min: b"", max: b"" };
        let wire = QueryList { kind: QueryType::Union, criteria: std::vec![page] }.encode().unwrap();
        assert_eq!(QueryList::parse(&wire), Err(QueryError::Page(4)));
        assert_eq!(QueryList::parse(&[2, 0, 0, 0]), Err(QueryError::Type(2)));
        assert_eq!(QueryList::parse(&wire[..10]), Err(QueryError::Entry(4)));
    }

    proptest! {
        #[test]
        fn query_lists_read_back(
            union in any::<bool>(),
            rows in proptest::collection::vec((0_u32..USER_PAGES_END, any::<u32>(), any::<[u8; 5]>(), 0_usize..5, 0_usize..5), 0..10),
        ) {
            let kind = if union { QueryType::Union } else { QueryType::Intersection };
            let criteria = rows.iter().map(|(page, number, bytes, min, max)| {
                Criterion { id: AttributeId::new(*page, *number), min: &bytes[..*min], max: &bytes[..*max] }
            });
            let list = QueryList { kind, criteria: criteria.collect() };
            let wire = list.encode().unwrap();
            prop_assert_eq!(wire.len() % 8, 0);
            prop_assert_eq!(QueryList::parse(&wire), Ok(list));
        }

        #[test]
        fn arbitrary_bytes_never_panic(kind in 0_u8..3, mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(first) = bytes.first_mut() { *first = kind; }
            let _ = QueryList::parse(&bytes);
        }
    }
}
