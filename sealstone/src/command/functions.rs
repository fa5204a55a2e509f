//! `sealstone fn`: stores, lists, shows and removes functions, and lists engines. The project of a
//! new function is in [`function_project`], its run on local files in [`function_test`], and the
//! installation of the shipped functions in [`function_install`].

use std::ffi::{OsStr, OsString};

use sealstone_client::functions::{FunctionError, FunctionPublication};
use sealstone_client::{FileKind, FilePath};
use sealstone_failure::text::set_bytes;
use sealstone_failure::{Failure, Outcome, for_each};
use sealstone_function_runs::{
    EngineList, FunctionSource, LIBRARY, at_function, copy_to_devices, function_json, function_line,
    function_text,
};
use sealstone_mds_protocol::shown;
use sealstone_osd::function::EngineType;
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::functions::{Function, FunctionPutArgs};
use crate::command::function_store::{METHOD, store};
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
    let publication = FunctionPublication { description, mode, replace, method: METHOD };
    let stored = store(&client, output, &path, &code, &publication, !arguments.no_copies).await?;
    output.done(&stored)
}

async fn copy(global: &GlobalArgs, output: Output, function: &OsStr) -> Outcome {
    let path = global.function(function)?;
    let (client, _) = client(global)?;
    client.function(&path, METHOD).await.map_err(|error| at_function(error, &path))?;
    let made = copy_to_devices(&client, &path, METHOD, &ShownRun::new(output)).await?;
    output.remark(format!("made {made} copies of {path}"));
    let mut value = json!({ "copies": made });
    set_bytes(&mut value, "path", &path);
    output.done(&value)
}

async fn ls(global: &GlobalArgs, output: Output, path: Option<&OsStr>) -> Outcome {
    let directory = match path {
        Some(path) => global.bytes(path)?,
        None => LIBRARY.as_bytes().to_vec(),
    };
    let (client, _) = client(global)?;
    let entries = match client.list(&directory)?.collect().await {
        Ok(entries) => entries,
        // Nothing was stored there yet.
        Err(error) if error.is_not_found() && path.is_none() => Vec::new(),
        Err(error) => return Err(Failure::from(error).at(shown(&directory))),
    };
    let mut found = Vec::new();
    for entry in
        entries.iter().filter(|entry| entry.stat.as_ref().is_none_or(|stat| stat.kind == FileKind::File))
    {
        let separator: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
        let whole = [&directory[..], separator, entry.name.as_bytes()].concat();
        let path = FilePath::new(&whole).map_err(|error| Failure::usage(error).at(shown(&whole)))?;
        match client.function(&path, METHOD).await {
            Ok(function) => found.push((entry.name.clone(), path, function)),
            Err(FunctionError::NotDescribed { .. }) => {}
            Err(error) => {
                let failure = Failure::from(error).at(&path);
                if failure.fatal {
                    return Err(failure);
                }
                output.complain(&failure.to_string());
            }
        }
    }
    let values: Vec<Value> = found.iter().map(|(_, path, function)| function_json(path, function)).collect();
    output.result(&json!({ "functions": values }), || {
        let lines: Vec<String> =
            found.iter().map(|(name, _, function)| function_line(name, function)).collect();
        if lines.is_empty() {
            "no functions; `sealstone fn install` stores the shipped ones, `sealstone fn put` another"
                .to_owned()
        } else {
            lines.join("\n")
        }
    })
}

async fn show(global: &GlobalArgs, output: Output, function: &OsStr) -> Outcome {
    let path = global.function(function)?;
    let (client, _) = client(global)?;
    let found = client.function(&path, METHOD).await.map_err(|error| at_function(error, &path))?;
    output.result(&function_json(&path, &found), || function_text(&path, &found))
}

async fn remove(global: &GlobalArgs, output: Output, functions: &[OsString]) -> Outcome {
    let paths: Vec<FilePath> =
        functions.iter().map(|function| global.function(function)).collect::<Outcome<_>>()?;
    let (client, _) = client(global)?;
    let results = for_each(&output, &paths, async |path| {
        // A mistyped path must not remove data.
        client.function(path, METHOD).await.map_err(|error| at_function(error, path))?;
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
    let list = EngineList::load(&client, METHOD).await?;
    output.result(&list.json(), || list.text())
}
