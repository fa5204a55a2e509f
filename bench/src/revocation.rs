//! Revocation of one file, one partition, one user: time until the last of three devices refuses.
//!
//! Does: runs a metadata server and three devices as processes, issues credentials, revokes them.
//! Does not: judge.
//! Contract: *refusal* is from the request at the metadata server until the last device has
//! confirmed (whole milliseconds, as reported by the server). *elapsed* is the duration of the
//! command, which polls every 20 ms.

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::Outcome;
use crate::daemon::{MdsDaemon, Osd};
use crate::rotation::{BenchUser, text};
use crate::settings::Run;
use crate::workload::median;

const DEVICES: usize = 3;
/// Rounds of fast revocations.
const ROUNDS: usize = 15;
/// Files of one object each for which the revoked user has credentials.
const HELD: [usize; 4] = [1, 100, 1000, 4000];

/// One kind of revocation.
#[derive(Debug, Serialize)]
struct RevocationTimes {
    what: String,
    objects: u64,
    /// Median over the rounds, at the server; for a partition only the command.
    refusal_ms: Option<f64>,
    elapsed_ms: f64,
    rounds: usize,
}

#[derive(Debug, Serialize)]
struct RevocationResults {
    revocations: Vec<RevocationTimes>,
    /// Bytes of the credential log per issued credential, with the record's frame.
    record_bytes: f64,
    records: u64,
}

fn timed(what: &str, outputs: &[Value]) -> Outcome<RevocationTimes> {
    let all = |of: &dyn Fn(&Value) -> Option<f64>| outputs.iter().map(of).collect::<Option<Vec<f64>>>();
    let mut elapsed = all(&|one| one["elapsed_ms"].as_f64()).ok_or("the command reports no time")?;
    let refusal = all(&|one| one["revocation"]["last_refusal_ms"].as_f64());
    let objects = outputs.last().and_then(|one| one["revocation"]["objects"].as_u64()).unwrap_or(0);
    let timed = RevocationTimes {
        what: what.to_owned(),
        objects,
        refusal_ms: refusal.map(|mut refusal| median(&mut refusal)),
        elapsed_ms: median(&mut elapsed),
        rounds: outputs.len(),
    };
    let refusal = timed.refusal_ms.map_or_else(String::new, |ms| format!("{ms:.0} ms at the server, "));
    println!(
        "{what}: {objects} objects, {refusal}{:.0} ms for the command (median of {})",
        timed.elapsed_ms, timed.rounds
    );
    Ok(timed)
}

/// Counts the records of the log and their bytes.
fn records(folder: &Path) -> Outcome<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("given-")) {
            continue;
        }
        let log = fs::read(path)?;
        let mut rest = log.get(16..).unwrap_or_default();
        while let Some((head, after)) = rest.split_first_chunk::<8>() {
            let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let Some(next) = after.get(length..) else { break };
            (count, bytes) = (count + 1, bytes + 8 + length as u64);
            rest = next;
        }
    }
    Ok((count, bytes))
}

/// Measures and prints.
pub(crate) fn run(arguments: &Run) -> Outcome {
    let settings = arguments.settings()?;
    let folder = arguments.stage.scratch()?;
    let mds = MdsDaemon::new(&settings.binary, &folder.path().join("mds"), &[])?;
    let admin = BenchUser::new(&settings.binary, &folder.path().join("session"));
    let (cluster, secret) = (mds.data.join("cluster.toml"), mds.data.join("admin-secret"));
    let cluster = text(&cluster)?;
    admin.run(&["login", "admin", "--cluster", cluster, "--password-file", text(&secret)?])?;
    let mut devices = Vec::new();
    for index in 0..DEVICES {
        let name = format!("osd{index}");
        let osd = Osd::named(&settings.binary, &folder.path().join(&name), &name)?;
        let key = osd.data.join("initial.key");
        admin.run(&["mds", "add-osd", &osd.url, "--key", text(&key)?])?;
        devices.push(osd);
    }
    let file = folder.path().join("file");
    fs::write(&file, vec![7; 3 << 20])?;
    admin.run(&["put", text(&file)?, "/striped"])?;
    let repeat = |arguments: &[&str]| (0..ROUNDS).map(|_| admin.run(arguments)).collect::<Outcome<Vec<_>>>();
    let mut revocations = vec![
        timed("one file on three devices", &repeat(&["revoke", "--object", "/striped"])?)?,
        timed("one partition of three devices", &repeat(&["revoke", "--partition", "0x10000"])?)?,
    ];
    for held in HELD {
        let name = format!("user{held}");
        let key = folder.path().join(format!("{name}.key"));
        admin.run(&["user", "add", &name, "--service", "--key-file", text(&key)?])?;
        let user = BenchUser { session: folder.path().join(&name), ..admin.clone() };
        user.run(&["login", "--key-file", text(&key)?, "--cluster", cluster])?;
        let tree = folder.path().join(format!("tree{held}"));
        fs::create_dir(&tree)?;
        for file in 0..held {
            fs::write(tree.join(file.to_string()), b"held")?;
        }
        user.run(&["put", "-r", text(&tree)?, &format!("/{name}")])?;
        let output = admin.run(&["user", "disable", &name, "--wait", "60"])?;
        revocations.push(timed(&format!("a user who holds {held} files"), &[output])?);
    }
    let (records, bytes) = records(&mds.data.join("issued"))?;
    let findings =
        RevocationResults { revocations, record_bytes: bytes as f64 / records.max(1) as f64, records };
    println!("record of credentials: {:.1} bytes each, {records} of them", findings.record_bytes);
    arguments.common.save(&findings)?;
    for osd in devices {
        osd.stop()?;
    }
    mds.stop()
}
