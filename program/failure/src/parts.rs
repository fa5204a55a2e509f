//! Work on several parts, such as paths or users: a part that fails does not stop the others.
//!
//! Contract: of one part the failure is that of the whole. Of several, the observer receives each
//! failure, and the result lists it.
//! Truth: docs/reference/cli.md (exit codes), docs/reference/json.md.

use serde_json::Value;

use crate::{Failure, FailureKind, Outcome};

/// Observes the failures of parts.
pub trait PartObserver {
    /// Receives the failure of a part. Returns it for the result, perhaps with a next step.
    fn part_failed(&self, failure: Failure) -> Failure;
}

/// Results of the parts of one operation.
#[derive(Debug)]
pub struct PartResults<T> {
    /// Results of the parts that succeeded, in the order of the parts.
    pub done: Vec<T>,
    failed: Vec<Failure>,
    /// Parts that were not tried after a fatal failure.
    not_tried: usize,
    /// Whether there is one part, whose failure is that of the whole.
    is_single: bool,
}

/// Runs `work` for each part, one after another, and reports each failure. Stops early only after a
/// fatal one.
///
/// # Errors
/// The failure of the only part; the signal that ended the command.
pub async fn for_each<P, T>(
    observer: &dyn PartObserver,
    parts: &[P],
    mut work: impl AsyncFnMut(&P) -> Outcome<T>,
) -> Outcome<PartResults<T>> {
    let is_single = parts.len() == 1;
    let mut results = PartResults { done: Vec::new(), failed: Vec::new(), not_tried: 0, is_single };
    for (index, part) in parts.iter().enumerate() {
        match work(part).await {
            Ok(value) => results.done.push(value),
            Err(failure) if is_single || matches!(failure.kind, FailureKind::Signal(_)) => {
                return Err(failure);
            }
            Err(failure) => {
                let fatal = failure.fatal;
                results.fail(observer, failure);
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
    #[must_use]
    pub fn new(observer: &dyn PartObserver, done: Vec<T>, failed: Vec<Failure>) -> Self {
        let failed = failed.into_iter().map(|failure| observer.part_failed(failure)).collect();
        Self { done, failed, not_tried: 0, is_single: false }
    }

    /// Reports the failure of a part, which may have a result nevertheless.
    pub fn fail(&mut self, observer: &dyn PartObserver, failure: Failure) {
        self.failed.push(observer.part_failed(failure));
    }

    /// Adds the failures to a result.
    #[must_use]
    pub fn json(&self, mut value: Value) -> Value {
        value["failed_count"] = self.failed.len().into();
        value["not_tried_count"] = self.not_tried.into();
        value["failed"] = self.failed.iter().map(Failure::json).collect();
        value
    }

    /// Fails if a part failed, with the kind of the failures if no part succeeded and they agree.
    ///
    /// # Errors
    /// The failure of the only part; otherwise one that counts the failed parts.
    pub fn exit(self) -> Outcome {
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
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use serde_json::json;

    use super::*;

    struct SilentObserver;

    impl PartObserver for SilentObserver {
        fn part_failed(&self, failure: Failure) -> Failure {
            failure
        }
    }

    fn run(parts: &[u32], work: impl Fn(u32) -> Outcome<u32>) -> Outcome<PartResults<u32>> {
        let results = pin!(for_each(&SilentObserver, parts, async |part| work(*part)));
        match results.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(results) => results,
            Poll::Pending => unreachable!("the work never waits"),
        }
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
        let failure = run(&[1], fail_odd).expect_err("failed");
        assert_eq!((failure.kind, failure.reported), (FailureKind::NotFound, false));
        let mut results = run(&[2], fail_odd).expect("succeeded");
        results.fail(&SilentObserver, Failure::not_found("later"));
        let failure = results.exit().expect_err("failed after its result");
        assert_eq!((&failure.message[..], failure.reported), ("later", true));
    }
}
