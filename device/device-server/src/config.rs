//! Configuration of a device server.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use sealstone_iscsi_target::CommandPacing;
use sealstone_osd_device::OsdConfig;
use sealstone_store::IoMode;

/// TLS mode of a portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortalTls {
    /// All connections use TLS.
    Required,
    /// Use TLS if the client starts with it; otherwise plain text.
    Optional,
    /// No TLS.
    Off,
}

impl PortalTls {
    /// Returns the name of the mode in options and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::Off => "off",
        }
    }
}

/// Limits of functions; `None` is the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionSettings {
    /// Maximum queued and running jobs of a user.
    pub jobs_per_user_max: Option<NonZeroUsize>,
    /// Maximum seconds of a run.
    pub wall_s_max: Option<NonZeroU64>,
    /// Maximum CPU seconds of a run.
    pub cpu_s_max: Option<NonZeroU64>,
    /// Memory of a run, MiB.
    pub memory_mib_max: Option<NonZeroU32>,
    /// Maximum result of a run, MiB.
    pub output_mib_max: Option<NonZeroU32>,
}

/// Configuration of a device server. docs/reference/cli.md explains the fields, which have the
/// names of the options of `sealstone osd serve`.
#[derive(Clone, Debug)]
pub struct DeviceServerConfig {
    /// Folder of the device.
    pub data: PathBuf,
    /// Address of the iSCSI portal; port 0 takes a free one.
    pub listen: String,
    /// Address for clients, if it differs from the listen address.
    pub advertise: Option<String>,
    /// TLS on the portal; `None`: optional on a loopback address, else required.
    pub tls: Option<PortalTls>,
    /// Time service of the metadata server; `None`: the clock of this machine.
    pub time: Option<String>,
    /// Rules of commands.
    pub osd: OsdConfig,
    /// Maximum connections after login.
    pub connections_max: usize,
    /// Maximum connections of one address; `None`: 15/16 of `connections_max`.
    pub connections_per_address_max: Option<usize>,
    /// Maximum new connections per second of one address.
    pub connects_per_address_s_max: u32,
    /// Maximum connections of one address before login.
    pub logins_per_address_max: usize,
    /// Maximum size of the audit log, MiB.
    pub audit_mib_max: u64,
    /// Memory for data in flight, MiB.
    pub buffer_mib_max: usize,
    /// Seconds without data before a client is pinged.
    pub idle_s_max: u64,
    /// Maximum seconds of a login.
    pub login_s_max: u64,
    /// Maximum seconds to receive a PDU.
    pub pdu_s_max: u64,
    /// Seconds that clients get to log out at a shutdown. There is no option for it.
    pub drain_s_max: u16,
    /// File with the initiators that can log in; `None`: all can.
    pub access_file: Option<PathBuf>,
    /// Allow initiators to reset the target.
    pub allow_target_reset: bool,
    /// Prefer short commands.
    pub short_first: bool,
    /// Run long commands in time slices.
    pub time_slices: bool,
    /// Maximum requested data of writes per connection, KiB; 0: no limit.
    pub pull_kib: u32,
    /// Seconds between background commits.
    pub group_s_max: u64,
    /// Hours between the starts of two scrubs; 0: no automatic scrubs.
    pub scrub_interval_h: u64,
    /// Maximum rate of a scrub, MiB per second.
    pub scrub_mib_s_max: u64,
    /// I/O mode of the store.
    pub io: IoMode,
    /// Minimum size of freed extents that are discarded, KiB; 0: no discard.
    pub discard_kib_min: u64,
    /// Folder with engine programs; `None`: that of this program.
    pub engines: Option<PathBuf>,
    /// Run functions only with every layer of isolation.
    pub strict_isolation: bool,
    /// Limits of functions.
    pub functions: FunctionSettings,
    /// Allow plain text beyond loopback. Insecure.
    pub insecure_no_tls: bool,
    /// Allow AdHash beyond loopback. Insecure.
    pub accept_insecure: bool,
    /// Export block units beyond loopback without CHAP or a list of initiators. Insecure.
    pub insecure_block: bool,
}

impl DeviceServerConfig {
    /// Returns the default configuration of the device in a folder.
    #[must_use]
    pub fn new(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            listen: "127.0.0.1:3260".to_owned(),
            advertise: None,
            tls: None,
            time: None,
            osd: OsdConfig::default(),
            connections_max: 256,
            connections_per_address_max: None,
            connects_per_address_s_max: 128,
            logins_per_address_max: 64,
            audit_mib_max: 256,
            buffer_mib_max: 256,
            idle_s_max: 60,
            login_s_max: 15,
            pdu_s_max: 30,
            drain_s_max: 5,
            access_file: None,
            allow_target_reset: false,
            // Measured: see ADR 14.
            short_first: true,
            time_slices: CommandPacing::default().slices,
            pull_kib: 0,
            group_s_max: 5,
            scrub_interval_h: 168,
            scrub_mib_s_max: 32,
            io: IoMode::default(),
            discard_kib_min: 0,
            engines: None,
            strict_isolation: false,
            functions: FunctionSettings::default(),
            insecure_no_tls: false,
            accept_insecure: false,
            insecure_block: false,
        }
    }
}
