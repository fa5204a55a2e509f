//! Control groups of engines, version 1 and version 2.
//!
//! Does: find the controllers that this process may use, create one group per engine with its
//! limits, and remove groups. In version 2 it moves the daemon to a child of its group, if only the
//! daemon is in that group.
//! Does not: delegate anything to engines, which do not see cgroupfs.
//! Contract: folders are named after the zygote, so that any later daemon finds abandoned ones.
//! Truth: docs/how-to/install.md (`Delegate=`); the kernel's cgroup-v2 document, "no internal
//! process constraint".

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::options::EngineLimits;
use crate::report::{IsolationLayer, IsolationReport, LayerState};
use crate::system;

/// Start of the folder names of zygotes; the process id follows.
const FOLDER_PREFIX: &str = "sealstone-engines-";
/// Name of the group of version 2 that has the daemon and its zygotes.
const DAEMON_GROUP: &str = "sealstone-daemon";
/// Maximum number of processes that are moved there.
const MEMBERS_MAX: usize = 64;
/// Longest chain of parents from a process to the daemon: a zygote, an init process, an engine.
const GENERATIONS_MAX: usize = 4;
/// Name of the group that shows whether limits can be set.
const TRIAL_GROUP: &str = "trial";
/// Period of a processor quota in microseconds, and the quota for each percent of it.
const CPU_PERIOD_US: u64 = 100_000;
const CPU_US_PER_PERCENT: u64 = CPU_PERIOD_US / 100;
/// Shares of a group in version 1 that correspond to weight 100 in version 2.
const SHARES_OF_WEIGHT_100: u64 = 1024;
/// Attempts to remove a group whose last process is still ending, and the interval between them.
const REMOVE_ATTEMPTS: u32 = 100;
const REMOVE_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum bytes read from a file of counters.
const COUNTERS_BYTES_MAX: usize = 4096;

/// A resource controller that confines engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupController {
    Memory,
    Processes,
    Cpu,
}

impl CgroupController {
    const ALL: [Self; 3] = [Self::Memory, Self::Processes, Self::Cpu];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "pids",
            Self::Cpu => "cpu",
        }
    }

    const fn layer(self) -> IsolationLayer {
        match self {
            Self::Memory => IsolationLayer::MemoryCgroup,
            Self::Processes => IsolationLayer::ProcessCgroup,
            Self::Cpu => IsolationLayer::CpuCgroup,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupVersion {
    One,
    Two,
}

/// A folder in which groups with some controllers can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CgroupHierarchy {
    version: CgroupVersion,
    controllers: Vec<CgroupController>,
    folder: PathBuf,
}

/// The groups of one zygote.
#[derive(Debug, Default)]
pub(crate) struct ZygoteCgroups {
    hierarchies: Vec<CgroupHierarchy>,
}

impl ZygoteCgroups {
    /// Creates the folders of this zygote where that is allowed, and reports the rest.
    pub(crate) fn prepare(zygote: u32, report: &mut IsolationReport) -> Self {
        let mut hierarchies = Vec::new();
        for controller in CgroupController::ALL {
            let state = match prepare_controller(controller, zygote) {
                Ok(hierarchy) => {
                    hierarchies.push(hierarchy);
                    LayerState::Active
                }
                Err(reason) => LayerState::Unavailable(reason),
            };
            report.set(controller.layer(), state);
        }
        Self { hierarchies: merge(hierarchies) }
    }

    /// Creates the groups of one engine with its limits.
    pub(crate) fn create(&self, name: &str, limits: &EngineLimits) -> io::Result<EngineCgroup> {
        let mut group = EngineCgroup { folders: Vec::with_capacity(self.hierarchies.len()) };
        for hierarchy in &self.hierarchies {
            let folder = hierarchy.folder.join(name);
            let created = create_group(hierarchy, &folder, limits);
            let has_memory = hierarchy.controllers.contains(&CgroupController::Memory);
            group.folders.push(EngineFolder { version: hierarchy.version, has_memory, folder });
            if let Err(error) = created {
                group.remove();
                return Err(error);
            }
        }
        Ok(group)
    }

    /// Removes the folders of this zygote, whose engines have ended.
    pub(crate) fn remove(&self) {
        for hierarchy in &self.hierarchies {
            remove_tree(&hierarchy.folder);
        }
    }
}

#[derive(Debug)]
struct EngineFolder {
    version: CgroupVersion,
    has_memory: bool,
    folder: PathBuf,
}

/// The groups of one engine.
#[derive(Debug)]
pub(crate) struct EngineCgroup {
    folders: Vec<EngineFolder>,
}

impl EngineCgroup {
    /// Moves the calling process to the groups.
    pub(crate) fn join(&self) -> io::Result<()> {
        self.folders.iter().try_for_each(|entry| fs::write(entry.folder.join("cgroup.procs"), "0"))
    }

    /// Opens the file that counts the processes that the kernel killed at the memory limit.
    pub(crate) fn open_memory_events(&self) -> io::Result<Option<OwnedFd>> {
        let Some(entry) = self.folders.iter().find(|entry| entry.has_memory) else { return Ok(None) };
        let name = match entry.version {
            CgroupVersion::One => "memory.oom_control",
            CgroupVersion::Two => "memory.events",
        };
        Ok(Some(fs::File::open(entry.folder.join(name))?.into()))
    }

    /// Removes the groups, whose processes have ended.
    pub(crate) fn remove(&self) {
        for entry in &self.folders {
            let _ = fs::remove_dir(&entry.folder);
        }
    }
}

/// Reads how many processes the kernel killed at the memory limit.
pub(crate) fn memory_kills(events: impl AsFd) -> u64 {
    let mut bytes = [0; COUNTERS_BYTES_MAX];
    let length = rustix::io::pread(events, &mut bytes, 0).unwrap_or(0);
    parse_memory_kills(&String::from_utf8_lossy(&bytes[..length]))
}

fn parse_memory_kills(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Finds a folder for groups with this controller, and tries it.
fn prepare_controller(controller: CgroupController, zygote: u32) -> Result<CgroupHierarchy, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| format!("mountinfo: {error}"))?;
    let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| format!("own cgroup: {error}"))?;
    let mut refused = String::new();
    for (version, parent) in candidate_parents(&mounts, &own, controller) {
        let folder = parent.join(format!("{FOLDER_PREFIX}{zygote}"));
        let hierarchy = CgroupHierarchy { version, controllers: vec![controller], folder };
        match try_hierarchy(&hierarchy, &parent, controller) {
            Ok(()) => return Ok(hierarchy),
            Err(error) => {
                // Several controllers of version 2 share this folder; only an empty one is removed.
                let _ = fs::remove_dir(&hierarchy.folder);
                refused = format!("{}: {error}", parent.display());
            }
        }
    }
    if refused.is_empty() {
        Err(format!("no {} controller is mounted", controller.name()))
    } else {
        Err(refused)
    }
}

/// Returns the folders in which this process might create groups, the best one first.
fn candidate_parents(mounts: &str, own: &str, controller: CgroupController) -> Vec<(CgroupVersion, PathBuf)> {
    let mut parents = Vec::new();
    for line in mounts.lines() {
        let Some((version, mount_root, mount_point)) = parse_mount(line, controller) else { continue };
        let listed = |line: &str| -> Option<PathBuf> {
            let mut fields = line.splitn(3, ':').skip(1);
            let (names, path) = (fields.next()?, fields.next()?);
            let is_listed = match version {
                CgroupVersion::One => names.split(',').any(|name| name == controller.name()),
                CgroupVersion::Two => names.is_empty(),
            };
            let below = Path::new(path).strip_prefix(mount_root).ok()?;
            is_listed.then(|| mount_point.join(below))
        };
        let own_folder = own.lines().find_map(listed);
        match (version, own_folder) {
            (CgroupVersion::One, Some(folder)) => {
                parents.extend([folder, mount_point].map(|path| (version, path)))
            }
            (CgroupVersion::One, None) => parents.push((version, mount_point)),
            // A group with processes has no children with controllers, except for the root. So the
            // daemon is in a child of a delegated group: of its own, or by DelegateSubgroup= of
            // systemd.
            (CgroupVersion::Two, Some(folder)) => {
                let parent =
                    folder.parent().filter(|parent| parent.starts_with(&mount_point)).map(Path::to_owned);
                parents.extend(std::iter::once(folder).chain(parent).map(|path| (version, path)));
            }
            (CgroupVersion::Two, None) => {}
        }
    }
    parents.dedup();
    parents
}

/// Parses a line of mountinfo; `None` if it is not a hierarchy that has the controller.
fn parse_mount(line: &str, controller: CgroupController) -> Option<(CgroupVersion, &str, PathBuf)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut fields = file_system.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let version = match kind {
        "cgroup" if options.split(',').any(|option| option == controller.name()) => CgroupVersion::One,
        "cgroup2" => CgroupVersion::Two,
        _ => return None,
    };
    Some((version, root, PathBuf::from(point)))
}

/// Creates the folder of a zygote and a group in it, which is removed again.
fn try_hierarchy(hierarchy: &CgroupHierarchy, parent: &Path, controller: CgroupController) -> io::Result<()> {
    if hierarchy.version == CgroupVersion::Two {
        make_available(parent, controller.name(), system::parent_id())?;
    }
    match fs::create_dir(&hierarchy.folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if hierarchy.version == CgroupVersion::Two {
        enable_controller(&hierarchy.folder, controller.name())?;
    }
    let group = hierarchy.folder.join(TRIAL_GROUP);
    let created = create_group(hierarchy, &group, &EngineLimits::default());
    let removed = fs::remove_dir(&group);
    created.and(removed)
}

/// Makes a controller available to the children of a group of version 2. If the daemon is in the
/// group, it and its processes move to a child first: the kernel permits no other order.
fn make_available(group: &Path, controller: &str, daemon: libc::pid_t) -> io::Result<()> {
    match enable_controller(group, controller) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            move_daemon(group, daemon)?;
            enable_controller(group, controller)
        }
        result => result,
    }
}

/// Enables a controller for the children of a group of version 2.
fn enable_controller(group: &Path, controller: &str) -> io::Result<()> {
    let available = fs::read_to_string(group.join("cgroup.controllers"))?;
    if !available.split_whitespace().any(|name| name == controller) {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no {controller} controller")));
    }
    let file = group.join("cgroup.subtree_control");
    if fs::read_to_string(&file)?.split_whitespace().any(|name| name == controller) {
        return Ok(());
    }
    fs::write(file, format!("+{controller}"))
}

/// Moves all processes of a group to its child for the daemon. Fails if the group has a process
/// that is not of the daemon: it is the group of a session or a machine then.
fn move_daemon(group: &Path, daemon: libc::pid_t) -> io::Result<()> {
    let refused = |reason: &str| Err(io::Error::other(format!("{}: {reason}", group.display())));
    if group.ends_with(DAEMON_GROUP) {
        return refused("the daemon is in it");
    }
    let members = fs::read_to_string(group.join("cgroup.procs"))?;
    let members: Vec<libc::pid_t> = members.lines().filter_map(|line| line.parse().ok()).collect();
    if members.len() > MEMBERS_MAX {
        return refused("it has too many processes to move them");
    }
    if !members.iter().all(|member| is_of_daemon(*member, daemon)) {
        return refused("other processes are in it; under systemd, set Delegate=yes for the service");
    }
    let child = group.join(DAEMON_GROUP);
    match fs::create_dir(&child) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for member in members {
        match fs::write(child.join("cgroup.procs"), member.to_string()) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            result => result?,
        }
    }
    Ok(())
}

/// Whether a process is the daemon or one of its descendants.
fn is_of_daemon(process: libc::pid_t, daemon: libc::pid_t) -> bool {
    let parent = |process: &libc::pid_t| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name, in brackets, may contain anything.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    daemon > 0 && std::iter::successors(Some(process), parent).take(GENERATIONS_MAX).any(|one| one == daemon)
}

/// Combines entries with the same folder.
fn merge(hierarchies: Vec<CgroupHierarchy>) -> Vec<CgroupHierarchy> {
    let mut merged: Vec<CgroupHierarchy> = Vec::new();
    for hierarchy in hierarchies {
        match merged.iter_mut().find(|other| other.folder == hierarchy.folder) {
            Some(other) => other.controllers.extend(hierarchy.controllers),
            None => merged.push(hierarchy),
        }
    }
    merged
}

fn create_group(hierarchy: &CgroupHierarchy, group: &Path, limits: &EngineLimits) -> io::Result<()> {
    fs::create_dir(group)?;
    for &controller in &hierarchy.controllers {
        for (file, value, is_optional) in limit_files(hierarchy.version, controller, limits) {
            match fs::write(group.join(file), value) {
                Err(error) if is_optional && error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
    }
    Ok(())
}

/// Returns the files that set the limits of a controller: name, value, whether it may be missing.
fn limit_files(
    version: CgroupVersion,
    controller: CgroupController,
    limits: &EngineLimits,
) -> Vec<(&'static str, String, bool)> {
    // One more for the init process of the engine.
    let processes = (u64::from(limits.threads) + 1).to_string();
    let memory = limits.memory_bytes.to_string();
    let weight = u64::from(limits.cpu_weight);
    let quota = limits.cpu_percent.map(|percent| u64::from(percent) * CPU_US_PER_PERCENT);
    match (version, controller) {
        (CgroupVersion::One, CgroupController::Memory) => vec![
            ("memory.limit_in_bytes", memory.clone(), false),
            // Missing without swap accounting.
            ("memory.memsw.limit_in_bytes", memory, true),
        ],
        (CgroupVersion::Two, CgroupController::Memory) => {
            vec![("memory.max", memory, false), ("memory.swap.max", "0".to_owned(), true)]
        }
        (_, CgroupController::Processes) => vec![("pids.max", processes, false)],
        (CgroupVersion::One, CgroupController::Cpu) => {
            let mut files = vec![("cpu.shares", (weight * SHARES_OF_WEIGHT_100 / 100).to_string(), false)];
            if let Some(quota) = quota {
                files.push(("cpu.cfs_period_us", CPU_PERIOD_US.to_string(), false));
                files.push(("cpu.cfs_quota_us", quota.to_string(), false));
            }
            files
        }
        (CgroupVersion::Two, CgroupController::Cpu) => {
            let mut files = vec![("cpu.weight", weight.to_string(), false)];
            files.extend(quota.map(|quota| ("cpu.max", format!("{quota} {CPU_PERIOD_US}"), false)));
            files
        }
    }
}

/// Removes the groups that a zygote left behind when it was killed.
pub(crate) fn remove_of_zygote(zygote: u32) {
    let name = format!("{FOLDER_PREFIX}{zygote}");
    for folder in all_parents().iter().map(|parent| parent.join(&name)).filter(|folder| folder.exists()) {
        remove_tree(&folder);
    }
}

/// Removes the groups of zygotes that do not exist any more.
pub(crate) fn remove_abandoned() {
    for parent in all_parents() {
        let Ok(entries) = fs::read_dir(&parent) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let zygote = name.to_str().and_then(|name| name.strip_prefix(FOLDER_PREFIX));
            let Some(zygote) = zygote.and_then(|id| id.parse::<u32>().ok()) else { continue };
            if !Path::new("/proc").join(zygote.to_string()).exists() {
                remove_tree(&entry.path());
            }
        }
    }
}

fn all_parents() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of = |controller| candidate_parents(&mounts, &own, controller);
    let mut parents: Vec<PathBuf> =
        CgroupController::ALL.into_iter().flat_map(of).map(|(_, parent)| parent).collect();
    parents.sort();
    parents.dedup();
    parents
}

/// Removes a group and the groups in it, waiting a bounded time for processes that are ending.
fn remove_tree(folder: &Path) {
    for attempt in 0..REMOVE_ATTEMPTS {
        if attempt > 0 {
            thread::sleep(REMOVE_INTERVAL);
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let _ = fs::remove_dir(entry.path());
        }
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "36 25 0:30 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n\
                       37 25 0:31 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
    const TWO: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn first_version_parents_follow_mounts() {
        let own = "8:memory:/daemons/osd\n1:cpu,cpuacct:/docker/abc/osd\n";
        let parents = candidate_parents(ONE, own, CgroupController::Memory);
        let expected = ["/sys/fs/cgroup/memory/daemons/osd", "/sys/fs/cgroup/memory"];
        assert_eq!(parents, expected.map(|path| (CgroupVersion::One, PathBuf::from(path))));
        let parents = candidate_parents(ONE, own, CgroupController::Cpu);
        let expected = ["/sys/fs/cgroup/cpu,cpuacct/osd", "/sys/fs/cgroup/cpu,cpuacct"];
        assert_eq!(parents, expected.map(|path| (CgroupVersion::One, PathBuf::from(path))));
        assert!(candidate_parents(ONE, own, CgroupController::Processes).is_empty());
    }

    #[test]
    fn second_version_parents_include_delegated_one() {
        let own = "0::/system.slice/osd.service/daemon\n";
        let parents = candidate_parents(TWO, own, CgroupController::Memory);
        let expected =
            ["/sys/fs/cgroup/system.slice/osd.service/daemon", "/sys/fs/cgroup/system.slice/osd.service"];
        assert_eq!(parents, expected.map(|path| (CgroupVersion::Two, PathBuf::from(path))));
        assert_eq!(candidate_parents(TWO, "0::/\n", CgroupController::Memory).len(), 1);
    }

    #[test]
    fn limits_become_files_of_each_version() {
        let limits = EngineLimits { cpu_percent: Some(25), cpu_weight: 50, ..EngineLimits::default() };
        let one = limit_files(CgroupVersion::One, CgroupController::Cpu, &limits);
        assert_eq!(one[0], ("cpu.shares", "512".to_owned(), false));
        assert_eq!(one[2], ("cpu.cfs_quota_us", "25000".to_owned(), false));
        let two = limit_files(CgroupVersion::Two, CgroupController::Cpu, &limits);
        assert_eq!(two[1], ("cpu.max", "25000 100000".to_owned(), false));
        let pids = limit_files(CgroupVersion::Two, CgroupController::Processes, &limits);
        assert_eq!(pids, [("pids.max", "2".to_owned(), false)]);
    }

    #[test]
    fn second_version_controller_is_enabled_in_folder() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::write(folder.path().join("cgroup.controllers"), "cpu memory\n").expect("write");
        fs::write(folder.path().join("cgroup.subtree_control"), "cpu\n").expect("write");
        enable_controller(folder.path(), "cpu").expect("enabled already");
        enable_controller(folder.path(), "memory").expect("is available");
        let written = fs::read_to_string(folder.path().join("cgroup.subtree_control")).expect("read");
        assert_eq!(written, "+memory");
        let missing = enable_controller(folder.path(), "pids");
        assert_eq!(missing.expect_err("no such controller").kind(), io::ErrorKind::NotFound);
    }

    /// A group of a mounted hierarchy of version 2, with a controller that processes can use.
    struct TestGroup {
        folder: PathBuf,
        controller: String,
    }

    impl TestGroup {
        /// Creates one; `None` without root or such a hierarchy.
        fn create(name: &str) -> Option<Self> {
            let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
            let two = |line: &str| match parse_mount(line, CgroupController::Memory) {
                Some((CgroupVersion::Two, _, point)) => Some(point),
                _ => None,
            };
            let top = mounts.lines().find_map(two)?;
            let controllers = fs::read_to_string(top.join("cgroup.controllers")).ok()?;
            let controller = controllers.split_whitespace().next()?.to_owned();
            enable_controller(&top, &controller).ok()?;
            let folder = top.join(format!("sealstone-test-{name}-{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            Some(Self { folder, controller })
        }

        fn procs(&self, group: &str) -> Vec<u32> {
            let text = fs::read_to_string(self.folder.join(group).join("cgroup.procs")).expect("processes");
            text.lines().map(|line| line.parse().expect("a number")).collect()
        }
    }

    impl Drop for TestGroup {
        fn drop(&mut self) {
            // The controller stays enabled at the top: a parallel test may use it.
            remove_tree(&self.folder);
        }
    }

    fn sleeper(group: &Path) -> std::process::Child {
        let child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep starts");
        fs::write(group.join("cgroup.procs"), child.id().to_string()).expect("moved");
        child
    }

    fn end(mut child: std::process::Child) {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }

    #[test]
    fn daemon_moves_to_child_of_its_group() {
        let Some(group) = TestGroup::create("move") else {
            sealstone_test_support::left_out("no controller of cgroup version 2 that this user can enable");
            return;
        };
        let (daemon, zygote) = (sleeper(&group.folder), sleeper(&group.folder));
        let busy = enable_controller(&group.folder, &group.controller).expect_err("it has processes");
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        // The test is the parent of both, as a daemon is of its zygotes.
        let own = std::process::id() as libc::pid_t;
        make_available(&group.folder, &group.controller, own).expect("moved and enabled");
        assert!(group.procs("").is_empty());
        let mut expected = vec![daemon.id(), zygote.id()];
        expected.sort_unstable();
        let mut moved = group.procs(DAEMON_GROUP);
        moved.sort_unstable();
        assert_eq!(moved, expected);
        // A second zygote finds everything as it must be.
        make_available(&group.folder, &group.controller, own).expect("enabled already");
        let refused = move_daemon(&group.folder.join(DAEMON_GROUP), own).expect_err("no group in the group");
        assert!(refused.to_string().contains("the daemon is in it"), "{refused}");
        fs::create_dir(group.folder.join("engine")).expect("a group for an engine");
        let available = fs::read_to_string(group.folder.join("engine/cgroup.controllers")).expect("read");
        assert!(available.contains(&group.controller), "{available}");
        end(daemon);
        end(zygote);
    }

    #[test]
    fn group_with_other_processes_stays_unchanged() {
        let Some(group) = TestGroup::create("stay") else {
            sealstone_test_support::left_out("no controller of cgroup version 2 that this user can enable");
            return;
        };
        let (daemon, other) = (sleeper(&group.folder), sleeper(&group.folder));
        let daemon_id = daemon.id() as libc::pid_t;
        let refused = make_available(&group.folder, &group.controller, daemon_id).expect_err("not its own");
        assert!(refused.to_string().contains("Delegate=yes"), "{refused}");
        assert_eq!(group.procs("").len(), 2);
        assert!(!group.folder.join(DAEMON_GROUP).exists());
        end(daemon);
        end(other);
    }

    #[test]
    fn memory_kills_are_parsed_in_both_versions() {
        assert_eq!(parse_memory_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(parse_memory_kills("low 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(parse_memory_kills(""), 0);
    }
}
