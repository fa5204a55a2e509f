//! `sealstone fn test`: runs a function on local files, without a device.
//!
//! Does: start the engine program in its sandbox, and run the function by the service of a device,
//! with local files as objects.
//! Does not: need a session or a metadata server.
//! Truth: docs/how-to/functions.md; docs/reference/json.md.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_client::functions::{CallArguments, FUNCTION_CODE_MAX};
use sealstone_failure::text::{ShownPath as _, hex, human_bytes, set_bytes, set_path};
use sealstone_failure::{Failure, Outcome};
use sealstone_function_runs::{
    LocalCall, LocalEngine, LocalLimits, LocalRunEnd, READS, add_argument_file, failure_of, json_name,
};
use sealstone_function_service::LocalFileObject;
use sealstone_osd::Permissions;
use sealstone_osd::function::{OBJECTS_MAX, ReplyHeader};
use sealstone_osd_device::GrantedObject;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::cli::functions::FunctionTestArgs;
use crate::command::functions::{engine_of, read_file};
use crate::command::parts::for_each;
use crate::command::result_sink::ResultSink;
use crate::output::Output;

/// Returns the arguments of the command line and of the private file.
fn call_arguments(options: &FunctionTestArgs) -> Outcome<CallArguments> {
    let mut all = CallArguments::default();
    for (name, value) in &options.arguments {
        all.add(name, value)?;
    }
    if let Some(path) = &options.arg_file {
        add_argument_file(&mut all, path)?;
    }
    Ok(all)
}

/// Opens a local file as an object of a function.
fn open(path: &Path, number: usize, update: bool) -> Outcome<Arc<dyn GrantedObject>> {
    let file = OpenOptions::new().read(true).write(update).open(path);
    let file = file.map_err(|error| Failure::from(error).at(path.shown()))?;
    let is_file = file.metadata().map_err(|error| Failure::from(error).at(path.shown()))?.is_file();
    if !is_file {
        return Err(Failure::usage("not a regular file").at(path.shown()));
    }
    let writes = Permissions::WRITE | Permissions::OBJ_MGMT;
    let rights = if update { READS | writes } else { READS };
    Ok(Arc::new(LocalFileObject::new(file, u32::try_from(number).unwrap_or(u32::MAX), rights)))
}

/// Returns the JSON of a run.
fn value(files: &[PathBuf], end: &LocalRunEnd, has_result: bool) -> Value {
    let header = &end.header;
    let files: Vec<Value> = files
        .iter()
        .map(|path| {
            let mut value = json!({});
            set_path(&mut value, "path", path);
            value
        })
        .collect();
    let mut value = json!({
        "files": files, "state": json_name(header.state.name()), "exit": json_name(header.exit.name()),
        "code": header.error, "log": end.log, "result_bytes": end.result.len(),
        "bytes_read": header.bytes_read, "bytes_written": header.bytes_written, "calls": header.calls,
        "cpu_us": header.cpu_us, "wall_us": header.wall_us, "peak_memory": header.peak_memory,
        "progress": { "done": header.progress_done, "total": header.progress_total },
    });
    if has_result {
        set_bytes(&mut value, "result", &end.result);
    }
    value
}

/// Returns one line about a run.
fn summary(header: &ReplyHeader) -> String {
    let code = if header.error == 0 { String::new() } else { format!(", code {}", header.error) };
    let milliseconds = |us: u64| format!("{}.{:03} ms", us / 1000, us % 1000);
    format!(
        "{}: {}{code}; CPU time {}, wall time {}, memory {}, read {}, wrote {}, {} calls",
        header.state,
        header.exit,
        milliseconds(header.cpu_us),
        milliseconds(header.wall_us),
        human_bytes(header.peak_memory),
        human_bytes(header.bytes_read),
        human_bytes(header.bytes_written),
        header.calls
    )
}

/// Returns the files of each run.
fn runs(options: &FunctionTestArgs) -> Outcome<Vec<Vec<PathBuf>>> {
    let files = &options.files;
    if options.together && files.len() > OBJECTS_MAX {
        return Err(Failure::usage(format!("a run has at most {OBJECTS_MAX} files")));
    }
    Ok(match files.len() {
        0 => vec![Vec::new()],
        _ if options.together => vec![files.clone()],
        _ => files.iter().map(|file| vec![file.clone()]).collect(),
    })
}

/// `sealstone fn test`.
pub(crate) async fn run(output: Output, options: &FunctionTestArgs) -> Outcome {
    let code = read_file(&options.function, FUNCTION_CODE_MAX)?;
    let engine = engine_of(&options.function, options.engine, &code)?;
    let arguments = call_arguments(options)?;
    let runs = runs(options)?;
    let limits = LocalLimits::of_device(options.timeout);
    let function = LocalEngine::start(engine, options.engines.as_deref(), code, limits)?;
    if !function.lacking.is_empty() {
        let lacking = function.lacking.join(", ");
        output.remark(format!("the sandbox lacks these layers on this machine: {lacking}"));
    }
    let path = options.output.as_os_str();
    let mut sink = ResultSink::open(path)?;
    let mut failures = Vec::new();
    let mut results = for_each(output, &runs, async |files| {
        let names: Vec<String> = files.iter().map(|file| file.shown().into_owned()).collect();
        let function_name = || options.function.shown().into_owned();
        let name = if names.is_empty() { function_name() } else { names.join(", ") };
        let objects = files.iter().enumerate();
        let objects = objects.map(|(number, path)| open(path, number, options.update));
        let end = function.run(LocalCall {
            objects: objects.collect::<Outcome<Vec<_>>>()?,
            method: options.method.clone(),
            arguments: Zeroizing::new(arguments.bytes().to_vec()),
            secret_arguments: options.arg_file.is_some(),
            commit_on_success: options.commit,
            timeout_ms: options.timeout,
        })?;
        if !end.log.is_empty() {
            output.remark(end.log.trim_end());
        }
        output.remark(format!("{name}: {}", summary(&end.header)));
        match failure_of(&name, &end.header) {
            Some(failure) => failures.push(failure),
            None => sink.write(path, output, &end.result).map_err(Failure::fatal)?,
        }
        Ok(value(files, &end, path == "-"))
    })
    .await?;
    failures.into_iter().for_each(|failure| results.fail(failure));
    let mut value = json!({
        "engine": engine.name(), "digest": hex(&function.digest), "lacking_layers": function.lacking,
        "jobs": results.done,
    });
    set_path(&mut value, "function", &options.function);
    results.finish(value)
}

#[cfg(test)]
mod tests {
    use sealstone_osd::function::{JobId, JobState};

    use super::*;

    #[test]
    fn summary_has_figures_with_units() {
        let mut header = ReplyHeader::new(JobId([1; 16]), JobState::Done);
        (header.cpu_us, header.peak_memory) = (1002, 3 << 20);
        let line = summary(&header);
        assert!(line.contains("CPU time 1.002 ms") && line.contains("memory 3.0 MiB"), "{line}");
    }
}
