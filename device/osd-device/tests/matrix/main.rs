//! Each command with each single defect is refused with the documented sense data, an audit record,
//! a count, and without a change.
//!
//! All cases are generated from one table, the service actions of `sealstone_osd::table`. The
//! refusals are in `docs/standards/refusals.json` for machines; with `SEALSTONE_BLESS=1` the test
//! writes that file.
//! Truth: docs/design/security.md 3.3, 8.4; docs/standards/security.md section 3.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "modules of one test")]

mod cases;
mod conditions;
mod samples;
mod shot;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use sealstone_osd::cdb::{Command, Create, Target};
use sealstone_osd::table::SERVICE_ACTIONS;
use sealstone_osd::{Capability, Cdb, Generation, ObjectId, ObjectType, Permissions, SecurityMethod};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::{FieldPointer, Sense, SenseKey, Status};
use sealstone_seal::SecurityToken;
use sealstone_store::MemoryStore;

use cases::{Case, Device, Finish, METHODS};
use conditions::Condition;
use samples::{CID, OID, Sample};
use shot::Shot;
use support::{Bench, ListPair, NEXUS, PID, START_MS};

/// Minimum number of refusals; fewer means that cases are missing.
const REFUSALS_MIN: usize = 20_000;
/// INQUIRY for VPD page B1h, security token.
const TOKEN: [u8; 6] = [0x12, 1, 0xB1, 0, 0xFF, 0];
const COMMAND_FUNCTION: u32 = 0x1000_0000;

fn bench(device: Device) -> Bench {
    let lenient = device != Device::Strict;
    let config = OsdConfig { allow_osd1: true, insecure_capkey: lenient, ..OsdConfig::default() };
    let bench = Bench::with(config, Arc::new(MemoryStore::new(64 << 20)));
    bench.create_partition(PID);
    bench
        .run(Command::Create(Create { object: ObjectId::new(PID, OID), count: 1 }), ListPair::default(), &[])
        .good();
    let collection = Command::CreateCollection(Target { object: ObjectId::new(PID, CID) });
    if bench.run(collection, ListPair::default(), &[]).status != Status::Good {
        bench.store.create(ObjectId::new(PID, CID), ObjectType::Collection).unwrap();
    }
    let set = |object, values: &[(u32, u32, &[u8])]| {
        bench.run(Command::SetAttributes(Target { object }), ListPair::set(values), &[]).good();
    };
    match device {
        Device::Lenient | Device::Strict => {}
        Device::Raised => {
            set(ObjectId::of_partition(PID), &[(0x3000_0005, 1, &[3])]);
            set(ObjectId::ROOT, &[(0x9000_0005, 6, &[3]), (0x9000_0005, 1, &[3])]);
        }
        Device::Frozen => set(ObjectId::of_partition(PID), &[(0x3000_0005, 5, &[0, 1])]),
    }
    bench
}

/// Returns the token of the nexus for CAPKEY.
fn token(bench: &Bench) -> SecurityToken {
    let reply = bench.raw(NEXUS, &TOKEN, &[], 255);
    SecurityToken(reply.data_in[4..36].try_into().unwrap())
}

/// Whether the device implements the sample. If everything is right, at most an object is missing.
fn answers(sample: &Sample, method: SecurityMethod) -> bool {
    let bench = bench(Device::Lenient);
    let ready = bench.build(
        sample.command,
        &ListPair::default(),
        sample.data(),
        &cases::full(sample, method),
        sample.continuation.clone(),
        &token(&bench),
    );
    bench.log.0.lock().clear();
    let reply = bench.send(&ready);
    let log = bench.log.0.lock();
    if log.iter().any(|line| line.contains("unsupported_service_action")) {
        return false;
    }
    let name = format!("{} {} {} {method}", sample.generation, sample.row.name, sample.name());
    assert!(
        !log.iter().any(|line| line.contains(" refused ")),
        "{name} has full authority: {log:?} {reply:?}"
    );
    true
}

/// The devices under test.
struct Range {
    benches: BTreeMap<Device, (Bench, SecurityToken)>,
}

impl Range {
    fn new() -> Self {
        let all = [Device::Lenient, Device::Strict, Device::Raised, Device::Frozen];
        let benches = all
            .map(|device| {
                let bench = bench(device);
                let token = token(&bench);
                (device, (bench, token))
            })
            .into();
        Self { benches }
    }

    fn of(&self, device: Device) -> (&Bench, SecurityToken) {
        let (bench, token) = &self.benches[&device];
        (bench, *token)
    }

    fn hashes(&self) -> Vec<u64> {
        self.benches.values().map(|(bench, _)| bench.state_hash()).collect()
    }
}

fn sense_of(condition: &Condition, generation: Generation) -> Option<FieldPointer> {
    let pointer = generation.select(condition.pointer);
    (pointer != 0).then(|| FieldPointer::cdb(pointer))
}

/// Sends one request and checks all its effects. Returns the error, if any.
fn fire(bench: &Bench, case: &Case, shot: &Shot, expected: &Condition) -> Result<(), String> {
    let parsed = Cdb::parse(&shot.cdb).map_err(|error| error.to_string())?;
    let generation = parsed.generation;
    let count = || {
        let row =
            bench.unit.metrics().commands().find(|(name, _)| *name == parsed.command.row().name).unwrap().1;
        (row.refused, bench.unit.metrics().denials().get(expected.reason).copied().unwrap_or(0))
    };
    bench.log.0.lock().clear();
    let before = count();
    let reply = bench.raw(NEXUS, &shot.cdb, &shot.data_out, shot.data_in_max);
    let after = count();
    let log = bench.log.0.lock().clone();

    let (qualifier, code) = (expected.code as u8, (expected.code >> 8) as u8);
    let principal: String = shot.cdb[90..110].iter().map(|byte| format!("{byte:02x}")).collect();
    let record = format!(
        "{principal} iqn.test:client {} {} refused Some({:?}) Some((5, {code}, {qualifier}))",
        parsed.command.row().name,
        parsed.command.object(),
        expected.reason
    );
    if log != [record.clone()] {
        return Err(format!("audit {log:?} instead of {record}"));
    }
    if after != (before.0 + 1, before.1 + 1) {
        return Err(format!("counters {before:?} then {after:?}"));
    }
    if reply.status != Status::CheckCondition || !reply.data_in.is_empty() {
        return Err(format!("{reply:?}"));
    }
    let sense = Sense::parse(&reply.sense).map_err(|error| format!("{error:?}"))?;
    if (sense.key, sense.code.0) != (SenseKey::IllegalRequest, expected.code) {
        return Err(format!("sense {sense:?}"));
    }
    if sense.field != sense_of(expected, generation) {
        return Err(format!("pointer {:?} instead of {:?}", sense.field, sense_of(expected, generation)));
    }
    let clock = (expected.code == 0x2407).then_some(START_MS);
    if sense.information != clock {
        return Err(format!("information {:?}", sense.information));
    }
    let reported = sense.osd.is_some_and(|osd| {
        osd.not_initiated.0 & COMMAND_FUNCTION != 0
            && osd.completed.0 & COMMAND_FUNCTION == 0
            && ObjectId::new(osd.partition, osd.object) == parsed.command.object()
    });
    if reported != expected.proven || sense.osd.is_some() != expected.proven {
        return Err(format!("error identification {:?}", sense.osd));
    }
    let sealed = (expected.proven || expected.further) && case.method >= SecurityMethod::CmdRsp;
    if sense.response_icv.is_some() != sealed {
        return Err(format!("sealed: {}", sense.response_icv.is_some()));
    }
    match &shot.ready {
        Some(ready) if sealed => bench.verify(ready, &reply).map(drop).map_err(|error| error.to_string()),
        _ => Ok(()),
    }
}

/// Returns the JSON of a refusal, without methods and commands.
fn entry(generation: Generation, case: &Case, expected: &Condition) -> String {
    let pointer = match generation.select(expected.pointer) {
        0 => "null".to_owned(),
        byte => byte.to_string(),
    };
    format!(
        "\"generation\": \"{generation}\", \"wrong\": \"{}\", \"how\": \"{}\", \"sense\": \"5/{:04X}\", \
         \"field_pointer\": {pointer}, \"reason\": \"{}\", \"proven\": {}",
        expected.name, case.what, expected.code, expected.reason, expected.proven
    )
}

/// The matrix, in which equal refusals of several commands and methods are merged.
#[derive(Default)]
struct Matrix {
    /// Refusals of the current sample, with their methods, in order.
    sample: Vec<(String, BTreeSet<&'static str>)>,
    /// Refusals with their methods, and the commands that cause them.
    lines: Vec<(String, Vec<String>)>,
}

impl Matrix {
    fn add(&mut self, entry: String, method: SecurityMethod) {
        let name = ["NOSEC", "CAPKEY", "CMDRSP", "ALLDATA"][method as usize];
        match self.sample.iter_mut().find(|(there, _)| *there == entry) {
            Some((_, methods)) => drop(methods.insert(name)),
            None => self.sample.push((entry, BTreeSet::from([name]))),
        }
    }

    fn end_of(&mut self, sample: &Sample) {
        let command = format!("{:04X} {}", sample.row.code(sample.generation).unwrap(), sample.name());
        for (entry, methods) in std::mem::take(&mut self.sample) {
            let methods: Vec<_> = methods.into_iter().collect();
            let line = format!("{entry}, \"methods\": {methods:?}");
            match self.lines.iter_mut().find(|(there, _)| *there == line) {
                Some((_, commands)) => commands.push(command.clone()),
                None => self.lines.push((line, vec![command.clone()])),
            }
        }
    }

    fn write(&self) -> String {
        let rows =
            SERVICE_ACTIONS.iter().flat_map(|row| samples::GENERATIONS.map(|generation| (row, generation)));
        let names: Vec<String> = rows
            .filter_map(|(row, generation)| {
                Some(format!("\"{:04X}\": \"{}\"", row.code(generation)?, row.name))
            })
            .collect();
        let lines: Vec<String> = self
            .lines
            .iter()
            .map(|(line, commands)| format!("    {{{line}, \"commands\": {commands:?}}}"))
            .collect();
        format!(
            "{{\n  \"service_actions\": {{{}}},\n  \"refusals\": [\n{}\n  ]\n}}\n",
            names.join(", "),
            lines.join(",\n")
        )
    }
}

#[test]
fn every_command_refuses_every_single_defect() {
    let range = Range::new();
    let mut matrix = Matrix::default();
    let mut wrong = Vec::new();
    let (mut fired, mut not_there) = (0, BTreeSet::new());
    for sample in samples::all() {
        let mut methods = METHODS
            .into_iter()
            .filter(|method| *method >= SecurityMethod::CmdRsp || !cases::needs_signature(&sample));
        let there = methods.all(|method| answers(&sample, method));
        if !there {
            not_there.insert(format!("{} {}", sample.generation, sample.row.name));
        }
        let before = range.hashes();
        for case in cases::all(&sample) {
            let (bench, token) = range.of(case.device);
            let Some(shot) = shot::build(bench, token, &sample, &case) else { continue };
            let name = format!("{} {} {:?} {}", sample.row.name, sample.name(), case.what, case.method);
            matrix.add(entry(sample.generation, &case, &shot.expected), case.method);
            if !there {
                continue;
            }
            fired += 1;
            if matches!(case.finish, Finish::Twice) {
                let first = fire(bench, &case, &shot, &conditions::MISSING_PERMISSION);
                wrong.extend(first.err().map(|error| format!("{name}, first time: {error}")));
            }
            wrong.extend(
                fire(bench, &case, &shot, &shot.expected).err().map(|error| format!("{name}: {error}")),
            );
        }
        matrix.end_of(&sample);
        if range.hashes() != before {
            wrong.push(format!("{} {} changed something", sample.generation, sample.row.name));
        }
    }
    assert!(not_there.is_empty(), "in the table but not implemented: {not_there:?}");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(60)].join("\n"));
    assert!(fired >= REFUSALS_MIN, "{fired} refusals");
    current(&matrix.write());
}

/// Checks that the matrix in the documentation is the tested one.
fn current(text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/standards/refusals.json");
    if std::env::var_os("SEALSTONE_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(text.lines()).position(|(one, other)| one != other);
    assert!(
        there == text,
        "{} is not current (line {:?}): SEALSTONE_BLESS=1 cargo test -p sealstone-osd-device --test matrix",
        path.display(),
        differs.map(|line| line + 1)
    );
}

/// A capability with all permissions for one object grants none for another.
#[test]
fn a_capability_grants_nothing_beyond_its_object() {
    let bench = bench(Device::Lenient);
    let samples = samples::all();
    let mut refused = 0;
    for sample in samples.iter().filter(|sample| sample.generation == Generation::Osd2) {
        for held in samples.iter().filter(|held| held.generation == Generation::Osd2) {
            if held.command.object() == sample.command.object() && held.kind == sample.kind {
                continue;
            }
            let capability = Capability {
                permissions: Permissions::ALL_OSD2,
                ..cases::full(held, SecurityMethod::AllData)
            };
            let ready = bench.build(
                sample.command,
                &ListPair::default(),
                sample.data(),
                &capability,
                sample.continuation.clone(),
                &SecurityToken([0; 32]),
            );
            let before = bench.log.0.lock().len();
            let reply = bench.send(&ready);
            let log = bench.log.0.lock()[before..].to_vec();
            if log.iter().any(|line| line.contains("unsupported_service_action")) {
                continue;
            }
            refused += 1;
            let why = ["\"object_type\"", "\"partition\"", "\"object\""];
            assert!(
                log.len() == 1 && why.iter().any(|why| log[0].contains(why)),
                "{} with a capability of {}: {log:?} {reply:?}",
                sample.row.name,
                held.row.name
            );
        }
    }
    assert!(refused > 200, "{refused}");
}
