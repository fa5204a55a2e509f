//! Stored functions and engines as text and JSON.

use sealstone_client::functions::FunctionDetails;
use sealstone_client::{FilePath, Name};
use sealstone_failure::text::{hex, human_bytes, set_bytes};
use serde_json::{Value, json};

/// Returns a function as `--json` prints it.
#[must_use]
pub fn function_json(path: &FilePath, found: &FunctionDetails) -> Value {
    let description = &found.description;
    let api = description.api.map(|(lowest, highest)| json!([lowest.to_string(), highest.to_string()]));
    let copies: Vec<Value> =
        found.copies.iter().map(|(id, name)| json!({ "id": id.0, "device": name })).collect();
    let mut value = json!({
        "engine": description.engine.map(|engine| engine.name()), "api": api, "version": description.version,
        "publisher": description.publisher, "publisher_key": description.publisher_key.map(|key| hex(&key)),
        "signed": description.signature.is_some(), "manifest": description.manifest,
        "digest": found.digest.map(|digest| hex(&digest)), "size": found.stat.size,
        "mode": format!("{:04o}", found.stat.mode), "owner": found.stat.owner.as_str(), "copies": copies,
    });
    set_bytes(&mut value, "path", path);
    value
}

/// Returns a function as one line of a list.
pub(crate) fn function_line(name: &Name, found: &FunctionDetails) -> String {
    let description = &found.description;
    let engine = description.engine.map_or("?", |engine| engine.name());
    format!(
        "{:20} {engine:7} {:>10}  {:2} copies  {} {}",
        name.shown(),
        human_bytes(found.stat.size),
        found.copies.len(),
        description.version,
        description.publisher,
    )
    .trim_end()
    .to_owned()
}

/// Returns a function as text.
#[must_use]
pub fn function_text(path: &FilePath, found: &FunctionDetails) -> String {
    let description = &found.description;
    let api = description.api.map_or_else(
        || "any".to_owned(),
        |(lowest, highest)| {
            if lowest == highest { lowest.to_string() } else { format!("{lowest} to {highest}") }
        },
    );
    let signed = description.publisher_key.map_or_else(|| "no".to_owned(), |key| hex(&key));
    let devices: Vec<&str> = found.copies.iter().map(|(_, name)| name.as_str()).collect();
    let digest = found.digest.map_or_else(
        || "none: changed since it was stored, so it cannot run".to_owned(),
        |digest| hex(&digest),
    );
    let mut lines = vec![
        format!("function   {path}"),
        format!("engine     {}, API {api}", description.engine.map_or("?", |engine| engine.name())),
        format!("size       {}", human_bytes(found.stat.size)),
        format!("digest     {digest}"),
        format!("version    {}", description.version),
        format!("publisher  {}", description.publisher),
        format!("signed by  {signed}"),
        format!("copies     {}", devices.join(", ")),
    ];
    if !description.manifest.is_empty() {
        lines.push(format!("\n{}", description.manifest.trim_end()));
    }
    lines.join("\n")
}
