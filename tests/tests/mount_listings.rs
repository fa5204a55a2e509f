//! Directory listings on mounts with leases: the real binary, real mounts.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Dir, RawDir, SeekFrom, seek};
use sealstone_tests::{Mounted, System, can_mount};

/// Longer than the time without opportunistic leases after a recall.
const QUIET: Duration = Duration::from_millis(10_500);

fn system() -> System {
    System::start_with_mds(2, "1G", &[], &["--metrics", "127.0.0.1:0"])
}

/// Returns the number of list requests.
fn lists(system: &System) -> u64 {
    system.metric("sealstone_mds_requests_total", |line| line.contains("ReadNodes"))
}

fn settle() {
    std::thread::sleep(Duration::from_millis(500));
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Reads an open directory from its beginning.
fn again(directory: &mut Dir) -> BTreeSet<String> {
    directory.rewind();
    let names = directory.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

#[test]
fn kernel_caches_unchanged_listings() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    fs::create_dir(two.path("d")).unwrap();
    for number in 0..300 {
        File::create(two.path(&format!("d/f{number}"))).unwrap();
    }
    fs::create_dir(two.path("d/sub")).unwrap();
    // The other mount has no delegation any more when this one lists.
    assert_eq!(names(&one.path("d")).len(), 301);
    std::thread::sleep(QUIET);
    assert_eq!(names(&one.path("d")).len(), 301);
    let before = lists(&system);
    for _ in 0..20 {
        assert_eq!(names(&one.path("d")).len(), 301);
    }
    assert_eq!(lists(&system), before);
    // Without leases every listing is a request.
    let three = Mounted::with(&system, "three", &["--no-leases"]);
    for round in 1..4 {
        assert_eq!(names(&three.path("d")).len(), 301);
        assert!(lists(&system) >= before + round);
    }
}

#[test]
fn listing_shows_completed_changes_of_another_mount() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    let (here, there) = (one.path("d"), two.path("d"));
    fs::create_dir(&here).unwrap();
    let mut all = BTreeSet::new();
    for number in 0..40 {
        File::create(here.join(format!("f{number}"))).unwrap();
        all.insert(format!("f{number}"));
    }
    let mut open = Dir::new(File::open(&here).unwrap()).unwrap();
    for round in 0..3 {
        // Listed twice, so that the kernel caches it.
        assert_eq!((names(&here), names(&here)), (all.clone(), all.clone()));
        assert_eq!(again(&mut open), all);
        let (made, moved, removed) = (format!("n{round}"), format!("f{round}"), format!("f{}", round + 20));
        File::create(there.join(&made)).unwrap();
        all.insert(made.clone());
        assert_eq!(names(&here), all, "round {round}: made");
        assert_eq!(again(&mut open), all, "round {round}: made");
        fs::rename(there.join(&moved), there.join(format!("m{round}"))).unwrap();
        all.remove(&moved);
        all.insert(format!("m{round}"));
        assert_eq!(names(&here), all, "round {round}: moved");
        fs::remove_file(there.join(&removed)).unwrap();
        all.remove(&removed);
        assert_eq!(names(&here), all, "round {round}: gone");
        assert_eq!(again(&mut open), all, "round {round}: gone");
        // From here on there is a lease again.
        std::thread::sleep(QUIET);
        assert_eq!((names(&here), names(&here)), (all.clone(), all.clone()));
        // Local changes, each after a cached listing.
        File::create(here.join(format!("o{round}"))).unwrap();
        all.insert(format!("o{round}"));
        assert_eq!(names(&here), all, "round {round}: made here");
        assert_eq!(again(&mut open), all, "round {round}: made here");
        fs::rename(here.join(&made), here.join("z")).unwrap();
        all.remove(&made);
        all.insert("z".into());
        assert_eq!(names(&here), all, "round {round}: moved here");
        // The last change is from another mount.
        fs::remove_file(there.join("z")).unwrap();
        all.remove("z");
        assert_eq!(names(&here), all, "round {round}");
        assert_eq!(again(&mut open), all, "round {round}");
        std::thread::sleep(QUIET);
    }
}

#[test]
fn directory_is_emptied_while_listed() {
    if !can_mount() {
        return;
    }
    let system = system();
    let one = Mounted::at(&system, "one");
    settle();
    fs::create_dir(one.path("d")).unwrap();
    for number in 0..3000 {
        File::create(one.path(&format!("d/a-name-that-takes-some-room-{number:05}"))).unwrap();
    }
    assert_eq!(names(&one.path("d")).len(), 3000);
    let mut removed = 0;
    for entry in fs::read_dir(one.path("d")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, 3000);
    fs::remove_dir(one.path("d")).unwrap();
}

/// The kernel continues within a reply, because the reader's buffer is smaller.
#[test]
fn directory_is_emptied_in_small_steps() {
    if !can_mount() {
        return;
    }
    let system = system();
    let one = Mounted::at(&system, "one");
    settle();
    let path = one.path("d");
    fs::create_dir(&path).unwrap();
    for number in 0..150 {
        File::create(path.join(format!("a-name-that-takes-some-room-{number:05}"))).unwrap();
    }
    let mut removed = 0;
    each(&File::open(&path).unwrap(), |name| {
        fs::remove_file(path.join(name)).unwrap();
        removed += 1;
    });
    assert_eq!(removed, 150);
    fs::remove_dir(&path).unwrap();
}

/// The kernel continues at an offset that another open directory has read.
#[test]
fn reader_continues_when_kernel_drops_its_list() {
    if !can_mount() {
        return;
    }
    let system = system();
    let one = Mounted::at(&system, "one");
    settle();
    let path = one.path("d");
    fs::create_dir(&path).unwrap();
    let mut all = BTreeSet::new();
    for number in 0..150 {
        let name = format!("a-name-that-takes-some-room-{number:05}");
        File::create(path.join(&name)).unwrap();
        all.insert(name);
    }
    std::thread::sleep(QUIET);
    // From now on the kernel has the list.
    assert_eq!((names(&path), names(&path)), (all.clone(), all.clone()));
    let mut read = 0;
    each(&File::open(&path).unwrap(), |name| {
        assert!(all.remove(name), "{name} was listed before");
        fs::remove_file(path.join(name)).unwrap();
        read += 1;
        if read == 40 {
            // This open drops the kernel's list, which is outdated.
            assert_eq!(names(&path), all);
        }
    });
    assert_eq!(all, BTreeSet::new());
    fs::remove_dir(&path).unwrap();
}

/// Calls `work` with each name of a list, read a few at a time.
fn each(directory: &File, mut work: impl FnMut(&str)) {
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        let name = std::str::from_utf8(entry.file_name().to_bytes()).unwrap();
        if !name.starts_with('.') {
            work(name);
        }
    }
}

#[test]
fn listing_keeps_attributes_of_concurrent_writes() {
    if !can_mount() {
        return;
    }
    let system = system();
    let two = Mounted::at(&system, "two");
    settle();
    fs::create_dir(two.path("d")).unwrap();
    for number in 0..250 {
        File::create(two.path(&format!("d/f{number:03}"))).unwrap();
    }
    // It is killed: unsent changes would be lost.
    File::open(two.path("d")).unwrap().sync_all().unwrap();
    drop(two);
    let one = Mounted::at(&system, "one");
    settle();
    let directory = File::open(one.path("d")).unwrap();
    let (mut count, mut open) = (0, Vec::new());
    each(&directory, |_| {
        count += 1;
        if count % 5 == 1 {
            // A later name of the list, whose attributes the kernel has already requested.
            let later = one.path(&format!("d/f{:03}", (count + 90).min(249)));
            let mut file = OpenOptions::new().write(true).open(&later).unwrap();
            file.write_all(&[7; 5000]).unwrap();
            open.push((later, file));
        }
    });
    assert_eq!(count, 250);
    for (path, file) in &open {
        assert_eq!((fs::metadata(path).unwrap().len(), file.metadata().unwrap().len()), (5000, 5000));
    }
    seek(&directory, SeekFrom::Start(0)).unwrap();
    let mut count = 0;
    each(&directory, |_| count += 1);
    assert_eq!(count, 250);
}
