//! `put`, `get` and `cat`: files, trees and pipes. `sealstone-transfer` does the work.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use sealstone_client::{Client, ClientError, FilePath, GetOptions, Method};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome, for_each};
use sealstone_osd::SecurityMethod;
use sealstone_transfer::{
    TransferObserver, TransferOptions, TransferReport, remove_local_temporaries, remove_stored_temporaries,
};
use tokio::io::AsyncWriteExt;

use crate::cli::{CatArgs, GetArgs, GlobalArgs, MethodName, PutArgs, TreeOptions};
use crate::command::files::stored;
use crate::command::session::client;
use crate::output::{Output, stdout_failure};

/// Maximum time for the removal of temporary entries in the store after a signal.
const CLEAN_UP_MAX: Duration = Duration::from_secs(20);
/// Next step of a transfer that a signal stopped.
const CONTINUE: &str = "run it again with --update to continue";

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

/// Runs work with files of this machine until it ends or a signal arrives. Then removes its
/// temporary files on this machine, and by `clean_up` those in the store.
pub(crate) async fn until_signal(
    work: impl Future<Output = Outcome>,
    clean_up: impl AsyncFnOnce(),
    next_step: &str,
) -> Outcome {
    let (_arrived, mut signals) = crate::daemon::ending_signals()?;
    let number = tokio::select! {
        outcome = work => return outcome,
        Some(number) = signals.recv() => number,
    };
    remove_local_temporaries();
    let _ = tokio::time::timeout(CLEAN_UP_MAX, clean_up()).await;
    let number = u8::try_from(number).unwrap_or(0);
    Err(Failure::new(FailureKind::Signal(number), format!("stopped by signal {number}")).hint(next_step))
}

/// Interval of the display of progress.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// Shows the progress of a transfer.
struct ShownTransfer {
    output: Output,
    bar: Mutex<ProgressBar>,
}

impl ShownTransfer {
    fn observer(output: Output) -> Arc<dyn TransferObserver> {
        Arc::new(Self { output, bar: Mutex::new(ProgressBar::hidden()) })
    }
}

impl TransferObserver for ShownTransfer {
    fn begin(&self, total: Option<u64>, label: &str) {
        let bar = self.output.progress(total, label);
        if total.is_some() {
            bar.enable_steady_tick(TICK_INTERVAL);
        }
        *self.bar.lock() = bar;
    }

    fn position(&self, bytes: u64) {
        self.bar.lock().set_position(bytes);
    }

    fn end(&self) {
        let bar = self.bar.lock();
        bar.disable_steady_tick();
        // A transfer that is shorter than a tick shows a full bar once.
        bar.tick();
        bar.finish_and_clear();
    }

    fn planned(&self, line: &str) {
        self.output.remark(line);
    }
}

/// Returns the options of a transfer.
fn options(arguments: &TreeOptions) -> TransferOptions {
    TransferOptions {
        recursive: arguments.recursive,
        archive: arguments.archive,
        preserve: arguments.preserve,
        update: arguments.update,
        no_replace: arguments.no_replace,
        no_target_directory: arguments.no_target_directory,
        xattrs: arguments.xattrs,
        exclude: arguments.exclude.clone(),
        dry_run: arguments.dry_run,
        umask: umask(),
        method: arguments.transfer.method.into(),
    }
}

/// Prints the result. Fails if an entry failed, was skipped, or changed while it was read.
fn print(output: Output, report: &TransferReport, verb: &str) -> Outcome {
    if let Some(failure) = report.single_failure() {
        return Err(failure.clone());
    }
    let seconds = report.seconds();
    for line in report.complaints() {
        output.complain(&line);
    }
    output.remark(report.summary(verb, seconds));
    output.done(&report.json(seconds))?;
    report.outcome(verb)
}

/// `sealstone put`.
pub(crate) async fn put(global: &GlobalArgs, output: Output, arguments: &PutArgs) -> Outcome {
    let (place, sources) = arguments.paths.split_last().expect("the command line asks for two or more");
    let place = global.stored(place)?;
    let (client, _) = client(global)?;
    let client = Arc::new(client);
    let (options, observer) = (options(&arguments.tree), ShownTransfer::observer(output));
    if sources.iter().any(|source| source == "-") {
        if sources.len() > 1 {
            return Err(Failure::usage("standard input cannot be combined with other sources"));
        }
        let work = async {
            let input = standard_input()?;
            let report = sealstone_transfer::put_stream(&client, input, &place, &options, &observer).await?;
            print(output, &report, "stored")
        };
        return until_signal(work, async || {}, CONTINUE).await;
    }
    let work = async {
        let transfer = sealstone_transfer::put(Arc::clone(&client), sources, &place, &options, &observer);
        print(output, &transfer.await?, "stored")
    };
    until_signal(work, async || remove_stored_temporaries(&client).await, CONTINUE).await
}

/// `sealstone get`.
pub(crate) async fn get(global: &GlobalArgs, output: Output, arguments: &GetArgs) -> Outcome {
    let here = OsString::from(".");
    let (sources, place) = match arguments.paths.as_slice() {
        [only] => (std::slice::from_ref(only), &here),
        [sources @ .., place] => (sources, place),
        [] => return Err(Failure::usage("missing argument PATH")),
    };
    let sources = stored(global, sources)?;
    let (client, _) = client(global)?;
    if place == "-" {
        for path in &sources {
            to_stdout(&client, path, arguments.tree.transfer.method).await?;
        }
        return Ok(());
    }
    let (options, observer) = (options(&arguments.tree), ShownTransfer::observer(output));
    let work = async {
        let transfer = sealstone_transfer::get(Arc::new(client), &sources, place, &options, &observer);
        print(output, &transfer.await?, "fetched")
    };
    until_signal(work, async || {}, CONTINUE).await
}

/// Writes a local file, which gets its name when `write` has succeeded. A new file is private.
pub(crate) async fn write_whole<T>(
    path: &OsStr,
    write: impl AsyncFnOnce(&mut tokio::fs::File) -> Outcome<T>,
) -> Outcome<T> {
    let mut written = None;
    let work = async {
        written = Some(sealstone_transfer::write_whole(path, write).await?);
        Ok(())
    };
    until_signal(work, async || {}, "run it again").await?;
    written.ok_or_else(|| Failure::operation("nothing was written").at(path.shown()))
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
    match client.get(path, &mut stdout, GetOptions { method: method.into(), ..GetOptions::default() }).await {
        Ok(_) => stdout.flush().await.map_err(|error| stdout_failure(error).fatal()),
        Err(ClientError::Sink(error)) => Err(stdout_failure(error).fatal()),
        Err(error) => Err(Failure::from(error).at(path)),
    }
}

/// `sealstone cat`.
pub(crate) async fn cat(global: &GlobalArgs, output: Output, arguments: &CatArgs) -> Outcome {
    let paths = stored(global, &arguments.paths)?;
    let (client, _) = client(global)?;
    let results = for_each(&output, &paths, async |path| {
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
