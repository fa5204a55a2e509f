//! `sealstone fn install`: stores the shipped functions in the library, so that all users run them
//! by their names. The work is in `sealstone-function-runs`.
//!
//! Truth: docs/how-to/functions.md.

use sealstone_failure::{Outcome, for_each};
use sealstone_function_runs::FunctionInstaller;
use sealstone_functions::SHIPPED_FUNCTIONS;
use serde_json::json;

use super::FUNCTION_METHOD;
use crate::cli::GlobalArgs;
use crate::cli::functions::FunctionInstallArgs;
use crate::command::run::ShownRun;
use crate::command::session::client;
use crate::output::Output;

/// `sealstone fn install`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &FunctionInstallArgs) -> Outcome {
    let FunctionInstallArgs { functions, from, engine, publisher, sign } = arguments;
    let engine = engine.map(Into::into);
    let installer = FunctionInstaller::new(from.clone(), engine, publisher.clone(), sign.clone())?;
    let names: Vec<&str> = match &functions[..] {
        [] => SHIPPED_FUNCTIONS.iter().map(|function| function.name).collect(),
        named => named.iter().map(String::as_str).collect(),
    };
    let (client, _) = client(global)?;
    let observer = ShownRun::new(output);
    let results = for_each(&output, &names, async |name| {
        installer.install(&client, name, FUNCTION_METHOD, &observer).await
    })
    .await?;
    let installed = json!({ "functions": results.done });
    output.parts(results, installed)
}
