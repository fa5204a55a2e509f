//! Results of the jobs of a shipped function become one result for each file, and a total.
//!
//! Contract: a file has a result only if all its jobs have one. All results that wait for
//! other jobs of their files have at most [`HELD_BYTES_MAX`] bytes together.

use std::collections::{BTreeMap, BTreeSet};

use sealstone_client::functions::{CallGroup, CallPart, CallReply, FunctionError};
use sealstone_failure::{Failure, Outcome};
use sealstone_functions::{
    FileReduction, FunctionErrno, JobPart, OutputLine, PartObject, ResultLine, ShippedFunction,
    StripeGeometry, reduce_files, total_of,
};
use sealstone_osd::function::ExitReason;
use zeroize::Zeroizing;

/// Maximum bytes of all results that wait for other jobs of their files.
const HELD_BYTES_MAX: usize = 512 << 20;

/// Result of a file, when all its jobs ended.
#[derive(Debug)]
pub enum FileResult {
    /// The reduced lines, and the header of a table.
    Lines(Vec<ResultLine>, Option<String>),
    /// The output of a file was computed; these bytes of it belong in the sink of results.
    Output(OutputLine, Option<Vec<u8>>),
    /// The jobs have no common result.
    Failed(Failure),
    /// The failures of its jobs were reported.
    Reported,
    /// The client runs the function on data that it reads.
    AtClient,
}

/// A job that ended.
struct HeldJob {
    arguments: Zeroizing<Vec<u8>>,
    result: Vec<u8>,
    parts: Vec<CallPart>,
}

/// Jobs of a group that ended.
#[derive(Default)]
struct HeldGroup {
    jobs: Vec<HeldJob>,
    replies: usize,
    files: BTreeSet<usize>,
    failed: BTreeSet<usize>,
    at_client: BTreeSet<usize>,
    is_too_long: bool,
}

/// Reduction of the results of a run.
pub struct Reduction {
    pub(crate) function: &'static ShippedFunction,
    groups: BTreeMap<usize, HeldGroup>,
    held_bytes: usize,
    total: Vec<FileReduction>,
}

/// Returns why a device did not run a job that the client can run instead; `None` for others.
pub(crate) fn reason_for_client(reply: &CallReply) -> Option<&'static str> {
    match &reply.outcome {
        Ok(status) => {
            let is_unsupported = status.exit == ExitReason::FunctionError
                && status.error.unsigned_abs() == FunctionErrno::UNSUPPORTED.raw().unsigned_abs();
            match status.exit {
                _ if is_unsupported => Some("the function needs whole files, and devices have stripes"),
                ExitReason::Output => Some("the result or the data exceed a limit of jobs"),
                _ => None,
            }
        }
        Err(FunctionError::NoEngine { .. }) => Some("a device lacks the engine"),
        Err(FunctionError::Busy { .. }) => Some("a device is busy"),
        Err(_) => None,
    }
}

/// Whether the client can run the function instead.
pub(crate) fn can_run_at_client(reply: &CallReply) -> bool {
    reason_for_client(reply).is_some()
}

fn part_object(part: &CallPart) -> Outcome<PartObject> {
    let geometry = |unit: u32| {
        StripeGeometry::new(unit.into(), part.width as u64, part.index as u64, part.size)
            .map_err(Failure::operation)
    };
    let file = u32::try_from(part.file).map_err(Failure::operation)?;
    Ok(PartObject { file, geometry: part.unit.map(geometry).transpose()? })
}

/// Returns the header of a table from the arguments of its job, by its place in the job.
fn header_of(arguments: &[u8], object: usize) -> Option<String> {
    let name = format!("header.{object}=");
    let argument = arguments.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(name.as_bytes()))?;
    Some(String::from_utf8_lossy(argument).into_owned())
}

impl Reduction {
    /// Returns the reduction of a shipped function, without results.
    #[must_use]
    pub const fn new(function: &'static ShippedFunction) -> Self {
        Self { function, groups: BTreeMap::new(), held_bytes: 0, total: Vec::new() }
    }

    /// Adds a reply. Returns the results of all files of its group when it was the last one.
    pub fn add(&mut self, reply: CallReply) -> Vec<(usize, FileResult)> {
        let CallGroup { first_file, replies } = reply.group;
        let group = self.groups.entry(first_file).or_default();
        group.replies += 1;
        let files = || reply.parts.iter().map(|part| part.file);
        group.files.extend(files());
        if reply.is_success() {
            if self.held_bytes + reply.result.len() > HELD_BYTES_MAX {
                group.is_too_long = true;
            } else {
                self.held_bytes += reply.result.len();
                let CallReply { arguments, result, parts, .. } = reply;
                group.jobs.push(HeldJob { arguments, result, parts });
            }
        } else if can_run_at_client(&reply) {
            group.at_client.extend(files());
        } else {
            group.failed.extend(files());
        }
        if group.replies < replies {
            return Vec::new();
        }
        let group = self.groups.remove(&first_file).unwrap_or_default();
        self.held_bytes -= group.jobs.iter().map(|job| job.result.len()).sum::<usize>();
        self.reduce(group)
    }

    fn reduce(&self, group: HeldGroup) -> Vec<(usize, FileResult)> {
        let mut lines = match self.reduce_jobs(&group) {
            Ok(lines) => lines,
            Err(failure) => {
                return group.files.iter().map(|file| (*file, FileResult::Failed(failure.clone()))).collect();
            }
        };
        let missing = || FileResult::Failed(Failure::operation("its job has no result"));
        let one = |file: usize| {
            if group.failed.contains(&file) {
                FileResult::Reported
            } else if group.at_client.contains(&file) {
                FileResult::AtClient
            } else {
                lines.remove(&file).unwrap_or_else(missing)
            }
        };
        let files: Vec<usize> = group.files.iter().copied().collect();
        files.iter().copied().zip(files.iter().copied().map(one).collect::<Vec<_>>()).collect()
    }

    fn reduce_jobs(&self, group: &HeldGroup) -> Outcome<BTreeMap<usize, FileResult>> {
        if group.is_too_long {
            let text = "the results of its jobs have more than 512 MiB together";
            return Err(Failure::operation(text).hint("run it on fewer files, or with --raw"));
        }
        let objects: Vec<Vec<PartObject>> = group
            .jobs
            .iter()
            .map(|job| job.parts.iter().map(part_object).collect())
            .collect::<Outcome<_>>()?;
        let jobs = group.jobs.iter().zip(&objects);
        let parts: Vec<JobPart<'_>> = jobs
            .map(|(job, objects)| JobPart { arguments: &job.arguments, result: &job.result, objects })
            .collect();
        let foreign = |error: &dyn std::fmt::Display| {
            let name = self.function.name;
            Failure::operation(format!("not a result of the shipped function {name}: {error}"))
                .hint("with --raw, results are written as they are")
        };
        let reduced = reduce_files(self.function, &parts).map_err(|error| foreign(&error))?;
        let header = |file: usize| {
            group.jobs.iter().find_map(|job| {
                let object = job.parts.iter().position(|part| part.file == file)?;
                header_of(&job.arguments, object)
            })
        };
        Ok(reduced
            .into_iter()
            .map(|(file, lines)| {
                let file = file as usize;
                let result = match lines {
                    Ok(lines) => FileResult::Lines(lines, header(file)),
                    Err(error) => FileResult::Failed(foreign(&error)),
                };
                (file, result)
            })
            .collect())
    }

    /// Adds the result of a file to the total.
    pub(crate) fn add_to_total(&mut self, lines: &[ResultLine]) {
        let counts = |line: &ResultLine| {
            matches!(line, ResultLine::Count(_) | ResultLine::ByteCount(_) | ResultLine::MatchCount(_))
        };
        let lines: Vec<ResultLine> = lines.iter().filter(|line| counts(line)).cloned().collect();
        if lines.is_empty() {
            return;
        }
        self.total.push(FileReduction { file: 0, lines });
        if let Some(total) = total_of(&self.total) {
            self.total = vec![FileReduction { file: 0, lines: vec![total] }];
        }
    }

    /// Returns the total of all files; `None` for a function that has none.
    pub(crate) fn total(&self) -> Option<&ResultLine> {
        self.total.first().and_then(|total| total.lines.first())
    }
}
