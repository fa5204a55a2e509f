//! Spans, times of expiry, ranges, modes and numbers that a user gives as text.
//!
//! The errors are for the user.

use sealstone_failure::secret_file;

use crate::{parse_moment, parse_size};

/// A time of expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Milliseconds from now.
    In(u64),
    /// Milliseconds since 1970.
    At(u64),
}

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte; `None`: the end of the file.
    pub end: Option<u64>,
}

/// Parses `90s`, `30m`, `2h` or `3d` into milliseconds; `None` for other text.
fn parse_span(text: &str) -> Option<u64> {
    let unit_ms = match text.chars().last()? {
        's' => 1000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => 86_400_000,
        _ => return None,
    };
    text.get(..text.len() - 1)?.parse::<u64>().ok()?.checked_mul(unit_ms)
}

/// Parses a time of expiry: a span from now, or a time in UTC.
///
/// # Errors
/// The text is neither.
pub fn parse_expiry(text: &str) -> Result<Expiry, String> {
    match parse_span(text) {
        Some(ms) => Ok(Expiry::In(ms)),
        None => parse_moment(text).map(Expiry::At),
    }
}

/// Parses a time in the past into milliseconds since 1970: `2h` is two hours before `now_ms`.
///
/// # Errors
/// The text is neither a span nor a time in UTC.
pub fn parse_past(text: &str, now_ms: u64) -> Result<u64, String> {
    match parse_span(text) {
        Some(ms) => Ok(now_ms.saturating_sub(ms)),
        None => parse_moment(text),
    }
}

/// Parses a time limit such as 500ms, 30s, 5m or 1h, as milliseconds from 1 to `max_ms`.
///
/// # Errors
/// The text is no such time.
pub fn parse_time_limit(text: &str, max_ms: u32) -> Result<u32, String> {
    let fail = || {
        let hours = max_ms / 3_600_000;
        format!("'{text}' is not a time from 1ms to {hours}h, such as 500ms, 30s, 5m or 1h")
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(fail()),
    };
    let ms = number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(fail)?;
    if (1..=max_ms).contains(&ms) { Ok(ms) } else { Err(fail()) }
}

/// Parses a range of bytes: A..B, A.. or ..B, with sizes such as 4K or 1M.
///
/// # Errors
/// The text is no range, or an empty one.
pub fn parse_byte_range(text: &str) -> Result<ByteRange, String> {
    let (start, end) =
        text.split_once("..").ok_or_else(|| format!("'{text}' is not a range such as 0..4096 or 1M.."))?;
    let start = if start.is_empty() { 0 } else { parse_size(start)? };
    let end = if end.is_empty() { None } else { Some(parse_size(end)?) };
    match end {
        Some(end) if end <= start => Err(format!("'{text}' is an empty range")),
        end => Ok(ByteRange { start, end }),
    }
}

/// Parses permission bits in octal.
///
/// # Errors
/// The text is no octal number up to 7777.
pub fn parse_mode(text: &str) -> Result<u16, String> {
    let fail = || format!("'{text}' is not an octal mode such as 755");
    u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777).ok_or_else(fail)
}

/// Parses the number of a partition, `0x…` or decimal.
///
/// # Errors
/// The text is no number.
pub fn parse_partition(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is not a partition number such as 0x10000"))
}

/// Parses a digest or a key of 32 bytes, as 64 hex digits.
///
/// # Errors
/// The text has another length or other characters.
pub fn parse_hex32(text: &str) -> Result<[u8; 32], String> {
    let bytes = secret_file::from_hex(text).and_then(|bytes| bytes.as_slice().try_into().ok());
    bytes.ok_or_else(|| format!("'{text}' is not 64 hex digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_times_parse() {
        assert_eq!(parse_byte_range("4K..8K"), Ok(ByteRange { start: 4096, end: Some(8192) }));
        assert_eq!(parse_byte_range("..5"), Ok(ByteRange { start: 0, end: Some(5) }));
        assert_eq!(parse_byte_range("7.."), Ok(ByteRange { start: 7, end: None }));
        for bad in ["5..5", "9..5", "5"] {
            assert!(parse_byte_range(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_expiry("30m"), Ok(Expiry::In(1_800_000)));
        assert_eq!(parse_expiry("2000-02-29T00:00Z"), Ok(Expiry::At(951_782_400_000)));
        assert!(parse_expiry("soon").is_err() && parse_expiry("99999999999999999h").is_err());
        assert_eq!(parse_past("2h", 7_200_001), Ok(1));
        assert_eq!(parse_past("2h", 5), Ok(0));
    }

    #[test]
    fn time_limits_have_units_and_bounds() {
        let day = 24 * 3_600_000;
        assert_eq!(parse_time_limit("500ms", day), Ok(500));
        assert_eq!(parse_time_limit("5m", day), Ok(300_000));
        assert_eq!(parse_time_limit("24h", day), Ok(day));
        for bad in ["", "0s", "25h", "5", "s", "5d", "99999999999h", "-1s"] {
            assert!(parse_time_limit(bad, day).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_and_numbers_parse() {
        assert_eq!(parse_mode("4755"), Ok(0o4755));
        assert!(parse_mode("855").is_err() && parse_mode("17777").is_err());
        assert_eq!((parse_partition("0x10000"), parse_partition("7")), (Ok(0x10000), Ok(7)));
        assert!(parse_partition("0xg").is_err());
        let digits = "0f".repeat(32);
        assert_eq!(parse_hex32(&digits), Ok([0x0f; 32]));
        assert!(parse_hex32(&digits[1..]).is_err() && parse_hex32(&"é".repeat(32)).is_err());
    }
}
