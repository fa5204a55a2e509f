//! `sealstone fn test`: runs a function on local files, without a device.
//!
//! Does: start the engine program in its sandbox, and run the function by the service of a device,
//! with local files as objects. Does not: need a session or a metadata server.
//! Truth: docs/how-to/functions.md; docs/reference/json.md.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sealstone_client::functions::{CallArguments, FUNCTION_CODE_MAX};
use sealstone_function_service::{
    EngineSet, FunctionService, LocalFileObject, RunRecord, RunRecorder, ServiceLimits, ServiceParts,
};
use sealstone_osd::function::attributes::FunctionAttributes;
use sealstone_osd::function::{
    ApiVersion, EngineType, FunctionObject, INLINE_MAX, JobAction, JobRequest, JobState, OBJECTS_MAX,
    ReplyHeader,
};
use sealstone_osd::{ObjectId, Permissions};
use sealstone_osd_device::{
    CodeRequest, FunctionCall, FunctionCaller, FunctionCode, FunctionRefusal, FunctionRunner as _,
    GrantedObject, JobCall,
};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::cli::functions::{FunctionTestArgs, parse_pair};
use crate::command::functions::{engine_of, enumeration, read_file};
use crate::command::parts::for_each;
use crate::command::run::ResultSink;
use crate::daemon::functions::engine_folders;
use crate::daemon::osd::Machine;
use crate::failure::{Failure, Outcome, chain};
use crate::output::{Output, human_bytes};
use crate::secret_file;
use crate::text::{ShownPath as _, hex, set_bytes, set_path};

/// The object that functions see as their own.
const FUNCTION: ObjectId = ObjectId::new(0x10000, 0x20000);
/// Bytes of a result that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// A command has no audit log.
struct NoRecorder;

impl RunRecorder for NoRecorder {
    fn record_run(&self, _: &RunRecord<'_>) {}
}

/// How a function runs on local files.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalRunOptions {
    /// Method of the function; empty for its default method.
    pub(crate) method: String,
    /// Whether the arguments are secret.
    pub(crate) secret_arguments: bool,
    /// Whether the function may change the files.
    pub(crate) update: bool,
    /// Whether changes become visible only if the function succeeds.
    pub(crate) commit: bool,
    /// Longest run in milliseconds.
    pub(crate) timeout_ms: u32,
}

/// A function that runs on local files, and the service that runs it.
pub(crate) struct LocalFunction {
    service: FunctionService,
    engine: EngineType,
    code: Arc<[u8]>,
    digest: [u8; 32],
    arguments: Zeroizing<Vec<u8>>,
    options: LocalRunOptions,
    caller: FunctionCaller,
}

/// A run that has ended.
pub(crate) struct LocalRunEnd {
    pub(crate) header: ReplyHeader,
    pub(crate) log: String,
    pub(crate) result: Vec<u8>,
}

/// Returns the arguments of the command line and of the private file.
fn call_arguments(options: &FunctionTestArgs) -> Outcome<CallArguments> {
    let mut all = CallArguments::default();
    for (name, value) in &options.arguments {
        all.add(name, value)?;
    }
    if let Some(path) = &options.arg_file {
        let text = secret_file::read(path)?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = parse_pair(line).map_err(|error| Failure::usage(error).at(path.shown()))?;
            all.add(&name, &value)?;
        }
    }
    Ok(all)
}

fn start_service(engines: EngineSet, timeout_ms: u32, folder: &Path) -> Outcome<FunctionService> {
    let mut limits = ServiceLimits::for_cores(1);
    limits.run.wall = Duration::from_millis(timeout_ms.into());
    // Each run gets an engine of its own, so that its memory is its own too.
    limits.warm_engines = 0;
    FunctionService::start(ServiceParts {
        engines,
        limits,
        environment: Arc::new(Machine),
        records: folder.join("jobs"),
        recorder: Arc::new(NoRecorder),
        receipts: Box::new(|| None),
    })
    .map_err(|error| Failure::operation(chain(&error)))
}

/// Starts the engines; returns them with the layers of isolation that this machine lacks.
fn start_engines(engine: EngineType, folder: Option<&Path>) -> Outcome<(EngineSet, Vec<&'static str>)> {
    let engines = EngineSet::start_only(engine, &engine_folders(folder)?);
    let status = engines.status().into_iter().find(|status| status.engine == engine);
    let status = status.ok_or_else(|| Failure::operation("this program does not support the engine"))?;
    if !status.available {
        let text = format!("the {} engine cannot run: {}", engine.name(), status.detail);
        return Err(
            Failure::operation(text).hint("`make engines` builds the engines; --engines names their folder")
        );
    }
    let lacking = status.layers.iter().filter(|layer| layer.state.is_lacking());
    Ok((engines, lacking.map(|layer| layer.layer).collect()))
}

fn open(path: &Path, number: usize, update: bool) -> Outcome<Arc<dyn GrantedObject>> {
    let file = OpenOptions::new().read(true).write(update).open(path);
    let file = file.map_err(|error| Failure::from(error).at(path.shown()))?;
    let is_file = file.metadata().map_err(|error| Failure::from(error).at(path.shown()))?.is_file();
    if !is_file {
        return Err(Failure::usage("not a regular file").at(path.shown()));
    }
    // The rights of `run`.
    let reads = Permissions::READ | Permissions::GET_ATTR;
    let writes = Permissions::WRITE | Permissions::OBJ_MGMT;
    let rights = if update { reads | writes } else { reads };
    Ok(Arc::new(LocalFileObject::new(file, u32::try_from(number).unwrap_or(u32::MAX), rights)))
}

fn refusal(refusal: &FunctionRefusal) -> Failure {
    Failure::operation(chain(refusal))
}

impl LocalFunction {
    /// Starts the engine of a function; returns the layers of isolation that this machine lacks
    /// too. The folder gets the records of jobs.
    pub(crate) fn start(
        engine: (EngineType, Option<&Path>),
        code: Vec<u8>,
        arguments: Zeroizing<Vec<u8>>,
        options: LocalRunOptions,
        folder: &Path,
    ) -> Outcome<(Self, Vec<&'static str>)> {
        let (engine, programs) = engine;
        let (engines, lacking) = start_engines(engine, programs)?;
        let function = Self {
            service: start_service(engines, options.timeout_ms, folder)?,
            engine,
            digest: *blake3::hash(&code).as_bytes(),
            code: code.into(),
            arguments,
            options,
            caller: FunctionCaller::new([0; 20], "local".to_owned()),
        };
        Ok((function, lacking))
    }

    /// Runs the function once.
    pub(crate) fn run(&self, files: &[PathBuf]) -> Outcome<LocalRunEnd> {
        let objects = files.iter().enumerate();
        let objects = objects.map(|(number, path)| open(path, number, self.options.update));
        let objects = objects.collect::<Outcome<Vec<_>>>()?;
        let long_result = tempfile::tempfile()?;
        let result_object =
            LocalFileObject::new(long_result.try_clone()?, u32::MAX, FunctionObject::RESULT_RIGHTS);
        let (engine, api, caller) = (self.engine, ApiVersion::CURRENT, &self.caller);
        let request = CodeRequest { function: FUNCTION, bytes: self.code.len() as u64, engine, api, caller };
        let reservation = self.service.reserve_code(&request).map_err(|error| refusal(&error))?;
        let call = FunctionCall {
            function: FUNCTION,
            code: Some(FunctionCode { bytes: Arc::clone(&self.code), reservation }),
            digest: self.digest,
            attributes: FunctionAttributes::default(),
            engine,
            api,
            method: self.options.method.clone(),
            arguments: self.arguments.clone(),
            secret_arguments: self.options.secret_arguments,
            commit_on_success: self.options.commit,
            objects,
            result_object: Some(Arc::new(result_object)),
            timeout_ms: self.options.timeout_ms,
            inline_max: INLINE_MAX,
            caller: caller.clone(),
        };
        let reply = self.service.execute(call).map_err(|error| refusal(&error))?;
        let request = JobRequest { action: JobAction::Log { offset: 0 }, job: reply.header.job };
        let log = JobCall { function: FUNCTION, request, inline_max: INLINE_MAX, caller: caller.clone() };
        let log = self.service.job(log).map_err(|error| refusal(&error))?.inline;
        let result = match reply.header.result_object {
            Some(_) => read_result(&long_result, reply.header.total_length)?,
            None => reply.inline,
        };
        Ok(LocalRunEnd { header: reply.header, log: String::from_utf8_lossy(&log).into_owned(), result })
    }
}

fn read_result(file: &File, length: u64) -> Outcome<Vec<u8>> {
    let length = usize::try_from(length).map_err(|_| Failure::operation("the result is too long"))?;
    let mut result = vec![0; length];
    for (index, piece) in result.chunks_mut(COPY_BYTES).enumerate() {
        file.read_exact_at(piece, (index * COPY_BYTES) as u64)?;
    }
    Ok(result)
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
        "files": files, "state": enumeration(header.state.name()), "exit": enumeration(header.exit.name()),
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

/// Returns the failure of a run that has no result.
pub(crate) fn failure_of(name: &str, header: &ReplyHeader) -> Option<Failure> {
    if header.state == JobState::Done {
        return None;
    }
    let code = if header.error == 0 { String::new() } else { format!(", code {}", header.error) };
    let failure = format!("the function ended as {}: {}{code}", header.state, header.exit);
    Some(Failure::operation(failure).at(name).hint("its log may have the reason"))
}

/// `sealstone fn test`.
pub(crate) async fn run(output: Output, options: &FunctionTestArgs) -> Outcome {
    let code = read_file(&options.function, FUNCTION_CODE_MAX)?;
    let engine = engine_of(&options.function, options.engine, &code)?;
    let arguments = call_arguments(options)?;
    let runs = runs(options)?;
    let folder = tempfile::tempdir()?;
    let local = LocalRunOptions {
        method: options.method.clone(),
        secret_arguments: options.arg_file.is_some(),
        update: options.update,
        commit: options.commit,
        timeout_ms: options.timeout,
    };
    let arguments = Zeroizing::new(arguments.bytes().to_vec());
    let engine_folder = options.engines.as_deref();
    let (function, lacking) =
        LocalFunction::start((engine, engine_folder), code, arguments, local, folder.path())?;
    if !lacking.is_empty() {
        output.remark(format!("the sandbox lacks these layers on this machine: {}", lacking.join(", ")));
    }
    let path = options.output.as_os_str();
    let mut sink = ResultSink::open(path)?;
    let mut failures = Vec::new();
    let mut results = for_each(output, &runs, async |files| {
        let names: Vec<String> = files.iter().map(|file| file.shown().into_owned()).collect();
        let function_name = || options.function.shown().into_owned();
        let name = if names.is_empty() { function_name() } else { names.join(", ") };
        let end = function.run(files)?;
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
        "engine": engine.name(), "digest": hex(&function.digest), "lacking_layers": lacking,
        "jobs": results.done,
    });
    set_path(&mut value, "function", &options.function);
    results.finish(value)
}

#[cfg(test)]
mod tests {
    use sealstone_osd::function::{ExitReason, JobId};

    use super::*;

    #[test]
    fn failure_names_exit_reason_and_code() {
        let mut header = ReplyHeader::new(JobId([1; 16]), JobState::Done);
        assert_eq!(failure_of("a", &header), None);
        (header.state, header.exit, header.error) = (JobState::Failed, ExitReason::Trap, 11);
        let failure = failure_of("a", &header).expect("it failed").to_string();
        assert!(failure.starts_with("a: the function ended as failed: trap, code 11"), "{failure}");
        (header.cpu_us, header.peak_memory) = (1002, 3 << 20);
        let line = summary(&header);
        assert!(line.contains("CPU time 1.002 ms") && line.contains("memory 3.0 MiB"), "{line}");
    }
}
