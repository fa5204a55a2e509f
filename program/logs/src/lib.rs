//! Logs of programs on standard error: text for terminals, JSON lines otherwise.
//!
//! Does: filters, formats, escapes and limits lines.
//! Does not: rotate files; standard error belongs to the process that started the program.
//! Contract: peers can neither flood the log nor write control characters to a terminal.

mod limit;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};

use sealstone_failure::text::printable_json;
use sealstone_mds_protocol::is_printable;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::limit::{LineLimit, LineWriter};

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
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

/// Starts logging for the process; a later call has no effect. `SEALSTONE_LOG` takes a filter such
/// as `info,sealstone_osd_device=debug`.
pub fn start(format: LogFormat, default_filter: &str) {
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

/// Writer of log lines that escapes characters that are not printable, in JSON lines by JSON
/// escapes.
#[derive(Debug)]
pub(crate) struct LogWriter<W> {
    /// Destination of the lines.
    pub(crate) out: W,
    /// Whether lines are JSON.
    pub(crate) json: bool,
    /// Whether lines have colours: then escape characters are kept; the formatter escapes those of
    /// foreign text.
    pub(crate) colours: bool,
}

impl<W> LogWriter<W> {
    fn clean<'a>(&self, line: &'a str) -> Cow<'a, str> {
        if self.json {
            return Cow::Owned(printable_json(line.to_owned()));
        }
        let stays = |c: char| matches!(c, '\n' | '\t') || (self.colours && c == '\u{1B}') || is_printable(c);
        if line.chars().all(stays) {
            return Cow::Borrowed(line);
        }
        let mut out = String::with_capacity(line.len() + 16);
        for c in line.chars() {
            if stays(c) {
                out.push(c);
            } else {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(out, "\\x{byte:02x}");
                }
            }
        }
        Cow::Owned(out)
    }
}

impl<W: io::Write> io::Write for LogWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let clean = self.clean(&text).into_owned();
        self.out.write_all(clean.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_keep_only_colour_escapes() {
        let writer = |json, colours| LogWriter { out: (), json, colours };
        let plain = writer(false, false);
        assert_eq!(plain.clean("x\u{1B}[1m\u{2066}\n"), "x\\x1b[1m\\xe2\\x81\\xa6\n");
        assert_eq!(writer(false, true).clean("\u{1B}[1m\n"), "\u{1B}[1m\n");
        assert_eq!(writer(true, false).clean("\"\u{2028}\"\n"), "\"\\u2028\"\n");
    }
}
