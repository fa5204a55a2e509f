//! The metadata server's shell: TLS, sockets, timers, the tasks that talk to devices.
//!
//! Does: set a data folder up, serve it over TLS 1.3, keep the devices prepared, measured and swept. Does not: decide
//! a request; `sealstone-mds` does.
//! Contract: one frame at a time per connection, bounded before it is read; a connection that is slow, silent or wrong
//! is closed; after [`Server::shutdown`] every answer that was begun has been sent.
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
pub use devices::{Capacity, Copied, CopyStep, DeviceError, DeviceFuture, Devices};
pub use directory::{
    DirectorySettings, DirectorySettingsError, LdapDirectory, TIMEOUT_MAX as DIRECTORY_TIMEOUT_MAX,
};
pub use environment::Environment;
pub use grant_log::GrantLogSizes;
pub use housekeeping::Housekeeper;
pub use initiator::InitiatorDevices;
pub use keystore::{
    CREDENTIAL_DEFAULT, KEYSTORE_FILE, KEYSTORE_KEY_FILE, KeystoreError, Protection, Unlock,
    systemd_credential,
};
pub use limits::Limits;
pub use location::{Location, LocationError, PasswordFrom};
pub use serve::Server;
pub use setup::{
    ADMIN_SECRET_FILE, AUTHORITY_FILE, CERTIFICATE_FILE, InitReport, Opened, SetupError, init, init_under,
    is_set_up, issue_certificate, join, open, open_under, open_with_audit, rekey_keystore,
};
pub use time::StateOfClock;
pub use tls::{ALPN, Fingerprint};
pub use transfer::{TransferError, TransferReport, export, import, verify_export};
