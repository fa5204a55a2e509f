//! Policies of partitions as text and JSON.

use std::collections::BTreeSet;

use sealstone_client::functions::PartitionPolicy;
use sealstone_failure::text::hex;
use sealstone_osd::function::attributes::FunctionPolicy;
use serde_json::{Value, json};

const fn name(policy: FunctionPolicy) -> &'static str {
    match policy {
        FunctionPolicy::Any => "any",
        FunctionPolicy::Signed => "signed",
        FunctionPolicy::AllowList => "listed",
    }
}

/// Returns the policy of a partition of a device as `--json` prints it.
#[must_use]
pub fn policy_json(device: &str, partition: u64, policy: &PartitionPolicy) -> Value {
    let all = |list: &BTreeSet<[u8; 32]>| -> Vec<String> { list.iter().map(|entry| hex(entry)).collect() };
    json!({
        "device": device, "partition": partition, "policy": name(policy.policy),
        "keys": all(&policy.keys), "digests": all(&policy.digests),
    })
}

/// Returns the policy of a partition of a device as text.
#[must_use]
pub fn policy_text(device: &str, partition: u64, policy: &PartitionPolicy) -> String {
    let mut line = format!("{device:16} {partition:#x} {}", name(policy.policy));
    for (what, list) in [("key", &policy.keys), ("code", &policy.digests)] {
        list.iter().for_each(|entry| line.push_str(&format!("\n  {what:4} {}", hex(entry))));
    }
    line
}
