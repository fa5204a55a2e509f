//! Settings of the server that an operator can change, with their defaults.
//!
//! Does not: read files; `sealstone` builds a [`Config`] from the configuration of the daemon.

use sealstone_crypto::dh::DhGroup;
use sealstone_mds_protocol::{FILE_PARTITION, FILE_PARTITIONS_MAX, Method};

use crate::limits::{CREDENTIAL_LIFETIME_MAX_MS, GRANT_LIFETIME_MAX_MS, ISSUED_CREDENTIALS_MAX};
use crate::placement::WIDTH_DEFAULT;
use crate::server_registry::ServerName;
use crate::user_directory::DirectoryRoles;

/// Policy of one server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Lifetime of a grant, milliseconds; at most an hour.
    pub grant_lifetime_ms: u64,
    /// Longest lifetime of a capability file, milliseconds; at most eight hours.
    pub delegated_lifetime_ms: u64,
    /// Maximum number of entries in the table of issued credentials.
    pub issued_max: usize,
    /// Lifetime of a create without renewal, milliseconds.
    pub intent_lifetime_ms: u64,
    /// Weakest method granted; weaker requests are raised to it.
    pub method_floor: Method,
    /// Whether the capabilities of grants are sealed, so that only the device can read them.
    pub seal_capabilities: bool,
    /// Longest lifetime of a session, milliseconds.
    pub session_ttl_ms: u64,
    /// A session ends after this time without a request, milliseconds.
    pub session_idle_ms: u64,
    /// Time limit for the answer to a login challenge, milliseconds.
    pub challenge_ms: u64,
    /// The directory is queried again for a user whose groups are older than this, milliseconds.
    pub directory_age_ms: u64,
    /// While the directory is unavailable, a session continues for this long after its last answer,
    /// milliseconds.
    pub directory_grace_ms: u64,
    /// Roles of the directory's groups.
    pub directory_roles: DirectoryRoles,
    /// With this many unanswered challenges, a login needs a cookie.
    pub half_open_max: usize,
    /// With this many queued logins, a login needs a cookie.
    pub login_queue_max: usize,
    /// Delay before a client repeats a login under load, milliseconds.
    pub retry_ms: u32,
    /// Objects of removed files are kept this long for clients that are reading them, milliseconds.
    pub reap_grace_ms: u64,
    /// Maximum number of devices that a file is striped over.
    pub width_max: usize,
    /// A working key is superseded at this age, milliseconds.
    pub working_key_age_ms: u64,
    /// A partition's key pair is replaced at this age, milliseconds; its credentials become
    /// invalid.
    pub partition_key_age_ms: u64,
    /// A working key is superseded after this many grants.
    pub credentials_per_key_max: u64,
    /// Diffie-Hellman group for new master keys.
    pub master_key_group: DhGroup,
    /// Number of partitions of each device for files, 1 to [`FILE_PARTITIONS_MAX`].
    pub file_partitions: u64,
    /// Maximum error of the server's clock, milliseconds; sent to clients.
    pub clock_error_ms: u32,
    /// Whether other servers may use the store at the same time. Then no server knows all clients,
    /// so every file that loses its last name is kept for clients that may have it open.
    pub shared: bool,
    /// Name of this server among them, chosen when its folder was created.
    pub server: ServerName,
    /// Whether accounts may have keys of the paper's profile. These are as strong as passphrases.
    pub paper_login: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            grant_lifetime_ms: 300_000,
            delegated_lifetime_ms: 3_600_000,
            issued_max: ISSUED_CREDENTIALS_MAX,
            intent_lifetime_ms: 600_000,
            method_floor: Method::CmdRsp,
            seal_capabilities: false,
            session_ttl_ms: 12 * 3_600_000,
            session_idle_ms: 30 * 60_000,
            challenge_ms: 10_000,
            directory_age_ms: 300_000,
            directory_grace_ms: 3_600_000,
            directory_roles: DirectoryRoles::default(),
            half_open_max: 256,
            login_queue_max: 64,
            retry_ms: 500,
            reap_grace_ms: 10_000,
            width_max: WIDTH_DEFAULT,
            working_key_age_ms: 3_600_000,
            partition_key_age_ms: 24 * 3_600_000,
            credentials_per_key_max: 1 << 24,
            master_key_group: DhGroup::X25519,
            file_partitions: 1,
            clock_error_ms: 1_000,
            shared: false,
            server: [0; 16],
            paper_login: false,
        }
    }
}

impl Config {
    pub(crate) fn file_partitions(&self) -> u64 {
        self.file_partitions.clamp(1, FILE_PARTITIONS_MAX)
    }

    /// Returns the partition for the objects of a file.
    pub(crate) fn partition_of(&self, inode: u64) -> u64 {
        FILE_PARTITION + inode % self.file_partitions()
    }

    pub(crate) fn grant_lifetime_ms(&self) -> u64 {
        self.grant_lifetime_ms.min(GRANT_LIFETIME_MAX_MS)
    }

    /// Returns the longest lifetime of a credential of this server, milliseconds.
    pub(crate) fn longest_life_ms(&self) -> u64 {
        self.grant_lifetime_ms().max(self.delegated_lifetime_ms())
    }

    pub(crate) fn delegated_lifetime_ms(&self) -> u64 {
        self.delegated_lifetime_ms.min(CREDENTIAL_LIFETIME_MAX_MS)
    }
}
