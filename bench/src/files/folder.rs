//! A file system in a local folder: mounted, or the disk's.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use super::job::{Client, Job, PIECE, SMALL, Step, Subject};
use crate::Outcome;

/// Server of a folder; dropped with it.
pub(crate) trait Keep {
    fn processes(&self) -> Vec<u32>;
}

/// A folder, and its servers.
pub(crate) struct Folder {
    name: String,
    root: PathBuf,
    /// Servers in the order in which they end.
    keeps: Vec<Box<dyn Keep>>,
}

impl Folder {
    pub(crate) fn new(name: &str, root: &Path, keeps: Vec<Box<dyn Keep>>) -> Self {
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

    fn client(&self) -> Outcome<Box<dyn Client>> {
        Ok(Box::new(Program { root: self.root.clone(), buffer: vec![0x5A; PIECE] }))
    }

    fn processes(&self) -> Vec<u32> {
        self.keeps.iter().flat_map(|keep| keep.processes()).collect()
    }
}

/// A program that uses it.
struct Program {
    root: PathBuf,
    buffer: Vec<u8>,
}

impl Program {
    fn write(&self, path: &Path, job: &Job, sync: bool) -> Outcome<u64> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let done = job.each(|_| Ok(file.write_all(&self.buffer)?))?;
        if sync {
            file.sync_all()?;
        }
        Ok(done)
    }

    fn read(&mut self, path: &Path, job: &Job) -> Outcome<u64> {
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
fn settle(directory: &Path, job: &Job) -> Outcome {
    if job.durable {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

impl Client for Program {
    fn perform(&mut self, job: &Job) -> Outcome<u64> {
        let directory = self.root.join(&job.directory);
        let path = |number: u64| directory.join(job.name(number));
        match job.step {
            Step::MakeDirectory => fs::create_dir(&directory).map(|()| 1).map_err(Into::into),
            Step::RemoveDirectory => fs::remove_dir(&directory).map(|()| 1).map_err(Into::into),
            Step::Create => job.each(|number| {
                OpenOptions::new().write(true).create_new(true).open(path(number))?;
                settle(&directory, job)
            }),
            Step::Stat => job.each(|number| Ok(fs::symlink_metadata(path(number)).map(drop)?)),
            Step::List => {
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
            Step::Rename => job.each(|number| {
                fs::rename(path(number), directory.join(job.other_name(number)))?;
                settle(&directory, job)
            }),
            Step::Unlink => job.each(|number| {
                fs::remove_file(path(number))?;
                settle(&directory, job)
            }),
            Step::Put => job.each(|number| {
                let mut file = OpenOptions::new().write(true).create_new(true).open(path(number))?;
                file.write_all(&self.buffer[..SMALL])?;
                if job.durable {
                    file.sync_all()?;
                }
                settle(&directory, job)
            }),
            Step::Get => {
                let mut bytes = [0; SMALL];
                job.each(|number| Ok(cold(&path(number))?.read_exact(&mut bytes)?))
            }
            Step::Write => self.write(&path(0), job, false),
            Step::WriteSync => self.write(&path(0), job, true),
            Step::Read => self.read(&path(0), job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::job::Crew;
    use std::time::Duration;

    #[test]
    fn each_step_does_what_it_says() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::new("disk", scratch.path(), Vec::new());
        let mut crew = Crew::new(&folder, 2, "t", 3, Duration::from_secs(60)).unwrap();
        crew.aside(Step::MakeDirectory, 'f', true).unwrap();
        for step in [Step::Create, Step::Stat, Step::List, Step::Rename] {
            assert_eq!(crew.step(step, 'f').unwrap().0, 6, "{step:?}");
        }
        let names: Vec<_> = fs::read_dir(scratch.path().join("t-1")).unwrap().map(Result::unwrap).collect();
        assert!(names.iter().all(|entry| entry.file_name().to_string_lossy().starts_with('r')));
        crew.be_durable();
        assert_eq!(crew.step(Step::Unlink, 'r').unwrap().0, 6);
        assert_eq!(crew.step(Step::Put, 's').unwrap().0, 6);
        assert_eq!(crew.step(Step::Get, 's').unwrap().0, 6);
        assert_eq!(fs::metadata(scratch.path().join("t-0/s0")).unwrap().len(), SMALL as u64);
        crew.aside(Step::Unlink, 's', false).unwrap();
        assert_eq!(crew.step(Step::WriteSync, 'w').unwrap().0, 6);
        assert_eq!(crew.step(Step::Read, 'w').unwrap().0, 6);
        assert_eq!(fs::metadata(scratch.path().join("t-0/w0")).unwrap().len(), 3 * PIECE as u64);
        crew.aside(Step::Unlink, 'w', true).unwrap();
        crew.aside(Step::RemoveDirectory, 'f', true).unwrap();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn incomplete_listing_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::new("disk", scratch.path(), Vec::new());
        let mut crew = Crew::new(&folder, 1, "t", 3, Duration::from_secs(60)).unwrap();
        crew.aside(Step::MakeDirectory, 'f', true).unwrap();
        crew.step(Step::Create, 'f').unwrap();
        fs::remove_file(scratch.path().join("t-0/f1")).unwrap();
        assert!(crew.step(Step::List, 'f').unwrap_err().to_string().contains("2 of 3"));
    }
}
