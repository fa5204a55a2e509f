//! `osd clock` and `mds clock`.

use std::path::PathBuf;

use clap::Subcommand;

/// Subcommands of `osd clock` and `mds clock`.
#[derive(Debug, Subcommand)]
pub(crate) enum Clock {
    /// Show the stored clock and the wall clock of this machine.
    #[command(after_help = "\
Examples:
  sealstone osd clock show --data /srv/osd1
  sealstone --json mds clock show --data /srv/mds")]
    Show {
        /// Folder of the device or the server.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Set the clock to the wall clock of this machine, also if it goes back. For a clock that was
    /// wrong for a long time.
    #[command(after_help = "\
Examples:
  sealstone osd clock reset --data /srv/osd1
  sealstone mds clock reset --data /srv/mds
A running daemon resets at once, a stopped one at its next start. Replayed commands are still refused. Credentials and
sessions that expired between the two times are valid again until they expire; \
`sealstone mds keys rotate working --revoke` revokes the credentials.")]
    Reset {
        /// Folder of the device or the server.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
}
