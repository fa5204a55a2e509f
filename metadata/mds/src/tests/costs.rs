//! Costs of requests: documented, and counted where a defect was found.

use sealstone_mds_protocol::{REQUESTS, Request, Response};

use super::world::{ALICE, World, path};
use crate::store::MetaStore;

#[test]
fn every_request_has_a_documented_cost() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/limits.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (_, costs) = text.split_once("\n## Costs of requests\n").expect("the section");
    for (_, name) in REQUESTS {
        let row = costs.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("{name} has no row in {page}"));
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() == 3 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
    }
}

#[test]
fn recursive_removal_reads_each_entry_once() {
    const NAMES: u64 = 1000;
    let mut world = World::with_devices(1);
    world.mkdir(ALICE, "/t", 0o755);
    for name in 0..NAMES {
        world.mkdir(ALICE, &format!("/t/d{name}"), 0o755);
    }
    let before = world.disk.keys_visited();
    loop {
        let request = Request::Remove { path: path("/t"), recursive: true };
        let Response::Removed { more, .. } = world.ask(ALICE, request) else { panic!("not removed") };
        if !more {
            break;
        }
    }
    let visited = world.disk.keys_visited() - before;
    assert!(visited < 4 * NAMES, "{visited} steps for {NAMES} names");
}
