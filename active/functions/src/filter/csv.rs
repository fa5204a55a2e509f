//! Rows of CSV (RFC 4180). A line break ends a row, also within quotes, where it is an error.

use std::borrow::Cow;

use sealstone_function_host::{FunctionFailure, RecordBlock, RecordFormat};

use super::evaluate::FieldValue;
use super::{FilterExpression, malformed};
use crate::grep::for_each_line;
use crate::search::{RecordSearch, SelectRecord};

/// Maximum number of columns of a table.
const COLUMNS_MAX: usize = 16 * 1024;

/// Search for rows of a table.
pub(super) struct CsvSearch {
    expression: FilterExpression,
    delimiter: u8,
    skip_invalid: bool,
    skipped: u64,
    /// For each column of the table, the field of the expression that it is. Columns after the last
    /// such field are left out.
    columns: Vec<Option<usize>>,
}

impl CsvSearch {
    pub(super) fn new(expression: FilterExpression, delimiter: u8, skip_invalid: bool) -> Self {
        Self { expression, delimiter, skip_invalid, skipped: 0, columns: Vec::new() }
    }

    /// Returns the values of the fields in a row; `None` if a quotation is open or misplaced.
    fn fields<'r>(&self, row: &'r [u8]) -> Option<Vec<FieldValue<'r>>> {
        let mut fields = vec![FieldValue::Null; self.expression.fields().len()];
        if memchr::memchr(b'"', row).is_none() {
            // No cell can be malformed, so the cells after the last field are not read.
            let cells = row.split(|byte| *byte == self.delimiter);
            for (column, cell) in self.columns.iter().zip(cells) {
                if let Some(field) = column {
                    fields[*field] = FieldValue::Cell(String::from_utf8_lossy(cell));
                }
            }
            return Some(fields);
        }
        let mut cells = CsvCells { rest: Some(row), delimiter: self.delimiter };
        for column in &self.columns {
            let Some(cell) = cells.next() else { break };
            let cell = cell?;
            if let Some(field) = column {
                fields[*field] = FieldValue::Cell(cell_text(cell));
            }
        }
        // The rest of the row must be well-formed too.
        cells.all(|cell| cell.is_some()).then_some(fields)
    }
}

impl RecordSearch for CsvSearch {
    fn format(&self) -> RecordFormat {
        RecordFormat::Lines
    }

    fn has_header(&self) -> bool {
        true
    }

    fn set_header(&mut self, row: &[u8]) -> Result<(), FunctionFailure> {
        let row = row.strip_prefix(b"\xef\xbb\xbf").unwrap_or(row);
        let row = row.strip_suffix(b"\r").unwrap_or(row);
        let mut names = Vec::new();
        for cell in (CsvCells { rest: Some(row), delimiter: self.delimiter }) {
            let cell = cell.ok_or_else(|| malformed(0, "header row has an open quotation"))?;
            if names.len() == COLUMNS_MAX {
                return Err(malformed(0, &format!("header row has more than {COLUMNS_MAX} columns")));
            }
            names.push(cell_text(cell).trim().to_owned());
        }
        self.columns = vec![None; names.len()];
        let mut columns_read = 0;
        for (index, path) in self.expression.fields().iter().enumerate() {
            let name = path.join(".");
            let Some(column) = names.iter().position(|other| *other == name) else {
                return Err(FunctionFailure::invalid(format!("where: the table has no column {name}")));
            };
            // `a.b` and `` `a.b` `` are the same column; the expression reads both fields.
            columns_read = columns_read.max(column + 1);
            match self.columns[column] {
                None => self.columns[column] = Some(index),
                Some(_) => {
                    let message = format!("where: column {name} is written in two ways");
                    return Err(FunctionFailure::invalid(message));
                }
            }
        }
        self.columns.truncate(columns_read);
        Ok(())
    }

    fn search(&mut self, block: RecordBlock<'_>, select: SelectRecord<'_>) -> Result<(), FunctionFailure> {
        let mut skipped = 0;
        for_each_line(block, |line| {
            let row = line.bytes.strip_suffix(b"\r").unwrap_or(line.bytes);
            // The header, and empty lines.
            if line.offset == 0 || row.is_empty() {
                return Ok(());
            }
            match self.fields(row) {
                Some(fields) if self.expression.is_true(&fields) => select(line),
                Some(_) => Ok(()),
                None if self.skip_invalid => {
                    skipped += 1;
                    Ok(())
                }
                None => {
                    let reason = "misplaced quote, or a line break within quotes, which is not supported";
                    Err(malformed(line.offset, reason))
                }
            }
        })?;
        self.skipped += skipped;
        Ok(())
    }

    fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// Cells of a row; `None` for a malformed one, after which there are no more.
struct CsvCells<'r> {
    rest: Option<&'r [u8]>,
    delimiter: u8,
}

impl<'r> Iterator for CsvCells<'r> {
    type Item = Option<Cow<'r, [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take()?;
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            return Some(self.quoted(quoted));
        }
        let end = memchr::memchr(self.delimiter, rest);
        let (cell, after) = end.map_or((rest, None), |end| (&rest[..end], Some(&rest[end + 1..])));
        self.rest = after;
        // A quote within a cell without quotes is accepted as text, as spreadsheets do.
        Some(Some(Cow::Borrowed(cell)))
    }
}

impl<'r> CsvCells<'r> {
    /// Reads a cell after its opening quote.
    fn quoted(&mut self, text: &'r [u8]) -> Option<Cow<'r, [u8]>> {
        let mut end = 0;
        let mut has_quotes = false;
        loop {
            end += memchr::memchr(b'"', &text[end..])?;
            match text.get(end + 1) {
                Some(b'"') => {
                    has_quotes = true;
                    end += 2;
                }
                Some(byte) if *byte != self.delimiter => return None,
                after => {
                    self.rest = after.map(|_| &text[end + 2..]);
                    break;
                }
            }
        }
        let cell = &text[..end];
        if !has_quotes {
            return Some(Cow::Borrowed(cell));
        }
        let mut plain = Vec::with_capacity(cell.len());
        let mut after_quote = false;
        for byte in cell {
            after_quote = *byte == b'"' && !after_quote;
            if !after_quote {
                plain.push(*byte);
            }
        }
        Some(Cow::Owned(plain))
    }
}

fn cell_text(cell: Cow<'_, [u8]>) -> Cow<'_, str> {
    match cell {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sealstone_function_host::{FunctionArguments, FunctionCall, FunctionErrno, MemoryHost};

    use super::*;
    use crate::filter::run_filter;

    fn filter(table: &[u8], arguments: &[(&str, &str)]) -> Result<(String, Vec<String>), FunctionFailure> {
        let mut host = MemoryHost::new(vec![table.to_vec()]);
        let pairs = [("format", "csv")].into_iter().chain(arguments.iter().copied());
        let bytes = FunctionArguments::encode(pairs).unwrap();
        FunctionCall::new(&mut host, "", &bytes, 1).run(run_filter)?;
        Ok((String::from_utf8(host.result).unwrap(), host.log))
    }

    #[test]
    fn row_is_selected_by_column_name() {
        let table = b"\xef\xbb\xbfstatus,path\r\n200,/a\r\n503,\"/b, \"\"c\"\"\"\r\n\r\n500\r\n";
        let (result, _) = filter(table, &[("where", "status >= 500")]).unwrap();
        assert_eq!(result.lines().count(), 2);
        let (result, _) = filter(table, &[("where", "path = '/b, \"c\"'")]).unwrap();
        assert!(result.contains(r#""offset":24,"line":3,"#), "{result}");
        let (result, _) = filter(table, &[("where", "path is null")]).unwrap();
        assert!(result.contains(r#""text":"500\r""#), "{result}");
    }

    #[test]
    fn unknown_column_is_refused() {
        let failure = filter(b"a,b\n1,2\n", &[("where", "c = 1")]).unwrap_err();
        assert_eq!(failure.message, "where: the table has no column c");
    }

    #[test]
    fn open_quotation_is_refused_or_skipped() {
        let table = b"a,b\n1,\"x\n2\",y\n1,z\n";
        let failure = filter(table, &[("where", "a = 1")]).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::BAD_DATA);
        assert!(failure.message.starts_with("record at offset 4: "));
        let (result, log) = filter(table, &[("where", "a = 1"), ("skip-invalid", "true")]).unwrap();
        assert_eq!(result.lines().count(), 1);
        assert_eq!(log, ["1 malformed records skipped"]);
    }

    #[test]
    fn header_over_limits_is_refused() {
        let wide = ",".repeat(COLUMNS_MAX) + "\n";
        assert!(filter(wide.as_bytes(), &[("where", "a = 1")]).unwrap_err().message.contains("columns"));
        let long = vec![b'a'; 70_000];
        assert_eq!(filter(&long, &[("where", "a = 1")]).unwrap_err().errno, FunctionErrno::TOO_LARGE);
    }

    proptest! {
        #[test]
        fn quoted_cells_read_as_written(
            cells in proptest::collection::vec("[a,\" ]{0,6}", 1..5),
        ) {
            let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
            let row = cells.iter().map(quoted).collect::<Vec<_>>().join(",");
            let read: Vec<_> = CsvCells { rest: Some(row.as_bytes()), delimiter: b',' }
                .map(|cell| String::from_utf8(cell.unwrap().into_owned()).unwrap())
                .collect();
            prop_assert_eq!(read, cells);
        }

        #[test]
        fn arbitrary_table_never_panics(table in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = filter(&[b"a,b\n", &table[..]].concat(), &[("where", "a = 1 or b ~ 'x'")]);
            let _ = filter(&table, &[("where", "a = 1")]);
        }
    }
}
