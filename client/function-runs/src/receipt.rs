//! Receipts of jobs: which code ran, with which arguments and objects, and the digest of the
//! result.

use std::path::{Path, PathBuf};

use sealstone_client::Client;
use sealstone_failure::text::{ShownPath as _, hex, human_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::ReceiptVerdict;
use sealstone_osd::function::{EngineType, ExitReason, RECEIPT_MAX};
use sealstone_seal::FunctionReceipt;
use sealstone_units::utc;
use serde_json::{Value, json};
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

use crate::library::json_name;

/// Bytes of a file that are read and hashed at once.
const HASHED_BYTES: usize = 1 << 20;

/// A genuine receipt.
#[derive(Debug)]
pub struct ReceiptReport {
    found: FunctionReceipt,
    compares: bool,
}

/// Reads a receipt from a file. Fails if it is too long.
fn read_receipt(path: &Path) -> Outcome<Vec<u8>> {
    let bytes = std::fs::read(path).map_err(|error| Failure::from(error).at(path.shown()))?;
    if bytes.len() > RECEIPT_MAX {
        return Err(Failure::usage("not a receipt: the file is too long").at(path.shown()));
    }
    Ok(bytes)
}

/// Verifies the receipt in a file at the metadata server, and compares it with the result in
/// another file if given.
///
/// # Errors
/// A file is unreadable, or the receipt is not genuine or is that of another result.
pub async fn verify_receipt_file(
    client: &Client,
    receipt: &Path,
    result: Option<&Path>,
) -> Outcome<ReceiptReport> {
    let digest = match result {
        Some(path) => Some(digest_of_file(path).await?),
        None => None,
    };
    verify_receipt(client, &receipt.shown(), &read_receipt(receipt)?, digest).await
}

/// Returns the BLAKE3-256 of a file.
async fn digest_of_file(path: &Path) -> Outcome<[u8; 32]> {
    let at = |error: std::io::Error| Failure::from(error).at(path.shown());
    let mut file = File::open(path).await.map_err(at)?;
    let (mut digest, mut buffer) = (blake3::Hasher::new(), vec![0; HASHED_BYTES]);
    loop {
        match file.read(&mut buffer).await.map_err(at)? {
            0 => return Ok(*digest.finalize().as_bytes()),
            length => digest.update(&buffer[..length]),
        };
    }
}

/// Verifies a receipt at the metadata server, and compares it with the BLAKE3-256 of a result.
///
/// # Errors
/// The receipt is not genuine, or is that of another result.
pub(crate) async fn verify_receipt(
    client: &Client,
    subject: &str,
    bytes: &[u8],
    result: Option<[u8; 32]>,
) -> Outcome<ReceiptReport> {
    let (verdict, _) =
        client.verify_receipt(bytes).await.map_err(|error| Failure::from(error).at(subject))?;
    let problem = match verdict {
        ReceiptVerdict::Genuine => None,
        ReceiptVerdict::Malformed => Some("not a receipt"),
        ReceiptVerdict::UnknownDevice => {
            Some("the receipt names a device that the metadata server does not know")
        }
        ReceiptVerdict::KeyReplaced => {
            Some("the root key of the device was replaced since, so the receipt cannot be verified any more")
        }
        ReceiptVerdict::Forged => Some("the receipt was changed or forged"),
    };
    if let Some(problem) = problem {
        return Err(Failure::operation(problem).at(subject).hint("do not rely on the result"));
    }
    let found = FunctionReceipt::parse_unverified(bytes)
        .ok_or_else(|| Failure::operation("the receipt has another format").at(subject))?;
    if result.is_some_and(|digest| digest != found.result_digest) {
        return Err(Failure::operation("the result differs from the one that the receipt states")
            .at(subject)
            .hint("do not rely on the result"));
    }
    Ok(ReceiptReport { found, compares: result.is_some() })
}

impl ReceiptReport {
    /// Compares local files with the inputs: the receipt must have the digest of each file.
    ///
    /// # Errors
    /// A file is unreadable, or no input has its digest.
    pub async fn compare_inputs(&self, paths: &[PathBuf]) -> Outcome {
        for path in paths {
            let digest = digest_of_file(path).await?;
            let is_input = self.found.inputs.iter().any(|input| input.digest == Some(digest));
            if !is_input {
                return Err(Failure::operation("the receipt states no input with the bytes of this file")
                    .at(path.shown())
                    .hint("the function read other bytes, a part of a striped file, or in another order"));
            }
        }
        Ok(())
    }

    fn engine_name(&self) -> &'static str {
        EngineType::from_code(self.found.engine).map_or("unknown", EngineType::name)
    }

    fn exit_name(&self) -> &'static str {
        ExitReason::from_code(self.found.exit).map_or("unknown", ExitReason::name)
    }

    /// Returns the receipt as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let (found, engine, exit) = (&self.found, self.engine_name(), self.exit_name());
        let inputs: Vec<Value> = found
            .inputs
            .iter()
            .map(|input| {
                json!({
                    "object": input.object.to_string(), "length": input.length, "changed_ms": input.version,
                    "unchanged": input.unchanged, "digest": input.digest.map(|digest| hex(&digest)),
                })
            })
            .collect();
        json!({
            "verified": true, "job": hex(&found.job), "engine": engine, "exit": json_name(exit), "code": found.error,
            "code_digest": hex(&found.code_digest), "arguments_digest": hex(&found.arguments_digest),
            "result_digest": hex(&found.result_digest), "result_bytes": found.result_length,
            "result_compared": self.compares, "started_ms": found.started_ms, "ended_ms": found.ended_ms,
            "inputs": inputs,
        })
    }

    /// Returns the receipt as text.
    #[must_use]
    pub fn text(&self) -> String {
        let (found, engine, exit) = (&self.found, self.engine_name(), self.exit_name());
        let mut lines = vec![
            format!("genuine    receipt of job {}", hex(&found.job)),
            format!("code       {engine} {}", hex(&found.code_digest)),
            format!("result     {} {}", human_bytes(found.result_length), hex(&found.result_digest)),
            format!("ended      {exit}, {} UTC", utc(found.ended_ms)),
        ];
        lines.extend(found.inputs.iter().map(|input| {
            let digest = input.digest.map_or_else(|| "no digest".to_owned(), |digest| hex(&digest));
            let length = human_bytes(input.length);
            let state = if input.unchanged { "" } else { ", perhaps changed during the run" };
            format!("input      {} ({length}{state}) {digest}", input.object)
        }));
        if !self.compares {
            lines.push("compared   no result; --result FILE compares one".to_owned());
        }
        lines.join("\n")
    }
}
