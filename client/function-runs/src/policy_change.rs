//! Changes of the policy about functions, and the partitions that have one.

use sealstone_client::functions::PartitionPolicy;
use sealstone_client::{Client, Device, FilePath, Method};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::DeviceState;
use sealstone_osd::function::attributes::FunctionPolicy;

use crate::library::at_function;

/// A new policy, which replaces policy, keys and list.
#[derive(Clone, Debug)]
pub struct PolicyChange {
    /// Which functions may run.
    pub policy: FunctionPolicy,
    /// Public keys of trusted publishers.
    pub keys: Vec<[u8; 32]>,
    /// BLAKE3-256 of code that may run.
    pub digests: Vec<[u8; 32]>,
    /// Stored functions whose present code may run.
    pub functions: Vec<FilePath>,
}

impl PolicyChange {
    /// Checks that the lists fit the policy.
    fn check(&self) -> Outcome {
        let listed = !(self.functions.is_empty() && self.digests.is_empty());
        match self.policy {
            FunctionPolicy::Signed if self.keys.is_empty() => {
                Err(Failure::usage("no function could run: the policy `signed` needs a key")
                    .hint("add --key"))
            }
            FunctionPolicy::AllowList if !listed => {
                Err(Failure::usage("no function could run: the list is empty")
                    .hint("add --function or --digest"))
            }
            FunctionPolicy::Signed if listed => {
                Err(Failure::usage("--function and --digest belong to `--set listed`"))
            }
            FunctionPolicy::AllowList if !self.keys.is_empty() => {
                Err(Failure::usage("--key belongs to `--set signed`"))
            }
            FunctionPolicy::Any if listed || !self.keys.is_empty() => {
                Err(Failure::usage("the policy `any` has neither keys nor a list"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the policy for partitions, with the digests of the functions as they are stored now.
    ///
    /// # Errors
    /// The lists do not fit the policy, or a function has no recorded digest.
    pub async fn resolve(&self, client: &Client, method: Method) -> Outcome<PartitionPolicy> {
        self.check()?;
        let mut new = PartitionPolicy {
            policy: self.policy,
            keys: self.keys.iter().copied().collect(),
            digests: self.digests.iter().copied().collect(),
        };
        for path in &self.functions {
            let found = client.function(path, method).await.map_err(|error| at_function(error, path))?;
            let digest = found.digest.ok_or_else(|| {
                Failure::operation("its code has no recorded digest").at(path).hint("store it with `fn put`")
            })?;
            new.digests.insert(digest);
        }
        Ok(new)
    }
}

/// Returns the partitions with a policy, of which `only` is the only one if given, and each device
/// that has them with each partition.
///
/// # Errors
/// The metadata server or the first device cannot be reached.
pub async fn policy_partitions(
    client: &Client,
    only: Option<u64>,
    method: Method,
) -> Outcome<(Vec<u64>, Vec<(Device, u64)>)> {
    let mut devices = client.device_list().await?;
    devices.retain(|device| device.state != DeviceState::Pending);
    let partitions = match (only, devices.first()) {
        (Some(partition), _) => vec![partition],
        (None, Some(device)) => client.policy_partitions(device.id, method).await?,
        (None, None) => Vec::new(),
    };
    let of_device = |device: &Device| -> Vec<_> {
        partitions.iter().map(|partition| (device.clone(), *partition)).collect()
    };
    let parts = devices.iter().flat_map(of_device).collect();
    Ok((partitions, parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_to_fit_the_policy() {
        let change = |policy, key: bool, digest: bool| PolicyChange {
            policy,
            keys: vec![[1; 32]; usize::from(key)],
            digests: vec![[2; 32]; usize::from(digest)],
            functions: Vec::new(),
        };
        let fits = |policy, key, digest| change(policy, key, digest).check().is_ok();
        for (policy, allowed) in [
            (FunctionPolicy::Any, (false, false)),
            (FunctionPolicy::Signed, (true, false)),
            (FunctionPolicy::AllowList, (false, true)),
        ] {
            for lists in [(false, false), (false, true), (true, false), (true, true)] {
                assert_eq!(fits(policy, lists.0, lists.1), lists == allowed, "{policy:?} {lists:?}");
            }
        }
    }
}
