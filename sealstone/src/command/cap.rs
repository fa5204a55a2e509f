//! `sealstone cap`: issues, shows and uses capability files, for programs that do not log in.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use sealstone_administration::{capability_json, capability_rights, capability_text};
use sealstone_client::{CapabilityFile, Delegated, Delegation, RUN_FILE_DATA_MAX, RunFile};
use sealstone_failure::text::{ShownPath as _, counted, human_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_units::{ByteRange, Expiry, utc};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::cli::GlobalArgs;
use crate::cli::grants::{Cap, IssueArgs};
use crate::command::cap_run;
use crate::command::session::{client, reach};
use crate::command::transfer::{standard_input, standard_output, write_whole};
use crate::output::{Output, stdout_failure};

/// `sealstone cap …`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, command: &Cap) -> Outcome {
    match command {
        Cap::Issue(arguments) => issue(global, output, arguments).await,
        Cap::Show { file } => show(output, file),
        Cap::Get { file, place, range } => get(global, output, file, place, *range).await,
        Cap::Put { file, source, at } => put(global, output, file, source, *at).await,
        Cap::Run(arguments) => cap_run::run(global, output, arguments).await,
    }
}

async fn issue(global: &GlobalArgs, output: Output, arguments: &IssueArgs) -> Outcome {
    let IssueArgs { path, read, write, execute, data, range, until, output: to, force, method } = arguments;
    let path = &if *execute { global.function(path)? } else { (*global.stored(path)?).clone() };
    if to.exists() && !force {
        return Err(Failure::operation("already exists")
            .at(to.shown())
            .hint("choose another file, or use --force"));
    }
    if data.len() > RUN_FILE_DATA_MAX {
        return Err(Failure::usage(format!("--data occurs more than {RUN_FILE_DATA_MAX} times"))
            .hint("issue a second capability file"));
    }
    let (client, _) = client(global)?;
    if let Expiry::In(_) = until {
        // The response has the clock of the server.
        client.whoami().await?;
    }
    let until_ms = match until {
        Expiry::In(ms) => client.server_now_ms().saturating_add(*ms),
        Expiry::At(ms) => *ms,
    };
    let ByteRange { start, end } = range.unwrap_or(ByteRange { start: 0, end: None });
    let method = (*method).into();
    let issued = match execute {
        true => client.delegate_execution(path, until_ms, method).await,
        false => {
            let wanted = Delegation { read: *read, write: *write, start, end, until_ms, method };
            client.delegate(path, wanted).await
        }
    };
    let file = issued.map_err(|error| Failure::from(error).at(path))?;
    let mut readable = Vec::with_capacity(data.len());
    for path in data {
        let path = global.stored(path)?;
        let issued = client.delegate_call_data(&*path, until_ms, method).await;
        readable.push(issued.map_err(|error| Failure::from(error).at(&path))?);
    }
    let delegated = &file.delegated;
    let what = match execute {
        true => format!("execute {path} on {}", counted(readable.len() as u64, "file")),
        false => {
            format!(
                "{} bytes {}..{} of {path}",
                capability_rights(&file).join(" and "),
                delegated.start,
                delegated.end
            )
        }
    };
    let ends_ms = readable.iter().map(|file| file.delegated.expires_ms).fold(delegated.expires_ms, u64::min);
    let value = capability_json(&file, &readable);
    let saved = match readable.is_empty() {
        true => file.save(to),
        false => RunFile::new(file, readable).and_then(|file| file.save(to)),
    };
    saved.map_err(|error| Failure::from(error).at(to.shown()))?;
    output.remark(format!("{} may {what} until {} UTC", to.shown(), utc(ends_ms)));
    output.done(&value)
}

fn load(path: &Path) -> Outcome<CapabilityFile> {
    CapabilityFile::load(path).map_err(|error| Failure::from(error).at(path.shown()))
}

/// Loads a capability file of any kind; returns the capability files of its data too.
fn load_any(path: &Path) -> Outcome<(CapabilityFile, Vec<CapabilityFile>)> {
    match RunFile::load(path) {
        Ok(file) => Ok((file.function().clone(), file.data().to_vec())),
        // Not for a function, or unusable for the reason that the second attempt finds.
        Err(_) => Ok((load(path)?, Vec::new())),
    }
}

fn show(output: Output, path: &Path) -> Outcome {
    let (file, data) = load_any(path)?;
    output.result(&capability_json(&file, &data), || {
        let texts: Vec<String> = std::iter::once(&file).chain(&data).map(capability_text).collect();
        texts.join("\n\n")
    })
}

fn report(output: Output, verb: &str, bytes: u64, started: Instant) -> Outcome {
    let seconds = started.elapsed().as_secs_f64();
    output.remark(format!("{verb} {} in {seconds:.2} s", human_bytes(bytes)));
    output.done(&json!({ "bytes": bytes, "seconds": seconds }))
}

async fn get(
    global: &GlobalArgs,
    output: Output,
    path: &Path,
    place: &OsStr,
    range: Option<ByteRange>,
) -> Outcome {
    let file = load(path)?;
    let delegated =
        Delegated::open(file, reach(global)?).map_err(|error| Failure::from(error).at(path.shown()))?;
    let range = range.map(|range| range.start..range.end.unwrap_or(delegated.range().end));
    let total = range.as_ref().map_or_else(
        || delegated.range().end - delegated.range().start,
        |range| range.end.saturating_sub(range.start),
    );
    let (bar, started) = (output.progress(Some(total), &place.shown()), Instant::now());
    let shown = bar.clone();
    let mut progress = move |done: u64, _: Option<u64>| shown.set_position(done);
    let refused = |error: sealstone_client::ClientError| Failure::from(error).at(path.shown());
    let bytes = if place == "-" {
        let mut sink = standard_output()?;
        match delegated.read(range, &mut sink, &mut progress).await {
            Ok(bytes) => {
                sink.flush().await.map_err(stdout_failure)?;
                bytes
            }
            Err(sealstone_client::ClientError::Sink(error)) => return Err(stdout_failure(error)),
            Err(error) => return Err(refused(error)),
        }
    } else {
        // As with `get`, the file gets its name when it is complete and verified.
        write_whole(place, async |sink| delegated.read(range, sink, &mut progress).await.map_err(refused))
            .await?
    };
    bar.finish_and_clear();
    delegated.close().await;
    // Standard output has the bytes of the file and nothing else.
    if place == "-" { Ok(()) } else { report(output, "fetched", bytes, started) }
}

async fn put(global: &GlobalArgs, output: Output, path: &Path, source: &OsStr, at: Option<u64>) -> Outcome {
    let file = load(path)?;
    let delegated =
        Delegated::open(file, reach(global)?).map_err(|error| Failure::from(error).at(path.shown()))?;
    let offset = at.unwrap_or(delegated.range().start);
    let (bar, started) = (output.progress(None, &source.shown()), Instant::now());
    let shown = bar.clone();
    let mut progress = move |done: u64, _: Option<u64>| shown.set_position(done);
    let bytes = if source == "-" {
        delegated.write(offset, standard_input()?, &mut progress).await
    } else {
        let file =
            tokio::fs::File::open(source).await.map_err(|error| Failure::from(error).at(source.shown()))?;
        // Checked before anything is written.
        let length = file.metadata().await.map_err(|error| Failure::from(error).at(source.shown()))?.len();
        let end = delegated.range().end;
        if offset.saturating_add(length) > end {
            let what = format!(
                "has {length} bytes, but the range allows {} from offset {offset}",
                end.saturating_sub(offset)
            );
            return Err(Failure::operation(what)
                .at(source.shown())
                .hint("`sealstone cap show FILE` shows the range"));
        }
        delegated.write(offset, file, &mut progress).await
    };
    let bytes = bytes.map_err(|error| Failure::from(error).at(path.shown()))?;
    bar.finish_and_clear();
    delegated.close().await;
    report(output, "wrote", bytes, started)
}
