//! Parser of filter expressions.
//!
//! ```text
//! expression = and { "or" and } ;
//! and = not { "and" not } ;
//! not = "not" not | "(" expression ")" | test ;
//! test = operand compare operand
//!      | operand [ "not" ] "in" "(" literal { "," literal } ")"
//!      | operand "is" [ "not" ] "null"
//!      | operand [ "not" ] ( "contains" | "starts_with" | "ends_with" | "matches" ) text ;
//! compare = "=" | "!=" | "<" | "<=" | ">" | ">=" ;
//! operand = field | literal ;
//! ```

use regex::{Regex, RegexBuilder};

use super::decimal::DecimalNumber;
use super::instant::parse_instant;
use super::lexer::{ExpressionError, ExpressionToken, tokenize};

/// Maximum length of an expression, bytes.
pub const EXPRESSION_BYTES_MAX: usize = 8192;
/// Maximum depth of parentheses and negations.
pub const EXPRESSION_DEPTH_MAX: usize = 32;
/// Maximum size of a compiled regular expression, bytes.
const MATCHES_PROGRAM_BYTES_MAX: usize = 1 << 20;
/// Maximum number of regular expressions.
const MATCHES_MAX: usize = 16;

/// A constant in an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FilterLiteral {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    /// A number that is compared with a decimal column.
    Decimal(DecimalNumber),
    /// A text that is compared with a point in time: nanoseconds since 1970.
    Time(i128),
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FilterOperand {
    /// Index into the fields of the expression.
    Field(usize),
    Literal(FilterLiteral),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareOperator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Test of a text.
#[derive(Clone, Debug)]
pub(super) enum TextTest {
    Contains(String),
    StartsWith(String),
    EndsWith(String),
    Matches(Regex),
}

/// A node of the syntax tree. Its depth is limited by the parser.
#[derive(Clone, Debug)]
pub(super) enum FilterNode {
    Any(Vec<FilterNode>),
    All(Vec<FilterNode>),
    Not(Box<FilterNode>),
    Compare(FilterOperand, CompareOperator, FilterOperand),
    In(FilterOperand, Vec<FilterLiteral>),
    IsNull(FilterOperand),
    Text(FilterOperand, TextTest),
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct FilterExpression {
    pub(super) root: FilterNode,
    fields: Vec<Vec<String>>,
}

impl FilterExpression {
    /// Parses an expression; an error names its column.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        if text.len() > EXPRESSION_BYTES_MAX {
            let reason = format!("expression of {} bytes; at most {EXPRESSION_BYTES_MAX}", text.len());
            return Err(ExpressionError::new(1, reason));
        }
        let tokens = tokenize(text)?;
        let mut parser = ExpressionParser { tokens, position: 0, fields: Vec::new(), depth: 0, matches: 0 };
        let root = parser.parse_any()?;
        match parser.peek() {
            ExpressionToken::End => Ok(Self { root, fields: parser.fields }),
            other => Err(parser.error(format!("expected and, or, or the end, found {other}"))),
        }
    }

    /// Converts the literals that are compared with fields of these types.
    ///
    /// # Errors
    /// For a text that is compared with a time and has no form of one.
    pub fn bind(&mut self, types: &[FieldType]) -> Result<(), String> {
        self.root.bind(types)
    }

    /// Returns the fields that the expression reads, each as the keys of nested objects.
    #[must_use]
    pub fn fields(&self) -> &[Vec<String>] {
        &self.fields
    }
}

/// Type of a field that has one for all records, as far as it changes literals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// A type whose values are compared with literals as they are.
    Plain,
    /// A point in time, which is compared with texts such as `2026-11-27T10:00:00Z`.
    Time,
    /// A decimal fraction, which is compared with numbers without rounding.
    Decimal,
}

impl FilterLiteral {
    /// Converts the literal for the comparison with a field of a type.
    fn convert(&mut self, field: FieldType) -> Result<(), String> {
        let converted = match (field, &*self) {
            (FieldType::Time, Self::Text(text)) => {
                let expected = "expected a date such as 2026-11-27, or a time such as 2026-11-27T10:00:00Z";
                Self::Time(parse_instant(text).ok_or_else(|| format!("'{text}': {expected}"))?)
            }
            (FieldType::Decimal, Self::Float(value)) => match DecimalNumber::of_float(*value) {
                Some(decimal) => Self::Decimal(decimal),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        *self = converted;
        Ok(())
    }
}

impl FilterNode {
    fn bind(&mut self, types: &[FieldType]) -> Result<(), String> {
        let type_of = |operand: &FilterOperand| match operand {
            FilterOperand::Field(index) => types.get(*index).copied(),
            FilterOperand::Literal(_) => None,
        };
        match self {
            Self::Any(parts) | Self::All(parts) => parts.iter_mut().try_for_each(|part| part.bind(types)),
            Self::Not(part) => part.bind(types),
            Self::Compare(left, _, right) => match (type_of(left), type_of(right), left, right) {
                (Some(field), None, _, FilterOperand::Literal(literal))
                | (None, Some(field), FilterOperand::Literal(literal), _) => literal.convert(field),
                _ => Ok(()),
            },
            Self::In(operand, list) => match type_of(operand) {
                Some(field) => list.iter_mut().try_for_each(|literal| literal.convert(field)),
                None => Ok(()),
            },
            Self::IsNull(_) | Self::Text(..) => Ok(()),
        }
    }
}

struct ExpressionParser {
    tokens: Vec<(usize, ExpressionToken)>,
    position: usize,
    fields: Vec<Vec<String>>,
    depth: usize,
    matches: usize,
}

impl ExpressionParser {
    fn peek(&self) -> &ExpressionToken {
        &self.tokens[self.position].1
    }

    /// Returns the next token; the last one is returned again.
    fn next(&mut self) -> ExpressionToken {
        let token = self.peek().clone();
        self.position = (self.position + 1).min(self.tokens.len() - 1);
        token
    }

    fn error(&self, reason: impl Into<String>) -> ExpressionError {
        ExpressionError::new(self.tokens[self.position].0, reason)
    }

    fn accept_keyword(&mut self, word: &str) -> bool {
        let is_next = matches!(self.peek(), ExpressionToken::Keyword(other) if *other == word);
        if is_next {
            self.next();
        }
        is_next
    }

    fn accept_symbol(&mut self, symbol: &str) -> bool {
        let is_next = matches!(self.peek(), ExpressionToken::Symbol(other) if *other == symbol);
        if is_next {
            self.next();
        }
        is_next
    }

    fn require_symbol(&mut self, symbol: &str) -> Result<(), ExpressionError> {
        if self.accept_symbol(symbol) {
            return Ok(());
        }
        Err(self.error(format!("expected {symbol}, found {}", self.peek())))
    }

    fn parse_any(&mut self) -> Result<FilterNode, ExpressionError> {
        let mut parts = vec![self.parse_all()?];
        while self.accept_keyword("or") {
            parts.push(self.parse_all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { FilterNode::Any(parts) })
    }

    fn parse_all(&mut self) -> Result<FilterNode, ExpressionError> {
        let mut parts = vec![self.parse_not()?];
        while self.accept_keyword("and") {
            parts.push(self.parse_not()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { FilterNode::All(parts) })
    }

    fn parse_not(&mut self) -> Result<FilterNode, ExpressionError> {
        if self.depth == EXPRESSION_DEPTH_MAX {
            return Err(self.error(format!("more than {EXPRESSION_DEPTH_MAX} levels of parentheses and not")));
        }
        self.depth += 1;
        let node = if self.accept_keyword("not") {
            FilterNode::Not(Box::new(self.parse_not()?))
        } else if self.accept_symbol("(") {
            let node = self.parse_any()?;
            self.require_symbol(")")?;
            node
        } else {
            self.parse_test()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn parse_test(&mut self) -> Result<FilterNode, ExpressionError> {
        let left = self.parse_operand()?;
        let compare = match self.peek() {
            ExpressionToken::Symbol("=") => Some(CompareOperator::Equal),
            ExpressionToken::Symbol("!=") => Some(CompareOperator::NotEqual),
            ExpressionToken::Symbol("<") => Some(CompareOperator::Less),
            ExpressionToken::Symbol("<=") => Some(CompareOperator::LessOrEqual),
            ExpressionToken::Symbol(">") => Some(CompareOperator::Greater),
            ExpressionToken::Symbol(">=") => Some(CompareOperator::GreaterOrEqual),
            _ => None,
        };
        if let Some(operator) = compare {
            self.next();
            return Ok(FilterNode::Compare(left, operator, self.parse_operand()?));
        }
        if self.accept_keyword("is") {
            let is_negated = self.accept_keyword("not");
            if !self.accept_keyword("null") {
                return Err(self.error(format!("expected null, found {}", self.peek())));
            }
            return Ok(negate_if(is_negated, FilterNode::IsNull(left)));
        }
        let is_negated = self.accept_keyword("not");
        if self.accept_keyword("in") {
            return Ok(negate_if(is_negated, FilterNode::In(left, self.parse_list()?)));
        }
        let test = self.parse_text_test()?;
        Ok(negate_if(is_negated, FilterNode::Text(left, test)))
    }

    fn parse_list(&mut self) -> Result<Vec<FilterLiteral>, ExpressionError> {
        self.require_symbol("(")?;
        let mut list = Vec::new();
        loop {
            let column = self.tokens[self.position].0;
            match self.parse_operand()? {
                FilterOperand::Literal(literal) => list.push(literal),
                FilterOperand::Field(_) => {
                    return Err(ExpressionError::new(column, "expected a value, found a field"));
                }
            }
            if !self.accept_symbol(",") {
                self.require_symbol(")")?;
                return Ok(list);
            }
        }
    }

    fn parse_text_test(&mut self) -> Result<TextTest, ExpressionError> {
        let make: fn(String) -> TextTest = match self.peek() {
            ExpressionToken::Keyword("contains") => TextTest::Contains,
            ExpressionToken::Keyword("starts_with") => TextTest::StartsWith,
            ExpressionToken::Keyword("ends_with") => TextTest::EndsWith,
            ExpressionToken::Keyword("matches") => {
                self.next();
                return self.parse_matches();
            }
            other => return Err(self.error(format!("expected a comparison such as =, found {other}"))),
        };
        self.next();
        self.parse_text().map(make)
    }

    fn parse_matches(&mut self) -> Result<TextTest, ExpressionError> {
        if self.matches == MATCHES_MAX {
            return Err(self.error(format!("more than {MATCHES_MAX} regular expressions")));
        }
        self.matches += 1;
        let column = self.tokens[self.position].0;
        let pattern = self.parse_text()?;
        RegexBuilder::new(&pattern)
            .size_limit(MATCHES_PROGRAM_BYTES_MAX)
            .nest_limit(EXPRESSION_DEPTH_MAX as u32)
            .build()
            .map(TextTest::Matches)
            .map_err(|error| ExpressionError::new(column, format!("invalid regular expression: {error}")))
    }

    fn parse_text(&mut self) -> Result<String, ExpressionError> {
        match self.peek() {
            ExpressionToken::Text(_) => {}
            other => return Err(self.error(format!("expected text in quotes, found {other}"))),
        }
        let ExpressionToken::Text(text) = self.next() else { return Ok(String::new()) };
        Ok(text)
    }

    fn parse_operand(&mut self) -> Result<FilterOperand, ExpressionError> {
        let literal = match self.peek().clone() {
            ExpressionToken::Field(path) => {
                self.next();
                let known = self.fields.iter().position(|other| *other == path);
                return Ok(FilterOperand::Field(known.unwrap_or_else(|| {
                    self.fields.push(path);
                    self.fields.len() - 1
                })));
            }
            ExpressionToken::Text(text) => FilterLiteral::Text(text),
            ExpressionToken::Integer(number) => FilterLiteral::Integer(number),
            ExpressionToken::Float(number) => FilterLiteral::Float(number),
            ExpressionToken::Keyword("null") => FilterLiteral::Null,
            ExpressionToken::Keyword("true") => FilterLiteral::Bool(true),
            ExpressionToken::Keyword("false") => FilterLiteral::Bool(false),
            other => return Err(self.error(format!("expected a field or a value, found {other}"))),
        };
        self.next();
        Ok(FilterOperand::Literal(literal))
    }
}

fn negate_if(is_negated: bool, node: FilterNode) -> FilterNode {
    if is_negated { FilterNode::Not(Box::new(node)) } else { node }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn expression_error_names_its_column() {
        for (text, error) in [
            ("", "column 1: expected a field or a value, found the end of the expression"),
            ("status >=", "column 10: expected a field or a value, found the end of the expression"),
            ("status 500", "column 8: expected a comparison such as =, found 500"),
            ("(a = 1", "column 7: expected ), found the end of the expression"),
            ("a = 1 b", "column 7: expected and, or, or the end, found b"),
            ("a = 'x", "column 5: no closing '"),
            ("a # 1", "column 3: unexpected character #"),
            ("a = 1x2", "column 5: 1x2 is not a number"),
            ("a in (b)", "column 7: expected a value, found a field"),
            ("a in ()", "column 7: expected a field or a value, found )"),
            ("a is 5", "column 6: expected null, found 5"),
            ("a contains 5", "column 12: expected text in quotes, found 5"),
            ("ä.ö = 1 and a. = 1", "column 13: a. has an empty part; write `a.` in backquotes"),
        ] {
            assert_eq!(FilterExpression::parse(text).unwrap_err().to_string(), error);
        }
        let error = FilterExpression::parse("a matches '('").unwrap_err();
        assert_eq!(error.column, 11);
    }

    #[test]
    fn expression_over_limits_is_refused() {
        for text in [
            "a".repeat(EXPRESSION_BYTES_MAX + 1),
            "(".repeat(5000),
            "not ".repeat(2000) + "a = 1",
            "!".repeat(8000),
            vec!["a matches 'x'"; MATCHES_MAX + 1].join(" or "),
            r"a matches '(\w{100}){100}'".to_owned(),
        ] {
            assert!(FilterExpression::parse(&text).is_err());
        }
        let depth = EXPRESSION_DEPTH_MAX - 1;
        assert!(FilterExpression::parse(&("(".repeat(depth) + "a = 1" + &")".repeat(depth))).is_ok());
        assert!(FilterExpression::parse(&vec!["a = 1"; 500].join(" or ")).is_ok());
    }

    #[test]
    fn fields_are_listed_once() {
        let expression = FilterExpression::parse("a.b = 1 or `a.b` = 2 or a.b in (3)").unwrap();
        assert_eq!(expression.fields(), [vec!["a".to_owned(), "b".into()], vec!["a.b".into()]]);
    }

    proptest! {
        #[test]
        fn arbitrary_expression_never_panics(text in "[a-c0-9 .'`()=<>!~,&|+eE-]{0,60}|.{0,60}") {
            let _ = FilterExpression::parse(&text);
        }
    }
}
