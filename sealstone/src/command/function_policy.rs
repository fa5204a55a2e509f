//! `sealstone fn policy`: shows and sets which functions may run on the devices.

use sealstone_client::functions::PartitionPolicy;
use sealstone_failure::{Failure, Outcome, for_each};
use sealstone_function_runs::{at_function, policy_json, policy_text};
use sealstone_mds_protocol::DeviceState;
use sealstone_osd::function::attributes::FunctionPolicy;
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::functions::{FunctionPolicyArgs, PolicyName};
use crate::command::function_store::METHOD;
use crate::command::session::client;
use crate::output::Output;

/// Checks that the lists fit the policy.
fn check(arguments: &FunctionPolicyArgs, policy: PolicyName) -> Outcome {
    let listed = !(arguments.functions.is_empty() && arguments.digests.is_empty());
    match policy {
        PolicyName::Signed if arguments.keys.is_empty() => {
            Err(Failure::usage("no function could run: the policy `signed` needs a key").hint("add --key"))
        }
        PolicyName::Listed if !listed => {
            Err(Failure::usage("no function could run: the list is empty").hint("add --function or --digest"))
        }
        PolicyName::Signed if listed => {
            Err(Failure::usage("--function and --digest belong to `--set listed`"))
        }
        PolicyName::Listed if !arguments.keys.is_empty() => {
            Err(Failure::usage("--key belongs to `--set signed`"))
        }
        PolicyName::Any if listed || !arguments.keys.is_empty() => {
            Err(Failure::usage("the policy `any` has neither keys nor a list"))
        }
        _ => Ok(()),
    }
}

/// `sealstone fn policy`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &FunctionPolicyArgs) -> Outcome {
    let (client, _) = client(global)?;
    let new = match arguments.set {
        None => None,
        Some(policy) => {
            check(arguments, policy)?;
            let mut new = PartitionPolicy {
                policy: match policy {
                    PolicyName::Any => FunctionPolicy::Any,
                    PolicyName::Signed => FunctionPolicy::Signed,
                    PolicyName::Listed => FunctionPolicy::AllowList,
                },
                keys: arguments.keys.iter().copied().collect(),
                digests: arguments.digests.iter().copied().collect(),
            };
            for function in &arguments.functions {
                let path = global.function(function)?;
                let found =
                    client.function(&path, METHOD).await.map_err(|error| at_function(error, &path))?;
                let digest = found.digest.ok_or_else(|| {
                    Failure::operation("its code has no recorded digest")
                        .at(&path)
                        .hint("store it with `fn put`")
                })?;
                new.digests.insert(digest);
            }
            Some(new)
        }
    };
    if let Some(new) = &new {
        // First, so that a device that is added meanwhile has it.
        client.set_cluster_policy(arguments.partition, new).await?;
    }
    let devices = client.device_list().await?;
    let devices: Vec<_> = devices.into_iter().filter(|device| device.state != DeviceState::Pending).collect();
    let partitions = match (arguments.partition, devices.first()) {
        (Some(partition), _) => vec![partition],
        (None, Some(device)) => client.policy_partitions(device.id, METHOD).await?,
        (None, None) => Vec::new(),
    };
    let parts: Vec<_> = devices
        .iter()
        .flat_map(|device| partitions.iter().map(move |partition| (device, *partition)))
        .collect();
    let results = for_each(&output, &parts, async |&(device, partition)| {
        let shown = device.name.shown().into_owned();
        let at = |error: sealstone_client::functions::FunctionError| Failure::from(error).at(&shown);
        if let Some(new) = &new {
            client.set_function_policy(device.id, partition, new, METHOD).await.map_err(at)?;
        }
        let found = client.function_policy(device.id, partition, METHOD).await.map_err(at)?;
        Ok((shown, partition, found))
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
