//! What the files must be: the oracle.
//!
//! Does: remember for each path what was acknowledged, and what may be there when nobody knows.
//! Contract: a path has one writer; a path whose fate is unknown is never written again, so that the end of the world
//! can tell which of two states it is in.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// The bytes of one version of a file, made from two numbers. Zero bytes long is a content too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Tells versions apart.
    pub version: u64,
    /// Bytes.
    pub length: usize,
}

impl Content {
    /// The bytes. Every aligned eight of them say which version and which place they are of.
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

/// What a path may lead to; `None` is nothing.
pub type State = Option<Content>;

#[derive(Clone, Debug, Default)]
struct Path {
    /// One of these is true.
    states: Vec<State>,
    /// Every content that was ever on its way here.
    ever: Vec<Content>,
}

/// All paths of a world.
#[derive(Default)]
pub struct Model(Mutex<BTreeMap<String, Path>>);

impl Model {
    /// What is known of a path: one state, or several when nobody knows.
    #[must_use]
    pub fn states(&self, path: &str) -> Vec<State> {
        self.0.lock().get(path).map_or_else(|| vec![None], |known| known.states.clone())
    }

    /// The one state of a path, if it is known.
    #[must_use]
    pub fn known(&self, path: &str) -> Option<State> {
        match self.states(path)[..] {
            [state] => Some(state),
            _ => None,
        }
    }

    /// Somebody is about to write this there.
    pub fn attempt(&self, path: &str, content: Content) {
        let mut all = self.0.lock();
        let known = all.entry(path.to_owned()).or_default();
        if known.states.is_empty() {
            known.states.push(None);
        }
        known.ever.push(content);
    }

    /// This is what is there now.
    pub fn set(&self, path: &str, state: State) {
        self.0.lock().entry(path.to_owned()).or_default().states = vec![state];
    }

    /// This may be there now, instead of what was.
    pub fn maybe(&self, path: &str, state: State) {
        let mut all = self.0.lock();
        let known = all.entry(path.to_owned()).or_default();
        if known.states.is_empty() {
            known.states.push(None);
        }
        if !known.states.contains(&state) {
            known.states.push(state);
        }
    }

    /// Could a reader that does not know the writer's steps have read these bytes?
    #[must_use]
    pub fn was_ever(&self, path: &str, bytes: &[u8]) -> bool {
        let ever = self.0.lock().get(path).map(|known| known.ever.clone()).unwrap_or_default();
        ever.iter().rev().any(|content| content.length == bytes.len() && content.bytes() == bytes)
    }

    /// All paths that were ever written, in order.
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
        let (a, b) =
            (Content { version: 1, length: 4096 }.bytes(), Content { version: 2, length: 4096 }.bytes());
        let words = |bytes: &[u8]| {
            bytes.chunks_exact(8).map(<[u8]>::to_vec).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(words(&a).len(), 512);
        assert!(words(&a).is_disjoint(&words(&b)));
        assert_eq!(Content { version: 1, length: 5 }.bytes(), a[..5]);
    }

    #[test]
    fn an_unknown_fate_has_two_states() {
        let model = Model::default();
        let content = Content { version: 1, length: 1 };
        assert_eq!(model.known("/a"), Some(None));
        model.attempt("/a", content);
        assert_eq!(model.known("/a"), Some(None));
        model.maybe("/a", Some(content));
        assert_eq!(model.known("/a"), None);
        model.set("/a", Some(content));
        assert_eq!(model.known("/a"), Some(Some(content)));
    }
}
