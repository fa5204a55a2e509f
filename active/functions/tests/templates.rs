//! The projects of `sealstone fn new` build with the tools of this machine, and give their result.

use std::path::Path;
use std::process::Command;

use sealstone_functions::template::{TemplateLanguage, write_project};

/// Runs a command in a folder; returns its standard output.
fn run(command: &mut Command, folder: &Path) -> String {
    let output = command.current_dir(folder).output().expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn is_shared_object(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| {
        // The entry point, and a call that the engine resolves.
        let has = |name: &[u8]| bytes.windows(name.len()).any(|window| window == name);
        bytes.starts_with(b"\x7fELF") && has(b"osd_main\0") && has(b"osd_reader_next\0")
    })
}

#[test]
fn c_project_builds_and_runs_locally() {
    let folder = tempfile::tempdir().expect("temporary folder");
    write_project(folder.path(), TemplateLanguage::C, "longest", None).expect("the project is written");
    run(
        Command::new("make").arg("CFLAGS=-O2 -Wall -Wextra -Werror").args(["longest.so", "longest-local"]),
        folder.path(),
    );
    assert!(is_shared_object(&folder.path().join("longest.so")));
    std::fs::write(folder.path().join("a.txt"), "one\nthree\n\nlast").expect("write");
    std::fs::write(folder.path().join("b.txt"), vec![b'x'; 3_000_000]).expect("write");
    let result = run(Command::new("./longest-local").args(["a.txt", "b.txt"]), folder.path());
    assert_eq!(result, "{\"object\":0,\"longest\":5}\n{\"object\":1,\"longest\":3000000}\n");
}

/// Calls with wrong arguments; each result is that of a device (`osd.h`, `EngineRing`).
const STRICT: &str = r#"
#include "osd.h"
#include <string.h>
#define CHECK(condition) do { if (!(condition)) return __LINE__; } while (0)
int64_t osd_main(const osd_call *call) {
    (void)call;
    static char byte[1];
    void *data;
    const void *chunk;
    CHECK(osd_read(0, 0, NULL, 1) == -OSD_EINVAL);
    CHECK(osd_read(0, UINT64_MAX, byte, 1) == -OSD_EINVAL);
    CHECK(osd_write(0, UINT64_MAX, byte, 1) == -OSD_EINVAL);
    CHECK(osd_write(1, 0, byte, 1) == -OSD_EBADF);
    CHECK(osd_append(0, byte, OSD_REQUEST_BYTES_MAX + 1) == -OSD_EFBIG);
    CHECK(osd_punch(0, 11, 1) == -OSD_EINVAL && osd_punch(0, 2, UINT64_MAX) == -OSD_EINVAL);
    CHECK(osd_punch(0, 2, 3) == 0 && osd_length(0) == 7);
    CHECK(osd_clear(0, 2, UINT64_MAX) == -OSD_EINVAL && osd_clear(1, 0, 1) == -OSD_EBADF);
    CHECK(osd_clear(0, INT64_MAX, 1) == -OSD_EFBIG);
    CHECK(osd_clear(0, 7, 3) == 0 && osd_length(0) == 10 && osd_punch(0, 7, 3) == 0);
    CHECK(osd_create_collection(0, NULL) == -OSD_ENOSYS);
    CHECK(osd_log(0, "x", 1) == -OSD_EINVAL && osd_log(4, "x", 1) == -OSD_EINVAL);
    int64_t reader = osd_reader_open(0, 1, UINT64_MAX);
    CHECK(reader >= 0 && osd_writer_buffer(reader, &data) == -OSD_EBADF);
    CHECK(osd_writer_close(reader) == -OSD_EBADF);
    CHECK(osd_reader_next(reader, &chunk) == 6 && memcmp(chunk, "156789", 6) == 0);
    CHECK(osd_reader_next(reader, NULL) == 0 && osd_reader_close(reader) == 0);
    CHECK(osd_reader_next(reader, NULL) == -OSD_EBADF);
    int64_t writer = osd_writer_open(0, 7);
    CHECK(writer > reader && osd_writer_commit(writer, 1) == -OSD_EINVAL);
    CHECK(osd_writer_buffer(writer, &data) == OSD_BUFFER_BYTES);
    CHECK(osd_writer_commit(writer, OSD_BUFFER_BYTES + 1) == -OSD_EINVAL);
    memcpy(data, "end", 3);
    CHECK(osd_writer_commit(writer, 3) == 0 && osd_writer_commit(writer, 3) == -OSD_EINVAL);
    CHECK(osd_writer_close(writer) == 0);
    return osd_result("strict", 6);
}
"#;

#[test]
fn local_c_host_is_strict() {
    let folder = tempfile::tempdir().expect("temporary folder");
    write_project(folder.path(), TemplateLanguage::C, "strict", None).expect("the project is written");
    let source =
        std::fs::read_dir(folder.path()).expect("the folder").filter_map(|entry| Some(entry.ok()?.path()));
    let is_function = |path: &std::path::PathBuf| {
        path.extension().is_some_and(|end| end == "c") && !path.ends_with("osd-local.c")
    };
    let [function] =
        <[_; 1]>::try_from(source.filter(is_function).collect::<Vec<_>>()).expect("one function");
    std::fs::write(function, STRICT).expect("write");
    run(Command::new("make").arg("CFLAGS=-O2 -Wall -Wextra -Werror").arg("strict-local"), folder.path());
    std::fs::write(folder.path().join("data"), "0123456789").expect("write");
    assert_eq!(run(Command::new("./strict-local").arg("data"), folder.path()), "strict");
    assert_eq!(std::fs::read(folder.path().join("data")).expect("read"), b"0156789end");
}

#[test]
fn rust_projects_build_and_pass_tests() {
    // The SDK in the project, and the one of the workspace.
    let workspace_sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fn");
    for sdk in [None, Some(&*workspace_sdk)] {
        let folder = tempfile::tempdir().expect("temporary folder");
        write_project(folder.path(), TemplateLanguage::Rust, "longest", sdk).expect("the project is written");
        // The versions of the workspace are on this machine, so the build needs no network.
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
        std::fs::copy(lock, folder.path().join("Cargo.lock")).expect("copy");
        let cargo = || {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo
                .env("CARGO_TARGET_DIR", folder.path().join("target"))
                .env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION");
            cargo
        };
        run(cargo().args(["build", "--release", "--offline", "--quiet"]), folder.path());
        assert!(is_shared_object(&folder.path().join("target/release/liblongest.so")));
        run(cargo().args(["test", "--offline", "--quiet"]), folder.path());
    }
}

#[test]
fn python_project_passes_its_tests() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        sealstone_test_support::left_out("python3 is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    write_project(folder.path(), TemplateLanguage::Python, "longest-line", None)
        .expect("the project is written");
    run(&mut Command::new("make"), folder.path());
    std::fs::write(folder.path().join("a.txt"), "one\nthree\n").expect("write");
    let result = run(Command::new("make").args(["--silent", "local", "FILES=a.txt"]), folder.path());
    assert_eq!(result, "{\"object\":0,\"longest\":5}\n");
}
