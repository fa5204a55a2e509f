//! Open directories: pages of entries, and the numbers by which the kernel goes on.
//!
//! Contract: memory does not grow with the directory but for one name in each page; a number that was given leads back to
//! the same place as long as the directory is open.

use std::collections::BTreeMap;

use sealstone_client::ClientError;
use sealstone_client::nodes::Nodes;
use sealstone_mds_protocol::Node;
use sealstone_mds_protocol::{DirEntry, Name};
use tokio::sync::Mutex;

/// Numbers before the first entry: `.` and `..`.
pub(crate) const DOTS: u64 = 2;

/// A directory that is open.
#[derive(Debug)]
pub(crate) struct Directory {
    node: Node,
    place: Mutex<Place>,
}

#[derive(Debug)]
struct Place {
    /// For the number of each page's first entry, the name before it.
    pages: BTreeMap<u64, Option<Name>>,
    /// Number of the first entry of the page that is here.
    first: u64,
    entries: Vec<DirEntry>,
    more: bool,
}

impl Directory {
    pub(crate) fn new(node: Node) -> Self {
        let place =
            Place { pages: BTreeMap::from([(DOTS, None)]), first: DOTS, entries: Vec::new(), more: true };
        Self { node, place: Mutex::new(place) }
    }

    /// Shows entries from number `from` on, with the number after each, until `take` has enough.
    pub(crate) async fn read(
        &self,
        nodes: &Nodes,
        from: u64,
        mut take: impl FnMut(u64, &DirEntry) -> bool,
    ) -> Result<(), ClientError> {
        let mut place = self.place.lock().await;
        let mut at = from.max(DOTS);
        if at == DOTS {
            // Who begins anew sees it as it is now.
            place.entries.clear();
            (place.first, place.more) = (DOTS, true);
            place.pages.retain(|number, _| *number == DOTS);
        }
        loop {
            let here = place.first..place.first + place.entries.len() as u64;
            if here.contains(&at) {
                let entry = &place.entries[(at - place.first) as usize];
                if take(at + 1, entry) {
                    return Ok(());
                }
                at += 1;
                continue;
            }
            if at == here.end && !place.more {
                return Ok(());
            }
            let (first, after) = if at == here.end {
                (at, place.entries.last().map(|entry| entry.name.clone()))
            } else {
                let page = place.pages.range(..=at).next_back();
                page.map_or((DOTS, None), |(number, name)| (*number, name.clone()))
            };
            let (entries, more) = nodes.read_directory(self.node, after.clone()).await?;
            if entries.is_empty() || (at >= first + entries.len() as u64 && !more) {
                // It became shorter than it was.
                (place.first, place.entries, place.more) = (at, Vec::new(), false);
                return Ok(());
            }
            place.pages.insert(first, after);
            let end = first + entries.len() as u64;
            place.pages.insert(end, entries.last().map(|entry| entry.name.clone()));
            (place.first, place.entries, place.more) = (first, entries, more);
        }
    }
}
