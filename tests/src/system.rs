//! An MDS and some devices as separate processes, with an administrator's session.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::prepared::{init_mds, init_mds_with_session, log_in, write_session};
use crate::{CommandResult, Daemon, Signal, Tmpfs, command, run};

/// Default capacity of each device; files are sparse.
const CAPACITY: &str = "2G";

/// The processes and their folders.
#[derive(Debug)]
pub struct System {
    mds: Option<Daemon>,
    mds_address: String,
    mds_flags: Vec<String>,
    osds: Vec<DeviceSlot>,
    /// Unmounted after the processes ended.
    _disks: Vec<Tmpfs>,
    folder: TempDir,
}

#[derive(Debug)]
struct DeviceSlot {
    daemon: Option<Daemon>,
    address: String,
    flags: Vec<String>,
}

impl System {
    /// Starts one MDS and `osds` devices, ready for use.
    #[track_caller]
    #[must_use]
    pub fn start(osds: usize) -> Self {
        Self::start_with(osds, CAPACITY, &[])
    }

    /// Starts a system with a capacity and more flags for each device.
    #[track_caller]
    #[must_use]
    pub fn start_with(osds: usize, capacity: &str, flags: &[&str]) -> Self {
        Self::start_with_mds(osds, capacity, flags, &[])
    }

    /// Starts a system with more flags for devices and for the MDS.
    #[track_caller]
    #[must_use]
    pub fn start_with_mds(osds: usize, capacity: &str, flags: &[&str], mds_flags: &[&str]) -> Self {
        Self::start_all(osds, capacity, flags, mds_flags, &[], &[])
    }

    /// Starts one MDS with more flags of `init`, and `osds` devices.
    #[track_caller]
    #[must_use]
    pub fn start_with_init(osds: usize, init_flags: &[&str]) -> Self {
        Self::start_all(osds, CAPACITY, &[], &[], init_flags, &[])
    }

    /// Starts one MDS and `osds` devices; each of the listed folders (`mds`, `osd0`, …) is a tmpfs
    /// of this many MiB. Needs root.
    #[track_caller]
    #[must_use]
    pub fn start_on_tmpfs(osds: usize, capacity: &str, disks: &[(&str, u32)]) -> Self {
        Self::start_all(osds, capacity, &[], &[], &[], disks)
    }

    #[track_caller]
    fn start_all(
        osds: usize,
        capacity: &str,
        flags: &[&str],
        mds_flags: &[&str],
        init_flags: &[&str],
        disks: &[(&str, u32)],
    ) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mounted = |(name, size): &(&str, u32)| Tmpfs::mount(&folder.path().join(name), *size);
        let mounts = disks.iter().map(mounted).collect();
        let mut system = Self {
            _disks: mounts,
            folder,
            mds: None,
            mds_address: "127.0.0.1:0".into(),
            mds_flags: mds_flags.iter().map(|flag| (*flag).to_owned()).collect(),
            osds: Vec::new(),
        };
        let mds = system.path("mds");
        let is_plain = init_flags.is_empty() && disks.is_empty();
        // Flags of the server can change what a login does.
        let has_session = is_plain && mds_flags.is_empty();
        match (is_plain, has_session) {
            (_, true) => init_mds_with_session(&mds),
            (true, false) => init_mds(&mds),
            (false, false) => {
                run(&[&["mds", "init", "--data", text(&mds)], init_flags].concat()).ok();
            }
        }
        system.start_mds();
        let session = system.path("session.toml");
        if has_session {
            write_session(&session, &system.mds_address);
        } else {
            log_in(&mds, &session);
        }
        for index in 0..osds {
            let name = format!("osd{index}");
            let data = system.path(&name);
            let key = system.path(&format!("{name}.key"));
            run(&[
                "osd",
                "init",
                "--data",
                text(&data),
                "--capacity",
                capacity,
                "--name",
                &name,
                "--key-out",
                text(&key),
            ])
            .ok();
            system.osds.push(DeviceSlot {
                daemon: None,
                address: "127.0.0.1:0".into(),
                flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            });
            system.start_osd(index);
            let url = system.osd(index).field("url").to_owned();
            let mut add = vec!["mds", "add-osd", &url, "--key", text(&key)];
            let pin = system.osd(index).ready()["pin"].as_str().map(ToOwned::to_owned);
            if let Some(pin) = &pin {
                add.extend(["--pin", pin]);
            }
            system.run(&add).ok();
        }
        system
    }

    /// Returns a path in the system's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of the cluster file that the MDS wrote.
    #[must_use]
    pub fn cluster(&self) -> PathBuf {
        self.path("mds").join("cluster.toml")
    }

    /// Returns a client command with the administrator's session.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = command(arguments);
        command.env("SEALSTONE_SESSION", self.path("session.toml"));
        command
    }

    /// Runs a client command to its end.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> CommandResult {
        CommandResult::from(self.command(arguments).output().expect("the binary starts"))
    }

    /// Returns the MDS.
    #[track_caller]
    #[must_use]
    pub fn mds(&self) -> &Daemon {
        self.mds.as_ref().expect("the MDS runs")
    }

    /// Returns a metric of the MDS, summed over the lines that match.
    #[track_caller]
    #[must_use]
    pub fn metric(&self, name: &str, of: impl Fn(&str) -> bool) -> u64 {
        let (status, page) = crate::get(self.mds().field("metrics"), "/metrics");
        assert_eq!(status, 200);
        let lines = page.lines().filter(|line| line.starts_with(name) && of(line));
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
        lines.map(|line| value(line).expect("a line ends with a number")).sum()
    }

    /// Returns a device.
    #[track_caller]
    #[must_use]
    pub fn osd(&self, index: usize) -> &Daemon {
        self.osds[index].daemon.as_ref().expect("the device runs")
    }

    /// Returns the address of a device, also while it is stopped.
    #[must_use]
    pub fn osd_address(&self, index: usize) -> &str {
        &self.osds[index].address
    }

    /// Starts the MDS, on its old port if it had one.
    #[track_caller]
    pub fn start_mds(&mut self) {
        let data = self.path("mds");
        let mut command =
            command(&["--json", "mds", "serve", "--data", text(&data), "--listen", &self.mds_address]);
        command.args(&self.mds_flags);
        let daemon = Daemon::start(command);
        daemon.field("address").clone_into(&mut self.mds_address);
        self.mds = Some(daemon);
    }

    /// Starts a device, on its old port if it had one.
    #[track_caller]
    pub fn start_osd(&mut self, index: usize) {
        let data = self.path(&format!("osd{index}"));
        let slot = &mut self.osds[index];
        let mut command =
            command(&["--json", "osd", "serve", "--data", text(&data), "--listen", &slot.address]);
        command.args(&slot.flags);
        let daemon = Daemon::start(command);
        daemon.field("address").clone_into(&mut slot.address);
        slot.daemon = Some(daemon);
    }

    /// Ends the MDS.
    pub fn end_mds(&mut self, signal: Signal) -> i32 {
        self.mds.take().map_or(0, |mut daemon| daemon.end(signal))
    }

    /// Ends a device.
    pub fn end_osd(&mut self, index: usize, signal: Signal) -> i32 {
        self.osds[index].daemon.take().map_or(0, |mut daemon| daemon.end(signal))
    }
}

/// Returns a path as an argument.
///
/// # Panics
/// If it is not UTF-8; temporary paths are.
#[must_use]
pub fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}
