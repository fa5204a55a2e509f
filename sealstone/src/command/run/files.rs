//! Files of a command: operands, and all files below operands that are directories.

use sealstone_client::{Client, FileKind, FilePath};

use crate::command::files::list_readable;
use crate::command::tree::join;
use crate::failure::{Failure, Outcome};

/// A file of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunFile {
    pub(super) path: FilePath,
    /// Whether it was empty when it was found.
    pub(super) is_empty: bool,
    /// Its permission bits, if they are known.
    mode: Option<u16>,
}

impl RunFile {
    /// Returns the permission bits of an output: those of the file, without the right to execute.
    pub(super) fn output_mode(&self) -> u16 {
        self.mode.unwrap_or(0o600) & 0o666
    }
}

/// The files of a command.
#[derive(Debug, Default)]
pub(crate) struct RunFiles {
    pub(super) files: Vec<RunFile>,
    /// Operands and directories that could not be read.
    pub(super) failed: Vec<Failure>,
    /// Whether an operand is a directory.
    pub(super) has_directory: bool,
}

impl RunFiles {
    /// Returns named files that have bytes.
    pub(crate) fn of_paths(paths: impl IntoIterator<Item = FilePath>) -> Self {
        let files = paths.into_iter().map(|path| RunFile { path, is_empty: false, mode: None }).collect();
        Self { files, ..Self::default() }
    }

    /// Finds the files of operands. Symbolic links below a directory are not followed.
    ///
    /// # Errors
    /// The failure of the only operand; fatal failures.
    pub(super) async fn find(client: &Client, operands: &[FilePath]) -> Outcome<Self> {
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
        let stat = client.stat(top).await.map_err(|error| Failure::from(error).at(top))?;
        match stat.kind {
            FileKind::File => {
                let mode = Some(stat.mode);
                self.files.push(RunFile { path: top.clone(), is_empty: stat.size == 0, mode });
                return Ok(());
            }
            FileKind::Directory => {}
            _ => return Err(Failure::operation("neither a file nor a directory").at(top)),
        }
        self.has_directory = true;
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
            self.files.push(RunFile { path: join(top, &entry.path)?, is_empty, mode });
        }
        Ok(())
    }
}
