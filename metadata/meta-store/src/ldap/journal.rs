//! Encoding of commits and records in the attributes of entries.
//!
//! A record: version 1, length of the key 2, key, value. A commit: version 1, its number 8, the
//! changes 4; of each: length of the key 2, key, and 0 for a removal, or 1, length of the value 4,
//! value.

use sealstone_mds::store::{KEY_MAX, Overlay, VALUE_MAX};

use super::versions::{RecordChange, Value};

const VERSION: u8 = 1;
const REMOVED: u8 = 0;
const PUT: u8 = 1;

/// Bytes of a commit without its changes.
const HEAD_BYTES: usize = 13;
/// Maximum bytes of a commit: with the request around it, less than the 4 MiB that an LDAP server
/// accepts.
pub(super) const COMMIT_BYTES_MAX: usize = 3 << 20;

/// The bytes are not valid in this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {0} of this release")]
pub(super) struct DecodeError(&'static str);

pub(super) fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 + key.len() + value.len());
    bytes.push(VERSION);
    // The store trait limits both lengths.
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend(key);
    bytes.extend(value);
    bytes
}

/// Returns key and value of a record.
pub(super) fn parse_record(bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let parse = || {
        let (&version, rest) = bytes.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (key, value) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        (version == VERSION && key.len() <= KEY_MAX && value.len() <= VALUE_MAX).then_some((key, value))
    };
    parse().ok_or(DecodeError("record"))
}

/// Encodes a commit; `None` if it exceeds [`COMMIT_BYTES_MAX`].
pub(super) fn commit(number: u64, changes: &Overlay) -> Option<Vec<u8>> {
    let mut bytes = vec![VERSION];
    bytes.extend(number.to_be_bytes());
    bytes.extend([0; 4]);
    let mut count = 0u32;
    for (key, value) in changes.iter() {
        count += 1;
        bytes.extend((key.len() as u16).to_be_bytes());
        bytes.extend(key);
        match value {
            None => bytes.push(REMOVED),
            Some(value) => {
                bytes.push(PUT);
                bytes.extend((value.len() as u32).to_be_bytes());
                bytes.extend(value);
            }
        }
        if bytes.len() > COMMIT_BYTES_MAX {
            return None;
        }
    }
    bytes[9..HEAD_BYTES].copy_from_slice(&count.to_be_bytes());
    Some(bytes)
}

/// Returns the bytes of changes in the journal.
pub(super) fn bytes_of(changes: &[RecordChange]) -> usize {
    let value = |change: &RecordChange| change.value.as_ref().map_or(0, |value| 4 + value.len());
    HEAD_BYTES + changes.iter().map(|change| 3 + change.key.len() + value(change)).sum::<usize>()
}

/// A decoded commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JournalCommit {
    pub(super) number: u64,
    pub(super) changes: Vec<RecordChange>,
}

pub(super) fn parse_commit(bytes: &[u8]) -> Result<JournalCommit, DecodeError> {
    parse(bytes).ok_or(DecodeError("commit"))
}

fn parse(bytes: &[u8]) -> Option<JournalCommit> {
    let (&version, rest) = bytes.split_first()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (count, mut rest) = rest.split_first_chunk()?;
    if version != VERSION {
        return None;
    }
    let mut changes = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk()?;
        let (key, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let (&kind, mut after) = after.split_first()?;
        let value = match kind {
            REMOVED => None,
            PUT => {
                let (length, value) = after.split_first_chunk()?;
                let (value, end) = value.split_at_checked(u32::from_be_bytes(*length) as usize)?;
                after = end;
                Some(value)
            }
            _ => return None,
        };
        if key.len() > KEY_MAX || value.is_some_and(|value| value.len() > VALUE_MAX) {
            return None;
        }
        changes.push(RecordChange { key: key.into(), value: value.map(Value::from), was_there: None });
        rest = after;
    }
    rest.is_empty().then_some(JournalCommit { number: u64::from_be_bytes(*number), changes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn overlay(changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Overlay {
        let mut overlay = Overlay::default();
        for (key, value) in changes {
            match value {
                Some(value) => overlay.put(key, value).unwrap(),
                None => overlay.delete(key),
            }
        }
        overlay
    }

    #[test]
    fn size_limits_of_records_and_commits_are_exact() {
        let (key, value) = (vec![1; KEY_MAX], vec![2; VALUE_MAX]);
        let bytes = record(&key, &value);
        assert_eq!(parse_record(&bytes), Ok((&key[..], &value[..])));
        assert!(parse_record(&[&bytes[..], b"x"].concat()).is_err());
        assert!(parse_record(&record(&[&key[..], b"x"].concat(), b"")).is_err());
        // Header, and 2 + 1 + 1 + 4 bytes around each value.
        let whole = (COMMIT_BYTES_MAX - 13) / (8 + VALUE_MAX);
        let mut changes: Vec<_> = (0..whole).map(|n| (vec![n as u8], Some(value.clone()))).collect();
        let rest = COMMIT_BYTES_MAX - 13 - whole * (8 + VALUE_MAX) - 8;
        changes.push((vec![255], Some(vec![3; rest])));
        let bytes = commit(1, &overlay(&changes)).expect("as much as there may be");
        assert_eq!(bytes.len(), COMMIT_BYTES_MAX);
        assert_eq!(parse_commit(&bytes).unwrap().changes.len(), whole + 1);
        changes.push((vec![255], Some(vec![3; rest + 1])));
        assert_eq!(commit(1, &overlay(&changes)), None);
    }

    proptest! {
        #[test]
        fn commits_round_trip(
            number in any::<u64>(),
            changes in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..20), prop::option::of(prop::collection::vec(any::<u8>(), 0..20))), 0..8),
            cut in any::<prop::sample::Index>()) {
            let changes = overlay(&changes);
            let bytes = commit(number, &changes).unwrap();
            let read = parse_commit(&bytes).unwrap();
            prop_assert_eq!(read.number, number);
            prop_assert_eq!(bytes_of(&read.changes), bytes.len());
            let read: Vec<_> = read.changes.iter().map(|one| (&*one.key, one.value.as_deref())).collect();
            prop_assert_eq!(read, changes.iter().collect::<Vec<_>>());
            prop_assert!(parse_commit(&bytes[..cut.index(bytes.len())]).is_err());
            prop_assert!(parse_commit(&[&bytes[..], &[0]].concat()).is_err());
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse_commit(&bytes);
            let _ = parse_record(&bytes);
            let _ = parse_commit(&[&[VERSION], &bytes[..]].concat());
            if let Ok((key, value)) = parse_record(&bytes) {
                prop_assert_eq!(record(key, value), bytes);
            }
        }
    }
}
