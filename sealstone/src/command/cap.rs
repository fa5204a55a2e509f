//! `sealstone cap`: issues, shows and uses capability files, for programs that do not log in.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use sealstone_administration::{
    DelegatedAccess, IssuedCapability, capability_json, capability_text, load_capability_files,
};
use sealstone_client::{CapabilityFile, Delegated};
use sealstone_failure::text::{ShownPath as _, human_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_transfer::put_delegated;
use sealstone_units::ByteRange;
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
    let access = match execute {
        true => {
            let data = data.iter().map(|path| Ok((*global.stored(path)?).clone()));
            DelegatedAccess::Execution(data.collect::<Outcome<_>>()?)
        }
        false => DelegatedAccess::Bytes { read: *read, write: *write, range: *range },
    };
    let (client, _) = client(global)?;
    let issued = IssuedCapability::request(&client, path, &access, *until, (*method).into()).await?;
    let (value, text) = (issued.json(), issued.text());
    issued.save(to)?;
    output.remark(format!("{} may {text}", to.shown()));
    output.done(&value)
}

fn load(path: &Path) -> Outcome<CapabilityFile> {
    CapabilityFile::load(path).map_err(|error| Failure::from(error).at(path.shown()))
}

fn show(output: Output, path: &Path) -> Outcome {
    let (file, data) = load_capability_files(path)?;
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
        let written = delegated.write(offset, standard_input()?, &mut progress).await;
        written.map_err(|error| Failure::from(error).at(path.shown()))?
    } else {
        put_delegated((&delegated, path), offset, source, &mut progress).await?
    };
    bar.finish_and_clear();
    delegated.close().await;
    report(output, "wrote", bytes, started)
}
