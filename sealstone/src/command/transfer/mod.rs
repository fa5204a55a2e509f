//! `put`, `get` and `cat`: files, trees and pipes.
//!
//! Several files are transferred in parallel, each from or to several devices. A failed entry is
//! reported at the end and does not stop the others; only a failure that affects all of them ends a
//! transfer.

mod get;
mod local;
mod put;
mod replace;
mod report;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use sealstone_client::{Client, ClientError, FilePath, GetOptions, Method};
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_osd::SecurityMethod;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::cli::{CatArgs, GlobalArgs, MethodName};
use crate::command::parts::for_each;
use crate::command::session::client;
use crate::command::tree::TreePath;
use crate::output::{Output, stdout_failure};

pub(crate) use get::{get, write_whole};
pub(crate) use put::put;
use report::{EntryResult, TransferReport};

/// Number of parallel files. Small files wait for round trips and flushes, which overlap.
const FILES_AT_ONCE: usize = 16;
/// Maximum time for the removal of temporary entries in the store after a signal.
const CLEAN_UP_MAX: Duration = Duration::from_secs(20);
/// Maximum number of reads of a file that changes while it is read; the last one is stored.
const READS_MAX: u32 = 3;

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

/// One entry to be transferred.
trait Job: Send + 'static {
    /// Returns the path for messages.
    fn label(&self) -> Vec<u8>;
}

/// Runs all jobs, several in parallel, and counts their results. Returns false if a fatal failure
/// ended it early.
async fn run_all<J: Job, F>(
    jobs: Vec<J>,
    bar: &ProgressBar,
    report: &mut TransferReport,
    start: impl Fn(J) -> F,
) -> bool
where
    F: Future<Output = Outcome<EntryResult>> + Send + 'static,
{
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut waiting = jobs.into_iter();
    let mut running = JoinSet::new();
    let mut ends = false;
    loop {
        while !ends && running.len() < FILES_AT_ONCE {
            let Some(job) = waiting.next() else { break };
            let (label, work) = (job.label(), start(job));
            running.spawn(async move { (label, work.await) });
        }
        let Some(joined) = running.join_next().await else { break };
        let (label, outcome) = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        match outcome {
            Ok(done) => report.done(|| label, done),
            // Parallel jobs fail for the same reason: it is reported once.
            Err(failure) if failure.fatal && ends => report.leave_out(1),
            Err(failure) => {
                ends |= failure.fatal;
                report.fail(failure);
            }
        }
    }
    report.leave_out(waiting.len() as u64);
    bar.disable_steady_tick();
    // A transfer that is shorter than a tick shows a full bar once.
    bar.tick();
    !ends
}

/// Runs a transfer until it ends or a signal arrives. Then removes its temporary files on this
/// machine, and by `clean_up` those in the store.
async fn until_signal(work: impl Future<Output = Outcome>, clean_up: impl AsyncFnOnce()) -> Outcome {
    let (_arrived, mut signals) = crate::daemon::ending_signals()?;
    let number = tokio::select! {
        outcome = work => return outcome,
        Some(number) = signals.recv() => number,
    };
    local::remove_temporaries();
    let _ = tokio::time::timeout(CLEAN_UP_MAX, clean_up()).await;
    let number = u8::try_from(number).unwrap_or(0);
    Err(Failure::new(FailureKind::Signal(number), format!("stopped by signal {number}"))
        .hint("run it again with --update to continue"))
}

/// Whether the top of a tree becomes the destination itself or an entry in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Itself,
    Inside,
}

/// A destination.
struct Destination<'a> {
    exists: bool,
    is_directory: bool,
    trailing_slash: bool,
    /// Last name of its path.
    name: Option<&'a OsStr>,
}

/// Decides where the source goes. `is_copy` returns whether the destination is an earlier copy of
/// the source directory; it is called only if that decides.
async fn position(
    destination: &Destination<'_>,
    (source, is_tree): (Option<&OsStr>, bool),
    no_target_directory: bool,
    is_copy: impl AsyncFnOnce() -> Outcome<bool>,
) -> Outcome<Position> {
    // A source without a name, such as `.` or `/`, means its contents.
    let Some(name) = source else { return Ok(Position::Itself) };
    if no_target_directory {
        return Ok(Position::Itself);
    }
    if destination.trailing_slash {
        return Ok(Position::Inside);
    }
    if !destination.exists || !destination.is_directory {
        return Ok(Position::Itself);
    }
    // An earlier run created it: this run continues there instead of one level deeper.
    let again = is_tree && (destination.name == Some(name) || is_copy().await?);
    Ok(if again { Position::Itself } else { Position::Inside })
}

/// Patterns of entries that a transfer leaves out.
#[derive(Clone, Debug)]
struct Excluded(Vec<Vec<u8>>);

impl Excluded {
    fn new(patterns: &[OsString]) -> Self {
        Self(patterns.iter().map(|pattern| pattern.as_bytes().to_vec()).collect())
    }

    /// Whether an entry is left out: a pattern without a slash means its name, another one its path
    /// below the top.
    fn has(&self, below: &TreePath) -> bool {
        let whole = below.as_ref();
        let name = whole.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        self.0.iter().any(|pattern| match pattern.contains(&b'/') {
            true => matches(pattern.strip_prefix(b"/").unwrap_or(pattern), whole),
            false => matches(pattern, name),
        })
    }
}

/// Whether a pattern matches a text: `*` matches any bytes except `/`, `?` one byte except `/`,
/// other bytes themselves.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // `star`: where to retry with the last star one byte longer.
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
                continue;
            }
            Some(b'?') if text[from] != b'/' => {
                (at, from) = (at + 1, from + 1);
                continue;
            }
            Some(byte) if *byte == text[from] && *byte != b'?' => {
                (at, from) = (at + 1, from + 1);
                continue;
            }
            _ => {}
        }
        match star {
            Some((star_at, star_from)) if text[star_from] != b'/' => {
                (at, from) = (star_at + 1, star_from + 1);
                star = Some((star_at, star_from + 1));
            }
            _ => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns standard input as a file: large reads on the thread pool, without a line buffer.
pub(crate) fn standard_input() -> Outcome<tokio::fs::File> {
    Ok(tokio::fs::File::from_std(fs::File::from(io::stdin().as_fd().try_clone_to_owned()?)))
}

/// Returns standard output as a file, without a line buffer.
pub(crate) fn standard_output() -> Outcome<tokio::fs::File> {
    Ok(tokio::fs::File::from_std(fs::File::from(io::stdout().as_fd().try_clone_to_owned()?)))
}

/// Writes one file to standard output.
async fn to_stdout(client: &Client, path: &FilePath, method: MethodName) -> Outcome {
    let mut stdout = standard_output()?;
    match client.get(path, &mut stdout, get_options(method, None)).await {
        Ok(_) => stdout.flush().await.map_err(|error| stdout_failure(error).fatal()),
        Err(ClientError::Sink(error)) => Err(stdout_failure(error).fatal()),
        Err(error) => Err(Failure::from(error).at(path)),
    }
}

/// `sealstone cat`.
pub(crate) async fn cat(global: &GlobalArgs, output: Output, arguments: &CatArgs) -> Outcome {
    let paths = crate::command::files::stored(global, &arguments.paths)?;
    let (client, _) = client(global)?;
    let results = for_each(output, &paths, async |path| {
        let written = to_stdout(&client, path, arguments.transfer.method).await;
        // There is no result that could list the failures.
        written.inspect_err(|failure| {
            if output.is_json() && paths.len() > 1 {
                output.failure(failure);
            }
        })
    });
    results.await?.exit()
}

/// Returns the umask of the process.
fn umask() -> u16 {
    // Reading it requires setting it; no other thread creates files now.
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    (mask.as_raw_mode() & 0o777) as u16
}

/// Whether a local path ends in a slash.
fn ends_in_slash(path: &OsStr) -> bool {
    path.as_bytes().len() > 1 && path.as_bytes().ends_with(b"/")
}

/// Whether all entries of a directory have a counterpart of the same kind; then it may be an
/// earlier copy.
fn is_earlier_copy(
    entries: impl Iterator<Item = (OsString, bool)>,
    counterpart: impl Fn(&OsStr) -> Option<bool>,
) -> bool {
    let mut any = false;
    for (name, is_directory) in entries {
        if name.as_bytes().starts_with(local::TEMPORARY_PREFIX.as_bytes()) {
            continue;
        }
        if counterpart(&name) != Some(is_directory) {
            return false;
        }
        any = true;
    }
    any
}

/// Returns the entries of a local directory, and whether each is a directory.
fn local_entries(path: &Path) -> Outcome<Vec<(OsString, bool)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        found.push((entry.file_name(), entry.file_type()?.is_dir()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_and_paths() {
        for (pattern, text, fits) in [
            ("*.o", "a.o", true),
            ("*.o", "a.oo", false),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("*", "a/b", false),
            ("x/*/z", "x/y/z", true),
            ("*a*b", "xaxxb", true),
            ("", "", true),
            ("**", "", true),
            ("a*", "b", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
        let name = |text: &str| sealstone_client::Name::new(text).expect("a name");
        let below = TreePath::top().join(&name("src")).join(&name("x.o"));
        let excluded = |pattern: &str| Excluded::new(&[pattern.into()]).has(&below);
        assert!(excluded("*.o") && excluded("src/*.o") && excluded("/src/x.o"));
        assert!(!excluded("src") && !excluded("/x.o"));
    }

    #[test]
    fn operand_name_is_the_typed_one() {
        let name =
            |path: &str| local::last_name(OsStr::new(path)).map(|name| name.into_string().expect("text"));
        assert_eq!(name("a/b/"), Some("b".into()));
        assert_eq!(name("link"), Some("link".into()));
        for contents in ["/", ".", "..", "a/.", "a/..", "./"] {
            assert_eq!(name(contents), None, "{contents}");
        }
    }

    #[tokio::test]
    async fn repeated_copies_do_not_nest() {
        let dir = Destination {
            exists: true,
            is_directory: true,
            trailing_slash: false,
            name: Some(OsStr::new("d")),
        };
        let tree = |name: &'static str| (Some(OsStr::new(name)), true);
        let other = async || Ok(false);
        assert_eq!(position(&dir, tree("d"), false, other).await, Ok(Position::Itself));
        assert_eq!(position(&dir, tree("x"), false, other).await, Ok(Position::Inside));
        assert_eq!(position(&dir, tree("x"), false, async || Ok(true)).await, Ok(Position::Itself));
        assert_eq!(position(&dir, (Some(OsStr::new("d")), false), false, other).await, Ok(Position::Inside));
        assert_eq!(position(&dir, tree("x"), true, other).await, Ok(Position::Itself));
        assert_eq!(position(&dir, (None, true), false, other).await, Ok(Position::Itself));
        let slash = Destination { trailing_slash: true, ..dir };
        assert_eq!(position(&slash, tree("d"), false, other).await, Ok(Position::Inside));
        let missing = Destination { exists: false, is_directory: false, trailing_slash: false, name: None };
        assert_eq!(position(&missing, tree("x"), false, other).await, Ok(Position::Itself));
    }
}
