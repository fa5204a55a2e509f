//! The Python package for authors, with the interpreter that the machine starts as `python3`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sealstone_test_support::left_out;

/// Returns `python3` with the package; `None` where it is not installed.
fn python() -> Option<Command> {
    let mut python = Command::new("python3");
    if !python.arg("--version").output().is_ok_and(|output| output.status.success()) {
        left_out("python3 is not installed");
        return None;
    }
    let mut python = Command::new("python3");
    python.arg("-B").env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("python"));
    Some(python)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/functions").join(name)
}

fn lines(bytes: &[u8]) -> Vec<&str> {
    std::str::from_utf8(bytes).expect("text").lines().collect()
}

#[test]
fn every_call_works_in_local_runner() {
    let Some(mut python) = python() else { return };
    let program = "
import sys
from sealstone_function.local import run_function
done = run_function(sys.argv[1], [b'hello', b''], {'a': '1'}, 'every')
assert done.status == 0 and done.result == b'all', (done.status, done.log)
assert done.objects == [b'hello', b'bcdef end', None, None] and done.log == [(3, 'checked')], done.objects
failed = run_function(sys.argv[2], [b''], {'key': 'hunter2'}, 'raise')
assert failed.status is None and failed.log[-1] == (1, 'ValueError: bad value hunter2'), failed.log
secret = run_function(sys.argv[2], [b''], {'key': 'hunter2'}, 'raise', secret=True)
assert secret.log[-1][1].startswith('ValueError (message omitted') and 'hunter2' not in str(secret.log)
streams = run_function(sys.argv[2], [b''], method='missing')
assert streams.status == -9, streams.status
";
    let output =
        python.args(["-c", program]).args([source("every_call.py"), source("behaviours.py")]).output();
    let output = output.expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn local_runner_reads_and_updates_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let (function, data) = (folder.path().join("upper.py"), folder.path().join("data"));
    let code = "def run(osd, call):\n    print('working')\n    osd.write(0, 0, osd.read(0).upper())\n    \
                return osd.arguments['end'] + '\\n'\n";
    std::fs::write(&function, code).expect("written");
    std::fs::write(&data, "text").expect("written");
    let run = |options: &[&str]| -> Option<Output> {
        let mut python = python()?;
        let output =
            python.args(["-m", "sealstone_function"]).arg(&function).args(options).arg(&data).output();
        Some(output.expect("python3 starts"))
    };
    let Some(output) = run(&["--arg", "end=done"]) else { return };
    assert_eq!((lines(&output.stdout), lines(&output.stderr)), (vec!["done"], vec!["working"]));
    assert_eq!(std::fs::read(&data).expect("read"), b"text");
    let output = run(&["--update", "--arg", "end=done"]).expect("python3");
    assert!(output.status.success());
    assert_eq!(std::fs::read(&data).expect("read"), b"TEXT");
    let failed = run(&[]).expect("python3");
    assert!(!failed.status.success());
    assert_eq!(lines(&failed.stderr).last(), Some(&"error: KeyError: 'end'"));
}

#[test]
fn type_stubs_name_every_public_call() {
    let Some(mut python) = python() else { return };
    let program = "
import ast, sys
def names(path):
    tree = ast.parse(open(path).read())
    return {
        node.name: {m.name for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith('_')}
        for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith('_')
    }
code, stubs = (names(sys.argv[1] + end) for end in ('/__init__.py', '/__init__.pyi'))
assert code == stubs and len(stubs['Osd']) > 20, (code, stubs)
";
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/sealstone_function");
    let output = python.args(["-c", program]).arg(package).output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
