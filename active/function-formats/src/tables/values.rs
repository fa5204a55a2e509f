//! Meaning of the values of a column: for expressions, statistics and JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

use parquet::basic::{ConvertedType, LogicalType, TimeUnit};
use parquet::data_type::Int96;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescriptor;
use sealstone_functions::RecordText;
use sealstone_functions::filter::instant::{DAY_NS, format_date, format_instant, format_time_of_day};
use sealstone_functions::filter::{DecimalNumber, FieldRange, FieldType, FieldValue};

use super::leaf::LeafValues;

/// Day number of 1970-01-01 in timestamps of 96 bits.
const JULIAN_DAY_1970: i128 = 2_440_588;
/// Maximum bytes of a decimal number.
const DECIMAL_BYTES_MAX: usize = 16;
/// Bytes of a UUID.
const UUID_BYTES: usize = 16;

/// Meaning of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeafKind {
    /// That of the physical type; bytes are text if they are UTF-8.
    Plain,
    Unsigned,
    /// A whole number, divided by ten to the power of this.
    Decimal(u8),
    /// Days since 1970.
    Date,
    /// Units since midnight, each of this many nanoseconds.
    TimeOfDay(i128),
    /// Units since 1970, each of this many nanoseconds; whether the zone is UTC.
    Timestamp(i128, bool),
    Uuid,
    /// Values that can only be copied.
    Opaque(&'static str),
}

const fn unit_ns(unit: &TimeUnit) -> i128 {
    match unit {
        TimeUnit::MILLIS => 1_000_000,
        TimeUnit::MICROS => 1000,
        TimeUnit::NANOS => 1,
    }
}

impl LeafKind {
    pub(super) fn of(column: &ColumnDescriptor) -> Self {
        let decimal = |scale: i32| match u8::try_from(scale)
            .ok()
            .and_then(|scale| DecimalNumber::new(0, scale).map(|_| scale))
        {
            Some(scale) => Self::Decimal(scale),
            None => Self::Opaque("decimals with more than 38 digits"),
        };
        match column.logical_type_ref() {
            Some(LogicalType::Decimal(kind)) => return decimal(kind.scale),
            Some(LogicalType::Date) => return Self::Date,
            Some(LogicalType::Time(kind)) => return Self::TimeOfDay(unit_ns(&kind.unit)),
            Some(LogicalType::Timestamp(kind)) => {
                return Self::Timestamp(unit_ns(&kind.unit), kind.is_adjusted_to_u_t_c);
            }
            Some(LogicalType::Integer(kind)) if !kind.is_signed => return Self::Unsigned,
            Some(LogicalType::Uuid) => return Self::Uuid,
            Some(LogicalType::Float16) => return Self::Opaque("numbers of 16 bits"),
            Some(_) => return Self::Plain,
            None => {}
        }
        match column.converted_type() {
            ConvertedType::DECIMAL => decimal(column.type_scale()),
            ConvertedType::DATE => Self::Date,
            ConvertedType::TIME_MILLIS => Self::TimeOfDay(1_000_000),
            ConvertedType::TIME_MICROS => Self::TimeOfDay(1000),
            ConvertedType::TIMESTAMP_MILLIS => Self::Timestamp(1_000_000, true),
            ConvertedType::TIMESTAMP_MICROS => Self::Timestamp(1000, true),
            ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64 => Self::Unsigned,
            ConvertedType::INTERVAL => Self::Opaque("intervals"),
            _ => Self::Plain,
        }
    }

    /// Returns the type for which literals are converted.
    pub(super) fn field_type(self, column: &ColumnDescriptor) -> FieldType {
        match self {
            Self::Date | Self::Timestamp(..) => FieldType::Time,
            Self::Plain if column.physical_type() == parquet::basic::Type::INT96 => FieldType::Time,
            Self::Decimal(_) => FieldType::Decimal,
            _ => FieldType::Plain,
        }
    }

    fn of_integer(self, value: i64, unsigned: u64) -> FieldValue<'static> {
        let number = i128::from(value);
        match self {
            Self::Unsigned => FieldValue::Integer(unsigned.into()),
            Self::Decimal(scale) => of_decimal(number, scale),
            Self::Date => FieldValue::Time(number * DAY_NS),
            Self::Timestamp(unit, _) => FieldValue::Time(number * unit),
            Self::TimeOfDay(unit) => FieldValue::Text(format_time_of_day(number * unit).into()),
            _ => FieldValue::Integer(number),
        }
    }

    fn of_bytes(self, bytes: &[u8]) -> FieldValue<'_> {
        match self {
            Self::Decimal(scale) => {
                decimal_of_bytes(bytes).map_or(FieldValue::Composite, |number| of_decimal(number, scale))
            }
            Self::Uuid if bytes.len() == UUID_BYTES => FieldValue::Text(uuid_text(bytes).into()),
            Self::Opaque(_) => FieldValue::Composite,
            _ => str::from_utf8(bytes).map_or(FieldValue::Composite, |text| FieldValue::Text(text.into())),
        }
    }

    /// Returns a value for expressions; null if there is none at this position.
    pub(super) fn field_value(self, values: &LeafValues, at: usize) -> FieldValue<'_> {
        let found = match values {
            LeafValues::Bool(values) => values.get(at).map(|value| FieldValue::Bool(*value)),
            LeafValues::Int32(values) => {
                values.get(at).map(|value| self.of_integer((*value).into(), value.cast_unsigned().into()))
            }
            LeafValues::Int64(values) => {
                values.get(at).map(|value| self.of_integer(*value, value.cast_unsigned()))
            }
            LeafValues::Int96(values) => values.get(at).map(|value| FieldValue::Time(ns_of_int96(value))),
            LeafValues::Float(values) => values.get(at).map(|value| FieldValue::Float((*value).into())),
            LeafValues::Double(values) => values.get(at).map(|value| FieldValue::Float(*value)),
            LeafValues::Bytes(values) => values.get(at).map(|value| self.of_bytes(value.data())),
            LeafValues::Fixed(values) => values.get(at).map(|value| self.of_bytes(value.data())),
        };
        found.unwrap_or_default()
    }

    /// Returns the bounds that the statistics of a column chunk state.
    pub(super) fn range(self, statistics: Option<&Statistics>, values: i64) -> FieldRange<'static> {
        let Some(statistics) = statistics else { return FieldRange::default() };
        let nulls = statistics.null_count_opt();
        let is_all_null = values > 0 && nulls == u64::try_from(values).ok();
        let bounds = self.bounds(statistics).filter(|_| !statistics.is_min_max_deprecated());
        let (low, high) = bounds.unwrap_or_default();
        FieldRange { low, high, has_nulls: nulls.map(|count| count > 0), is_all_null }
    }

    fn bounds(
        self,
        statistics: &Statistics,
    ) -> Option<(Option<FieldValue<'static>>, Option<FieldValue<'static>>)> {
        let pair = match statistics {
            Statistics::Boolean(one) => LeafValues::Bool(vec![*one.min_opt()?, *one.max_opt()?]),
            Statistics::Int32(one) => LeafValues::Int32(vec![*one.min_opt()?, *one.max_opt()?]),
            Statistics::Int64(one) => LeafValues::Int64(vec![*one.min_opt()?, *one.max_opt()?]),
            // Their order is not defined.
            Statistics::Int96(_) => return None,
            Statistics::Float(one) => LeafValues::Float(vec![*one.min_opt()?, *one.max_opt()?]),
            Statistics::Double(one) => LeafValues::Double(vec![*one.min_opt()?, *one.max_opt()?]),
            Statistics::ByteArray(one) => {
                LeafValues::Bytes(vec![one.min_opt()?.clone(), one.max_opt()?.clone()])
            }
            Statistics::FixedLenByteArray(one) => {
                LeafValues::Fixed(vec![one.min_opt()?.clone(), one.max_opt()?.clone()])
            }
        };
        let bound = |at: usize| match self.field_value(&pair, at) {
            FieldValue::Float(value) if value.is_nan() => None,
            FieldValue::Composite | FieldValue::Null => None,
            FieldValue::Text(text) => Some(FieldValue::Text(Cow::Owned(text.into_owned()))),
            FieldValue::Bool(value) => Some(FieldValue::Bool(value)),
            FieldValue::Integer(value) => Some(FieldValue::Integer(value)),
            FieldValue::Float(value) => Some(FieldValue::Float(value)),
            FieldValue::Decimal(value) => Some(FieldValue::Decimal(value)),
            FieldValue::Time(value) => Some(FieldValue::Time(value)),
            FieldValue::Cell(_) => None,
        };
        Some((bound(0), bound(1)))
    }

    /// Appends a value as JSON; null if there is none at this position.
    pub(super) fn push_json(self, values: &LeafValues, at: usize, out: &mut String) {
        let bytes = match values {
            LeafValues::Bytes(values) => values.get(at).map(|value| value.data()),
            LeafValues::Fixed(values) => values.get(at).map(|value| value.data()),
            // The shortest form of a number of 32 bits is shorter than that of 64 bits.
            LeafValues::Float(values) => return push_number(values.get(at).copied(), out),
            _ => None,
        };
        let written = match (self, self.field_value(values, at)) {
            (Self::Date, FieldValue::Time(ns)) => {
                let days = i64::try_from(ns.div_euclid(DAY_NS)).unwrap_or_default();
                write!(out, "\"{}\"", format_date(days))
            }
            (Self::Timestamp(_, is_utc), FieldValue::Time(ns)) => {
                write!(out, "\"{}\"", format_instant(ns, is_utc))
            }
            (_, FieldValue::Time(ns)) => write!(out, "\"{}\"", format_instant(ns, false)),
            (_, FieldValue::Bool(value)) => write!(out, "{value}"),
            (_, FieldValue::Integer(value)) => write!(out, "{value}"),
            (_, FieldValue::Decimal(value)) => write!(out, "\"{value}\""),
            (_, FieldValue::Float(value)) => {
                push_number(Some(value), out);
                Ok(())
            }
            (_, FieldValue::Text(text)) => {
                out.push_str(&json_text(&text));
                Ok(())
            }
            (_, FieldValue::Null | FieldValue::Cell(_) | FieldValue::Composite) => {
                match bytes.map(RecordText::new) {
                    Some(binary) => out.push_str(&serde_json::to_string(&binary).unwrap_or_default()),
                    None => out.push_str("null"),
                }
                Ok(())
            }
        };
        // Writing to a string cannot fail.
        written.unwrap_or_default();
    }
}

/// Appends a number; null for infinity and NaN, which JSON does not have.
fn push_number(value: Option<impl serde::Serialize>, out: &mut String) {
    out.push_str(&serde_json::to_string(&value).unwrap_or_default());
}

/// Returns a text in quotes.
pub(super) fn json_text(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

fn of_decimal(unscaled: i128, scale: u8) -> FieldValue<'static> {
    DecimalNumber::new(unscaled, scale).map_or(FieldValue::Composite, FieldValue::Decimal)
}

/// Returns a number in two's complement, the most significant byte first.
fn decimal_of_bytes(bytes: &[u8]) -> Option<i128> {
    let first = *bytes.first()?;
    let extension = if first & 0x80 == 0 { 0 } else { -1 };
    let number = |number: i128, byte: &u8| number << 8 | i128::from(*byte);
    (bytes.len() <= DECIMAL_BYTES_MAX).then(|| bytes.iter().fold(extension, number))
}

fn ns_of_int96(value: &Int96) -> i128 {
    let [low, high, day] = *value.data() else { return 0 };
    let ns = (u64::from(high) << 32 | u64::from(low)).cast_signed();
    (i128::from(day.cast_signed()) - JULIAN_DAY_1970) * DAY_NS + i128::from(ns)
}

fn uuid_text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_in_bytes_have_signs() {
        for (bytes, number) in [(&[0xff][..], -1), (&[0, 0xff], 255), (&[0x80], -128), (&[1, 0, 0], 65_536)] {
            assert_eq!(decimal_of_bytes(bytes), Some(number));
        }
        assert_eq!(decimal_of_bytes(&[0; 17]), None);
        assert_eq!(decimal_of_bytes(&[]), None);
    }

    #[test]
    fn values_have_documented_json() {
        let json = |kind: LeafKind, values: LeafValues| {
            let mut out = String::new();
            kind.push_json(&values, 0, &mut out);
            out
        };
        assert_eq!(json(LeafKind::Unsigned, LeafValues::Int32(vec![-1])), "4294967295");
        assert_eq!(json(LeafKind::Decimal(2), LeafValues::Int64(vec![-5])), "\"-0.05\"");
        assert_eq!(json(LeafKind::Date, LeafValues::Int32(vec![19_000])), "\"2022-01-08\"");
        assert_eq!(
            json(LeafKind::Timestamp(1000, true), LeafValues::Int64(vec![1])),
            "\"1970-01-01T00:00:00.000001Z\""
        );
        assert_eq!(json(LeafKind::TimeOfDay(1), LeafValues::Int64(vec![1_000_000_000])), "\"00:00:01\"");
        assert_eq!(json(LeafKind::Plain, LeafValues::Float(vec![0.1])), "0.1");
        assert_eq!(json(LeafKind::Plain, LeafValues::Double(vec![f64::NAN])), "null");
        assert_eq!(
            json(LeafKind::Plain, LeafValues::Bytes(vec![vec![0xff].into()])),
            "{\"base64\":\"/w==\"}"
        );
        assert_eq!(json(LeafKind::Plain, LeafValues::Bytes(vec![b"a\"".to_vec().into()])), "\"a\\\"\"");
        let uuid: Vec<u8> = (0..16).collect();
        let fixed = LeafValues::Fixed(vec![uuid.into()]);
        assert_eq!(json(LeafKind::Uuid, fixed), "\"00010203-0405-0607-0809-0a0b0c0d0e0f\"");
    }
}
