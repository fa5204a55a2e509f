//! Failures of the folder, keystore and store of a metadata server, with the next step.

use std::error::Error as _;
use std::io::ErrorKind;
use std::path::Path;

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, chain};
use sealstone_mds_server::{KeystoreError, LocationError, SetupError, TransferError};
#[cfg(feature = "ldap")]
use sealstone_meta_store::LdapStoreError;
#[cfg(feature = "postgres")]
use sealstone_meta_store::PostgresError;

/// Returns the failure of a folder that cannot be created or opened.
#[must_use]
pub fn setup_failure(error: SetupError) -> Failure {
    let failure = Failure::operation(chain(&error));
    if let Some(error) = of_setup(&error) {
        return keystore_failure(error, failure);
    }
    match error {
        // The message has the file and the next step.
        error if error.is_exposed() => Failure { kind: FailureKind::Denied, ..failure },
        SetupError::NoAuthority(_) => {
            failure.hint("this older server has none; pin the device's own certificate")
        }
        SetupError::StoreNotEmpty(_) => {
            failure.hint("to add a server to this database: sealstone mds join --data DIR --from FOLDER")
        }
        #[cfg(feature = "postgres")]
        SetupError::Database(PostgresError::Url(_) | PostgresError::PasswordInUrl) => {
            Failure { kind: FailureKind::Usage, ..failure }
                .hint("use --meta-password-file FILE, or PGPASSWORD")
        }
        #[cfg(feature = "postgres")]
        SetupError::Database(PostgresError::NoCa) => Failure { kind: FailureKind::Usage, ..failure }
            .hint("use --meta-ca-file FILE; --insecure-meta allows plain text"),
        #[cfg(feature = "ldap")]
        SetupError::Ldap(error) => ldap_failure(&error, failure),
        SetupError::Location(LocationError::Url(_)) => Failure { kind: FailureKind::Usage, ..failure },
        SetupError::Location(LocationError::NotShared(_)) => failure
            .hint("move it into a database first: sealstone mds export, sealstone mds import --meta URL"),
        SetupError::Unfinished(_) => {
            Failure { kind: FailureKind::NotFound, ..failure }.hint("sealstone mds init --data DIR")
        }
        _ => failure,
    }
}

/// Adds exit code and next step to the failure of an LDAP server.
#[cfg(feature = "ldap")]
fn ldap_failure(error: &LdapStoreError, failure: Failure) -> Failure {
    match error {
        LdapStoreError::Url(_) => Failure { kind: FailureKind::Usage, ..failure }
            .hint("NAME and BASE are distinguished names; %XX encodes a character, such as %2F for /"),
        LdapStoreError::PasswordInUrl | LdapStoreError::NoPassword => {
            Failure { kind: FailureKind::Usage, ..failure }.hint("use --meta-password-file FILE")
        }
        LdapStoreError::NoCa => Failure { kind: FailureKind::Usage, ..failure }
            .hint("use --meta-ca-file FILE; --insecure-meta allows plain text (ldap://)"),
        LdapStoreError::Password { .. } => Failure { kind: FailureKind::Denied, ..failure }
            .hint("check the name before the @ of the URL and --meta-password-file"),
        LdapStoreError::Rights { .. } => Failure { kind: FailureKind::Denied, ..failure }
            .hint("with slapd: access to dn.subtree=\"BASE\" by dn.exact=\"NAME\" write"),
        LdapStoreError::Limits { .. } => {
            failure.hint("with slapd: limits dn.exact=\"NAME\" size=unlimited time=unlimited")
        }
        LdapStoreError::NoBase { .. } | LdapStoreError::Others { .. } => {
            failure.hint("see docs/how-to/metadata-in-ldap.md")
        }
        _ => failure,
    }
}

/// Adds exit code and next step to the failure of a keystore that does not open.
#[must_use]
pub fn keystore_failure(error: &KeystoreError, failure: Failure) -> Failure {
    match error {
        KeystoreError::NeedsPassphrase(_) => Failure { kind: FailureKind::Denied, ..failure }
            .hint("use --passphrase-file FILE or --keystore-credential NAME"),
        KeystoreError::NeedsKeyFile(_) => {
            Failure { kind: FailureKind::Denied, ..failure }.hint("use --backup-key FILE")
        }
        KeystoreError::WrongPassphrase(_)
        | KeystoreError::WrongKey { .. }
        | KeystoreError::WrongCredential { .. }
        | KeystoreError::NoCredential(_) => Failure { kind: FailureKind::Denied, ..failure },
        error if error.is_exposed() => Failure { kind: FailureKind::Denied, ..failure },
        KeystoreError::Weak { .. } | KeystoreError::CredentialName(_) => {
            Failure { kind: FailureKind::Usage, ..failure }
        }
        KeystoreError::Missing(_) => {
            failure.hint("restore a backup: sealstone mds restore --from BACKUP --data NEW-DIR")
        }
        _ => failure,
    }
}

/// Adds the next step if another process has the store open.
#[must_use]
pub fn in_use(failure: Failure, data: &Path) -> Failure {
    if failure.message.contains("in use") {
        failure.at(data.shown()).hint("stop the metadata server first")
    } else {
        failure
    }
}

/// Returns the keystore error in a setup error, if it is one.
fn of_setup(error: &SetupError) -> Option<&KeystoreError> {
    match error {
        SetupError::Keystore(error) => Some(error),
        _ => None,
    }
}

/// Returns the failure of an export or import of a store.
#[must_use]
pub fn transfer_failure(error: TransferError, data: &Path) -> Failure {
    match error {
        TransferError::Folder(error @ SetupError::StoreNotEmpty(_)) => {
            setup_failure(error).hint("import into an empty store, such as a new database")
        }
        TransferError::Folder(error) => in_use(setup_failure(error), data),
        error @ TransferError::NotSealed => {
            Failure::new(FailureKind::Denied, chain(&error)).hint("start the server once: it seals them")
        }
        other => {
            let missing = other.source().is_some_and(|source| {
                source
                    .downcast_ref::<std::io::Error>()
                    .is_some_and(|error| error.kind() == ErrorKind::NotFound)
            });
            let kind = if missing { FailureKind::NotFound } else { FailureKind::Operation };
            Failure::new(kind, chain(&other)).or_hint("check the path of the file")
        }
    }
}
