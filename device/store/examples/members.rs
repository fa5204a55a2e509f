//! Cost of collection members on real files: `members [count] [folder]`.
#![allow(clippy::print_stdout, reason = "an example that prints what it measured")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{
    DiskStore, FileMedium, FormatOptions, MAX_LIST, Memberships as _, ObjectStore as _, StoreOptions, format,
};

/// Number of operations between two ticks, in place of the background thread.
const TICK: u64 = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let scratch = tempfile::tempdir()?;
    let folder = arguments.next().map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let medium = FileMedium::open(&folder)?;
    format(&medium, &FormatOptions::new(1 << 30, [7; 16]))?;
    let store = DiskStore::open(Arc::new(medium), StoreOptions::default())?;
    let collection = ObjectId::new(0x1_0000, 0x9_0000_0000);
    let index_mib = || std::fs::metadata(folder.join("index.redb")).map_or(0, |file| file.len() >> 20);
    let measured = |what: &str, begun: Instant| {
        let each = begun.elapsed().as_secs_f64() * 1e6 / count as f64;
        println!("{what}: {:?}, {each:.2} us each; index file {} MiB", begun.elapsed(), index_mib());
    };

    let begun = Instant::now();
    store.create(collection, ObjectType::Collection)?;
    for member in 0..count {
        store.create(ObjectId::new(0x1_0000, 0x1_0000 + member), ObjectType::User)?;
        tick(&store, member)?;
    }
    store.flush()?;
    measured("objects made", begun);

    let begun = Instant::now();
    for member in 0..count {
        // In arbitrary order.
        store.join(collection, 0x1_0000 + member.wrapping_mul(0x9E37_79B1) % count, 1)?;
        tick(&store, member)?;
    }
    store.flush()?;
    measured("joined", begun);
    println!("members: {}", store.member_count(collection)?);

    let begun = Instant::now();
    let (mut from, mut seen) = (0, 0);
    loop {
        let part = store.members(collection, from, MAX_LIST)?;
        seen += part.len() as u64;
        let Some(&(last, _)) = part.last() else { break };
        from = last + 1;
    }
    println!("listed {seen}");
    measured("listed", begun);

    let begun = Instant::now();
    drop(store);
    let store = DiskStore::open(Arc::new(FileMedium::open(&folder)?), StoreOptions::default())?;
    measured("opened again", begun);

    let begun = Instant::now();
    for member in 0..count {
        store.leave(collection, 0x1_0000 + member)?;
        tick(&store, member)?;
    }
    store.flush()?;
    measured("left", begun);
    Ok(())
}

fn tick(store: &DiskStore, done: u64) -> Result<(), sealstone_store::StoreError> {
    if done.is_multiple_of(TICK) { store.tick(Duration::from_millis(done / TICK)) } else { Ok(()) }
}
