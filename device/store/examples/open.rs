//! Time and memory for opening a store of many objects: `open [objects] [bytes each] [folder]`.
//! With `SEALSTONE_OPEN_JSON=1` it prints JSON, one object per line.
//!
//! It runs three processes: one fills the store and ends as if killed, one opens it after that, one
//! opens it after a clean close.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example that prints what it measured")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{DiskStore, FileMedium, FormatOptions, ObjectStore as _, StoreOptions, format};

/// Number of operations between two ticks, in place of the background thread.
const TICK: u64 = 10_000;
const PART: &str = "SEALSTONE_OPEN_PART";
const JSON: &str = "SEALSTONE_OPEN_JSON";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual| arguments.get(at).map_or(Ok(usual), |text| text.parse::<u64>());
    let (objects, bytes) = (number(0, 1_000_000)?, number(1, 0)?);
    let scratch = tempfile::tempdir()?;
    let folder = arguments.get(2).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    match std::env::var(PART).as_deref() {
        Ok("fill") => return fill(&folder, objects, bytes),
        Ok(part) => return open(&folder, part),
        Err(_) => {}
    }
    for part in ["fill", "after a kill", "after closing", "once more"] {
        let status = Command::new(std::env::current_exe()?)
            .args([objects.to_string(), bytes.to_string()])
            .arg(&folder)
            .env(PART, part)
            .status()?;
        assert!(status.success(), "{part}: {status}");
    }
    Ok(())
}

fn fill(folder: &Path, objects: u64, bytes: u64) -> Result<()> {
    let begun = Instant::now();
    let medium = FileMedium::open(folder)?;
    format(&medium, &FormatOptions::new((objects * bytes.next_multiple_of(4096)).max(1 << 30), [7; 16]))?;
    let store = DiskStore::open(Arc::new(medium), StoreOptions::default())?;
    let data = vec![7; bytes as usize];
    for number in 0..objects {
        let id = ObjectId::new(0x1_0000, 0x1_0000 + number);
        store.create(id, ObjectType::User)?;
        store.set_attribute(
            id,
            AttributeId { page: 1, number: 9 },
            format!("object number {number:08}").as_bytes(),
        )?;
        if bytes > 0 {
            store.write(id, 0, &data)?;
        }
        if number.is_multiple_of(TICK) {
            store.tick(Duration::from_millis(number / TICK))?;
        }
    }
    store.flush()?;
    eprintln!("filled with {objects} objects of {bytes} bytes in {:?}", begun.elapsed());
    std::process::exit(0);
}

fn open(folder: &Path, how: &str) -> Result<()> {
    let begun = Instant::now();
    let store = DiskStore::open(Arc::new(FileMedium::open(folder)?), StoreOptions::default())?;
    let taken = begun.elapsed();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default().trim();
    let index = std::fs::metadata(folder.join("index.redb"))?.len() >> 20;
    let objects = store.space().objects;
    if std::env::var_os(JSON).is_some() {
        let (kib, seconds) = (peak.trim_end_matches(" kB"), taken.as_secs_f64());
        println!(
            "{{\"opened\":\"{how}\",\"seconds\":{seconds:.3},\"objects\":{objects},\"peak_kib\":{kib}}}"
        );
        return Ok(());
    }
    println!("opened {how}: {taken:?} for {objects} objects, index file {index} MiB, peak memory {peak}");
    Ok(())
}
