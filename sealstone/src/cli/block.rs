//! `sealstone block …`: block units of a device.

use std::path::PathBuf;

use clap::Subcommand;

use crate::output::parse_size;

#[derive(Debug, Subcommand)]
pub(crate) enum Block {
    /// Create a block unit; a running device exports it at once.
    #[command(after_help = "\
Examples:
  sealstone block create vm1 --data /srv/osd1 --size 20G
  sealstone block create old --data /srv/osd1 --size 1T --block-size 4096 --lun 7 --thick
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
    /// Remove a block unit and its data.
    #[command(after_help = "\
Example:
  sealstone block rm vm1 --data /srv/osd1")]
    Rm {
        /// Name of the unit.
        name: String,
        /// Folder of the device, running or not.
        #[arg(long, env = "SEALSTONE_OSD_DATA", value_name = "DIR")]
        data: PathBuf,
        /// Remove it even if initiators have registered or reserved it.
        #[arg(long)]
        force: bool,
    },
}
