//! `sealstone cap run`: runs a function with capability files, without a login.
//!
//! Does: loads and joins the files, and runs the function as `sealstone run` does.
//! Does not: contact a metadata server, start asynchronous jobs, or change files.
//! Truth: docs/how-to/functions.md; docs/standards/mds/functions.md, delegation.

use sealstone_client::{CapabilityFile, Client, FilePath, RunFile};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_function_runs::InputFiles;

use crate::cli::GlobalArgs;
use crate::cli::grants::CapRunArgs;
use crate::command::run::{plan_of, run_call};
use crate::command::session::reach;
use crate::output::Output;

/// Loads the capability files of a command.
fn load(arguments: &CapRunArgs) -> Outcome<RunFile> {
    let CapRunArgs { file: path, data, .. } = arguments;
    let mut file = RunFile::load(path).map_err(|error| Failure::from(error).at(path.shown()))?;
    for path in data {
        let more = CapabilityFile::load(path).and_then(|more| file.clone().with_data(more));
        file = more.map_err(|error| Failure::from(error).at(path.shown()))?;
    }
    Ok(file)
}

/// `sealstone cap run`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &CapRunArgs) -> Outcome {
    let file = load(arguments)?;
    let function: FilePath = file.function().path.clone();
    if file.data().is_empty() {
        return Err(Failure::new(
            FailureKind::Denied,
            format!("it permits to execute {function}, but to read no file"),
        )
        .at(arguments.file.shown())
        .hint("`sealstone cap issue --execute FUNCTION --data PATH` permits both"));
    }
    let paths = file.data().iter().map(|file| file.path.clone());
    let files = InputFiles::of_paths(paths);
    let client = Client::of_run_file(file, reach(global)?);
    let plan = plan_of(output, function, &arguments.call);
    run_call(output, &client, &plan, &files, None).await
}
