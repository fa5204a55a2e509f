//! `sealstone fn policy`: shows and sets which functions may run on the devices.

use sealstone_failure::{Failure, Outcome, for_each};
use sealstone_function_runs::{PolicyChange, policy_json, policy_partitions, policy_text};
use serde_json::{Value, json};

use super::FUNCTION_METHOD;
use crate::cli::GlobalArgs;
use crate::cli::functions::FunctionPolicyArgs;
use crate::command::session::client;
use crate::output::Output;

/// `sealstone fn policy`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &FunctionPolicyArgs) -> Outcome {
    let (client, _) = client(global)?;
    let new = match arguments.set {
        None => None,
        Some(policy) => {
            let functions = arguments.functions.iter().map(|function| global.function(function));
            let change = PolicyChange {
                policy: policy.into(),
                keys: arguments.keys.clone(),
                digests: arguments.digests.clone(),
                functions: functions.collect::<Outcome<_>>()?,
            };
            Some(change.resolve(&client, FUNCTION_METHOD).await?)
        }
    };
    if let Some(new) = &new {
        // First, so that a device that is added meanwhile has it.
        client.set_cluster_policy(arguments.partition, new).await?;
    }
    let (partitions, parts) = policy_partitions(&client, arguments.partition, FUNCTION_METHOD).await?;
    let results = for_each(&output, &parts, async |(device, partition)| {
        let shown = device.name.shown().into_owned();
        let at = |error: sealstone_client::functions::FunctionError| Failure::from(error).at(&shown);
        if let Some(new) = &new {
            client.set_function_policy(device.id, *partition, new, FUNCTION_METHOD).await.map_err(at)?;
        }
        let found = client.function_policy(device.id, *partition, FUNCTION_METHOD).await.map_err(at)?;
        Ok((shown, *partition, found))
    })
    .await?;
    let values: Vec<Value> = results
        .done
        .iter()
        .map(|(device, partition, policy)| policy_json(device, *partition, policy))
        .collect();
    let lines: Vec<String> = results
        .done
        .iter()
        .map(|(device, partition, policy)| policy_text(device, *partition, policy))
        .collect();
    let value = json!({ "partitions": partitions, "devices": values });
    output.parts_with_text(results, value, || lines.join("\n"))
}
