//! Configuration of the daemons: one TOML file each. Every key is also an option and a
//! `SEALSTONE_…` variable.
//!
//! Order of precedence: option, variable, file, default. Unknown keys are refused, so that a
//! misspelt limit is not silently ignored.

use std::any::TypeId;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::ValueRange;
use sealstone_device_server::{DeviceServerConfig, FunctionSettings, PortalTls};
use sealstone_failure::secret_file::read_bounded;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_osd_device::OsdConfig;
use sealstone_seal::paper::mceliece::Parameters;
use serde::Deserialize;

use crate::cli::MethodName;

/// I/O mode of a device, as named in options and files.
#[derive(Clone, Copy, Debug, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IoName {
    /// The default: `cached`.
    Auto,
    /// Through the page cache.
    Cached,
    /// Past the page cache.
    Direct,
}

impl From<IoName> for sealstone_store::IoMode {
    fn from(name: IoName) -> Self {
        match name {
            IoName::Auto => Self::Auto,
            IoName::Cached => Self::Cached,
            IoName::Direct => Self::Direct,
        }
    }
}

/// Requirement for the isolation of functions, as named in options and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum IsolationName {
    /// Functions run only with every layer of isolation.
    Strict,
    /// Functions run with the layers that this machine offers; the essential ones are required.
    BestEffort,
}

/// TLS mode of a portal, as named in options and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TlsName {
    /// All connections use TLS.
    Required,
    /// Use TLS if the client starts with it; otherwise plain text.
    Optional,
    /// No TLS.
    Off,
}

impl From<TlsName> for PortalTls {
    fn from(name: TlsName) -> Self {
        match name {
            TlsName::Required => Self::Required,
            TlsName::Optional => Self::Optional,
            TlsName::Off => Self::Off,
        }
    }
}

/// Parameters of the method cipher, as named in options and files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CipherName(pub(crate) Parameters);

impl CipherName {
    fn all() -> [&'static str; 7] {
        Parameters::ALL.map(Parameters::name)
    }
}

impl std::str::FromStr for CipherName {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Parameters::from_name(name).map(Self);
        found.ok_or_else(|| format!("no cipher named '{name}': {}", Self::all().join(", ")))
    }
}

impl<'de> Deserialize<'de> for CipherName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether an option is a switch: alone it means true, otherwise its value follows an equals sign.
fn is_switch<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<bool>()
}

/// Returns the number of values of an option.
fn values<T: 'static>() -> ValueRange {
    if is_switch::<T>() { (0..=1).into() } else { 1.into() }
}

/// Returns the value of an option that is given without one.
fn missing<T: 'static>() -> &'static [&'static str] {
    if is_switch::<T>() { &["true"] } else { &[] }
}

/// Declares the options of a daemon once: as options with variables, keys of the file, and lines of
/// the example file.
macro_rules! options {
    (
        $(#[$outer:meta])* $name:ident, section $section:literal;
        $( $(#[doc = $doc:literal])+ $([$($extra:tt)+])? $field:ident : $type:ty, $variable:literal, $example:literal; )*
    ) => {
        $(#[$outer])*
        #[derive(Args, Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $(
                $(#[doc = $doc])+
                #[arg(
                    long, env = $variable, num_args = values::<$type>(),
                    default_missing_values = missing::<$type>().iter().copied(), require_equals = is_switch::<$type>()
                    $(, $($extra)+)?
                )]
                pub(crate) $field: Option<$type>,
            )*
        }

        impl $name {
            /// Takes missing values from the file.
            pub(crate) fn or(self, file: Self) -> Self {
                Self { $( $field: self.$field.or(file.$field), )* }
            }

            /// Returns the example file.
            pub(crate) fn example() -> String {
                let mut text = String::from(concat!("# ", $section, "\n"));
                $(
                    text.push('\n');
                    $( text.push_str(concat!("#", $doc, "\n")); )+
                    text.push_str(&format!("# Flag --{}, variable {}\n", stringify!($field).replace('_', "-"), $variable));
                    text.push_str(concat!("#", stringify!($field), " = ", $example, "\n"));
                )*
                text
            }
        }
    };
}

options! {
    /// Options of `sealstone osd serve`.
    OsdOptions, section "Device daemon: sealstone osd serve --config FILE";
    /// Address of the iSCSI portal, HOST:PORT; port 0 takes a free one.
    listen: String, "SEALSTONE_OSD_LISTEN", "\"127.0.0.1:3260\"";
    /// Address for clients, if it differs from the listen address.
    advertise: String, "SEALSTONE_OSD_ADVERTISE", "\"osd1.example.org:3260\"";
    /// TLS 1.3 on the iSCSI portal: required, optional (plain text is accepted too), or off.
    /// Default: optional on a loopback address, else required.
    [value_enum]
    tls: TlsName, "SEALSTONE_OSD_TLS", "\"required\"";
    /// Follow the metadata server's clock: HOST:PORT of its time_listen. Responses must be signed
    /// with a key that device and metadata server share. Default: the clock of this machine.
    time: String, "SEALSTONE_OSD_TIME", "\"mds.example.org:123\"";
    /// Address of /metrics and /healthz; keep it on loopback.
    metrics: String, "SEALSTONE_OSD_METRICS", "\"127.0.0.1:9260\"";
    /// Maximum iSCSI connections after login; beyond, the account or address with the most loses
    /// its oldest.
    connections_max: usize, "SEALSTONE_OSD_CONNECTIONS_MAX", "256";
    /// Maximum iSCSI connections of one address (IPv6: /64); by default 15/16 of connections_max.
    connections_per_address_max: usize, "SEALSTONE_OSD_CONNECTIONS_PER_ADDRESS_MAX", "240";
    /// Maximum new iSCSI connections per second of one address, with a burst of four times as many;
    /// others are reset.
    connects_per_address_s_max: NonZeroU32, "SEALSTONE_OSD_CONNECTS_PER_ADDRESS_S_MAX", "128";
    /// Maximum iSCSI connections of one address before login; one more closes the oldest.
    logins_per_address_max: NonZeroUsize, "SEALSTONE_OSD_LOGINS_PER_ADDRESS_MAX", "64";
    /// Maximum size of all files of the audit log, MiB; beyond, the largest principals lose their
    /// oldest records.
    audit_mib_max: u64, "SEALSTONE_OSD_AUDIT_MIB_MAX", "256";
    /// Memory for data in flight of all connections, MiB.
    buffer_mib_max: usize, "SEALSTONE_OSD_BUFFER_MIB_MAX", "256";
    /// Seconds without data before a client is pinged, and again before it is disconnected.
    idle_s_max: u64, "SEALSTONE_OSD_IDLE_S_MAX", "60";
    /// Maximum seconds of a login.
    login_s_max: u64, "SEALSTONE_OSD_LOGIN_S_MAX", "15";
    /// Maximum seconds to receive a PDU, and of a pause in requested data.
    pdu_s_max: u64, "SEALSTONE_OSD_PDU_S_MAX", "30";
    /// Private file (mode 0600) with the initiators that can log in, their CHAP secrets and logical
    /// units. Without it all initiators can log in, and only capabilities protect objects.
    access_file: PathBuf, "SEALSTONE_OSD_ACCESS_FILE", "\"/etc/sealstone/osd1.access\"";
    /// Allow initiators to reset the target, which aborts the commands of all others.
    allow_target_reset: bool, "SEALSTONE_OSD_ALLOW_TARGET_RESET", "false";
    /// Prefer short commands: commands that compute check values of much data run on threads of
    /// lower priority, the shortest first. false: each command blocks its connection.
    short_first: bool, "SEALSTONE_OSD_SHORT_FIRST", "true";
    /// With short_first: run many of these commands in time slices; otherwise one per core, to its
    /// end.
    time_slices: bool, "SEALSTONE_OSD_TIME_SLICES", "false";
    /// Maximum requested data of writes per connection, KiB, beyond the first 64 KiB of each write.
    /// 0: no limit.
    pull_kib: u32, "SEALSTONE_OSD_PULL_KIB", "0";
    /// Seconds between background commits: a power failure can lose unflushed writes of this time.
    group_s_max: u64, "SEALSTONE_OSD_GROUP_S_MAX", "5";
    /// Make every write to objects and block units durable before it is acknowledged. Slower; for
    /// initiators that never flush, such as exofs.
    write_through: bool, "SEALSTONE_OSD_WRITE_THROUGH", "false";
    /// Hours between the starts of two scrubs, which verify all checksums; 0: no automatic scrubs.
    scrub_interval_h: u64, "SEALSTONE_OSD_SCRUB_INTERVAL_H", "168";
    /// Maximum rate of a scrub, MiB per second; it is slower while commands run.
    scrub_mib_s_max: NonZeroU64, "SEALSTONE_OSD_SCRUB_MIB_S_MAX", "32";
    /// I/O mode: `cached` (page cache), `direct` (no page cache: saves memory, and cold reads of 64
    /// KiB and more are faster, but repeated reads are not cached), or `auto`, which is `cached`.
    io: IoName, "SEALSTONE_OSD_IO", "\"auto\"";
    /// Minimum size of freed extents that are discarded, KiB; 0: no discard. A discard costs time,
    /// also when the space is used again.
    discard_kib_min: u64, "SEALSTONE_OSD_DISCARD_KIB_MIN", "0";
    /// Folder with the engine programs of functions (sealstone-engine-c and others). Default: the
    /// folder of this program.
    engines: PathBuf, "SEALSTONE_OSD_ENGINES", "\"/usr/lib/sealstone/engines\"";
    /// Isolation of functions: strict refuses to run them unless every layer is available;
    /// best-effort uses the layers of this machine. `sealstone osd status` shows them.
    [value_enum]
    isolation: IsolationName, "SEALSTONE_OSD_ISOLATION", "\"best-effort\"";
    /// Maximum queued and running jobs of a user; one more is refused.
    function_jobs_per_user_max: NonZeroUsize, "SEALSTONE_OSD_FUNCTION_JOBS_PER_USER_MAX", "4";
    /// Maximum seconds of a run of a function.
    function_wall_s_max: NonZeroU64, "SEALSTONE_OSD_FUNCTION_WALL_S_MAX", "30";
    /// Maximum CPU seconds of a run of a function.
    function_cpu_s_max: NonZeroU64, "SEALSTONE_OSD_FUNCTION_CPU_S_MAX", "10";
    /// Memory of a function, MiB, at least 16.
    function_memory_mib_max: NonZeroU32, "SEALSTONE_OSD_FUNCTION_MEMORY_MIB_MAX", "256";
    /// Maximum result of a function, and maximum output that waits for its success, MiB,
    /// at most 1024.
    function_output_mib_max: NonZeroU32, "SEALSTONE_OSD_FUNCTION_OUTPUT_MIB_MAX", "16";
    /// Also write an audit record for every read.
    audit_reads: bool, "SEALSTONE_OSD_AUDIT_READS", "false";
    /// Accept OSD-1 commands (200-byte CDBs) beside OSD-2.
    allow_osd1: bool, "SEALSTONE_OSD_ALLOW_OSD1", "false";
    /// Accept only commands whose security method is concealed by the ESM paper's cipher: h3, h4,
    /// h5s, h5, h6, h7s or h7. To reproduce the paper; it protects nothing.
    method_cipher: CipherName, "SEALSTONE_OSD_METHOD_CIPHER", "\"h5s\"";
    /// Accept the ASF paper's continuation descriptor (0003h) for functions. To reproduce the
    /// paper: it has no digest of the code and no rights for each object.
    paper_functions: bool, "SEALSTONE_OSD_PAPER_FUNCTIONS", "false";
    /// Accept only sealed capabilities (see seal_capabilities of the metadata server).
    sealed_only: bool, "SEALSTONE_OSD_SEALED_ONLY", "false";
    /// Minimum security method of commands, also of new partitions. Default: cmdrsp, or less with
    /// an insecure option. capkey is sufficient with TLS, whose channel token it uses. Existing
    /// partitions keep a higher minimum (attribute P+5h, 1).
    [value_enum]
    method_floor: MethodName, "SEALSTONE_OSD_METHOD_FLOOR", "\"cmdrsp\"";
    /// Accept commands without any check. All peers that reach the port can read and write all
    /// objects.
    insecure_nosec: bool, "SEALSTONE_OSD_INSECURE_NOSEC", "false";
    /// Allow plain text beyond loopback. A man in the middle can read data, and with NOSEC and
    /// CMDRSP change it.
    insecure_no_tls: bool, "SEALSTONE_OSD_INSECURE_NO_TLS", "false";
    /// Accept CAPKEY on connections without TLS, where it stops neither injection nor replay.
    insecure_capkey: bool, "SEALSTONE_OSD_INSECURE_CAPKEY", "false";
    /// Accept check values over AdHash digests (slot 4, code F5h), to reproduce the figures of a
    /// paper. Broken: a man in the middle can replace data. Loopback addresses only.
    insecure_adhash: bool, "SEALSTONE_OSD_INSECURE_ADHASH", "false";
    /// Allow insecure_adhash beyond loopback.
    i_accept_insecure: bool, "SEALSTONE_OSD_I_ACCEPT_INSECURE", "false";
    /// Export block units beyond loopback without CHAP or a list of initiators. All initiators that
    /// reach the port can read and write them.
    insecure_block: bool, "SEALSTONE_OSD_INSECURE_BLOCK", "false";
}

options! {
    /// Options of `sealstone mds serve`.
    MdsOptions, section "Metadata server: sealstone mds serve --config FILE";
    /// Address of the client port, HOST:PORT; port 0 takes a free one.
    listen: String, "SEALSTONE_MDS_LISTEN", "\"127.0.0.1:3270\"";
    /// Address for clients in cluster.toml, HOST:PORT, if it differs from the listen address.
    advertise: String, "SEALSTONE_MDS_ADVERTISE", "\"mds.example.org:3270\"";
    /// UDP address of the time service (SNTP), HOST:PORT, for devices and others; port 0 takes a
    /// free one. Default: no time service.
    time_listen: String, "SEALSTONE_MDS_TIME_LISTEN", "\"0.0.0.0:123\"";
    /// Follow the clock of this NTP server, HOST:PORT, instead of this machine's. Requires
    /// time_key_file unless the server is on this machine.
    time_source: String, "SEALSTONE_MDS_TIME_SOURCE", "\"ntp.example.org:123\"";
    /// Private file (mode 0600) with the key of the NTP server, one line: NUMBER AES128 HEX:DIGITS.
    time_key_file: PathBuf, "SEALSTONE_MDS_TIME_KEY_FILE", "\"/etc/sealstone/ntp.key\"";
    /// Allow time_source without a key beyond loopback. A man in the middle can move the clock by
    /// up to a minute, and 17 s per day.
    [num_args = 0..=1, default_missing_value = "true", require_equals = true]
    insecure_time: bool, "SEALSTONE_MDS_INSECURE_TIME", "false";
    /// Address of /metrics and /healthz; keep it on loopback.
    metrics: String, "SEALSTONE_MDS_METRICS", "\"127.0.0.1:9270\"";
    /// Maximum client connections after login; beyond, the user with the most loses the oldest.
    connections_max: usize, "SEALSTONE_MDS_CONNECTIONS_MAX", "1024";
    /// Maximum size of all files of the audit log, MiB; beyond, the largest users lose their oldest
    /// records.
    audit_mib_max: u64, "SEALSTONE_MDS_AUDIT_MIB_MAX", "1024";
    /// Maximum seconds from the start of a connection to the end of its login.
    login_s_max: u64, "SEALSTONE_MDS_LOGIN_S_MAX", "30";
    /// Maximum seconds to receive a frame, and to send a response.
    frame_s_max: u64, "SEALSTONE_MDS_FRAME_S_MAX", "30";
    /// Maximum seconds without a request after login.
    idle_s_max: u64, "SEALSTONE_MDS_IDLE_S_MAX", "1800";
    /// Private file (mode 0600) with the server's CHAP accounts for devices that require CHAP; read
    /// at each login.
    chap_file: PathBuf, "SEALSTONE_MDS_CHAP_FILE", "\"/etc/sealstone/mds.chap\"";
    /// Lifetime of credentials, seconds, at most 3600; clients renew those in use.
    grant_s: NonZeroU64, "SEALSTONE_MDS_GRANT_S", "300";
    /// Seconds that a credential in a capability file lives at most; 28800 is the most. Keys are
    /// kept as long.
    delegated_s_max: NonZeroU64, "SEALSTONE_MDS_DELEGATED_S_MAX", "3600";
    /// Valid credentials that the server keeps in memory, one entry for each session and object, at
    /// least 1024; 300 bytes each. Revoking a user with more replaces the working keys of their
    /// partitions.
    issued_max: usize, "SEALSTONE_MDS_ISSUED_MAX", "262144";
    /// Seconds after which a working key of a device is superseded. The old one works until its
    /// last credential expires.
    working_key_age_s: NonZeroU64, "SEALSTONE_MDS_WORKING_KEY_AGE_S", "3600";
    /// Seconds after which the keys of a partition are replaced from above. Its credentials are
    /// renewed then.
    partition_key_age_s: NonZeroU64, "SEALSTONE_MDS_PARTITION_KEY_AGE_S", "86400";
    /// Credentials after which a working key is superseded whatever its age.
    credentials_per_key_max: NonZeroU64, "SEALSTONE_MDS_CREDENTIALS_PER_KEY_MAX", "16777216";
    /// Number of partitions per device for files, at most 4096. Each has its own keys, so that a
    /// revocation by key affects fewer files. Can be increased, but not decreased while there are
    /// files.
    file_partitions: NonZeroU64, "SEALSTONE_MDS_FILE_PARTITIONS", "1";
    /// Maximum rate at which files that have outgrown their layout are migrated to a wider one, MiB
    /// per second; 0: no migration.
    carry_mib_s: u64, "SEALSTONE_MDS_CARRY_MIB_S", "64";
    /// Location of the metadata store, if it is not that of `mds init`:
    /// `postgres://USER@HOST[:PORT]/DATABASE`, `ldaps://NAME@HOST[:PORT]/BASE` or `file:PATH`.
    meta: String, "SEALSTONE_MDS_META", "\"postgres://sealstone@db.example.org/sealstone\"";
    /// PEM file of the authority of the certificate of the database or LDAP server (TLS 1.3).
    meta_ca_file: PathBuf, "SEALSTONE_MDS_META_CA_FILE", "\"/etc/sealstone/db-ca.pem\"";
    /// Private file (mode 0600) whose first line is the password [default for a database:
    /// PGPASSWORD].
    meta_password_file: PathBuf, "SEALSTONE_MDS_META_PASSWORD_FILE", "\"/etc/sealstone/db.password\"";
    /// Name of the systemd credential (LoadCredential=) with that password, instead of the file.
    meta_credential: String, "SEALSTONE_MDS_META_CREDENTIAL", "\"sealstone-db\"";
    /// Allow plain text to a database or LDAP server beyond this machine. A man in the middle can
    /// read and change all records that are not sealed.
    insecure_meta: bool, "SEALSTONE_MDS_INSECURE_META", "false";
    /// Seconds, from 1 to 600, that a start and a request wait for an unavailable database or LDAP
    /// server.
    meta_wait_s_max: u64, "SEALSTONE_MDS_META_WAIT_S_MAX", "20";
    /// Key file of the keystore (mode 0600) [default: keystore.key in the server's folder].
    keystore_key: PathBuf, "SEALSTONE_MDS_KEYSTORE_KEY", "\"/etc/sealstone/mds.key\"";
    /// Private file (mode 0600) whose first line is the passphrase of the keystore.
    passphrase_file: PathBuf, "SEALSTONE_MDS_PASSPHRASE_FILE", "\"/etc/sealstone/mds.passphrase\"";
    /// Name of the systemd credential (LoadCredential=) with the key or the passphrase of the
    /// keystore.
    keystore_credential: String, "SEALSTONE_MDS_KEYSTORE_CREDENTIAL", "\"sealstone-keystore\"";
    /// Seal the capabilities of credentials: clients and eavesdroppers can read only key version,
    /// algorithm and method.
    seal_capabilities: bool, "SEALSTONE_MDS_SEAL_CAPABILITIES", "false";
    /// Conceal the method of the server's own commands, for devices with method_cipher.
    conceal_method: bool, "SEALSTONE_MDS_CONCEAL_METHOD", "false";
    /// Minimum security method of credentials; weaker requests are raised to it. Devices accept
    /// less than cmdrsp only with an insecure option.
    [value_enum]
    method_floor: MethodName, "SEALSTONE_MDS_METHOD_FLOOR", "\"cmdrsp\"";
    /// Also serve the login of a paper on this address, HOST:PORT, over plain TCP. Broken: a
    /// recorded login can be attacked with a word list. Loopback addresses only.
    insecure_paper_login: String, "SEALSTONE_MDS_INSECURE_PAPER_LOGIN", "\"127.0.0.1:3271\"";
    /// Allow insecure_paper_login beyond loopback.
    i_accept_insecure: bool, "SEALSTONE_MDS_I_ACCEPT_INSECURE", "false";
    /// LDAP server with the users and groups of accounts of `user add --directory`: ldaps://HOST,
    /// or ldap://HOST, which requires StartTLS if directory_ca_file is set, and must be this
    /// machine otherwise.
    directory_url: String, "SEALSTONE_MDS_DIRECTORY_URL", "\"ldaps://ldap.example.org\"";
    /// PEM file of the authority of the directory's certificate (TLS 1.3).
    directory_ca_file: PathBuf, "SEALSTONE_MDS_DIRECTORY_CA_FILE", "\"/etc/sealstone/ldap-ca.pem\"";
    /// Bind DN; it needs read access to users and groups only. Default: anonymous.
    directory_bind_dn: String, "SEALSTONE_MDS_DIRECTORY_BIND_DN", "\"cn=sealstone,dc=example,dc=org\"";
    /// Private file (mode 0600) whose first line is the bind password.
    directory_bind_password_file: PathBuf, "SEALSTONE_MDS_DIRECTORY_BIND_PASSWORD_FILE", "\"/etc/sealstone/ldap.pw\"";
    /// Name of the systemd credential (LoadCredential=) with that password, instead of the file.
    directory_bind_credential: String, "SEALSTONE_MDS_DIRECTORY_BIND_CREDENTIAL", "\"sealstone-ldap\"";
    /// Base DN of users.
    directory_user_base: String, "SEALSTONE_MDS_DIRECTORY_USER_BASE", "\"ou=people,dc=example,dc=org\"";
    /// Filter of entries that are users.
    directory_user_filter: String, "SEALSTONE_MDS_DIRECTORY_USER_FILTER", "\"(objectClass=person)\"";
    /// Attribute with the name of a user; in Active Directory sAMAccountName.
    directory_user_attribute: String, "SEALSTONE_MDS_DIRECTORY_USER_ATTRIBUTE", "\"uid\"";
    /// Attribute with the permanent id of a user, which detects reused names; in Active Directory
    /// objectGUID.
    directory_id_attribute: String, "SEALSTONE_MDS_DIRECTORY_ID_ATTRIBUTE", "\"entryUUID\"";
    /// Base DN of groups.
    directory_group_base: String, "SEALSTONE_MDS_DIRECTORY_GROUP_BASE", "\"ou=groups,dc=example,dc=org\"";
    /// Filter of entries that are groups.
    directory_group_filter: String, "SEALSTONE_MDS_DIRECTORY_GROUP_FILTER", "\"(objectClass=*)\"";
    /// Attribute with the name of a group.
    directory_group_attribute: String, "SEALSTONE_MDS_DIRECTORY_GROUP_ATTRIBUTE", "\"cn\"";
    /// Attributes of a group with the DNs of its members, separated by commas.
    directory_member_attributes: String, "SEALSTONE_MDS_DIRECTORY_MEMBER_ATTRIBUTES", "\"member,uniqueMember\"";
    /// Attributes of a group with the names of its members, separated by commas.
    directory_member_name_attributes: String, "SEALSTONE_MDS_DIRECTORY_MEMBER_NAME_ATTRIBUTES", "\"memberUid\"";
    /// Group whose members are administrators. If this or one of the next three is set, the first
    /// matching group decides the role, and users in none of them cannot log in. Otherwise the role
    /// is that of the account.
    directory_admin_group: String, "SEALSTONE_MDS_DIRECTORY_ADMIN_GROUP", "\"storage-admins\"";
    /// Group whose members are operators.
    directory_operator_group: String, "SEALSTONE_MDS_DIRECTORY_OPERATOR_GROUP", "\"storage-operators\"";
    /// Group whose members are users.
    directory_user_group: String, "SEALSTONE_MDS_DIRECTORY_USER_GROUP", "\"storage-users\"";
    /// Group whose members are read-only users.
    directory_read_only_group: String, "SEALSTONE_MDS_DIRECTORY_READ_ONLY_GROUP", "\"storage-readers\"";
    /// Seconds between two look-ups of logged-in users; sessions of removed users end by then.
    directory_age_s_max: NonZeroU64, "SEALSTONE_MDS_DIRECTORY_AGE_S_MAX", "300";
    /// Seconds that a session stays valid after the last response of an unavailable directory.
    directory_grace_s_max: NonZeroU64, "SEALSTONE_MDS_DIRECTORY_GRACE_S_MAX", "3600";
    /// Timeout of a request to the directory, seconds, at most 20.
    directory_timeout_s_max: NonZeroU64, "SEALSTONE_MDS_DIRECTORY_TIMEOUT_S_MAX", "5";
    /// Allow plain text to a directory beyond this machine. A man in the middle can read the bind
    /// password and forge group memberships.
    [num_args = 0..=1, default_missing_value = "true", require_equals = true]
    insecure_directory: bool, "SEALSTONE_MDS_INSECURE_DIRECTORY", "false";
}

impl OsdOptions {
    /// Returns the configuration of the device in a folder.
    pub(crate) fn device_config(&self, data: &Path) -> DeviceServerConfig {
        let flag = |option: Option<bool>| option.unwrap_or(false);
        let default = DeviceServerConfig::new(data);
        DeviceServerConfig {
            data: default.data,
            listen: self.listen.clone().unwrap_or(default.listen),
            advertise: self.advertise.clone(),
            tls: self.tls.map(Into::into),
            time: self.time.clone(),
            osd: OsdConfig {
                allow_osd1: flag(self.allow_osd1),
                insecure_nosec: flag(self.insecure_nosec),
                insecure_capkey: flag(self.insecure_capkey),
                method_floor: self.method_floor.map(Into::into),
                insecure_adhash: flag(self.insecure_adhash),
                method_cipher: self.method_cipher.map(|name| name.0),
                paper_functions: flag(self.paper_functions),
                sealed_only: flag(self.sealed_only),
                audit_reads: flag(self.audit_reads),
                write_through: flag(self.write_through),
            },
            connections_max: self.connections_max.unwrap_or(default.connections_max),
            connections_per_address_max: self.connections_per_address_max,
            connects_per_address_s_max: self
                .connects_per_address_s_max
                .map_or(default.connects_per_address_s_max, NonZeroU32::get),
            logins_per_address_max: self
                .logins_per_address_max
                .map_or(default.logins_per_address_max, NonZeroUsize::get),
            audit_mib_max: self.audit_mib_max.unwrap_or(default.audit_mib_max),
            buffer_mib_max: self.buffer_mib_max.unwrap_or(default.buffer_mib_max),
            idle_s_max: self.idle_s_max.unwrap_or(default.idle_s_max),
            login_s_max: self.login_s_max.unwrap_or(default.login_s_max),
            pdu_s_max: self.pdu_s_max.unwrap_or(default.pdu_s_max),
            drain_s_max: default.drain_s_max,
            access_file: self.access_file.clone(),
            allow_target_reset: flag(self.allow_target_reset),
            short_first: self.short_first.unwrap_or(default.short_first),
            time_slices: self.time_slices.unwrap_or(default.time_slices),
            pull_kib: self.pull_kib.unwrap_or(default.pull_kib),
            group_s_max: self.group_s_max.unwrap_or(default.group_s_max),
            scrub_interval_h: self.scrub_interval_h.unwrap_or(default.scrub_interval_h),
            scrub_mib_s_max: self.scrub_mib_s_max.map_or(default.scrub_mib_s_max, NonZeroU64::get),
            io: self.io.map_or(default.io, Into::into),
            discard_kib_min: self.discard_kib_min.unwrap_or(default.discard_kib_min),
            engines: self.engines.clone(),
            strict_isolation: self.isolation == Some(IsolationName::Strict),
            functions: FunctionSettings {
                jobs_per_user_max: self.function_jobs_per_user_max,
                wall_s_max: self.function_wall_s_max,
                cpu_s_max: self.function_cpu_s_max,
                memory_mib_max: self.function_memory_mib_max,
                output_mib_max: self.function_output_mib_max,
            },
            insecure_no_tls: flag(self.insecure_no_tls),
            accept_insecure: flag(self.i_accept_insecure),
            insecure_block: flag(self.insecure_block),
        }
    }
}

/// Returns the example file of a daemon.
pub(crate) fn example(noun: &str) -> Outcome<String> {
    match noun {
        "osd" => Ok(OsdOptions::example()),
        "mds" => Ok(MdsOptions::example()),
        other => Err(Failure::usage(format!("no configuration named '{other}'")).hint("use osd or mds")),
    }
}

/// Reads the file of a daemon; without a file no key is set.
pub(crate) fn read<T: Default + for<'a> Deserialize<'a>>(path: Option<&PathBuf>) -> Outcome<T> {
    let Some(path) = path else { return Ok(T::default()) };
    let text = read_bounded(path)?;
    toml::from_str(&text).map_err(|error| {
        Failure::usage(error.message().to_owned())
            .at(match error.span() {
                Some(span) => format!(
                    "{}:{}",
                    path.shown(),
                    1 + text[..span.start.min(text.len())].matches('\n').count()
                ),
                None => path.shown().to_string(),
            })
            .hint("`sealstone config example` prints all keys")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn uncommented(text: &str) -> String {
        text.lines()
            .filter(|line| !line.starts_with("# "))
            .map(|line| line.strip_prefix('#').unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Without their comment signs the examples set every key.
    #[test]
    fn example_files_are_valid() {
        let osd: OsdOptions = toml::from_str(&uncommented(&OsdOptions::example())).expect("valid");
        assert_eq!(osd.connections_max, Some(256));
        assert_eq!(osd.insecure_nosec, Some(false));
        let mds: MdsOptions = toml::from_str(&uncommented(&MdsOptions::example())).expect("valid");
        assert_eq!(mds.listen.as_deref(), Some("127.0.0.1:3270"));
    }

    #[test]
    fn unknown_key_is_refused_with_its_line() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("osd.toml");
        fs::write(&path, "listen = \"127.0.0.1:0\"\ninsecure_nosek = true\n").expect("write");
        let failure = read::<OsdOptions>(Some(&path)).expect_err("refused");
        assert_eq!(failure.kind, sealstone_failure::FailureKind::Usage);
        assert!(failure.message.contains("osd.toml:2"), "{failure}");
        assert!(failure.message.contains("insecure_nosek"), "{failure}");
    }

    /// A limit of zero would refuse all clients, or stop the scrub.
    #[test]
    fn limits_of_zero_are_refused() {
        for key in ["connects_per_address_s_max", "logins_per_address_max", "scrub_mib_s_max"] {
            let flag = format!("--{}", key.replace('_', "-"));
            for (value, fits) in [("0", false), ("1", true)] {
                let file = toml::from_str::<OsdOptions>(&format!("{key} = {value}\n"));
                assert_eq!(file.is_ok(), fits, "{key} = {value}");
                let command = OsdOptions::augment_args(clap::Command::new("osd"));
                let flags = command.try_get_matches_from(["osd", flag.as_str(), value]);
                assert_eq!(flags.is_ok(), fits, "{flag} {value}");
            }
        }
    }

    #[test]
    fn switches_need_no_value_and_others_do() {
        let parse = |words: &[&str]| {
            let command = OsdOptions::augment_args(clap::Command::new("osd"));
            let matches = command.try_get_matches_from([&["osd"][..], words].concat());
            matches
                .ok()
                .and_then(|matches| <OsdOptions as clap::FromArgMatches>::from_arg_matches(&matches).ok())
        };
        let audit_reads = |words: &[&str]| parse(words).and_then(|options| options.audit_reads);
        assert_eq!(audit_reads(&["--audit-reads"]), Some(true));
        assert_eq!(audit_reads(&["--audit-reads=true"]), Some(true));
        assert_eq!(audit_reads(&["--audit-reads=false"]), Some(false));
        assert!(parse(&["--audit-reads", "false"]).is_none());
        assert_eq!(parse(&["--idle-s-max", "9"]).and_then(|options| options.idle_s_max), Some(9));
        assert!(parse(&["--idle-s-max"]).is_none());
    }

    #[test]
    fn options_override_the_file() {
        let flags = OsdOptions { listen: Some("a:1".into()), ..OsdOptions::default() };
        let file =
            OsdOptions { listen: Some("b:2".into()), connections_max: Some(7), ..OsdOptions::default() };
        let merged = flags.or(file);
        assert_eq!((merged.listen.as_deref(), merged.connections_max), (Some("a:1"), Some(7)));
    }
}
