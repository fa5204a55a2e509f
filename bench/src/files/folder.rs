//! A file system in a local folder: mounted, or the disk's.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use super::job::{ClientJob, FileOperation, JobClient, PIECE, SMALL, Subject};
use crate::Outcome;

/// Server of a folder; dropped with it.
pub(crate) trait ServerGuard {
    fn processes(&self) -> Vec<u32>;
}

/// A folder, and its servers.
pub(crate) struct Folder {
    name: String,
    root: PathBuf,
    /// Servers in the order in which they end.
    keeps: Vec<Box<dyn ServerGuard>>,
}

impl Folder {
    pub(crate) fn new(name: &str, root: &Path, keeps: Vec<Box<dyn ServerGuard>>) -> Self {
        Self { name: name.to_owned(), root: root.to_owned(), keeps }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

impl Subject for Folder {
    fn name(&self) -> &str {
        &self.name
    }

    fn client(&self) -> Outcome<Box<dyn JobClient>> {
        Ok(Box::new(FolderClient { root: self.root.clone(), buffer: vec![0x5A; PIECE] }))
    }

    fn processes(&self) -> Vec<u32> {
        self.keeps.iter().flat_map(|keep| keep.processes()).collect()
    }
}

/// A program that uses it.
struct FolderClient {
    root: PathBuf,
    buffer: Vec<u8>,
}

impl FolderClient {
    fn write(&self, path: &Path, job: &ClientJob, sync: bool) -> Outcome<u64> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let done = job.each(|_| Ok(file.write_all(&self.buffer)?))?;
        if sync {
            file.sync_all()?;
        }
        Ok(done)
    }

    fn read(&mut self, path: &Path, job: &ClientJob) -> Outcome<u64> {
        let mut file = cold(path)?;
        job.each(|_| Ok(file.read_exact(&mut self.buffer)?))
    }
}

/// Opens a file that is not in the page cache.
fn cold(path: &Path) -> Outcome<File> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(file)
}

/// Makes names durable if requested, as a careful program does.
fn settle(directory: &Path, job: &ClientJob) -> Outcome {
    if job.durable {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

impl JobClient for FolderClient {
    fn perform(&mut self, job: &ClientJob) -> Outcome<u64> {
        let directory = self.root.join(&job.directory);
        let path = |number: u64| directory.join(job.name(number));
        match job.step {
            FileOperation::MakeDirectory => fs::create_dir(&directory).map(|()| 1).map_err(Into::into),
            FileOperation::RemoveDirectory => fs::remove_dir(&directory).map(|()| 1).map_err(Into::into),
            FileOperation::Create => job.each(|number| {
                OpenOptions::new().write(true).create_new(true).open(path(number))?;
                settle(&directory, job)
            }),
            FileOperation::Stat => job.each(|number| Ok(fs::symlink_metadata(path(number)).map(drop)?)),
            FileOperation::List => {
                let mut found = 0;
                for entry in fs::read_dir(&directory)? {
                    entry?;
                    found += 1;
                }
                match found == job.count {
                    true => Ok(found),
                    false => Err(format!("{found} of {} files are listed", job.count).into()),
                }
            }
            FileOperation::Rename => job.each(|number| {
                fs::rename(path(number), directory.join(job.other_name(number)))?;
                settle(&directory, job)
            }),
            FileOperation::Unlink => job.each(|number| {
                fs::remove_file(path(number))?;
                settle(&directory, job)
            }),
            FileOperation::Put => job.each(|number| {
                let mut file = OpenOptions::new().write(true).create_new(true).open(path(number))?;
                file.write_all(&self.buffer[..SMALL])?;
                if job.durable {
                    file.sync_all()?;
                }
                settle(&directory, job)
            }),
            FileOperation::Get => {
                let mut bytes = [0; SMALL];
                job.each(|number| Ok(cold(&path(number))?.read_exact(&mut bytes)?))
            }
            FileOperation::Write => self.write(&path(0), job, false),
            FileOperation::WriteSync => self.write(&path(0), job, true),
            FileOperation::Read => self.read(&path(0), job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::job::ClientGroup;
    use std::time::Duration;

    #[test]
    fn each_step_performs_its_operation() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::new("disk", scratch.path(), Vec::new());
        let mut crew = ClientGroup::new(&folder, 2, "t", 3, Duration::from_secs(60)).unwrap();
        crew.aside(FileOperation::MakeDirectory, 'f', true).unwrap();
        for step in [FileOperation::Create, FileOperation::Stat, FileOperation::List, FileOperation::Rename] {
            assert_eq!(crew.step(step, 'f').unwrap().0, 6, "{step:?}");
        }
        let names: Vec<_> = fs::read_dir(scratch.path().join("t-1")).unwrap().map(Result::unwrap).collect();
        assert!(names.iter().all(|entry| entry.file_name().to_string_lossy().starts_with('r')));
        crew.be_durable();
        assert_eq!(crew.step(FileOperation::Unlink, 'r').unwrap().0, 6);
        assert_eq!(crew.step(FileOperation::Put, 's').unwrap().0, 6);
        assert_eq!(crew.step(FileOperation::Get, 's').unwrap().0, 6);
        assert_eq!(fs::metadata(scratch.path().join("t-0/s0")).unwrap().len(), SMALL as u64);
        crew.aside(FileOperation::Unlink, 's', false).unwrap();
        assert_eq!(crew.step(FileOperation::WriteSync, 'w').unwrap().0, 6);
        assert_eq!(crew.step(FileOperation::Read, 'w').unwrap().0, 6);
        assert_eq!(fs::metadata(scratch.path().join("t-0/w0")).unwrap().len(), 3 * PIECE as u64);
        crew.aside(FileOperation::Unlink, 'w', true).unwrap();
        crew.aside(FileOperation::RemoveDirectory, 'f', true).unwrap();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn incomplete_listing_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::new("disk", scratch.path(), Vec::new());
        let mut crew = ClientGroup::new(&folder, 1, "t", 3, Duration::from_secs(60)).unwrap();
        crew.aside(FileOperation::MakeDirectory, 'f', true).unwrap();
        crew.step(FileOperation::Create, 'f').unwrap();
        fs::remove_file(scratch.path().join("t-0/f1")).unwrap();
        assert!(crew.step(FileOperation::List, 'f').unwrap_err().to_string().contains("2 of 3"));
    }
}
