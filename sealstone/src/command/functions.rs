//! `sealstone fn`: stores, lists, shows and removes functions, and lists engines. The project of a
//! new function is in [`function_project`], its run on local files in [`function_test`], and the
//! installation of the shipped functions in [`function_install`].

use std::ffi::{OsStr, OsString};

use sealstone_client::FilePath;
use sealstone_client::functions::FunctionPublication;
use sealstone_failure::text::set_bytes;
use sealstone_failure::{Failure, Outcome, for_each};
use sealstone_function_runs::{
    EngineList, FunctionList, FunctionSource, at_function, copy_to_devices, function_json, function_text,
    store_function,
};
use sealstone_osd::function::EngineType;
use serde_json::json;

use super::FUNCTION_METHOD;
use crate::cli::GlobalArgs;
use crate::cli::functions::{Function, FunctionPutArgs};
use crate::command::run::ShownRun;
use crate::command::session::client;
use crate::command::{function_install, function_policy, function_project, function_test};
use crate::output::Output;

/// `sealstone fn …`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, command: &Function) -> Outcome {
    match command {
        Function::New(arguments) => function_project::create(output, arguments),
        Function::Test(arguments) => function_test::run(output, arguments).await,
        Function::Install(arguments) => function_install::run(global, output, arguments).await,
        Function::Put(arguments) => put(global, output, arguments).await,
        Function::Ls { path } => ls(global, output, path.as_deref()).await,
        Function::Show { function } => show(global, output, function).await,
        Function::Copy { function } => copy(global, output, function).await,
        Function::Rm { functions } => remove(global, output, functions).await,
        Function::Policy(arguments) => function_policy::run(global, output, arguments).await,
        Function::Engines => engines(global, output).await,
    }
}

async fn put(global: &GlobalArgs, output: Output, arguments: &FunctionPutArgs) -> Outcome {
    let path = global.function(&arguments.path)?;
    let source = FunctionSource {
        file: arguments.file.clone(),
        engine: arguments.engine.map(EngineType::from),
        api: arguments.api,
        manifest: arguments.manifest.clone(),
        version: arguments.version.clone(),
        publisher: arguments.publisher.clone(),
        sign: arguments.sign.clone(),
    };
    let (code, description) = source.read()?;
    let (client, _) = client(global)?;
    let (mode, replace) = (arguments.mode, !arguments.no_replace);
    let publication = FunctionPublication { description, mode, replace, method: FUNCTION_METHOD };
    let observer = ShownRun::new(output);
    let stored = store_function(&client, &path, &code, &publication, !arguments.no_copies, &observer).await?;
    output.done(&stored)
}

async fn copy(global: &GlobalArgs, output: Output, function: &OsStr) -> Outcome {
    let path = global.function(function)?;
    let (client, _) = client(global)?;
    client.function(&path, FUNCTION_METHOD).await.map_err(|error| at_function(error, &path))?;
    let made = copy_to_devices(&client, &path, FUNCTION_METHOD, &ShownRun::new(output)).await?;
    output.remark(format!("made {made} copies of {path}"));
    let mut value = json!({ "copies": made });
    set_bytes(&mut value, "path", &path);
    output.done(&value)
}

async fn ls(global: &GlobalArgs, output: Output, path: Option<&OsStr>) -> Outcome {
    let directory = path.map(|path| global.bytes(path)).transpose()?;
    let (client, _) = client(global)?;
    let observer = ShownRun::new(output);
    let list = FunctionList::load(&client, directory.as_deref(), FUNCTION_METHOD, &observer).await?;
    output.result(&list.json(), || list.text())
}

async fn show(global: &GlobalArgs, output: Output, function: &OsStr) -> Outcome {
    let path = global.function(function)?;
    let (client, _) = client(global)?;
    let found = client.function(&path, FUNCTION_METHOD).await.map_err(|error| at_function(error, &path))?;
    output.result(&function_json(&path, &found), || function_text(&path, &found))
}

async fn remove(global: &GlobalArgs, output: Output, functions: &[OsString]) -> Outcome {
    let paths: Vec<FilePath> =
        functions.iter().map(|function| global.function(function)).collect::<Outcome<_>>()?;
    let (client, _) = client(global)?;
    let results = for_each(&output, &paths, async |path| {
        // A mistyped path must not remove data.
        client.function(path, FUNCTION_METHOD).await.map_err(|error| at_function(error, path))?;
        client.remove(path, false).await.map_err(|error| Failure::from(error).at(path))?;
        output.remark(format!("removed {path}"));
        Ok(())
    })
    .await?;
    let removed = results.done.len();
    output.parts(results, json!({ "removed": removed }))
}

async fn engines(global: &GlobalArgs, output: Output) -> Outcome {
    let (client, _) = client(global)?;
    let list = EngineList::load(&client, FUNCTION_METHOD).await?;
    output.result(&list.json(), || list.text())
}
