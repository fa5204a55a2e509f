//! A full device says so, goes on reading and removing, and takes objects again after something was removed.

use std::fs;
use std::time::{Duration, Instant};

use sealstone_tests::{System, run_with_input, text};

/// Bytes of the device; what the metadata server keeps free of it is 4 MiB.
const CAPACITY: &str = "64M";
/// The grace for readers of a removed file, the next round of removal and the next look at the capacity, with room.
const ROOM_AGAIN_MAX: Duration = Duration::from_secs(60);

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

#[test]
fn a_full_device_refuses_clearly_and_recovers() {
    let mut system = System::start_with(1, CAPACITY, &["--metrics", "127.0.0.1:0"]);
    let kept = content(1, 3 << 20);
    run_with_input(system.command(&["put", "-", "/kept"]), &kept).ok();

    // More than there is, size known: refused before a byte travels.
    let source = system.path("source");
    let file = fs::File::create(&source).expect("made");
    file.set_len(200 << 20).expect("sparse");
    system.run(&["put", text(&source), "/huge"]).fails(1).says(&["no space left"]);
    // Fill what is left with files until no more fit.
    let piece = content(3, 2 << 20);
    let mut stored = 0;
    let refusal = loop {
        let put = run_with_input(system.command(&["put", "-", &format!("/piece-{stored}")]), &piece);
        if put.code != 0 {
            break put;
        }
        stored += 1;
        assert!(stored < 40, "80 MiB fit into 64");
    };
    refusal.fails(1).says(&["no space left"]);
    assert!(stored >= 20, "only {stored} files of 2 MiB fit into 64 MiB");

    // Whatever the size, also where it is unknown: the device finds out.
    let huge = content(2, 30 << 20);
    run_with_input(system.command(&["put", "-", "/huge"]), &huge).fails(1).says(&["no space left"]);
    system.run(&["stat", "/huge"]).fails(4);

    // Everything but writing goes on.
    assert!(system.run(&["cat", "/kept"]).ok().stdout == kept);
    let listed = system.run(&["ls"]).ok().text();
    assert_eq!(listed.lines().count(), stored + 1, "{listed}");
    for index in 0..stored {
        assert!(system.run(&["cat", &format!("/piece-{index}")]).ok().stdout == piece, "{index} of {stored}");
    }
    system.run(&["mkdir", "/directory"]).ok();
    system.run(&["mv", "/kept", "/directory/kept"]).ok();
    let df = system.run(&["--json", "df"]).ok().json();
    assert!(df["used"].as_u64() <= df["total"].as_u64(), "{df}");
    assert_eq!(sealstone_tests::get(system.osd(0).field("metrics"), "/healthz").0, 200);

    // A restart of both while full changes nothing.
    assert_eq!(system.end_osd(0, sealstone_tests::Signal::Kill), -1);
    assert_eq!(system.end_mds(sealstone_tests::Signal::Kill), -1);
    system.start_mds();
    system.start_osd(0);
    assert!(system.run(&["cat", "/directory/kept"]).ok().stdout == kept);

    system.run(&["rm", "-r", "/directory"]).ok();
    for index in 0..stored {
        system.run(&["rm", &format!("/piece-{index}")]).ok();
    }
    let big = content(4, 40 << 20);
    let start = Instant::now();
    loop {
        let put = run_with_input(system.command(&["put", "-", "/big"]), &big);
        if put.code == 0 {
            break;
        }
        put.fails(1);
        assert!(start.elapsed() < ROOM_AGAIN_MAX, "no room {ROOM_AGAIN_MAX:?} after the removal");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(system.run(&["cat", "/big"]).ok().stdout == big);
    assert_eq!(system.run(&["ls"]).ok().text(), "big\n");
}
