//! Commands on objects, and the memory of connections and objects.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_initiator::{
    AttributeRange, Bearer, EVERY_OBJECT, LIST_IDS_MAX, Operation, OsdClient, OsdError, OsdOptions,
    QueryCriteria, ScsiRequest, SystemEnvironment, TargetUrl, TcpDial,
};
use sealstone_osd::cdb::{Create, Extent, List, Query, Target};
use sealstone_osd::{AttributeId, Command, ObjectId, SecurityMethod};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::credential::Issuer;
use crate::daemon::Osd;
use crate::latency::CommandLatency;
use crate::process::usage;
use crate::settings::Commands;
use crate::workload::Direction;
use crate::{Outcome, ceiling};

const PARTITION: u64 = 1 << 16;
/// Partition of the many objects.
const CROWD: u64 = PARTITION + 1;
/// Partition of the queried objects.
const QUERIED: u64 = PARTITION + 2;
const OBJECT: ObjectId = ObjectId::new(PARTITION, 1 << 16);
/// Bytes of the object that is read.
const OBJECT_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 4096;
/// Objects that one CREATE creates while the crowd is created.
const CREATE_COUNT: u16 = 10_000;
/// Factor by which queries are measured less often than commands on one object.
const QUERIES_FEWER: usize = 100;
/// The queried attribute, and the range of values that match.
const ATTRIBUTE: AttributeId = AttributeId::new(0x1_0000, 1);
const MATCHES: core::ops::Range<u32> = 500..1500;
/// Commands in flight while attributes are set.
const SETTERS: usize = 16;
/// Idle time of a daemon before its memory is measured.
const SETTLE: Duration = Duration::from_secs(3);
/// Sessions that come first and pay for shared allocations.
const FIRST_SESSIONS: usize = 10;
/// Length of the turns of commands and plain TCP.
const TURN: Duration = Duration::from_millis(50);
const METHOD: SecurityMethod = SecurityMethod::CmdRsp;

/// LIST of the whole crowd.
#[derive(Debug, Serialize)]
pub(crate) struct ListTimes {
    pub(crate) objects: u64,
    pub(crate) seconds: f64,
}

/// 4 KiB reads at depth 1, beside plain TCP.
#[derive(Debug, Serialize)]
pub(crate) struct ReadBesideTcp {
    pub(crate) tcp_us: f64,
    pub(crate) read_us: f64,
    /// CPU of the device per read.
    pub(crate) device_cpu_us: f64,
}

/// Memory of the device.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceMemory {
    pub(crate) connections: usize,
    pub(crate) bytes_per_idle_connection: f64,
    pub(crate) objects: u64,
    pub(crate) bytes_per_cold_object: f64,
}

/// All results of this part.
pub(crate) struct ObjectResults {
    pub(crate) rows: Vec<CommandLatency>,
    pub(crate) listing: ListTimes,
    pub(crate) read: ReadBesideTcp,
    pub(crate) held: DeviceMemory,
}

pub(crate) fn measure(
    runtime: &Runtime,
    binary: &Path,
    data: &Path,
    arguments: &Commands,
) -> Outcome<ObjectResults> {
    let osd = Osd::new(binary, data)?;
    let issuer = Issuer::of(&osd.data, PARTITION)?;
    let device = connect(&osd)?;
    let anything = issuer.anything()?;
    runtime.block_on(device.create_partition(&anything, PARTITION))?;
    runtime.block_on(device.create_partition(&anything, CROWD))?;
    runtime.block_on(device.create(&anything, OBJECT))?;
    runtime.block_on(device.write(&anything, OBJECT, 0, Bytes::from(vec![0x5A; OBJECT_BYTES])))?;
    let mut rows = latencies(runtime, &device, &issuer, arguments.samples)?;
    rows.push(query(runtime, &device, &osd, &anything, arguments)?);
    let read = beside_tcp(runtime, &osd, &device, &issuer, arguments.samples)?;
    drop(device);
    // Memory that a device returned to its allocator, but not to the system, would hide new
    // allocations: memory is measured in devices that were just started.
    osd.stop()?;
    let osd = Osd::start(binary, data)?;
    let bytes_per_idle_connection = idle_connections(runtime, &osd, arguments.connections)?;
    osd.stop()?;
    let osd = Osd::start(binary, data)?;
    thread::sleep(SETTLE);
    let empty_kib = usage(osd.pid())?.rss_kib;
    let device = connect(&osd)?;
    eprintln!("making {} objects", arguments.objects);
    make_crowd(runtime, &device, &anything, CROWD, arguments.objects)?;
    drop(device);
    osd.stop()?;
    let osd = Osd::start(binary, data)?;
    thread::sleep(SETTLE);
    let full_kib = usage(osd.pid())?.rss_kib;
    let device = connect(&osd)?;
    let crowd = Issuer::of(&osd.data, CROWD)?;
    let listing = list(runtime, &device, &crowd, arguments.objects)?;
    drop(device);
    osd.stop()?;
    let held = DeviceMemory {
        connections: arguments.connections,
        bytes_per_idle_connection,
        objects: arguments.objects,
        bytes_per_cold_object: full_kib.saturating_sub(empty_kib) as f64 * 1024.0
            / arguments.objects.max(1) as f64,
    };
    Ok(ObjectResults { rows, listing, read, held })
}

fn connect(osd: &Osd) -> Outcome<OsdClient> {
    let url: TargetUrl = osd.url.parse()?;
    let environment = Arc::new(SystemEnvironment);
    let options = OsdOptions::new(&*environment);
    Ok(OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment, options))
}

fn latencies(
    runtime: &Runtime,
    device: &OsdClient,
    issuer: &Issuer,
    samples: usize,
) -> Outcome<Vec<CommandLatency>> {
    let mut rows = Vec::new();
    let command = Command::GetAttributes(Target { object: OBJECT });
    let bearer = issuer.command(&command, METHOD)?;
    let ids: Vec<_> = [0x1, 0x2, 0x81, 0x82].map(|number| AttributeId::new(1, number)).to_vec();
    rows.push(CommandLatency::measure("GET ATTRIBUTES", "CMDRSP; four of a user object", samples, |_| {
        let got = runtime.block_on(device.attributes(&bearer, OBJECT, ids.clone()))?;
        if got.len() == ids.len() { Ok(()) } else { Err("an attribute is missing".into()) }
    })?);
    let object = |number: usize| ObjectId::new(PARTITION, (1 << 20) + number as u64);
    // A credential for each object, issued before the clock starts.
    let count = samples + samples.div_ceil(10) + 1;
    let command = |number| Command::Create(Create { object: object(number), count: 1 });
    let bearers = bearers(issuer, count, command)?;
    rows.push(CommandLatency::measure("CREATE", "CMDRSP; a given id", samples, |number| {
        runtime.block_on(device.create(&bearers[number], object(number)))?;
        Ok(())
    })?);
    let command = |number| Command::Remove(Target { object: object(number) });
    let bearers = self::bearers(issuer, count, command)?;
    rows.push(CommandLatency::measure("REMOVE", "CMDRSP; durable later", samples / 2, |number| {
        let operation = Operation::Other { command: command(number), data_out: Bytes::new() };
        runtime.block_on(device.execute(&bearers[number], operation))?;
        Ok(())
    })?);
    let first = samples / 2 + (samples / 2).div_ceil(20);
    rows.push(CommandLatency::measure(
        "REMOVE with FUA",
        "CMDRSP; durable before GOOD",
        samples / 4,
        |number| Ok(runtime.block_on(device.remove(&bearers[first + number], object(first + number)))?),
    )?);
    Ok(rows)
}

fn bearers(issuer: &Issuer, count: usize, command: impl Fn(usize) -> Command) -> Outcome<Vec<Bearer>> {
    (0..count).map(|number| issuer.command(&command(number), METHOD)).collect()
}

/// Runs reads and plain TCP in turns, so that other load affects both.
fn beside_tcp(
    runtime: &Runtime,
    osd: &Osd,
    device: &OsdClient,
    issuer: &Issuer,
    samples: usize,
) -> Outcome<ReadBesideTcp> {
    let extent = Extent { object: OBJECT, start: 0, length: READ_BYTES as u64 };
    let bearer = issuer.command(&Command::Read(extent), METHOD)?;
    let (mut tcp, mut read) = (Vec::new(), Vec::new());
    let (mut device_cpu_s, mut buffer) = (0.0, Vec::new());
    while read.len() < samples {
        let (exchanges, time) = ceiling::run(Direction::Read, READ_BYTES, 1, TURN)?;
        tcp.push(time / u32::try_from(exchanges.max(1)).unwrap_or(u32::MAX));
        let before = usage(osd.pid())?.cpu_s;
        let until = Instant::now() + TURN;
        while Instant::now() < until {
            let offset = (read.len() % (OBJECT_BYTES / READ_BYTES) * READ_BYTES) as u64;
            let begin = Instant::now();
            let operation = Operation::Read { object: OBJECT, offset, length: READ_BYTES, buffer };
            buffer = runtime.block_on(device.execute(&bearer, operation))?.data;
            read.push(begin.elapsed());
        }
        device_cpu_s += usage(osd.pid())?.cpu_s - before;
    }
    let reads = read.len() as f64;
    Ok(ReadBesideTcp {
        tcp_us: CommandLatency::of("", "", tcp).median_us,
        read_us: CommandLatency::of("", "", read).median_us,
        device_cpu_us: device_cpu_s * 1e6 / reads,
    })
}

/// Returns resident bytes per idle logged-in session of a device that was just started.
fn idle_connections(runtime: &Runtime, osd: &Osd, count: usize) -> Outcome<f64> {
    let mut sessions = Vec::with_capacity(FIRST_SESSIONS + count);
    let mut come = |count: usize| -> Outcome<u64> {
        for _ in 0..count {
            let session = connect(osd)?;
            let ready = ScsiRequest { cdb: Bytes::from_static(&[0; 6]), ..ScsiRequest::default() };
            runtime.block_on(session.raw(ready))?;
            sessions.push(session);
        }
        thread::sleep(SETTLE);
        Ok(usage(osd.pid())?.rss_kib)
    };
    let before_kib = come(FIRST_SESSIONS)?;
    let after_kib = come(count)?;
    Ok(after_kib.saturating_sub(before_kib) as f64 * 1024.0 / count.max(1) as f64)
}

/// Measures QUERY for a range of one attribute over all objects of a partition.
fn query(
    runtime: &Runtime,
    device: &OsdClient,
    osd: &Osd,
    anything: &Bearer,
    arguments: &Commands,
) -> Outcome<CommandLatency> {
    let issuer = Issuer::of(&osd.data, QUERIED)?;
    runtime.block_on(device.create_partition(anything, QUERIED))?;
    eprintln!("making {} objects to be queried", arguments.queried);
    make_crowd(runtime, device, anything, QUERIED, arguments.queried)?;
    let ids = ids(runtime, device, anything, QUERIED)?;
    let share = ids.len().div_ceil(SETTERS).max(1);
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for (lane, part) in ids.chunks(share).enumerate() {
            let (device, anything, part) = (device.clone(), anything.clone(), part.to_vec());
            tasks.spawn(async move {
                for (at, id) in part.into_iter().enumerate() {
                    let number = u32::try_from(lane * share + at).unwrap_or(u32::MAX);
                    let values = vec![(ATTRIBUTE, Bytes::copy_from_slice(&number.to_be_bytes()))];
                    device.set_attributes(&anything, ObjectId::new(QUERIED, id), values).await?;
                }
                Ok::<(), OsdError>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Outcome::Ok(())
    })?;
    let collection = ObjectId::new(QUERIED, EVERY_OBJECT);
    let command = Command::Query(Query { object: collection, allocation: 1, matches: 0, immediate: false });
    let bearer = issuer.command(&command, METHOD)?;
    let value = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes());
    let within = AttributeRange { id: ATTRIBUTE, min: value(MATCHES.start), max: value(MATCHES.end - 1) };
    let question = QueryCriteria { any: false, criteria: vec![within] };
    let expected = (ids.len() as u64).min(MATCHES.end.into()).saturating_sub(MATCHES.start.into());
    let name = format!("QUERY over {}", ids.len());
    let note = format!("CMDRSP; a range of one attribute, {expected} match");
    CommandLatency::measure(&name, &note, arguments.samples.div_ceil(QUERIES_FEWER), |_| {
        let query = device.query(&bearer, collection, question.clone(), LIST_IDS_MAX);
        let (found, total) = runtime.block_on(query)?;
        if total == expected && found.len() as u64 == expected {
            Ok(())
        } else {
            Err(format!("{total} match where {expected} should").into())
        }
    })
}

/// Returns all ids of a partition.
fn ids(runtime: &Runtime, device: &OsdClient, bearer: &Bearer, partition: u64) -> Outcome<Vec<u64>> {
    let (mut from, mut found) = (0, Vec::new());
    loop {
        let page = runtime.block_on(device.list(bearer, partition, from, LIST_IDS_MAX))?;
        found.extend(page.ids);
        match page.next {
            Some(next) => from = next,
            None => return Ok(found),
        }
    }
}

fn make_crowd(
    runtime: &Runtime,
    device: &OsdClient,
    anything: &Bearer,
    partition: u64,
    objects: u64,
) -> Outcome {
    let mut left = objects;
    while left > 0 {
        let count = u16::try_from(left).unwrap_or(u16::MAX).min(CREATE_COUNT);
        let command = Command::Create(Create { object: ObjectId::new(partition, 0), count });
        let operation = Operation::Other { command, data_out: Bytes::new() };
        runtime.block_on(device.execute(anything, operation))?;
        left -= u64::from(count);
    }
    Ok(runtime.block_on(device.flush_osd(anything))?)
}

fn list(runtime: &Runtime, device: &OsdClient, issuer: &Issuer, objects: u64) -> Outcome<ListTimes> {
    let command = Command::List(List {
        object: ObjectId::of_partition(CROWD),
        list_id: 0,
        allocation: 0,
        initial: 0,
        with_attributes: false,
    });
    let bearer = issuer.command(&command, METHOD)?;
    let begin = Instant::now();
    let found = ids(runtime, device, &bearer, CROWD)?.len() as u64;
    let seconds = begin.elapsed().as_secs_f64();
    if found != objects {
        return Err(format!("{found} of {objects} objects are listed").into());
    }
    Ok(ListTimes { objects: found, seconds })
}
