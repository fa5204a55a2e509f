//! The metadata server's keystore and backups, from the command line.

use std::path::Path;

use sealstone_mds_server::{
    BackupError, Environment, KeystoreError, KeystoreProtection, KeystoreSecrets, SetupError,
};
use zeroize::Zeroizing;

use super::mds::setup_failure;
use crate::cli::keys::{Backup, BackupSeal, Keystore, NewSeal, Restore};
use crate::failure::{Failure, Kind, Outcome, chain};
use crate::output::{Output, human_bytes};
use crate::secret_file;
use crate::text::{ShownPath as _, with_paths};

/// The first line of a private file.
fn passphrase(path: &Path) -> Outcome<Zeroizing<Vec<u8>>> {
    let text = secret_file::read(path)?;
    Ok(Zeroizing::new(text.lines().next().unwrap_or_default().as_bytes().to_vec()))
}

/// What opens a keystore.
pub(crate) fn unlock(keystore: &Keystore) -> Outcome<KeystoreSecrets> {
    Ok(KeystoreSecrets {
        key_file: keystore.keystore_key.clone(),
        passphrase: keystore.passphrase_file.as_deref().map(passphrase).transpose()?,
        credential: keystore.keystore_credential.clone(),
    })
}

/// What a new keystore is sealed under: what is named, a passphrase first.
pub(crate) fn protection(keystore: &Keystore) -> Outcome<KeystoreProtection> {
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

/// What to say of a keystore that does not open.
pub(crate) fn keystore_failure(error: &KeystoreError, failure: Failure) -> Failure {
    match error {
        KeystoreError::NeedsPassphrase(_) => Failure { kind: Kind::Denied, ..failure }
            .hint("--passphrase-file FILE, or a systemd credential (see --keystore-credential)"),
        KeystoreError::NeedsKeyFile(_) => Failure { kind: Kind::Denied, ..failure }.hint("--backup-key FILE"),
        KeystoreError::WrongPassphrase(_)
        | KeystoreError::WrongKey { .. }
        | KeystoreError::WrongCredential { .. }
        | KeystoreError::NoCredential(_) => Failure { kind: Kind::Denied, ..failure },
        error if error.is_exposed() => Failure { kind: Kind::Denied, ..failure },
        KeystoreError::Weak { .. } | KeystoreError::CredentialName(_) => {
            Failure { kind: Kind::Usage, ..failure }
        }
        KeystoreError::Missing(_) => failure.hint("sealstone mds restore --from BACKUP --data NEW-DIR"),
        _ => failure,
    }
}

fn backup_failure(error: BackupError) -> Failure {
    match error {
        BackupError::Folder(error) => setup_failure(error),
        BackupError::KeystoreProtection(error) => keystore_failure(&error, Failure::operation(chain(&error))),
        other => Failure::operation(chain(&other)),
    }
}

/// `sealstone mds keys reseal`.
pub(crate) fn reseal(output: Output, data: &Path, keystore: &Keystore, new: &NewSeal) -> Outcome {
    let (unlock, protection) = (unlock(keystore)?, new_protection(new)?);
    let kind = match &protection {
        KeystoreProtection::KeyFile(_) => "key file",
        KeystoreProtection::Passphrase(_) => "passphrase",
        KeystoreProtection::Credential(_) => "credential",
    };
    sealstone_mds_server::rekey_keystore(data, &unlock, &protection, &Environment::system())
        .map_err(|error| in_use(setup_failure(error), data))?;
    output.remark(format!("the keystore in {} is sealed under a {kind} now", data.shown()));
    output.done(&with_paths(serde_json::json!({ "sealed_under": kind }), [("data", data)]))
}

/// Only one process has the store open.
pub(crate) fn in_use(failure: Failure, data: &Path) -> Failure {
    if failure.message.contains("in use") {
        failure.at(data.shown()).hint("stop the metadata server first")
    } else {
        failure
    }
}

/// `sealstone mds backup`.
pub(crate) fn backup(output: Output, arguments: &Backup) -> Outcome {
    let Backup { data, to, keystore, seal } = arguments;
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
pub(crate) fn restore(output: Output, arguments: &Restore) -> Outcome {
    let Restore { from, data, seal, keystore } = arguments;
    let unlock = backup_unlock(seal)?;
    let Some(data) = data else {
        let report = sealstone_mds_server::verify_backup(from, &unlock).map_err(backup_failure)?;
        output.remark(format!("{} is whole: {} records", from.shown(), report.records));
        let value = serde_json::json!({ "records": report.records, "whole": true });
        return output.done(&with_paths(value, [("from", from)]));
    };
    let protection = protection(keystore)?;
    let report = sealstone_mds_server::restore(from, &unlock, data, &protection, &Environment::system())
        .map_err(backup_failure)?;
    output.remark(format!("{} records in {}; everybody has to log in again", report.records, data.shown()));
    let value = serde_json::json!({ "records": report.records });
    output.done(&with_paths(value, [("from", from), ("data", data)]))
}

/// Is it the keystore?
pub(crate) fn of_setup(error: &SetupError) -> Option<&KeystoreError> {
    match error {
        SetupError::Keystore(error) => Some(error),
        _ => None,
    }
}
