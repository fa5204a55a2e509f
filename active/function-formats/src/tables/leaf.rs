//! Values of one column: batches of rows, and the values of selected rows.

use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescPtr;
use sealstone_function_host::{FunctionCall, FunctionFailure};

use super::failure::{bad_data, guarded};
use super::pages::{PageQueue, PageSource};

/// Bytes of memory of a value of variable length beside its own bytes.
const VALUE_BYTES: usize = 40;
/// Bytes of memory of the two levels of a value.
const LEVEL_BYTES: usize = 4;

/// Values of one physical type.
#[derive(Debug)]
pub(super) enum LeafValues {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Int96(Vec<Int96>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

impl LeafValues {
    fn of(reader: &ColumnReader) -> Self {
        match reader {
            ColumnReader::BoolColumnReader(_) => Self::Bool(Vec::new()),
            ColumnReader::Int32ColumnReader(_) => Self::Int32(Vec::new()),
            ColumnReader::Int64ColumnReader(_) => Self::Int64(Vec::new()),
            ColumnReader::Int96ColumnReader(_) => Self::Int96(Vec::new()),
            ColumnReader::FloatColumnReader(_) => Self::Float(Vec::new()),
            ColumnReader::DoubleColumnReader(_) => Self::Double(Vec::new()),
            ColumnReader::ByteArrayColumnReader(_) => Self::Bytes(Vec::new()),
            ColumnReader::FixedLenByteArrayColumnReader(_) => Self::Fixed(Vec::new()),
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Bool(values) => values.clear(),
            Self::Int32(values) => values.clear(),
            Self::Int64(values) => values.clear(),
            Self::Int96(values) => values.clear(),
            Self::Float(values) => values.clear(),
            Self::Double(values) => values.clear(),
            Self::Bytes(values) => values.clear(),
            Self::Fixed(values) => values.clear(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bool(values) => values.len(),
            Self::Int32(values) => values.len(),
            Self::Int64(values) => values.len(),
            Self::Int96(values) => values.len(),
            Self::Float(values) => values.len(),
            Self::Double(values) => values.len(),
            Self::Bytes(values) => values.len(),
            Self::Fixed(values) => values.len(),
        }
    }
}

/// Levels and values. There are as many levels of both kinds, also where the column has none.
#[derive(Debug)]
pub(super) struct LeafBatch {
    pub(super) def: Vec<i16>,
    pub(super) rep: Vec<i16>,
    pub(super) values: LeafValues,
}

/// Values of the selected rows of a column.
#[derive(Debug)]
pub(super) struct SelectedLeaf {
    pub(super) batch: LeafBatch,
    /// For each row, the ends of its levels and of its values.
    pub(super) row_ends: Vec<(usize, usize)>,
}

/// Selected rows that are not written yet.
#[derive(Default)]
pub(super) struct SelectedRows {
    pub(super) leaves: Vec<SelectedLeaf>,
    /// Numbers of the rows in the file, from 0.
    pub(super) numbers: Vec<u64>,
    pub(super) bytes: usize,
}

/// Reads a column chunk.
pub(super) struct LeafReader {
    object: u32,
    column: ColumnDescPtr,
    source: PageSource,
    queue: PageQueue,
    reader: ColumnReader,
    batch: LeafBatch,
}

fn malformed(reason: &str) -> ParquetError {
    ParquetError::General(reason.to_owned())
}

/// Copies the levels and values of selected rows; returns the bytes of memory of the copies.
fn copy_selected<T>(
    (def, rep, max_def): (&[i16], &[i16], i16),
    values: &[T],
    selected: &[bool],
    (out_def, out_rep, row_ends): (&mut Vec<i16>, &mut Vec<i16>, &mut Vec<(usize, usize)>),
    out: &mut Vec<T>,
    copy: impl Fn(&T) -> (T, usize),
) -> Result<usize, ParquetError> {
    let (mut row, mut value, mut bytes) = (0, 0, 0);
    let mut is_selected = false;
    for (at, (def, rep)) in def.iter().zip(rep).enumerate() {
        if *rep == 0 {
            if is_selected {
                row_ends.push((out_def.len(), out.len()));
            }
            is_selected = *selected.get(row).ok_or_else(|| malformed("it has too many rows"))?;
            row += 1;
        } else if at == 0 {
            return Err(malformed("a row begins within another one"));
        }
        let has_value = *def == max_def;
        if is_selected {
            out_def.push(*def);
            out_rep.push(*rep);
            bytes += LEVEL_BYTES;
            if has_value {
                let (copied, size) = copy(values.get(value).ok_or_else(|| malformed("it lacks values"))?);
                out.push(copied);
                bytes += size;
            }
        }
        value += usize::from(has_value);
    }
    if is_selected {
        row_ends.push((out_def.len(), out.len()));
    }
    if row == selected.len() { Ok(bytes) } else { Err(malformed("it has too few rows")) }
}

impl LeafReader {
    pub(super) fn new(object: u32, column: ColumnDescPtr, source: PageSource) -> Self {
        let queue = PageQueue::default();
        let reader = get_column_reader(column.clone(), Box::new(queue.clone()));
        let values = LeafValues::of(&reader);
        let batch = LeafBatch { def: Vec::new(), rep: Vec::new(), values };
        Self { object, column, source, queue, reader, batch }
    }

    /// Returns the values of the last batch.
    pub(super) const fn batch(&self) -> &LeafBatch {
        &self.batch
    }

    /// Returns a place for selected rows of the column.
    pub(super) fn selection(&self) -> SelectedLeaf {
        let values = LeafValues::of(&self.reader);
        let batch = LeafBatch { def: Vec::new(), rep: Vec::new(), values };
        SelectedLeaf { batch, row_ends: Vec::new() }
    }

    /// Reads the next rows. Fewer are an error.
    pub(super) fn read(&mut self, call: &mut FunctionCall<'_>, rows: usize) -> Result<(), FunctionFailure> {
        self.batch.def.clear();
        self.batch.rep.clear();
        self.batch.values.clear();
        let mut done = 0;
        while done < rows {
            let is_at_end = self.queue.is_empty() && self.source.is_at_end();
            if self.queue.is_empty()
                && let Some(page) = self.source.next_page(call)?
            {
                self.queue.push(page, self.source.is_at_end());
            }
            let (reader, batch) = (&mut self.reader, &mut self.batch);
            let place = self.source.place();
            let read = guarded((self.object, &place), || read_records(reader, batch, rows - done))?;
            if is_at_end && read == 0 {
                let text = format!("{place}: it has fewer rows than its row group");
                return Err(bad_data(self.object, text));
            }
            done += read;
        }
        self.check_levels()
            .map_err(|error| bad_data(self.object, format!("{}: {error}", self.source.place())))
    }

    /// Compares levels and values, and adds the levels that the column does not have.
    fn check_levels(&mut self) -> Result<(), ParquetError> {
        let (max_def, max_rep) = (self.column.max_def_level(), self.column.max_rep_level());
        let LeafBatch { def, rep, values } = &mut self.batch;
        if max_def == 0 {
            def.resize(values.len(), 0);
        }
        if max_rep == 0 {
            rep.resize(def.len(), 0);
        }
        let in_range = |levels: &[i16], max: i16| levels.iter().all(|level| (0..=max).contains(level));
        let count = def.iter().filter(|level| **level == max_def).count();
        match def.len() == rep.len()
            && in_range(def, max_def)
            && in_range(rep, max_rep)
            && count == values.len()
        {
            true => Ok(()),
            false => Err(malformed("levels and values do not belong together")),
        }
    }

    /// Appends the selected rows of the last batch; returns the bytes of memory that they need.
    pub(super) fn append_selected(
        &self,
        selected: &[bool],
        into: &mut SelectedLeaf,
    ) -> Result<usize, FunctionFailure> {
        let LeafBatch { def, rep, values } = &self.batch;
        let levels = (&def[..], &rep[..], self.column.max_def_level());
        let out = (&mut into.batch.def, &mut into.batch.rep, &mut into.row_ends);
        // Bytes of a page are copied, so that they do not keep the page.
        let copied = match (values, &mut into.batch.values) {
            (LeafValues::Bool(values), LeafValues::Bool(to)) => {
                copy_selected(levels, values, selected, out, to, |value| (*value, 1))
            }
            (LeafValues::Int32(values), LeafValues::Int32(to)) => {
                copy_selected(levels, values, selected, out, to, |value| (*value, 4))
            }
            (LeafValues::Int64(values), LeafValues::Int64(to)) => {
                copy_selected(levels, values, selected, out, to, |value| (*value, 8))
            }
            (LeafValues::Int96(values), LeafValues::Int96(to)) => {
                copy_selected(levels, values, selected, out, to, |value| (*value, 12))
            }
            (LeafValues::Float(values), LeafValues::Float(to)) => {
                copy_selected(levels, values, selected, out, to, |value| (*value, 4))
            }
            (LeafValues::Double(values), LeafValues::Double(to)) => {
                copy_selected(levels, values, selected, out, to, |value| (*value, 8))
            }
            (LeafValues::Bytes(values), LeafValues::Bytes(to)) => {
                copy_selected(levels, values, selected, out, to, |value| {
                    (ByteArray::from(value.data().to_vec()), value.len() + VALUE_BYTES)
                })
            }
            (LeafValues::Fixed(values), LeafValues::Fixed(to)) => {
                copy_selected(levels, values, selected, out, to, |value| {
                    (FixedLenByteArray::from(value.data().to_vec()), value.len() + VALUE_BYTES)
                })
            }
            _ => Err(malformed("its type changes")),
        };
        copied.map_err(|error| bad_data(self.object, format!("{}: {error}", self.source.place())))
    }
}

fn read_records(
    reader: &mut ColumnReader,
    batch: &mut LeafBatch,
    rows: usize,
) -> Result<usize, ParquetError> {
    let LeafBatch { def, rep, values } = batch;
    let read = match (reader, values) {
        (ColumnReader::BoolColumnReader(reader), LeafValues::Bool(values)) => {
            reader.read_records(rows, Some(def), Some(rep), values)?
        }
        (ColumnReader::Int32ColumnReader(reader), LeafValues::Int32(values)) => {
            reader.read_records(rows, Some(def), Some(rep), values)?
        }
        (ColumnReader::Int64ColumnReader(reader), LeafValues::Int64(values)) => {
            reader.read_records(rows, Some(def), Some(rep), values)?
        }
        (ColumnReader::Int96ColumnReader(reader), LeafValues::Int96(values)) => {
            reader.read_records(rows, Some(def), Some(rep), values)?
        }
        (ColumnReader::FloatColumnReader(reader), LeafValues::Float(values)) => {
            reader.read_records(rows, Some(def), Some(rep), values)?
        }
        (ColumnReader::DoubleColumnReader(reader), LeafValues::Double(values)) => {
            reader.read_records(rows, Some(def), Some(rep), values)?
        }
        (ColumnReader::ByteArrayColumnReader(reader), LeafValues::Bytes(values)) => {
            reader.read_records(rows, Some(def), Some(rep), values)?
        }
        (ColumnReader::FixedLenByteArrayColumnReader(reader), LeafValues::Fixed(values)) => {
            reader.read_records(rows, Some(def), Some(rep), values)?
        }
        _ => return Err(malformed("its type changes")),
    };
    Ok(read.0)
}
