//! `get`: fetches files and trees.
//!
//! Does: plans local targets of all operands, then fetches in parallel. `local` creates the
//! entries, `report` collects the results.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_client::{Client, ClientError, FileKind, FilePath, Name, Stat};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use tokio::io::AsyncWriteExt;

use crate::destination::{Destination, Position, ends_in_slash, is_earlier_copy, local_entries, position};
use crate::excluded::Excluded;
use crate::jobs::{Job, run_all};
use crate::listing::{kind_name, list_readable};
use crate::local::{
    self, DIRECTORY_MODE, DirectoryState, FILE_MODE, FileAttributes, LocalPlace, LocalTree, Times,
};
use crate::report::{EntryResult, TransferReport};
use crate::request::{TransferObserver, TransferOptions, TransferProgress, TransferRules};
use crate::stored_path::StoredPath;
use crate::tree::{TreePath, join};

/// Destination of an entry.
#[derive(Clone, Debug)]
enum GetTarget {
    /// The destination itself; a symbolic link is followed.
    Named(PathBuf),
    /// An entry below the destination: symbolic links are not followed.
    Below(LocalTree, TreePath),
}

impl GetTarget {
    fn path(&self) -> PathBuf {
        match self {
            Self::Named(path) => path.clone(),
            Self::Below(tree, below) => tree.path(below),
        }
    }

    fn place(&self) -> Outcome<LocalPlace> {
        let place = match self {
            Self::Named(path) => LocalPlace::of(path),
            Self::Below(tree, below) => tree.place(below),
        };
        place.map_err(|error| Failure::from(error).at(self.path().shown()))
    }
}

/// A file or symbolic link to be fetched.
#[derive(Clone, Debug)]
struct GetEntry {
    stored: FilePath,
    stat: Option<Stat>,
    target: GetTarget,
}

impl Job for GetEntry {
    fn label(&self) -> Vec<u8> {
        self.stored.as_bytes().to_vec()
    }
}

/// A hard link to be created.
struct GetLink {
    first: GetTarget,
    entry: GetEntry,
}

impl Job for GetLink {
    fn label(&self) -> Vec<u8> {
        self.entry.label()
    }
}

/// A directory whose mode and times are set when everything below it is fetched.
struct GetDirectory {
    tree: LocalTree,
    below: TreePath,
    stored: FilePath,
    stat: Stat,
    state: DirectoryState,
}

/// The planned work.
#[derive(Default)]
struct GetPlan {
    directories: Vec<GetDirectory>,
    entries: Vec<GetEntry>,
    links: Vec<GetLink>,
    /// Destination of the first name of each file with several names.
    linked: BTreeMap<u64, GetTarget>,
}

impl GetPlan {
    /// Plans a file or symbolic link. With `keeps_links` a further name of a file becomes a hard
    /// link.
    fn add(&mut self, entry: GetEntry, keeps_links: bool) {
        let several = entry.stat.as_ref().filter(|stat| stat.links > 1 && stat.kind == FileKind::File);
        let several = several.filter(|_| keeps_links).map(|stat| stat.inode.0);
        if let Some(first) = several.and_then(|inode| self.linked.get(&inode)) {
            self.links.push(GetLink { first: first.clone(), entry });
            return;
        }
        if let Some(inode) = several {
            self.linked.insert(inode, entry.target.clone());
        }
        self.entries.push(entry);
    }
}

/// Destination of an operand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OperandTarget {
    /// The destination itself, which can be a symbolic link.
    Itself(PathBuf),
    /// An entry of the destination. A symbolic link of this name is not followed.
    Inside(PathBuf, Name),
}

impl OperandTarget {
    fn path(&self) -> PathBuf {
        match self {
            Self::Itself(path) => path.clone(),
            Self::Inside(folder, name) => folder.join(OsStr::from_bytes(name.as_bytes())),
        }
    }

    /// Returns the destination of a file or symbolic link.
    fn of_file(&self) -> io::Result<GetTarget> {
        Ok(match self {
            Self::Itself(path) => GetTarget::Named(path.clone()),
            Self::Inside(folder, name) => {
                let tree = LocalTree::open(folder)?;
                // A folder that cannot be listed fails at the first write.
                let _ = tree.remove_stale(&TreePath::top());
                GetTarget::Below(tree, TreePath::top().join(name))
            }
        })
    }

    /// Creates the directory if necessary, and opens it.
    fn make_directory(&self) -> io::Result<(LocalTree, DirectoryState)> {
        match self {
            Self::Itself(path) => LocalTree::make(path),
            Self::Inside(folder, name) => {
                let (above, below) = (LocalTree::open(folder)?, TreePath::top().join(name));
                let state = above.make_directory(&below)?;
                Ok((above.subtree(&below)?, state))
            }
        }
    }
}

/// Fetches files and trees. Entries that fail are in the report, and do not stop the others.
///
/// # Errors
/// The destination does not fit the sources, or a failure affects all entries.
pub async fn get(
    client: Arc<Client>,
    sources: &[StoredPath],
    place: &OsStr,
    options: &TransferOptions,
    observer: &Arc<dyn TransferObserver>,
) -> Outcome<TransferReport> {
    let rules = Arc::new(TransferRules::of(options));
    let excluded = Excluded::new(&options.exclude);
    let mut report = TransferReport::new();
    let dry_run = rules.dry_run;
    let mut plan = GetPlan::default();
    for (stored, stat, operand) in operands(&client, sources, place, (&rules, options), &mut report).await? {
        match stat.kind {
            FileKind::Directory => {
                plan_tree(&client, (&stored, &stat), &operand, (&excluded, dry_run), &mut plan, &mut report)
                    .await?;
            }
            FileKind::File | FileKind::Symlink if dry_run => {
                let target = GetTarget::Named(operand.path());
                plan.add(GetEntry { stored, stat: Some(stat), target }, rules.recursive);
            }
            FileKind::File | FileKind::Symlink => match operand.of_file() {
                Ok(target) => plan.add(GetEntry { stored, stat: Some(stat), target }, rules.recursive),
                Err(error) => report.fail(Failure::from(error).at(operand.path().shown())),
            },
            other => report.skip(&stored, format!("is a {}", kind_name(other))),
        }
    }
    if dry_run {
        report_dry_run(&**observer, &plan, &mut report);
        return Ok(report);
    }
    let GetPlan { directories, entries, links, .. } = plan;
    let size = |entry: &GetEntry| entry.stat.as_ref().map_or(0, |stat| stat.size);
    let total = entries.iter().map(size).sum();
    let stored = entries.iter().map(|entry| &entry.stored);
    let progress = TransferProgress::begin_files(observer, "get", total, stored);
    let mut completed = run_all(entries, &mut report, |entry| {
        let (client, rules, progress) = (Arc::clone(&client), Arc::clone(&rules), progress.clone());
        async move { fetch(&client, entry, &rules, &progress).await }
    })
    .await;
    if completed {
        completed = run_all(links, &mut report, |link| {
            let replace = rules.replace;
            async move {
                let place = link.entry.target.place()?;
                let made = link.first.place()?;
                let linked =
                    place.link(&made, replace).map_err(|error| Failure::from(error).at(place.shown()))?;
                Ok(if linked { EntryResult::Link } else { EntryResult::Unchanged })
            }
        })
        .await;
    }
    progress.end();
    if completed {
        for directory in directories.iter().rev() {
            if let Err(failure) = finish_directory(&client, directory, &rules).await {
                report.fail(failure);
            }
        }
    }
    Ok(report)
}

/// Returns the destination of each source. Fails before anything is fetched if two sources would
/// get the same path.
async fn operands(
    client: &Client,
    sources: &[StoredPath],
    place: &OsStr,
    (rules, options): (&TransferRules, &TransferOptions),
    report: &mut TransferReport,
) -> Outcome<Vec<(FilePath, Stat, OperandTarget)>> {
    let path = Path::new(place);
    let at = |error: io::Error| Failure::from(error).at(path.shown());
    let found = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(at(error)),
    };
    let (several, slash) = (sources.len() > 1, ends_in_slash(place));
    let is_directory = found.as_ref().is_some_and(fs::Metadata::is_dir);
    if found.is_some() && !is_directory && (slash || several) {
        return Err(Failure::operation("not a directory").at(path.shown()));
    }
    if found.is_none() && (several || (slash && !rules.recursive)) {
        return Err(at(io::Error::from(io::ErrorKind::NotFound)).hint("create it first: mkdir"));
    }
    if several && options.no_target_directory {
        return Err(Failure::usage("--no-target-directory allows only one source"));
    }
    let place_name = local::last_name(place);
    let destination = Destination {
        exists: found.is_some(),
        is_directory,
        trailing_slash: slash || several,
        name: place_name.as_deref(),
    };
    let (mut operands, mut targets) = (Vec::new(), BTreeSet::new());
    for source in sources {
        let stat = match rules.recursive && !source.trailing_slash {
            true => client.lstat(source).await,
            false => client.stat(source).await,
        };
        let stat = match stat {
            Ok(stat) => stat,
            Err(error) => {
                let failure = Failure::from(error).at(source);
                if failure.fatal {
                    return Err(failure);
                }
                report.fail(failure);
                continue;
            }
        };
        let is_tree = stat.kind == FileKind::Directory;
        if is_tree && !rules.recursive {
            report.fail(Failure::operation("is a directory").at(source).hint("use get -r"));
            continue;
        }
        let name = source.split_last().map(|(_, name)| name);
        let is_copy = async || is_copy_of(client, source, path).await;
        let here = (name.as_ref().map(|name| OsStr::from_bytes(name.as_bytes())), is_tree);
        let position = position(&destination, here, options.no_target_directory, is_copy).await?;
        let target = match (position, name) {
            (Position::Inside, Some(name)) => OperandTarget::Inside(path.to_owned(), name),
            _ => OperandTarget::Itself(path.to_owned()),
        };
        if !targets.insert(target.clone()) {
            return Err(Failure::operation(format!(
                "two sources would be written to {}; nothing was fetched",
                target.path().shown()
            ))
            .at(source)
            .hint("fetch them separately under different names"));
        }
        operands.push(((**source).clone(), stat, target));
    }
    if found.is_none() && slash && !operands.is_empty() && !options.dry_run {
        fs::create_dir(path).map_err(at)?;
    }
    Ok(operands)
}

/// Whether all entries of a local directory exist in a stored directory, and there is at least one.
async fn is_copy_of(client: &Client, stored: &FilePath, path: &Path) -> Outcome<bool> {
    let at = |error| Failure::from(error).at(stored);
    let entries = client.list(stored).map_err(at)?.collect().await.map_err(at)?;
    let kinds: BTreeMap<Vec<u8>, bool> = entries
        .into_iter()
        .map(|entry| (entry.name.as_bytes().to_vec(), entry.kind == FileKind::Directory))
        .collect();
    let local = local_entries(path).map_err(|failure| failure.at(path.shown()))?;
    Ok(is_earlier_copy(local.into_iter(), |name| kinds.get(name.as_bytes()).copied()))
}

/// Creates the directories of a tree and plans its files and links.
async fn plan_tree(
    client: &Client,
    (top, stat): (&FilePath, &Stat),
    operand: &OperandTarget,
    (excluded, dry_run): (&Excluded, bool),
    plan: &mut GetPlan,
    report: &mut TransferReport,
) -> Outcome {
    let path = operand.path();
    let at = |error: io::Error| Failure::from(error).at(path.shown());
    let (listed, failed) = list_readable(client, top, true).await;
    for (_, failure) in failed {
        if failure.fatal {
            return Err(failure);
        }
        report.fail(failure);
    }
    // A dry run does not list directories that it would create.
    let made = match dry_run {
        true => LocalTree::planned(&path).map(|tree| (tree, DirectoryState::Existing)),
        false => operand.make_directory(),
    };
    let (tree, state) = match made {
        Ok(made) => made,
        Err(error) => {
            report.fail(at(error));
            return Ok(());
        }
    };
    // Failed (and reported) or excluded directories, and everything below them.
    let mut lost: BTreeSet<TreePath> = BTreeSet::new();
    if !dry_run {
        report.directories += u64::from(state == DirectoryState::Made);
        if state != DirectoryState::Made {
            // A folder that cannot be listed fails at the first write.
            let _ = tree.remove_stale(&TreePath::top());
        }
        let (tree, below) = (tree.clone(), TreePath::top());
        plan.directories.push(GetDirectory { tree, below, stored: top.clone(), stat: stat.clone(), state });
    }
    for entry in listed {
        let below = entry.path;
        if excluded.has(&below) || below.split_last().is_some_and(|(above, _)| lost.contains(&above)) {
            if entry.kind == FileKind::Directory {
                lost.insert(below);
            }
            continue;
        }
        let stored = match join(top, &below) {
            Ok(stored) => stored,
            Err(failure) => {
                report.fail(failure);
                continue;
            }
        };
        match entry.kind {
            FileKind::Directory if dry_run => {}
            FileKind::Directory => match tree.make_directory(&below) {
                Ok(state) => {
                    report.directories += u64::from(state == DirectoryState::Made);
                    if state != DirectoryState::Made {
                        // A folder that cannot be listed fails at the first write.
                        let _ = tree.remove_stale(&below);
                    }
                    if let Some(stat) = entry.stat {
                        plan.directories.push(GetDirectory {
                            tree: tree.clone(),
                            below,
                            stored,
                            stat,
                            state,
                        });
                    }
                }
                Err(error) => {
                    report.fail(Failure::from(error).at(tree.path(&below).shown()));
                    lost.insert(below);
                }
            },
            FileKind::File | FileKind::Symlink => {
                let target = GetTarget::Below(tree.clone(), below);
                plan.add(GetEntry { stored, stat: entry.stat, target }, true);
            }
            other => report.skip(&stored, format!("is a {}", kind_name(other))),
        }
    }
    Ok(())
}

const fn times(stat: &Stat) -> Times {
    Times { atime_ns: stat.atime_ns, mtime_ns: stat.mtime_ns }
}

async fn finish_directory(client: &Client, directory: &GetDirectory, rules: &TransferRules) -> Outcome {
    let GetDirectory { tree, below, stored, stat, state } = directory;
    let mode = (state.gets_mode() || rules.archive).then_some(stat.mode & DIRECTORY_MODE);
    let at = |error: io::Error| Failure::from(error).at(tree.path(below).shown());
    if rules.xattrs {
        let xattrs = stored_xattrs(client, stored, stat).await?;
        tree.set_directory_xattrs(below, &xattrs).map_err(at)?;
    }
    match tree.finish_directory(below, mode, times(stat)) {
        // A directory of another owner keeps its mode and times.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && mode.is_none() => Ok(()),
        outcome => outcome.map_err(at),
    }
}

/// Returns the extended attributes of a node in the namespace `user`.
async fn stored_xattrs(client: &Client, stored: &FilePath, stat: &Stat) -> Outcome<Vec<(CString, Vec<u8>)>> {
    let at = |error: ClientError| Failure::from(error).at(stored);
    let mut found = Vec::new();
    for name in client.xattrs(stat.node()).await.map_err(at)? {
        if name.as_bytes().starts_with(b"user.") {
            let key = CString::new(name.as_bytes()).map_err(|error| Failure::operation(error).at(stored))?;
            let value = client.xattr(stat.node(), name).await.map_err(at)?;
            found.push((key, value.as_bytes().to_vec()));
        }
    }
    Ok(found)
}

/// Returns the failure of a local write. A full or read-only file system ends the whole get.
fn sink_failure(error: io::Error, shown: &str) -> Failure {
    use rustix::io::Errno;
    let ends = matches!(Errno::from_io_error(&error), Some(Errno::NOSPC | Errno::DQUOT | Errno::ROFS));
    let failure = Failure::from(error).at(shown);
    if ends { failure.fatal() } else { failure }
}

fn client_failure(error: ClientError, stored: &FilePath, shown: &str) -> Failure {
    match error {
        ClientError::Sink(error) => sink_failure(error, shown),
        error => Failure::from(error).at(stored),
    }
}

/// Fetches one file or symbolic link.
async fn fetch(
    client: &Client,
    entry: GetEntry,
    rules: &TransferRules,
    progress: &TransferProgress,
) -> Outcome<EntryResult> {
    let GetEntry { stored, stat, target } = entry;
    let at_stored = |error| Failure::from(error).at(&stored);
    let stat = match stat {
        Some(stat) => stat,
        // An entry of an unsearchable directory: the server returns the error.
        None => client.lstat(&stored).await.map_err(at_stored)?,
    };
    // An existing local pipe or device that is the destination is written in place.
    if let GetTarget::Named(path) = &target
        && fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
    {
        return into_special(client, &stored, path, rules, progress).await;
    }
    let place = target.place()?;
    let shown = place.shown();
    let at = |error: io::Error| sink_failure(error, &shown);
    if stat.kind == FileKind::Symlink {
        let link = client.target_of(&stat).await.map_err(at_stored)?;
        let made = place.symlink(link.as_bytes(), times(&stat), rules.replace).map_err(at)?;
        return Ok(if made { EntryResult::Link } else { EntryResult::Unchanged });
    }
    if let Some(old) = place.existing().map_err(at)? {
        let is_file = rustix::fs::FileType::from_raw_mode(old.st_mode).is_file();
        let mtime_ns = old.st_mtime.saturating_mul(1_000_000_000).saturating_add(old.st_mtime_nsec as i64);
        if rules.update && is_file && old.st_size as u64 == stat.size && mtime_ns == stat.mtime_ns {
            progress.inc(stat.size);
            return Ok(EntryResult::Unchanged);
        }
        if !rules.replace {
            return Err(at(io::Error::from(io::ErrorKind::AlreadyExists)));
        }
    }
    if let GetTarget::Named(_) = target {
        // A folder that cannot be listed fails at the first write.
        let _ = place.remove_stale();
    }
    let xattrs = if rules.xattrs { stored_xattrs(client, &stored, &stat).await? } else { Vec::new() };
    let temporary = place.temporary().map_err(at)?;
    let mut file = tokio::fs::File::from_std(temporary.file().map_err(at)?);
    let got = client
        .get_file(&stored, &mut file, rules.get_options(progress))
        .await
        .map_err(|error| client_failure(error, &stored, &shown))?;
    file.flush().await.map_err(at)?;
    drop(file);
    // Through a stored link the attributes are those of its target.
    let mode = if place.existing().map_err(at)?.is_some() { got.mode } else { got.mode & !rules.umask };
    let attributes = FileAttributes { mode, exact: rules.archive, times: times(&got), xattrs };
    temporary.finish(&place, &attributes, rules.replace).map_err(at)?;
    Ok(EntryResult::File(got.size))
}

async fn into_special(
    client: &Client,
    stored: &FilePath,
    path: &Path,
    rules: &TransferRules,
    progress: &TransferProgress,
) -> Outcome<EntryResult> {
    let at = |error: io::Error| Failure::from(error).at(path.shown());
    let mut file = tokio::fs::OpenOptions::new().write(true).open(path).await.map_err(at)?;
    let got = client
        .get(stored, &mut file, rules.get_options(progress))
        .await
        .map_err(|error| client_failure(error, stored, &path.shown()))?;
    file.flush().await.map_err(at)?;
    Ok(EntryResult::File(got.size))
}

fn report_dry_run(observer: &dyn TransferObserver, plan: &GetPlan, report: &mut TransferReport) {
    let links = plan.links.iter().map(|link| &link.entry);
    for entry in plan.entries.iter().chain(links) {
        observer.planned(&format!("{} -> {}", entry.stored, entry.target.path().shown()));
        let (size, kind) = entry.stat.as_ref().map_or((0, FileKind::File), |stat| (stat.size, stat.kind));
        report.done(
            Vec::new,
            if kind == FileKind::Symlink { EntryResult::Link } else { EntryResult::File(size) },
        );
    }
}

/// Writes a local file, which gets its name when `write` has succeeded. A new file is private.
///
/// # Errors
/// Those of `write`, or the file cannot be written.
pub async fn write_whole<T>(
    path: &OsStr,
    write: impl AsyncFnOnce(&mut tokio::fs::File) -> Outcome<T>,
) -> Outcome<T> {
    let at = |error: io::Error| Failure::from(error).at(path.shown());
    let place = LocalPlace::of(Path::new(path)).map_err(at)?;
    let temporary = place.temporary().map_err(at)?;
    let mut file = tokio::fs::File::from_std(temporary.file().map_err(at)?);
    let written = write(&mut file).await?;
    file.flush().await.map_err(at)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now_ns = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    let times = Times { atime_ns: now_ns, mtime_ns: now_ns };
    let mode = if place.existing().map_err(at)?.is_some() { FILE_MODE } else { 0o600 };
    let attributes = FileAttributes { mode, exact: false, times, xattrs: Vec::new() };
    temporary.finish(&place, &attributes, true).map_err(at)?;
    Ok(written)
}
