//! Evaluation of filter expressions, with the three-valued logic of SQL.
//!
//! A comparison with null, or of values of different types, is unknown. A record is selected only
//! if the expression is true.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::decimal::DecimalNumber;
use super::expression::{
    CompareOperator, FilterExpression, FilterLiteral, FilterNode, FilterOperand, TextTest,
};

/// Value of a field of a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum FieldValue<'r> {
    /// The field is absent or null.
    #[default]
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// A binary fraction.
    Float(f64),
    /// A decimal fraction: a whole number, divided by a power of ten.
    Decimal(DecimalNumber),
    /// A point in time: nanoseconds since 1970-01-01T00:00:00.
    Time(i128),
    /// A text.
    Text(Cow<'r, str>),
    /// Text without a type: a cell of a table. It is a number where it is compared with one.
    Cell(Cow<'r, str>),
    /// An array or object.
    Composite,
}

impl<'r> From<&'r FilterLiteral> for FieldValue<'r> {
    fn from(literal: &'r FilterLiteral) -> Self {
        match literal {
            FilterLiteral::Null => Self::Null,
            FilterLiteral::Bool(value) => Self::Bool(*value),
            FilterLiteral::Integer(value) => Self::Integer(*value),
            FilterLiteral::Float(value) => Self::Float(*value),
            FilterLiteral::Decimal(value) => Self::Decimal(*value),
            FilterLiteral::Time(value) => Self::Time(*value),
            FilterLiteral::Text(text) => Self::Text(Cow::Borrowed(text)),
        }
    }
}

impl FieldValue<'_> {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Cell(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the cell as a number or truth value, if it has the form of one.
    fn typed_cell(&self) -> Option<FieldValue<'static>> {
        let Self::Cell(text) = self else { return None };
        let text = text.trim();
        // Numbers of 64 bits are parsed faster.
        if let Ok(integer) = text.parse::<i64>().map(i128::from).or_else(|_| text.parse()) {
            return Some(FieldValue::Integer(integer));
        }
        match text {
            "true" | "TRUE" | "True" => return Some(FieldValue::Bool(true)),
            "false" | "FALSE" | "False" => return Some(FieldValue::Bool(false)),
            // Words such as `inf` and `nan` are text.
            _ if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => {}
            _ => return text.parse().ok().filter(|float: &f64| float.is_finite()).map(FieldValue::Float),
        }
        None
    }
}

/// Orders two values; `None` if they cannot be compared.
pub(super) fn compare(left: &FieldValue<'_>, right: &FieldValue<'_>) -> Option<Ordering> {
    use FieldValue::{Bool, Cell, Decimal, Float, Integer, Text, Time};
    match (left, right) {
        (Bool(left), Bool(right)) => Some(left.cmp(right)),
        (Time(left), Time(right)) => Some(left.cmp(right)),
        (Decimal(left), Decimal(right)) => Some(left.compare(*right)),
        (Decimal(left), Integer(right)) => Some(left.compare(DecimalNumber::of_integer(*right))),
        (Integer(left), Decimal(right)) => Some(DecimalNumber::of_integer(*left).compare(*right)),
        (Decimal(left), Float(right)) => left.as_float().partial_cmp(right),
        (Float(left), Decimal(right)) => left.partial_cmp(&right.as_float()),
        (Integer(left), Integer(right)) => Some(left.cmp(right)),
        (Float(left), Float(right)) => left.partial_cmp(right),
        (Integer(left), Float(right)) => compare_mixed(*left, *right),
        (Float(left), Integer(right)) => compare_mixed(*right, *left).map(Ordering::reverse),
        (Text(left), Text(right)) | (Text(left), Cell(right)) | (Cell(left), Text(right)) => {
            Some(left.cmp(right))
        }
        (Cell(left_text), Cell(right_text)) => match (left.typed_cell(), right.typed_cell()) {
            (Some(left), Some(right)) => compare(&left, &right),
            _ => Some(left_text.cmp(right_text)),
        },
        (Cell(_), Bool(_) | Integer(_) | Float(_)) => compare(&left.typed_cell()?, right),
        (Bool(_) | Integer(_) | Float(_), Cell(_)) => compare(left, &right.typed_cell()?),
        _ => None,
    }
}

fn compare_mixed(integer: i128, float: f64) -> Option<Ordering> {
    match (integer as f64).partial_cmp(&float)? {
        // The conversion may have rounded; the float is then a whole number in range.
        Ordering::Equal => Some(integer.cmp(&(float as i128))),
        other => Some(other),
    }
}

impl FilterExpression {
    /// Whether the expression is true for a record with these fields.
    #[must_use]
    pub fn is_true(&self, fields: &[FieldValue<'_>]) -> bool {
        evaluate(&self.root, fields) == Some(true)
    }
}

/// Returns `None` for unknown.
fn evaluate(node: &FilterNode, fields: &[FieldValue<'_>]) -> Option<bool> {
    match node {
        FilterNode::Any(parts) => decide(parts, fields, true),
        FilterNode::All(parts) => decide(parts, fields, false),
        FilterNode::Not(part) => evaluate(part, fields).map(|value| !value),
        FilterNode::Compare(left, operator, right) => {
            let order = compare(&value_of(left, fields), &value_of(right, fields))?;
            Some(match operator {
                CompareOperator::Equal => order.is_eq(),
                CompareOperator::NotEqual => order.is_ne(),
                CompareOperator::Less => order.is_lt(),
                CompareOperator::LessOrEqual => order.is_le(),
                CompareOperator::Greater => order.is_gt(),
                CompareOperator::GreaterOrEqual => order.is_ge(),
            })
        }
        FilterNode::In(operand, list) => {
            let value = value_of(operand, fields);
            // As the comparisons of the value with each literal, joined by `or`.
            let mut result = Some(false);
            for literal in list {
                match compare(&value, &literal.into()) {
                    Some(Ordering::Equal) => return Some(true),
                    Some(_) => {}
                    None => result = None,
                }
            }
            result
        }
        FilterNode::IsNull(operand) => Some(value_of(operand, fields) == FieldValue::Null),
        FilterNode::Text(operand, test) => {
            let value = value_of(operand, fields);
            let text = value.text()?;
            Some(match test {
                TextTest::Contains(part) => text.contains(part.as_str()),
                TextTest::StartsWith(part) => text.starts_with(part.as_str()),
                TextTest::EndsWith(part) => text.ends_with(part.as_str()),
                TextTest::Matches(regex) => regex.is_match(text),
            })
        }
    }
}

/// Evaluates parts until one has the value that decides; unknown if none decides and one is
/// unknown.
fn decide(parts: &[FilterNode], fields: &[FieldValue<'_>], decisive: bool) -> Option<bool> {
    let mut result = Some(!decisive);
    for part in parts {
        match evaluate(part, fields) {
            Some(value) if value == decisive => return Some(decisive),
            Some(_) => {}
            None => result = None,
        }
    }
    result
}

fn value_of<'v>(operand: &'v FilterOperand, fields: &'v [FieldValue<'_>]) -> FieldValue<'v> {
    match operand {
        FilterOperand::Literal(literal) => literal.into(),
        FilterOperand::Field(index) => match fields.get(*index) {
            None | Some(FieldValue::Null) => FieldValue::Null,
            Some(FieldValue::Bool(value)) => FieldValue::Bool(*value),
            Some(FieldValue::Integer(value)) => FieldValue::Integer(*value),
            Some(FieldValue::Float(value)) => FieldValue::Float(*value),
            Some(FieldValue::Decimal(value)) => FieldValue::Decimal(*value),
            Some(FieldValue::Time(value)) => FieldValue::Time(*value),
            Some(FieldValue::Text(text)) => FieldValue::Text(Cow::Borrowed(text)),
            // An empty cell of a table is null.
            Some(FieldValue::Cell(text)) if text.is_empty() => FieldValue::Null,
            Some(FieldValue::Cell(text)) => FieldValue::Cell(Cow::Borrowed(text)),
            Some(FieldValue::Composite) => FieldValue::Composite,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_true(text: &str, fields: &[FieldValue<'_>]) -> bool {
        FilterExpression::parse(text).unwrap().is_true(fields)
    }

    #[test]
    fn cell_is_number_where_compared_with_one() {
        for (text, cell, expected) in [
            ("a >= 500", "503", true),
            ("a >= 500", "49", false),
            ("a >= 500", "abc", false),
            ("a = 1.5", " 1.50", true),
            ("a = '503'", "503", true),
            ("a = true", "True", true),
            ("not a = 500", "abc", false), // unknown is not false
            ("a is null", "", true),
            ("a = '' or a != 'x'", "", false), // an empty cell is null
            ("a not contains 'x' or a not in ('x')", "", false),
            ("a < 1e3", "-5e-1", true),
            ("a < 5", "nan", false),
            ("a != 9007199254740992.0", "9007199254740993", true),
        ] {
            assert_eq!(is_true(text, &[FieldValue::Cell(cell.into())]), expected, "{text} for {cell}");
        }
    }

    #[test]
    fn logic_has_three_values() {
        let fields = [FieldValue::Null, FieldValue::Integer(1)];
        for (text, expected) in [
            ("a = 1 or b = 1", true),
            ("a = 1 and b = 1", false),
            ("not (a = 1 and b = 2)", true),
            ("not (a = 1 or b = 2)", false),
            ("a is null and b is not null", true),
            ("a = null", false),
            ("b in (2, 1.0)", true),
            ("b not in (2)", true),
            ("a not in (2)", false),
            ("b in (2, null)", false),
            ("b not in (2, null)", false), // as b != 2 and b != null
            ("b in (1, null)", true),
            ("not b not in (1, null)", true),
            ("b not in (2, 'x')", false), // a number and a text
            ("b = '1'", false),
            ("b < 2 && !(b > 1)", true),
        ] {
            // The first field of each text that names only b is b.
            let fields = if text.contains("a ") { &fields[..] } else { &fields[1..] };
            assert_eq!(is_true(text, fields), expected, "{text}");
        }
    }

    #[test]
    fn text_tests_apply_to_text_only() {
        let text = [FieldValue::Text("GET /index".into())];
        assert!(is_true("a starts_with 'GET' and a ends_with 'dex' and a contains ' /'", &text));
        assert!(is_true("a ~ '^G.*x$' and a not contains 'POST'", &text));
        assert!(!is_true("a contains '1'", &[FieldValue::Integer(1)]));
        assert!(!is_true("a = 1 or a != 1 or a is null", &[FieldValue::Composite]));
    }
}
