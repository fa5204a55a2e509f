//! Address and properties of the device under test.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use sealstone_tests::{Daemon, command, run, text};
use tempfile::TempDir;

use crate::seal::FactoryKeys;

/// Names of initiators, after `iqn.2026-11.org.example:`, that a device with accounts knows: with
/// an account, and without.
pub(crate) const PROVEN_NAME: &str = "proven";
pub(crate) const OPEN_NAME: &str = "open";
/// User and secret of the initiator's account, and of the device itself.
pub(crate) const ACCOUNT: (&str, &str) = ("ann", "ann's long secret");
pub(crate) const OWN_ACCOUNT: (&str, &str) = ("device", "the device says so");

/// LUN of the first block unit of a device started here.
const BLOCK_LUN: u16 = 1;

/// Address of a logical unit: `iscsi://HOST:PORT/TARGET/LUN`.
#[derive(Clone, Debug)]
pub(crate) struct Portal {
    pub(crate) address: String,
    pub(crate) target: String,
    pub(crate) lun: u16,
}

impl Portal {
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let wrong = || format!("'{url}' is not iscsi://HOST:PORT/TARGET/LUN");
        let rest = url.strip_prefix("iscsi://").ok_or_else(wrong)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let [authority, target, lun] = parts[..] else { return Err(wrong()) };
        let address =
            if authority.contains(':') { authority.to_owned() } else { format!("{authority}:3260") };
        Ok(Self { address, target: target.to_owned(), lun: lun.parse().map_err(|_| wrong())? })
    }
}

/// A device under test.
pub struct Target {
    pub(crate) name: &'static str,
    pub(crate) portal: Portal,
    pub(crate) keys: Option<FactoryKeys>,
    /// A block unit of it, whose data may be overwritten.
    pub(crate) block: Option<Portal>,
    /// Whether its logical unit is an OSD; otherwise only iSCSI tests run.
    pub(crate) osd: bool,
    /// Whether it supports OSD-1 service actions.
    pub(crate) osd1: bool,
    /// Whether it requires accounts.
    pub(crate) guarded: bool,
    /// Whether it was started here, so that no test may be skipped.
    pub(crate) ours: bool,
    daemon: Option<(Daemon, TempDir)>,
}

impl Target {
    /// Returns the device at an address, used with ALLDATA if there is a key file, else with NOSEC.
    ///
    /// # Errors
    /// Description of an invalid address or file.
    pub fn at(url: &str, key: Option<&Path>, block: Option<&str>) -> Result<Self, String> {
        let keys = key.map(read_keys).transpose()?;
        let block = block.map(Portal::parse).transpose()?;
        Ok(Self {
            name: "the target",
            portal: Portal::parse(url)?,
            keys,
            block,
            osd: true,
            osd1: true,
            guarded: false,
            ours: false,
            daemon: None,
        })
    }

    /// Limits the tests to iSCSI, commands of all logical units, and a block unit.
    #[must_use]
    pub fn without_osd(self) -> Self {
        Self { osd: false, ..self }
    }

    /// Starts the real device twice: secured, and open.
    #[must_use]
    pub fn own() -> Vec<Self> {
        vec![
            Self::start("secured", &["--allow-osd1"], true),
            Self::start("open", &["--allow-osd1", "--insecure-nosec"], false),
            Self::guarded(),
        ]
    }

    /// Starts another secured device, for a test that changes it permanently.
    pub(crate) fn alone() -> Self {
        Self::start("alone", &[], true)
    }

    /// Starts a device with an access file.
    fn guarded() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("access");
        let access = format!(
            "algorithms = [\"sha256\", \"md5\"]\n\n[target]\nuser = \"{}\"\nsecret = \"{}\"\n\n\
             [[initiator]]\nnames = [\"iqn.2026-11.org.example:{PROVEN_NAME}\"]\nuser = \"{}\"\nsecret = \"{}\"\n\n\
             [[initiator]]\nnames = [\"iqn.2026-11.org.example:{OPEN_NAME}\"]\n",
            OWN_ACCOUNT.0, OWN_ACCOUNT.1, ACCOUNT.0, ACCOUNT.1
        );
        fs::write(&file, access).expect("the file can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its owner may");
        let flags = ["--access-file", text(&file)];
        Self { guarded: true, ..Self::start_in(folder, "guarded", &flags, false) }
    }

    fn start(name: &'static str, flags: &[&str], secured: bool) -> Self {
        Self::start_in(tempfile::tempdir().expect("temporary folder"), name, flags, secured)
    }

    fn start_in(folder: TempDir, name: &'static str, flags: &[&str], secured: bool) -> Self {
        let (data, key) = (folder.path().join("data"), folder.path().join("key"));
        let init = [
            "osd",
            "init",
            "--data",
            text(&data),
            "--capacity",
            "4G",
            "--name",
            name,
            "--key-out",
            text(&key),
        ];
        run(&init).ok();
        run(&["block", "create", "unit", "--data", text(&data), "--size", "64M"]).ok();
        let mut serve: Command =
            command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
        // Each behaviour opens a connection, faster than a normal client.
        serve.args(["--connects-per-address-s-max", "4096"]);
        serve.args(flags);
        let daemon = Daemon::start(serve);
        let portal = Portal::parse(daemon.field("url")).expect("the device prints its address");
        let keys = secured.then(|| read_keys(&key).expect("the device wrote its key"));
        let block = Some(Portal { lun: BLOCK_LUN, ..portal.clone() });
        Self {
            name,
            portal,
            keys,
            block,
            osd: true,
            osd1: true,
            guarded: false,
            ours: true,
            daemon: Some((daemon, folder)),
        }
    }

    /// Whether the device is still alive, if it was started here.
    pub(crate) fn is_alive(&mut self) -> bool {
        match &mut self.daemon {
            Some((daemon, _)) => {
                daemon.survives(std::time::Duration::ZERO) && !daemon.stderr().contains("panicked")
            }
            None => true,
        }
    }
}

/// Reads a key file: `system_id` and `master_key` in hex.
fn read_keys(path: &Path) -> Result<FactoryKeys, String> {
    let file = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let field = |name: &str| {
        let line = file.lines().find(|line| line.split('=').next().is_some_and(|key| key.trim() == name));
        let value = line.and_then(|line| line.split('"').nth(1));
        value.and_then(unhex).ok_or_else(|| format!("{}: no {name} in hex", path.display()))
    };
    let system_id = field("system_id")?.try_into().map_err(|_| "system_id: 20 bytes".to_owned())?;
    Ok(FactoryKeys::factory(&field("master_key")?, system_id))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}
