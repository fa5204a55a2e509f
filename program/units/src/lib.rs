//! Sizes, times, ranges, modes and tables as text, as commands print and read them.
//!
//! Does: formats and parses, without a clock or a locale.
//! Truth: docs/reference/cli.md.

mod parse;
mod table;

use sealstone_mds_protocol::FileKind;

pub use parse::{
    ByteRange, Expiry, parse_byte_range, parse_expiry, parse_hex32, parse_mode, parse_partition, parse_past,
    parse_time_limit,
};
pub use table::{columns, wrap};

/// Maximum number of digits after the point of a size.
const FRACTION_DIGITS_MAX: usize = 9;

/// Parses a size in bytes: a number with an optional fraction and an optional unit. `K` to `P` and
/// `KiB` to `PiB` are powers of 1024, `KB` to `PB` powers of 1000. A fraction of a byte is rounded
/// down.
///
/// # Errors
/// The text is no size, or has more than 64 bits of bytes. The error is for the user.
pub fn parse_size(text: &str) -> Result<u64, String> {
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
pub fn utc(ms: impl TryInto<i64>) -> String {
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
///
/// # Errors
/// The text is no time. The error is for the user.
fn parse_moment(text: &str) -> Result<u64, String> {
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
#[must_use]
pub fn mode_string(kind: FileKind, mode: u16) -> String {
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
}
