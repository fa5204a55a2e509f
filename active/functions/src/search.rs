//! Functions that select records: the loop over objects and units that `grep` and `filter` share.

use sealstone_function_host::{
    FunctionArguments, FunctionCall, FunctionErrno, FunctionFailure, LogLevel, RecordBlock, RecordFormat,
    RecordSink, StripeGeometry, scan_unit,
};

use crate::result::{EdgeLine, MatchCountLine, MatchLine, RecordText, ResultLine, emit};

/// Maximum size of the header row of a table, bytes.
pub(crate) const HEADER_BYTES_MAX: usize = 64 * 1024;

/// A record that a search selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SelectedRecord<'b> {
    /// Offset in the file, bytes.
    pub(crate) offset: u64,
    /// Number of records that end before it, from the start of the unit.
    pub(crate) ends_before: u64,
    /// The record without its line feed.
    pub(crate) bytes: &'b [u8],
}

/// Receiver of selected records.
pub(crate) type SelectRecord<'f> = &'f mut dyn FnMut(SelectedRecord<'_>) -> Result<(), FunctionFailure>;

/// Selects records of a block.
pub(crate) trait RecordSearch {
    /// Returns the form of the records.
    fn format(&self) -> RecordFormat;

    /// Whether the first record of a file names its columns.
    fn has_header(&self) -> bool {
        false
    }

    /// Sets the row that names the columns of the next file.
    fn set_header(&mut self, _row: &[u8]) -> Result<(), FunctionFailure> {
        Ok(())
    }

    /// Passes each selected record of the block to `select`, in order.
    fn search(&mut self, block: RecordBlock<'_>, select: SelectRecord<'_>) -> Result<(), FunctionFailure>;

    /// Returns the number of records that were skipped because they are malformed.
    fn skipped(&self) -> u64 {
        0
    }
}

/// Returns the search that the arguments describe.
pub(crate) type MakeSearch = fn(&FunctionArguments<'_>) -> Result<Box<dyn RecordSearch>, FunctionFailure>;

/// Searches all objects of a call.
pub(crate) fn run_search(call: &mut FunctionCall<'_>, make: MakeSearch) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    let mut search = make(&arguments)?;
    let count_only = arguments.switch("count")?;
    let total = u64::from(call.object_count());
    for object in 0..call.object_count() {
        let geometry = call.geometry(object)?;
        if search.has_header() {
            let row = read_header(call, &arguments, object, &geometry)?;
            search.set_header(&row)?;
        }
        let mut count = 0;
        for unit in geometry.units() {
            let format = search.format();
            let mut sink =
                SearchSink { search: &mut *search, object, count: count_only.then_some(&mut count) };
            let edges = scan_unit(call, object, unit, format, &mut sink)?;
            if !geometry.is_whole() {
                emit(call, &ResultLine::Edge(EdgeLine::new(object, edges)))?;
            }
        }
        if count_only {
            emit(call, &ResultLine::MatchCount(MatchCountLine { object, count }))?;
        }
        call.progress(u64::from(object) + 1, total);
    }
    if search.skipped() > 0 {
        call.log(LogLevel::Warning, &format!("{} malformed records skipped", search.skipped()));
    }
    Ok(())
}

/// Returns the header row of a file: from the arguments, or from the object that contains it.
fn read_header(
    call: &mut FunctionCall<'_>,
    arguments: &FunctionArguments<'_>,
    object: u32,
    geometry: &StripeGeometry,
) -> Result<Vec<u8>, FunctionFailure> {
    if let Some(row) = arguments.get(&format!("header.{object}")) {
        return Ok(row.as_bytes().to_vec());
    }
    if geometry.index() != 0 {
        let message = format!("object {object} does not contain the header row; pass it as header.{object}");
        return Err(FunctionFailure::invalid(message));
    }
    let available = geometry.unit_bytes().min(geometry.file_length()).min(HEADER_BYTES_MAX as u64);
    let mut row = vec![0; available as usize];
    call.read_zero_filled(object, 0, &mut row)?;
    match memchr::memchr(b'\n', &row) {
        Some(end) => row.truncate(end),
        None if available == geometry.file_length() => {}
        None => {
            let message = format!("header row of object {object} is longer than {available} bytes");
            return Err(FunctionFailure::new(FunctionErrno::TOO_LARGE, message));
        }
    }
    Ok(row)
}

/// Emits the selected records of an object, or counts them.
struct SearchSink<'s> {
    search: &'s mut dyn RecordSearch,
    object: u32,
    count: Option<&'s mut u64>,
}

impl RecordSink for SearchSink<'_> {
    fn records(
        &mut self,
        call: &mut FunctionCall<'_>,
        block: RecordBlock<'_>,
    ) -> Result<(), FunctionFailure> {
        let Self { search, object, count } = self;
        search.search(block, &mut |record| match count {
            Some(count) => {
                **count += 1;
                Ok(())
            }
            None => emit(call, &ResultLine::Match(match_line(*object, record))),
        })
    }
}

pub(crate) fn match_line(object: u32, record: SelectedRecord<'_>) -> MatchLine {
    let line = record.ends_before.saturating_add(1);
    MatchLine { object, offset: record.offset, line, record: RecordText::new(record.bytes) }
}
