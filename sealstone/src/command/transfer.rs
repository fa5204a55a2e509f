//! `put`, `get` and `cat`: files, trees and pipes.
//!
//! Several files travel at once, each of them over several devices at once. A file that arrives on this machine is
//! written under a temporary name and takes its own only when it is whole and its checksum matched.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use sealstone_client::{Client, FileKind, GetOptions, Method, PutOptions};
use sealstone_osd::SecurityMethod;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::cli::{Cat, Get, Global, MethodName, Put};
use crate::command::files::{into_directory, list};
use crate::command::session::client;
use crate::command::walk::{self, Kind, join, last_name};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, human_bytes};

/// Files under way at once. Small files wait for round trips and flushes, which overlap.
const FILES_AT_ONCE: usize = 16;

impl From<MethodName> for Method {
    fn from(name: MethodName) -> Self {
        match name {
            MethodName::Nosec => Self::NoSec,
            MethodName::Capkey => Self::CapKey,
            MethodName::Cmdrsp => Self::CmdRsp,
            MethodName::Alldata => Self::AllData,
        }
    }
}

impl From<MethodName> for SecurityMethod {
    fn from(name: MethodName) -> Self {
        match name {
            MethodName::Nosec => Self::NoSec,
            MethodName::Capkey => Self::CapKey,
            MethodName::Cmdrsp => Self::CmdRsp,
            MethodName::Alldata => Self::AllData,
        }
    }
}

/// One file to be moved.
#[derive(Clone, Debug)]
struct Job {
    local: PathBuf,
    stored: String,
    bytes: u64,
}

/// What came of many.
struct Tally {
    files: u64,
    bytes: u64,
    started: Instant,
}

impl Tally {
    fn new() -> Self {
        Self { files: 0, bytes: 0, started: Instant::now() }
    }

    fn report(&self, output: Output, verb: &str, special: &[String]) -> Outcome {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 };
        output.remark(format!(
            "{verb} {} file{}, {} in {seconds:.2} s, {}/s",
            self.files,
            if self.files == 1 { "" } else { "s" },
            human_bytes(self.bytes),
            human_bytes(rate as u64),
        ));
        output.done(
            &json!({ "files": self.files, "bytes": self.bytes, "seconds": seconds, "special": special }),
        )?;
        match special {
            [] => Ok(()),
            [first, rest @ ..] => Err(Failure::operation(format!(
                "{} entries are links, sockets or devices and were left out, the first is {first}",
                rest.len() + 1
            ))
            .hint("everything else was stored")),
        }
    }
}

/// `sealstone put`.
pub(crate) async fn put(global: &Global, output: Output, arguments: &Put) -> Outcome {
    let (client, _) = client(global)?;
    let (place, sources) = arguments.paths.split_last().expect("the command line asks for two or more");
    let mut jobs = Vec::new();
    let mut special = Vec::new();
    let mut tally = Tally::new();
    for source in sources {
        if source == "-" {
            let bar = output.progress(None, place);
            let stat = client
                .put(place, standard_input()?, put_options(arguments, Some(&bar)))
                .await
                .map_err(|error| Failure::from(error).at(place))?;
            bar.finish_and_clear();
            tally.files += 1;
            tally.bytes += stat.size;
            continue;
        }
        let local = Path::new(source);
        let metadata = fs::metadata(local).map_err(|error| Failure::from(error).at(source))?;
        if metadata.is_dir() && !arguments.recursive {
            return Err(Failure::operation("is a directory").at(source).hint("use put -r"));
        }
        let name = fs::canonicalize(local)
            .ok()
            .and_then(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .ok_or_else(|| Failure::operation("has no name in UTF-8").at(source))?;
        let target = if sources.len() > 1 {
            join(place, &name)
        } else {
            into_directory(&client, place, &name).await?
        };
        if metadata.is_dir() {
            prepare_tree(&client, local, &target, &mut jobs, &mut special).await?;
        } else {
            let bytes = if metadata.is_file() { metadata.len() } else { 0 };
            jobs.push(Job { local: local.to_owned(), stored: target, bytes });
        }
    }
    let total: u64 = jobs.iter().map(|job| job.bytes).sum();
    let bar = output.progress(Some(total), &format!("put {}", label(&jobs)));
    let client = Arc::new(client);
    run_all(jobs, &bar, &mut tally, |job, bar| {
        let (client, options) = (Arc::clone(&client), put_options(arguments, Some(bar)));
        async move {
            let stat = client
                .put_file(&job.stored, &job.local, options)
                .await
                .map_err(|error| Failure::from(error).at(job.local.display()))?;
            Ok(stat.size)
        }
    })
    .await?;
    bar.finish_and_clear();
    tally.report(output, "stored", &special)
}

/// Makes the directories of a tree and lists its files.
async fn prepare_tree(
    client: &Client,
    local: &Path,
    target: &str,
    jobs: &mut Vec<Job>,
    special: &mut Vec<String>,
) -> Outcome {
    for entry in walk::walk(local)? {
        let stored = join(target, &entry.below);
        match entry.kind {
            Kind::Directory => {
                client.mkdir(&stored, true, 0o755).await.map_err(|error| Failure::from(error).at(&stored))?;
            }
            Kind::File { bytes } => jobs.push(Job { local: entry.path, stored, bytes }),
            Kind::Special => special.push(entry.path.display().to_string()),
        }
    }
    Ok(())
}

fn put_options(arguments: &Put, bar: Option<&ProgressBar>) -> PutOptions {
    PutOptions {
        replace: !arguments.no_replace,
        method: arguments.transfer.method.into(),
        progress: bar.map(|bar| {
            let bar = bar.clone();
            let mut before = 0;
            Box::new(move |done: u64| {
                bar.inc(done.saturating_sub(before));
                before = done;
            }) as Box<dyn FnMut(u64) + Send>
        }),
        ..PutOptions::default()
    }
}

fn get_options(method: MethodName, bar: Option<&ProgressBar>) -> GetOptions {
    GetOptions {
        method: method.into(),
        progress: bar.map(|bar| {
            let bar = bar.clone();
            let mut before = 0;
            Box::new(move |done: u64, _: u64| {
                bar.inc(done.saturating_sub(before));
                before = done;
            }) as Box<dyn FnMut(u64, u64) + Send>
        }),
        ..GetOptions::default()
    }
}

fn label(jobs: &[Job]) -> String {
    match jobs {
        [job] => last_name(&job.stored).unwrap_or_default().to_owned(),
        jobs => format!("{} files", jobs.len()),
    }
}

/// Runs all jobs, some at once; the first failure ends it after what is under way has ended.
async fn run_all<F>(
    jobs: Vec<Job>,
    bar: &ProgressBar,
    tally: &mut Tally,
    start: impl Fn(Job, &ProgressBar) -> F,
) -> Outcome
where
    F: Future<Output = Outcome<u64>> + Send + 'static,
{
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut waiting = jobs.into_iter();
    let mut running = JoinSet::new();
    let mut first_failure = None;
    loop {
        while first_failure.is_none() && running.len() < FILES_AT_ONCE {
            let Some(job) = waiting.next() else { break };
            running.spawn(start(job, bar));
        }
        match running.join_next().await {
            None => break,
            Some(Ok(Ok(bytes))) => {
                tally.files += 1;
                tally.bytes += bytes;
            }
            Some(Ok(Err(failure))) => first_failure = first_failure.or(Some(failure)),
            Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
    match first_failure {
        // Shown full once: what took less than a tick was seen to happen.
        None => {
            bar.disable_steady_tick();
            bar.tick();
            Ok(())
        }
        Some(failure) => {
            bar.finish_and_clear();
            Err(failure)
        }
    }
}

/// `sealstone get`.
pub(crate) async fn get(global: &Global, output: Output, arguments: &Get) -> Outcome {
    let (client, _) = client(global)?;
    let client = Arc::new(client);
    let (sources, place) = match arguments.paths.as_slice() {
        [only] => (std::slice::from_ref(only), "."),
        [sources @ .., place] => (sources, place.as_str()),
        [] => return Err(Failure::usage("what shall be fetched?")),
    };
    let method = arguments.transfer.method;
    if place == "-" {
        for path in sources {
            to_stdout(&client, path, method).await?;
        }
        return Ok(());
    }
    let mut tally = Tally::new();
    let place = Path::new(place);
    let mut jobs = Vec::new();
    for path in sources {
        let stat = client.stat(path).await.map_err(|error| Failure::from(error).at(path))?;
        let name = last_name(path).unwrap_or("root");
        let target = if place.is_dir() { place.join(name) } else { place.to_owned() };
        if sources.len() > 1 && !place.is_dir() {
            return Err(Failure::operation("is not a directory").at(place.display()));
        }
        if stat.kind == FileKind::Directory {
            if !arguments.recursive {
                return Err(Failure::operation("is a directory").at(path).hint("use get -r"));
            }
            make_folder(&target)?;
            for listed in list(&client, path, true).await? {
                let local = target.join(safe(&listed.path)?);
                let stored = join(path, &listed.path);
                match listed.kind {
                    FileKind::Directory => make_folder(&local)?,
                    FileKind::File => {
                        let stat = match listed.stat {
                            Some(stat) => stat,
                            // It may be seen and not be reached: the server says so.
                            None => client
                                .stat(&stored)
                                .await
                                .map_err(|error| Failure::from(error).at(&stored))?,
                        };
                        jobs.push(Job { local, stored, bytes: stat.size });
                    }
                    // Links, pipes and the like have no bytes of their own.
                    _ => {}
                }
            }
        } else {
            jobs.push(Job { local: target, stored: path.clone(), bytes: stat.size });
        }
    }
    if arguments.no_replace
        && let Some(job) = jobs.iter().find(|job| job.local.exists())
    {
        return Err(Failure::operation("already exists").at(job.local.display()));
    }
    let total: u64 = jobs.iter().map(|job| job.bytes).sum();
    let bar = output.progress(Some(total), &format!("get {}", label(&jobs)));
    run_all(jobs, &bar, &mut tally, |job, bar| {
        let (client, options) = (Arc::clone(&client), get_options(method, Some(bar)));
        async move { fetch(&client, &job, options).await }
    })
    .await?;
    bar.finish_and_clear();
    tally.report(output, "fetched", &[])
}

fn make_folder(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|error| Failure::from(error).at(path.display()))
}

/// A path below a directory as the server tells it; one that would lead out of it is refused.
fn safe(below: &str) -> Outcome<&str> {
    let lawful = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains('\0');
    if below.split('/').all(lawful) {
        Ok(below)
    } else {
        Err(Failure::operation("the server names a path that leads elsewhere").at(below))
    }
}

/// One file to its place on this machine.
async fn fetch(client: &Client, job: &Job, options: GetOptions) -> Outcome<u64> {
    let at = |error: io::Error| Failure::from(error).at(job.local.display());
    let folder = job.local.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // What is no regular file (a pipe, /dev/null) is written to as it is.
    if fs::metadata(&job.local).is_ok_and(|metadata| !metadata.is_file()) {
        let mut file = tokio::fs::OpenOptions::new().write(true).open(&job.local).await.map_err(at)?;
        let stat = client
            .get(&job.stored, &mut file, options)
            .await
            .map_err(|error| Failure::from(error).at(&job.stored))?;
        file.flush().await.map_err(at)?;
        return Ok(stat.size);
    }
    let temporary = tempfile::Builder::new().prefix(".sealstone-").tempfile_in(folder).map_err(at)?;
    let mut file = tokio::fs::File::from_std(temporary.reopen().map_err(at)?);
    let stat = client
        .get(&job.stored, &mut file, options)
        .await
        .map_err(|error| Failure::from(error).at(&job.stored))?;
    file.flush().await.map_err(at)?;
    let file = file.into_std().await;
    let modified = std::time::UNIX_EPOCH + Duration::from_nanos(u64::try_from(stat.mtime_ns).unwrap_or(0));
    file.set_modified(modified).map_err(at)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(u32::from(stat.mode & 0o777));
    file.set_permissions(mode).map_err(at)?;
    temporary.persist(&job.local).map_err(|error| at(error.error))?;
    Ok(stat.size)
}

/// Standard input as a file: large reads on the thread pool, no copy through a line buffer.
pub(crate) fn standard_input() -> Outcome<tokio::fs::File> {
    Ok(tokio::fs::File::from_std(fs::File::from(io::stdin().as_fd().try_clone_to_owned()?)))
}

/// Standard output, likewise.
pub(crate) fn standard_output() -> Outcome<tokio::fs::File> {
    Ok(tokio::fs::File::from_std(fs::File::from(io::stdout().as_fd().try_clone_to_owned()?)))
}

/// One file to standard output; a reader that went away ends it quietly.
async fn to_stdout(client: &Client, path: &str, method: MethodName) -> Outcome {
    let mut stdout = standard_output()?;
    match client.get(path, &mut stdout, get_options(method, None)).await {
        Ok(_) => Ok(stdout.flush().await?),
        Err(sealstone_client::ClientError::Sink(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(())
        }
        Err(error) => Err(Failure::from(error).at(path)),
    }
}

/// `sealstone cat`.
pub(crate) async fn cat(global: &Global, arguments: &Cat) -> Outcome {
    let (client, _) = client(global)?;
    for path in &arguments.paths {
        to_stdout(&client, path, arguments.transfer.method).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server cannot make a client write outside the folder it was told to fill.
    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for bad in ["../x", "a/../../x", "/etc/passwd", "a//b", ".", "a/\0"] {
            assert!(safe(bad).is_err(), "{bad:?}");
        }
        assert!(safe("a/b.c/..d").is_ok());
    }
}
