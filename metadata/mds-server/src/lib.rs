//! Runs the metadata server: TLS, sockets, timers, and the background tasks that talk to devices.
//!
//! Does: creates a data folder, serves it over TLS 1.3, and keeps devices prepared, measured and
//! free of orphans.
//! Does not: decide requests; `sealstone-mds` does.
//! Contract: a connection has one frame at a time, whose length is checked before its body is read.
//! A connection that is slow, silent or violates the protocol is closed. After [`Server::shutdown`]
//! every started answer has been sent.
//! Truth: docs/standards/mds/wire.md §1, §2; docs/design/security.md 2.4, 3.7.

mod backup;
mod channel;
mod devices;
mod directory;
mod environment;
mod files;
mod grant_log;
mod housekeeping;
mod initiator;
mod keystore;
mod limits;
mod location;
mod request_shares;
mod serve;
mod setup;
mod time;
mod tls;
mod transfer;

pub use backup::{BackupError, BackupReport, backup, restore, verify_backup};
pub use channel::serve_stream;
pub use devices::{Capacity, CopyResult, CopyStep, DeviceError, DeviceFuture, Devices};
pub use directory::{
    DirectorySettings, DirectorySettingsError, LdapDirectory, TIMEOUT_MAX as DIRECTORY_TIMEOUT_MAX,
};
pub use environment::Environment;
pub use grant_log::GrantLogSizes;
pub use housekeeping::Housekeeper;
pub use initiator::InitiatorDevices;
pub use keystore::{
    CREDENTIAL_DEFAULT, KEYSTORE_FILE, KEYSTORE_KEY_FILE, KeystoreError, KeystoreProtection, KeystoreSecrets,
    systemd_credential,
};
pub use limits::Limits;
pub use location::{Location, LocationError, PasswordSource, UNAVAILABLE_WAIT_S};
pub use serve::Server;
pub use setup::{
    ADMIN_SECRET_FILE, AUTHORITY_FILE, AdminSecret, CERTIFICATE_FILE, InitReport, OpenedServer, SetupError,
    init, init_under, is_set_up, issue_certificate, join, open, open_under, open_with_audit, rekey_keystore,
};
pub use time::ClockStateSource;
pub use tls::{ALPN, CertificateFingerprint};
pub use transfer::{TransferError, TransferReport, export, import, verify_export};
