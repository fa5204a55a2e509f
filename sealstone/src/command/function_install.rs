//! `sealstone fn install`: stores the shipped functions in the library, so that all users run them
//! by their names.
//!
//! Truth: docs/how-to/functions.md.

use sealstone_client::functions::FunctionPublication;
use sealstone_failure::{Failure, Outcome, for_each};
use sealstone_function_runs::{FunctionSource, find_shipped_file, library_path, shipped_folders};
use sealstone_functions::SHIPPED_FUNCTIONS;
use sealstone_osd::function::{ApiVersion, EngineType};
use serde_json::json;

use crate::cli::GlobalArgs;
use crate::cli::functions::FunctionInstallArgs;
use crate::command::function_store::{METHOD, store};
use crate::command::session::client;
use crate::output::Output;

/// Permission bits of the library's functions: all users run and read them.
const MODE: u16 = 0o755;

/// `sealstone fn install`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &FunctionInstallArgs) -> Outcome {
    let FunctionInstallArgs { functions, from, engine, publisher, sign: key } = arguments;
    let folders = match from {
        Some(folder) => vec![folder.clone()],
        None => shipped_folders(),
    };
    if folders.is_empty() {
        let text = "no folder `functions` with built functions belongs to this program";
        return Err(
            Failure::not_found(text).hint("`make engines` builds the functions; --from names their folder")
        );
    }
    let names: Vec<&str> = match &functions[..] {
        [] => SHIPPED_FUNCTIONS.iter().map(|function| function.name).collect(),
        named => named.iter().map(String::as_str).collect(),
    };
    let (client, _) = client(global)?;
    let results = for_each(&output, &names, async |name| {
        let path = library_path(name)?;
        let engine = engine.map(EngineType::from);
        let file = find_shipped_file(name, engine, &folders).map_err(|failure| failure.at(name))?;
        let source = FunctionSource {
            file,
            engine,
            api: (ApiVersion::CURRENT, ApiVersion::CURRENT),
            manifest: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            publisher: publisher.clone(),
            sign: key.clone(),
        };
        let (code, description) = source.read()?;
        let publication = FunctionPublication { description, mode: MODE, replace: true, method: METHOD };
        store(&client, output, &path, &code, &publication, true).await
    })
    .await?;
    let installed = json!({ "functions": results.done });
    output.parts(results, installed)
}
