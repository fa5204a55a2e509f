//! `sealstone cap`: issues, shows and uses capability files, for programs that do not log in.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use sealstone_client::{CapabilityFile, Delegated, Delegation, RUN_FILE_DATA_MAX, RunFile};
use sealstone_failure::text::{ShownPath as _, counted, hex, human_bytes, set_bytes, snake_case};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::PinKind;
use sealstone_osd::{CapabilityBytes, Descriptor, Generation, Permissions, SecurityMethod};
use sealstone_units::utc;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::cli::GlobalArgs;
use crate::cli::grants::{ByteRange, Cap, IssueArgs, Until};
use crate::command::cap_run;
use crate::command::functions::function_path;
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
    let path = &if *execute { function_path(global, path)? } else { (*global.stored(path)?).clone() };
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
    if let Until::In(_) = until {
        // The response has the clock of the server.
        client.whoami().await?;
    }
    let until_ms = match until {
        Until::In(ms) => client.server_now_ms().saturating_add(*ms),
        Until::At(ms) => *ms,
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
            format!("{} bytes {}..{} of {path}", rights(&file).join(" and "), delegated.start, delegated.end)
        }
    };
    let ends_ms = readable.iter().map(|file| file.delegated.expires_ms).fold(delegated.expires_ms, u64::min);
    let value = run_value(&file, &readable);
    let saved = match readable.is_empty() {
        true => file.save(to),
        false => RunFile::new(file, readable).and_then(|file| file.save(to)),
    };
    saved.map_err(|error| Failure::from(error).at(to.shown()))?;
    output.remark(format!("{} may {what} until {} UTC", to.shown(), utc(ends_ms)));
    output.done(&value)
}

fn rights(file: &CapabilityFile) -> Vec<&'static str> {
    let of = |may: bool, what| may.then_some(what);
    let delegated = &file.delegated;
    let rights = [of(delegated.read, "read"), of(delegated.write, "write"), of(file.executes(), "execute")];
    rights.into_iter().flatten().collect()
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

const fn method_name(method: SecurityMethod) -> &'static str {
    match method {
        SecurityMethod::NoSec => "nosec",
        SecurityMethod::CapKey => "capkey",
        SecurityMethod::CmdRsp => "cmdrsp",
        SecurityMethod::AllData => "alldata",
    }
}

/// Returns the fields of a capability. Capability keys are never printed.
fn capability(bytes: &[u8]) -> serde_json::Value {
    let generation = [Generation::Osd1, Generation::Osd2]
        .into_iter()
        .find(|generation| generation.capability_len() == bytes.len());
    let bytes = generation.and_then(|generation| CapabilityBytes::new(generation, bytes));
    let Some(bytes) = bytes else { return json!({ "readable": false }) };
    if bytes.is_sealed() {
        return json!({ "sealed": true });
    }
    let Ok(capability) = bytes.parse() else { return json!({ "readable": false }) };
    let permissions: Vec<String> = Permissions::NAMES
        .iter()
        .filter(|(permission, _)| capability.permissions.contains(*permission))
        .map(|(_, name)| snake_case(name))
        .collect();
    let mut value = json!({
        "sealed": false, "permissions": permissions, "method": method_name(capability.method),
        "expires_ms": capability.expires_ms, "key_version": capability.key_version,
        "audit": hex(&capability.audit),
    });
    if let Descriptor::User { scope, allowed, range } = capability.descriptor {
        value["object"] = json!(allowed.to_string());
        value["start"] = json!(range.start);
        value["length"] = json!(range.length);
        value["policy_access_tag"] = json!(scope.policy_access_tag);
    }
    value
}

fn value(file: &CapabilityFile) -> serde_json::Value {
    let CapabilityFile { path, delegated, devices } = file;
    let devices: Vec<_> = devices
        .iter()
        .map(|device| {
            let pin = device.pin.map(|pin| {
                let kind = if pin.kind == PinKind::Authority { "authority" } else { "certificate" };
                json!({ "kind": kind, "sha256": hex(&pin.hash) })
            });
            json!({ "id": device.id.0, "name": device.name.shown(), "url": device.url.as_str(), "pin": pin })
        })
        .collect();
    let capabilities: Vec<_> = delegated
        .grants
        .iter()
        .map(|grant| {
            let mut value = capability(grant.capability.as_slice());
            value["device"] = json!(grant.object.device.0);
            value
        })
        .collect();
    let mut value = json!({
        "read": delegated.read, "write": delegated.write, "execute": file.executes(),
        "start": delegated.start, "end": delegated.end, "size": delegated.stat.size,
        "expires_ms": delegated.expires_ms, "principal": hex(&delegated.principal),
        "devices": devices, "capabilities": capabilities,
    });
    set_bytes(&mut value, "path", path);
    value
}

/// Returns the JSON of a capability file, and of the files that its function may read.
fn run_value(file: &CapabilityFile, data: &[CapabilityFile]) -> serde_json::Value {
    let mut all = value(file);
    if file.executes() {
        all["data"] = data.iter().map(value).collect();
    }
    all
}

fn show(output: Output, path: &Path) -> Outcome {
    let (file, data) = load_any(path)?;
    output.result(&run_value(&file, &data), || {
        let texts: Vec<String> = std::iter::once(&file).chain(&data).map(text_of).collect();
        texts.join("\n\n")
    })
}

fn text_of(file: &CapabilityFile) -> String {
    let CapabilityFile { path, delegated, devices } = file;
    let mut lines = vec![
        format!("file       {}", path.shown()),
        format!("may        {}", rights(file).join(", ")),
        format!("bytes      {}..{} of {}", delegated.start, delegated.end, delegated.stat.size),
        format!("until      {} UTC", utc(delegated.expires_ms)),
        format!("principal  {}", hex(&delegated.principal)),
    ];
    for device in devices {
        let by = if device.pin.is_some() { "inside TLS, pinned" } else { "without TLS" };
        lines.push(format!("device     {} {} ({by})", device.name, device.url));
    }
    for grant in &delegated.grants {
        let fields = capability(grant.capability.as_slice());
        let names = fields["permissions"].as_array().map_or_else(
            || "sealed: only the device can read it".to_owned(),
            |names| names.iter().filter_map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
        );
        let known = devices.iter().find(|device| device.id == grant.object.device);
        let device = known
            .map_or_else(|| format!("number {}", grant.object.device.0), |device| device.name.to_string());
        lines.push(format!("object     {} on device {device}: {names}", grant.object.object));
    }
    lines.join("\n")
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
