//! `put`: stores files, trees and standard input.
//!
//! Does: plans all entries of the operands, then stores in parallel. `replace` replaces links,
//! `report` collects the results.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_client::{Client, ClientError, FileKind, FilePath, Name, PutOptions, Stat};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{NodeChange, SetTime, XattrName, XattrValue, shown};
use tokio::io::AsyncRead;

use crate::destination::{Destination, Position, ends_in_slash, is_earlier_copy, position};
use crate::excluded::Excluded;
use crate::jobs::{Job, run_all};
use crate::listing::kind_name;
use crate::local::{
    self, DIRECTORY_MODE, DirectoryState, FILE_MODE, UNFINISHED_MODE, last_name, source_mode,
};
use crate::replace::replace;
use crate::report::{EntryResult, TransferReport};
use crate::request::{TransferObserver, TransferOptions, TransferProgress, TransferRules};
use crate::stored_path::StoredPath;
use crate::tree::join;
use crate::walk::{self, EntryKind};

/// Maximum number of reads of a file that changes while it is read; the last one is stored.
const READS_MAX: u32 = 3;

/// A file or symbolic link to be stored.
#[derive(Clone, Debug)]
struct PutEntry {
    local: PathBuf,
    stored: FilePath,
    metadata: Metadata,
    /// Whether the stored directory was listed, so that `existing` is valid.
    listed: bool,
    existing: Option<Stat>,
    /// Whether an existing stored link is followed instead of replaced.
    follows: bool,
}

impl Job for PutEntry {
    fn label(&self) -> Vec<u8> {
        self.local.as_os_str().as_bytes().to_vec()
    }
}

/// A directory whose mode and times are set when everything below it is stored.
struct PutDirectory {
    local: PathBuf,
    stored: FilePath,
    stat: Stat,
    metadata: Metadata,
    state: DirectoryState,
}

/// The planned work.
#[derive(Default)]
struct PutPlan {
    directories: Vec<PutDirectory>,
    /// Files and symbolic links.
    entries: Vec<PutEntry>,
    /// Hard links: the file by device and inode number, and the name.
    links: Vec<((u64, u64), PutEntry)>,
    /// Stored path of each file with several local names.
    linked: BTreeMap<(u64, u64), FilePath>,
}

/// Stores a stream in one file.
///
/// # Errors
/// The stream cannot be read, or the file cannot be stored.
pub async fn put_stream(
    client: &Client,
    source: impl AsyncRead + Unpin + Send,
    place: &StoredPath,
    options: &TransferOptions,
    observer: &Arc<dyn TransferObserver>,
) -> Outcome<TransferReport> {
    let at = |error| Failure::from(error).at(place);
    // A stream has no mode: a new file gets 0666 without the umask, an existing one keeps its own.
    let mode = match client.stat(place).await {
        Ok(stat) => stat.mode & FILE_MODE,
        Err(error) if error.is_not_found() => 0o666 & !options.umask,
        Err(error) => return Err(at(error)),
    };
    let progress = TransferProgress::begin(observer, None, &place.to_string());
    let options = PutOptions { mode, ..TransferRules::of(options).put_options(&progress) };
    let stored = client.put(place, source, options).await.map_err(at);
    progress.end();
    let mut report = TransferReport::new();
    report.done(|| place.as_bytes().to_vec(), EntryResult::File(stored?.size));
    Ok(report)
}

/// Stores files and trees. Entries that fail are in the report, and do not stop the others.
///
/// # Errors
/// The destination does not fit the sources, or a failure affects all entries.
pub async fn put(
    client: Arc<Client>,
    sources: &[OsString],
    place: &StoredPath,
    options: &TransferOptions,
    observer: &Arc<dyn TransferObserver>,
) -> Outcome<TransferReport> {
    let rules = Arc::new(TransferRules::of(options));
    let excluded = Excluded::new(&options.exclude);
    let mut report = TransferReport::new();
    let operands = operands(&client, place, sources, (&rules, options), &mut report).await?;
    let mut plan = PutPlan::default();
    for (local, target, position) in operands {
        let follows = !rules.recursive || ends_in_slash(local.as_os_str());
        match walk::walk(&local, follows, |below| !excluded.has(below)) {
            Ok(tree) => {
                plan_tree(&client, tree, (&target, position), &rules, &mut plan, &mut report).await?;
            }
            Err(failure) => report.fail(failure),
        }
    }
    if rules.dry_run {
        report_dry_run(&**observer, &plan, &mut report);
        return Ok(report);
    }
    let PutPlan { directories, entries, links, linked } = plan;
    let total = entries.iter().map(|entry| bytes(&entry.metadata)).sum();
    let stored = entries.iter().map(|entry| &entry.stored);
    let progress = TransferProgress::begin_files(observer, "put", total, stored);
    let mut completed = run_all(entries, &mut report, |entry| {
        let (client, rules, progress) = (Arc::clone(&client), Arc::clone(&rules), progress.clone());
        async move { store(&client, entry, &rules, &progress).await }
    })
    .await;
    if completed {
        let linked = Arc::new(linked);
        let links = links.into_iter().map(|(file, entry)| PutLink { file, entry }).collect();
        completed = run_all(links, &mut report, |link| {
            let (client, rules, linked) = (Arc::clone(&client), Arc::clone(&rules), Arc::clone(&linked));
            async move { store_link(&client, &link, &linked, &rules).await }
        })
        .await;
    }
    progress.end();
    if completed {
        finish_directories(&client, &directories, &rules, &mut report).await;
    }
    Ok(report)
}

fn bytes(metadata: &Metadata) -> u64 {
    if metadata.is_file() { metadata.len() } else { 0 }
}

/// Returns the destination of each source. Fails before anything is stored if two sources would get
/// the same path.
async fn operands(
    client: &Client,
    place: &StoredPath,
    sources: &[OsString],
    (rules, options): (&TransferRules, &TransferOptions),
    report: &mut TransferReport,
) -> Outcome<Vec<(PathBuf, FilePath, Position)>> {
    let found = match client.stat(place).await {
        Ok(stat) => Some(stat),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(Failure::from(error).at(place)),
    };
    let is_directory = found.as_ref().is_some_and(|stat| stat.kind == FileKind::Directory);
    if found.is_some() && !is_directory && (place.trailing_slash || sources.len() > 1) {
        return Err(Failure::operation("not a directory").at(place));
    }
    if found.is_none() && (sources.len() > 1 || (place.trailing_slash && !rules.recursive)) {
        return Err(Failure::not_found("not found").at(place).hint("create it first: sealstone mkdir"));
    }
    if sources.len() > 1 && options.no_target_directory {
        return Err(Failure::usage("--no-target-directory allows only one source"));
    }
    let place_name = place.split_last().map(|(_, name)| OsStr::from_bytes(name.as_bytes()).to_owned());
    let destination = Destination {
        exists: found.is_some(),
        is_directory,
        trailing_slash: place.trailing_slash || sources.len() > 1,
        name: place_name.as_deref(),
    };
    let (mut operands, mut targets) = (Vec::new(), BTreeSet::new());
    for source in sources {
        let local = Path::new(source);
        let follow = !rules.recursive || ends_in_slash(source);
        let metadata = if follow { fs::metadata(local) } else { fs::symlink_metadata(local) };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(error) => {
                report.fail(Failure::from(error).at(local.shown()));
                continue;
            }
        };
        if metadata.is_dir() && !rules.recursive {
            report.fail(Failure::operation("is a directory").at(local.shown()).hint("use put -r"));
            continue;
        }
        let name = last_name(source);
        let is_copy = async || is_copy_of(client, place, local).await;
        let here = (name.as_deref(), metadata.is_dir());
        let position = position(&destination, here, options.no_target_directory, is_copy).await?;
        let target = match position {
            Position::Itself => (**place).clone(),
            Position::Inside => {
                let name = name.as_deref().map(OsStrExt::as_bytes).unwrap_or_default();
                let name = Name::new(name).map_err(|error| Failure::usage(error).at(local.shown()))?;
                place.join(&name).map_err(|error| Failure::usage(error).at(place))?
            }
        };
        if !targets.insert(target.clone()) {
            return Err(Failure::operation(format!(
                "two sources would be stored as {target}; nothing was stored"
            ))
            .at(local.shown())
            .hint("store them separately under different names"));
        }
        operands.push((local.to_owned(), target, position));
    }
    if found.is_none() && place.trailing_slash && !operands.is_empty() && !rules.dry_run {
        client
            .mkdir(place, false, 0o777 & !options.umask)
            .await
            .map_err(|error| Failure::from(error).at(place))?;
    }
    Ok(operands)
}

/// Whether all entries of a stored directory exist in a local directory, and there is at least one.
async fn is_copy_of(client: &Client, stored: &FilePath, local: &Path) -> Outcome<bool> {
    let at = |error| Failure::from(error).at(stored);
    let entries = client.list(stored).map_err(at)?.collect().await.map_err(at)?;
    let entries = entries.iter().map(|entry| {
        (OsStr::from_bytes(entry.name.as_bytes()).to_owned(), entry.kind == FileKind::Directory)
    });
    Ok(is_earlier_copy(entries, |name| {
        fs::symlink_metadata(local.join(name)).ok().map(|metadata| metadata.is_dir())
    }))
}

/// Creates the directories of a tree and plans its files and links.
async fn plan_tree(
    client: &Client,
    tree: walk::Tree,
    (target, position): (&FilePath, Position),
    rules: &TransferRules,
    plan: &mut PutPlan,
    report: &mut TransferReport,
) -> Outcome {
    tree.failed.into_iter().for_each(|failure| report.fail(failure));
    // Entries of stored directories that existed before.
    let mut known: BTreeMap<FilePath, BTreeMap<Name, Option<Stat>>> = BTreeMap::new();
    let mut lost: BTreeSet<FilePath> = BTreeSet::new();
    for entry in tree.entries {
        let stored = match join(target, &entry.below) {
            Ok(stored) => stored,
            Err(failure) => {
                report.fail(failure.at(entry.path.shown()));
                continue;
            }
        };
        let above = if entry.below.is_top() { None } else { stored.split_last() };
        if let Some((above, _)) = &above
            && lost.contains(above)
        {
            // The failure of its directory was reported.
            if entry.kind == EntryKind::Directory {
                lost.insert(stored);
            }
            continue;
        }
        let names = above.as_ref().and_then(|(above, name)| Some((known.get(above)?, name)));
        let (listed, existing) = match names {
            Some((names, name)) => (true, names.get(name).cloned().flatten()),
            None => (false, None),
        };
        match entry.kind {
            EntryKind::Directory => {
                // Only the destination itself may be a link.
                let follows = entry.below.is_top() && position == Position::Itself;
                match make_directory(client, &stored, follows, rules).await {
                    Ok(StoredDirectory { stat, names }) => {
                        let is_made = |(_, state): &(Stat, DirectoryState)| *state == DirectoryState::Made;
                        report.directories += u64::from(stat.as_ref().is_some_and(is_made));
                        known.insert(stored.clone(), names);
                        if let Some((stat, state)) = stat {
                            let (local, metadata) = (entry.path, entry.metadata);
                            plan.directories.push(PutDirectory { local, stored, stat, metadata, state });
                        }
                    }
                    Err(failure) if failure.fatal => return Err(failure),
                    Err(failure) => {
                        report.fail(failure);
                        lost.insert(stored);
                    }
                };
            }
            EntryKind::Special(kind) if rules.recursive => {
                report.skip(entry.path.as_os_str().as_bytes(), format!("is a {kind}"));
            }
            // A pipe that is an operand is read, as `put -` does.
            EntryKind::File { .. } | EntryKind::Symlink | EntryKind::Special(_) => {
                let (local, metadata) = (entry.path, entry.metadata);
                let file = (metadata.dev(), metadata.ino());
                let several = entry.kind != EntryKind::Symlink && metadata.nlink() > 1 && rules.recursive;
                let follows = !rules.recursive && position == Position::Itself;
                let entry = PutEntry { local, stored, metadata, listed, existing, follows };
                if several && plan.linked.contains_key(&file) {
                    plan.links.push((file, entry));
                    continue;
                }
                if several {
                    plan.linked.insert(file, entry.stored.clone());
                }
                plan.entries.push(entry);
            }
        }
    }
    Ok(())
}

/// A stored directory.
struct StoredDirectory {
    /// Its attributes, and those before the put. `None` if a dry run would create it.
    stat: Option<(Stat, DirectoryState)>,
    names: BTreeMap<Name, Option<Stat>>,
}

/// Creates a directory for its owner only until its mode is set, or lists an existing one.
async fn make_directory(
    client: &Client,
    stored: &FilePath,
    follows: bool,
    rules: &TransferRules,
) -> Outcome<StoredDirectory> {
    let at = |error| Failure::from(error).at(stored);
    let made = match rules.dry_run {
        false => client.mkdir(stored, false, UNFINISHED_MODE).await,
        true => client.lstat(stored).await.and(Err(exists())),
    };
    match made {
        Ok(stat) => {
            return Ok(StoredDirectory { stat: Some((stat, DirectoryState::Made)), names: BTreeMap::new() });
        }
        Err(error) if rules.dry_run && error.is_not_found() => {
            return Ok(StoredDirectory { stat: None, names: BTreeMap::new() });
        }
        Err(ClientError::Refused(failure)) if failure.code == sealstone_mds_protocol::ErrorCode::Exists => {}
        Err(error) => return Err(at(error)),
    }
    let mut stat = client.lstat(stored).await.map_err(at)?;
    if stat.kind == FileKind::Symlink && follows {
        stat = client.stat(stored).await.map_err(at)?;
    }
    if stat.kind != FileKind::Directory {
        let kind = kind_name(stat.kind);
        return Err(
            Failure::operation(format!("the stored {kind} cannot be replaced by a directory")).at(stored)
        );
    }
    let listed = client.list(stored).map_err(at)?.collect().await.map_err(at)?;
    let names = listed.into_iter().map(|entry| (entry.name, entry.stat)).collect();
    let state = DirectoryState::of_mode(stat.mode);
    Ok(StoredDirectory { stat: Some((stat, state)), names })
}

fn exists() -> ClientError {
    sealstone_mds_protocol::Failure::new(sealstone_mds_protocol::ErrorCode::Exists, "").into()
}

fn mtime_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

fn atime_ns(metadata: &Metadata) -> i64 {
    metadata.atime().saturating_mul(1_000_000_000).saturating_add(metadata.atime_nsec())
}

fn times(metadata: &Metadata) -> NodeChange {
    NodeChange {
        atime: Some(SetTime::At(atime_ns(metadata))),
        mtime: Some(SetTime::At(mtime_ns(metadata))),
        ..NodeChange::default()
    }
}

/// Stores one file or symbolic link.
async fn store(
    client: &Client,
    entry: PutEntry,
    rules: &TransferRules,
    progress: &TransferProgress,
) -> Outcome<EntryResult> {
    if entry.metadata.is_symlink() {
        return store_symlink(client, &entry, rules).await;
    }
    let at_stored = |error| Failure::from(error).at(&entry.stored);
    let existing = match (&entry.existing, entry.listed) {
        (existing, true) => existing.clone(),
        (_, false) => {
            let found = match entry.follows {
                true => client.stat(&entry.stored).await,
                false => client.lstat(&entry.stored).await,
            };
            match found {
                Ok(stat) => Some(stat),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(at_stored(error)),
            }
        }
    };
    if let Some(stat) = &existing
        && rules.update
        && stat.kind == FileKind::File
        && entry.metadata.is_file()
        && stat.size == entry.metadata.len()
        && stat.mtime_ns == mtime_ns(&entry.metadata)
    {
        progress.inc(stat.size);
        let wanted = source_mode(&entry.local, &entry.metadata) & FILE_MODE;
        if rules.archive && stat.mode & FILE_MODE != wanted {
            let change = NodeChange { mode: Some(wanted), ..NodeChange::default() };
            client.set_attributes(stat.node(), change).await.map_err(at_stored)?;
        }
        return Ok(EntryResult::Unchanged);
    }
    let replaces_link = !entry.follows
        && existing.as_ref().is_some_and(|stat| !matches!(stat.kind, FileKind::File | FileKind::Directory));
    if replaces_link && !rules.replace {
        return Err(at_stored(exists()));
    }
    let mask = if existing.is_some() { 0 } else { rules.umask };
    let store_as = async |stored: FilePath| {
        let (done, stat) = send(client, &entry, &stored, mask, rules, progress).await?;
        let wanted = source_mode(&entry.local, &entry.metadata) & FILE_MODE;
        let mut change =
            if rules.recursive || rules.archive { times(&entry.metadata) } else { NodeChange::default() };
        change.mode = (rules.archive && stat.mode & FILE_MODE != wanted).then_some(wanted);
        if change != NodeChange::default() {
            let set = client.set_attributes(stat.node(), change).await.map(drop).map_err(at_stored);
            // A writable file of another owner keeps its owner, who alone can set times.
            set.or_else(|failure| match failure.kind {
                sealstone_failure::FailureKind::Denied if existing.is_some() && !rules.archive => Ok(()),
                _ => Err(failure),
            })?;
        }
        if rules.xattrs {
            store_xattrs(client, (&entry.local, &entry.stored), &stat).await?;
        }
        Ok(done)
    };
    match replaces_link {
        true => replace(client, &entry.stored, store_as).await,
        false => store_as(entry.stored.clone()).await,
    }
}

/// Sends the bytes of a file. A file that changes while it is read is read again, at most
/// [`READS_MAX`] times.
async fn send(
    client: &Client,
    entry: &PutEntry,
    stored: &FilePath,
    mask: u16,
    rules: &TransferRules,
    progress: &TransferProgress,
) -> Outcome<(EntryResult, Stat)> {
    let at_local = |error: std::io::Error| Failure::from(error).at(entry.local.shown());
    for read in 1.. {
        let before = progress.position();
        let mut options = fs::OpenOptions::new();
        options.read(true);
        if rules.recursive {
            // The file may have been replaced, for example by a pipe, which would block.
            options.custom_flags((rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32);
        }
        let file = options.open(&entry.local).map_err(at_local)?;
        let metadata = file.metadata().map_err(at_local)?;
        if rules.recursive && !metadata.is_file() {
            return Err(Failure::operation("replaced while it was read").at(entry.local.shown()));
        }
        let mode = local::open_mode(&file, &metadata) & mode_of_walk(entry) & FILE_MODE & !mask;
        let options = PutOptions { mode, ..rules.put_options(progress) };
        match client.put_open_file(stored, file, options, read >= READS_MAX).await {
            Ok(sent) if sent.source_changed => return Ok((EntryResult::Changed(sent.stat.size), sent.stat)),
            Ok(sent) => return Ok((EntryResult::File(sent.stat.size), sent.stat)),
            Err(ClientError::SourceChanged) if read < READS_MAX => progress.set_position(before),
            Err(error @ (ClientError::Source(_) | ClientError::SourceChanged)) => {
                return Err(Failure::from(error).at(entry.local.shown()));
            }
            Err(error) => return Err(Failure::from(error).at(stored)),
        }
    }
    unreachable!("the last read returns")
}

/// Returns the permission bits of the source when it was found; those of a pipe are ignored.
fn mode_of_walk(entry: &PutEntry) -> u16 {
    if entry.metadata.is_file() { (entry.metadata.mode() & 0o7777) as u16 } else { FILE_MODE }
}

async fn store_xattrs(client: &Client, (local, stored): (&Path, &FilePath), stat: &Stat) -> Outcome {
    let at = |error: std::io::Error| Failure::from(error).at(local.shown());
    let file = fs::File::open(local).map_err(at)?;
    for (name, value) in local::user_xattrs(&file).map_err(at)? {
        let at = |failure: Failure| failure.at(format!("{stored}: attribute {}", shown(&name)));
        let key = XattrName::new(name.clone()).map_err(|error| at(Failure::operation(error)))?;
        let value = XattrValue::new(value).map_err(|error| at(Failure::operation(error)))?;
        client.set_xattr(stat.node(), key, value).await.map_err(|error| at(error.into()))?;
    }
    Ok(())
}

async fn store_symlink(client: &Client, entry: &PutEntry, rules: &TransferRules) -> Outcome<EntryResult> {
    let at_local = |error: std::io::Error| Failure::from(error).at(entry.local.shown());
    let at_stored = |error| Failure::from(error).at(&entry.stored);
    let target = fs::read_link(&entry.local).map_err(at_local)?;
    let target = target.as_os_str().as_bytes();
    let refused = match client.symlink(target, &entry.stored).await {
        Ok(stat) => {
            client.set_attributes(stat.node(), times(&entry.metadata)).await.map_err(at_stored)?;
            return Ok(EntryResult::Link);
        }
        Err(error) => error,
    };
    let old = match &refused {
        ClientError::Refused(failure) if failure.code == sealstone_mds_protocol::ErrorCode::Exists => {
            client.lstat(&entry.stored).await.map_err(at_stored)?
        }
        _ => return Err(at_stored(refused)),
    };
    if old.kind == FileKind::Symlink && client.target_of(&old).await.map_err(at_stored)?.as_bytes() == target
    {
        if old.mtime_ns != mtime_ns(&entry.metadata) {
            client.set_attributes(old.node(), times(&entry.metadata)).await.map_err(at_stored)?;
        }
        return Ok(EntryResult::Unchanged);
    }
    if old.kind == FileKind::Directory || !rules.replace {
        return Err(at_stored(refused));
    }
    replace(client, &entry.stored, async |temporary: FilePath| {
        let stat = client.symlink(target, &temporary).await.map_err(at_stored)?;
        client.set_attributes(stat.node(), times(&entry.metadata)).await.map_err(at_stored)?;
        Ok(EntryResult::Link)
    })
    .await
}

/// A hard link to be stored.
struct PutLink {
    file: (u64, u64),
    entry: PutEntry,
}

impl Job for PutLink {
    fn label(&self) -> Vec<u8> {
        self.entry.label()
    }
}

async fn store_link(
    client: &Client,
    link: &PutLink,
    linked: &BTreeMap<(u64, u64), FilePath>,
    rules: &TransferRules,
) -> Outcome<EntryResult> {
    let entry = &link.entry;
    let at = |error| Failure::from(error).at(&entry.stored);
    let first = linked
        .get(&link.file)
        .ok_or_else(|| Failure::operation("its other name was not stored").at(&entry.stored))?;
    let refused = match client.link(first, &entry.stored).await {
        Ok(_) => return Ok(EntryResult::Link),
        Err(error) => error,
    };
    match &refused {
        ClientError::Refused(failure) if failure.code == sealstone_mds_protocol::ErrorCode::Exists => {}
        _ => return Err(at(refused)),
    }
    let (old, new) = (client.lstat(&entry.stored).await.map_err(at)?, client.lstat(first).await.map_err(at)?);
    if old.inode == new.inode {
        return Ok(EntryResult::Unchanged);
    }
    if old.kind == FileKind::Directory || !rules.replace {
        return Err(at(refused));
    }
    replace(client, &entry.stored, async |temporary: FilePath| {
        client.link(first, &temporary).await.map_err(at)?;
        Ok(EntryResult::Link)
    })
    .await
}

/// Sets modes and times of directories, the deepest first, as new entries change the time of a
/// directory.
async fn finish_directories(
    client: &Client,
    directories: &[PutDirectory],
    rules: &TransferRules,
    report: &mut TransferReport,
) {
    for PutDirectory { local, stored, stat, metadata, state } in directories.iter().rev() {
        let mut change = times(metadata);
        change.mode =
            (state.gets_mode() || rules.archive).then(|| source_mode(local, metadata) & DIRECTORY_MODE);
        let set = client.set_attributes(stat.node(), change).await;
        let mut outcome = set.map(drop).map_err(|error| Failure::from(error).at(stored));
        if rules.xattrs && outcome.is_ok() {
            outcome = store_xattrs(client, (local, stored), stat).await;
        }
        match outcome {
            // A directory of another owner keeps its times.
            Err(failure)
                if failure.kind == sealstone_failure::FailureKind::Denied
                    && *state != DirectoryState::Made
                    && !rules.archive => {}
            Err(failure) => report.fail(failure),
            Ok(()) => {}
        }
    }
}

fn report_dry_run(observer: &dyn TransferObserver, plan: &PutPlan, report: &mut TransferReport) {
    for entry in plan.entries.iter().chain(plan.links.iter().map(|(_, entry)| entry)) {
        observer.planned(&format!("{} -> {}", entry.local.shown(), entry.stored));
        let done = if entry.metadata.is_symlink() {
            EntryResult::Link
        } else {
            EntryResult::File(bytes(&entry.metadata))
        };
        report.done(Vec::new, done);
    }
}
