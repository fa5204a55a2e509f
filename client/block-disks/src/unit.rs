//! Block units of devices: where they are, and sessions to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sealstone_block::UnitProtection;
use sealstone_block_client::{BlockError, BlockUnitClient, UnitClientOptions};
use sealstone_block_protection::{ProtectedBlock, ProtectionProfile, ProtectionSettings};
use sealstone_channel::{Pin, PinKind};
use sealstone_chap_file::{iscsi_name, proofs};
use sealstone_device_server::{ControlRequest, END_TO_END, UnitReport, administer, identity};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_initiator::{SystemEnvironment, TargetUrl, TcpDial, TlsPolicy};
use sealstone_osd_device::DataDir;

/// Text of a refusal.
pub const NO_PAPER_PROFILE: &str = "e2e and lazy have no profile of the paper";

/// How a unit is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitProtectionChoice {
    /// The device requires a least protection of sessions.
    Sessions(UnitProtection),
    /// End-to-end: keys at the clients alone, the device is not trusted.
    EndToEnd,
}

impl UnitProtectionChoice {
    /// Whether the paper has a profile of this level.
    #[must_use]
    pub fn has_paper_profile(self) -> bool {
        matches!(self, Self::Sessions(level) if level.profile() != ProtectionProfile::Modern)
    }

    /// Parses `e2e`, or a level of sessions.
    ///
    /// # Errors
    /// There is no such level.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            END_TO_END => Ok(Self::EndToEnd),
            _ => UnitProtection::parse(text).map(Self::Sessions).map_err(|error| match hardware_level(text) {
                None => error.to_string(),
                Some(equal) => format!(
                    "{text} is {equal} on processors with AES instructions, which are always used: create \
                     the unit with {equal}"
                ),
            }),
        }
    }
}

/// Returns the level with the format of a level of the paper with crypto hardware.
fn hardware_level(name: &str) -> Option<&'static str> {
    match name {
        "paper:S2-2" => Some("paper:S2-1u"),
        "paper:S2-4" => Some("paper:S2-3"),
        "paper:S2-6" => Some("paper:S2-5"),
        _ => None,
    }
}

/// Address of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitAddress {
    /// The URL of the unit: `iscsi://HOST[:PORT]/TARGET/LUN`.
    Url(String),
    /// A unit of a device of this machine.
    Name {
        /// Name of the unit.
        name: String,
        /// Folder of the running device.
        data: PathBuf,
    },
}

impl UnitAddress {
    /// Returns the address of a name or URL; `data` is the folder of the device with that name.
    ///
    /// # Errors
    /// A name has no folder.
    pub fn new(unit: &str, data: Option<&Path>) -> Outcome<Self> {
        if unit.contains("://") {
            return Ok(Self::Url(unit.to_owned()));
        }
        let data = data.ok_or_else(|| {
            Failure::usage("the name of a unit needs the folder of its device")
                .hint("give --data DIR, or the URL of the unit")
        })?;
        Ok(Self::Name { name: unit.to_owned(), data: data.to_owned() })
    }

    /// Returns the name of the unit, unless it has a URL.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Url(_) => None,
            Self::Name { name, .. } => Some(name),
        }
    }
}

/// Options of the sessions to a unit.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Number of sessions.
    pub sessions: usize,
    /// How long requests wait for an unavailable device before they fail; forever without it.
    pub recovery_timeout: Option<Duration>,
    /// File with CHAP accounts.
    pub chap_file: Option<PathBuf>,
    /// When the sessions use TLS.
    pub tls: TlsPolicy,
    /// Pin of the certificate of the device.
    pub pin: Option<Pin>,
    /// iSCSI name under which the client logs in.
    pub initiator_name: Option<String>,
    /// Protection that the unit must have; that of the unit without it.
    pub protection: Option<UnitProtectionChoice>,
    /// Block size of a protected unit that has a URL.
    pub protected_block: ProtectedBlock,
    /// The paper's own profile, for the URL of a unit that was created with it.
    pub paper_profile: bool,
}

impl UnitOptions {
    /// Returns options for one session, by the protection of the unit.
    #[must_use]
    pub const fn new(tls: TlsPolicy, chap_file: Option<PathBuf>) -> Self {
        Self {
            sessions: 1,
            recovery_timeout: Some(Duration::from_secs(60)),
            chap_file,
            tls,
            pin: None,
            initiator_name: None,
            protection: None,
            protected_block: ProtectedBlock::B512,
            paper_profile: false,
        }
    }
}

/// A unit and how it is reached.
pub(crate) struct UnitLocation {
    pub(crate) url: TargetUrl,
    dial: TcpDial,
    /// Protection of the sessions.
    pub(crate) protection: Option<ProtectionSettings>,
}

/// Opens sessions to a unit.
pub(crate) async fn connect_unit(address: &UnitAddress, options: &UnitOptions) -> Outcome<BlockUnitClient> {
    connect(locate(address, options)?, options).await
}

/// Finds the URL of the unit, and the expected certificate of its device.
pub(crate) fn locate(address: &UnitAddress, options: &UnitOptions) -> Outcome<UnitLocation> {
    let policy = options.tls;
    let (url, folder, unit) = match address {
        UnitAddress::Url(url) => (url.clone(), None, None),
        UnitAddress::Name { name, data } => {
            let value = administer(data, ControlRequest::Show { name: name.clone() })?;
            let unit: UnitReport = serde_json::from_value(value).map_err(Failure::operation)?;
            let url = unit.url.clone().ok_or_else(|| {
                Failure::operation("the device is stopped")
                    .at(data.shown())
                    .hint("sealstone osd serve --data DIR")
            })?;
            (url, Some(data), Some(unit))
        }
    };
    let protection = session_protection(unit.as_ref(), options)?;
    let url: TargetUrl =
        url.parse().map_err(|error| Failure::usage(error).at(&url).hint("iscsi://HOST[:PORT]/TARGET/LUN"))?;
    let known = folder.filter(|_| options.pin.is_none());
    let device = known.map(|folder| known_device(folder, &url, policy)).transpose()?;
    let (pin, system_id) = match (device, options.pin) {
        (Some((pin, system_id)), _) => (pin, system_id),
        (None, Some(pin)) if pin.kind == PinKind::Authority => {
            return Err(Failure::usage("the pin of an authority does not select one device")
                .at("--pin")
                .hint("give the pin of the device's own certificate: sha256:HEX"));
        }
        (None, pin) => (pin, [0; 20]),
    };
    let dial =
        TcpDial::by_policy(&url, pin, &system_id, policy).map_err(|error| session_failure(&error, &url))?;
    Ok(UnitLocation { url, dial, protection })
}

/// Returns a protection with the paper's own profile if that is requested.
fn with_profile(protection: UnitProtection, paper: bool) -> UnitProtection {
    let profile = if paper { ProtectionProfile::Paper } else { protection.profile() };
    UnitProtection::new(protection.level(), profile)
}

/// Returns the settings of the sessions: those that the unit requires, or those of the options.
fn session_protection(
    unit: Option<&UnitReport>,
    options: &UnitOptions,
) -> Outcome<Option<ProtectionSettings>> {
    if options.paper_profile && options.protection.is_some_and(|chosen| !chosen.has_paper_profile()) {
        return Err(Failure::usage(NO_PAPER_PROFILE).at("--insecure-paper-profile"));
    }
    let sessions = match options.protection {
        Some(UnitProtectionChoice::Sessions(level)) => Some(level),
        Some(UnitProtectionChoice::EndToEnd) | None => None,
    };
    let Some(unit) = unit else {
        let chosen = sessions.map(|chosen| with_profile(chosen, options.paper_profile));
        return Ok(chosen.and_then(|chosen| chosen.settings(options.protected_block)));
    };
    let block = if unit.block_size == 4096 { ProtectedBlock::B4096 } else { ProtectedBlock::B512 };
    let required = match unit.protect.as_str() {
        END_TO_END => UnitProtection::NONE,
        sessions => UnitProtection::parse(sessions).map_err(Failure::operation)?,
    };
    let profile = unit.profile.as_deref().and_then(ProtectionProfile::from_name);
    let profile = profile.unwrap_or(required.profile());
    let required = UnitProtection::new(required.level(), profile).settings(block);
    let Some(chosen) = sessions else { return Ok(required) };
    let chosen = UnitProtection::new(chosen.level(), profile).settings(block);
    let is_less = required.is_some_and(|required| !chosen.is_some_and(|chosen| chosen.fulfils(&required)));
    if is_less {
        return Err(Failure::usage(format!("unit {} requires {}", unit.name, unit.protect)).at("--protect"));
    }
    Ok(chosen)
}

/// Returns the pin of the device in a folder, and its system id. On loopback there is no
/// pin unless TLS is required.
fn known_device(folder: &Path, url: &TargetUrl, policy: TlsPolicy) -> Outcome<(Option<Pin>, [u8; 20])> {
    let data = DataDir::open(folder).map_err(|error| Failure::operation(chain(&error)))?;
    let is_loopback =
        url.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    if is_loopback && policy != TlsPolicy::Required {
        return Ok((None, data.identity.system_id));
    }
    let certificate = secret_file::read_public(&folder.join(identity::CERTIFICATE_FILE))?;
    Ok((Some(Pin::certificate(&certificate)), data.identity.system_id))
}

pub(crate) async fn connect(location: UnitLocation, wanted: &UnitOptions) -> Outcome<BlockUnitClient> {
    let UnitLocation { url, dial, protection } = location;
    let mut options = UnitClientOptions::new(&SystemEnvironment);
    options.session.proofs = proofs(wanted.chap_file.as_ref())?;
    options.session.protection = protection;
    options.sessions = wanted.sessions;
    options.recovery_timeout = wanted.recovery_timeout;
    if let Some(name) = &wanted.initiator_name {
        let name = iscsi_name(name).map_err(|failure| failure.at("--initiator-name"))?;
        if name.ends_with('*') {
            return Err(Failure::usage("a pattern is not a name; give one iSCSI name").at("--initiator-name"));
        }
        options.session.initiator_name = name;
    }
    BlockUnitClient::open(Arc::new(dial), &url, &SystemEnvironment, &options)
        .await
        .map_err(|error| unit_failure(&error, &url))
}

fn session_failure(error: &sealstone_initiator::SessionError, url: &TargetUrl) -> Failure {
    let failure = Failure::operation(chain(error)).at(url);
    match error {
        error if error.is_denied() => Failure { kind: FailureKind::Denied, ..failure }
            .hint("check --chap-file, --initiator-name and --pin against the device's access file"),
        sealstone_initiator::SessionError::LoginRefused { class: 2, detail: 3 } => {
            Failure { kind: FailureKind::NotFound, ..failure }
                .hint("`sealstone block list` shows the URLs of the units")
        }
        sealstone_initiator::SessionError::LoginRefused { class: 2, detail: 0 } => {
            Failure { kind: FailureKind::Denied, ..failure }
                .hint("the unit may require protection: give --protect, and an account with --chap-file")
        }
        _ => failure.hint("check that the device runs, and its address"),
    }
}

/// Returns the failure of a command of a unit.
pub(crate) fn unit_failure(error: &BlockError, url: &TargetUrl) -> Failure {
    let failure = Failure::operation(chain(error)).at(url);
    match error {
        BlockError::Session(error) => session_failure(error, url),
        BlockError::NoUnit => Failure { kind: FailureKind::NotFound, ..failure }
            .hint("`sealstone block list` shows the URLs of the units"),
        BlockError::NotADisk(_) => failure.hint("the OSD is LUN 0; block units have 1 and above"),
        BlockError::LostWrites => failure.hint("check the file system on the unit"),
        BlockError::Unavailable { .. } => {
            failure.hint("acknowledged writes of the last seconds may be lost if the device's machine failed")
        }
        _ => failure,
    }
}
