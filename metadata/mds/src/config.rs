//! What an operator may choose.

use sealstone_crypto::dh::Group;
use sealstone_mds_protocol::{FILE_PARTITION, FILE_PARTITIONS_MAX, Method};

use crate::directory::DirectoryRoles;
use crate::placement::WIDTH_DEFAULT;
use crate::shared::ServerName;

/// Longest life of a grant, milliseconds.
pub(crate) const GRANT_LIFETIME_MAX_MS: u64 = 3_600_000;

/// Longest life of a delegated credential, and so of any, milliseconds. A superseded working key is kept until the last
/// credential under it has expired, and there are 16 versions of one.
pub(crate) const CREDENTIAL_LIFETIME_MAX_MS: u64 = 8 * 3_600_000;

/// Policy of one server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Life of a grant, milliseconds; at most an hour.
    pub grant_lifetime_ms: u64,
    /// Longest life of a credential as a file, milliseconds; at most eight hours.
    pub delegated_lifetime_ms: u64,
    /// Entries of the table of issued credentials at most.
    pub issued_max: usize,
    /// Life of a create without renewal, milliseconds.
    pub intent_lifetime_ms: u64,
    /// Weakest method granted; requests below it are raised to it.
    pub method_floor: Method,
    /// Seal the capabilities of grants: only the device reads them.
    pub seal_capabilities: bool,
    /// A session ends after this, milliseconds.
    pub session_ttl_ms: u64,
    /// And after this without a request.
    pub session_idle_ms: u64,
    /// A challenge must be answered within this, milliseconds.
    pub challenge_ms: u64,
    /// A directory is asked again for a user whose answer is older than this, milliseconds.
    pub directory_age_ms: u64,
    /// While it does not answer, a session goes on for so long after its last answer, milliseconds.
    pub directory_grace_ms: u64,
    /// Which of its groups have which role.
    pub directory_roles: DirectoryRoles,
    /// Challenges that nobody has answered yet; from then on a login must come with a cookie.
    pub half_open_max: usize,
    /// Logins that wait for their turn; from then on too.
    pub login_queue_max: usize,
    /// Under load a login is put off by this, milliseconds.
    pub retry_ms: u32,
    /// Objects of removed files stay this long for readers that are in the middle of them, milliseconds.
    pub reap_grace_ms: u64,
    /// Devices a file is striped over at most.
    pub width_max: usize,
    /// A working key is superseded at this age, milliseconds.
    pub working_key_age_ms: u64,
    /// A partition's pair is replaced at this age, milliseconds; its credentials die with it.
    pub partition_key_age_ms: u64,
    /// A working key is superseded after so many grants.
    pub credentials_per_key_max: u64,
    /// Diffie-Hellman group for new master keys.
    pub master_key_group: Group,
    /// Partitions of each device that files are spread over, 1 to [`FILE_PARTITIONS_MAX`].
    pub file_partitions: u64,
    /// How far the server's clock may be off, milliseconds; told to clients.
    pub clock_error_ms: u32,
    /// May other servers use the store at the same time? Then nobody knows all holders, for one, and every file that
    /// loses its last name waits for those who may hold it.
    pub shared: bool,
    /// The server's name among those; drawn when its folder was made.
    pub server: ServerName,
    /// May accounts have keys of the paper's profile? They are as good as passphrases.
    pub paper_login: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            grant_lifetime_ms: 300_000,
            delegated_lifetime_ms: 3_600_000,
            issued_max: crate::holdings::HOLDINGS_MAX,
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
            master_key_group: Group::X25519,
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

    /// The partition that the objects of a file are in.
    pub(crate) fn partition_of(&self, inode: u64) -> u64 {
        FILE_PARTITION + inode % self.file_partitions()
    }

    pub(crate) fn grant_lifetime_ms(&self) -> u64 {
        self.grant_lifetime_ms.min(GRANT_LIFETIME_MAX_MS)
    }

    /// The longest life of a credential that any server of ours gives out, milliseconds.
    pub(crate) fn longest_life_ms(&self) -> u64 {
        self.grant_lifetime_ms().max(self.delegated_lifetime_ms())
    }

    pub(crate) fn delegated_lifetime_ms(&self) -> u64 {
        self.delegated_lifetime_ms.min(CREDENTIAL_LIFETIME_MAX_MS)
    }
}
