//! Tokens of filter expressions.

use std::fmt;

/// A filter expression that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// Column of the error in characters, from 1.
    pub column: usize,
    /// Reason, and the form that is expected.
    pub reason: String,
}

impl ExpressionError {
    pub(super) fn new(column: usize, reason: impl Into<String>) -> Self {
        Self { column, reason: reason.into() }
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.reason)
    }
}

impl std::error::Error for ExpressionError {}

/// A token of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ExpressionToken {
    /// Name of a field; a dot separates the keys of nested objects.
    Field(Vec<String>),
    /// Text in quotes.
    Text(String),
    Integer(i128),
    Float(f64),
    /// A keyword in lower case.
    Keyword(&'static str),
    /// An operator, parenthesis or comma.
    Symbol(&'static str),
    End,
}

impl fmt::Display for ExpressionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(path) => write!(f, "{}", path.join(".")),
            Self::Text(text) => write!(f, "'{text}'"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number}"),
            Self::Keyword(word) | Self::Symbol(word) => f.write_str(word),
            Self::End => f.write_str("the end of the expression"),
        }
    }
}

const KEYWORDS: &[&str] = &[
    "and",
    "or",
    "not",
    "in",
    "is",
    "null",
    "true",
    "false",
    "contains",
    "starts_with",
    "ends_with",
    "matches",
];

/// Longer symbols stand before their prefixes.
const SYMBOLS: &[(&str, &str)] = &[
    ("==", "="),
    ("!=", "!="),
    ("<>", "!="),
    ("<=", "<="),
    (">=", ">="),
    ("&&", "and"),
    ("||", "or"),
    ("=", "="),
    ("<", "<"),
    (">", ">"),
    ("~", "matches"),
    ("!", "not"),
    ("(", "("),
    (")", ")"),
    (",", ","),
];

/// Splits an expression into tokens with their columns. The last token is `End`.
pub(super) fn tokenize(text: &str) -> Result<Vec<(usize, ExpressionToken)>, ExpressionError> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let column = text[..text.len() - rest.len()].chars().count() + 1;
        let Some(first) = rest.chars().next() else {
            tokens.push((column, ExpressionToken::End));
            return Ok(tokens);
        };
        let (token, after) = match first {
            '\'' | '"' => {
                let (content, after) = quoted(rest, first, column)?;
                (ExpressionToken::Text(content), after)
            }
            '`' => {
                let (content, after) = quoted(rest, first, column)?;
                (ExpressionToken::Field(vec![content]), after)
            }
            '0'..='9' | '-' | '+' | '.' => number(rest, column)?,
            _ if first.is_alphabetic() || first == '_' => word(rest, column)?,
            _ => symbol(rest, first, column)?,
        };
        tokens.push((column, token));
        rest = after;
    }
}

/// Reads text in quotes; the quote is doubled within it.
fn quoted(text: &str, quote: char, column: usize) -> Result<(String, &str), ExpressionError> {
    let mut content = String::new();
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((position, character)) = characters.next() {
        if character != quote {
            content.push(character);
        } else if characters.next_if(|(_, next)| *next == quote).is_some() {
            content.push(quote);
        } else {
            return Ok((content, &text[position + 1..]));
        }
    }
    Err(ExpressionError::new(column, format!("no closing {quote}")))
}

fn number(text: &str, column: usize) -> Result<(ExpressionToken, &str), ExpressionError> {
    let mut previous = ' ';
    let is_part = |character: char, previous: char| match character {
        '0'..='9' | '.' | '_' | 'a'..='z' | 'A'..='Z' => true,
        '+' | '-' => matches!(previous, ' ' | 'e' | 'E'),
        _ => false,
    };
    let end = text
        .char_indices()
        .find(|(_, character)| !is_part(*character, std::mem::replace(&mut previous, *character)))
        .map_or(text.len(), |(position, _)| position);
    let (digits, after) = text.split_at(end);
    let token = match (digits.parse::<i128>(), digits.parse::<f64>()) {
        (Ok(integer), _) => ExpressionToken::Integer(integer),
        (_, Ok(float)) if float.is_finite() => ExpressionToken::Float(float),
        _ => return Err(ExpressionError::new(column, format!("{digits} is not a number"))),
    };
    Ok((token, after))
}

fn word(text: &str, column: usize) -> Result<(ExpressionToken, &str), ExpressionError> {
    let is_part = |character: char| character.is_alphanumeric() || matches!(character, '_' | '.');
    let end = text.find(|character| !is_part(character)).unwrap_or(text.len());
    let (name, after) = text.split_at(end);
    if let Some(keyword) = KEYWORDS.iter().find(|keyword| name.eq_ignore_ascii_case(keyword)) {
        return Ok((ExpressionToken::Keyword(keyword), after));
    }
    let path: Vec<String> = name.split('.').map(str::to_owned).collect();
    if path.iter().any(String::is_empty) {
        return Err(ExpressionError::new(
            column,
            format!("{name} has an empty part; write `{name}` in backquotes"),
        ));
    }
    Ok((ExpressionToken::Field(path), after))
}

fn symbol(text: &str, first: char, column: usize) -> Result<(ExpressionToken, &str), ExpressionError> {
    let Some((spelling, name)) = SYMBOLS.iter().find(|(spelling, _)| text.starts_with(spelling)) else {
        return Err(ExpressionError::new(column, format!("unexpected character {first}")));
    };
    let token = match *name {
        "and" | "or" | "not" | "matches" => ExpressionToken::Keyword(name),
        _ => ExpressionToken::Symbol(name),
    };
    Ok((token, &text[spelling.len()..]))
}
