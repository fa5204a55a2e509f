//! Shipped functions that make new files: local tools read them, and they keep the bytes.

use std::path::Path;
use std::process::Command;

use sealstone_tests::{System, run_with_input, store_shipped, text};

use crate::function_reduction::{is_striped, log_text, start, store};

/// Returns what `gzip` or `zstd` makes of a compressed file.
fn unpack(format: &str, path: &Path) -> Vec<u8> {
    let input = std::fs::File::open(path).expect("the file");
    let done = Command::new(format).args(["-d", "-c"]).stdin(input).output().expect("the tool starts");
    assert!(done.status.success(), "{format}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

fn stored(system: &System, path: &str) -> Vec<u8> {
    system.run(&["cat", path]).ok().stdout
}

#[test]
fn compressed_files_are_read_by_tools() {
    let (system, root) = start(2);
    store_shipped(&system, &["compress", "decompress"]);
    let (long, short) = (log_text(1), "one line\n");
    store(&system, &root, "/logs/long", &long);
    store(&system, &root, "/logs/short", short);
    store(&system, &root, "/logs/empty", "");
    assert!(is_striped(&system, "/logs/long"));
    for (format, end) in [("gzip", "gz"), ("zstd", "zst")] {
        let folder = system.path(end);
        std::fs::create_dir(&folder).expect("created");
        let words = ["--json", "run", "compress", "--format", format, "--output", text(&folder), "/logs"];
        let run = system.run(&words).ok().json();
        let jobs = run["jobs"].as_array().expect("a list");
        assert_eq!(jobs.len(), 3, "two devices for the long file, one for the short one: {run}");
        assert!(jobs.iter().all(|job| job["exit"] == "success"), "{run}");
        assert_eq!(run["files"].as_array().map(Vec::len), Some(3), "{run}");
        for (name, content) in [("long", long.as_str()), ("short", short), ("empty", "")] {
            let path = folder.join(format!("{name}.{end}"));
            assert!(unpack(format, &path) == content.as_bytes(), "{}", path.display());
            let file =
                run["files"].as_array().expect("a list").iter().find(|file| file["output"] == text(&path));
            assert_eq!(file.expect("a file")["bytes_in"], content.len(), "{run}");
        }
        let one = system.path("one");
        system.run(&["run", "compress", "--format", format, "-o", text(&one), "/logs/long"]).ok();
        assert_eq!(std::fs::read(&one).ok(), std::fs::read(folder.join(format!("long.{end}"))).ok());
    }
    // Stored outputs, and back.
    system.run(&["mkdir", "/packed"]).ok();
    system.run(&["chmod", "640", "/logs/short"]).ok();
    system.run(&["run", "compress", "--to", "/packed", "/logs"]).ok();
    system.run(&["run", "decompress", "--to", "/again", "/packed/long.zst"]).ok();
    assert!(stored(&system, "/again") == long.as_bytes());
    let short_mode = system.run(&["--json", "stat", "/packed/short.zst"]).ok().json();
    assert_eq!(short_mode["files"][0]["mode"], "0640", "{short_mode}");
    let both = system.run(&["run", "decompress", "/packed/short.zst", "/packed/empty.zst"]);
    assert_eq!(both.ok().text(), short);
}

#[test]
fn long_output_is_made_at_client() {
    let (system, root) = start(1);
    store_shipped(&system, &["decompress"]);
    let bomb = root.join("zeros.gz");
    std::fs::create_dir_all(&root).expect("created");
    let script = ["-c", "head -c 20000000 /dev/zero | gzip -9 > \"$0\"", text(&bomb)];
    assert!(Command::new("sh").args(script).status().expect("sh starts").success());
    system.run(&["put", text(&bomb), "/zeros.gz"]).ok();
    let local = system.path("zeros");
    let run = system.run(&["--json", "run", "decompress", "--output", text(&local), "/zeros.gz"]).ok().json();
    assert_eq!(run["jobs"][0]["exit"], "output", "{run}");
    assert_eq!(run["files"][0]["bytes_out"], 20_000_000, "{run}");
    assert_eq!(std::fs::read(&local).expect("written"), vec![0; 20_000_000]);
    system.run(&["run", "decompress", "--to", "/zeros", "/zeros.gz"]).ok();
    assert_eq!(stored(&system, "/zeros").len(), 20_000_000);
    let limit = system.run(&["run", "decompress", "--max-bytes", "1000000", "--to", "/more", "/zeros.gz"]);
    limit.fails(1).says(&["/zeros.gz"]);
    system.run(&["stat", "/more"]).fails(4);
}

#[test]
fn invalid_outputs_are_refused() {
    let (system, root) = start(1);
    store_shipped(&system, &["compress", "decompress", "count"]);
    store(&system, &root, "/a", "plain text\n");
    store(&system, &root, "/folder/a", "plain text\n");
    let to = |function: &'static str, to: &'static str, paths: &[&'static str]| {
        system.run(&[&["run", function, "--to", to], paths].concat())
    };
    to("compress", "/a", &["/a"]).fails(2).says(&["would replace a file that the function reads"]);
    to("compress", "/new", &["/a", "/folder/a"]).fails(2).says(&["outputs of several files need one"]);
    to("compress", "/folder", &["/a", "/folder/a"]).fails(2).says(&["two outputs have the name a.zst"]);
    to("decompress", "/folder", &["/a"]).fails(2).says(&["ends neither in .gz nor in .zst"]);
    to("count", "/new", &["/a"]).fails(2).says(&["use --output"]);
    to("decompress", "/new", &["/a"]).fails(1).says(&["/a"]);
    system.run(&["stat", "/new"]).fails(4);
    let none = system.path("none");
    let level = ["run", "compress", "--level", "3", "--output", text(&none), "/a"];
    system.run(&level).fails(1).says(&["code -22"]);
    // A text that ends early.
    let packed = system.path("packed");
    system.run(&["run", "compress", "--output", text(&packed), "/a"]).ok();
    let bytes = std::fs::read(&packed).expect("written");
    run_with_input(system.command(&["put", "-", "/short.zst"]), &bytes[..bytes.len() - 3]).ok();
    let failed = system.run(&["--json", "run", "decompress", "/short.zst"]);
    let job = serde_json::from_slice::<serde_json::Value>(&failed.stdout).expect("JSON");
    assert_eq!(job["jobs"][0]["code"], -74, "{job}");
    let job = job["jobs"][0]["job"].as_str().expect("an id").to_owned();
    let log = system.run(&["job", "log", &job]).ok().text();
    assert!(log.contains("the zstd data end early, after"), "{log}");
}
