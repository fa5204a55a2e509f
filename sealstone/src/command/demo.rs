//! `sealstone demo`: a demonstration on a real system in a temporary folder. `sealstone-demo` does
//! the work.

use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use sealstone_demo::{DemoObserver, DemoOptions, run_demo};
use sealstone_failure::Outcome;

use crate::cli::DemoArgs;
use crate::daemon;
use crate::output::Output;

/// Shows the steps of the demo.
struct ShownDemo {
    output: Output,
    bar: Mutex<ProgressBar>,
}

impl DemoObserver for ShownDemo {
    fn remark(&self, text: &str) {
        self.output.remark(text);
    }

    fn begin(&self, bytes: u64, what: &str) {
        let bar = self.output.progress(Some(bytes), what);
        bar.enable_steady_tick(Duration::from_millis(200));
        *self.bar.lock() = bar;
    }

    fn position(&self, bytes: u64) {
        self.bar.lock().set_position(bytes);
    }

    fn end(&self) {
        self.bar.lock().finish_and_clear();
    }

    fn attacks(&self, table: &str) -> Outcome {
        // The JSON has them in the report.
        if self.output.is_json() { Ok(()) } else { self.output.result(&(), || table.to_owned()) }
    }
}

/// `sealstone demo`.
pub(crate) fn command(output: Output, arguments: &DemoArgs) -> Outcome {
    let program = std::env::current_exe().ok();
    let options = DemoOptions {
        tree: arguments.tree.clone(),
        large: arguments.large,
        keep: arguments.keep,
        programs: program.and_then(|program| Some(program.parent()?.to_owned())),
    };
    daemon::run(async {
        let signals = daemon::shutdown_on_signals()?;
        let observer: Arc<dyn DemoObserver> =
            Arc::new(ShownDemo { output, bar: Mutex::new(ProgressBar::hidden()) });
        let report = run_demo(&options, &observer, signals.wait()).await?;
        if let Some(path) = &report.kept {
            output.remark(format!("The folder is kept: {path}"));
        }
        output
            .remark("Where to go next: docs/tutorial/first-steps.md, or `sealstone up --data ~/sealstone`.");
        output.done(&report)?;
        report.outcome()
    })
}
