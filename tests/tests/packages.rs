//! Debian packages: what they contain works from its place.

use std::path::Path;
use std::process::Command;

use sealstone_test_support::{is_installed, program_folder};
use sealstone_tests::text;

/// Runs a program to its end; returns its standard output.
fn done(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn packaged_program_finds_packaged_engine() {
    if !is_installed("dpkg-deb") {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let (packages, root) = (folder.path().join("packages"), folder.path().join("root"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/package");
    let built = done(Command::new(script).arg(&packages).arg(program_folder()).arg("quick"));
    assert!(built.contains("sealstone_") && built.contains("sealstone-engines_"), "{built}");
    for package in built.lines() {
        done(Command::new("dpkg-deb").args(["-x", package, text(&root)]));
    }
    let unit = std::fs::read_to_string(root.join("usr/lib/systemd/system/sealstone-osd@.service"));
    assert!(unit.expect("a unit").contains("ExecStart=/usr/bin/sealstone osd serve"));
    let sealstone = || Command::new(root.join("usr/bin/sealstone"));
    let project = folder.path().join("longest");
    done(sealstone().args(["fn", "new", "--lang", "c", text(&project)]));
    done(Command::new("make").arg("longest.so").current_dir(&project));
    let (code, data) = (project.join("longest.so"), project.join("a.txt"));
    std::fs::write(&data, "one\nthree\n").expect("written");
    let result = done(sealstone().args(["fn", "test", text(&code), text(&data)]));
    assert_eq!(result, "{\"object\":0,\"longest\":5}\n");
}
