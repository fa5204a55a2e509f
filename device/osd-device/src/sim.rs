//! A simulated folder with failures, for crash tests of a device's own files.
//!
//! Does: count calls, fail or lose power in the n-th one, tear the write in progress, lose names
//! that were not synced.
//! Does not: use time, threads or any randomness except its seed.
//! Contract: one seed and one sequence of calls give one history.
//! Truth: exactly the guarantees of [`Folder`], and none beyond them.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::folder::Folder;

/// A fault in the n-th changing call, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderFault {
    /// The call fails after part of its work.
    Error(u64),
    /// The power fails during the call.
    Power(u64),
}

/// A change of a name that was not synced yet.
#[derive(Clone)]
enum FolderChange {
    Make(String, usize),
    Rename(String, String),
}

#[derive(Clone, Default)]
struct FolderState {
    seed: u64,
    /// Contents by number; a name refers to one.
    contents: Vec<Vec<u8>>,
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    pending: Vec<FolderChange>,
    calls: u64,
    fault: Option<FolderFault>,
    dead: bool,
}

/// The simulated folder. Clones share their state.
#[derive(Clone, Default)]
pub struct SimFolder(Arc<Mutex<FolderState>>);

impl SimFolder {
    /// Creates an empty folder.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(FolderState { seed, ..FolderState::default() })))
    }

    /// Sets the fault, which occurs once.
    pub fn fault(&self, fault: Option<FolderFault>) {
        self.0.lock().fault = fault;
    }

    /// Returns the number of changing calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// Whether the power has failed.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.0.lock().dead
    }

    /// Returns a separate folder with the same state.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().clone())))
    }

    /// Fails the power if it has not failed, and returns the surviving state: completely written
    /// contents, names up to the last sync, and, depending on the seed, some of the later name
    /// changes in order.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut state = self.0.lock();
        state.dead = true;
        let kept = usize::try_from(state.draw()).unwrap_or(0) % (state.pending.len() + 1);
        let mut names = state.durable.clone();
        for change in &state.pending[..kept] {
            apply(&mut names, change);
        }
        let survivor = FolderState {
            seed: state.seed,
            contents: state.contents.clone(),
            durable: names.clone(),
            names,
            ..FolderState::default()
        };
        Self(Arc::new(Mutex::new(survivor)))
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: &FolderChange) {
    match change {
        FolderChange::Make(name, content) => {
            names.insert(name.clone(), *content);
        }
        FolderChange::Rename(from, to) => {
            if let Some(content) = names.remove(from) {
                names.insert(to.clone(), content);
            }
        }
    }
}

impl FolderState {
    fn draw(&mut self) -> u64 {
        // splitmix64
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut next = self.seed;
        next = (next ^ next >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        next = (next ^ next >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        next ^ next >> 31
    }

    /// Counts a call and returns whether it fails.
    fn count_call(&mut self) -> io::Result<bool> {
        if self.dead {
            return Err(power_off());
        }
        self.calls += 1;
        let struck = match self.fault {
            Some(FolderFault::Power(call)) if call == self.calls => {
                self.dead = true;
                true
            }
            Some(FolderFault::Error(call)) => call == self.calls,
            _ => false,
        };
        Ok(struck)
    }
}

fn power_off() -> io::Error {
    io::Error::other("the simulated power is off")
}

impl Folder for SimFolder {
    fn read(&self, name: &str, len_max: u64) -> io::Result<Option<Vec<u8>>> {
        let state = self.0.lock();
        if state.dead {
            return Err(power_off());
        }
        let content = state.names.get(name).map(|&at| state.contents[at].clone());
        match content {
            Some(content) if content.len() as u64 > len_max => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "too long"))
            }
            other => Ok(other),
        }
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        let struck = state.count_call()?;
        // An existing file is truncated first, under every name it has.
        let at = match state.names.get(name) {
            Some(&at) => at,
            None => {
                state.contents.push(Vec::new());
                let at = state.contents.len() - 1;
                state.names.insert(name.to_owned(), at);
                state.pending.push(FolderChange::Make(name.to_owned(), at));
                at
            }
        };
        let kept = if struck {
            usize::try_from(state.draw()).unwrap_or(0) % (content.len() + 1)
        } else {
            content.len()
        };
        state.contents[at] = content[..kept].to_vec();
        if struck { Err(power_off()) } else { Ok(()) }
    }

    fn overwrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        let struck = state.count_call()?;
        let at = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let kept =
            if struck { usize::try_from(state.draw()).unwrap_or(0) % (bytes.len() + 1) } else { bytes.len() };
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let part =
            state.contents[at].get_mut(start..start + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        part[..kept].copy_from_slice(&bytes[..kept]);
        if struck { Err(power_off()) } else { Ok(()) }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        let struck = state.count_call()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if struck && state.draw() & 1 == 0 {
            return Err(power_off());
        }
        let change = FolderChange::Rename(from.to_owned(), to.to_owned());
        apply(&mut state.names, &change);
        state.pending.push(change);
        if struck { Err(power_off()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.count_call()? {
            return Err(power_off());
        }
        state.durable = state.names.clone();
        state.pending.clear();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/simulated").join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::{load, replace, store};

    #[test]
    fn slot_file_is_old_or_new_after_crash() {
        for seed in 0..200 {
            for fault in [FolderFault::Power(4), FolderFault::Error(4)] {
                let folder = SimFolder::new(seed);
                store(&folder, "boot", b"old").unwrap();
                assert_eq!(folder.calls(), 3, "the first write creates the file");
                folder.fault(Some(fault));
                assert!(store(&folder, "boot", b"new state").is_err());
                let survivor = folder.crash();
                let after = load(&survivor, "boot", 100).unwrap().unwrap();
                assert!(**after == *b"old" || **after == *b"new state", "seed {seed}, {fault:?}: {after:?}");
                store(&survivor, "boot", b"later").unwrap();
                assert_eq!(**load(&survivor, "boot", 100).unwrap().unwrap(), *b"later");
            }
        }
    }

    #[test]
    fn replaced_file_is_old_or_new_after_crash() {
        for seed in 0..200 {
            for step in 1..=3 {
                for fault in [FolderFault::Power(3 + step), FolderFault::Error(3 + step)] {
                    let folder = SimFolder::new(seed);
                    replace(&folder, "keys", b"old").unwrap();
                    folder.fault(Some(fault));
                    assert!(replace(&folder, "keys", b"new keys").is_err());
                    let after = folder.crash().read("keys", 100).unwrap().unwrap();
                    assert!(after == b"old" || after == b"new keys", "seed {seed}, {fault:?}: {after:?}");
                }
            }
            let folder = SimFolder::new(seed);
            replace(&folder, "keys", b"old").unwrap();
            replace(&folder, "keys", b"new keys").unwrap();
            assert_eq!(folder.crash().read("keys", 100).unwrap().unwrap(), b"new keys", "seed {seed}");
        }
    }
}
