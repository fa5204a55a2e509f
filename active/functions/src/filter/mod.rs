//! `filter`: records of CSV and JSON lines for which an expression is true.
//!
//! The module of the function reads Parquet tables too, with the expressions of this crate.

mod csv;
mod decimal;
mod evaluate;
mod expression;
pub mod instant;
mod json;
mod lexer;
mod prune;

use sealstone_function_host::{FunctionArguments, FunctionCall, FunctionErrno, FunctionFailure};

pub use decimal::{DECIMAL_DIGITS_MAX, DecimalNumber};
pub use evaluate::FieldValue;
pub use expression::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX, FieldType, FilterExpression};
pub use lexer::ExpressionError;
pub use prune::FieldRange;

use crate::search::{RecordSearch, run_search};

/// Runs `filter`.
pub fn run_filter(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    run_search(call, make_filter)
}

/// Returns the search that the arguments of `filter` describe.
pub(crate) fn make_filter(
    arguments: &FunctionArguments<'_>,
) -> Result<Box<dyn RecordSearch>, FunctionFailure> {
    if arguments.get("format") == Some("parquet") {
        let message = "the code for parquet files is only in the module of the function";
        return Err(FunctionFailure::new(FunctionErrno::UNSUPPORTED, message));
    }
    arguments.allow_only(&["where", "format", "delimiter", "skip-invalid", "count", "header.", "stripe."])?;
    let expression = FilterExpression::parse(arguments.require("where")?)
        .map_err(|error| FunctionFailure::invalid(format!("where: {error}")))?;
    let skip_invalid = arguments.switch("skip-invalid")?;
    match arguments.require("format")? {
        "csv" => {
            let delimiter = parse_delimiter(arguments.get("delimiter").unwrap_or(","))?;
            Ok(Box::new(csv::CsvSearch::new(expression, delimiter, skip_invalid)))
        }
        "jsonl" => Ok(Box::new(json::JsonSearch::new(expression, skip_invalid))),
        _ => Err(FunctionFailure::invalid("argument format: expected csv, jsonl or parquet")),
    }
}

fn parse_delimiter(text: &str) -> Result<u8, FunctionFailure> {
    match text.as_bytes() {
        b"tab" => Ok(b'\t'),
        [byte] if !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        _ => Err(FunctionFailure::invalid("argument delimiter: expected one ASCII character, or tab")),
    }
}

/// Returns the error of a malformed record.
fn malformed(offset: u64, reason: &str) -> FunctionFailure {
    FunctionFailure::new(FunctionErrno::BAD_DATA, format!("record at offset {offset}: {reason}"))
}
