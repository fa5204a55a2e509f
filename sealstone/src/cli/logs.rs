//! Format of log lines, as the option `--log-format` names it.

use clap::ValueEnum;
use sealstone_logs::LogFormat;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogName {
    /// Text if standard error is a terminal, otherwise JSON.
    Auto,
    /// One JSON object per line.
    Json,
    /// Text for terminals.
    Text,
}

impl From<LogName> for LogFormat {
    fn from(name: LogName) -> Self {
        match name {
            LogName::Auto => Self::Auto,
            LogName::Json => Self::Json,
            LogName::Text => Self::Text,
        }
    }
}
