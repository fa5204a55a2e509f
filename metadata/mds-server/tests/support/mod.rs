//! A minimal client, a set of in-memory devices, and a server in a temporary folder.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, reason = "test support")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::OsRng;
use sealstone_channel::{Pin, PinKind, TlsError, TlsIdentity};
use sealstone_login::{ChannelBinding, LoginContext, SessionKeys, start_login, start_registration};
use sealstone_mds::{
    AttributeValue, DeviceAddress, KeyAction, KeyStep, RetagItem, StepOutcome, UserDirectory,
};
use sealstone_mds_protocol::login::{
    LoginError, LoginOk, RegisterOk, RegisterResponse, RegisterStart, RegisterUpload, SUITE_STANDARD,
};
use sealstone_mds_protocol::{
    FrameHeader, HEADER_BYTES, MessageType, Request, Response, Secret, Sequence, UserName, Wire,
    decode_message, encode_message, frame,
};
use sealstone_mds_server::{
    ALPN, Capacity, CopyResult, CopyStep, DeviceError, DeviceFuture, Devices, Environment, InitReport,
    Limits, Server, init, open,
};
use sealstone_osd::cdb::KeyToSet;
use sealstone_osd::{ObjectId, Permissions};
use sealstone_seal::Credential;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

/// Devices as maps of objects; those in `silent` do not answer.
#[derive(Default)]
pub struct FakeDevices {
    pub partitions: Mutex<BTreeSet<(u32, u64)>>,
    pub removed: Mutex<Vec<(u32, ObjectId)>>,
    pub cut: Mutex<Vec<(u32, ObjectId, u64)>>,
    pub silent: Mutex<BTreeSet<u32>>,
    /// Objects that each device lists in each partition.
    pub left_over: Mutex<BTreeSet<u64>>,
    /// Devices that do not answer a truncation while they are in this set.
    pub slow_to_cut: Mutex<BTreeSet<u32>>,
    pub urls: Mutex<BTreeMap<u32, String>>,
    /// Names of the keys that were set, by device, partition and attribute.
    pub key_names: Mutex<BTreeMap<(u32, u64, u32), [u8; 7]>>,
}

impl FakeDevices {
    fn answer(
        &self,
        device: &DeviceAddress,
        credential: &Credential,
        needs: Permissions,
    ) -> Result<(), DeviceError> {
        self.urls.lock().insert(device.id.0, device.url.clone());
        if self.silent.lock().contains(&device.id.0) {
            return Err(DeviceError::Unreachable("silent".to_owned()));
        }
        let capability = credential.capability.parse().unwrap();
        assert_eq!(capability.permissions, needs, "the server asks for no more than it needs");
        Ok(())
    }
}

impl Devices for FakeDevices {
    /// Accepts every key; other tests use devices that check keys.
    fn keys<'a>(&'a self, device: &'a DeviceAddress, step: &'a KeyStep) -> DeviceFuture<'a, StepOutcome> {
        Box::pin(async move {
            self.urls.lock().insert(device.id.0, device.url.clone());
            if self.silent.lock().contains(&device.id.0) {
                return Err(DeviceError::Unreachable("silent".to_owned()));
            }
            Ok(match &step.action {
                KeyAction::ExchangeSeeds { value, .. } => {
                    let mut base = vec![0; value.len()];
                    base[0] = 9;
                    StepOutcome::Value(base)
                }
                KeyAction::CreatePartition { partition, .. } => {
                    self.partitions.lock().insert((device.id.0, *partition));
                    StepOutcome::Done
                }
                KeyAction::Identifiers { object, ids } => {
                    let names = self.key_names.lock();
                    let name = |number| {
                        names.get(&(device.id.0, object.partition, number)).map(|name| name.to_vec())
                    };
                    StepOutcome::Identifiers(ids.iter().map(|id| name(id.number)).collect())
                }
                KeyAction::SetKey(set) => {
                    let number = match set.key {
                        KeyToSet::Root => 0x7FFE,
                        KeyToSet::Partition => 0x7FFF,
                        KeyToSet::Working(version) => 0x8000 + u32::from(version),
                    };
                    self.key_names.lock().insert((device.id.0, set.partition, number), set.identifier);
                    StepOutcome::Done
                }
                KeyAction::ChangeMaster { set, .. } => {
                    self.key_names.lock().insert((device.id.0, 0, 0x7FFD), set.identifier);
                    StepOutcome::Done
                }
            })
        })
    }

    fn capacity<'a>(
        &'a self,
        device: &'a DeviceAddress,
        credential: Credential,
    ) -> DeviceFuture<'a, Capacity> {
        Box::pin(async move {
            self.answer(device, &credential, Permissions::GET_ATTR)?;
            Ok(Capacity { total: 1 << 30, used: 1 << 20, shared: None })
        })
    }

    fn tag_partition<'a>(
        &'a self,
        device: &'a DeviceAddress,
        _: u64,
        _: Vec<AttributeValue>,
        credential: Credential,
    ) -> DeviceFuture<'a, bool> {
        Box::pin(async move {
            self.answer(
                device,
                &credential,
                Permissions::GET_ATTR | Permissions::SET_ATTR | Permissions::POL_SEC,
            )?;
            Ok(false)
        })
    }

    fn remove<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            self.answer(device, &credential, Permissions::REMOVE)?;
            self.removed.lock().push((device.id.0, object));
            Ok(())
        })
    }

    fn list<'a>(
        &'a self,
        device: &'a DeviceAddress,
        _: u64,
        from: u64,
        _: usize,
        credential: Credential,
    ) -> DeviceFuture<'a, Vec<u64>> {
        Box::pin(async move {
            self.answer(device, &credential, Permissions::READ)?;
            Ok(self.left_over.lock().iter().copied().filter(|id| *id >= from).collect())
        })
    }

    fn cut<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        length: u64,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            let needs = Permissions::SET_ATTR.union(Permissions::WRITE).union(Permissions::OBJ_MGMT);
            self.answer(device, &credential, needs)?;
            while self.slow_to_cut.lock().contains(&device.id.0) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            self.cut.lock().push((device.id.0, object, length));
            Ok(())
        })
    }

    fn length<'a>(
        &'a self,
        device: &'a DeviceAddress,
        _: ObjectId,
        credential: Credential,
    ) -> DeviceFuture<'a, u64> {
        Box::pin(async move {
            self.answer(device, &credential, Permissions::GET_ATTR)?;
            Ok(0)
        })
    }

    /// Fails: these devices have no bytes to copy.
    fn copy<'a>(
        &'a self,
        device: &'a DeviceAddress,
        _: ObjectId,
        step: CopyStep,
        credential: Credential,
    ) -> DeviceFuture<'a, CopyResult> {
        Box::pin(async move {
            if let CopyStep::Map { .. } | CopyStep::Read { .. } = step {
                self.answer(device, &credential, Permissions::READ)?;
                return Ok(CopyResult::Missing);
            }
            Err(DeviceError::Refused("nothing is copied here".to_owned()))
        })
    }

    fn retag<'a>(
        &'a self,
        device: &'a DeviceAddress,
        item: RetagItem,
        credential: Credential,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            let making = if item.creates { Permissions::CREATE } else { Permissions::NONE };
            self.answer(device, &credential, Permissions::SET_ATTR | Permissions::POL_SEC | making)?;
            Ok(())
        })
    }
}

pub struct RunningServer {
    pub folder: tempfile::TempDir,
    pub report: InitReport,
    pub server: Server,
    pub devices: Arc<FakeDevices>,
    pub server_id: [u8; 16],
}

pub fn admin() -> UserName {
    UserName::new("admin").unwrap()
}

pub async fn running(limits: Limits) -> RunningServer {
    running_with(limits, None).await
}

pub async fn running_with(limits: Limits, directory: Option<Arc<dyn UserDirectory>>) -> RunningServer {
    running_in(Environment::system(), limits, directory).await
}

pub async fn running_in(
    environment: Environment,
    limits: Limits,
    directory: Option<Arc<dyn UserDirectory>>,
) -> RunningServer {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("mds");
    let report = init(&data, &admin(), &Environment::system()).unwrap();
    let opened = open(&data, sealstone_mds::Config { reap_grace_ms: 0, ..Default::default() }).unwrap();
    if let Some(directory) = directory {
        opened.mds().set_directory(directory);
    }
    let devices = Arc::new(FakeDevices::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server_id = opened.mds().server_id();
    let server = Server::start(&opened, listener, devices.clone(), environment, limits).unwrap();
    RunningServer { folder, report, server, devices, server_id }
}

impl RunningServer {
    pub fn password(&self) -> Vec<u8> {
        std::fs::read(&self.report.admin_secret).unwrap().trim_ascii_end().to_vec()
    }

    pub async fn connect(&self) -> Client<TlsStream<TcpStream>> {
        self.connect_through(self.server.address()).await
    }

    /// Connects to `address` as a client that pins the server's certificate.
    pub async fn connect_through(&self, address: SocketAddr) -> Client<TlsStream<TcpStream>> {
        let (stream, channel) = shake_hands(address, self.report.fingerprint.0).await.unwrap();
        Client::new(stream, ChannelBinding(channel))
    }

    /// Starts a man in the middle with the server's certificate and key, who ends TLS on both sides
    /// and relays the content unchanged.
    pub async fn relay(&self) -> SocketAddr {
        let read = |name: &str| std::fs::read(self.folder.path().join("mds").join(name)).unwrap();
        let identity = TlsIdentity {
            chain: vec![read("certificate.der"), read("ca.der")],
            key: read("certificate-key.der").into(),
        };
        let near = sealstone_channel::TlsServer::new(&identity, ALPN, BINDING).unwrap();
        let (far, pin) = (self.server.address(), self.report.fingerprint.0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let near = near.clone();
                tokio::spawn(async move {
                    let mut near = near.accept(stream).await.unwrap().stream;
                    let (mut far, _) = shake_hands(far, pin).await.unwrap();
                    // Either end may abort; the test observes that.
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        address
    }

    pub async fn login(&self) -> Client<TlsStream<TcpStream>> {
        let mut client = self.connect().await;
        client.login(&self.server_id, "admin", &self.password()).await.unwrap();
        client
    }
}

/// Exporter label that a login is bound to (RFC 9266).
const BINDING: &[u8] = b"EXPORTER-Channel-Binding";

/// Connects with TLS to a server with this certificate hash. Returns the stream and the channel
/// binding.
pub async fn shake_hands(
    address: SocketAddr,
    hash: [u8; 32],
) -> Result<(TlsStream<TcpStream>, [u8; 32]), TlsError> {
    let stream = TcpStream::connect(address).await.unwrap();
    let pin = Pin { kind: PinKind::Certificate, hash };
    sealstone_channel::connect(stream, pin, "x.invalid", ALPN, BINDING).await
}

pub struct Client<S> {
    pub stream: S,
    pub channel: ChannelBinding,
    sent: Option<Sequence>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub fn new(stream: S, channel: ChannelBinding) -> Self {
        Self { stream, channel, sent: None }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// Returns the next frame; `None` if the server closed.
    pub async fn next(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).await.ok()?;
        let header = FrameHeader::parse(&header).unwrap();
        let mut body = vec![0; header.body_length as usize];
        self.stream.read_exact(&mut body).await.ok()?;
        Some((header, body))
    }

    async fn step<T: Wire>(&mut self, kind: MessageType, body: &impl Wire) -> Result<T, LoginError> {
        self.send(&encode_message(kind, 0, body).unwrap()).await;
        let (header, body) = self.next().await.expect("a login step is answered");
        if header.kind == MessageType::Error {
            return Err(decode_message(&body).unwrap());
        }
        Ok(decode_message(&body).unwrap())
    }

    pub async fn login(
        &mut self,
        server_id: &[u8; 16],
        name: &str,
        password: &[u8],
    ) -> Result<(LoginOk, SessionKeys), LoginError> {
        let context = LoginContext::new(server_id, &self.channel);
        let name = UserName::new(name).unwrap();
        let (start, client) = start_login(&mut OsRng, SUITE_STANDARD, &name, password, context).unwrap();
        let challenge: sealstone_mds_protocol::login::LoginChallenge =
            self.step(MessageType::LoginStart, &start).await?;
        let login_id = challenge.login_id;
        let Ok((finish, proven)) = client.challenge(&mut OsRng, challenge) else {
            let finish = sealstone_mds_protocol::login::LoginFinish { login_id, ke3: [3; 64] };
            return Err(self.step::<LoginOk>(MessageType::LoginFinish, &finish).await.unwrap_err());
        };
        let ok: LoginOk = self.step(MessageType::LoginFinish, &finish).await?;
        let keys = proven.confirm(&ok).unwrap();
        self.sent = Some(Sequence::default());
        Ok((ok, keys))
    }

    /// Sets a password with an enrolment code.
    pub async fn enrol(&mut self, name: &str, code: &Secret, password: &[u8]) -> Result<(), LoginError> {
        let (user, code) = (UserName::new(name).unwrap(), code.clone());
        let (request, state) = start_registration(&mut OsRng, &user, password).unwrap();
        let start = RegisterStart { user: user.clone(), code: code.clone(), request };
        let answer: RegisterResponse = self.step(MessageType::RegisterStart, &start).await?;
        let record = state.finish(&mut OsRng, SUITE_STANDARD, &answer.response).unwrap();
        let upload = RegisterUpload { user, code, record, suite: SUITE_STANDARD };
        self.step::<RegisterOk>(MessageType::RegisterUpload, &upload).await.map(drop)
    }

    pub async fn resume(&mut self, ok: &LoginOk, keys: &SessionKeys) -> Result<(), LoginError> {
        let resume = keys.resume(ok.session, &self.channel, [1; 16]);
        let again: LoginOk = self.step(MessageType::Resume, &resume).await?;
        keys.check_resumed(&resume, &self.channel, &again).unwrap();
        self.sent = Some(Sequence::default());
        Ok(())
    }

    /// Sends requests numbered from 1 in one write, and returns the answers in their order.
    pub async fn ask_together(&mut self, requests: &[Request]) -> Vec<(u64, Response)> {
        let mut frames = Vec::new();
        let mut answers = self.sent.unwrap();
        for (id, request) in (1..).zip(requests) {
            let sequence = self.sent.as_mut().unwrap().advance().unwrap();
            frames.extend(frame(MessageType::Request, sequence, &request.encode(id).unwrap()).unwrap());
        }
        self.send(&frames).await;
        let mut answered = Vec::new();
        while answered.len() < requests.len() {
            let (header, body) = self.next().await.expect("a request is answered");
            assert_eq!(Some(header.sequence), answers.advance(), "answers are numbered as they are sent");
            answered.push(Response::decode(&body).unwrap());
        }
        answered
    }

    pub async fn ask(&mut self, request: Request) -> Response {
        let sequence = self.sent.as_mut().map_or(0, |sent| sent.advance().unwrap());
        self.send(&frame(MessageType::Request, sequence, &request.encode(1).unwrap()).unwrap()).await;
        let (header, body) = self.next().await.expect("a request is answered");
        assert_eq!(header.kind, MessageType::Response);
        assert_eq!(header.sequence, sequence);
        Response::decode(&body).unwrap().1
    }
}
