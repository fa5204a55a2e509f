//! `sealstone fn test`: runs a function on local files, without a device.
//!
//! Does: start the engine program in its sandbox, and run the function by the service of a device,
//! with local files as objects.
//! Does not: need a session or a metadata server.
//! Truth: docs/how-to/functions.md; docs/reference/json.md.

use sealstone_failure::text::{ShownPath as _, hex, set_path};
use sealstone_failure::{Failure, Outcome, for_each};
use sealstone_function_runs::{
    LocalCall, LocalEngine, LocalLimits, ResultSink, failure_of, group_local_files, local_run_json,
    local_run_line, named_arguments, open_local_object, read_code,
};
use sealstone_osd::function::EngineType;
use serde_json::json;
use zeroize::Zeroizing;

use crate::cli::functions::FunctionTestArgs;
use crate::command::run::{ShownRun, destination};
use crate::output::Output;

/// `sealstone fn test`.
pub(crate) async fn run(output: Output, options: &FunctionTestArgs) -> Outcome {
    let (code, engine) = read_code(&options.function, options.engine.map(EngineType::from))?;
    let arguments = named_arguments(&options.arguments, options.arg_file.as_deref())?;
    let runs = group_local_files(&options.files, options.together)?;
    let limits = LocalLimits::of_device(options.timeout);
    let function = LocalEngine::start(engine, options.engines.as_deref(), code, limits)?;
    if !function.lacking.is_empty() {
        let lacking = function.lacking.join(", ");
        output.remark(format!("the sandbox lacks these layers on this machine: {lacking}"));
    }
    let mut sink = ResultSink::open(&destination(output, &options.output), output.is_json())?;
    let mut failures = Vec::new();
    let mut results = for_each(&output, &runs, async |files| {
        let names: Vec<String> = files.iter().map(|file| file.shown().into_owned()).collect();
        let function_name = || options.function.shown().into_owned();
        let name = if names.is_empty() { function_name() } else { names.join(", ") };
        let objects = files.iter().enumerate();
        let objects = objects.map(|(number, path)| open_local_object(path, number, options.update));
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
        output.remark(format!("{name}: {}", local_run_line(&end.header)));
        match failure_of(&name, &end.header) {
            Some(failure) => failures.push(failure),
            None => sink.write(&ShownRun::new(output), &end.result).map_err(Failure::fatal)?,
        }
        Ok(local_run_json(files, &end, !sink.is_file()))
    })
    .await?;
    failures.into_iter().for_each(|failure| results.fail(&output, failure));
    let mut value = json!({
        "engine": engine.name(), "digest": hex(&function.digest), "lacking_layers": function.lacking,
        "jobs": results.done,
    });
    set_path(&mut value, "function", &options.function);
    output.parts(results, value)
}
