//! `sealstone block …`: block units of a device.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sealstone_block_disks::UnitProtectionChoice;
use sealstone_block_protection::ProtectedBlock;
use sealstone_channel::Pin;
use sealstone_device_server::END_TO_END;
use sealstone_units::parse_size;

#[derive(Debug, Subcommand)]
pub(crate) enum Block {
    /// Create a block unit; a running device exports it at once.
    #[command(after_help = "\
Examples:
  sealstone block create vm1 --data /srv/osd1 --size 20G
  sealstone block create safe --data /srv/osd1 --size 20G --block-size 4096 --protect lazy
  sealstone block create old1 --data /srv/osd1 --size 20G --protect paper:S2-1u
  sealstone block create old --data /srv/osd1 --size 1T --block-size 4096 --lun 7 --thick
  sealstone block create vm2 --data /srv/osd1 --size 20G --protect
  sealstone block create vm3 --data /srv/osd1 --size 20G --protect e2e
A unit is a plain disk: every initiator that can log in to the target can read and write it. It is exported beyond loopback
only if the device requires CHAP, has a list of initiators, or runs with --insecure-block.")]
    Create {
        /// Name of the unit: 1 to 64 of a-z, 0-9, '.', '-', '_'.
        name: String,
        /// Folder of the device, running or not.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Size, a multiple of the block size.
        #[arg(long, value_parser = parse_size, value_name = "SIZE")]
        size: u64,
        /// Block size: 512 or 4096.
        #[arg(long, default_value = "512", value_parser = parse_size, value_name = "BYTES")]
        block_size: u64,
        /// Logical unit number, 1 to 255 [default: the lowest free one].
        #[arg(long, value_name = "N")]
        lun: Option<u16>,
        /// Allocate all space now.
        #[arg(long)]
        thick: bool,
        /// Removable medium: initiators can eject and load it.
        #[arg(long)]
        removable: bool,
        /// Make every write durable before it is acknowledged; initiators cannot enable the write
        /// cache.
        #[arg(long)]
        write_through: bool,
        /// none; e2e: the device can neither read nor change data; without a LEVEL, e2e. It needs a
        /// running device and a session with the metadata server. Or the least protection of
        /// sessions, which needs CHAP or TLS: lazy (clients encrypt, the device verifies within a
        /// second), or a level of the paper: paper:S1-1u (MAC), paper:S2-1u (encryption and MAC),
        /// paper:S1-2 (lazy MAC), paper:S2-3 (lazy decryption), paper:S2-5 (both). At the last
        /// three, blocks are stored with keys of their writers.
        #[arg(
            long,
            default_value = "none",
            default_missing_value = END_TO_END,
            num_args = 0..=1,
            value_parser = UnitProtectionChoice::parse,
            value_name = "LEVEL"
        )]
        protect: UnitProtectionChoice,
        /// Use the paper's own profile of a level with keys of blocks, to reproduce the paper.
        /// Insecure: lost writes are not detected.
        #[arg(long, requires = "protect")]
        insecure_paper_profile: bool,
    },
    /// Create your key for end-to-end protected disks if you have none, and show its digest.
    #[command(after_help = "\
Example:
  sealstone block key
The secret key is beside the session file. Without it, disks that no other user has are lost: keep a copy.")]
    Key,
    /// Give a user the key of an end-to-end protected disk (its owner).
    #[command(after_help = "\
Example:
  sealstone block grant vm2 bob
With --key the metadata server cannot substitute another key for that of the user.")]
    Grant {
        /// Name of the disk.
        disk: String,
        /// The user; `block key` was run by the user before.
        user: String,
        /// Digest that `block key` shows to that user: sha256:HEX.
        #[arg(long, value_name = "DIGEST")]
        key: Option<String>,
    },
    /// Take the key of an end-to-end protected disk from a user (its owner, administrators).
    #[command(after_help = "\
Example:
  sealstone block revoke vm2 bob
The user may have kept the key: `block rotate` protects all that is written from then on.")]
    Revoke {
        /// Name of the disk.
        disk: String,
        /// The user.
        user: String,
    },
    /// Replace the key of an end-to-end protected disk, or of a unit with --protect lazy. Old
    /// blocks of a disk get it in the background.
    #[command(after_help = "\
Examples:
  sealstone block rotate vm2
  sealstone block rotate safe --data /srv/osd1
New data of a disk get the new key when it is attached again, those of a unit at once. Old data of a disk get it then in
the background, in at most half of the time: `block status` shows the oldest key in use. Those of a unit keep the old
key until they are written.")]
    Rotate {
        /// Name of the disk or unit.
        disk: String,
        /// Folder of the running device that has the unit.
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
    /// Change a block unit.
    #[command(after_help = "\
Examples:
  sealstone block set vm1 --data /srv/osd1 --write-through
  sealstone block set vm1 --data /srv/osd1 --write-through=false
Initiators receive MODE PARAMETERS CHANGED. An initiator that has read that the write cache is off keeps durable writes
until it reads the caching mode page again.")]
    Set {
        /// Name of the unit.
        name: String,
        /// Folder of the device, running or not.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Make every write durable before it is acknowledged; false: initiators choose.
        #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, required = true)]
        write_through: Option<bool>,
    },
    /// Show one block unit.
    #[command(after_help = "\
Example:
  sealstone block show vm1 --data /srv/osd1")]
    Show {
        /// Name of the unit.
        name: String,
        /// Folder of the device, running or not.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
    },
    /// Show the protection of a block unit or of end-to-end protected disks.
    #[command(after_help = "\
Examples:
  sealstone block status vm1 --data /srv/osd1
  sealstone block status
  sealstone --json block status vm2 | jq .failures
With --data: unverified writes, versions and errors of a unit, from its device. Without it: users, key, lease and integrity
failures of disks, from the metadata server.")]
    Status {
        /// Name of the unit or disk [default: all end-to-end protected disks of the user].
        name: Option<String>,
        /// Folder of the device that has the unit, running or not.
        #[arg(long, value_name = "DIR", requires = "name")]
        data: Option<PathBuf>,
    },
    /// List block units.
    #[command(after_help = "\
Example:
  sealstone block list --data /srv/osd1")]
    #[command(visible_alias = "ls")]
    List {
        /// Folder of the device, running or not.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
    },
    /// Export a block unit as an NBD server or as a file, until a signal ends it.
    #[command(after_help = "\
Examples:
  sealstone block attach vm1 --data /srv/osd1 --nbd unix:/run/user/1000/vm1.sock
  sealstone block attach iscsi://10.0.0.7/iqn.2026-11.org.sealstone:osd.osd1/1 --nbd unix:vm1.sock
  sealstone block attach safe --data /srv/osd1 --nbd unix:vm1.sock --chap-file vm1.chap
  sealstone block attach vm2 --data /srv/osd1 --nbd unix:vm2.sock --protect e2e
  qemu-img info 'nbd+unix:///vm1?socket=/run/user/1000/vm1.sock'
  sealstone block attach vm1 --data /srv/osd1 --mount-file /srv/vm1.img
  losetup --find --show --direct-io=on /srv/vm1.img
The command stays in the foreground and prints one line when the export is ready. SIGTERM ends it: requests in flight end,
and acknowledged writes are flushed. While the device restarts, requests wait (--timeout).")]
    Attach(AttachArgs),
    /// Remove a block unit and its data, with its record if it is an end-to-end protected disk.
    #[command(after_help = "\
Examples:
  sealstone block rm vm1 --data /srv/osd1
  sealstone block rm vm2 --record
The record of a disk is removed in the session of its owner or of an administrator. Without that, the unit is removed and
the record remains, until --record removes it. Without its record and its keys, a disk cannot be opened.")]
    Rm {
        /// Name of the unit.
        name: String,
        /// Folder of the device, running or not.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR", required_unless_present = "record")]
        data: Option<PathBuf>,
        /// Remove only the record and the keys of a disk at the metadata server, such as those of a
        /// lost unit.
        #[arg(long, conflicts_with = "force")]
        record: bool,
        /// Remove it even if initiators have registered or reserved it.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArgs {
    /// Name of the unit, with --data, or its URL: `iscsi://HOST[:PORT]/TARGET/LUN`.
    #[arg(value_name = "NAME|URL")]
    pub(crate) unit: String,
    /// Folder of the running device that has the unit.
    #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Socket of the NBD server: unix:PATH. Its folder must not be writable by other users.
    #[arg(long, value_parser = unix_socket, value_name = "unix:PATH", required_unless_present = "mount_file")]
    pub(crate) nbd: Option<PathBuf>,
    /// Mount the unit as one file on this empty file, which is created if it does not exist. Needs
    /// FUSE.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["nbd", "export"])]
    pub(crate) mount_file: Option<PathBuf>,
    /// Refuse writes.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Name of the export [default: the name of the unit, or disk for a URL].
    #[arg(long, value_name = "NAME")]
    pub(crate) export: Option<String>,
    /// How long requests wait for an unavailable device before they fail, in seconds; 0: forever.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=86_400))]
    pub(crate) timeout: u32,
    /// Number of sessions to the device.
    #[arg(long, default_value = "1", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) sessions: u8,
    /// iSCSI name under which it logs in, for the access file of the device.
    #[arg(long, value_name = "IQN")]
    pub(crate) initiator_name: Option<String>,
    /// Certificate pin of the device, for TLS: sha256:HEX.
    #[arg(long, value_name = "PIN")]
    pub(crate) pin: Option<Pin>,
    /// e2e: refuse a unit without end-to-end protection. none: attach a unit without it, even if
    /// the metadata server has a record of a protected disk. Or the protection of the sessions, for
    /// the URL of a unit or to exceed its least level: lazy, paper:S1-1u, paper:S2-1u, paper:S1-2,
    /// paper:S2-3, paper:S2-5 [default: that of the unit].
    #[arg(long, value_parser = UnitProtectionChoice::parse, value_name = "LEVEL")]
    pub(crate) protect: Option<UnitProtectionChoice>,
    /// Block size of the protected unit, for a URL: 512 or 4096.
    #[arg(long, default_value = "512", requires = "protect", value_parser = protected_block, value_name = "BYTES")]
    pub(crate) protect_block: ProtectedBlock,
    /// Use the paper's own profile, for the URL of a unit that was created with it.
    #[arg(long, requires = "protect")]
    pub(crate) insecure_paper_profile: bool,
}

/// Parses the block size of a protected unit.
fn protected_block(text: &str) -> Result<ProtectedBlock, String> {
    match text {
        "512" => Ok(ProtectedBlock::B512),
        "4096" => Ok(ProtectedBlock::B4096),
        _ => Err("block sizes are 512 and 4096".into()),
    }
}

/// Parses the address of an NBD server.
fn unix_socket(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err("an NBD server has a Unix socket: unix:PATH".into()),
    }
}
