//! A device with units of one level, and the clients of these units.
//!
//! Does: starts a device whose sessions need CHAP, opens units, reads the state of their
//! protection.
//! Contract: a device serves one level only, so its processor time is that of the level.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use sealstone_block_client::e2e::{E2eDisk, E2eOptions, MemoryRootStore, UnitMedium, fast_aead};
use sealstone_block_client::{BlockUnitClient, FlushCursor, UnitClientOptions};
use sealstone_block_e2e::{KeyEpoch, UnitId, UnitKey, UnitKeyRing};
use sealstone_block_protection::ProtectedBlock;
use sealstone_initiator::chap::{ChapAccount, ChapSecret};
use sealstone_initiator::{
    Environment as _, INITIATOR_NAME, Proof, Proofs, SystemEnvironment, TargetUrl, TcpDial,
};
use serde_json::Value;

use super::level::BenchLevel;
use crate::Outcome;
use crate::daemon::Osd;
use crate::process::whole_cpu_s;

/// CHAP account of all clients.
pub(super) const ACCOUNT: &str = "bench";
pub(super) const SECRET: &str = "secret of the bench";
/// Metric of the device with the space of its objects.
const USED_METRIC: &str = "sealstone_osd_used_bytes";
/// Size of a unit; thin. The version log may have a quarter of it.
const UNIT_SIZE: &str = "2G";

/// Returns the name of the unit with these blocks.
pub(super) const fn unit_name(block: ProtectedBlock) -> &'static str {
    match block {
        ProtectedBlock::B512 => "b512",
        ProtectedBlock::B4096 => "b4096",
    }
}

/// A running device of one level, with a unit for each block size.
pub(super) struct LevelDevice {
    pub(super) level: &'static BenchLevel,
    osd: Osd,
    binary: PathBuf,
}

/// A disk as one client sees it.
pub(super) enum BenchDisk {
    /// A block unit.
    Unit(BlockUnitClient, FlushCursor),
    /// An end-to-end protected disk on a unit. Its root is in memory.
    EndToEnd(E2eDisk<UnitMedium, MemoryRootStore>, FlushCursor),
}

/// Writes a file that only its owner can read.
pub(super) fn write_private(path: &Path, content: &str) -> Outcome {
    fs::write(path, content)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}

impl LevelDevice {
    /// Formats a device in a folder of its own and starts it.
    pub(super) fn start(binary: &Path, folder: &Path, level: &'static BenchLevel) -> Outcome<Self> {
        let access = folder.join("access");
        if !access.exists() {
            let rule = format!(
                "[[initiator]]\nnames = [\"{INITIATOR_NAME}\"]\nuser = \"{ACCOUNT}\"\nsecret = \"{SECRET}\"\n"
            );
            write_private(&access, &rule)?;
        }
        let options = level.create_options();
        let unit = |block: ProtectedBlock, bytes: &'static str| {
            let mut unit = vec![unit_name(block), "--size", UNIT_SIZE, "--block-size", bytes];
            unit.extend(options.iter().map(String::as_str));
            unit
        };
        let units = [unit(ProtectedBlock::B4096, "4096"), unit(ProtectedBlock::B512, "512")];
        let access = access.to_str().ok_or("the folder has a name that is not UTF-8")?;
        // The folder gives the device its name, which has no plus.
        let data = folder.join(level.name.replace('+', "-"));
        let osd =
            Osd::with_units(binary, &data, &units, &["--access-file", access, "--metrics", "127.0.0.1:0"])?;
        Ok(Self { level, osd, binary: binary.to_owned() })
    }

    /// Returns the URL of a unit.
    pub(super) fn url(&self, block: ProtectedBlock) -> Outcome<String> {
        let lun = match block {
            ProtectedBlock::B4096 => 1,
            ProtectedBlock::B512 => 2,
        };
        let base = self.osd.url.strip_suffix("/0").ok_or("the OSD is not LUN 0")?;
        Ok(format!("{base}/{lun}"))
    }

    /// Opens a session of a new client with a unit.
    pub(super) async fn connect(&self, block: ProtectedBlock) -> Outcome<BenchDisk> {
        let url: TargetUrl = self.url(block)?.parse()?;
        let mut options = UnitClientOptions::new(&SystemEnvironment);
        let account = ChapAccount { name: ACCOUNT.to_owned(), secret: ChapSecret::new(SECRET.as_bytes())? };
        options.session.proofs = Proofs::always(Proof::new(account, None));
        options.session.protection = self.level.settings(block);
        let dial = Arc::new(TcpDial::new(&url));
        let unit = BlockUnitClient::open(dial, &url, &SystemEnvironment, &options).await?;
        if !self.level.is_end_to_end {
            let cursor = unit.flush_cursor();
            return Ok(BenchDisk::Unit(unit, cursor));
        }
        let (mut id, mut key) = ([0; 16], [0; 32]);
        SystemEnvironment.fill_random(&mut id);
        SystemEnvironment.fill_random(&mut key);
        let keys = Arc::new(UnitKeyRing::new(UnitId(id), KeyEpoch(1), UnitKey::new(key), fast_aead)?);
        let (medium, roots) = (UnitMedium::new(unit), MemoryRootStore::default());
        E2eDisk::format(&medium, &roots, &keys).await?;
        let (disk, _) = E2eDisk::open(medium, roots, keys, E2eOptions::default()).await?;
        let cursor = disk.flush_cursor();
        Ok(BenchDisk::EndToEnd(disk, cursor))
    }

    /// Returns the CPU seconds of the device so far.
    pub(super) fn cpu_s(&self) -> Outcome<f64> {
        Ok(whole_cpu_s(self.osd.pid())?)
    }

    /// Returns its folder.
    pub(super) fn data(&self) -> &Path {
        &self.osd.data
    }

    /// Returns what `block status` prints about a unit.
    pub(super) fn status(&self, block: ProtectedBlock) -> Outcome<Value> {
        let arguments = ["--json", "block", "status", unit_name(block), "--data"];
        let output = Command::new(&self.binary).args(arguments).arg(&self.osd.data).output()?;
        if !output.status.success() {
            return Err(format!("block status: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Returns the space that all objects of the device take, in bytes.
    pub(super) fn used_bytes(&self) -> Outcome<u64> {
        let mut stream = TcpStream::connect(self.osd.field("metrics")?)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        let line =
            page.lines().find(|line| line.starts_with(USED_METRIC)).ok_or("no metric of used space")?;
        let value: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
        Ok(value as u64)
    }

    pub(super) fn stop(self) -> Outcome {
        self.osd.stop()
    }
}

impl BenchDisk {
    /// Fills a buffer from `offset` on.
    pub(super) async fn read(&self, offset: u64, buffer: Vec<u8>) -> Outcome<Vec<u8>> {
        Ok(match self {
            Self::Unit(unit, _) => unit.read_into(offset, buffer).await?,
            Self::EndToEnd(disk, _) => disk.read_into(offset, buffer).await?,
        })
    }

    pub(super) async fn write(&self, offset: u64, data: Bytes) -> Outcome {
        match self {
            Self::Unit(unit, _) => Ok(unit.write(offset, data, false).await?),
            Self::EndToEnd(disk, _) => Ok(disk.write(offset, data, false).await?),
        }
    }

    /// Makes blocks unwritten.
    pub(super) async fn unmap(&self, offset: u64, length: u64) -> Outcome {
        match self {
            Self::Unit(unit, _) => Ok(unit.unmap(offset, length, false).await?),
            Self::EndToEnd(disk, _) => Ok(disk.unmap(offset, length, false).await?),
        }
    }

    /// Makes all acknowledged writes durable.
    pub(super) async fn flush(&self) -> Outcome {
        match self {
            Self::Unit(unit, cursor) => Ok(unit.flush(cursor).await?),
            Self::EndToEnd(disk, cursor) => Ok(disk.flush(cursor).await?),
        }
    }
}
