//! Attacks on block units of the real device: rows L1 to L3 of docs/design/block-lazy.md.
//!
//! Contract of every test: no wrong bytes. A block is what was written last, or an error.

use std::thread;
use std::time::{Duration, Instant};

use sealstone_tests::{Daemon, Signal};

use crate::block_attach::NbdClient;
use crate::block_protection::{NEW, OLD, ProtectedDevice, block, read_error};
use crate::block_proxy::{WireChange, WireProxy};

const EIO: u32 = 5;
const WRITE: u16 = 1;
const BLOCK: usize = 4096;

/// A device with one unit, reached through a man in the middle.
struct AttackedUnit {
    bench: ProtectedDevice,
    proxy: WireProxy,
    level: &'static str,
}

impl AttackedUnit {
    fn new(level: &'static str) -> Self {
        let mut bench = ProtectedDevice::new();
        bench.device.block(&["create", "disk", "--size", "32M", "--protect", level]).ok();
        bench.start(&[]);
        let proxy = WireProxy::start(&bench.device.field("address"));
        Self { bench, proxy, level }
    }

    fn attach(&self) -> (Daemon, NbdClient) {
        let url = self.bench.device.url(1).replace(&self.bench.device.field("address"), &self.proxy.address);
        (self.bench.attach(&url, &["--protect", self.level]), self.bench.client())
    }

    fn rejected(&self) -> u64 {
        let status = self.bench.device.block(&["status", "disk"]).ok().json();
        status["rejected"].as_u64().expect("a number")
    }
}

/// Content of a block, which names it and its version.
fn stamp(at: u64, version: u8) -> Vec<u8> {
    let unit = [&at.to_be_bytes()[..], &[version; 24]].concat();
    unit.iter().copied().cycle().take(BLOCK).collect()
}

/// L1: a device that is killed before it verified a forged write fails the first flush after its
/// restart, for a writer that it does not know any more.
#[test]
fn forged_write_before_kill_fails_next_flush() {
    for is_verified_first in [false, true] {
        let mut unit = AttackedUnit::new("paper:S1-2");
        let (mut attach, mut client) = unit.attach();
        client.write(0, &block(OLD));
        assert_eq!(client.flush(), 0);
        unit.proxy.arm(true, WireChange::Data(NEW.to_vec()));
        client.write(0, &block(NEW));
        unit.bench.device.end(Signal::Kill);
        unit.bench.start(&[]);
        if is_verified_first {
            // The device verifies before the client has logged in again.
            let began = Instant::now();
            while unit.rejected() == 0 {
                assert!(began.elapsed() < Duration::from_secs(60), "the window is bounded");
                thread::sleep(Duration::from_millis(50));
            }
        }
        assert_eq!(client.flush(), EIO, "{is_verified_first}");
        assert_eq!(read_error(&mut client, 0), EIO, "never the older block");
        assert_eq!(unit.rejected(), 1);
        client.write(0, &block(NEW));
        assert_eq!((client.flush(), client.read(0, 4096)), (0, block(NEW)));
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}

/// L1 to L3 at random: bits of any bytes flipped in both directions.
#[test]
fn random_bit_flips_give_no_wrong_bytes() {
    let mut seed = 11_u64;
    let mut below = |limit: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % limit
    };
    for level in ["paper:S1-1u", "paper:S1-2", "paper:S2-5", "lazy"] {
        let unit = AttackedUnit::new(level);
        let (mut attach, mut client) = unit.attach();
        let mut versions = [0_u8; 8];
        for version in 1..=24 {
            let at = below(8);
            unit.proxy.arm(below(2) == 0, WireChange::Byte(below(1 << 20) as usize));
            let written = client.request(WRITE, at * BLOCK as u64, BLOCK as u32, &stamp(at, version));
            assert_eq!(written, 0, "{level}: a write");
            versions[at as usize] = version;
            for (at, version) in (0..).zip(versions) {
                match client.request(0, at * BLOCK as u64, BLOCK as u32, &[]) {
                    0 => {
                        let expected = if version == 0 { vec![0; BLOCK] } else { stamp(at, version) };
                        assert!(client.payload(BLOCK) == expected, "{level}: block {at}, {version}");
                    }
                    error => assert_eq!(error, EIO, "{level}: block {at}, {version}"),
                }
            }
            unit.proxy.disarm();
            if client.flush() != 0 {
                // The loss is reported; a file system would write again.
                assert_ne!(unit.rejected(), 0, "{level}");
                for (at, version) in (0..).zip(versions).filter(|(_, version)| *version > 0) {
                    client.write(at * BLOCK as u64, &stamp(at, version));
                }
                assert_eq!(client.flush(), 0, "{level}");
            }
        }
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}
