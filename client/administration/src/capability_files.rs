//! Capability files as text and JSON. Capability keys are in neither.

use sealstone_client::CapabilityFile;
use sealstone_failure::text::{hex, set_bytes, snake_case};
use sealstone_mds_protocol::PinKind;
use sealstone_osd::{CapabilityBytes, Descriptor, Generation, Permissions, SecurityMethod};
use sealstone_units::utc;
use serde_json::{Value, json};

/// Returns the rights of a capability file: read, write, execute.
#[must_use]
pub fn capability_rights(file: &CapabilityFile) -> Vec<&'static str> {
    let of = |may: bool, what| may.then_some(what);
    let delegated = &file.delegated;
    let rights = [of(delegated.read, "read"), of(delegated.write, "write"), of(file.executes(), "execute")];
    rights.into_iter().flatten().collect()
}

const fn method_name(method: SecurityMethod) -> &'static str {
    match method {
        SecurityMethod::NoSec => "nosec",
        SecurityMethod::CapKey => "capkey",
        SecurityMethod::CmdRsp => "cmdrsp",
        SecurityMethod::AllData => "alldata",
    }
}

/// Returns the names of permissions in JSON and text.
pub(crate) fn permission_names(permissions: Permissions) -> Vec<String> {
    let contained = Permissions::NAMES.iter().filter(|(permission, _)| permissions.contains(*permission));
    contained.map(|(_, name)| snake_case(name)).collect()
}

/// Returns the fields of a capability. Capability keys are never printed.
fn capability(bytes: &[u8]) -> Value {
    let generation = [Generation::Osd1, Generation::Osd2]
        .into_iter()
        .find(|generation| generation.capability_len() == bytes.len());
    let bytes = generation.and_then(|generation| CapabilityBytes::new(generation, bytes));
    let Some(bytes) = bytes else { return json!({ "readable": false }) };
    if bytes.is_sealed() {
        return json!({ "sealed": true });
    }
    let Ok(capability) = bytes.parse() else { return json!({ "readable": false }) };
    let mut value = json!({
        "sealed": false, "permissions": permission_names(capability.permissions),
        "method": method_name(capability.method),
        "expires_ms": capability.expires_ms, "key_version": capability.key_version,
        "audit": hex(&capability.audit),
    });
    if let Descriptor::User { scope, allowed, range } = capability.descriptor {
        value["object"] = json!(allowed.to_string());
        value["start"] = json!(range.start);
        value["length"] = json!(range.length);
        value["policy_access_tag"] = json!(scope.policy_access_tag);
    }
    value
}

fn value(file: &CapabilityFile) -> Value {
    let CapabilityFile { path, delegated, devices } = file;
    let devices: Vec<_> = devices
        .iter()
        .map(|device| {
            let pin = device.pin.map(|pin| {
                let kind = if pin.kind == PinKind::Authority { "authority" } else { "certificate" };
                json!({ "kind": kind, "sha256": hex(&pin.hash) })
            });
            json!({ "id": device.id.0, "name": device.name.shown(), "url": device.url.as_str(), "pin": pin })
        })
        .collect();
    let capabilities: Vec<_> = delegated
        .grants
        .iter()
        .map(|grant| {
            let mut value = capability(grant.capability.as_slice());
            value["device"] = json!(grant.object.device.0);
            value
        })
        .collect();
    let mut value = json!({
        "read": delegated.read, "write": delegated.write, "execute": file.executes(),
        "start": delegated.start, "end": delegated.end, "size": delegated.stat.size,
        "expires_ms": delegated.expires_ms, "principal": hex(&delegated.principal),
        "devices": devices, "capabilities": capabilities,
    });
    set_bytes(&mut value, "path", path);
    value
}

/// Returns a capability file, and the files that its function may read, as `--json` prints them.
#[must_use]
pub fn capability_json(file: &CapabilityFile, data: &[CapabilityFile]) -> Value {
    let mut all = value(file);
    if file.executes() {
        all["data"] = data.iter().map(value).collect();
    }
    all
}

/// Returns a capability file as text.
#[must_use]
pub fn capability_text(file: &CapabilityFile) -> String {
    let CapabilityFile { path, delegated, devices } = file;
    let mut lines = vec![
        format!("file       {}", path.shown()),
        format!("may        {}", capability_rights(file).join(", ")),
        format!("bytes      {}..{} of {}", delegated.start, delegated.end, delegated.stat.size),
        format!("until      {} UTC", utc(delegated.expires_ms)),
        format!("principal  {}", hex(&delegated.principal)),
    ];
    for device in devices {
        let by = if device.pin.is_some() { "inside TLS, pinned" } else { "without TLS" };
        lines.push(format!("device     {} {} ({by})", device.name, device.url));
    }
    for grant in &delegated.grants {
        let fields = capability(grant.capability.as_slice());
        let names = fields["permissions"].as_array().map_or_else(
            || "sealed: only the device can read it".to_owned(),
            |names| names.iter().filter_map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
        );
        let known = devices.iter().find(|device| device.id == grant.object.device);
        let device = known
            .map_or_else(|| format!("number {}", grant.object.device.0), |device| device.name.to_string());
        lines.push(format!("object     {} on device {device}: {names}", grant.object.object));
    }
    lines.join("\n")
}
