//! Files of a run: operands, and all files below operands that are directories.

use sealstone_client::{Client, FileKind, FilePath, Name};
use sealstone_failure::{Failure, Outcome};
use sealstone_transfer::{join, list_readable, matches_wildcards};

/// A file of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputFile {
    pub(crate) path: FilePath,
    /// Whether it was empty when it was found.
    pub(crate) is_empty: bool,
    /// Its permission bits, if they are known.
    mode: Option<u16>,
}

impl InputFile {
    /// Returns the permission bits of an output: those of the file, without the right to execute.
    pub(crate) fn output_mode(&self) -> u16 {
        self.mode.unwrap_or(0o600) & 0o666
    }
}

/// The files of a run.
#[derive(Debug, Default)]
pub struct InputFiles {
    pub(crate) files: Vec<InputFile>,
    /// Operands and directories that could not be read.
    pub(crate) failed: Vec<Failure>,
    /// Whether an operand is a directory, or names several files.
    pub(crate) has_directory: bool,
}

impl InputFiles {
    /// Returns named files that have bytes.
    pub fn of_paths(paths: impl IntoIterator<Item = FilePath>) -> Self {
        let files = paths.into_iter().map(|path| InputFile { path, is_empty: false, mode: None }).collect();
        Self { files, ..Self::default() }
    }

    /// Whether an operand is a directory, or names several files.
    #[must_use]
    pub const fn has_directory(&self) -> bool {
        self.has_directory
    }

    /// Finds the files of operands. Symbolic links below a directory are not followed.
    ///
    /// # Errors
    /// The failure of the only operand; fatal failures.
    pub async fn find(client: &Client, operands: &[FilePath]) -> Outcome<Self> {
        let mut all = Self::default();
        for top in operands {
            if let Err(failure) = all.add(client, top).await {
                if operands.len() == 1 || failure.fatal {
                    return Err(failure);
                }
                all.failed.push(failure);
            }
        }
        Ok(all)
    }

    async fn add(&mut self, client: &Client, top: &FilePath) -> Outcome {
        let stat = match client.stat(top).await {
            Ok(stat) => stat,
            Err(error) => match top.split_last() {
                Some((folder, pattern)) if error.is_not_found() && has_wildcard(&pattern) => {
                    return self.add_matching(client, top, &folder, &pattern).await;
                }
                _ => return Err(Failure::from(error).at(top)),
            },
        };
        match stat.kind {
            FileKind::File => {
                let mode = Some(stat.mode);
                self.files.push(InputFile { path: top.clone(), is_empty: stat.size == 0, mode });
                return Ok(());
            }
            FileKind::Directory => {}
            _ => return Err(Failure::operation("neither a file nor a directory").at(top)),
        }
        self.has_directory = true;
        self.add_below(client, top).await
    }

    /// Adds the files of a folder whose names match the last name of a path; `*` and `?` have their
    /// usual meaning.
    async fn add_matching(
        &mut self,
        client: &Client,
        top: &FilePath,
        folder: &FilePath,
        pattern: &Name,
    ) -> Outcome {
        let at = |error| Failure::from(error).at(top);
        let pattern = pattern.as_bytes();
        let entries = client.list(folder).map_err(at)?.collect().await.map_err(at)?;
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.name.as_bytes();
            // As in a shell, hidden files are named by a dot.
            let is_visible = !name.starts_with(b".") || pattern.starts_with(b".");
            if entry.kind == FileKind::File && is_visible && matches_wildcards(pattern, name) {
                let path = folder.join(&entry.name).map_err(|error| Failure::usage(error).at(top))?;
                let is_empty = entry.stat.as_ref().is_some_and(|stat| stat.size == 0);
                found.push(InputFile { path, is_empty, mode: entry.stat.map(|stat| stat.mode) });
            }
        }
        if found.is_empty() {
            return Err(Failure::not_found("no file matches").at(top));
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        self.has_directory = true;
        self.files.append(&mut found);
        Ok(())
    }

    /// Adds the files below a directory.
    async fn add_below(&mut self, client: &Client, top: &FilePath) -> Outcome {
        let (mut found, failed) = list_readable(client, top, true).await;
        if let [(directory, failure)] = &failed[..]
            && directory.is_top()
            && found.is_empty()
        {
            return Err(failure.clone());
        }
        self.failed.extend(failed.into_iter().map(|(_, failure)| failure));
        found.retain(|entry| entry.kind == FileKind::File);
        found.sort_by(|a, b| a.path.cmp(&b.path));
        for entry in found {
            let is_empty = entry.stat.as_ref().is_some_and(|stat| stat.size == 0);
            let mode = entry.stat.map(|stat| stat.mode);
            self.files.push(InputFile { path: join(top, &entry.path)?, is_empty, mode });
        }
        Ok(())
    }
}

fn has_wildcard(name: &Name) -> bool {
    name.as_bytes().iter().any(|byte| matches!(byte, b'*' | b'?'))
}
