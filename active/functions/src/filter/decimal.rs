//! Decimal fractions of tables: exact comparison of numbers with different scales.

use std::cmp::Ordering;
use std::fmt;

/// Maximum number of digits, of which all may be after the point.
pub const DECIMAL_DIGITS_MAX: u8 = 38;

/// A whole number, divided by ten to the power of its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecimalNumber {
    unscaled: i128,
    scale: u8,
}

impl DecimalNumber {
    /// Returns `unscaled / 10^scale`; `None` for a scale above [`DECIMAL_DIGITS_MAX`].
    #[must_use]
    pub fn new(unscaled: i128, scale: u8) -> Option<Self> {
        (scale <= DECIMAL_DIGITS_MAX).then_some(Self { unscaled, scale })
    }

    pub(super) const fn of_integer(value: i128) -> Self {
        Self { unscaled: value, scale: 0 }
    }

    /// Parses digits with an optional sign and point.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let fraction = fraction.trim_end_matches('0');
        let scale = u8::try_from(fraction.len()).ok()?;
        let is_digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
        let unscaled = format!("{whole}{fraction}").parse().ok()?;
        Self::new(unscaled, scale).filter(|_| is_digits)
    }

    /// Returns the shortest decimal number that is read as this float.
    pub(super) fn of_float(value: f64) -> Option<Self> {
        Self::parse(&value.to_string())
    }

    pub(super) fn as_float(self) -> f64 {
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    /// Returns the whole part, rounded down, and the rest as a numerator.
    fn split(self) -> (i128, i128) {
        let unit = 10i128.pow(self.scale.into());
        (self.unscaled.div_euclid(unit), self.unscaled.rem_euclid(unit))
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        let ((whole, rest), (other_whole, other_rest)) = (self.split(), other.split());
        // A rest is below 10^scale, so it cannot exceed 10^38 at the larger scale.
        let scale = self.scale.max(other.scale);
        let scaled = |rest: i128, own: u8| rest * 10i128.pow(u32::from(scale - own));
        whole.cmp(&other_whole).then(scaled(rest, self.scale).cmp(&scaled(other_rest, other.scale)))
    }
}

impl fmt::Display for DecimalNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = usize::from(self.scale);
        let digits = format!("{:0>width$}", self.unscaled.unsigned_abs(), width = scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        let sign = if self.unscaled < 0 { "-" } else { "" };
        write!(f, "{sign}{whole}")?;
        if scale > 0 { write!(f, ".{fraction}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> DecimalNumber {
        DecimalNumber::parse(text).unwrap()
    }

    #[test]
    fn numbers_of_different_scales_are_ordered() {
        for (left, right, expected) in [
            ("1.5", "1.50", Ordering::Equal),
            ("-1.5", "-1.49", Ordering::Less),
            ("-0.5", "0", Ordering::Less),
            (
                "170141183460469231731687303715884105727",
                "0.00000000000000000000000000000000000001",
                Ordering::Greater,
            ),
            (
                "99999999999999999999999999999999999999",
                "9.9999999999999999999999999999999999999",
                Ordering::Greater,
            ),
        ] {
            assert_eq!(number(left).compare(number(right)), expected, "{left} {right}");
        }
        assert_eq!(DecimalNumber::of_float(19.99), Some(number("19.99")));
        for text in ["", ".", "1.2.3", "1e5", "1.-5", "NaN"] {
            assert_eq!(DecimalNumber::parse(text), None, "{text}");
        }
        assert_eq!(DecimalNumber::new(1, 39), None);
    }

    proptest! {
        #[test]
        fn text_of_decimal_parses_to_equal(unscaled: i128, scale in 0u8..=38) {
            let value = DecimalNumber::new(unscaled, scale).unwrap();
            let again = DecimalNumber::parse(&value.to_string()).unwrap();
            prop_assert_eq!(value.compare(again), Ordering::Equal);
        }
    }
}
