//! Stores functions, for `sealstone fn put` and `sealstone fn install`.

use sealstone_client::functions::FunctionPublication;
use sealstone_client::{Client, FilePath, Method};
use sealstone_failure::Outcome;
use sealstone_failure::text::human_bytes;
use sealstone_function_runs::{at_function, copy_to_devices, function_json, publish_function};
use serde_json::Value;

use crate::command::run::ShownRun;
use crate::output::Output;

/// Security method of the commands of `fn`.
pub(super) const METHOD: Method = Method::AllData;

/// Stores code as a function, with copies on active devices; returns its JSON.
pub(super) async fn store(
    client: &Client,
    output: Output,
    path: &FilePath,
    code: &[u8],
    publication: &FunctionPublication,
    has_copies: bool,
) -> Outcome<Value> {
    publish_function(client, path, code, publication).await?;
    let copies = match has_copies {
        true => copy_to_devices(client, path, METHOD, &ShownRun::new(output)).await?,
        false => 0,
    };
    let found = client.function(path, METHOD).await.map_err(|error| at_function(error, path))?;
    let signed = if found.description.signature.is_some() { ", signed" } else { "" };
    output.remark(format!(
        "stored {path} ({}{signed}) with copies on {} devices",
        human_bytes(code.len() as u64),
        copies + 1
    ));
    Ok(function_json(path, &found))
}
