//! The rows of a row group for which an expression is true.

use std::sync::Arc;

use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use sealstone_function_host::{FunctionCall, FunctionFailure};
use sealstone_functions::filter::{FieldRange, FieldValue, FilterExpression};

use super::failure::bad_data;
use super::footer::chunk_range;
use super::leaf::LeafReader;
use super::pages::PageSource;
use super::values::LeafKind;

/// Rows that are decoded at once.
pub(super) const BATCH_ROWS: usize = 4096;
/// Maximum number of columns that an expression reads: each has a page in memory.
const EXPRESSION_COLUMNS_MAX: usize = 64;

/// An expression, and the columns that it reads.
pub(super) struct RowPredicate {
    expression: FilterExpression,
    /// Number and meaning of the column of each field.
    leaves: Vec<(usize, LeafKind)>,
}

/// Opens a column chunk.
pub(super) fn open_leaf(
    object: u32,
    (number, group): (usize, &RowGroupMetaData),
    leaf: usize,
) -> Result<LeafReader, FunctionFailure> {
    let chunk = group.column(leaf);
    let column = chunk.column_descr_ptr();
    let place = format!("row group {number}, column {}", column.path().string());
    let range = chunk_range(chunk).ok_or_else(|| bad_data(object, format!("{place}: no pages")))?;
    let is_repeated = column.max_rep_level() > 0;
    let values = u64::try_from(chunk.num_values()).unwrap_or_default();
    let source = PageSource::new((object, place), (chunk.compression(), is_repeated), range, values);
    Ok(LeafReader::new(object, Arc::clone(&column), source))
}

impl RowPredicate {
    /// Finds the columns of an expression.
    pub(super) fn new(
        expression: &FilterExpression,
        metadata: &ParquetMetaData,
    ) -> Result<Self, FunctionFailure> {
        let mut expression = expression.clone();
        let schema = metadata.file_metadata().schema_descr();
        let invalid = |text: String| FunctionFailure::invalid(format!("where: {text}"));
        if expression.fields().len() > EXPRESSION_COLUMNS_MAX {
            return Err(invalid(format!("more than {EXPRESSION_COLUMNS_MAX} columns of a Parquet file")));
        }
        let (mut leaves, mut types) = (Vec::new(), Vec::new());
        for path in expression.fields() {
            let name = path.join(".");
            let found = schema.columns().iter().position(|column| column.path().parts() == path);
            let Some(leaf) = found else {
                let within =
                    || schema.columns().iter().filter(|column| column.path().parts().starts_with(path));
                let single = within().find(|column| column.max_rep_level() == 0);
                return Err(invalid(match single.map(|column| column.path().string()) {
                    Some(one) => {
                        format!("column {name} has columns within it; name one of them, such as {one}")
                    }
                    None if within().next().is_some() => format!("column {name} has several values in a row"),
                    None => format!("the table has no column {name}"),
                }));
            };
            let column = schema.column(leaf);
            if column.max_rep_level() > 0 {
                return Err(invalid(format!("column {name} has several values in a row")));
            }
            let kind = LeafKind::of(&column);
            if let LeafKind::Opaque(what) = kind {
                return Err(invalid(format!("column {name} has {what}, which cannot be compared")));
            }
            leaves.push((leaf, kind));
            types.push(kind.field_type(&column));
        }
        expression.bind(&types).map_err(invalid)?;
        Ok(Self { expression, leaves })
    }

    /// Whether the statistics of a row group allow a selected row.
    pub(super) fn may_select(&self, group: &RowGroupMetaData) -> bool {
        let range = |(leaf, kind): &(usize, LeafKind)| {
            let chunk = group.column(*leaf);
            kind.range(chunk.statistics(), chunk.num_values())
        };
        let ranges: Vec<FieldRange<'_>> = self.leaves.iter().map(range).collect();
        self.expression.may_be_true(&ranges)
    }

    /// Returns for each row of a group whether it is selected; `None` if no row is.
    pub(super) fn select(
        &self,
        call: &mut FunctionCall<'_>,
        object: u32,
        (number, group): (usize, &RowGroupMetaData),
    ) -> Result<Option<Vec<bool>>, FunctionFailure> {
        let rows = usize::try_from(group.num_rows()).unwrap_or_default();
        let open = |(leaf, _): &(usize, LeafKind)| open_leaf(object, (number, group), *leaf);
        let mut readers: Vec<LeafReader> = self.leaves.iter().map(open).collect::<Result<_, _>>()?;
        let max_defs: Vec<i16> =
            self.leaves.iter().map(|(leaf, _)| group.column(*leaf).column_descr().max_def_level()).collect();
        let mut selected = Vec::with_capacity(rows);
        while selected.len() < rows {
            let count = BATCH_ROWS.min(rows - selected.len());
            for reader in &mut readers {
                reader.read(call, count)?;
            }
            let mut positions = vec![0; readers.len()];
            let mut fields: Vec<FieldValue<'_>> = Vec::with_capacity(readers.len());
            for row in 0..count {
                fields.clear();
                for (at, reader) in readers.iter().enumerate() {
                    let batch = reader.batch();
                    // A column without repetition has a level for each row.
                    let has_value = batch.def.get(row) == Some(&max_defs[at]);
                    fields.push(match has_value {
                        true => self.leaves[at].1.field_value(&batch.values, positions[at]),
                        false => FieldValue::Null,
                    });
                    positions[at] += usize::from(has_value);
                }
                selected.push(self.expression.is_true(&fields));
            }
        }
        Ok(selected.contains(&true).then_some(selected))
    }
}
