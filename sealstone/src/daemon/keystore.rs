//! Keystore and backups of the metadata server: `mds keys reseal`, `mds backup` and `mds restore`.

use std::path::Path;

use sealstone_failure::text::{ShownPath as _, human_bytes, with_paths};
use sealstone_failure::{Failure, Outcome, chain, secret_file};
use sealstone_mds_server::{BackupError, Environment, KeystoreProtection, KeystoreSecrets};
use sealstone_metadata_server::{in_use, keystore_failure, setup_failure};
use zeroize::Zeroizing;

use crate::cli::keys::{BackupArgs, BackupSeal, KeystoreArgs, NewSeal, RestoreArgs};
use crate::output::Output;

/// Reads the first line of a private file.
fn passphrase(path: &Path) -> Outcome<Zeroizing<Vec<u8>>> {
    let text = secret_file::read(path)?;
    Ok(Zeroizing::new(text.lines().next().unwrap_or_default().as_bytes().to_vec()))
}

/// Returns the secret that opens a keystore.
pub(crate) fn unlock(keystore: &KeystoreArgs) -> Outcome<KeystoreSecrets> {
    Ok(KeystoreSecrets {
        key_file: keystore.keystore_key.clone(),
        passphrase: keystore.passphrase_file.as_deref().map(passphrase).transpose()?,
        credential: keystore.keystore_credential.clone(),
    })
}

/// Returns the protection of a new keystore. A passphrase takes precedence.
pub(crate) fn protection(keystore: &KeystoreArgs) -> Outcome<KeystoreProtection> {
    Ok(match (&keystore.passphrase_file, &keystore.keystore_credential) {
        (Some(file), _) => KeystoreProtection::Passphrase(passphrase(file)?),
        (None, Some(name)) => KeystoreProtection::Credential(name.clone()),
        (None, None) => KeystoreProtection::KeyFile(keystore.keystore_key.clone()),
    })
}

fn new_protection(new: &NewSeal) -> Outcome<KeystoreProtection> {
    Ok(match (&new.new_passphrase_file, &new.new_credential) {
        (Some(file), _) => KeystoreProtection::Passphrase(passphrase(file)?),
        (None, Some(name)) => KeystoreProtection::Credential(name.clone()),
        (None, None) => KeystoreProtection::KeyFile(new.new_key.clone()),
    })
}

fn backup_failure(error: BackupError) -> Failure {
    match error {
        BackupError::Folder(error) => setup_failure(error),
        BackupError::KeystoreProtection(error) => keystore_failure(&error, Failure::operation(chain(&error))),
        other => Failure::operation(chain(&other)),
    }
}

/// `sealstone mds keys reseal`.
pub(crate) fn reseal(output: Output, data: &Path, keystore: &KeystoreArgs, new: &NewSeal) -> Outcome {
    let (unlock, protection) = (unlock(keystore)?, new_protection(new)?);
    let kind = match &protection {
        KeystoreProtection::KeyFile(_) => "key file",
        KeystoreProtection::Passphrase(_) => "passphrase",
        KeystoreProtection::Credential(_) => "credential",
    };
    sealstone_mds_server::rekey_keystore(data, &unlock, &protection, &Environment::system())
        .map_err(|error| in_use(setup_failure(error), data))?;
    output.remark(format!("sealed the keystore in {} under a {kind}", data.shown()));
    output.done(&with_paths(serde_json::json!({ "sealed_under": kind.replace(' ', "_") }), [("data", data)]))
}

/// `sealstone mds backup`.
pub(crate) fn backup(output: Output, arguments: &BackupArgs) -> Outcome {
    let BackupArgs { data, to, keystore, seal } = arguments;
    let protection = match &seal.backup_passphrase_file {
        Some(file) => KeystoreProtection::Passphrase(passphrase(file)?),
        None => KeystoreProtection::KeyFile(seal.backup_key.clone()),
    };
    let unlock = unlock(keystore)?;
    let report = sealstone_mds_server::backup(data, &unlock, to, &protection, &Environment::system())
        .map_err(|error| in_use(backup_failure(error), data))?;
    output.remark(format!("{}: {} records, {}", to.shown(), report.records, human_bytes(report.bytes)));
    let value = serde_json::json!({ "records": report.records, "bytes": report.bytes });
    output.done(&with_paths(value, [("to", to)]))
}

fn backup_unlock(seal: &BackupSeal) -> Outcome<KeystoreSecrets> {
    Ok(KeystoreSecrets {
        key_file: seal.backup_key.clone(),
        passphrase: seal.backup_passphrase_file.as_deref().map(passphrase).transpose()?,
        credential: None,
    })
}

/// `sealstone mds restore`.
pub(crate) fn restore(output: Output, arguments: &RestoreArgs) -> Outcome {
    let RestoreArgs { from, data, seal, keystore } = arguments;
    let unlock = backup_unlock(seal)?;
    let Some(data) = data else {
        let report = sealstone_mds_server::verify_backup(from, &unlock).map_err(backup_failure)?;
        output.remark(format!("{} is complete: {} records", from.shown(), report.records));
        let value = serde_json::json!({ "records": report.records, "data": null });
        return output.done(&with_paths(value, [("from", from)]));
    };
    let protection = protection(keystore)?;
    let report = sealstone_mds_server::restore(from, &unlock, data, &protection, &Environment::system())
        .map_err(backup_failure)?;
    output.remark(format!(
        "restored {} records to {}; all users must log in again",
        report.records,
        data.shown()
    ));
    let value = serde_json::json!({ "records": report.records });
    output.done(&with_paths(value, [("from", from), ("data", data)]))
}
