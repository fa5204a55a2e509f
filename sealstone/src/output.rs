//! Printing of results and failures: text, or JSON with `--json`.
//!
//! Contract: standard output has the result and nothing else. Every JSON line is an object that has
//! `schema_version` and `command`.
//! Truth: docs/reference/json.md.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sealstone_client::FileKind;
use sealstone_failure::text::printable_json;
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_mds_protocol::{printable, printable_lines};
use serde::Serialize;
use serde_json::{Value, json};

/// Version of the JSON that `--json` prints. A higher number is incompatible: see
/// docs/reference/json.md.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Signal number that a closed standard output reports, as if SIGPIPE had ended the command.
const SIGPIPE: u8 = 13;

/// Format of results, and the command that prints them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    /// Words of the command, such as `user add`; empty if the command line has none.
    command: &'static str,
}

impl Output {
    pub(crate) const fn new(json: bool, quiet: bool, command: &'static str) -> Self {
        Self { json, quiet, command }
    }

    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints the result: one JSON line, or the text.
    pub(crate) fn result(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        let line = if self.json { self.to_json(value)? } else { printable_lines(&text()).into_owned() };
        print_line(&line)
    }

    /// Prints the ready line of a daemon. The daemon continues if that fails.
    pub(crate) fn ready(self, value: &impl Serialize, text: impl FnOnce() -> String) {
        if let Err(error) = self.result(value, text) {
            tracing::warn!(%error, "cannot print the ready line; continuing");
        }
    }

    /// Prints the result under `--json` only.
    pub(crate) fn done(self, value: &impl Serialize) -> Outcome {
        if self.json { print_line(&self.to_json(value)?) } else { Ok(()) }
    }

    /// Prints a remark on standard error, except with `--json` or `--quiet`.
    pub(crate) fn remark(self, text: impl AsRef<str>) {
        if !self.json && !self.quiet {
            print_error(&printable_lines(text.as_ref()));
        }
    }

    /// Prints several lines about a wrong command line on standard error.
    pub(crate) fn usage(self, text: &str) {
        print_error(printable_lines(text).trim_end());
    }

    /// Prints one failure of a command that continued. Under `--json` the result lists it.
    pub(crate) fn complain(self, text: &str) {
        if !self.json {
            print_error(&format!("{}: {}", self.prefix(), printable(text)));
        }
    }

    /// Sets the next step of a failure by its kind and the command, unless it has one.
    pub(crate) fn with_default_hint(self, failure: Failure) -> Failure {
        // Some messages of the daemons' crates have the next step themselves.
        if failure.message.contains("; run `") {
            return failure;
        }
        let noun = self.command.split(' ').next().unwrap_or_default();
        let next_step = match (failure.kind, noun) {
            (FailureKind::Usage, _) => format!("sealstone {} --help", self.command),
            (FailureKind::NotFound, "user" | "enrol") => "`sealstone user list` shows the accounts".into(),
            (FailureKind::NotFound, "group") => {
                "`sealstone group list` and `sealstone user list` show what exists".into()
            }
            (FailureKind::NotFound, "osd" | "mds") => "`sealstone df` shows the devices".into(),
            (FailureKind::NotFound, "fn") => "`sealstone fn ls` lists the functions of /.functions".into(),
            (FailureKind::NotFound, "job") => "`sealstone job ls` shows the jobs of this session".into(),
            (FailureKind::NotFound, "block") => "`sealstone block list` shows the units".into(),
            (FailureKind::NotFound, "quota") => {
                "`sealstone quota list` shows users and trees with quotas".into()
            }
            (FailureKind::NotFound, "chown" | "chgrp" | "revoke" | "audit") => {
                "`sealstone ls` shows files, `sealstone user list` accounts".into()
            }
            (FailureKind::NotFound, _) => "`sealstone ls` shows what a directory has".into(),
            (FailureKind::Denied, _) => "`sealstone whoami` shows your account and role".into(),
            (FailureKind::Operation | FailureKind::Signal(_), _) => return failure,
        };
        failure.or_hint(next_step)
    }

    /// Prints the failure of one part of a command that continues. Under `--json` the result lists
    /// it.
    pub(crate) fn part_failure(self, failure: &Failure) {
        self.complain(&failure.to_string());
    }

    /// Prints the failure of the command: one line on standard error.
    pub(crate) fn failure(self, failure: &Failure) {
        // As a program that SIGPIPE ends: no message.
        if failure.kind == FailureKind::Signal(SIGPIPE) {
            return;
        }
        if self.json {
            let error = json!({ "error": failure.json() });
            print_error(&printable_json(self.envelope(error).to_string()));
        } else if !failure.reported {
            print_error(&format!("{}: {failure}", self.prefix()));
        }
    }

    fn prefix(self) -> String {
        ["sealstone", self.command].join(" ").trim_end().to_owned()
    }

    /// Adds the fields that every JSON line has.
    fn envelope(self, mut value: Value) -> Value {
        debug_assert!(value.is_object(), "a result is an object: {value}");
        if let Value::Object(fields) = &mut value {
            fields.insert("schema_version".into(), SCHEMA_VERSION.into());
            fields.insert("command".into(), self.command.into());
        }
        value
    }

    fn to_json(self, value: &impl Serialize) -> Outcome<String> {
        let value = serde_json::to_value(value).map_err(Failure::operation)?;
        Ok(printable_json(self.envelope(value).to_string()))
    }

    /// Returns a progress bar over bytes; hidden with `--json` or `--quiet`, and where standard
    /// error is no terminal.
    pub(crate) fn progress(self, total_bytes: Option<u64>, what: &str) -> ProgressBar {
        let bar = match total_bytes {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        if self.json || self.quiet || !io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = if total_bytes.is_some() {
            "{msg:16!} [{wide_bar}] {bytes:>10}/{total_bytes:10} {binary_bytes_per_sec:>12} {eta:>4}"
        } else {
            "{msg:24!} {spinner} {bytes:>10} {binary_bytes_per_sec:>12}"
        };
        bar.set_style(
            ProgressStyle::with_template(template).expect("a fixed template parses").progress_chars("=> "),
        );
        bar.set_message(printable(what).into_owned());
        bar
    }
}

impl Output {
    /// Returns a progress bar over a count; hidden where [`Output::progress`] is.
    pub(crate) fn counting(self, total: u64, what: &str) -> ProgressBar {
        let bar = ProgressBar::new(total);
        if self.json || self.quiet || !io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = "{msg:16!} [{wide_bar}] {pos:>10}/{len:10} {per_sec:>12} {eta:>4}";
        bar.set_style(
            ProgressStyle::with_template(template).expect("a fixed template parses").progress_chars("=> "),
        );
        bar.set_message(printable(what).into_owned());
        bar
    }
}

/// Prints a line on standard error. A full or closed one must not change how a command ends.
fn print_error(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints a line on standard output.
fn print_line(line: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(stdout_failure)
}

/// Prints bytes unchanged on standard output.
pub(crate) fn print_bytes(bytes: &[u8]) -> Outcome {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(stdout_failure)
}

/// Returns the failure of a write to standard output. A closed pipe ends a command as SIGPIPE does:
/// silent, exit code 141.
pub(crate) fn stdout_failure(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::new(FailureKind::Signal(SIGPIPE), "standard output is closed");
    }
    Failure::from(error).at("standard output").hint("the result is incomplete; run the command again")
}

/// Maximum number of digits after the point of a size.
const FRACTION_DIGITS_MAX: usize = 9;

/// Parses a size in bytes: a number with an optional fraction and an optional unit. `K` to `P` and
/// `KiB` to `PiB` are powers of 1024, `KB` to `PB` powers of 1000. A fraction of a byte is rounded
/// down.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let malformed = || format!("'{text}' is not a size such as 10G, 1.5TiB or 500MB");
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..number_end], text[number_end..].trim());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let pointed = number.contains('.');
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || (pointed && !is_number(fraction)) || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(malformed());
    }
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        _ => {
            return Err(format!(
                "'{unit}' is not a unit; K, M, G, T, P and KiB to PiB are powers of 1024, KB to PB of 1000"
            ));
        }
    };
    if pointed && factor == 1 {
        return Err(malformed());
    }
    let too_large = || format!("'{text}' is more than 64 bits of bytes");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let scale = 10u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| malformed())? };
    let bytes = u128::from(whole) * u128::from(factor) + fraction * u128::from(factor) / scale;
    u64::try_from(bytes).map_err(|_| too_large())
}

/// Formats a time in UTC, `2026-11-20 21:50`. The argument is in milliseconds since 1970 and may be
/// negative.
pub(crate) fn utc(ms: impl TryInto<i64>) -> String {
    let minutes = ms.try_into().unwrap_or(i64::MAX).div_euclid(60_000);
    let (days, minute) = (minutes.div_euclid(1440), minutes.rem_euclid(1440));
    // Civil date from days since 1970-01-01, counted from 0000-03-01 so that the leap day ends a
    // year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minute / 60, minute % 60)
}

/// Parses a time in UTC, `2026-11-20T21:50Z`, with optional seconds; a blank may replace the `T`.
pub(crate) fn parse_moment(text: &str) -> Result<u64, String> {
    let fail = || format!("'{text}' is not a time in UTC such as 2026-11-20T21:50Z");
    let (date, time) = text.split_once(['T', ' ']).ok_or_else(fail)?;
    let numbers = |part: &str, separator: char, lengths: &[usize]| -> Option<Vec<u64>> {
        let parts: Vec<&str> = part.split(separator).collect();
        let is_number = |(part, length): (&&str, &usize)| {
            part.len() == *length && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        (parts.len() <= lengths.len() && parts.iter().zip(lengths).all(is_number))
            .then(|| parts.iter().filter_map(|part| part.parse().ok()).collect())
    };
    let date = numbers(date, '-', &[4, 2, 2]).ok_or_else(fail)?;
    let time = numbers(time.strip_suffix('Z').unwrap_or(time), ':', &[2, 2, 2]).ok_or_else(fail)?;
    let (&[year, month, day], [hour, minute, rest @ ..]) = (&date[..], &time[..]) else { return Err(fail()) };
    let second = rest.first().copied().unwrap_or(0);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return Err(fail()),
    };
    if year < 1970 || !(1..=days_of_month).contains(&day) || *hour > 23 || *minute > 59 || second > 59 {
        return Err(fail());
    }
    // As in `utc`: the year begins in March, so that the leap day ends it.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let days =
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    Ok((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000)
}

/// Formats a file type and permission bits as `ls -l` does.
pub(crate) fn mode_string(kind: FileKind, mode: u16) -> String {
    let mut text = String::from(match kind {
        FileKind::File => "-",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::CharDevice => "c",
        FileKind::BlockDevice => "b",
    });
    for shift in [6, 3, 0] {
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if mode >> shift & bit != 0 { letter } else { '-' });
        }
        // The set-user, set-group and sticky bits replace an x, as in `ls -l`.
        let (bit, with_x, without) = match shift {
            6 => (0o4000, 's', 'S'),
            3 => (0o2000, 's', 'S'),
            _ => (0o1000, 't', 'T'),
        };
        if mode & bit != 0 {
            let x = text.pop() == Some('x');
            text.push(if x { with_x } else { without });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Includes leap days and the end of a century.
    #[test]
    fn times_format_as_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00");
        assert_eq!(utc(-1), "1969-12-31 23:59");
        assert_eq!(utc(-951_782_400_000i64), "1939-11-04 00:00");
        assert_eq!(utc(951_782_400_000u64), "2000-02-29 00:00");
        assert_eq!(utc(1_792_533_000_000u64), "2026-10-20 21:50");
        assert_eq!(utc(4_107_542_340_000u64), "2100-02-28 23:59");
        assert_eq!(utc(4_107_542_400_000u64), "2100-03-01 00:00");
    }

    #[test]
    fn formatted_times_parse_back() {
        for ms in [0, 951_782_400_000, 1_792_533_000_000, 4_107_542_340_000, 4_107_542_400_000] {
            assert_eq!(parse_moment(&utc(ms)), Ok(ms), "{ms}");
        }
        assert_eq!(parse_moment("2026-10-20T21:50:07Z"), Ok(1_792_533_007_000));
        for bad in
            ["2026-02-29T00:00Z", "2026-13-01T00:00", "2026-1-01T00:00", "2026-10-20", "1969-12-31T00:00"]
        {
            assert!(parse_moment(bad).is_err(), "{bad}");
        }
        assert!(parse_moment("2026-10-20T24:00Z").is_err() && parse_moment("x").is_err());
    }

    #[test]
    fn modes_format_as_letters() {
        assert_eq!(mode_string(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(mode_string(FileKind::File, 0o640), "-rw-r-----");
        assert_eq!(mode_string(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_string(FileKind::Directory, 0o2750), "drwxr-s---");
        assert_eq!(mode_string(FileKind::File, 0o7644), "-rwSr-Sr-T");
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        assert_eq!(parse_size("10G"), Ok(10 << 30));
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("10GB"), Ok(10_000_000_000));
        assert_eq!(parse_size("1.5T"), Ok(3 << 39));
        assert_eq!(parse_size("0.5 kb"), Ok(500));
        assert_eq!(parse_size("16777216T"), Err("'16777216T' is more than 64 bits of bytes".into()));
        for bad in [
            "99999999999P",
            "12 parsecs",
            "",
            "G",
            "1.",
            ".5G",
            "1.5",
            "1.2.3G",
            "-1",
            "1e3",
            "1.0000000001G",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn own_next_step_is_kept() {
        let output = Output::new(false, false, "user rm");
        let failure = Failure::not_found("x: not found");
        assert!(output.with_default_hint(failure.clone()).to_string().contains("user list"));
        assert!(output.with_default_hint(failure.hint("own")).to_string().ends_with("(own)"));
    }
}
