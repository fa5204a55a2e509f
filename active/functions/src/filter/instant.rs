//! Dates and times as text: RFC 3339, and shorter forms without zone, which are UTC.

/// Nanoseconds of a second.
const SECOND_NS: i128 = 1_000_000_000;
/// Nanoseconds of a day.
pub const DAY_NS: i128 = 86_400 * SECOND_NS;

/// Days before and after 1970 that are shown, more than milliseconds in 64 bits can express.
const DAYS_MAX: i64 = 1 << 40;

/// Returns the days since 1970-01-01 of a date of the proleptic Gregorian calendar.
const fn days_of_date(year: i64, month: i64, day: i64) -> i64 {
    // The year begins in March, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Returns year, month and day.
const fn date_of_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + if month <= 2 { 1 } else { 0 }, month, day)
}

/// Reads a number of exactly `count` digits.
fn digits(text: &str, count: usize) -> Option<(i64, &str)> {
    let (number, rest) = text.split_at_checked(count)?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_number)?, rest))
}

fn in_range(value: i64, low: i64, high: i64) -> Option<i64> {
    (low..=high).contains(&value).then_some(value)
}

/// Parses `2026-11-27`, `2026-11-27T10:00Z`, `2026-11-27 10:00:00.5+02:00` and the like; returns
/// nanoseconds since 1970.
#[must_use]
pub(super) fn parse_instant(text: &str) -> Option<i128> {
    let (year, rest) = digits(text, 4)?;
    let (month, rest) = digits(rest.strip_prefix('-')?, 2)?;
    let (day, rest) = digits(rest.strip_prefix('-')?, 2)?;
    in_range(month, 1, 12)?;
    in_range(day, 1, 31)?;
    let days = days_of_date(year, month, day);
    // A day that the month lacks is one of the next month.
    if date_of_days(days) != (year, month, day) {
        return None;
    }
    let date = i128::from(days) * DAY_NS;
    if rest.is_empty() {
        return Some(date);
    }
    let (hour, rest) = digits(rest.strip_prefix(['T', 't', ' '])?, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(':')?, 2)?;
    let (second, rest) = match rest.strip_prefix(':') {
        Some(rest) => digits(rest, 2)?,
        None => (0, rest),
    };
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let count = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, rest) = digits(rest, usize::try_from(in_range(count as i64, 1, 9)?).ok()?)?;
            (number * 10i64.pow(9 - count as u32), rest)
        }
        None => (0, rest),
    };
    let seconds = (in_range(hour, 0, 23)? * 60 + in_range(minute, 0, 59)?) * 60 + in_range(second, 0, 59)?;
    let zone = match rest {
        "" | "Z" | "z" => 0,
        _ => {
            let sign = if rest.starts_with('-') { -1 } else { 1 };
            let (hours, rest) = digits(rest.strip_prefix(['+', '-'])?, 2)?;
            let (minutes, rest) = digits(rest.strip_prefix(':')?, 2)?;
            if !rest.is_empty() {
                return None;
            }
            sign * (in_range(hours, 0, 23)? * 60 + in_range(minutes, 0, 59)?) * 60
        }
    };
    Some(date + i128::from(seconds - zone) * SECOND_NS + i128::from(fraction))
}

/// Returns `HH:MM:SS` with a fraction if there is one; texts are in the order of the times.
#[must_use]
pub fn format_time_of_day(ns: i128) -> String {
    let (seconds, fraction) = (ns.div_euclid(SECOND_NS), ns.rem_euclid(SECOND_NS));
    let mut text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction > 0 {
        text += format!(".{fraction:09}").trim_end_matches('0');
    }
    text
}

/// Returns the date of a number of days since 1970.
#[must_use]
pub fn format_date(days: i64) -> String {
    let (year, month, day) = date_of_days(days);
    let sign = if (0..=9999).contains(&year) {
        ""
    } else if year < 0 {
        "-"
    } else {
        "+"
    };
    format!("{sign}{:04}-{month:02}-{day:02}", year.unsigned_abs())
}

/// Returns date and time in the form of RFC 3339; the zone only if it is known to be UTC.
#[must_use]
pub fn format_instant(ns: i128, is_utc: bool) -> String {
    let days = ns.div_euclid(DAY_NS).clamp(-i128::from(DAYS_MAX), i128::from(DAYS_MAX)) as i64;
    let zone = if is_utc { "Z" } else { "" };
    format!("{}T{}{zone}", format_date(days), format_time_of_day(ns.rem_euclid(DAY_NS)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_of_instants_are_read() {
        for (text, ns) in [
            ("1970-01-01", 0),
            ("1970-01-01T00:00Z", 0),
            ("1969-12-31 23:59:59.5", -SECOND_NS / 2),
            ("2000-02-29T12:00:00+02:00", 951_818_400 * SECOND_NS),
            ("2026-11-27T10:00:00.000000001Z", 1_795_773_600 * SECOND_NS + 1),
        ] {
            assert_eq!(parse_instant(text), Some(ns), "{text}");
        }
        for text in [
            "",
            "2026",
            "2026-13-01",
            "2026-02-29",
            "2026-11-27T",
            "2026-11-27T24:00",
            "2026-11-27T10",
            "2026-11-27T10:00:60",
            "2026-11-27T10:00:00.",
            "2026-11-27T10:00+2",
            "2026-11-27x",
            "+026-11-27",
        ] {
            assert_eq!(parse_instant(text), None, "{text}");
        }
        assert_eq!(format_date(-719_529), "-0001-12-31");
        assert_eq!(format_time_of_day(3_661_500_000_000), "01:01:01.5");
    }

    proptest! {
        #[test]
        fn formatted_instant_is_read_again(ns in -62_135_596_800_000_000_000i128..253_402_300_800_000_000_000) {
            prop_assert_eq!(parse_instant(&format_instant(ns, true)), Some(ns));
        }

        #[test]
        fn arbitrary_instant_never_panics(text in "[0-9T:.+Z -]{0,40}", days: i64, ns: i128) {
            let _ = parse_instant(&text);
            let _ = format_instant(ns, false);
            let _ = format_date(days % (1 << 40));
        }
    }
}
