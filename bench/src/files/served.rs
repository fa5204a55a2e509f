//! Third-party servers of a file system: started, awaited, ended, unmounted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::folder::ServerGuard;
use crate::Outcome;

/// How long a program may take until it serves, and until it has ended.
const READY_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(20);
/// Interval of checking.
const POLL: Duration = Duration::from_millis(20);

/// A running server; unmounted and ended when dropped.
pub(crate) struct ServerProcess {
    child: Child,
    place: Option<PathBuf>,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts a program that stays in the foreground; its output goes to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Outcome<Self> {
        let to = File::create(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(to.try_clone()?)
            .stderr(to)
            .spawn()
            .map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
        Ok(Self { child, place: None, log: log.to_owned() })
    }

    /// Waits until it has mounted this mount point, which is unmounted when dropped.
    pub(crate) fn mounts(mut self, place: &Path) -> Outcome<Self> {
        self.place = Some(place.to_owned());
        self.wait("mount", || is_mounted(place))?;
        Ok(self)
    }

    /// Waits until `ready` returns true.
    pub(crate) fn wait(&mut self, what: &str, mut ready: impl FnMut() -> Outcome<bool>) -> Outcome {
        let begin = Instant::now();
        while !ready()? {
            let over = self.child.try_wait()?;
            if over.is_some() || begin.elapsed() > READY_MAX {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                let said: Vec<&str> = said.lines().rev().take(3).collect();
                return Err(format!("no {what}: {}", said.join(" | ")).into());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

impl ServerGuard for ServerProcess {
    fn processes(&self) -> Vec<u32> {
        vec![self.child.id()]
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            let _ = unmount(place, UnmountFlags::DETACH);
        }
        let begin = Instant::now();
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        while let Ok(None) = self.child.try_wait() {
            if begin.elapsed() > END_MAX {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(POLL);
        }
    }
}

/// Whether something is mounted there.
fn is_mounted(place: &Path) -> Outcome<bool> {
    let place = place.to_str().ok_or("a path that is not UTF-8")?;
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(place)))
}

/// Returns the path of a program, if it is installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Returns the path of a program, or an error with its package.
pub(crate) fn needed(name: &str, package: &str) -> Outcome<PathBuf> {
    program(name).ok_or_else(|| format!("{name} is not installed (package {package})").into())
}

/// Checks that this process can mount.
pub(crate) fn can_mount() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err("mounting takes root here".into());
    }
    File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map(drop)
        .map_err(|error| format!("/dev/fuse: {error}").into())
}

/// Creates a folder.
pub(crate) fn new_folder(path: &Path) -> Outcome<PathBuf> {
    fs::create_dir_all(path)?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_an_exited_server_is_quoted() {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such thing; exit 3"]);
        let served = ServerProcess::start(command, &scratch.path().join("log")).unwrap();
        let said = served.mounts(&scratch.path().join("place")).err().unwrap().to_string();
        assert!(said.contains("no mount") && said.contains("no such thing"), "{said}");
    }

    #[test]
    fn missing_program_is_named_with_its_package() {
        let said = needed("no-such-program-here", "no-such-package").unwrap_err().to_string();
        assert!(said.contains("package no-such-package"), "{said}");
        assert!(program("sh").is_some());
    }
}
