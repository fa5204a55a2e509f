//! Clients at work, each in its own folder, each reading the folders of the others.
//!
//! Contract: the model records every outcome; a contradiction is a violation.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use sealstone_client::{
    Client, ClientError, DevicePool, GetOptions, MdsClient, MdsOptions, Metadata, Method, OsdOptions,
    PutOptions, SessionTicket, UserName,
};
use sealstone_mds_protocol::{ErrorCode, Request};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{sleep, timeout};

use crate::clock::SimulatedClock;
use crate::history::History;
use crate::metadata::{self, RelayedMdsDial, SessionTickets, ToDevice, ToMds, USERS};
use crate::model::{FileContent, Model};
use crate::network::{Host, Network};
use crate::plan::WorldPlan;
use crate::random::RandomSource;

/// Simulated time after which an operation counts as hanging.
const HANGS: Duration = Duration::from_secs(3600);
/// Names in a folder.
const NAMES: u64 = 5;

/// State shared by all workers.
pub struct WorkloadState {
    /// Parameters of the world.
    pub plan: WorldPlan,
    /// The oracle.
    pub model: Model,
    /// The network.
    pub network: Arc<Network>,
    /// The clients' clock.
    pub clock: Arc<SimulatedClock>,
    /// Sessions that clients start with.
    pub tickets: SessionTickets,
    /// Log of the operations.
    pub history: Arc<History>,
    /// Number of client processes so far.
    pub lives: AtomicU32,
    /// Number of content versions so far.
    pub versions: AtomicU64,
    /// Number of operations so far.
    pub operations: AtomicU64,
    /// Number of failed operations.
    pub failures: AtomicU64,
}

/// A client process.
#[derive(Clone)]
pub struct ClientProcess {
    /// Its host on the network.
    pub host: Host,
    /// Its client.
    pub client: Client,
}

impl WorkloadState {
    /// Starts a client process with an existing session.
    #[must_use]
    pub fn process(&self, ticket: &SessionTicket) -> ClientProcess {
        let host = self.next_host();
        let dial = Arc::new(ToMds { network: self.network.clone(), from: host });
        let options = MdsOptions { answer_timeout: self.plan.answer_timeout, ..metadata::options() };
        let mds = MdsClient::resume(dial, self.clock.clone(), options, ticket.clone());
        let mut options = OsdOptions::new(&*self.clock);
        options.session.command_timeout = self.plan.command_timeout;
        options.clock_offset_ms = mds.clock_offset_ms();
        let network = self.network.clone();
        let dial = Box::new(move |url: &_, _: &_| Ok(ToDevice::way(&network, host, url)));
        let pool = DevicePool::new(dial, self.clock.clone(), options);
        let offset = mds.clock_offset_ms();
        ClientProcess { host, client: Client::new(mds, pool, self.clock.clone(), offset, self.plan.tuning) }
    }

    /// Returns a new host.
    fn next_host(&self) -> Host {
        Host::Client(self.lives.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn content(&self, length: usize) -> FileContent {
        FileContent { version: self.versions.fetch_add(1, Ordering::Relaxed) + 1, length }
    }
}

/// A worker.
pub struct WorkloadClient {
    /// Its number.
    pub number: u8,
    /// The shared state.
    pub shop: Arc<WorkloadState>,
    /// Random choices.
    pub chance: Arc<RandomSource>,
    /// Its process.
    pub process: ClientProcess,
    /// Session that its processes use.
    pub ticket: SessionTicket,
    /// How often each name was abandoned.
    pub given_up: [u32; NAMES as usize],
}

/// Outcome of an operation, for the oracle.
enum OperationOutcome {
    Done,
    NotDone,
    Unknown,
}

fn fate<T>(result: &Result<T, ClientError>) -> OperationOutcome {
    match result {
        Ok(_) => OperationOutcome::Done,
        Err(ClientError::OutcomeUnknown { .. }) => OperationOutcome::Unknown,
        Err(_) => OperationOutcome::NotDone,
    }
}

impl WorkloadClient {
    /// Creates a worker with its own process.
    #[must_use]
    pub fn new(number: u8, shop: Arc<WorkloadState>, chance: Arc<RandomSource>) -> Self {
        let ticket = shop.tickets.users[shop.plan.user_of(number)].clone();
        let process = shop.process(&ticket);
        Self { number, shop, chance, process, ticket, given_up: Default::default() }
    }

    /// Runs its operations.
    pub async fn run(mut self) {
        for _ in 0..self.shop.plan.operations {
            sleep(Duration::from_millis(self.chance.range(0..=self.shop.plan.pause_ms))).await;
            self.shop.operations.fetch_add(1, Ordering::Relaxed);
            let hangs = self.shop.history.clone();
            let number = self.number;
            if timeout(HANGS, self.step()).await.is_err() {
                hangs.violate(format!("an operation of c{number} hangs"));
            }
        }
    }

    async fn step(&mut self) {
        match self.chance.range(0..=99) {
            0..=40 => self.put().await,
            41..=58 => self.get().await,
            59..=67 => self.get_others().await,
            68..=72 => self.trespass().await,
            73..=78 => self.rename().await,
            79..=84 => self.remove().await,
            85..=88 => self.list().await,
            89..=92 => self.log_in().await,
            _ => self.die().await,
        }
    }

    fn folder(&self) -> String {
        format!("/c{}", self.number)
    }

    /// Returns one of the names in use.
    fn name(&mut self) -> String {
        let slot = self.chance.range(0..=NAMES - 1) as usize;
        loop {
            let path = format!("{}/f{slot}.{}", self.folder(), self.given_up[slot]);
            if self.shop.model.known(&path).is_some() {
                return path;
            }
            // The content is unknown, so the name is abandoned.
            self.given_up[slot] += 1;
        }
    }

    fn record_result<T>(&self, what: &str, result: &Result<T, ClientError>) {
        let how = match result {
            Ok(_) => "done".to_owned(),
            Err(error) => {
                self.shop.failures.fetch_add(1, Ordering::Relaxed);
                format!("{error:?}")
            }
        };
        self.shop.history.add_line(format!("c{} {what}: {how}", self.number));
    }

    /// Records a violation if an operation failed in a calm world.
    fn excused<T>(&self, what: &str, result: &Result<T, ClientError>) {
        if self.shop.plan.calm
            && let Err(error) = result
        {
            self.shop.history.violate(format!("{what} failed for no reason: {error:?}"));
        }
    }

    fn method(&self) -> Method {
        *self.chance.pick(&[Method::CmdRsp, Method::AllData])
    }

    fn put_options(&self, content: FileContent) -> PutOptions {
        let size = self.chance.percent(70).then_some(content.length as u64);
        let (_, mode) = self.shop.plan.privacy[usize::from(self.number)].modes();
        PutOptions { size, mode, method: self.method(), ..PutOptions::default() }
    }

    fn source(&self, content: FileContent) -> FileSource {
        let slow = self.chance.percent(15).then(|| self.chance.clone());
        FileSource { bytes: content.bytes(), taken: 0, pause: None, slow }
    }

    async fn put(&mut self) {
        let path = self.name();
        let content = self.shop.content(WorldPlan::size(&self.chance));
        let (source, options) = (self.source(content), self.put_options(content));
        let model = &self.shop.model;
        model.attempt(&path, content);
        let what = format!("put {path} v{} {} B {:?}", content.version, content.length, options.method);
        self.shop.history.add_line(format!("c{} begins {what}", self.number));
        let result = self.process.client.put(&path, source, options).await;
        self.record_result(&what, &result);
        self.excused(&what, &result);
        match fate(&result) {
            OperationOutcome::Done => model.set(&path, Some(content)),
            OperationOutcome::NotDone => {}
            OperationOutcome::Unknown => model.maybe(&path, Some(content)),
        }
    }

    async fn get(&mut self) {
        let path = self.name();
        let expected = self.shop.model.known(&path).flatten();
        let mut bytes = Vec::new();
        let method = self.method();
        let options = GetOptions { method, ..GetOptions::default() };
        let result = self.process.client.get(&path, &mut bytes, options).await;
        let what = format!("get {path} {method:?}");
        self.record_result(&what, &result);
        match (&result, expected) {
            (Ok(_), Some(content)) if bytes == content.bytes() => {}
            (Ok(_), _) => {
                self.shop.history.violate(format!("{what} gave {} wrong bytes", bytes.len()));
            }
            (Err(error), Some(content)) if error.is_not_found() => {
                self.shop.history.violate(format!("{path} v{} is gone", content.version));
            }
            (Err(error), None) if error.is_not_found() => {}
            (Err(_), _) => self.excused(&what, &result),
        }
    }

    /// Reads a file that another worker may be writing: any version, but a complete one.
    async fn get_others(&mut self) {
        let paths = self.shop.model.paths();
        if paths.is_empty() {
            return;
        }
        let path = self.chance.pick(&paths).clone();
        let mut bytes = Vec::new();
        let result = self.process.client.get(&path, &mut bytes, GetOptions::default()).await;
        let what = format!("get others' {path}");
        self.record_result(&what, &result);
        if result.is_ok() && !self.shop.model.was_ever(&path, &bytes) {
            self.shop.history.violate(format!("{what} gave {} bytes that never were", bytes.len()));
        }
        let owner = worker_of(&path);
        if result.is_ok() && !self.shop.plan.may_read(self.number, owner) {
            self.shop.history.violate(format!("{what}: c{owner} lets nobody else read"));
        }
    }

    /// Attempts operations that only the owner of another folder may do; none may succeed.
    async fn trespass(&mut self) {
        let plan = &self.shop.plan;
        let strangers: Vec<u8> =
            (0..plan.workers).filter(|other| plan.user_of(*other) != plan.user_of(self.number)).collect();
        if strangers.is_empty() {
            return;
        }
        let owner = *self.chance.pick(&strangers);
        let theirs = format!("/c{owner}/f{}.0", self.chance.range(0..=NAMES - 1));
        let mine = self.name();
        let client = &self.process.client;
        let (what, result) = match self.chance.range(0..=4) {
            0 => {
                let content = self.shop.content(WorldPlan::size(&self.chance).min(4096));
                let put = client.put(&theirs, self.source(content), self.put_options(content)).await;
                (format!("put {theirs} of c{owner}"), put.map(drop))
            }
            1 => (format!("remove {theirs} of c{owner}"), client.remove(&theirs, false).await.map(drop)),
            2 => (format!("rename {mine} to {theirs}"), client.rename(&mine, &theirs, true).await),
            3 => (format!("rename {theirs} to {mine}"), client.rename(&theirs, &mine, true).await),
            _ => (format!("chmod /c{owner}"), client.set_mode(&format!("/c{owner}"), 0o777).await.map(drop)),
        };
        self.record_result(&what, &result);
        if result.is_ok() {
            self.shop.history.violate(format!("c{} did: {what}", self.number));
        }
        // A rename of a missing own file reports that; all else is denied.
        if self.shop.plan.calm
            && !matches!(&result, Err(ClientError::Refused(failure))
                if matches!(failure.code, ErrorCode::Denied | ErrorCode::NotPermitted | ErrorCode::NotFound))
        {
            self.shop.history.violate(format!("{what} was refused as {result:?}"));
        }
    }

    /// Logs in again, or attempts to without the password.
    async fn log_in(&mut self) {
        let name = USERS[self.shop.plan.user_of(self.number)];
        let user = UserName::new(name).expect("a plain name");
        let host = self.shop.next_host();
        let way = ToMds { network: self.shop.network.clone(), from: host };
        let (clock, options) = (self.shop.clock.clone(), metadata::options());
        match self.chance.range(0..=4) {
            0 => {
                let guess = MdsClient::login(Arc::new(way), clock, options, &user, b"a guess").await;
                self.record_result(&format!("logs in as {name} with a guess"), &guess);
                if guess.is_ok() {
                    self.shop.history.violate(format!("a guess logs in as {name}"));
                }
            }
            1 => {
                // A man in the middle splices two channels: neither a login nor a session works.
                let way = Arc::new(RelayedMdsDial(way));
                let mds =
                    MdsClient::login(way.clone(), clock.clone(), options, &user, &metadata::password(name))
                        .await;
                self.record_result(&format!("logs in as {name} on a spliced channel"), &mds);
                let resumed = MdsClient::resume(way, clock, options, self.ticket.clone());
                let asked = resumed.call(Request::WhoAmI {}).await;
                self.record_result(&format!("resumes as {name} on a spliced channel"), &asked);
                if mds.is_ok() || asked.is_ok() {
                    self.shop.history.violate(format!("a spliced channel serves {name}"));
                }
            }
            _ => {
                let password = metadata::password(name);
                let mds = MdsClient::login(Arc::new(way), clock, options, &user, &password).await;
                self.record_result(&format!("logs in as {name}"), &mds);
                match mds {
                    Ok(mds) => {
                        let ticket = mds.ticket().clone();
                        drop(mds);
                        self.change_session(ticket).await;
                    }
                    // Guesses of other workers count against the name.
                    Err(ClientError::LoginBusy { .. }) => {}
                    Err(error) => self.excused("a login with the password", &Err::<(), _>(error)),
                }
            }
        }
        self.shop.network.cut(host);
    }

    /// Continues with a new session; the old one, if it was ended, must be invalid.
    async fn change_session(&mut self, ticket: SessionTicket) {
        let old = core::mem::replace(&mut self.ticket, ticket);
        // The first session of an account is shared by all its workers.
        let ours_alone = self.shop.tickets.users.iter().all(|shared| shared.session != old.session);
        let ended = ours_alone && self.process.client.logout().await.is_ok();
        self.shop.network.cut(self.process.host);
        self.process = self.shop.process(&self.ticket);
        if ended {
            let late = self.shop.process(&old);
            let asked = late.client.whoami().await;
            if asked.is_ok() {
                self.shop.history.violate(format!("c{}: a session lives on after its end", self.number));
            }
            self.shop.network.cut(late.host);
        }
    }

    async fn rename(&mut self) {
        let (from, to) = (self.name(), self.name());
        let model = &self.shop.model;
        let (Some(Some(content)), Some(old)) = (model.known(&from), model.known(&to)) else { return };
        if from == to {
            return;
        }
        let replace = self.chance.percent(70);
        model.attempt(&to, content);
        let result = self.process.client.rename(&from, &to, replace).await;
        let what = format!("rename {from} {to} replace {replace}");
        self.record_result(&what, &result);
        match fate(&result) {
            OperationOutcome::Done => {
                if !replace && old.is_some() {
                    self.shop.history.violate(format!("{what} took the place of a file"));
                }
                model.set(&from, None);
                model.set(&to, Some(content));
            }
            OperationOutcome::NotDone => {
                if replace || old.is_none() {
                    self.excused(&what, &result);
                }
            }
            OperationOutcome::Unknown => {
                model.maybe(&from, None);
                model.maybe(&to, Some(content));
            }
        }
    }

    async fn remove(&mut self) {
        let path = self.name();
        let model = &self.shop.model;
        let there = model.known(&path).flatten();
        let result = self.process.client.remove(&path, false).await;
        let what = format!("remove {path}");
        self.record_result(&what, &result);
        match (fate(&result), there) {
            (OperationOutcome::Done, None) => {
                self.shop.history.violate(format!("{what} removed what was not there"));
            }
            (OperationOutcome::Done, Some(_)) => model.set(&path, None),
            (OperationOutcome::Unknown, Some(_)) => model.maybe(&path, None),
            (OperationOutcome::NotDone, Some(_)) => self.excused(&what, &result),
            (_, None) => {}
        }
    }

    /// Checks the list of the folder, which only this worker changes.
    async fn list(&mut self) {
        let folder = self.folder();
        let entries = match self.process.client.list(&folder) {
            Ok(listing) => listing.collect().await,
            Err(error) => Err(error),
        };
        let what = format!("list {folder}");
        self.record_result(&what, &entries);
        self.excused(&what, &entries);
        let Ok(entries) = entries else { return };
        let found: Vec<String> =
            entries.iter().map(|entry| format!("{folder}/{}", entry.name.shown())).collect();
        let prefix = format!("{folder}/");
        for path in self.shop.model.paths().iter().filter(|path| path.starts_with(&prefix)) {
            match self.shop.model.known(path) {
                Some(state) if state.is_some() != found.contains(path) => {
                    self.shop.history.violate(format!("{what}: {path} is {state:?} and listed {found:?}"));
                }
                _ => {}
            }
        }
        for path in found {
            if self.shop.model.states(&path) == [None] {
                self.shop.history.violate(format!("{what}: {path} should not be there"));
            }
        }
    }

    /// Kills the process within or soon after a put, and starts another one.
    async fn die(&mut self) {
        let path = self.name();
        let content = self.shop.content(WorldPlan::size(&self.chance));
        let (source, options) = (self.source(content), self.put_options(content));
        self.shop.model.attempt(&path, content);
        let client = self.process.client.clone();
        let target = path.clone();
        let task = tokio::spawn(async move { client.put(&target, source, options).await });
        sleep(Duration::from_millis(self.chance.logarithmic(1..=3_000))).await;
        task.abort();
        let ended = task.await;
        let host = self.process.host;
        self.process = self.shop.process(&self.ticket);
        self.shop.network.cut(host);
        let what = format!("dies in put {path} v{} {} B", content.version, content.length);
        match ended {
            Ok(result) => {
                self.record_result(&what, &result);
                match fate(&result) {
                    OperationOutcome::Done => self.shop.model.set(&path, Some(content)),
                    OperationOutcome::NotDone => {}
                    OperationOutcome::Unknown => self.shop.model.maybe(&path, Some(content)),
                }
            }
            Err(error) if error.is_cancelled() => {
                self.shop.history.add_line(format!("c{} {what}", self.number));
                self.shop.model.maybe(&path, Some(content));
            }
            Err(_) => self.shop.history.violate(format!("{what}: the client panicked")),
        }
    }
}

/// Returns the worker that owns a path.
fn worker_of(path: &str) -> u8 {
    path.strip_prefix("/c").and_then(|rest| rest.split('/').next()?.parse().ok()).unwrap_or_default()
}

/// Source of a file's bytes: in pieces, sometimes slow.
struct FileSource {
    bytes: Vec<u8>,
    taken: usize,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
    slow: Option<Arc<RandomSource>>,
}

impl AsyncRead for FileSource {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        if let Some(pause) = &mut this.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let mut most = buf.remaining().min(this.bytes.len() - this.taken);
        if let Some(chance) = this.slow.as_ref().filter(|_| most > 0) {
            most = most.min(chance.logarithmic(1 << 10..=256 << 10) as usize);
            this.pause = Some(Box::pin(sleep(Duration::from_millis(chance.range(1..=500)))));
        }
        buf.put_slice(&this.bytes[this.taken..this.taken + most]);
        this.taken += most;
        Poll::Ready(Ok(()))
    }
}
