//! Files that the engine wrote, read without it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;
use redb::{Builder, StorageBackend, TableDefinition};
use sealstone_redb_format::{
    CursorStep, EngineHeader, HEADER_BYTES, LostKeys, PageSource, TableKey, TreeCursor, TreeReader, UNIT,
};

const NAME: &str = "records";
const TABLE: TableDefinition<'static, &TableKey, &[u8]> = TableDefinition::new(NAME);

/// A file in memory, which the engine and the reader share.
#[derive(Clone, Debug, Default)]
struct SharedFile(Arc<Mutex<Vec<u8>>>);

impl SharedFile {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().expect("no test panics with the lock")
    }

    fn range(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let bytes = self.bytes();
        let found = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)?.get(..length));
        found.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Returns a reader of the current commit, if the file has one.
    fn reader(&self) -> Option<TreeReader> {
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(self.bytes().get(..HEADER_BYTES)?);
        let commit = EngineHeader(header).primary()?;
        let length = self.bytes().len() as u64;
        let mut reader = TreeReader::new(Box::new(self.clone()), length);
        reader.find_table(commit.user, NAME);
        Some(reader)
    }
}

impl PageSource for SharedFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.range(offset, into.len())?);
        Ok(())
    }
}

impl StorageBackend for SharedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.bytes().resize(length as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.bytes()[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn key(number: u64) -> TableKey {
    let mut key = [1; 25];
    key[17..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns a file with this number of records of `length` bytes.
fn file_of(count: u64, length: usize) -> SharedFile {
    let file = SharedFile::default();
    let engine = Builder::new().create_with_backend(file.clone()).expect("memory does not fail");
    let transaction = engine.begin_write().expect("nothing else writes");
    {
        let mut table = transaction.open_table(TABLE).expect("the table is new");
        for number in 0..count {
            table.insert(&key(number), &vec![number as u8; length][..]).expect("memory does not fail");
        }
    }
    transaction.commit().expect("memory does not fail");
    file
}

/// Returns the keys that a walk finds, and the ranges that it cannot read.
fn walk(reader: &TreeReader) -> (Vec<TableKey>, Vec<LostKeys>) {
    let mut cursor = TreeCursor::new(reader, [0; 25], [255; 25]);
    let (mut keys, mut lost) = (Vec::new(), Vec::new());
    while let Some(step) = cursor.current() {
        match step {
            CursorStep::Record(key, _) => keys.push(*key),
            CursorStep::Lost(range) => lost.push(range),
        }
        cursor.pass();
    }
    (keys, lost)
}

#[test]
fn every_record_of_the_engine_is_found() {
    for (count, length) in [(0, 0), (1, 0), (3, 5000), (2000, 100), (40, 70_000)] {
        let reader = file_of(count, length).reader().expect("the file has a commit");
        let (keys, lost) = walk(&reader);
        assert_eq!(keys, (0..count).map(key).collect::<Vec<_>>(), "{count} of {length} bytes");
        assert_eq!(lost, []);
        for number in 0..count {
            let found = reader.get(&key(number)).expect("no page is damaged");
            assert_eq!(found, Some(vec![number as u8; length]));
        }
        assert_eq!(reader.get(&key(count)), Ok(None));
    }
}

#[test]
fn single_wrong_bit_is_repaired() {
    let file = file_of(2000, 100);
    let sound = file.bytes().clone();
    // The pages that the walk reads, found by their contents: a leaf has records of one byte value.
    let at = sound.windows(100).position(|bytes| bytes == [77; 100]).expect("record 77 is in the file");
    file.bytes()[at] ^= 4;
    let reader = file.reader().expect("the file has a commit");
    assert_eq!(walk(&reader), ((0..2000).map(key).collect(), Vec::new()));
    let repaired = reader.take_repaired();
    let [(offset, page)] = &repaired[..] else { panic!("{} pages repaired", repaired.len()) };
    assert_eq!(page[..], sound[*offset as usize..][..page.len()]);
    assert_eq!(reader.take_repaired(), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Damaged pages: each record is found with its own bytes, or lies in a range that is reported.
    #[test]
    fn damage_is_found_or_reported(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<[u8; 3]>()), 1..20),
    ) {
        let file = file_of(500, 200);
        {
            let mut bytes = file.bytes();
            let length = bytes.len() - UNIT as usize;
            for (at, with) in damage {
                let at = UNIT as usize + at.index(length - 3);
                bytes[at..at + 3].copy_from_slice(&with);
            }
        }
        let reader = file.reader().expect("the header is intact");
        let (keys, lost) = walk(&reader);
        for number in 0..500 {
            let key = key(number);
            let reported = lost.iter().any(|range| range.overlaps(&key, &key));
            prop_assert!(keys.contains(&key) != reported, "record {number}");
            if let Ok(found) = reader.get(&key) {
                prop_assert_eq!(found, Some(vec![number as u8; 200]));
            }
        }
    }

    /// Any bytes after a valid header, and any header.
    #[test]
    fn arbitrary_bytes_do_not_panic(
        header in any::<bool>(),
        pages in prop::collection::vec(any::<u8>(), 0..3 * UNIT as usize),
    ) {
        let file = file_of(3, 10);
        {
            let mut bytes = file.bytes();
            let from = if header { 0 } else { UNIT as usize };
            let length = pages.len().min(bytes.len() - from);
            bytes[from..from + length].copy_from_slice(&pages[..length]);
        }
        if let Some(reader) = file.reader() {
            walk(&reader);
            let _shape = reader.outline::<11>();
        }
    }
}
