//! The result of a file: rows as JSON, a Parquet file of them, or their number.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{
    BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type, Int64Type,
    Int96Type,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnDescriptor, Type, TypePtr};
use sealstone_function_host::{FunctionCall, FunctionFailure};
use sealstone_functions::{MatchCountLine, MatchLine, OutputLine, RecordText, ResultLine, emit, emit_data};

use super::failure::{bad_data, guarded};
use super::leaf::{LeafValues, SelectedLeaf, SelectedRows};
use super::record::JsonSchema;

/// Bytes of selected rows from which on they become a row group.
const GROUP_BYTES: usize = 8 << 20;
/// Key of the Arrow schema in a file, which has all columns.
const ARROW_SCHEMA: &str = "ARROW:schema";

/// Form of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultForm {
    Json,
    Parquet,
    Count,
}

/// The form of a result, with its state.
enum TableForm {
    Json(JsonSchema),
    Parquet(Box<ParquetOutput>),
    Count(u64),
}

/// The result of a file.
pub(super) struct TableOutput {
    object: u32,
    form: TableForm,
}

/// A Parquet file of the selected rows.
struct ParquetOutput {
    writer: SerializedFileWriter<Vec<u8>>,
    columns: Vec<Arc<ColumnDescriptor>>,
    /// Rows that do not fill a row group yet.
    waiting: Vec<SelectedRows>,
    waiting_bytes: usize,
    written: u64,
}

impl TableOutput {
    pub(super) fn new(
        object: u32,
        metadata: &ParquetMetaData,
        (leaves, is_projected): (&[usize], bool),
        form: ResultForm,
    ) -> Result<Self, FunctionFailure> {
        let form = match form {
            ResultForm::Count => TableForm::Count(0),
            ResultForm::Json => {
                TableForm::Json(JsonSchema::new(metadata.file_metadata().schema_descr(), leaves))
            }
            ResultForm::Parquet => {
                let open = || ParquetOutput::new(metadata, leaves, is_projected);
                TableForm::Parquet(Box::new(guarded((object, &"schema"), open)?))
            }
        };
        Ok(Self { object, form })
    }

    /// Counts selected rows.
    pub(super) fn count(&mut self, rows: usize) {
        if let TableForm::Count(count) = &mut self.form {
            *count += rows as u64;
        }
    }

    /// Adds selected rows.
    pub(super) fn add(
        &mut self,
        call: &mut FunctionCall<'_>,
        rows: SelectedRows,
    ) -> Result<(), FunctionFailure> {
        let object = self.object;
        match &mut self.form {
            TableForm::Count(count) => *count += rows.numbers.len() as u64,
            TableForm::Json(schema) => {
                for (at, number) in rows.numbers.iter().enumerate() {
                    let mut text = String::new();
                    schema.push_row(&rows.leaves, at, &mut text).map_err(|_| {
                        bad_data(
                            object,
                            format!("row {number}: the levels of its columns do not belong together"),
                        )
                    })?;
                    let record = RecordText::Text(text);
                    emit(
                        call,
                        &ResultLine::Match(MatchLine { object, offset: *number, line: number + 1, record }),
                    )?;
                }
            }
            TableForm::Parquet(output) => {
                output.waiting_bytes += rows.bytes;
                output.waiting.push(rows);
                if output.waiting_bytes >= GROUP_BYTES {
                    output.write_group(call, object)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the end of the result.
    pub(super) fn finish(self, call: &mut FunctionCall<'_>, length: u64) -> Result<(), FunctionFailure> {
        let object = self.object;
        match self.form {
            TableForm::Json(_) => Ok(()),
            TableForm::Count(count) => emit(call, &ResultLine::MatchCount(MatchCountLine { object, count })),
            TableForm::Parquet(mut output) => {
                if !output.waiting.is_empty() {
                    output.write_group(call, object)?;
                }
                guarded((object, &"end of the output"), || output.writer.finish())?;
                output.send(call, object)?;
                let line = OutputLine { object, bytes_in: length, bytes_out: output.written };
                emit(call, &ResultLine::Output(line))
            }
        }
    }
}

impl ParquetOutput {
    fn new(metadata: &ParquetMetaData, leaves: &[usize], is_projected: bool) -> Result<Self, ParquetError> {
        let file = metadata.file_metadata();
        let schema = projected_schema(metadata, leaves)?;
        let pairs = file.key_value_metadata().cloned();
        let pairs = pairs.map(|pairs| {
            pairs.into_iter().filter(|pair| !is_projected || pair.key != ARROW_SCHEMA).collect::<Vec<_>>()
        });
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by("Sealstone filter".to_owned())
            .set_statistics_enabled(EnabledStatistics::Chunk)
            // The client joins files by their row groups alone.
            .set_offset_index_disabled(true)
            .set_key_value_metadata(pairs.filter(|pairs| !pairs.is_empty()))
            .build();
        let writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
        let columns = writer.schema_descr().columns().to_vec();
        Ok(Self { writer, columns, waiting: Vec::new(), waiting_bytes: 0, written: 0 })
    }

    /// Writes a row group of the rows that wait.
    fn write_group(&mut self, call: &mut FunctionCall<'_>, object: u32) -> Result<(), FunctionFailure> {
        self.waiting_bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let (writer, columns) = (&mut self.writer, &self.columns);
        guarded((object, &"row group of the output"), || {
            let mut group = writer.next_row_group()?;
            for (number, column) in columns.iter().enumerate() {
                let missing = || ParquetError::General("a column is missing".to_owned());
                let mut out = group.next_column()?.ok_or_else(missing)?;
                for rows in &waiting {
                    write_leaf(&mut out, column, rows.leaves.get(number).ok_or_else(missing)?)?;
                }
                out.close()?;
            }
            group.close()?;
            writer.flush().map_err(ParquetError::from)
        })?;
        self.send(call, object)
    }

    /// Sends the bytes that the writer has.
    fn send(&mut self, call: &mut FunctionCall<'_>, object: u32) -> Result<(), FunctionFailure> {
        let bytes = std::mem::take(self.writer.inner_mut());
        self.written += bytes.len() as u64;
        emit_data(call, object, 0, &bytes)
    }
}

/// Returns the schema of the top-level columns of these leaves.
fn projected_schema(metadata: &ParquetMetaData, leaves: &[usize]) -> Result<TypePtr, ParquetError> {
    let descriptor = metadata.file_metadata().schema_descr();
    let mut roots: Vec<usize> = leaves.iter().map(|leaf| descriptor.get_column_root_idx(*leaf)).collect();
    roots.dedup();
    let root = descriptor.root_schema();
    let fields = roots.iter().filter_map(|root_field| root.get_fields().get(*root_field).cloned()).collect();
    Type::group_type_builder(root.name()).with_fields(fields).build().map(Arc::new)
}

fn write_leaf(
    out: &mut SerializedColumnWriter<'_>,
    column: &ColumnDescriptor,
    leaf: &SelectedLeaf,
) -> Result<(), ParquetError> {
    match &leaf.batch.values {
        LeafValues::Bool(values) => write_values::<BoolType>(out, column, leaf, values),
        LeafValues::Int32(values) => write_values::<Int32Type>(out, column, leaf, values),
        LeafValues::Int64(values) => write_values::<Int64Type>(out, column, leaf, values),
        LeafValues::Int96(values) => write_values::<Int96Type>(out, column, leaf, values),
        LeafValues::Float(values) => write_values::<FloatType>(out, column, leaf, values),
        LeafValues::Double(values) => write_values::<DoubleType>(out, column, leaf, values),
        LeafValues::Bytes(values) => write_values::<ByteArrayType>(out, column, leaf, values),
        LeafValues::Fixed(values) => write_values::<FixedLenByteArrayType>(out, column, leaf, values),
    }
}

fn write_values<T: DataType>(
    out: &mut SerializedColumnWriter<'_>,
    column: &ColumnDescriptor,
    leaf: &SelectedLeaf,
    values: &[T::T],
) -> Result<(), ParquetError> {
    let def = (column.max_def_level() > 0).then_some(&leaf.batch.def[..]);
    let rep = (column.max_rep_level() > 0).then_some(&leaf.batch.rep[..]);
    out.typed::<T>().write_batch(values, def, rep).map(drop)
}
