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

/// Returns a PNG file of grey noise, which has more bytes than a stripe unit.
fn png(width: u32, height: u32) -> Vec<u8> {
    let chunk = |kind: &[u8; 4], data: &[u8]| {
        let body = [&kind[..], data].concat();
        let mut crc = u32::MAX;
        for byte in &body {
            crc ^= u32::from(*byte);
            (0..8).for_each(|_| crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 });
        }
        [&(data.len() as u32).to_be_bytes()[..], &body, &(!crc).to_be_bytes()].concat()
    };
    let mut state = 1u32;
    let mut lines = Vec::new();
    for _ in 0..height {
        lines.extend([0]);
        for _ in 0..width {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            lines.push((state >> 24) as u8);
        }
    }
    // Stored blocks of DEFLATE in a zlib stream.
    let mut stream = vec![0x78, 1];
    let blocks = lines.chunks(65_535);
    let last = blocks.len() - 1;
    for (number, block) in blocks.enumerate() {
        let length = block.len() as u16;
        stream.push(u8::from(number == last));
        stream.extend_from_slice(&[length.to_le_bytes(), (!length).to_le_bytes()].concat());
        stream.extend_from_slice(block);
    }
    let (mut a, mut b) = (1u32, 0u32);
    for byte in &lines {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    stream.extend_from_slice(&(b << 16 | a).to_be_bytes());
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    let start = [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &header)].concat();
    [start, chunk(b"IDAT", &stream), chunk(b"IEND", b"")].concat()
}

/// Returns width and height of a PNG file.
fn size_of_png(path: &Path) -> (u32, u32) {
    let file = std::fs::read(path).expect("written");
    assert_eq!(file.get(..8), Some(&b"\x89PNG\r\n\x1a\n"[..]), "{}", path.display());
    let number = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().expect("four bytes"));
    (number(16), number(20))
}

#[test]
fn thumbnails_are_made_of_whole_files() {
    let system = System::start(2);
    store_shipped(&system, &["thumbnail"]);
    for (name, width, height) in [("small", 300, 200), ("large", 3000, 1500)] {
        let local = system.path(name);
        std::fs::write(&local, png(width, height)).expect("written");
        system.run(&["mkdir", "-p", "/photos"]).ok();
        system.run(&["put", text(&local), &format!("/photos/{name}.png")]).ok();
    }
    assert!(is_striped(&system, "/photos/large.png") && !is_striped(&system, "/photos/small.png"));
    let folder = system.path("thumbs");
    std::fs::create_dir(&folder).expect("created");
    let run = ["--json", "run", "thumbnail", "--size", "64", "--output", text(&folder), "/photos"];
    let run = system.run(&run).ok().json();
    assert_eq!(run["files"].as_array().map(Vec::len), Some(2), "{run}");
    assert_eq!(size_of_png(&folder.join("small.png")), (64, 43));
    assert_eq!(size_of_png(&folder.join("large.png")), (64, 32));
    let matched = ["run", "thumbnail", "--size", "32", "--output", text(&folder), "/photos/s*.png"];
    system.run(&matched).ok();
    assert_eq!(size_of_png(&folder.join("small.png")), (32, 21));
    assert_eq!(size_of_png(&folder.join("large.png")), (64, 32));
    system.run(&["run", "thumbnail", "--output", text(&folder), "/photos/*.jpg"]).fails(4);
    run_with_input(system.command(&["put", "-", "/text.png"]), b"no picture").ok();
    system.run(&["run", "thumbnail", "--to", "/thumb.png", "/text.png"]).fails(1).says(&["code -74"]);
    system.run(&["stat", "/thumb.png"]).fails(4);
}
