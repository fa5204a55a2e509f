//! Logs on standard error: text for terminals, JSON lines otherwise.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::log_limit::{LineLimit, LineWriter};
use crate::text::LogWriter;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text if standard error is a terminal, otherwise JSON.
    Auto,
    /// One JSON object per line.
    Json,
    /// Text for terminals.
    Text,
}

/// Standard error without errors: a full or closed one must not end a thread or a command.
struct LossyStderr;

impl io::Write for LossyStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::Write::write_all(&mut io::stderr().lock(), bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::Write::flush(&mut io::stderr().lock());
        Ok(())
    }
}

/// Starts logging; `SEALSTONE_LOG` takes a filter such as `info,sealstone_osd_device=debug`.
pub(crate) fn start(format: LogFormat, default_filter: &str) {
    let filter = EnvFilter::try_from_env("SEALSTONE_LOG").unwrap_or_else(|_| EnvFilter::new(default_filter));
    let json = match format {
        LogFormat::Auto => !io::stderr().is_terminal(),
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let colours = !json && io::stderr().is_terminal();
    // Escaping comes first, so that the limit applies to the written bytes.
    let writer = move || LogWriter { out: LineWriter { out: LossyStderr, json }, json, colours };
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_target(true);
    let limited = tracing_subscriber::registry().with(filter).with(LineLimit::default());
    // A second call (several daemons in one process) keeps the first settings.
    let _ = if json {
        limited.with(lines.json().flatten_event(true)).try_init()
    } else {
        limited.with(lines.with_ansi(colours)).try_init()
    };
}
