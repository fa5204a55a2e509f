//! A killed process loses nothing that it acknowledged, and its folder can be opened at once.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{format_options, options};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::{
    DEVICE_MIN, DiskStore, FileMedium, FormatError, IoMode, ObjectStore, StoreError, bind_device, format,
    open_store_medium,
};

const FOLDER: &str = "SEALSTONE_KILL_FOLDER";
const OBJECTS: u64 = 3;

fn object(number: u64) -> ObjectId {
    ObjectId::new(0x1_0000, 0x1_0000 + number)
}

/// Returns what round `round` writes to one object.
fn content(round: u64, number: u64) -> Vec<u8> {
    let mut random = SeededRandom::new(round << 8 | number);
    let length = 8 + random.below(200_000) / 8 * 8;
    let mut bytes = round.to_le_bytes().to_vec();
    while (bytes.len() as u64) < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes
}

fn open(folder: &Path) -> DiskStore {
    // A child process of the other test has a copy of our locks until it calls exec.
    let medium = (0..1000).find_map(|_| match open_store_medium(folder, IoMode::Auto) {
        Err(FormatError::InUse) => {
            std::thread::sleep(std::time::Duration::from_millis(10));
            None
        }
        medium => Some(medium.unwrap()),
    });
    DiskStore::open(medium.expect("nobody else uses it"), options()).unwrap()
}

/// Returns the round that all objects are in, checked byte for byte.
fn round_of(store: &DiskStore) -> u64 {
    let rounds = (0..OBJECTS).map(|number| {
        let length = store.stat(object(number)).unwrap().length;
        let mut bytes = vec![0; length as usize];
        assert_eq!(store.read(object(number), 0, &mut bytes).unwrap() as u64, length);
        let round = bytes.first_chunk().map_or(0, |round| u64::from_le_bytes(*round));
        assert!(round == 0 || bytes == content(round, number), "object {number} of round {round}");
        round
    });
    let rounds: Vec<u64> = rounds.collect();
    assert!(rounds.iter().all(|&round| round == rounds[0]), "a round is whole: {rounds:?}");
    rounds[0]
}

/// The process that is killed. Run by the test harness it has no folder and does nothing; the test
/// below starts it with one.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let store = open(Path::new(&folder));
    let mut round = round_of(&store);
    loop {
        round += 1;
        {
            let _scope = store.begin();
            for number in 0..OBJECTS {
                store.resize(object(number), 0).unwrap();
                store.write(object(number), 0, &content(round, number)).unwrap();
            }
        }
        match store.flush() {
            Ok(()) => {}
            Err(error @ StoreError::Poisoned) => panic!("{error}"),
            Err(error) => panic!("{error:?}"),
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nacknowledged {round}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn acknowledged_changes_survive_sigkill() {
    let folder = tempfile::tempdir().unwrap();
    format(&FileMedium::open(folder.path()).unwrap(), &format_options(8 << 20)).unwrap();
    kill_again_and_again(folder.path());
}

/// On a regular file used as a block device.
#[test]
fn acknowledged_data_survives_sigkill_on_raw_device() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("raw");
    std::fs::File::create(&device).unwrap().set_len(2 * DEVICE_MIN).unwrap();
    let medium = bind_device(folder.path(), &device, [7; 16], false).unwrap();
    format(&medium, &format_options(8 << 20)).unwrap();
    drop(medium);
    kill_again_and_again(folder.path());
}

fn kill_again_and_again(folder: &Path) {
    {
        let store = open(folder);
        for number in 0..OBJECTS {
            store.create(object(number), ObjectType::User).unwrap();
        }
        store.flush().unwrap();
    }
    let mut random = SeededRandom::new(crate::support::seeds(1)[0]);
    for _ in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["kill::child", "--exact", "--nocapture"])
            .env(FOLDER, folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stop_after = 1 + random.below(25);
        let mut acknowledged = 0;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut count = 0;
        while count < stop_after {
            let line = lines.next().expect("the child lives").unwrap();
            if let Some(round) = line.strip_prefix("acknowledged ") {
                acknowledged = round.parse().unwrap();
                count += 1;
            }
        }
        assert!(
            matches!(open_store_medium(folder, IoMode::Auto), Err(FormatError::InUse)),
            "two daemons, one folder"
        );
        // Somewhere in the next round or two.
        std::thread::sleep(std::time::Duration::from_micros(random.below(3_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            if let Some(Ok(round)) = line.strip_prefix("acknowledged ").map(str::parse) {
                acknowledged = round;
            }
        }
        let found = round_of(&open(folder));
        assert!(found == acknowledged || found == acknowledged + 1, "round {found} after {acknowledged}");
    }
}
