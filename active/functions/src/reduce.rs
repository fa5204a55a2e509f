//! Reduction: the results of all jobs of a request become one result for each file.
//!
//! Does: add totals, join records across stripe units, number lines by the file, compute digests
//! of striped files.
//! Does not: trust a result. A missing, repeated or malformed line is an error.
//! Contract: the order of the parts does not change the reduction.

use std::collections::BTreeMap;

use blake3::hazmat::ChainingValue;
use sealstone_function_host::{
    EdgeFragments, FunctionArguments, FunctionFailure, RecordBlock, StripeGeometry, StripeJoiner,
};

use crate::catalogue::{ReductionRule, ShippedFunction};
use crate::count::merge_counts;
use crate::digest::merge_subtrees;
use crate::result::{
    ByteCountLine, CountLine, DataLine, DigestLine, MatchCountLine, MatchLine, OutputLine, ResultLine,
    ResultLineError, parse_result,
};
use crate::search::{MakeSearch, RecordSearch, match_line};

/// Object of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartObject {
    /// Number of the file that the object belongs to, in the caller's list.
    pub file: u32,
    /// Geometry that was passed as `stripe.N`; `None` for a file in one object.
    pub geometry: Option<StripeGeometry>,
}

/// One job: its arguments, result and objects, in the order of the call.
#[derive(Clone, Copy, Debug)]
pub struct JobPart<'a> {
    /// Arguments of the job.
    pub arguments: &'a [u8],
    /// Result of the job.
    pub result: &'a [u8],
    /// Objects of the job, without the one that has a key.
    pub objects: &'a [PartObject],
}

/// Result for one file. The lines name the file as their object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReduction {
    /// Number of the file.
    pub file: u32,
    /// Lines in the order of the file.
    pub lines: Vec<ResultLine>,
}

/// Results that cannot be reduced.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// A line of a result is malformed.
    #[error("part {part}: {source}")]
    Line {
        /// Number of the part, from 0.
        part: usize,
        /// Cause of the refusal.
        source: ResultLineError,
    },
    /// A line names an object that the job does not have.
    #[error("part {part}: the job has no object {object}")]
    NoObject {
        /// Number of the part, from 0.
        part: usize,
        /// Index in the line.
        object: u32,
    },
    /// A file has objects of different geometries, or one object twice.
    #[error("file {file}: its objects do not belong together")]
    Geometry {
        /// Number of the file.
        file: u32,
    },
    /// A part of the file has no result.
    #[error("file {file}: no result for part {unit} of {count}")]
    Missing {
        /// Number of the file.
        file: u32,
        /// Number of the stripe unit or object.
        unit: u64,
        /// Number of stripe units or objects of the file.
        count: u64,
    },
    /// A line does not belong to this function, or occurs twice.
    #[error("file {file}: unexpected line in the result")]
    Unexpected {
        /// Number of the file.
        file: u32,
    },
    /// The arguments are invalid, or a record across units cannot be searched.
    #[error(transparent)]
    Failure(#[from] FunctionFailure),
}

/// Number of a file, and the lines of its result.
pub type ReducedFile = (u32, Result<Vec<ResultLine>, ReduceError>);

/// Lines of one file, from all parts.
struct FilePieces {
    geometry: StripeGeometry,
    /// Lines of each object, by its position in the stripes.
    objects: BTreeMap<u64, Vec<ResultLine>>,
    /// Number of a part that has an object of the file, and the object's index in it.
    origin: (usize, usize),
}

/// Reduces the results of a function to one result for each file.
pub fn reduce_parts(
    function: &ShippedFunction,
    parts: &[JobPart<'_>],
) -> Result<Vec<FileReduction>, ReduceError> {
    reduce_files(function, parts)?
        .into_iter()
        .map(|(file, lines)| Ok(FileReduction { file, lines: lines? }))
        .collect()
}

/// Reduces the results of a function to one result or error for each file, in the order of their
/// numbers. An error that concerns no single file is the error of all.
pub fn reduce_files(
    function: &ShippedFunction,
    parts: &[JobPart<'_>],
) -> Result<Vec<ReducedFile>, ReduceError> {
    let mut files: BTreeMap<u32, FilePieces> = BTreeMap::new();
    for (number, part) in parts.iter().enumerate() {
        collect_part(function, number, part, &mut files)?;
    }
    // The jobs of a call have the same arguments, except for those that name their objects.
    let rule = function.reduction_of(parts.first().map_or(&[], |part| part.arguments));
    let reduce = |file, pieces| match rule {
        ReductionRule::Counts => Ok(vec![reduce_counts(file, pieces)?]),
        ReductionRule::ByteCounts => Ok(vec![reduce_byte_counts(file, pieces)?]),
        ReductionRule::Digests => Ok(vec![reduce_digests(file, pieces)?]),
        ReductionRule::Outputs => Ok(vec![reduce_outputs(file, pieces)?]),
        ReductionRule::Data => reduce_data(file, pieces),
        ReductionRule::Rows => reduce_rows(file, pieces),
        ReductionRule::Search(make) => {
            let (part, object) = pieces.origin;
            reduce_search(file, pieces, make, parts[part].arguments, object)
        }
    };
    Ok(files.into_iter().map(|(file, pieces)| (file, reduce(file, pieces))).collect())
}

fn collect_part(
    function: &ShippedFunction,
    number: usize,
    part: &JobPart<'_>,
    files: &mut BTreeMap<u32, FilePieces>,
) -> Result<(), ReduceError> {
    // The second object of each pair is an output, which has no lines.
    let step = if matches!(function.reduction, ReductionRule::Outputs) { 2 } else { 1 };
    for (index, object) in part.objects.iter().enumerate().step_by(step) {
        // The length of a whole file is not needed.
        let geometry = object.geometry.unwrap_or(StripeGeometry::whole(0));
        let pieces = files.entry(object.file).or_insert_with(|| FilePieces {
            geometry,
            objects: BTreeMap::new(),
            origin: (number, index),
        });
        let fits = pieces.geometry.has_same_stripes(&geometry);
        if !fits || pieces.objects.insert(geometry.index(), Vec::new()).is_some() {
            return Err(ReduceError::Geometry { file: object.file });
        }
    }
    for line in parse_result(part.result) {
        let line = line.map_err(|source| ReduceError::Line { part: number, source })?;
        let object = line.object();
        let known = part.objects.get(object as usize).filter(|_| (object as usize).is_multiple_of(step));
        let known = known.ok_or(ReduceError::NoObject { part: number, object })?;
        let index = known.geometry.map_or(0, |geometry| geometry.index());
        if let Some(lines) = files.get_mut(&known.file).and_then(|pieces| pieces.objects.get_mut(&index)) {
            lines.push(line);
        }
    }
    Ok(())
}

impl ResultLine {
    /// Returns the object that the line is about.
    #[must_use]
    pub const fn object(&self) -> u32 {
        match self {
            Self::Count(line) => line.object,
            Self::ByteCount(line) => line.object,
            Self::Match(line) => line.object,
            Self::MatchCount(line) => line.object,
            Self::Edge(line) => line.object,
            Self::Digest(line) => line.object,
            Self::Subtree(line) => line.object,
            Self::Data(line) => line.object,
            Self::Output(line) => line.object,
        }
    }
}

impl FilePieces {
    /// Returns the only line of each object, in the order of the stripes. Objects without bytes may
    /// be absent from the jobs.
    fn single_lines(&mut self, file: u32) -> Result<Vec<ResultLine>, ReduceError> {
        self.require_objects(file)?;
        let width = self.geometry.width();
        let one = |(index, lines): (u64, Vec<ResultLine>)| match <[ResultLine; 1]>::try_from(lines) {
            Ok([line]) => Ok(line),
            Err(lines) if lines.is_empty() => Err(ReduceError::Missing { file, unit: index, count: width }),
            Err(_) => Err(ReduceError::Unexpected { file }),
        };
        std::mem::take(&mut self.objects).into_iter().map(one).collect()
    }

    fn require_objects(&self, file: u32) -> Result<(), ReduceError> {
        let needed = self.geometry.width().min(self.geometry.unit_count());
        match (0..needed).find(|index| !self.objects.contains_key(index)) {
            Some(unit) => Err(ReduceError::Missing { file, unit, count: self.geometry.width() }),
            None => Ok(()),
        }
    }
}

fn reduce_counts(file: u32, mut pieces: FilePieces) -> Result<ResultLine, ReduceError> {
    let unexpected = || ReduceError::Unexpected { file };
    let lines = pieces.single_lines(file)?;
    let lines: Vec<CountLine> = lines
        .into_iter()
        .map(|line| if let ResultLine::Count(line) = line { Ok(line) } else { Err(unexpected()) })
        .collect::<Result<_, _>>()?;
    let (width, units) = (pieces.geometry.width(), pieces.geometry.unit_count());
    let mut seams = Vec::new();
    if width > 1 && lines.iter().any(|line| line.words.is_some()) {
        let known = lines.iter().map(|line| line.seams.len() as u64).fold(0, u64::saturating_add);
        if known != units {
            return Err(ReduceError::Missing { file, unit: known.min(units), count: units });
        }
        for number in 0..units {
            let line = lines.get((number % width) as usize).ok_or_else(unexpected)?;
            let digit = line.seams.as_bytes().get((number / width) as usize).ok_or_else(unexpected)?;
            seams.push(digit.checked_sub(b'0').filter(|seam| *seam < 4).ok_or_else(unexpected)?);
        }
    }
    Ok(ResultLine::Count(merge_counts(file, &lines, &seams)))
}

fn reduce_byte_counts(file: u32, mut pieces: FilePieces) -> Result<ResultLine, ReduceError> {
    let mut count = 0u64;
    for line in pieces.single_lines(file)? {
        let ResultLine::ByteCount(line) = line else { return Err(ReduceError::Unexpected { file }) };
        count = count.saturating_add(line.count);
    }
    Ok(ResultLine::ByteCount(ByteCountLine { object: file, count }))
}

fn reduce_outputs(file: u32, mut pieces: FilePieces) -> Result<ResultLine, ReduceError> {
    let mut total = OutputLine { object: file, bytes_in: 0, bytes_out: 0 };
    for line in pieces.single_lines(file)? {
        let ResultLine::Output(line) = line else { return Err(ReduceError::Unexpected { file }) };
        total.bytes_in = total.bytes_in.saturating_add(line.bytes_in);
        total.bytes_out = total.bytes_out.saturating_add(line.bytes_out);
    }
    Ok(ResultLine::Output(total))
}

/// Returns the `data` lines in the order of the file, and their total.
fn reduce_data(file: u32, pieces: FilePieces) -> Result<Vec<ResultLine>, ReduceError> {
    pieces.require_objects(file)?;
    let geometry = pieces.geometry;
    let unexpected = || ReduceError::Unexpected { file };
    let mut units: BTreeMap<u64, Vec<DataLine>> = BTreeMap::new();
    let mut total = OutputLine { object: file, bytes_in: 0, bytes_out: 0 };
    for (index, lines) in pieces.objects {
        let (mut data_bytes, mut end) = (0u64, None);
        for line in lines {
            match line {
                ResultLine::Data(line) if end.is_none() => {
                    let is_of_object = geometry.is_whole() || line.unit % geometry.width() == index;
                    if !is_of_object || line.unit >= geometry.unit_count() {
                        return Err(unexpected());
                    }
                    data_bytes += line.data.byte_count();
                    units.entry(line.unit).or_default().push(DataLine { object: file, ..line });
                }
                ResultLine::Output(line) if end.is_none() => end = Some(line),
                _ => return Err(unexpected()),
            }
        }
        let end = end.ok_or(ReduceError::Missing { file, unit: index, count: geometry.width() })?;
        if end.bytes_out != data_bytes {
            return Err(unexpected());
        }
        total.bytes_in = total.bytes_in.saturating_add(end.bytes_in);
        total.bytes_out = total.bytes_out.saturating_add(end.bytes_out);
    }
    if !geometry.is_whole() && total.bytes_in != geometry.file_length() {
        return Err(unexpected());
    }
    let data = units.into_values().flatten().map(ResultLine::Data);
    Ok(data.chain([ResultLine::Output(total)]).collect())
}

/// Returns the records or the number of them of a file that one job read as a whole.
fn reduce_rows(file: u32, mut pieces: FilePieces) -> Result<Vec<ResultLine>, ReduceError> {
    let unexpected = || ReduceError::Unexpected { file };
    let object = pieces.objects.pop_first().filter(|_| pieces.objects.is_empty());
    let (_, lines) = object.ok_or(ReduceError::Geometry { file })?;
    let (mut last_offset, mut is_ended) = (None, false);
    let lines = lines.into_iter().map(|line| match line {
        ResultLine::Match(line) if !is_ended && last_offset < Some(line.offset) => {
            last_offset = Some(line.offset);
            Ok(ResultLine::Match(MatchLine { object: file, ..line }))
        }
        ResultLine::MatchCount(line) if !is_ended && last_offset.is_none() => {
            is_ended = true;
            Ok(ResultLine::MatchCount(MatchCountLine { object: file, ..line }))
        }
        _ => Err(unexpected()),
    });
    lines.collect()
}

fn reduce_digests(file: u32, pieces: FilePieces) -> Result<ResultLine, ReduceError> {
    let unexpected = || ReduceError::Unexpected { file };
    let count = pieces.geometry.unit_count();
    let mut units: BTreeMap<u64, ChainingValue> = BTreeMap::new();
    let mut digests: Vec<DigestLine> = Vec::new();
    let width = pieces.geometry.width();
    let lines = pieces
        .objects
        .into_iter()
        .flat_map(|(index, lines)| lines.into_iter().map(move |line| (index, line)));
    for (index, line) in lines {
        match line {
            ResultLine::Digest(line) => digests.push(line),
            ResultLine::Subtree(line) => {
                let value = decode_value(&line.value).ok_or_else(unexpected)?;
                if line.unit % width != index || units.insert(line.unit, value).is_some() {
                    return Err(unexpected());
                }
            }
            _ => return Err(unexpected()),
        }
    }
    if pieces.geometry.is_whole() || count == 1 {
        let [line] = <[DigestLine; 1]>::try_from(digests).map_err(|_| unexpected())?;
        return Ok(ResultLine::Digest(DigestLine { object: file, ..line }));
    }
    if let Some(unit) = (0..count).find(|unit| !units.contains_key(unit)) {
        return Err(ReduceError::Missing { file, unit, count });
    }
    let values: Vec<ChainingValue> = units.into_values().collect();
    if values.len() as u64 != count || !digests.is_empty() {
        return Err(unexpected());
    }
    merge_subtrees(file, &values).ok_or_else(unexpected)
}

fn decode_value(text: &str) -> Option<ChainingValue> {
    blake3::Hash::from_hex(text).ok().map(Into::into)
}

fn reduce_search(
    file: u32,
    pieces: FilePieces,
    make: MakeSearch,
    arguments: &[u8],
    object: usize,
) -> Result<Vec<ResultLine>, ReduceError> {
    pieces.require_objects(file)?;
    let geometry = pieces.geometry;
    let parsed = FunctionArguments::parse(arguments).map_err(FunctionFailure::from)?;
    let count_only = parsed.switch("count").map_err(FunctionFailure::from)?;
    let unexpected = || ReduceError::Unexpected { file };
    let mut edges: BTreeMap<u64, EdgeFragments> = BTreeMap::new();
    let mut matches: Vec<MatchLine> = Vec::new();
    let mut count: Option<u64> = None;
    for (index, lines) in pieces.objects {
        let is_of_object = |unit: u64| geometry.is_whole() || unit % geometry.width() == index;
        let (mut object_count, mut last_offset) = (None, None);
        for line in lines {
            match line {
                ResultLine::Match(line) if !count_only => {
                    // A job emits its matches in the order of the file, each once.
                    let unit = line.offset.checked_div(geometry.unit_bytes()).unwrap_or(0);
                    if last_offset >= Some(line.offset) || !is_of_object(unit) {
                        return Err(unexpected());
                    }
                    last_offset = Some(line.offset);
                    matches.push(MatchLine { object: file, ..line });
                }
                ResultLine::MatchCount(line) if count_only && object_count.is_none() => {
                    object_count = Some(line.count);
                }
                ResultLine::Edge(line) if !geometry.is_whole() => {
                    let part = line.object as usize;
                    let fragments =
                        line.into_fragments().map_err(|source| ReduceError::Line { part, source })?;
                    if !is_of_object(fragments.unit) || edges.insert(fragments.unit, fragments).is_some() {
                        return Err(unexpected());
                    }
                }
                _ => return Err(unexpected()),
            }
        }
        if count_only {
            let missing = ReduceError::Missing { file, unit: index, count: geometry.width() };
            count = Some(count.unwrap_or(0).saturating_add(object_count.ok_or(missing)?));
        }
    }
    if !geometry.is_whole() {
        let mut search = make(&parsed)?;
        if search.has_header() {
            let row = parsed.get(&format!("header.{object}"));
            let missing = || FunctionFailure::invalid(format!("no header.{object} for a striped table"));
            search.set_header(row.ok_or_else(missing)?.as_bytes())?;
        }
        let joined = join_units(file, geometry, edges, &mut matches, &mut *search)?;
        match &mut count {
            Some(count) => *count = count.saturating_add(joined.len() as u64),
            None => matches.extend(joined),
        }
    }
    if let Some(count) = count {
        return Ok(vec![ResultLine::MatchCount(MatchCountLine { object: file, count })]);
    }
    matches.sort_by_key(|line| line.offset);
    Ok(matches.into_iter().map(ResultLine::Match).collect())
}

/// Numbers the matches by the file, and returns those of records that lie in several units.
fn join_units(
    file: u32,
    geometry: StripeGeometry,
    mut edges: BTreeMap<u64, EdgeFragments>,
    matches: &mut [MatchLine],
    search: &mut dyn RecordSearch,
) -> Result<Vec<MatchLine>, ReduceError> {
    let count = geometry.unit_count();
    let mut joiner = StripeJoiner::new();
    let mut joined = Vec::new();
    let mut ends_before = Vec::new();
    for number in 0..count {
        let missing = ReduceError::Missing { file, unit: number, count };
        let fragments = edges.remove(&number).ok_or(missing)?;
        ends_before.push(joiner.ends_before());
        let unit = geometry.unit_at(number).ok_or(ReduceError::Geometry { file })?;
        joined.extend(joiner.add(fragments, unit)?);
    }
    if !edges.is_empty() {
        return Err(ReduceError::Unexpected { file });
    }
    joined.extend(joiner.finish());
    for line in matches {
        let unit = (line.offset / geometry.unit_bytes()) as usize;
        let before = ends_before.get(unit).ok_or(ReduceError::Unexpected { file })?;
        line.line = line.line.saturating_add(*before);
    }
    let mut found = Vec::new();
    for record in joined {
        let block = RecordBlock {
            file_offset: record.file_offset,
            ends_before: record.ends_before,
            bytes: &record.bytes,
        };
        search.search(block, &mut |selected| {
            found.push(match_line(file, selected));
            Ok(())
        })?;
    }
    Ok(found)
}

/// Adds the results of all files; `None` if they have no total.
#[must_use]
pub fn total_of(files: &[FileReduction]) -> Option<ResultLine> {
    let lines = || files.iter().flat_map(|file| &file.lines);
    match lines().next()? {
        ResultLine::Count(_) => {
            let counts: Vec<CountLine> = lines()
                .filter_map(|line| if let ResultLine::Count(line) = line { Some(line.clone()) } else { None })
                .collect();
            Some(ResultLine::Count(merge_counts(0, &counts, &[])))
        }
        ResultLine::ByteCount(_) => {
            let count =
                lines().map(|line| if let ResultLine::ByteCount(line) = line { line.count } else { 0 });
            let count = count.fold(0, u64::saturating_add);
            Some(ResultLine::ByteCount(ByteCountLine { object: 0, count }))
        }
        ResultLine::MatchCount(_) => {
            let count =
                lines().map(|line| if let ResultLine::MatchCount(line) = line { line.count } else { 0 });
            let count = count.fold(0, u64::saturating_add);
            Some(ResultLine::MatchCount(MatchCountLine { object: 0, count }))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
