//! A folder that misbehaves: the medium of the crash tests of a device's own files.
//!
//! Does: count the calls, fail or lose power in the n-th one, tear what was being written, lose names that were not
//! synced. Does not: use time, threads or chance but its seed.
//! Contract: one seed and one sequence of calls give one history.
//! Truth: the promises in [`Folder`], kept to the letter and not a bit better.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::folder::Folder;

/// What happens in the n-th call that changes something, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, having done a part of its work.
    Error(u64),
    /// The power fails in the middle of it.
    Power(u64),
}

/// A change of a name that was not synced yet.
#[derive(Clone)]
enum Pending {
    Make(String, usize),
    Rename(String, String),
}

#[derive(Clone, Default)]
struct State {
    seed: u64,
    /// Contents by number; a name points at one.
    contents: Vec<Vec<u8>>,
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    pending: Vec<Pending>,
    calls: u64,
    fault: Option<Fault>,
    dead: bool,
}

/// The simulated folder. Clones are the same folder.
#[derive(Clone, Default)]
pub struct SimFolder(Arc<Mutex<State>>);

impl SimFolder {
    /// An empty folder.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State { seed, ..State::default() })))
    }

    /// Sets the fault; it strikes once.
    pub fn fault(&self, fault: Option<Fault>) {
        self.0.lock().fault = fault;
    }

    /// Calls that changed something so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// Did the power fail?
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.0.lock().dead
    }

    /// Another folder in exactly this state.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().clone())))
    }

    /// The power fails now, if it did not already. Gives what survived: contents that were written in full, names up to
    /// the last sync, and by the seed some of the changes of names after it, in their order.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut state = self.0.lock();
        state.dead = true;
        let kept = usize::try_from(state.draw()).unwrap_or(0) % (state.pending.len() + 1);
        let mut names = state.durable.clone();
        for change in &state.pending[..kept] {
            apply(&mut names, change);
        }
        let survivor = State {
            seed: state.seed,
            contents: state.contents.clone(),
            durable: names.clone(),
            names,
            ..State::default()
        };
        Self(Arc::new(Mutex::new(survivor)))
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: &Pending) {
    match change {
        Pending::Make(name, content) => {
            names.insert(name.clone(), *content);
        }
        Pending::Rename(from, to) => {
            if let Some(content) = names.remove(from) {
                names.insert(to.clone(), content);
            }
        }
    }
}

impl State {
    fn draw(&mut self) -> u64 {
        // splitmix64
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut next = self.seed;
        next = (next ^ next >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        next = (next ^ next >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        next ^ next >> 31
    }

    /// Counts a call; tells whether it is the one that fails, in part by chance.
    fn strikes(&mut self) -> io::Result<bool> {
        if self.dead {
            return Err(gone());
        }
        self.calls += 1;
        let struck = match self.fault {
            Some(Fault::Power(call)) if call == self.calls => {
                self.dead = true;
                true
            }
            Some(Fault::Error(call)) => call == self.calls,
            _ => false,
        };
        Ok(struck)
    }
}

fn gone() -> io::Error {
    io::Error::other("the simulated power is off")
}

impl Folder for SimFolder {
    fn read(&self, name: &str, len_max: u64) -> io::Result<Option<Vec<u8>>> {
        let state = self.0.lock();
        if state.dead {
            return Err(gone());
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
        let struck = state.strikes()?;
        // A file that is there is cut to nothing first, under every name it has.
        let at = match state.names.get(name) {
            Some(&at) => at,
            None => {
                state.contents.push(Vec::new());
                let at = state.contents.len() - 1;
                state.names.insert(name.to_owned(), at);
                state.pending.push(Pending::Make(name.to_owned(), at));
                at
            }
        };
        let kept = if struck {
            usize::try_from(state.draw()).unwrap_or(0) % (content.len() + 1)
        } else {
            content.len()
        };
        state.contents[at] = content[..kept].to_vec();
        if struck { Err(gone()) } else { Ok(()) }
    }

    fn overwrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        let struck = state.strikes()?;
        let at = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let kept =
            if struck { usize::try_from(state.draw()).unwrap_or(0) % (bytes.len() + 1) } else { bytes.len() };
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let part =
            state.contents[at].get_mut(start..start + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        part[..kept].copy_from_slice(&bytes[..kept]);
        if struck { Err(gone()) } else { Ok(()) }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        let struck = state.strikes()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if struck && state.draw() & 1 == 0 {
            return Err(gone());
        }
        let change = Pending::Rename(from.to_owned(), to.to_owned());
        apply(&mut state.names, &change);
        state.pending.push(change);
        if struck { Err(gone()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.strikes()? {
            return Err(gone());
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
    fn stored_content_is_old_or_new_after_a_crash() {
        for seed in 0..200 {
            for fault in [Fault::Power(4), Fault::Error(4)] {
                let folder = SimFolder::new(seed);
                store(&folder, "boot", b"old").unwrap();
                assert_eq!(folder.calls(), 3, "the first write makes the file");
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
    fn a_replaced_file_is_old_or_new_after_a_crash_at_every_step() {
        for seed in 0..200 {
            for step in 1..=3 {
                for fault in [Fault::Power(3 + step), Fault::Error(3 + step)] {
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
