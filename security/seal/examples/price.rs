//! Prints the cost of the security model: `cargo run --release -p sealstone-seal --example price`.
//!
//! Best of several batches, one thread, wall clock: a figure to compare builds with, not a
//! benchmark.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::hint::black_box;
use std::time::Instant;

use sealstone_crypto::{ParkingLot, RustCrypto};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::Extent;
use sealstone_osd::{
    AttributeId, Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod,
};
use sealstone_seal::freshness::CredentialId;
use sealstone_seal::*;

const NOW: u64 = 1_764_000_000_000;
const OBJECT: ObjectId = ObjectId::new(0x1_0000, 0x1_0001);
const BATCHES: usize = 20;

struct Nothing;

impl DeviceFacts for Nothing {
    fn floor(&self, _: ObjectId) -> SecurityMethod {
        SecurityMethod::CmdRsp
    }
    fn frozen_keys(&self, _: u64) -> u16 {
        0
    }
    fn audit_frozen(&self, _: &[u8; 20]) -> bool {
        false
    }
    fn object(&self, _: ObjectId) -> Option<ObjectFacts> {
        Some(ObjectFacts { kind: ObjectType::User, created_ms: 1, policy_access_tag: 1 })
    }
    fn attribute_allowed(&self, _: u64, _: u32, _: AttributeId) -> bool {
        true
    }
}

/// Returns the nanoseconds of one run, as the best of several batches of inputs prepared
/// beforehand.
fn best<T>(count: usize, mut make: impl FnMut() -> Vec<T>, mut run: impl FnMut(&T)) -> f64 {
    (0..BATCHES)
        .map(|_| {
            let inputs = make();
            let start = Instant::now();
            inputs.iter().take(count).for_each(&mut run);
            start.elapsed().as_nanos() as f64 / inputs.len() as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn capability(method: SecurityMethod, slot: u8, number: u32) -> Capability {
    let mut discriminator = [0; 12];
    discriminator[..4].copy_from_slice(&number.to_be_bytes());
    Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: slot,
        method,
        expires_ms: NOW + 300_000,
        audit: [1; 20],
        discriminator,
        object_created_ms: 1,
        object_type: ObjectType::User,
        permissions: Permissions::ALL_OSD2,
        descriptor: Descriptor::User {
            scope: Scope { policy_access_tag: 1, ..Scope::default() },
            allowed: OBJECT,
            range: Range { start: 0, length: 0 },
        },
    }
}

fn main() {
    let mut random = sealstone_crypto::SystemRandom;
    let initial = InitialKey::new(&[7; 32]).expect("32 bytes");
    let mut keys = KeyHierarchy::<RustCrypto>::factory(Hash::Sha256, &initial, [1; 20]);
    keys.add_partition(OBJECT.partition).expect("a new partition");
    let slots = AlgorithmSlots::DEFAULT;
    let gate = Gate::<RustCrypto, ParkingLot>::new(GatePolicy::default(), 0, &mut random);
    gate.nonces().extend_lease(u64::MAX);
    let nexus = NexusSecurity::default();
    let issue = |method, slot, number| {
        Credential::issue(&keys, &slots, &capability(method, slot, number)).expect("the key is set")
    };
    let read = Cdb::new(Generation::Osd2, Command::Read(Extent { object: OBJECT, start: 0, length: 65_536 }));
    let request = |cdb: &Cdb, bytes: &[u8], clock_ms| {
        let request =
            GateRequest { cdb, bytes, nexus: &nexus, clock_ms, boot_epoch: 1, keys: &keys, facts: &Nothing };
        let admitted = gate.admit(&request).map_err(|refused| refused.denial).expect("admitted");
        black_box(admitted.permit(cdb, &Nothing).expect("permitted"));
        admitted
    };

    // In each second of nonces one credential takes at most a quarter of the slots.
    let mut second = 0;
    let mut sign_all = |signers: &[Signer<RustCrypto>], count: usize| {
        second += 1000;
        (0..count)
            .map(|at| {
                let signer = &signers[at % signers.len()];
                let signed = signer.sign(read, &mut SentParts::default(), NOW + second, None, &mut random);
                let signed = signed.expect("signed");
                (Cdb::parse(&signed.cdb).expect("parses"), signed, NOW + second)
            })
            .collect::<Vec<_>>()
    };
    println!("one command, OSD-2, F1h unless said otherwise");
    for (name, method, slot) in [
        ("CMDRSP 01h", SecurityMethod::CmdRsp, 0),
        ("CMDRSP", SecurityMethod::CmdRsp, 1),
        ("ALLDATA", SecurityMethod::AllData, 1),
    ] {
        let credential = issue(method, slot, 0);
        let signers = [Signer::new(&credential, &slots).expect("a signer")];
        let cached = best(
            4000,
            || sign_all(&signers, 4000),
            |(cdb, signed, clock)| {
                black_box(request(cdb, &signed.cdb, *clock));
            },
        );
        println!("  gate and permit, {name}, cached credential    {cached:8.0} ns");
    }
    let mut number = 1;
    let cold = best(
        1000,
        || {
            let signers: Vec<_> = (0..1000)
                .map(|_| {
                    number += 1;
                    Signer::new(&issue(SecurityMethod::CmdRsp, 1, number), &slots).expect("a signer")
                })
                .collect();
            sign_all(&signers, 1000)
        },
        |(cdb, signed, clock)| {
            black_box(request(cdb, &signed.cdb, *clock));
        },
    );
    println!("  gate and permit, CMDRSP, new credential       {cold:8.0} ns");

    let credential = issue(SecurityMethod::AllData, 1, 0);
    let signers = [Signer::new(&credential, &slots).expect("a signer")];
    let (cdb, signed, clock) = sign_all(&signers, 1).remove(0);
    let admitted = request(&cdb, &signed.cdb, clock);
    let times = || vec![(); 2000];
    let good = best(2000, times, |()| drop(black_box(admitted.reply().sense(0, &[]))));
    println!("  sense data of GOOD with its check value       {good:8.0} ns");
    for size in [4096, 65_536] {
        let data = vec![3; size];
        let price =
            best(200, || vec![(); 200], |()| drop(black_box(admitted.reply().data_in(&[&data], &[]))));
        println!("  data-in check value of {size:6} bytes          {price:8.0} ns");
    }
    let sign = best(2000, times, |()| {
        let mut chance = |into: &mut [u8]| into.fill(1);
        let _ = black_box(signers[0].sign(read, &mut SentParts::default(), NOW, None, &mut chance));
    });
    println!("  signing at the client                         {sign:8.0} ns");
    let issued = best(2000, times, |()| drop(black_box(issue(SecurityMethod::AllData, 1, 9))));
    println!("  issuing a credential                          {issued:8.0} ns");

    // A second with 200 000 commands of one credential, in a memory whose window is full.
    let memory = NonceMemory::<ParkingLot>::new(NonceLimits::default(), &[7; 16], 0);
    memory.extend_lease(u64::MAX);
    let mut second = 0;
    let check = best(
        200_000,
        || {
            second += 1000;
            (0..200_000_u64).map(|number| (number, NOW + second)).collect()
        },
        |(number, clock)| {
            let [_, _, random @ ..] = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
            let admitted = memory.admit(CredentialId::of_hash(1), &Nonce::new(*clock, random), *clock);
            assert_eq!(black_box(admitted), Ok(()));
        },
    );
    println!("  nonce check, 200 000 a second                 {check:8.0} ns");
    key_changes();
    println!("bytes");
    println!("  nonce memory after {:2} such seconds             {:8}", second / 1000, memory.bytes());
    println!("  nonce                                          8 at a load of 0.41 to 0.81");
    println!("  nonce memory, bound with default limits       {:8}", NonceLimits::default().bytes_max());
    println!("  nonce memory now                              {:8}", gate.nonces().bytes());
    println!("  cached credential                             {:8}", credential_bytes());
}

/// The cost of SET KEY without the medium: a copy of the hierarchy, the change, its bytes, the
/// sealed file. Each is O(partitions and working keys that are set).
fn key_changes() {
    for partitions in [1_u64, 1000, 10_000] {
        let initial = InitialKey::new(&[5; 32]).expect("32 bytes");
        let mut keys = KeyHierarchy::<RustCrypto>::factory(Hash::Sha256, &initial, [7; 20]);
        for id in 0x1_0000..0x1_0000 + partitions {
            keys.add_partition(id).expect("a free id");
        }
        let mut length = 0;
        let changed = best(
            20,
            || vec![(); 20],
            |()| {
                let mut next = keys.clone();
                next.set_working(0x1_0000, 3, &[9; 20], [9; 7]).expect("a partition with keys");
                let mut chance = |into: &mut [u8]| into.fill(1);
                let sealed = sealstone_crypto::vault::seal(&[4; 32], 7, &next.encode(), &mut chance);
                length = black_box(sealed).len();
            },
        );
        println!(
            "  change of one of {partitions:6} partitions' keys      {changed:8.0} ns, a file of {length} bytes"
        );
    }
}

/// Returns the memory of one entry of the credential cache: its value, two counters of its `Arc`,
/// its place in a set.
fn credential_bytes() -> usize {
    CredentialCache::<RustCrypto, ParkingLot>::ENTRY_BYTES
}
