//! Cost of stored digests for a writer: small and large writes, in a partition with digests and in
//! one without.
//!
//! `cargo run --release -p sealstone-store --example digested`. Rounds alternate; results are
//! medians of the CPU time of the process, which other load on the machine affects least.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::fs;
use std::sync::Arc;

use sealstone_digest::Profile;
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::{DigestStore, DiskStore, FileMedium, FormatOptions, ObjectStore, StoreOptions, format};

/// Bytes of the object.
const LENGTH: u64 = 64 << 20;
/// Rounds of each kind.
const ROUNDS: usize = 7;

/// Returns the CPU time of the process so far, in ticks of 10 ms.
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let medium = Arc::new(FileMedium::open(folder.path())?);
    format(&*medium, &FormatOptions::new(1 << 30, *b"digests to write"))?;
    let store = DiskStore::open(medium, StoreOptions::default())?;
    let profiles = [None, Some(Profile::Blake3)];
    let mut ids = Vec::new();
    for (number, profile) in (0x1_0000..).zip(profiles) {
        store.create(ObjectId::of_partition(number), ObjectType::Partition)?;
        store.set_profile(number, profile)?;
        let id = ObjectId::new(number, 0x1_0000);
        store.create(id, ObjectType::User)?;
        for at in (0..LENGTH).step_by(1 << 20) {
            store.write(id, at, &vec![7; 1 << 20])?;
        }
        ids.push(id);
    }
    store.flush()?;
    let mut random = SeededRandom::new(1);
    for (bytes, writes) in [(4096_u64, 20_000), (16_384, 10_000), (1 << 20, 400)] {
        let data = vec![random.next() as u8; bytes as usize];
        let mut taken = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (id, taken) in ids.iter().zip(&mut taken) {
                let before = ticks();
                for write in 0..writes {
                    store.write(*id, random.below(LENGTH / bytes) * bytes, &data)?;
                    if write % 256 == 255 {
                        store.flush()?;
                    }
                }
                store.flush()?;
                taken.push(ticks() - before);
            }
        }
        let median = |all: &mut Vec<u64>| {
            all.sort_unstable();
            all[all.len() / 2]
        };
        let [without, with] = &mut taken;
        let (without, with) = (median(without), median(with));
        println!(
            "{bytes:>8} bytes: {:>7.2} us without, {:>7.2} us with blake3, ratio {:.2}",
            without as f64 * 1e4 / f64::from(writes),
            with as f64 * 1e4 / f64::from(writes),
            with as f64 / without as f64
        );
    }
    Ok(())
}
