//! The demo inside another program: no process, no standard output.

use std::fs;
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_demo::{DemoObserver, DemoOptions, run_demo};
use sealstone_failure::Outcome;

/// Keeps what it observes.
#[derive(Default)]
struct RecordingObserver {
    remarks: Mutex<Vec<String>>,
    moved: Mutex<u64>,
    table: Mutex<String>,
}

impl DemoObserver for RecordingObserver {
    fn remark(&self, text: &str) {
        self.remarks.lock().push(text.to_owned());
    }

    fn begin(&self, _: u64, _: &str) {}

    fn position(&self, bytes: u64) {
        *self.moved.lock() = bytes;
    }

    fn end(&self) {}

    fn attacks(&self, table: &str) -> Outcome {
        table.clone_into(&mut self.table.lock());
        Ok(())
    }
}

fn options(tree: &std::path::Path) -> DemoOptions {
    DemoOptions { tree: tree.to_owned(), large: 1 << 20, keep: false, programs: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_runs_inside_another_program() {
    let tree = tempfile::tempdir().expect("temporary folder");
    fs::create_dir(tree.path().join("below")).expect("folder");
    fs::write(tree.path().join("a"), b"one").expect("file");
    fs::write(tree.path().join("below/b"), vec![7; 100_000]).expect("file");
    let recorded = Arc::new(RecordingObserver::default());
    let observer: Arc<dyn DemoObserver> = Arc::clone(&recorded) as _;
    let report = run_demo(&options(tree.path()), &observer, std::future::pending()).await.expect("it runs");
    assert_eq!(report.outcome(), Ok(()));
    assert_eq!((report.tree.files, report.tree.bytes, report.large.bytes), (2, 100_003, 1 << 20));
    assert_eq!(*recorded.moved.lock(), 1 << 20, "the large file is the last transfer");
    assert!(report.attacks.len() > 8 && report.functions.is_empty() && report.kept.is_none());
    assert_eq!(recorded.table.lock().lines().count(), report.attacks.len() + 1);
    assert!(recorded.remarks.lock().iter().any(|remark| remark.starts_with("6. Functions are left out")));
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_demo_ends_its_cluster() {
    let tree = tempfile::tempdir().expect("temporary folder");
    let observer: Arc<dyn DemoObserver> = Arc::new(RecordingObserver::default());
    let stopped = run_demo(&options(tree.path()), &observer, std::future::ready(())).await;
    assert_eq!(stopped.expect_err("it was stopped").message, "stopped by a signal");
}
