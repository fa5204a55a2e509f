//! Printing of commands on several paths or users.
//!
//! Contract: each failure of a part is a line on standard error, or with `--json` an entry of
//! `failed` in the result.

use sealstone_failure::{Failure, Outcome, PartObserver, PartResults};
use serde_json::Value;

use crate::output::Output;

impl PartObserver for Output {
    fn part_failed(&self, failure: Failure) -> Failure {
        let failure = self.with_default_hint(failure);
        self.part_failure(&failure);
        failure
    }
}

impl Output {
    /// Prints the result of a command that has no text.
    pub(crate) fn parts<T>(self, results: PartResults<T>, value: Value) -> Outcome {
        self.done(&results.json(value))?;
        results.exit()
    }

    /// Prints the result; the text only if a part succeeded.
    pub(crate) fn parts_with_text<T>(
        self,
        results: PartResults<T>,
        value: Value,
        text: impl FnOnce() -> String,
    ) -> Outcome {
        if results.done.is_empty() {
            return self.parts(results, value);
        }
        self.result(&results.json(value), text)?;
        results.exit()
    }
}
