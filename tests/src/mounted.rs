//! A mount of a system under test.
//!
//! Contract: whatever a test does, the mount is gone and its process dead when the handle is dropped.

use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use crate::{Daemon, Signal, System, text};

/// Can something be mounted on this machine? Tests that cannot say why they are left out.
#[must_use]
#[allow(clippy::print_stderr, reason = "whoever runs the tests is told what was left out")]
pub fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &device {
        eprintln!("left out: a mount takes /dev/fuse ({error})");
    } else if !rustix::process::geteuid().is_root() {
        eprintln!("left out: mounting here takes root");
        return false;
    }
    device.is_ok()
}

/// A mount.
#[derive(Debug)]
pub struct Mounted {
    place: PathBuf,
    daemon: Option<Daemon>,
}

impl Mounted {
    /// Mounts the whole file system at a new folder of this name.
    #[track_caller]
    #[must_use]
    pub fn at(system: &System, name: &str) -> Self {
        Self::with(system, name, &[])
    }

    /// The same with more flags.
    #[track_caller]
    #[must_use]
    pub fn with(system: &System, name: &str, flags: &[&str]) -> Self {
        let place = system.path(name);
        std::fs::create_dir_all(&place).expect("a folder to mount at");
        // Made before the process: if that panics, what it mounted goes nevertheless.
        let mut mounted = Self { place: place.clone(), daemon: None };
        let mut arguments = vec!["--json", "mount", text(&place), "--foreground"];
        arguments.extend(flags);
        mounted.daemon = Some(Daemon::start(system.command(&arguments)));
        mounted
    }

    /// A path below it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Its process.
    #[track_caller]
    #[must_use]
    pub const fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("the mount's process runs")
    }

    /// Ends its process as a power cut would; the mount stays behind, dead.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.end(Signal::Kill);
        }
    }

    /// Waits until its process ended after somebody unmounted it; its exit code.
    pub fn ended(&mut self) -> i32 {
        self.daemon.take().map_or(0, |mut daemon| daemon.end(Signal::Terminate))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.place, UnmountFlags::DETACH);
        drop(self.daemon.take());
    }
}
