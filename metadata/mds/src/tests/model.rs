//! The namespace against a model: a map from paths to contents.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sealstone_mds_protocol::{ErrorCode, FileKind, Request, Response};

use super::world::{ADMIN, ALICE, World, path};

/// A few names, so that paths collide.
fn any_path() -> impl Strategy<Value = String> {
    "(/[abc]){1,4}"
}

#[derive(Clone, Debug)]
enum Step {
    MakeDir(String, bool),
    Put(String, u64, bool),
    Rename(String, String, bool),
    Remove(String, bool),
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any_path(), any::<bool>()).prop_map(|(p, parents)| Step::MakeDir(p, parents)),
        3 => (any_path(), 0..1000u64, any::<bool>()).prop_map(|(p, size, replace)| Step::Put(p, size, replace)),
        3 => (any_path(), any_path(), any::<bool>()).prop_map(|(a, b, replace)| Step::Rename(a, b, replace)),
        2 => (any_path(), any::<bool>()).prop_map(|(p, recursive)| Step::Remove(p, recursive)),
        1 => Just(Step::Restart),
    ]
}

/// Maps a path to the size of a file, or to none for a directory. The root is "".
#[derive(Default)]
struct Model(BTreeMap<String, Option<u64>>);

impl Model {
    fn parent(path: &str) -> &str {
        path.rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    fn is_dir(&self, path: &str) -> bool {
        path.is_empty() || self.0.get(path) == Some(&None)
    }

    /// Returns the result of resolving the directories above a path.
    fn above(&self, path: &str) -> Result<(), ErrorCode> {
        let parent = Self::parent(path);
        if parent.is_empty() {
            return Ok(());
        }
        self.above(parent)?;
        match self.0.get(parent) {
            None => Err(ErrorCode::NotFound),
            Some(None) => Ok(()),
            Some(Some(_)) => Err(ErrorCode::NotADirectory),
        }
    }

    fn has_children(&self, path: &str) -> bool {
        let prefix = format!("{path}/");
        self.0.range(prefix.clone()..).next().is_some_and(|(p, _)| p.starts_with(&prefix))
    }

    fn make_dir(&mut self, path: &str, parents: bool) -> Result<(), ErrorCode> {
        if parents {
            if !Self::parent(path).is_empty() {
                self.make_dir(Self::parent(path), true).map_err(|error| match error {
                    ErrorCode::Exists => ErrorCode::NotADirectory,
                    other => other,
                })?;
            }
        } else {
            self.above(path)?;
        }
        match self.0.get(path) {
            Some(None) if parents => Ok(()),
            Some(_) => Err(ErrorCode::Exists),
            None => {
                self.0.insert(path.to_owned(), None);
                Ok(())
            }
        }
    }

    fn put(&mut self, path: &str, size: u64, replace: bool) -> Result<(), ErrorCode> {
        self.above(path)?;
        match self.0.get(path) {
            Some(None) => return Err(ErrorCode::IsADirectory),
            Some(Some(_)) if !replace => return Err(ErrorCode::Exists),
            _ => {}
        }
        self.0.insert(path.to_owned(), Some(size));
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str, replace: bool) -> Result<(), ErrorCode> {
        self.above(from)?;
        let moved = *self.0.get(from).ok_or(ErrorCode::NotFound)?;
        self.above(to)?;
        if from == to {
            return Ok(());
        }
        if self.0.contains_key(to) && !replace {
            return Err(ErrorCode::Exists);
        }
        if moved.is_none() && to.starts_with(&format!("{from}/")) {
            return Err(ErrorCode::Cycle);
        }
        if let Some(old) = self.0.get(to) {
            match (moved, old) {
                (Some(_), None) => return Err(ErrorCode::IsADirectory),
                (None, Some(_)) => return Err(ErrorCode::NotADirectory),
                (None, None) if self.has_children(to) => return Err(ErrorCode::NotEmpty),
                _ => {}
            }
        }
        let prefix = format!("{from}/");
        let inside: Vec<String> =
            self.0.keys().filter(|p| *p == from || p.starts_with(&prefix)).cloned().collect();
        let entries: Vec<_> = inside.iter().map(|p| (p.clone(), self.0.remove(p).unwrap())).collect();
        for (old, kind) in entries {
            self.0.insert(format!("{to}{}", &old[from.len()..]), kind);
        }
        Ok(())
    }

    fn remove(&mut self, path: &str, recursive: bool) -> Result<(), ErrorCode> {
        self.above(path)?;
        self.0.get(path).ok_or(ErrorCode::NotFound)?;
        if self.is_dir(path) && self.has_children(path) && !recursive {
            return Err(ErrorCode::NotEmpty);
        }
        let prefix = format!("{path}/");
        self.0.retain(|p, _| p != path && !p.starts_with(&prefix));
        Ok(())
    }
}

fn outcome(response: Response) -> Result<(), ErrorCode> {
    match response {
        Response::Failed { failure } => Err(failure.code),
        _ => Ok(()),
    }
}

fn apply(world: &mut World, step: &Step) -> Result<(), ErrorCode> {
    let request = match step {
        Step::MakeDir(at, parents) => Request::MakeDir { path: path(at), parents: *parents, mode: 0o755 },
        Step::Put(at, size, replace) => {
            let request = Request::Create {
                path: path(at),
                size_hint: Some(*size),
                mode: 0o644,
                replace: *replace,
                method: sealstone_mds_protocol::Method::AllData,
            };
            return match world.ask(ALICE, request) {
                Response::Created { file } => world.commit(ALICE, file.intent, *size).map(drop),
                other => outcome(other),
            };
        }
        Step::Rename(from, to, replace) => {
            Request::Rename { from: path(from), to: path(to), replace: *replace }
        }
        Step::Remove(at, recursive) => Request::Remove { path: path(at), recursive: *recursive },
        Step::Restart => {
            world.restart();
            return Ok(());
        }
    };
    outcome(world.ask(ALICE, request))
}

/// Lists everything reachable from the root.
fn tree(world: &mut World, at: &str, found: &mut BTreeMap<String, Option<u64>>) {
    let here = if at.is_empty() { "/" } else { at };
    let Response::Directory { entries, more } =
        world.ask(ADMIN, Request::ReadDir { path: path(here), after: None, limit: 256 })
    else {
        panic!("{here} does not list")
    };
    assert!(!more);
    for entry in entries {
        let child = format!("{at}/{}", entry.name);
        let stat = entry.stat.expect("administrators see all");
        let kind = (stat.kind == FileKind::File).then_some(stat.size);
        found.insert(child.clone(), kind);
        if kind.is_none() {
            tree(world, &child, found);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn namespace_matches_path_map_model(steps in prop::collection::vec(any_step(), 1..60)) {
        let mut world = World::with_devices(2);
        let mut model = Model::default();
        for step in &steps {
            let expected = match step {
                Step::MakeDir(at, parents) => model.make_dir(at, *parents),
                Step::Put(at, size, replace) => model.put(at, *size, *replace),
                Step::Rename(from, to, replace) => model.rename(from, to, *replace),
                Step::Remove(at, recursive) => model.remove(at, *recursive),
                Step::Restart => Ok(()),
            };
            prop_assert_eq!(apply(&mut world, step), expected, "{:?}", step);
        }
        let mut found = BTreeMap::new();
        tree(&mut world, "", &mut found);
        prop_assert_eq!(&found, &model.0);
        // The totals agree, so no inode was lost or leaked.
        let Response::ServerInfo { files, directories, intents, .. } = world.ask(ADMIN, Request::ServerInfo {}) else {
            panic!("server info")
        };
        let expected_files = model.0.values().filter(|kind| kind.is_some()).count() as u64;
        prop_assert_eq!((files, directories, intents), (expected_files, model.0.len() as u64 - expected_files + 1, 0));
        let inodes = world.disk.dump().iter().filter(|(key, _)| key[0] == b'i').count();
        prop_assert_eq!(inodes, model.0.len() + 1);
    }
}
