//! Runs tests against targets and counts results.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Instant;

use crate::cdb::{self, Generation};
use crate::device::{Device, GOOD};
use crate::iscsi::Connection;
use crate::seal::{self, Method};
use crate::suite::{TESTS, Test, TestScope};
use crate::target::Target;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Runs only tests whose name or area contains this.
    pub filter: Option<String>,
    /// Prints a line for each test.
    pub verbose: bool,
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct RunReport {
    /// Number of runs that passed.
    pub passed: usize,
    /// Failures by test and variant, with the message.
    pub failed: Vec<(String, String)>,
    /// Skipped tests, with the reason.
    pub skipped: BTreeMap<String, String>,
    /// Text for a terminal.
    pub text: String,
}

/// Reason why a test does not apply to this target.
struct Skipped(&'static str);

/// Ends the test without a result.
#[track_caller]
pub(crate) fn skip(reason: &'static str) -> ! {
    panic::panic_any(Skipped(reason))
}

thread_local! {
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Hides panics of tests, which are in the report.
fn listen() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| panic::set_hook(Box::new(|info| MESSAGE.set(Some(info.to_string())))));
}

/// A way to use a target.
#[derive(Clone, Copy)]
struct Variant {
    generation: Generation,
    method: Method,
}

impl Variant {
    fn name(self) -> String {
        let generation = self.generation.pick("OSD-1", "OSD-2");
        let method = ["NOSEC", "CAPKEY", "CMDRSP", "ALLDATA"][self.method as usize];
        format!("{generation} {method}")
    }
}

/// Runs every test against every target that it applies to.
#[must_use]
pub fn run(targets: &mut [Target], options: &RunOptions) -> RunReport {
    listen();
    let mut report = RunReport::default();
    let started = Instant::now();
    let wanted = |test: &Test| {
        let filter = options.filter.as_deref().unwrap_or_default();
        test.name.contains(filter) || test.area.contains(filter)
    };
    for target in targets.iter_mut() {
        for test in TESTS.iter().copied().flatten().filter(|test| wanted(test)) {
            for variant in variants(target, test) {
                one(target, test, variant, options, &mut report);
                if !target.is_alive() {
                    let name = format!("{}: {}", target.name, test.name);
                    report.failed.push((name, "the device is gone".to_owned()));
                    return report;
                }
            }
        }
    }
    let _ = writeln!(
        report.text,
        "{} passed, {} failed, {} skipped in {:.1} s",
        report.passed,
        report.failed.len(),
        report.skipped.len(),
        started.elapsed().as_secs_f64()
    );
    for (name, reason) in &report.skipped {
        let _ = writeln!(report.text, "skipped: {name}: {reason}");
    }
    for (name, message) in &report.failed {
        let _ = writeln!(report.text, "FAILED: {name}\n  {}", message.replace('\n', "\n  "));
    }
    report
}

fn variants(target: &Target, test: &Test) -> Vec<Option<Variant>> {
    let secured = target.keys.is_some();
    let method = if secured { Method::AllData } else { Method::NoSec };
    let of = |generation| Some(Variant { generation, method });
    let both = if target.osd1 {
        vec![of(Generation::Osd1), of(Generation::Osd2)]
    } else {
        vec![of(Generation::Osd2)]
    };
    match test.scope {
        // A target with accounts is used for these tests only.
        TestScope::Guarded(_) if target.guarded => vec![None],
        TestScope::Guarded(_) => Vec::new(),
        _ if target.guarded => Vec::new(),
        TestScope::Block(_) | TestScope::Iscsi(_) if !target.osd => {
            let fits = target.block.is_some() || matches!(test.scope, TestScope::Iscsi(_));
            if fits { vec![None] } else { Vec::new() }
        }
        _ if !target.osd => Vec::new(),
        TestScope::Osd(_) => both,
        TestScope::Osd2(_) => vec![of(Generation::Osd2)],
        TestScope::Secured(_) if secured => both,
        TestScope::Open(_) if !secured => vec![of(Generation::Osd2)],
        TestScope::Whole(_) if !secured && target.ours => vec![of(Generation::Osd2)],
        TestScope::Alone(_) if secured && target.ours => vec![of(Generation::Osd2)],
        TestScope::Secured(_) | TestScope::Open(_) | TestScope::Whole(_) | TestScope::Alone(_) => Vec::new(),
        TestScope::Block(_) if target.block.is_none() => Vec::new(),
        TestScope::Block(_) | TestScope::Iscsi(_) => vec![None],
    }
}

fn one(target: &Target, test: &Test, variant: Option<Variant>, options: &RunOptions, report: &mut RunReport) {
    let name = match variant {
        Some(variant) => format!("{}: {} ({})", target.name, test.name, variant.name()),
        None => format!("{}: {}", target.name, test.name),
    };
    let result = panic::catch_unwind(AssertUnwindSafe(|| attempt(target, test, variant)));
    let word = match result {
        Ok(()) => {
            report.passed += 1;
            "ok"
        }
        Err(payload) => match payload.downcast_ref::<Skipped>() {
            Some(Skipped(reason)) => {
                report.skipped.insert(name.clone(), (*reason).to_owned());
                "skipped"
            }
            None => {
                let message = MESSAGE.take().unwrap_or_else(|| "failed".to_owned());
                report.failed.push((name.clone(), message));
                "FAILED"
            }
        },
    };
    if options.verbose {
        let _ = writeln!(report.text, "{word:8} {name}");
    }
}

fn attempt(target: &Target, test: &Test, variant: Option<Variant>) {
    let run = match test.scope {
        TestScope::Iscsi(run) | TestScope::Guarded(run) => return run(&target.portal),
        TestScope::Alone(run) => {
            let own = Target::alone();
            let session = Connection::session(&own.portal);
            let mut device =
                Device::new(session, Generation::Osd2, Method::AllData, own.keys.clone(), free_partition());
            let request = device.own(cdb::CREATE_PARTITION);
            device.run(request).good();
            return run(&mut device);
        }
        TestScope::Block(run) => return run(target.block.as_ref().expect("the target has a block unit")),
        TestScope::Osd(run)
        | TestScope::Osd2(run)
        | TestScope::Secured(run)
        | TestScope::Open(run)
        | TestScope::Whole(run) => run,
    };
    let variant = variant.expect("a test of a device has a variant");
    let connection = Connection::session(&target.portal);
    let mut device =
        Device::new(connection, variant.generation, variant.method, target.keys.clone(), free_partition());
    let request = device.own(cdb::CREATE_PARTITION);
    let answer = device.run(request);
    if answer.status != GOOD && variant.generation == Generation::Osd1 && answer.is_not_there() {
        skip("the device does not speak OSD-1");
    }
    answer.good();
    let result = panic::catch_unwind(AssertUnwindSafe(|| run(&mut device)));
    let message = MESSAGE.take();
    // On a separate connection: the test may have left its own in any state.
    let partition = device.partition;
    let connection = Connection::session(&target.portal);
    Device::new(connection, variant.generation, variant.method, target.keys.clone(), partition).clean_up();
    if let Err(payload) = result {
        MESSAGE.set(message);
        panic::resume_unwind(payload);
    }
}

/// Returns an unused partition id: from the time, then counting up.
pub(crate) fn free_partition() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let _ = NEXT.compare_exchange(0, seal::now_ms() << 16, Ordering::Relaxed, Ordering::Relaxed);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
