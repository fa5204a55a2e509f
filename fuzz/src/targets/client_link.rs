//! `sealstone-client`: arbitrary frames from a metadata server to a client.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use sealstone_client::{
    Client, ClientError, Device, Devices, GetOptions, MdsClient, MdsDial, MdsOptions, Method, OsdError,
    PutOptions, SecureChannel, SessionTicket, SystemEnvironment, Tuning,
};
use sealstone_initiator::{Bearer, Completion, Operation};
use sealstone_login::{ChannelBinding, SessionKeys};
use sealstone_mds_protocol::login::{LoginOk, Resume};
use sealstone_mds_protocol::{
    FrameHeader, HEADER_BYTES, MessageType, PROTOCOL_VERSION, Response, Text, decode_message, encode_message,
    frame,
};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};

use super::mds::{responses, user};
use crate::Target;
use crate::input::{Input, seed};

const CHANNEL: [u8; 32] = [5; 32];
const SERVER_ID: [u8; 16] = [7; 16];
const SESSION: [u8; 16] = [8; 16];
/// Capacity of a sink, in bytes.
const SINK_MAX: usize = 1 << 20;
/// Number of stored bytes, more than one object holds.
const SOURCE_BYTES: usize = 700_000;

fn keys() -> SessionKeys {
    SessionKeys::from_bytes(&[3; 32])
}

/// A server that answers from the input, over any number of connections.
struct ScriptedServer {
    script: Arc<Mutex<Vec<u8>>>,
}

impl MdsDial for ScriptedServer {
    fn dial(&self) -> Pin<Box<dyn Future<Output = io::Result<SecureChannel>> + Send + '_>> {
        let (near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(speak(far, self.script.clone()));
        Box::pin(async move { Ok((Box::new(near) as Box<dyn sealstone_client::ByteStream>, CHANNEL)) })
    }
}

/// Takes bytes from the script. Missing bytes are zero.
fn next(script: &Mutex<Vec<u8>>, length: usize) -> Vec<u8> {
    let mut script = script.lock().unwrap_or_else(PoisonError::into_inner);
    let cut = length.min(script.len());
    let rest = script.split_off(cut);
    core::mem::replace(&mut *script, rest)
}

fn byte(script: &Mutex<Vec<u8>>) -> Option<u8> {
    next(script, 1).first().copied()
}

async fn speak(mut stream: DuplexStream, script: Arc<Mutex<Vec<u8>>>) -> Option<()> {
    let mut sequence = 0;
    loop {
        let mut head = [0; HEADER_BYTES];
        stream.read_exact(&mut head).await.ok()?;
        let header = FrameHeader::parse(&head).expect("the client sends frames");
        let mut body = vec![0; usize::try_from(header.body_length).expect("bounded")];
        stream.read_exact(&mut body).await.ok()?;
        let id = body.first_chunk().map_or(0, |id| u64::from_be_bytes(*id));
        let bytes = match (byte(&script)?, header.kind) {
            // The valid answer.
            (0..=99, MessageType::Request) if header.sequence == 0 => {
                let software = Text::truncated("puppet");
                let hello =
                    Response::Hello { version: PROTOCOL_VERSION, software, server_id: SERVER_ID, time_ms: 1 };
                frame(MessageType::Response, 0, &hello.encode(id).ok()?).ok()?
            }
            (0..=99, MessageType::Resume) => {
                let resume: Resume = decode_message(&body).expect("the client resumes");
                let channel = ChannelBinding(CHANNEL);
                let mut ok = LoginOk {
                    session: resume.session,
                    epoch: 0,
                    expires_ms: u64::MAX,
                    idle_s: 60,
                    roles: Text::truncated("user"),
                    confirm: [0; 32],
                };
                ok.confirm = keys().resume_confirm(&resume, &channel, &ok);
                let bytes = encode_message(MessageType::LoginOk, 0, &ok).ok()?;
                stream.write_all(&bytes).await.ok()?;
                sequence = 1;
                continue;
            }
            // A response of some kind, possibly with changed bytes.
            (choice @ 0..=199, _) => {
                let all = responses();
                let index = usize::from(byte(&script).unwrap_or_default());
                let mut body = all[index % all.len()].encode(id).ok()?;
                for _ in 0..choice % 3 {
                    let change = next(&script, 3);
                    if let [high, low, bits] = change[..] {
                        let at = usize::from(u16::from_be_bytes([high, low])) % body.len();
                        body[at] ^= bits;
                    }
                }
                frame(MessageType::Response, sequence, &body).ok()?
            }
            // A body in a frame of some type.
            (choice @ 200..=229, _) => {
                let kind = MessageType::ALL[usize::from(choice) % MessageType::ALL.len()];
                let length = usize::from(byte(&script).unwrap_or_default());
                frame(kind, sequence, &next(&script, length)).ok()?
            }
            // Raw bytes.
            (230..=249, _) => {
                let length = usize::from(byte(&script).unwrap_or_default());
                next(&script, length)
            }
            // A closed connection.
            (250.., _) => return None,
        };
        sequence += u32::from(sequence > 0);
        stream.write_all(&bytes).await.ok()?;
    }
}

/// Devices that return zeros and accept every write.
struct ZeroDevices(AtomicU8);

impl Devices for ZeroDevices {
    async fn execute(&self, _: &Device, _: &Bearer, operation: Operation) -> Result<Completion, OsdError> {
        let mut done = Completion::default();
        match operation {
            Operation::Read { length, .. } => done.data = vec![0; length],
            Operation::GetAttributes { ids, .. } => {
                // A restart of the device, sometimes.
                let life = self.0.fetch_add(1, Ordering::Relaxed) / 8;
                let value = Bytes::copy_from_slice(&[0, life]);
                done.attributes = ids.into_iter().map(|id| (id, Some(value.clone()))).collect();
            }
            _ => {}
        }
        Ok(done)
    }
}

/// A sink that accepts some bytes, then is full.
struct LimitedSink(usize);

impl AsyncWrite for LimitedSink {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.0 + bytes.len() > SINK_MAX {
            return Poll::Ready(Err(io::ErrorKind::StorageFull.into()));
        }
        self.0 += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn link(input: &[u8]) {
    let mut input = Input::new(input);
    let first = input.byte();
    let script = Arc::new(Mutex::new(input.rest().to_vec()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O can be made").block_on(async move {
        let ticket = SessionTicket {
            user: user("alice"),
            server_id: SERVER_ID,
            session: SESSION,
            keys: keys().into(),
            expires_ms: u64::MAX,
        };
        let environment = Arc::new(SystemEnvironment);
        let dial = Arc::new(ScriptedServer { script });
        let mds = MdsClient::resume(dial, environment.clone(), MdsOptions::default(), ticket);
        let tuning = Tuning { memory_bytes: 2 << 20, command_bytes: 64 << 10, depth: 2 };
        let offset: Arc<AtomicI64> = mds.clock_offset_ms();
        let client = Client::new(mds, ZeroDevices(AtomicU8::new(0)), environment, offset, tuning);
        for turn in 0..4u8 {
            use_it(&client, first.wrapping_add(turn)).await;
        }
        assert!(client.memory().try_take(2 << 20).is_some(), "memory was not given back");
    });
}

async fn use_it(client: &Client<MdsClient, ZeroDevices>, choice: u8) {
    match choice % 12 {
        0 => drop(client.whoami().await),
        1 => drop(client.stat("/f").await),
        2 => {
            if let Ok(listing) = client.list("/")
                && let Ok(entries) = listing.collect().await
            {
                assert!(entries.is_sorted_by(|a, b| a.name < b.name), "pages that do not ascend");
            }
        }
        3 => drop(client.users().await),
        4 => drop(client.device_list().await),
        5 => {
            let mut sink = LimitedSink(0);
            match client.get("/f", &mut sink, GetOptions { verify: false, ..GetOptions::default() }).await {
                Ok(stat) => assert_eq!(sink.0 as u64, stat.size),
                Err(ClientError::Sink(_)) => assert!(sink.0 <= SINK_MAX),
                Err(_) => {}
            }
        }
        6 => {
            let source = vec![1; SOURCE_BYTES];
            if let Ok(stat) = client.put("/f", &source[..], PutOptions::default()).await {
                // The reported size is arbitrary.
                let _ = stat.size;
            }
        }
        7 => {
            if let Ok(file) = client.open("/f", Method::AllData).await {
                let mut into = [9; 1000];
                if let Ok(count) = file.read_at(3, &mut into).await {
                    assert!(into[..count].iter().all(|byte| *byte == 0));
                    assert!(count as u64 == file.stat().size.saturating_sub(3).min(1000));
                }
            }
        }
        8 => drop(client.remove("/f", true).await),
        9 => drop(client.mkdir("/d", true, 0o755).await),
        10 => drop(client.disk_free().await),
        _ => drop(client.metadata().logout().await),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let count = u8::try_from(responses().len()).expect("few kinds of responses");
    let mut all = Vec::new();
    // Each operation with each kind of complete response.
    for operation in 0..12 {
        for index in 0..count {
            all.push(seed(&[operation], &[0, 0, 120, index, 120, index, 120, index, 120, index]));
        }
        all.push(seed(&[operation], &[0, 0, 250]));
        all.push(seed(&[operation], &[235, 20, 1, 2, 3]));
        all.push(seed(&[operation], &[0, 0, 210, 3, 1, 2, 3]));
    }
    all
}

pub(crate) const LINK: Target = Target {
    name: "client-mds-link",
    about: "a metadata server as the input has it; every operation ends, listings ascend, memory comes back",
    run: link,
    seeds,
    cost: 60,
    quarantine: None,
    covers: &["client::MdsClient::resume"],
};
