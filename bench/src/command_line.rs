//! The parts of the program, as commands.
//!
//! Does: lists the parts with their options.
//! Does not: run them; `main` does.

use clap::Subcommand;

use crate::active::Active;
use crate::files::Files;
use crate::lazy::Lazy;
use crate::settings::{Aims, Commands, Logins, Run, Stores, Trust};

/// The parts.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure one device on loopback: every method, size and depth.
    Run(Run),
    /// Measure single commands on loopback: latency of keys, attributes, creation, lists; memory of
    /// idle connections and cold objects.
    Commands(Commands),
    /// Measure an honest client during each attack of a hostile one, and the memory of an idle
    /// connection.
    Fairness(Run),
    /// Measure small requests beside large ones under ALLDATA, with each scheduling switch of the
    /// device on and off; `--only` takes setting names separated by `;`.
    Pace(Run),
    /// Rotate working keys of a thousand partitions at the metadata server while clients put and
    /// get; takes `--json`.
    Rotation(Run),
    /// Measure the time until the last of three devices refuses: one file, one partition, users
    /// with more and more files; takes `--json`.
    Revocation(Run),
    /// Measure each defence against a downgraded security method: writes, rewrites and reads, and
    /// the cost of a CDB.
    Defences(Run),
    /// Measure the cost of trust, as in the OBS paper's Tables 1 to 3: capability key, credential,
    /// SET KEY at each level, SET MASTER KEY, logins (from the file of `logins`), metadata
    /// operations with each method.
    Trust(Trust),
    /// Measure copies from the page cache to a socket, without a device.
    Copies(Run),
    /// List all targets, from the files that `make bench` wrote to a folder.
    Aims(Aims),
    /// Measure logins and logouts at a metadata server: the paper's login and the modern one.
    Logins(Logins),
    /// Measure files through a mount and the client library, compared with plain FUSE on the same
    /// disk and with other file systems.
    Files(Files),
    /// Measure one record read, written and deleted in each metadata store, and one entry in the
    /// LDAP server alone, as in the OBS paper.
    Stores(Stores),
    /// Measure functions that run on devices, as in the ASF paper's Figures 4 to 13.
    Active(Active),
    /// Measure the levels of protection of block units, as in the LAZY paper's Figures 2 and 6 and
    /// Tables 3 and 4, with M-lazy and end-to-end protected disks.
    Lazy(Lazy),
}
