//! A mount of a system under test.
//!
//! Contract: when the handle is dropped, it is unmounted and its process is dead.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};

use crate::{Daemon, Signal, System, left_out, text};

/// Whether this machine can mount the file system. Reports the test as left out if it cannot.
#[must_use]
pub fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &device {
        left_out(&format!("a mount needs /dev/fuse ({error})"));
    } else if !rustix::process::geteuid().is_root() {
        left_out("a mount needs root");
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

    /// Mounts with more flags.
    #[track_caller]
    #[must_use]
    pub fn with(system: &System, name: &str, flags: &[&str]) -> Self {
        Self::in_session(system, name, &system.path("session.toml"), flags)
    }

    /// Mounts with another session.
    #[track_caller]
    #[must_use]
    pub fn in_session(system: &System, name: &str, session: &Path, flags: &[&str]) -> Self {
        let place = system.path(name);
        std::fs::create_dir_all(&place).expect("a folder to mount at");
        // Created before the process, so that it is unmounted even after a panic.
        let mut mounted = Self { place: place.clone(), daemon: None };
        let mut arguments = vec!["--json", "mount", text(&place), "--foreground"];
        arguments.extend(flags);
        let mut command = system.command(&arguments);
        command.env("SEALSTONE_SESSION", session);
        mounted.daemon = Some(Daemon::start(command));
        mounted
    }

    /// Returns a path below the mount point.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Returns the mount point.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Returns its process.
    #[track_caller]
    #[must_use]
    pub const fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("the mount's process runs")
    }

    /// Kills its process, as a power failure would; the mount point remains, dead.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.end(Signal::Kill);
        }
    }

    /// Waits until its process ended after an unmount, and returns the exit code.
    pub fn ended(&mut self) -> i32 {
        self.end(Signal::Terminate)
    }

    /// Ends its process by this signal, and returns the exit code.
    pub fn end(&mut self, signal: Signal) -> i32 {
        self.daemon.take().map_or(0, |mut daemon| daemon.end(signal))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.place, UnmountFlags::DETACH);
        drop(self.daemon.take());
    }
}

/// Stops a mount's process (SIGSTOP), and continues it when dropped. It is started before the stop,
/// because starting a program closes files, which makes the mount flush.
#[derive(Debug)]
pub struct MountStopper {
    child: std::process::Child,
}

impl MountStopper {
    /// Creates a stopper of this mount.
    #[must_use]
    pub fn of(mount: &Mounted) -> Self {
        let id = mount.daemon().id().to_string();
        let script = format!("read line; kill -STOP {id}; echo; read line; kill -CONT {id}");
        let (input, output) = (Stdio::piped(), Stdio::piped());
        let child = Command::new("sh")
            .args(["-c", &script])
            .stdin(input)
            .stdout(output)
            .spawn()
            .expect("it does as it is told");
        Self { child }
    }

    /// Stops the process.
    pub fn stop(&mut self) {
        self.child
            .stdin
            .as_mut()
            .expect("it does as it is told")
            .write_all(b"\n")
            .expect("it does as it is told");
        self.child
            .stdout
            .as_mut()
            .expect("it does as it is told")
            .read_exact(&mut [0])
            .expect("it does as it is told");
    }
}

impl Drop for MountStopper {
    fn drop(&mut self) {
        // Closes its input; starting another program would wait for the mount.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
