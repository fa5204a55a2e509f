//! Whether an expression can be true for any record of a group of which only bounds are known.
//!
//! Contract: if the answer is no, the expression is true for no record within the bounds.

use std::cmp::Ordering;

use super::evaluate::{FieldValue, compare};
use super::expression::{CompareOperator, FilterExpression, FilterNode, FilterOperand, TextTest};

/// Bounds of the values of a field in a group of records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldRange<'r> {
    /// No value is below this one.
    pub low: Option<FieldValue<'r>>,
    /// No value is above this one.
    pub high: Option<FieldValue<'r>>,
    /// Whether some record has a null; `None` if that is unknown.
    pub has_nulls: Option<bool>,
    /// Whether all records have nulls.
    pub is_all_null: bool,
}

/// Results that an expression can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PossibleResults {
    is_true: bool,
    is_false: bool,
}

impl PossibleResults {
    const ANY: Self = Self { is_true: true, is_false: true };
    const UNKNOWN_ONLY: Self = Self { is_true: false, is_false: false };

    const fn negated(self) -> Self {
        Self { is_true: self.is_false, is_false: self.is_true }
    }
}

impl FilterExpression {
    /// Whether the expression may be true for a record whose fields are within the bounds.
    #[must_use]
    pub fn may_be_true(&self, fields: &[FieldRange<'_>]) -> bool {
        results_of(&self.root, fields).is_true
    }
}

fn results_of(node: &FilterNode, fields: &[FieldRange<'_>]) -> PossibleResults {
    match node {
        FilterNode::Any(parts) => {
            let parts: Vec<_> = parts.iter().map(|part| results_of(part, fields)).collect();
            PossibleResults {
                is_true: parts.iter().any(|part| part.is_true),
                is_false: parts.iter().all(|part| part.is_false),
            }
        }
        FilterNode::All(parts) => {
            let parts: Vec<_> = parts.iter().map(|part| results_of(part, fields)).collect();
            PossibleResults {
                is_true: parts.iter().all(|part| part.is_true),
                is_false: parts.iter().any(|part| part.is_false),
            }
        }
        FilterNode::Not(part) => results_of(part, fields).negated(),
        FilterNode::Compare(left, operator, right) => {
            compare_ranges(&range_of(left, fields), *operator, &range_of(right, fields))
        }
        FilterNode::In(operand, list) => {
            let range = range_of(operand, fields);
            let equal = |literal| {
                compare_ranges(&range, CompareOperator::Equal, &range_of_literal(FieldValue::from(literal)))
            };
            let parts: Vec<_> = list.iter().map(equal).collect();
            PossibleResults {
                is_true: parts.iter().any(|part| part.is_true),
                is_false: parts.iter().all(|part| part.is_false),
            }
        }
        FilterNode::IsNull(operand) => {
            let range = range_of(operand, fields);
            PossibleResults { is_true: range.has_nulls != Some(false), is_false: !range.is_all_null }
        }
        FilterNode::Text(operand, test) => test_text(&range_of(operand, fields), test),
    }
}

fn range_of_literal(value: FieldValue<'_>) -> FieldRange<'_> {
    let is_null = value == FieldValue::Null;
    FieldRange {
        low: (!is_null).then(|| value.clone()),
        high: (!is_null).then_some(value),
        has_nulls: Some(is_null),
        is_all_null: is_null,
    }
}

fn range_of<'v>(operand: &'v FilterOperand, fields: &'v [FieldRange<'_>]) -> FieldRange<'v> {
    match operand {
        FilterOperand::Literal(literal) => range_of_literal(literal.into()),
        FilterOperand::Field(index) => fields.get(*index).cloned().unwrap_or_default(),
    }
}

fn compare_ranges(
    left: &FieldRange<'_>,
    operator: CompareOperator,
    right: &FieldRange<'_>,
) -> PossibleResults {
    if left.is_all_null || right.is_all_null {
        return PossibleResults::UNKNOWN_ONLY;
    }
    let order = |one: &Option<FieldValue<'_>>, other: &Option<FieldValue<'_>>| {
        compare(one.as_ref()?, other.as_ref()?)
    };
    // The lowest left value with the highest right one, and the other way round.
    let (Some(low_high), Some(high_low)) = (order(&left.low, &right.high), order(&left.high, &right.low))
    else {
        return PossibleResults::ANY;
    };
    let less = PossibleResults { is_true: low_high == Ordering::Less, is_false: high_low != Ordering::Less };
    let less_or_equal =
        PossibleResults { is_true: low_high != Ordering::Greater, is_false: high_low == Ordering::Greater };
    // Only single values on both sides are always equal.
    let is_single = low_high == Ordering::Equal && high_low == Ordering::Equal;
    let equal = PossibleResults {
        is_true: low_high != Ordering::Greater && high_low != Ordering::Less,
        is_false: !is_single,
    };
    match operator {
        CompareOperator::Less => less,
        CompareOperator::GreaterOrEqual => less.negated(),
        CompareOperator::LessOrEqual => less_or_equal,
        CompareOperator::Greater => less_or_equal.negated(),
        CompareOperator::Equal => equal,
        CompareOperator::NotEqual => equal.negated(),
    }
}

fn test_text(range: &FieldRange<'_>, test: &TextTest) -> PossibleResults {
    if range.is_all_null {
        return PossibleResults::UNKNOWN_ONLY;
    }
    let (Some(FieldValue::Text(low)), Some(FieldValue::Text(high)), TextTest::StartsWith(prefix)) =
        (&range.low, &range.high, test)
    else {
        return PossibleResults::ANY;
    };
    let is_below_end = low.as_ref() <= prefix.as_str() || low.starts_with(prefix.as_str());
    PossibleResults { is_true: is_below_end && high.as_ref() >= prefix.as_str(), is_false: true }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range<'r>(values: &[FieldValue<'r>]) -> FieldRange<'r> {
        let known = || values.iter().filter(|value| **value != FieldValue::Null);
        let order = |a: &&FieldValue<'r>, b: &&FieldValue<'r>| compare(a, b).unwrap();
        FieldRange {
            low: known().min_by(order).cloned(),
            high: known().max_by(order).cloned(),
            has_nulls: Some(known().count() < values.len()),
            is_all_null: known().count() == 0,
        }
    }

    #[test]
    fn group_outside_of_bounds_is_left_out() {
        let numbers = range(&[FieldValue::Integer(3), FieldValue::Integer(9)]);
        let texts = range(&[FieldValue::Text("GET /a".into()), FieldValue::Text("GET /b".into())]);
        let nulls = range(&[FieldValue::Null]);
        let fields = [numbers, texts, nulls, FieldRange::default()];
        for (text, expected) in [
            ("a = 5", true),
            ("a = 10", false),
            ("a >= 10 or b = 'x'", false),
            ("a >= 9", true),
            ("not a >= 3", false),
            ("a in (1, 2, 10)", false),
            ("a in (1, 4)", true),
            ("a is null", false),
            ("a = 'x'", true), // other types are not decided here
            ("b starts_with 'POST'", false),
            ("b starts_with 'GET /b/c'", false),
            ("b starts_with 'GET'", true),
            ("b contains 'x'", true),
            ("c = 1", false),
            ("c is not null", false),
            ("c is null", true),
            ("d = 1 and d is null", true),
            ("a = null", false),
        ] {
            // Each text reads the field with its own number.
            let names = ["a", "b", "c", "d"];
            let expression = FilterExpression::parse(text).unwrap();
            let bounds: Vec<_> = expression
                .fields()
                .iter()
                .map(|path| fields[names.iter().position(|name| *name == path[0]).unwrap()].clone())
                .collect();
            assert_eq!(expression.may_be_true(&bounds), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn left_out_group_has_no_true_record(
            rows in proptest::collection::vec((proptest::option::of(-4i128..5), "[ab]{0,2}"), 1..6),
            limit in -5i128..6,
            word in "[ab]{0,2}",
            form in 0usize..10,
        ) {
            let forms = [
                format!("a < {limit} and b != '{word}'"), format!("a >= {limit}"), format!("not a = {limit}"),
                format!("a in ({limit}, 1, null)"), format!("a not in ({limit}, 1)"), format!("b starts_with '{word}'"),
                format!("a is null or b > '{word}'"), format!("not (a <= {limit} or b = '{word}')"),
                format!("a != {limit} and not b starts_with '{word}'"), format!("{limit} > a and a is not null"),
            ];
            let expression = FilterExpression::parse(&forms[form]).unwrap();
            let column = |name: &str| -> Vec<FieldValue<'_>> {
                rows.iter().map(|(a, b)| match name {
                    "a" => a.map_or(FieldValue::Null, FieldValue::Integer),
                    _ => FieldValue::Text(b.as_str().into()),
                }).collect()
            };
            let columns: Vec<_> = expression.fields().iter().map(|path| column(&path[0])).collect();
            let bounds: Vec<_> = columns.iter().map(|column| range(column)).collect();
            let is_true = (0..rows.len()).any(|row| {
                let record: Vec<_> = columns.iter().map(|column| column[row].clone()).collect();
                expression.is_true(&record)
            });
            prop_assert!(!is_true || expression.may_be_true(&bounds), "{}", forms[form]);
        }
    }
}
