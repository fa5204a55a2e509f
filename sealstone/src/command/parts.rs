//! Commands on several paths or users: a part that fails does not stop the others.
//!
//! Contract: of one part the failure is the command's. Of several, each failure is a line on
//! standard error, or with `--json` an entry of `failed` in the result.
//! Truth: docs/reference/cli.md (exit codes), docs/reference/json.md.

use sealstone_failure::{Failure, FailureKind, Outcome};
use serde_json::Value;

use crate::output::Output;

/// Results of the parts of one command.
pub(crate) struct PartResults<T> {
    /// Results of the parts that succeeded, in the order of the command line.
    pub(crate) done: Vec<T>,
    failed: Vec<Failure>,
    /// Parts that were not tried after a fatal failure.
    not_tried: usize,
    /// Whether the command has one part, whose failure is that of the command.
    is_single: bool,
    output: Output,
}

/// Runs `work` for each part of the command line, one after another, and reports each failure.
/// Stops early only after a fatal one.
///
/// # Errors
/// The failure of the only part; the signal that ended the command.
pub(crate) async fn for_each<P, T>(
    output: Output,
    parts: &[P],
    mut work: impl AsyncFnMut(&P) -> Outcome<T>,
) -> Outcome<PartResults<T>> {
    let is_single = parts.len() == 1;
    let mut results = PartResults { done: Vec::new(), failed: Vec::new(), not_tried: 0, is_single, output };
    for (index, part) in parts.iter().enumerate() {
        match work(part).await {
            Ok(value) => results.done.push(value),
            Err(failure) if is_single || matches!(failure.kind, FailureKind::Signal(_)) => {
                return Err(failure);
            }
            Err(failure) => {
                let fatal = failure.fatal;
                results.fail(failure);
                if fatal {
                    results.not_tried = parts.len() - index - 1;
                    break;
                }
            }
        }
    }
    Ok(results)
}

impl<T> PartResults<T> {
    /// Reports failures of work that is done already.
    pub(crate) fn new(output: Output, done: Vec<T>, failed: Vec<Failure>) -> Self {
        let hinted = |failure| output.with_default_hint(failure);
        let failed: Vec<Failure> = failed.into_iter().map(hinted).collect();
        failed.iter().for_each(|failure| output.part_failure(failure));
        Self { done, failed, not_tried: 0, is_single: false, output }
    }

    /// Reports the failure of a part, which may have a result nevertheless.
    pub(crate) fn fail(&mut self, failure: Failure) {
        let failure = self.output.with_default_hint(failure);
        self.output.part_failure(&failure);
        self.failed.push(failure);
    }

    /// Adds the failures to a result of the command.
    pub(crate) fn json(&self, mut value: Value) -> Value {
        value["failed_count"] = self.failed.len().into();
        value["not_tried_count"] = self.not_tried.into();
        value["failed"] = self.failed.iter().map(Failure::json).collect();
        value
    }

    /// Prints the result of a command that has no text.
    pub(crate) fn finish(self, value: Value) -> Outcome {
        self.output.done(&self.json(value))?;
        self.exit()
    }

    /// Prints the result; the text only if a part succeeded.
    pub(crate) fn finish_with_text(self, value: Value, text: impl FnOnce() -> String) -> Outcome {
        if self.done.is_empty() {
            return self.finish(value);
        }
        self.output.result(&self.json(value), text)?;
        self.exit()
    }

    /// Fails if a part failed, with the kind of the failures if no part succeeded and they agree.
    pub(crate) fn exit(self) -> Outcome {
        let Some(first) = self.failed.first() else { return Ok(()) };
        if self.is_single {
            return Err(Failure { reported: true, ..first.clone() });
        }
        let agree = self.failed.iter().all(|failure| failure.kind == first.kind);
        let kind = if self.done.is_empty() && agree { first.kind } else { FailureKind::Operation };
        let not_tried = match self.not_tried {
            0 => String::new(),
            count => format!(", {count} not tried"),
        };
        let message = format!("not everything was done: {} failed{not_tried}", self.failed.len());
        let failure = Failure::new(kind, message);
        // Text has a line for each failure. Only parts that were not tried need another one.
        Err(Failure { reported: self.not_tried == 0, ..failure }.hint("see the list of failures"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(parts: &[u32], work: impl Fn(u32) -> Outcome<u32>) -> Outcome<PartResults<u32>> {
        let output = Output::new(true, true, "rm");
        crate::command::block_on(for_each(output, parts, async |part| work(*part)))
    }

    fn fail_odd(part: u32) -> Outcome<u32> {
        if part % 2 == 1 { Err(Failure::not_found(part)) } else { Ok(part) }
    }

    #[test]
    fn failed_part_does_not_stop_the_rest() {
        let results = run(&[1, 2, 3, 4], fail_odd).expect("several parts");
        assert_eq!(results.done, [2, 4]);
        let value = results.json(json!({}));
        assert_eq!((&value["failed_count"], &value["not_tried_count"]), (&2.into(), &0.into()));
        assert_eq!(value["failed"][1]["message"], "3");
        let failure = results.exit().expect_err("two failed");
        assert_eq!((failure.kind, failure.reported), (FailureKind::Operation, true));
        assert_eq!(failure.message, "not everything was done: 2 failed");
    }

    #[test]
    fn failures_of_one_kind_keep_it() {
        let results = run(&[1, 3], fail_odd).expect("several parts");
        assert_eq!(results.exit().expect_err("all failed").kind, FailureKind::NotFound);
        let results =
            run(&[1, 3], |part| Err(if part == 1 { Failure::usage(1) } else { Failure::not_found(3) }));
        let failure = results.expect("several parts").exit().expect_err("all failed");
        assert_eq!(failure.kind, FailureKind::Operation);
    }

    #[test]
    fn fatal_failure_leaves_rest_untried() {
        let results = run(&[2, 1, 4], |part| fail_odd(part).map_err(Failure::fatal)).expect("several parts");
        let failure = results.exit().expect_err("one failed");
        assert_eq!(failure.message, "not everything was done: 1 failed, 1 not tried");
        assert!(!failure.reported, "the last line names what was not tried");
    }

    #[test]
    fn only_part_fails_as_the_command() {
        let failure = run(&[1], fail_odd).err().expect("failed");
        assert_eq!((failure.kind, failure.reported), (FailureKind::NotFound, false));
        let mut results = run(&[2], fail_odd).expect("succeeded");
        results.fail(Failure::not_found("later"));
        let failure = results.exit().expect_err("failed after its result");
        assert_eq!((&failure.message[..], failure.reported), ("later", true));
    }
}
