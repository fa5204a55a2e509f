//! What commands print: text for people, JSON for scripts, nothing else on standard output.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// Where a command's result goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
}

impl Output {
    pub(crate) const fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet }
    }

    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// The result: one JSON line, or the text.
    pub(crate) fn result(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        let line = if self.json { to_json(value)? } else { text() };
        print_line(&line)
    }

    /// The result where a person needs none.
    pub(crate) fn done(self, value: &impl Serialize) -> Outcome {
        if self.json { print_line(&to_json(value)?) } else { Ok(()) }
    }

    /// A remark for people, on standard error.
    pub(crate) fn remark(self, text: impl AsRef<str>) {
        if !self.json && !self.quiet {
            eprintln!("{}", text.as_ref());
        }
    }

    /// The one line that tells of a failure.
    pub(crate) fn failure(self, failure: &Failure) {
        if self.json {
            let value = serde_json::json!({
                "error": { "kind": failure.kind.name(), "message": failure.message, "next_step": failure.next_step }
            });
            eprintln!("{value}");
        } else {
            eprintln!("sealstone: {failure}");
        }
    }

    /// A progress bar over bytes; hidden where nobody watches.
    pub(crate) fn progress(self, total_bytes: Option<u64>, what: &str) -> ProgressBar {
        let bar = match total_bytes {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        if self.json || self.quiet || !io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = if total_bytes.is_some() {
            "{msg:24!} [{bar:30}] {bytes:>10}/{total_bytes:10} {binary_bytes_per_sec:>12} {eta:>4}"
        } else {
            "{msg:24!} {spinner} {bytes:>10} {binary_bytes_per_sec:>12}"
        };
        bar.set_style(ProgressStyle::with_template(template).expect("a fixed template parses").progress_chars("=> "));
        bar.set_message(what.to_owned());
        bar
    }
}

fn to_json(value: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(value).map_err(Failure::operation)
}

/// Prints a line; a reader that went away (`| head`) is no failure.
fn print_line(line: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Failure::from),
    }
}

/// Bytes as people read them: `1.5 MiB`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Sizes as people write them: `10G`, `256MiB`, `4096`; binary units.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| format!("'{text}' is not a size such as 10G or 512MiB"))?;
    let factor_log2 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        unit => return Err(format!("'{unit}' is not a unit; use K, M, G, T or P (powers of 1024)")),
    };
    number.checked_mul(1 << factor_log2).ok_or_else(|| format!("'{text}' is more than 64 bits of bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What people write is what they mean, and overflow is said.
    #[test]
    fn sizes_parse_in_binary_units() {
        assert_eq!(parse_size("10G"), Ok(10 << 30));
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert!(parse_size("99999999999P").is_err());
        assert!(parse_size("12 parsecs").is_err());
        assert!(parse_size("").is_err());
    }

    /// Rounding never shows 1024 of a unit as zero of the next.
    #[test]
    fn bytes_read_well() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(256 << 20), "256.0 MiB");
    }
}
