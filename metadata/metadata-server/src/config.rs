//! Configuration of a metadata server.

use std::path::{Path, PathBuf};

use sealstone_mds::Config;
use sealstone_mds_server::{KeystoreSecrets, LdapDirectory, Limits, Location};

/// Configuration of a metadata server. docs/reference/cli.md explains the fields, which have the
/// names of the options of `sealstone mds serve`.
pub struct MetadataServerConfig {
    /// Folder of the server.
    pub data: PathBuf,
    /// Address of the client port; port 0 takes a free one.
    pub listen: String,
    /// Address for clients in the cluster file, if it differs from the listen address.
    pub advertise: Option<String>,
    /// UDP address of the time service; `None`: no time service.
    pub time_listen: Option<String>,
    /// NTP server that the clock follows; `None`: the clock of this machine.
    pub time_source: Option<String>,
    /// File with the key of the NTP server.
    pub time_key_file: Option<PathBuf>,
    /// Allow an NTP server without a key beyond loopback. Insecure.
    pub insecure_time: bool,
    /// Maximum size of the audit log, MiB.
    pub audit_mib_max: u64,
    /// File with the CHAP accounts for devices.
    pub chap_file: Option<PathBuf>,
    /// Rules of credentials, keys and sessions.
    pub policy: Config,
    /// Limits of connections and background work.
    pub limits: Limits,
    /// Secrets that open the keystore.
    pub keystore: KeystoreSecrets,
    /// Location of the metadata store; `None`: that of the folder.
    pub location: Option<Location>,
    /// Directory of users and groups.
    pub directory: Option<LdapDirectory>,
    /// Conceal the method of the server's own commands.
    pub conceal_method: bool,
    /// Address of the login of a paper. Insecure.
    pub insecure_paper_login: Option<String>,
    /// Allow that login beyond loopback. Insecure.
    pub accept_insecure: bool,
}

impl MetadataServerConfig {
    /// Returns the default configuration of the server in a folder.
    #[must_use]
    pub fn new(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            listen: "127.0.0.1:3270".to_owned(),
            advertise: None,
            time_listen: None,
            time_source: None,
            time_key_file: None,
            insecure_time: false,
            audit_mib_max: 1024,
            chap_file: None,
            policy: Config::default(),
            limits: Limits::default(),
            keystore: KeystoreSecrets { key_file: None, passphrase: None, credential: None },
            location: None,
            directory: None,
            conceal_method: false,
            insecure_paper_login: None,
            accept_insecure: false,
        }
    }
}

pub(crate) fn is_host_and_port(address: &str) -> bool {
    address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}
