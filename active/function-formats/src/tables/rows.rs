//! One file: its row groups one after the other, and the selected rows of each.

use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use sealstone_function_host::{FunctionCall, FunctionFailure, LogLevel};
use sealstone_functions::filter::FilterExpression;

use super::failure::too_large;
use super::footer::read_footer;
use super::leaf::SelectedRows;
use super::output::{ResultForm, TableOutput};
use super::selection::{BATCH_ROWS, RowPredicate, open_leaf};
use crate::whole_file::open_whole;

/// Maximum bytes of memory for selected rows. Where a row group has more, it is read in parts.
pub const SELECTED_BYTES_MAX: usize = 48 << 20;

/// Arguments of a call for Parquet files.
pub(super) struct ParquetArguments {
    pub(super) expression: FilterExpression,
    /// Names of top-level columns to return; all of them if absent.
    pub(super) columns: Option<Vec<String>>,
    pub(super) form: ResultForm,
}

/// Numbers of the row groups of a file, for the log.
#[derive(Default)]
struct GroupCounts {
    all: usize,
    read: usize,
    selected: usize,
}

/// Filters one file.
pub(super) fn filter_object(
    call: &mut FunctionCall<'_>,
    object: u32,
    arguments: &ParquetArguments,
) -> Result<(), FunctionFailure> {
    let length = open_whole(call, object, "filter")?;
    let metadata = read_footer(call, object, length)?;
    let predicate = RowPredicate::new(&arguments.expression, &metadata)?;
    let leaves = projected_leaves(&metadata, arguments.columns.as_deref())?;
    let is_projected = arguments.columns.is_some();
    let mut output = TableOutput::new(object, &metadata, (&leaves, is_projected), arguments.form)?;
    let mut counts = GroupCounts { all: metadata.num_row_groups(), ..GroupCounts::default() };
    let mut first_row = 0;
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let rows = u64::try_from(group.num_rows()).unwrap_or_default();
        if rows > 0 && predicate.may_select(group) {
            counts.read += 1;
            if let Some(selected) = predicate.select(call, object, (number, group))? {
                counts.selected += 1;
                match arguments.form {
                    ResultForm::Count => output.count(selected.iter().filter(|selected| **selected).count()),
                    _ => read_selected(
                        call,
                        (object, number, group),
                        (&leaves, &selected, first_row),
                        &mut output,
                    )?,
                }
            }
        }
        first_row += rows;
    }
    output.finish(call, length)?;
    let GroupCounts { all, read, selected } = counts;
    let text = format!("object {object}: {all} row groups, {read} read, {selected} with selected rows");
    call.log(LogLevel::Info, &text);
    Ok(())
}

/// Returns the numbers of the columns that belong to these top-level columns.
fn projected_leaves(
    metadata: &ParquetMetaData,
    columns: Option<&[String]>,
) -> Result<Vec<usize>, FunctionFailure> {
    let schema = metadata.file_metadata().schema_descr();
    let Some(columns) = columns else { return Ok((0..schema.num_columns()).collect()) };
    let root = |leaf: usize| schema.column(leaf).path().parts().first().cloned().unwrap_or_default();
    let roots: Vec<String> = (0..schema.num_columns()).map(root).collect();
    if let Some(missing) = columns.iter().find(|name| !roots.contains(name)) {
        return Err(FunctionFailure::invalid(format!("columns: the table has no column {missing}")));
    }
    Ok((0..roots.len()).filter(|leaf| columns.contains(&roots[*leaf])).collect())
}

/// Reads the selected rows of a group, in as many parts as the limit of memory needs.
fn read_selected(
    call: &mut FunctionCall<'_>,
    (object, number, group): (u32, usize, &RowGroupMetaData),
    (leaves, selected, first_row): (&[usize], &[bool], u64),
    output: &mut TableOutput,
) -> Result<(), FunctionFailure> {
    let (mut start, mut count) = (0, selected.len());
    while start < selected.len() {
        let end = selected.len().min(start + count);
        let rows = (leaves, &selected[..end], start);
        match collect_rows(call, (object, number, group), rows)? {
            Some(mut rows) => {
                let is_selected = |row: &usize| selected[*row];
                rows.numbers = (start..end).filter(is_selected).map(|row| first_row + row as u64).collect();
                output.add(call, rows)?;
                start = end;
            }
            // A single row that exceeds the limit has no smaller part.
            None if end - start == 1 => {
                let text =
                    format!("row group {number}: a row needs more than {SELECTED_BYTES_MAX} bytes of memory");
                return Err(too_large(object, text));
            }
            None => count = (end - start).div_ceil(2),
        }
    }
    Ok(())
}

/// Reads the selected rows from `start` on; `None` if they exceed the limit of memory.
fn collect_rows(
    call: &mut FunctionCall<'_>,
    (object, number, group): (u32, usize, &RowGroupMetaData),
    (leaves, selected, start): (&[usize], &[bool], usize),
) -> Result<Option<SelectedRows>, FunctionFailure> {
    let mut rows = SelectedRows::default();
    // Rows after the last selected one are not read.
    let end = selected.iter().rposition(|selected| *selected).map_or(0, |last| last + 1);
    for leaf in leaves {
        let mut reader = open_leaf(object, (number, group), *leaf)?;
        let mut column = reader.selection();
        let mut at = 0;
        while at < end {
            // A batch is completely before the start, or completely after it.
            let stop = if at < start { start } else { end };
            let count = BATCH_ROWS.min(stop - at);
            reader.read(call, count)?;
            if at >= start {
                rows.bytes += reader.append_selected(&selected[at..at + count], &mut column)?;
                if rows.bytes > SELECTED_BYTES_MAX {
                    return Ok(None);
                }
            }
            at += count;
        }
        rows.leaves.push(column);
    }
    Ok(Some(rows))
}
