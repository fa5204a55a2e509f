//! Attacks of the demo: each is sent over a real iSCSI session, and reported with its response and
//! audit record.
//!
//! The attacker can copy genuine commands and has a connection. Expired or misplaced capabilities
//! are genuine ones of the metadata server, so that each attempt is refused for its own reason and
//! not because a capability is forged.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_client::{Client, Delegation, Method, PutOptions, SystemEnvironment};
use sealstone_cluster::Cluster;
use sealstone_crypto::RustCrypto;
use sealstone_daemon::AUDIT_FILE;
use sealstone_daemon::machine::now_ms;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_initiator::{ScsiRequest, ScsiResponse, Session, SessionConfig, TargetUrl};
use sealstone_mds_protocol::{Access, DeviceId, FilePath, Grant, Request, Response};
use sealstone_osd::cdb::Extent;
use sealstone_osd::{CapabilityBytes, Cdb, Command, Generation, ObjectId};
use sealstone_scsi::Sense;
use sealstone_seal::{AlgorithmSlots, CapabilityKey, Credential, Signer, signer::SentParts};
use serde::Serialize;

/// Initiator name of the attacker in the audit log.
const ATTACKER: &str = "iqn.2026-11.org.sealstone:attacker";
/// The attacked file, which has one object.
const VICTIM: &str = "/attacked";
/// Bytes of each attempted write.
const BYTES: usize = 4096;
/// Byte values of the genuine write and of the attempts.
const GENUINE: u8 = 0x5A;
const FORGED: u8 = 0x66;
/// Lifetime of the capability that expires.
const SHORT_MS: u64 = 300;
/// Maximum number of files that are created to find one on another device.
const OTHERS_MAX: usize = 64;
/// Maximum delay of an audit record.
const AUDIT_S_MAX: u64 = 5;
/// Offsets in an OSD-2 CDB (T10 OSD-2, §5.2).
const METHOD_BYTE: usize = 80 + 2;
const PERMISSIONS_BYTE: usize = 80 + 49;
const STARTING_BYTE: usize = 47;
const REQUEST_ICV: std::ops::Range<usize> = 184..216;

/// One attempt and its result.
#[derive(Clone, Debug, Serialize)]
pub struct AttackFinding {
    /// The attempt of the attacker.
    pub attempt: &'static str,
    /// `GOOD`, or sense key/code/qualifier with its name.
    pub answer: String,
    /// Verdict and reason of the audit record.
    pub audit: String,
    /// Whether the result is the expected one.
    pub as_expected: bool,
}

/// An encoded command.
#[derive(Clone)]
struct Packet {
    cdb: Vec<u8>,
    data_out: Vec<u8>,
}

struct Attacker {
    session: Session,
    audit: PathBuf,
    seen: usize,
    findings: Vec<AttackFinding>,
}

/// Runs all attempts against a new file, then compares its content.
pub(crate) async fn run(client: &Client, running: &Cluster) -> Outcome<Vec<AttackFinding>> {
    let grant = &made(client, VICTIM).await?;
    let devices = client.device_list().await?;
    let device = devices
        .iter()
        .find(|device| device.id == grant.object.device)
        .ok_or_else(|| Failure::operation("the layout names an unknown device"))?;
    let folder = |name: &str| running.data().join(name);

    let genuine = credential(grant)?;
    let object = grant.object.object;
    let neighbour = ObjectId::new(object.partition, object.object ^ 1);
    let expired = expired(client).await?;
    let (foreign, other) = elsewhere(client, device.id).await?;

    let url: TargetUrl = device.url.as_str().parse().map_err(Failure::operation)?;
    let mut config = SessionConfig::new(None, &SystemEnvironment);
    config.initiator_name = ATTACKER.into();
    let session = Session::connect(&url, config).await.map_err(Failure::operation)?;
    // TEST UNIT READY receives the unit attention POWER ON of a new nexus.
    let ready = ScsiRequest { cdb: Bytes::from_static(&[0; 6]), ..ScsiRequest::default() };
    session.execute(ready).await.map_err(Failure::operation)?;
    let audit = folder(&device.name.shown()).join(AUDIT_FILE);
    let mut attacker = Attacker { session, seen: records(&audit)?.len(), audit, findings: Vec::new() };

    let honest = write(&genuine, object, GENUINE)?;
    attacker.attempt("a genuine write, for comparison", &honest, None).await?;
    attacker.attempt("the same packet again (replay)", &honest, Some(("5/24/06", "replayed"))).await?;
    let packet = write(&genuine, object, FORGED)?.flipped(STARTING_BYTE, 0x01);
    attacker.attempt("one bit flipped in the command", &packet, Some(("5/24/00", "request_icv"))).await?;
    let packet = write(&genuine, object, FORGED)?.data_flipped(100, 0x80);
    attacker.attempt("one bit flipped in the data", &packet, Some(("5/26/0F", "data_out_icv"))).await?;
    let packet = write(&genuine, object, FORGED)?.flipped(PERMISSIONS_BYTE, 0x04);
    attacker
        .attempt("one bit flipped in the capability (+REMOVE)", &packet, Some(("5/24/00", "request_icv")))
        .await?;
    attacker
        .attempt("an expired capability", &write(&expired, object, FORGED)?, Some(("5/24/00", "expired")))
        .await?;
    attacker
        .attempt(
            "a capability of another device",
            &write(&foreign, other, FORGED)?,
            Some(("5/24/00", "request_icv")),
        )
        .await?;
    attacker
        .attempt(
            "a capability for another object",
            &write(&genuine, neighbour, FORGED)?,
            Some(("5/24/00", "object")),
        )
        .await?;
    let packet = write(&genuine, object, FORGED)?.downgraded();
    attacker
        .attempt("a downgrade to NOSEC, check value zeroed", &packet, Some(("5/24/00", "below_floor")))
        .await?;
    attacker.session.logout().await;

    let held = client.open(VICTIM, Method::AllData).await?.read(0..2 * BYTES as u64).await?;
    let intact =
        held[..BYTES].iter().all(|&byte| byte == GENUINE) && held[BYTES..].iter().all(|&byte| byte == 0x11);
    attacker.findings.push(AttackFinding {
        attempt: "what the object holds afterwards",
        answer: if intact { "what the genuine write left, nothing else" } else { "SOMETHING ELSE" }.into(),
        audit: String::new(),
        as_expected: intact,
    });
    client.remove(VICTIM, false).await?;
    Ok(attacker.findings)
}

fn credential(grant: &Grant) -> Outcome<Credential> {
    let bad = || Failure::operation("the metadata server issued an unusable credential");
    Ok(Credential {
        capability: CapabilityBytes::new(Generation::Osd2, grant.capability.as_slice()).ok_or_else(bad)?,
        key: CapabilityKey::new(grant.key.expose()).ok_or_else(bad)?,
    })
}

/// Creates a file of one object; returns the credential of its writer.
async fn made(client: &Client, path: &str) -> Outcome<Grant> {
    use sealstone_client::Metadata as _;
    client.put(path, &[0x11; 2 * BYTES][..], PutOptions::default()).await?;
    let request = Request::Open {
        path: FilePath::new(path).expect("a fixed path is a path"),
        access: Access::Update,
        method: Method::AllData,
    };
    let Response::Opened { file } = client.metadata().call(request).await? else {
        return Err(Failure::unexpected_response());
    };
    file.grants.into_iter().next().ok_or_else(|| Failure::operation("the file has no object"))
}

/// Returns a credential for the victim that has just expired.
async fn expired(client: &Client) -> Outcome<Credential> {
    let until_ms = now_ms() + SHORT_MS;
    let wanted =
        Delegation { read: true, write: true, start: 0, end: None, until_ms, method: Method::AllData };
    let file = client.delegate(VICTIM, wanted).await?;
    let grant = file.delegated.grants.first().ok_or_else(|| Failure::operation("the file has no object"))?;
    let credential = credential(grant)?;
    tokio::time::sleep(Duration::from_millis(file.delegated.expires_ms.saturating_sub(now_ms()) + 100)).await;
    Ok(credential)
}

/// Returns a credential for an object on another device, and that object.
async fn elsewhere(client: &Client, device: DeviceId) -> Outcome<(Credential, ObjectId)> {
    for number in 0..OTHERS_MAX {
        let path = format!("{VICTIM}-{number}");
        let grant = made(client, &path).await?;
        client.remove(&path, false).await?;
        if grant.object.device != device {
            return Ok((credential(&grant)?, grant.object.object));
        }
    }
    Err(Failure::operation("there is no second device"))
}

/// Returns a signed WRITE of [`BYTES`] bytes.
fn write(credential: &Credential, object: ObjectId, byte: u8) -> Outcome<Packet> {
    let signer =
        Signer::<RustCrypto>::new(credential, &AlgorithmSlots::DEFAULT).map_err(Failure::operation)?;
    let extent = Extent { object, start: 0, length: BYTES as u64 };
    let cdb = Cdb::new(Generation::Osd2, Command::Write(extent));
    let data = vec![byte; BYTES];
    let mut parts = SentParts { data: &[&data], ..SentParts::default() };
    let mut fill = |into: &mut [u8]| getrandom::fill(into).expect("the system gives random bytes");
    let signed = signer.sign(cdb, &mut parts, now_ms(), None, &mut fill).map_err(Failure::operation)?;
    let mut data_out = data;
    if let Some(integrity) = &signed.integrity {
        data_out.resize(usize::try_from(integrity.offset).unwrap_or(usize::MAX), 0);
        data_out.extend_from_slice(integrity.as_bytes());
    }
    Ok(Packet { cdb: signed.cdb.to_vec(), data_out })
}

impl Packet {
    fn flipped(mut self, byte: usize, bits: u8) -> Self {
        self.cdb[byte] ^= bits;
        self
    }

    fn data_flipped(mut self, byte: usize, bits: u8) -> Self {
        self.data_out[byte] ^= bits;
        self
    }

    /// Removes the security method and the check value, as the ESM paper describes.
    fn downgraded(mut self) -> Self {
        self.cdb[METHOD_BYTE] &= 0xF0;
        self.cdb[REQUEST_ICV].fill(0);
        self
    }
}

impl Attacker {
    /// Sends the packet. `refusal` is the expected sense and the reason in the audit log; `None`
    /// for GOOD.
    async fn attempt(
        &mut self,
        attempt: &'static str,
        packet: &Packet,
        refusal: Option<(&str, &str)>,
    ) -> Outcome {
        let request = ScsiRequest {
            cdb: Bytes::from(packet.cdb.clone()),
            data_out: vec![Bytes::from(packet.data_out.clone())],
            ..ScsiRequest::default()
        };
        let response = self.session.execute(request).await.map_err(Failure::operation)?;
        let (code, name) = answer(&response);
        let record = self.next_record().await?;
        let verdict = record["verdict"].as_str().unwrap_or("?").to_owned();
        let reason = record["reason"].as_str();
        let audit = match reason {
            Some(reason) => format!("{verdict}: {reason}"),
            None => verdict.clone(),
        };
        let as_expected = match refusal {
            None => response.status == 0 && verdict == "done",
            Some((sense, why)) => {
                response.status == 2 && code == sense && verdict == "refused" && reason == Some(why)
            }
        };
        self.findings.push(AttackFinding {
            attempt,
            answer: format!("{code} {name}").trim_end().to_owned(),
            audit,
            as_expected,
        });
        Ok(())
    }

    /// Waits for the audit record of the last command, which another thread writes.
    async fn next_record(&mut self) -> Outcome<serde_json::Value> {
        let started = Instant::now();
        loop {
            let mut found = records(&self.audit)?;
            if found.len() > self.seen {
                self.seen += 1;
                return Ok(found.swap_remove(self.seen - 1));
            }
            if started.elapsed() > Duration::from_secs(AUDIT_S_MAX) {
                return Err(Failure::operation("no record of an attempt").at(self.audit.shown()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Returns the records of the attacker in a device's audit log.
fn records(path: &Path) -> Outcome<Vec<serde_json::Value>> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::from(error).at(path.shown()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    Ok(whole
        .lines()
        .filter(|line| line.contains(ATTACKER))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

fn answer(response: &ScsiResponse) -> (String, String) {
    if response.status == 0 {
        return ("GOOD".into(), String::new());
    }
    match Sense::parse(&response.sense) {
        Ok(sense) => {
            let code = sense.code.0;
            let name = sense.code.to_string();
            let name = name.split(" (").next().unwrap_or_default().replace("INTEGRITY CHECK VALUE", "ICV");
            (format!("{:X}/{:02X}/{:02X}", sense.key as u8, code >> 8, code & 0xFF), name)
        }
        Err(_) => (format!("status {:02X}", response.status), String::new()),
    }
}

/// Formats the findings as a table.
pub(crate) fn table(findings: &[AttackFinding]) -> String {
    let mut lines = vec![format!("   {:44} {:38} {}", "ATTEMPT", "THE DEVICE ANSWERS", "ITS AUDIT LOG SAYS")];
    for finding in findings {
        let mark = if finding.as_expected { ' ' } else { '!' };
        lines.push(format!(" {mark} {:44} {:38} {}", finding.attempt, finding.answer, finding.audit));
    }
    lines.join("\n")
}
