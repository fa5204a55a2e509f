//! `filter` of Parquet files: rows for which an expression is true.
//!
//! Does: read the footer, leave out row groups by their statistics, read the columns of the
//! expression, and read the others only where rows are selected.
//! Does not: read stripe units. A striped file is the error ENOSYS, and the client runs the module.
//! Contract: limits are checked before memory is reserved. The library decodes pages that this
//! crate has decompressed; a panic of the library is the error EBADMSG.
//! Source of truth: docs/reference/shipped-functions.md; the Parquet format.

mod codec;
mod failure;
mod footer;
mod leaf;
mod output;
mod pages;
mod record;
mod rows;
mod selection;
mod values;

use sealstone_function_host::{FunctionCall, FunctionFailure};
use sealstone_functions::entry;
use sealstone_functions::filter::FilterExpression;

pub use failure::parquet_position;
pub use footer::{FOOTER_BYTES_MAX, ROW_GROUPS_MAX};
pub use pages::PAGE_BYTES_MAX;
pub use rows::SELECTED_BYTES_MAX;

use self::output::ResultForm;
use self::rows::{ParquetArguments, filter_object};

/// Runs `filter`, also on Parquet files.
pub fn run_filter(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    if arguments.get("format") != Some("parquet") {
        return entry::run_filter(call);
    }
    arguments.allow_only(&["where", "format", "columns", "result-format", "count", "stripe."])?;
    let expression = FilterExpression::parse(arguments.require("where")?)
        .map_err(|error| FunctionFailure::invalid(format!("where: {error}")))?;
    let form = match (arguments.switch("count")?, arguments.get("result-format")) {
        (_, Some(other)) if !matches!(other, "json" | "parquet") => {
            return Err(FunctionFailure::invalid("argument result-format: expected json or parquet"));
        }
        (true, _) => ResultForm::Count,
        (false, Some("parquet")) => ResultForm::Parquet,
        (false, _) => ResultForm::Json,
    };
    let columns = arguments.get("columns").map(|names| {
        names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    });
    if columns.as_ref().is_some_and(Vec::is_empty) {
        return Err(FunctionFailure::invalid("argument columns: expected names, separated by commas"));
    }
    let parsed = ParquetArguments { expression, columns, form };
    for object in 0..call.object_count() {
        filter_object(call, object, &parsed)?;
        call.progress(u64::from(object) + 1, u64::from(call.object_count()));
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
