//! Capability files: their issue, and their text and JSON. Capability keys are in neither.

use std::path::Path;

use sealstone_client::{CapabilityFile, Client, Delegation, FilePath, Method, RUN_FILE_DATA_MAX, RunFile};
use sealstone_failure::text::{ShownPath as _, counted, hex, set_bytes, snake_case};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::PinKind;
use sealstone_osd::{CapabilityBytes, Descriptor, Generation, Permissions, SecurityMethod};
use sealstone_units::{ByteRange, Expiry, utc};
use serde_json::{Value, json};

/// The access that a capability file permits.
#[derive(Clone, Debug)]
pub enum DelegatedAccess {
    /// Access to bytes of a file.
    Bytes {
        /// Whether reading is permitted.
        read: bool,
        /// Whether writing in place is permitted.
        write: bool,
        /// The bytes; all without it.
        range: Option<ByteRange>,
    },
    /// Execution of a function, which may read these files.
    Execution(Vec<FilePath>),
}

/// An issued capability file.
#[derive(Debug)]
pub struct IssuedCapability {
    file: CapabilityFile,
    data: Vec<CapabilityFile>,
}

impl IssuedCapability {
    /// Requests a capability file for a stored file or function.
    ///
    /// # Errors
    /// The user may not grant that, or there are too many files for the function.
    pub async fn request(
        client: &Client,
        path: &FilePath,
        access: &DelegatedAccess,
        until: Expiry,
        method: Method,
    ) -> Outcome<Self> {
        if let Expiry::In(_) = until {
            // The response has the clock of the server.
            client.whoami().await?;
        }
        let until_ms = match until {
            Expiry::In(ms) => client.server_now_ms().saturating_add(ms),
            Expiry::At(ms) => ms,
        };
        let at = |error| Failure::from(error).at(path);
        match access {
            DelegatedAccess::Execution(data) => {
                check_data_count(data.len())?;
                let file = client.delegate_execution(path, until_ms, method).await.map_err(at)?;
                let mut readable = Vec::with_capacity(data.len());
                for path in data {
                    let issued = client.delegate_call_data(path, until_ms, method).await;
                    readable.push(issued.map_err(|error| Failure::from(error).at(path))?);
                }
                Ok(Self { file, data: readable })
            }
            DelegatedAccess::Bytes { read, write, range } => {
                let ByteRange { start, end } = range.unwrap_or(ByteRange { start: 0, end: None });
                let wanted = Delegation { read: *read, write: *write, start, end, until_ms, method };
                let file = client.delegate(path, wanted).await.map_err(at)?;
                Ok(Self { file, data: Vec::new() })
            }
        }
    }

    /// Returns what the holder of the file may do, and until when.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { file, data } = self;
        let CapabilityFile { path, delegated, .. } = file;
        let what = match file.executes() {
            true => format!("execute {path} on {}", counted(data.len() as u64, "file")),
            false => {
                let rights = capability_rights(file).join(" and ");
                format!("{rights} bytes {}..{} of {path}", delegated.start, delegated.end)
            }
        };
        let ends_ms = data.iter().map(|file| file.delegated.expires_ms).fold(delegated.expires_ms, u64::min);
        format!("{what} until {} UTC", utc(ends_ms))
    }

    /// Returns the file as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        capability_json(&self.file, &self.data)
    }

    /// Writes the file, with mode 0600.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(self, to: &Path) -> Outcome {
        let saved = match self.data.is_empty() {
            true => self.file.save(to),
            false => RunFile::new(self.file, self.data).and_then(|file| file.save(to)),
        };
        saved.map_err(|error| Failure::from(error).at(to.shown()))
    }
}

/// Fails if a capability file cannot be for so many files of a function.
fn check_data_count(count: usize) -> Outcome {
    if count > RUN_FILE_DATA_MAX {
        return Err(Failure::usage(format!("--data occurs more than {RUN_FILE_DATA_MAX} times"))
            .hint("issue a second capability file"));
    }
    Ok(())
}

/// Loads a capability file of any kind; returns those of the data of a function too.
///
/// # Errors
/// The file is unreadable, or no capability file.
pub fn load_capability_files(path: &Path) -> Outcome<(CapabilityFile, Vec<CapabilityFile>)> {
    match RunFile::load(path) {
        Ok(file) => Ok((file.function().clone(), file.data().to_vec())),
        // Not for a function, or unusable for the reason that the second attempt finds.
        Err(_) => {
            let file = CapabilityFile::load(path).map_err(|error| Failure::from(error).at(path.shown()))?;
            Ok((file, Vec::new()))
        }
    }
}

/// Returns the rights of a capability file: read, write, execute.
fn capability_rights(file: &CapabilityFile) -> Vec<&'static str> {
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
