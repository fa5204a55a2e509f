//! Final checks of a world: everything is up again, and all promises must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sealstone_client::{Device, GetOptions, PutOptions};
use sealstone_mds::records::Inode;
use sealstone_mds::store::MemoryMeta;
use sealstone_mds_protocol::{FILE_PARTITION, FileKind, Wire, WireReader};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::ObjectStore;
use tokio::time::sleep;

use crate::device::{DeviceHost, place_in};
use crate::history::History;
use crate::model::{FileContent, FileState};
use crate::workload::{ClientProcess, WorkloadState};

/// Attempts of the auditor to read a file from a system without faults.
const TRIES: u32 = 3;
/// Objects listed at a time.
const PAGE: usize = 256;

/// Reads every path and compares it with the model. A corrupt file must give an error, never wrong
/// bytes.
pub async fn files(shop: &WorkloadState, process: &ClientProcess, devices: &[Arc<DeviceHost>]) {
    let rotten = devices.iter().any(|device| device.is_rotten());
    for path in shop.model.paths() {
        let states = shop.model.states(&path);
        let mut found: Result<Option<Vec<u8>>, String> = Err(String::new());
        for _ in 0..TRIES {
            let mut bytes = Vec::new();
            found = match process.client.get(&path, &mut bytes, GetOptions::default()).await {
                Ok(_) => Ok(Some(bytes)),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(format!("{error:?}")),
            };
            if found.is_ok() {
                break;
            }
            sleep(Duration::from_secs(5)).await;
        }
        let fits = |state: &FileState, bytes: &Option<Vec<u8>>| match (state, bytes) {
            (None, None) => true,
            (Some(content), Some(bytes)) => content.length == bytes.len() && content.bytes() == *bytes,
            _ => false,
        };
        match found {
            Err(error) if rotten && error.contains("Medium") => {
                shop.history.add_line(format!("{path} has rotted: {error}"));
            }
            Err(error) => shop.history.violate(format!("{path}, {states:?}, cannot be read: {error}")),
            Ok(bytes) if states.iter().any(|state| fits(state, &bytes)) => {
                let length = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
                shop.history.note(&path, &[length]);
            }
            Ok(bytes) => {
                let what =
                    bytes.map_or_else(|| "nothing".to_owned(), |bytes| format!("{} bytes", bytes.len()));
                shop.history.violate(format!("{path} should be {states:?} and is {what}"));
            }
        }
    }
}

/// Checks that each device has exactly the objects of the files, all intact, and that the metadata
/// server's counts are correct. Runs long after the last client.
pub fn objects(store: &MemoryMeta, listed: &[Device], devices: &[Arc<DeviceHost>], history: &History) {
    let (mut files, mut directories) = (0, 0);
    let mut expected: BTreeMap<u8, BTreeSet<ObjectId>> = BTreeMap::new();
    let mut families: BTreeMap<u8, u64> = BTreeMap::new();
    let mut figures: BTreeMap<String, u64> = BTreeMap::new();
    for (key, value) in store.dump() {
        let family = key.first().copied().unwrap_or_default();
        *families.entry(family).or_default() += 1;
        // After the record's version.
        let body = value.get(1..).unwrap_or_default();
        match family {
            b'i' => {
                let Ok(inode) = Inode::get(&mut WireReader::new(body)) else {
                    history.violate("an inode's record does not parse");
                    continue;
                };
                *(if inode.kind == FileKind::Directory { &mut directories } else { &mut files }) += 1;
                for object in inode.layout.iter().flat_map(|layout| layout.objects()) {
                    match place_in(listed, object.device) {
                        Some(place) => drop(expected.entry(place).or_default().insert(object.object)),
                        None => history.violate(format!("{object:?} is on an unknown device")),
                    }
                }
            }
            b'm' => {
                if let Some(figure) = key.strip_prefix(b"mcount/")
                    && let Ok(value) = u64::get(&mut WireReader::new(body))
                {
                    figures.insert(String::from_utf8_lossy(figure).into_owned(), value);
                }
            }
            _ => {}
        }
    }
    let count = |family| families.get(&family).copied().unwrap_or_default();
    for (name, there) in [
        ("files", files),
        ("directories", directories),
        ("intents", count(b't')),
        ("intents", count(b'e')),
        ("reaps", count(b'r')),
        ("users", count(b'u')),
        ("sessions", count(b's')),
    ] {
        let counted = figures.get(name).copied().unwrap_or_default();
        if counted != there {
            history.violate(format!("the metadata server counts {counted} {name}, there are {there}"));
        }
    }
    for (name, left) in [("creates", count(b't')), ("removals", count(b'r'))] {
        if left > 0 {
            history.violate(format!("{left} {name} are never ended"));
        }
    }
    history.add_line(format!(
        "{files} files, objects {:?}",
        expected.iter().map(|(p, o)| (p, o.len())).collect::<Vec<_>>()
    ));
    for device in devices {
        let must = expected.remove(&device.place).unwrap_or_default();
        sound(device, &must, history);
    }
}

/// Checks that devices that were full accept files again after their objects are removed.
pub async fn space_is_reusable(shop: &WorkloadState, process: &ClientProcess, reaped: Duration) {
    for worker in 0..shop.plan.workers {
        if let Err(error) = process.client.remove(&format!("/c{worker}"), true).await {
            shop.history.violate(format!("/c{worker} cannot be removed: {error:?}"));
        }
    }
    sleep(reaped).await;
    let (path, content) = ("/afterwards", FileContent { version: u64::from(u32::MAX), length: 1 << 20 });
    let bytes = content.bytes();
    if let Err(error) = process.client.put(path, &bytes[..], PutOptions::default()).await {
        shop.history.violate(format!("no room after all was removed: {error:?}"));
        return;
    }
    let mut back = Vec::new();
    match process.client.get(path, &mut back, GetOptions::default()).await {
        Ok(_) if back == bytes => shop.history.add_line("there is room again"),
        other => shop.history.violate(format!("{path}: {:?}", other.map(|stat| stat.size))),
    }
}

fn sound(device: &DeviceHost, must: &BTreeSet<ObjectId>, history: &History) {
    let place = device.place;
    let Some(store) = device.store() else {
        history.violate(format!("osd{place} is not up"));
        return;
    };
    let mut there = BTreeSet::new();
    let mut from = ObjectId::new(FILE_PARTITION, 0);
    loop {
        let page = match store.list(from, PAGE) {
            Ok(page) => page,
            Err(error) => {
                history.violate(format!("osd{place} cannot be listed: {error:?}"));
                return;
            }
        };
        let more = page.len() == PAGE;
        for (id, kind) in page {
            if id.partition == FILE_PARTITION && kind == ObjectType::User {
                there.insert(id);
            }
            from = ObjectId::new(id.partition, id.object + 1);
        }
        if !more {
            break;
        }
    }
    for orphan in there.difference(must) {
        history.violate(format!("osd{place} holds {orphan:?}, which nobody knows"));
    }
    for lost in must.difference(&there) {
        history.violate(format!("osd{place} has lost {lost:?}"));
    }
    for id in &there {
        match store.verify(*id) {
            Ok(damaged) if damaged.is_empty() || device.is_rotten() => {}
            other => history.violate(format!("osd{place} {id:?} is damaged: {other:?}")),
        }
    }
}
