//! Configuration of the daemons: one TOML file each, every key also a flag and a `SEALSTONE_…` variable.
//!
//! Order of precedence: flag, variable, file, default. Unknown keys are refused, so that a misspelt floor or
//! limit cannot be silently ignored.

use std::any::TypeId;
use std::fs;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::ValueRange;
use sealstone_seal::mceliece::Parameters;
use serde::Deserialize;

use crate::cli::MethodName;
use crate::failure::{Failure, Outcome};
use crate::text::ShownPath as _;

/// A configuration file is small; more than this is a mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How a device's data goes to its disk, as it is named on the command line and in files.
#[derive(Clone, Copy, Debug, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IoName {
    /// As it is best for most: `cached`.
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

/// Who must speak TLS, as it is named on the command line and in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TlsName {
    /// Everybody.
    Required,
    /// Who begins so; the others are served in plain text.
    Optional,
    /// Nobody can.
    Off,
}

impl TlsName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::Off => "off",
        }
    }
}

/// Parameters of the method cipher, as they are named on the command line and in files.
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
        found.ok_or_else(|| format!("no cipher is called '{name}': {}", Self::all().join(", ")))
    }
}

impl<'de> Deserialize<'de> for CipherName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A switch may stand alone, which means true, or say `=true` or `=false`; what follows it is never its value.
fn is_switch<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<bool>()
}

/// How many values an option takes.
fn values<T: 'static>() -> ValueRange {
    if is_switch::<T>() { (0..=1).into() } else { 1.into() }
}

/// What an option without a value means.
fn missing<T: 'static>() -> &'static [&'static str] {
    if is_switch::<T>() { &["true"] } else { &[] }
}

/// Declares a daemon's options once: as flags with variables, as keys of the file, and as rows of the example.
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
            /// Fills what neither flag nor variable said from the file.
            pub(crate) fn or(self, file: Self) -> Self {
                Self { $( $field: self.$field.or(file.$field), )* }
            }

            /// The keys with their meaning, as the body of an example file.
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
    /// Address that clients are told, if it differs from the one listened on.
    advertise: String, "SEALSTONE_OSD_ADVERTISE", "\"osd1.example.org:3260\"";
    /// TLS 1.3 on the iSCSI portal: required, optional (who begins in plain text is served in it), or off. By default
    /// optional on a loopback address, else required.
    [value_enum]
    tls: TlsName, "SEALSTONE_OSD_TLS", "\"required\"";
    /// Follow the metadata server's clock: HOST:PORT of its time_listen. Answers count only under a key that device and
    /// metadata server share. Otherwise this machine's clock is believed.
    time: String, "SEALSTONE_OSD_TIME", "\"mds.example.org:123\"";
    /// Address of /metrics and /healthz; keep it on loopback.
    metrics: String, "SEALSTONE_OSD_METRICS", "\"127.0.0.1:9260\"";
    /// iSCSI connections at once after their login; beyond, the account or address with the most loses its oldest.
    connections_max: usize, "SEALSTONE_OSD_CONNECTIONS_MAX", "256";
    /// iSCSI connections at once from one address (IPv6: one /64); by default all but a sixteenth of connections_max.
    connections_per_address_max: usize, "SEALSTONE_OSD_CONNECTIONS_PER_ADDRESS_MAX", "240";
    /// iSCSI connections a second from one address that are taken, after four times as many at once; faster ones are
    /// reset at once.
    connects_per_address_s_max: NonZeroU32, "SEALSTONE_OSD_CONNECTS_PER_ADDRESS_S_MAX", "128";
    /// iSCSI connections at once from one address whose login is not over; one more closes the oldest.
    logins_per_address_max: NonZeroUsize, "SEALSTONE_OSD_LOGINS_PER_ADDRESS_MAX", "64";
    /// Audit log at most, in MiB, all its files together; beyond, the largest principals lose their oldest records.
    audit_mib_max: u64, "SEALSTONE_OSD_AUDIT_MIB_MAX", "256";
    /// Memory for data in flight over all connections, in MiB.
    buffer_mib_max: usize, "SEALSTONE_OSD_BUFFER_MIB_MAX", "256";
    /// Seconds that a client may stay silent before it is pinged, and again before it is dropped.
    idle_s_max: u64, "SEALSTONE_OSD_IDLE_S_MAX", "60";
    /// Seconds that a login may take.
    login_s_max: u64, "SEALSTONE_OSD_LOGIN_S_MAX", "15";
    /// Seconds that one PDU may take from its first to its last byte, and that data asked for may pause.
    pdu_s_max: u64, "SEALSTONE_OSD_PDU_S_MAX", "30";
    /// Private file (mode 0600) that says which initiators may log in, with which CHAP secret, to which logical units.
    /// Without it everybody may, and capabilities alone protect objects.
    access_file: PathBuf, "SEALSTONE_OSD_ACCESS_FILE", "\"/etc/sealstone/osd1.access\"";
    /// Let initiators reset the whole target, which ends the commands of all others.
    allow_target_reset: bool, "SEALSTONE_OSD_ALLOW_TARGET_RESET", "false";
    /// Short commands first: those that compute check values over much data run on threads of their own, of lower
    /// priority, the shortest first. false: each holds its connection to its end.
    short_first: bool, "SEALSTONE_OSD_SHORT_FIRST", "true";
    /// With short_first: run many of them at once, so that each gets a slice of time by turns; otherwise one for each
    /// core runs to its end.
    time_slices: bool, "SEALSTONE_OSD_TIME_SLICES", "false";
    /// Ask for the data of writes at the pace at which they are done: at most so many KiB of a connection at once,
    /// beyond the first 64 KiB of each, which come unasked. 0: every write asks at once.
    pull_kib: u32, "SEALSTONE_OSD_PULL_KIB", "0";
    /// Seconds between background transaction groups: what a crash may cost of writes that nobody flushed.
    group_s_max: u64, "SEALSTONE_OSD_GROUP_S_MAX", "5";
    /// Make every write and change durable before it is acknowledged, of objects and of all block units, whether the
    /// initiator asks for it or not. Slower; for initiators that never flush, such as exofs.
    write_through: bool, "SEALSTONE_OSD_WRITE_THROUGH", "false";
    /// Hours between the beginnings of two scrubs, which read everything against its checksums; 0: only when asked.
    scrub_interval_h: u64, "SEALSTONE_OSD_SCRUB_INTERVAL_H", "168";
    /// Rate of a scrub in MiB a second, at most; while commands come it goes slower.
    scrub_mib_s_max: NonZeroU64, "SEALSTONE_OSD_SCRUB_MIB_S_MAX", "32";
    /// How objects' bytes go to the disk: `cached` (through the page cache), `direct` (past it: memory stays to others, and
    /// cold reads from 64 KiB on are faster, but nothing is read from memory twice), or `auto`, which is `cached`.
    io: IoName, "SEALSTONE_OSD_IO", "\"auto\"";
    /// Give the space of freed stretches of at least so many KiB back to the file system or block device; 0 never does.
    /// It costs time, and more when the space is used again.
    discard_kib_min: u64, "SEALSTONE_OSD_DISCARD_KIB_MIN", "0";
    /// Also write an audit record for every read.
    audit_reads: bool, "SEALSTONE_OSD_AUDIT_READS", "false";
    /// Accept OSD-1 commands (200-byte CDBs) beside OSD-2.
    allow_osd1: bool, "SEALSTONE_OSD_ALLOW_OSD1", "false";
    /// Take commands whose security method is concealed by the ESM paper's cipher, and no others: h3, h4, h5s, h5, h6, h7s or
    /// h7. To reproduce the paper; it protects nothing, as anybody may conceal anything.
    method_cipher: CipherName, "SEALSTONE_OSD_METHOD_CIPHER", "\"h5s\"";
    /// Take only capabilities that are sealed (see seal_capabilities of the metadata server).
    sealed_only: bool, "SEALSTONE_OSD_SEALED_ONLY", "false";
    /// Weakest security method that the device accepts, and that new partitions ask for; cmdrsp unless an insecure flag
    /// says less. capkey: enough inside TLS, where its token is the channel's own. alldata: nothing less. Partitions
    /// that exist keep what they ask for (attribute P+5h, 1) where that is more.
    [value_enum]
    method_floor: MethodName, "SEALSTONE_OSD_METHOD_FLOOR", "\"cmdrsp\"";
    /// Accept commands without any check. Anybody who reaches the port can read and write everything.
    insecure_nosec: bool, "SEALSTONE_OSD_INSECURE_NOSEC", "false";
    /// Let TLS be off beyond loopback. Data is read by whoever is on the way, and under NOSEC and CMDRSP changed too.
    insecure_no_tls: bool, "SEALSTONE_OSD_INSECURE_NO_TLS", "false";
    /// Accept CAPKEY on connections without TLS, where it stops neither injection nor replay.
    insecure_capkey: bool, "SEALSTONE_OSD_INSECURE_CAPKEY", "false";
    /// Accept check values over AdHash digests (slot 4, code F5h), to reproduce a paper's figures. Broken: whoever is on
    /// the wire exchanges data for his own. On a loopback address alone.
    insecure_adhash: bool, "SEALSTONE_OSD_INSECURE_ADHASH", "false";
    /// Let insecure_adhash be used beyond loopback.
    i_accept_insecure: bool, "SEALSTONE_OSD_I_ACCEPT_INSECURE", "false";
    /// Offer block units beyond loopback although neither CHAP nor a list of initiators protects them. Anybody who
    /// reaches the port can read and write them.
    insecure_block: bool, "SEALSTONE_OSD_INSECURE_BLOCK", "false";
}

options! {
    /// Options of `sealstone mds serve`.
    MdsOptions, section "Metadata server: sealstone mds serve --config FILE";
    /// Address of the client port, HOST:PORT; port 0 takes a free one.
    listen: String, "SEALSTONE_MDS_LISTEN", "\"127.0.0.1:3270\"";
    /// Address under which clients reach it, HOST:PORT: what cluster.toml says, if it is not the one that it listens on.
    advertise: String, "SEALSTONE_MDS_ADVERTISE", "\"mds.example.org:3270\"";
    /// UDP address on which the time is told (SNTP), HOST:PORT, to devices that follow it and to whoever asks; port 0 takes
    /// a free one. By default it is not.
    time_listen: String, "SEALSTONE_MDS_TIME_LISTEN", "\"0.0.0.0:123\"";
    /// Follow the clock of this NTP server, HOST:PORT, instead of this machine's. It takes time_key_file, unless the server
    /// is on this machine.
    time_source: String, "SEALSTONE_MDS_TIME_SOURCE", "\"ntp.example.org:123\"";
    /// Private file (mode 0600) with the key that this server's answers must be under, one line: NUMBER AES128 HEX:DIGITS.
    time_key_file: PathBuf, "SEALSTONE_MDS_TIME_KEY_FILE", "\"/etc/sealstone/ntp.key\"";
    /// Believe time_source without a key beyond loopback. Whoever is on the way moves the clock by up to a minute, and
    /// 17 s a day.
    [num_args = 0..=1, default_missing_value = "true", require_equals = true]
    insecure_time: bool, "SEALSTONE_MDS_INSECURE_TIME", "false";
    /// Address of /metrics and /healthz; keep it on loopback.
    metrics: String, "SEALSTONE_MDS_METRICS", "\"127.0.0.1:9270\"";
    /// Client connections at once after their login; beyond, the user with the most loses the oldest.
    connections_max: usize, "SEALSTONE_MDS_CONNECTIONS_MAX", "1024";
    /// Audit log at most, in MiB, all its files together; beyond, the largest users lose their oldest records.
    audit_mib_max: u64, "SEALSTONE_MDS_AUDIT_MIB_MAX", "1024";
    /// Seconds from the start of a connection until its login must be over.
    login_s_max: u64, "SEALSTONE_MDS_LOGIN_S_MAX", "30";
    /// Seconds that a frame may take to arrive once it has begun, and an answer to be taken.
    frame_s_max: u64, "SEALSTONE_MDS_FRAME_S_MAX", "30";
    /// Seconds that a client may stay silent after its login.
    idle_s_max: u64, "SEALSTONE_MDS_IDLE_S_MAX", "1800";
    /// Private file (mode 0600) with the server's CHAP accounts, for devices that ask who logs in; read at each login.
    chap_file: PathBuf, "SEALSTONE_MDS_CHAP_FILE", "\"/etc/sealstone/mds.chap\"";
    /// Seconds that a credential for an object lives, at most 3600; clients renew what they still use.
    grant_s: NonZeroU64, "SEALSTONE_MDS_GRANT_S", "300";
    /// Seconds that a credential in a capability file lives at most; 28800 is the most. Keys are kept as long.
    delegated_s_max: NonZeroU64, "SEALSTONE_MDS_DELEGATED_S_MAX", "3600";
    /// Valid credentials that the server keeps in memory, one entry for each session and object, at least 1024; 300 bytes
    /// each. Revoking a user with more replaces the working keys of their partitions.
    issued_max: usize, "SEALSTONE_MDS_ISSUED_MAX", "262144";
    /// Seconds after which a working key of a device is superseded. The old one works until its last credential expires.
    working_key_age_s: NonZeroU64, "SEALSTONE_MDS_WORKING_KEY_AGE_S", "3600";
    /// Seconds after which the keys of a partition are replaced from above. Its credentials are renewed then.
    partition_key_age_s: NonZeroU64, "SEALSTONE_MDS_PARTITION_KEY_AGE_S", "86400";
    /// Credentials after which a working key is superseded whatever its age.
    credentials_per_key_max: NonZeroU64, "SEALSTONE_MDS_CREDENTIALS_PER_KEY_MAX", "16777216";
    /// Partitions of each device that files are spread over, at most 4096: each has keys of its own, so that a
    /// revocation touches fewer files. It can grow, and must not shrink while there are files.
    file_partitions: NonZeroU64, "SEALSTONE_MDS_FILE_PARTITIONS", "1";
    /// Files that have outgrown the layout that they were given when they were small are carried over to a wider one at so
    /// many MiB a second at most, while they are used; 0: they stay as they are.
    carry_mib_s: u64, "SEALSTONE_MDS_CARRY_MIB_S", "64";
    /// Where the metadata is, if it is not where `mds init` put it: `postgres://USER@HOST[:PORT]/DATABASE`,
    /// `ldaps://NAME@HOST[:PORT]/BASE` or `file:PATH`.
    meta: String, "SEALSTONE_MDS_META", "\"postgres://sealstone@db.example.org/sealstone\"";
    /// PEM file of the authority that must have signed the certificate of the database or LDAP server (TLS 1.3).
    meta_ca_file: PathBuf, "SEALSTONE_MDS_META_CA_FILE", "\"/etc/sealstone/db-ca.pem\"";
    /// Private file (mode 0600) whose first line is the password; PGPASSWORD has a database's otherwise.
    meta_password_file: PathBuf, "SEALSTONE_MDS_META_PASSWORD_FILE", "\"/etc/sealstone/db.password\"";
    /// Name of the systemd credential (LoadCredential=) with that password, in the place of the file.
    meta_credential: String, "SEALSTONE_MDS_META_CREDENTIAL", "\"sealstone-db\"";
    /// Use a database or LDAP server beyond this machine in plain text. Whoever is on the way reads and changes what is not sealed.
    insecure_meta: bool, "SEALSTONE_MDS_INSECURE_META", "false";
    /// Key file of the keystore (mode 0600), if it is not keystore.key in the server's folder.
    keystore_key: PathBuf, "SEALSTONE_MDS_KEYSTORE_KEY", "\"/etc/sealstone/mds.key\"";
    /// Private file (mode 0600) whose first line is the keystore's passphrase, if it is sealed under one.
    passphrase_file: PathBuf, "SEALSTONE_MDS_PASSPHRASE_FILE", "\"/etc/sealstone/mds.passphrase\"";
    /// Name of the systemd credential (LoadCredential=) that the keystore is sealed under, or its passphrase is in.
    keystore_credential: String, "SEALSTONE_MDS_KEYSTORE_CREDENTIAL", "\"sealstone-keystore\"";
    /// Seal the capabilities of credentials: who sees one on the wire, the client among them, reads nothing of it but key
    /// version, algorithm and method.
    seal_capabilities: bool, "SEALSTONE_MDS_SEAL_CAPABILITIES", "false";
    /// Conceal the method of the server's own commands, for devices with method_cipher.
    conceal_method: bool, "SEALSTONE_MDS_CONCEAL_METHOD", "false";
    /// Weakest security method that clients are given credentials for; what they ask for is raised to it. Devices accept
    /// weaker ones than cmdrsp only if they were started with an --insecure flag.
    [value_enum]
    method_floor: MethodName, "SEALSTONE_MDS_METHOD_FLOOR", "\"cmdrsp\"";
    /// Serve the login of a paper on this address too, HOST:PORT, over plain TCP, to reproduce it. Broken: whoever records
    /// a login finds its passphrase with a word list. On a loopback address alone.
    insecure_paper_login: String, "SEALSTONE_MDS_INSECURE_PAPER_LOGIN", "\"127.0.0.1:3271\"";
    /// Let insecure_paper_login be used beyond loopback.
    i_accept_insecure: bool, "SEALSTONE_MDS_I_ACCEPT_INSECURE", "false";
    /// LDAP server that knows the users and groups of accounts made with `user add --directory`: ldaps://HOST, or
    /// ldap://HOST, which goes on in TLS (StartTLS) if directory_ca_file is set, and must be this machine otherwise.
    directory_url: String, "SEALSTONE_MDS_DIRECTORY_URL", "\"ldaps://ldap.example.org\"";
    /// PEM file of the authority that must have signed the directory's certificate (TLS 1.3).
    directory_ca_file: PathBuf, "SEALSTONE_MDS_DIRECTORY_CA_FILE", "\"/etc/sealstone/ldap-ca.pem\"";
    /// Whom to bind as; as nobody without it. It has to read users and groups, and should be able to do nothing else.
    directory_bind_dn: String, "SEALSTONE_MDS_DIRECTORY_BIND_DN", "\"cn=sealstone,dc=example,dc=org\"";
    /// Private file (mode 0600) whose first line is the password to bind with.
    directory_bind_password_file: PathBuf, "SEALSTONE_MDS_DIRECTORY_BIND_PASSWORD_FILE", "\"/etc/sealstone/ldap.pw\"";
    /// Name of the systemd credential (LoadCredential=) with that password, in the place of the file.
    directory_bind_credential: String, "SEALSTONE_MDS_DIRECTORY_BIND_CREDENTIAL", "\"sealstone-ldap\"";
    /// Where users are.
    directory_user_base: String, "SEALSTONE_MDS_DIRECTORY_USER_BASE", "\"ou=people,dc=example,dc=org\"";
    /// What an entry must be to be a user that may work here.
    directory_user_filter: String, "SEALSTONE_MDS_DIRECTORY_USER_FILTER", "\"(objectClass=person)\"";
    /// The attribute with the user's name; Active Directory's is sAMAccountName.
    directory_user_attribute: String, "SEALSTONE_MDS_DIRECTORY_USER_ATTRIBUTE", "\"uid\"";
    /// The attribute by which an entry is known again when its name was given to somebody else; Active Directory's is
    /// objectGUID.
    directory_id_attribute: String, "SEALSTONE_MDS_DIRECTORY_ID_ATTRIBUTE", "\"entryUUID\"";
    /// Where groups are.
    directory_group_base: String, "SEALSTONE_MDS_DIRECTORY_GROUP_BASE", "\"ou=groups,dc=example,dc=org\"";
    /// What an entry must be to be a group that counts here.
    directory_group_filter: String, "SEALSTONE_MDS_DIRECTORY_GROUP_FILTER", "\"(objectClass=*)\"";
    /// The attribute with the group's name.
    directory_group_attribute: String, "SEALSTONE_MDS_DIRECTORY_GROUP_ATTRIBUTE", "\"cn\"";
    /// Attributes of a group with the DNs of its members, with commas between them.
    directory_member_attributes: String, "SEALSTONE_MDS_DIRECTORY_MEMBER_ATTRIBUTES", "\"member,uniqueMember\"";
    /// Attributes of a group with the names of its members, with commas between them.
    directory_member_name_attributes: String, "SEALSTONE_MDS_DIRECTORY_MEMBER_NAME_ATTRIBUTES", "\"memberUid\"";
    /// Group of the directory whose members are administrators. With this or one of the next three, groups say the role of
    /// every account of the directory (the first that fits), and who is in none of them may not log in; with none of them
    /// the role is the one that the account was made with.
    directory_admin_group: String, "SEALSTONE_MDS_DIRECTORY_ADMIN_GROUP", "\"storage-admins\"";
    /// Group whose members are operators.
    directory_operator_group: String, "SEALSTONE_MDS_DIRECTORY_OPERATOR_GROUP", "\"storage-operators\"";
    /// Group whose members are users.
    directory_user_group: String, "SEALSTONE_MDS_DIRECTORY_USER_GROUP", "\"storage-users\"";
    /// Group whose members may read.
    directory_read_only_group: String, "SEALSTONE_MDS_DIRECTORY_READ_ONLY_GROUP", "\"storage-readers\"";
    /// Seconds after which the directory is asked again about who is logged in: by then sessions end of whoever is out.
    directory_age_s_max: NonZeroU64, "SEALSTONE_MDS_DIRECTORY_AGE_S_MAX", "300";
    /// Seconds for which a session goes on after the directory's last answer if it does not answer any more.
    directory_grace_s_max: NonZeroU64, "SEALSTONE_MDS_DIRECTORY_GRACE_S_MAX", "3600";
    /// Seconds that one question to the directory may take, at most 20.
    directory_timeout_s_max: NonZeroU64, "SEALSTONE_MDS_DIRECTORY_TIMEOUT_S_MAX", "5";
    /// Ask a directory beyond this machine in plain text. Whoever is on the way reads the password to bind with and says who
    /// is in which group.
    [num_args = 0..=1, default_missing_value = "true", require_equals = true]
    insecure_directory: bool, "SEALSTONE_MDS_INSECURE_DIRECTORY", "false";
}

/// The example file of `noun`.
pub(crate) fn example(noun: &str) -> Outcome<String> {
    match noun {
        "osd" => Ok(OsdOptions::example()),
        "mds" => Ok(MdsOptions::example()),
        other => Err(Failure::usage(format!("no configuration is called '{other}'")).hint("say osd or mds")),
    }
}

/// Reads a daemon's file; no file given means no keys set.
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
            .hint("`sealstone config example` prints every key")
    })
}

/// A small text file, or why it cannot be had.
pub(crate) fn read_bounded(path: &Path) -> Outcome<String> {
    let at = |failure: Failure| failure.at(path.shown());
    let length = fs::metadata(path).map_err(|error| at(error.into()))?.len();
    if length > FILE_BYTES_MAX {
        return Err(at(Failure::usage(format!("{length} bytes; at most {FILE_BYTES_MAX}"))));
    }
    fs::read_to_string(path).map_err(|error| at(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uncommented(text: &str) -> String {
        text.lines()
            .filter(|line| !line.starts_with("# "))
            .map(|line| line.strip_prefix('#').unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// With the comment signs taken off, the examples are valid files that set every key.
    #[test]
    fn the_examples_are_valid_and_whole() {
        let osd: OsdOptions = toml::from_str(&uncommented(&OsdOptions::example())).expect("valid");
        assert_eq!(osd.connections_max, Some(256));
        assert_eq!(osd.insecure_nosec, Some(false));
        let mds: MdsOptions = toml::from_str(&uncommented(&MdsOptions::example())).expect("valid");
        assert_eq!(mds.listen.as_deref(), Some("127.0.0.1:3270"));
    }

    /// A misspelt key stops the daemon and names its line.
    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("osd.toml");
        fs::write(&path, "listen = \"127.0.0.1:0\"\ninsecure_nosek = true\n").expect("write");
        let failure = read::<OsdOptions>(Some(&path)).expect_err("refused");
        assert_eq!(failure.kind, crate::failure::Kind::Usage);
        assert!(failure.message.contains("osd.toml:2"), "{failure}");
        assert!(failure.message.contains("insecure_nosek"), "{failure}");
    }

    /// A limit of none would shut everybody out, or stop the scrub: it is refused, in the file and as a flag.
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

    /// A switch stands alone or has its value after an equals sign; every other option has one behind it.
    #[test]
    fn switches_need_no_value_and_others_do() {
        let parse = |words: &[&str]| {
            let command = OsdOptions::augment_args(clap::Command::new("osd"));
            let matches = command.try_get_matches_from([&["osd"][..], words].concat());
            matches
                .ok()
                .and_then(|matches| <OsdOptions as clap::FromArgMatches>::from_arg_matches(&matches).ok())
        };
        let said = |words: &[&str]| parse(words).and_then(|options| options.audit_reads);
        assert_eq!(said(&["--audit-reads"]), Some(true));
        assert_eq!(said(&["--audit-reads=true"]), Some(true));
        assert_eq!(said(&["--audit-reads=false"]), Some(false));
        assert!(parse(&["--audit-reads", "false"]).is_none());
        assert_eq!(parse(&["--idle-s-max", "9"]).and_then(|options| options.idle_s_max), Some(9));
        assert!(parse(&["--idle-s-max"]).is_none());
    }

    /// A flag beats the file.
    #[test]
    fn flags_win_over_the_file() {
        let flags = OsdOptions { listen: Some("a:1".into()), ..OsdOptions::default() };
        let file =
            OsdOptions { listen: Some("b:2".into()), connections_max: Some(7), ..OsdOptions::default() };
        let merged = flags.or(file);
        assert_eq!((merged.listen.as_deref(), merged.connections_max), (Some("a:1"), Some(7)));
    }
}
