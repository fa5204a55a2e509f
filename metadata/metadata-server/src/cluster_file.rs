//! The file from which clients take the address and the pin of a metadata server.

use std::path::Path;

use sealstone_failure::secret_file::read_bounded;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use serde::{Deserialize, Serialize};

/// Name of the file, in the folder of the server.
pub const CLUSTER_FILE: &str = "cluster.toml";

/// The cluster file: address and pin of a metadata server. `up` and `mds serve` write it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// `HOST:PORT` of the metadata server.
    pub mds: String,
    /// `sha256:` and the SHA-256 of its certificate.
    pub pin: String,
}

impl ClusterFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, or is no cluster file.
    pub fn read(path: &Path) -> Outcome<Self> {
        toml::from_str(&read_bounded(path)?).map_err(|error| {
            Failure::usage(error.message()).at(path.shown()).hint("`up` and `mds serve` write this file")
        })
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn text(&self) -> String {
        let body = toml::to_string(self).expect("two strings serialise");
        format!("# Address and pin of the metadata server. Not secret, but it must not be altered.\n{body}")
    }
}
