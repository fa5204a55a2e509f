//! The expected content of the files: the oracle.
//!
//! Does: records for each path what was acknowledged, and the possible contents if the outcome is
//! unknown.
//! Contract: a path has one writer. A path with unknown outcome is not written again, so that the
//! final check can determine its state.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Bytes of one version of a file, generated from two numbers; may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileContent {
    /// Number of the version.
    pub version: u64,
    /// Length in bytes.
    pub length: usize,
}

impl FileContent {
    /// Generates the bytes. Every aligned word encodes the version and its offset.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length + 8);
        let mut place = 0_u64;
        while bytes.len() < self.length {
            let word = (self.version << 32 ^ place).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            bytes.extend_from_slice(&word.to_be_bytes());
            place += 1;
        }
        bytes.truncate(self.length);
        bytes
    }
}

/// Content of a path; `None` if it does not exist.
pub type FileState = Option<FileContent>;

#[derive(Clone, Debug, Default)]
struct Path {
    /// Possible states, of which one is true.
    states: Vec<FileState>,
    /// Every content that was ever written here.
    ever: Vec<FileContent>,
}

/// All paths of a world.
#[derive(Default)]
pub struct Model(Mutex<BTreeMap<String, Path>>);

impl Model {
    /// Returns the possible states of a path, more than one if the outcome is unknown.
    #[must_use]
    pub fn states(&self, path: &str) -> Vec<FileState> {
        self.0.lock().get(path).map_or_else(|| vec![None], |known| known.states.clone())
    }

    /// Returns the state of a path, if it is known.
    #[must_use]
    pub fn known(&self, path: &str) -> Option<FileState> {
        match self.states(path)[..] {
            [state] => Some(state),
            _ => None,
        }
    }

    /// Records an attempt to write this content.
    pub fn attempt(&self, path: &str, content: FileContent) {
        let mut all = self.0.lock();
        let known = all.entry(path.to_owned()).or_default();
        if known.states.is_empty() {
            known.states.push(None);
        }
        known.ever.push(content);
    }

    /// Sets the state.
    pub fn set(&self, path: &str, state: FileState) {
        self.0.lock().entry(path.to_owned()).or_default().states = vec![state];
    }

    /// Adds a possible state.
    pub fn maybe(&self, path: &str, state: FileState) {
        let mut all = self.0.lock();
        let known = all.entry(path.to_owned()).or_default();
        if known.states.is_empty() {
            known.states.push(None);
        }
        if !known.states.contains(&state) {
            known.states.push(state);
        }
    }

    /// Whether a concurrent reader could have read these bytes.
    #[must_use]
    pub fn was_ever(&self, path: &str, bytes: &[u8]) -> bool {
        let ever = self.0.lock().get(path).map(|known| known.ever.clone()).unwrap_or_default();
        ever.iter().rev().any(|content| content.length == bytes.len() && content.bytes() == bytes)
    }

    /// Returns all paths that were ever written, in order.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_places_differ_in_every_word() {
        let (a, b) = (
            FileContent { version: 1, length: 4096 }.bytes(),
            FileContent { version: 2, length: 4096 }.bytes(),
        );
        let words = |bytes: &[u8]| {
            bytes.chunks_exact(8).map(<[u8]>::to_vec).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(words(&a).len(), 512);
        assert!(words(&a).is_disjoint(&words(&b)));
        assert_eq!(FileContent { version: 1, length: 5 }.bytes(), a[..5]);
    }

    #[test]
    fn an_unknown_fate_has_two_states() {
        let model = Model::default();
        let content = FileContent { version: 1, length: 1 };
        assert_eq!(model.known("/a"), Some(None));
        model.attempt("/a", content);
        assert_eq!(model.known("/a"), Some(None));
        model.maybe("/a", Some(content));
        assert_eq!(model.known("/a"), None);
        model.set("/a", Some(content));
        assert_eq!(model.known("/a"), Some(Some(content)));
    }
}
