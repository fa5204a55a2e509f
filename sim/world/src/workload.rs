//! Clients at work, each in a folder of its own, each looking into the folders of the others.
//!
//! Contract: the model learns of every outcome; what contradicts it is a broken promise.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use sealstone_client::{
    Client, ClientError, DevicePool, GetOptions, Mds, MdsOptions, Method, OsdOptions, PutOptions,
    SessionTicket,
};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{sleep, timeout};

use crate::chance::Chance;
use crate::clock::Clockwork;
use crate::history::History;
use crate::metadata::{ToDevice, ToMds};
use crate::model::{Content, Model};
use crate::network::{Host, Network};
use crate::plan::Plan;

/// No operation takes longer than this of simulated time: then it hangs.
const HANGS: Duration = Duration::from_secs(3600);
/// Names in a folder.
const NAMES: u64 = 5;

/// What all workers share.
pub struct Workshop {
    /// What the seed decided.
    pub plan: Plan,
    /// The oracle.
    pub model: Model,
    /// The network.
    pub network: Arc<Network>,
    /// The clients' clock.
    pub clock: Arc<Clockwork>,
    /// The session that all clients go on with.
    pub ticket: SessionTicket,
    /// Where it is told.
    pub history: Arc<History>,
    /// Client processes so far.
    pub lives: AtomicU32,
    /// Versions of contents so far.
    pub versions: AtomicU64,
    /// Operations so far, and how many of them failed.
    pub operations: AtomicU64,
    /// Of them failed.
    pub failures: AtomicU64,
}

/// A client process.
#[derive(Clone)]
pub struct Process {
    /// Its place on the network.
    pub host: Host,
    /// What it works with.
    pub client: Client,
}

impl Workshop {
    /// Starts a client process.
    #[must_use]
    pub fn process(&self) -> Process {
        let host = Host::Client(self.lives.fetch_add(1, Ordering::Relaxed) + 1);
        let dial = Arc::new(ToMds { network: self.network.clone(), from: host });
        let options = MdsOptions { answer_timeout: self.plan.answer_timeout, ..MdsOptions::default() };
        let mds = Mds::resume(dial, self.clock.clone(), options, self.ticket.clone());
        let mut options = OsdOptions::new(&*self.clock);
        options.session.command_timeout = self.plan.command_timeout;
        let factory = ToDevice::factory(self.network.clone(), host);
        let pool = DevicePool::new(factory, self.clock.clone(), options);
        let offset = mds.clock_offset_ms();
        Process { host, client: Client::new(mds, pool, self.clock.clone(), offset, self.plan.tuning) }
    }

    fn content(&self, length: usize) -> Content {
        Content { version: self.versions.fetch_add(1, Ordering::Relaxed) + 1, length }
    }
}

/// One worker.
pub struct Worker {
    /// Its number.
    pub number: u8,
    /// What it shares.
    pub shop: Arc<Workshop>,
    /// Its choices.
    pub chance: Arc<Chance>,
    /// Its process.
    pub process: Process,
    /// How often each name was given up.
    pub given_up: [u32; NAMES as usize],
}

/// Outcome of an operation, as far as the oracle cares.
enum Fate {
    Done,
    NotDone,
    Unknown,
}

fn fate<T>(result: &Result<T, ClientError>) -> Fate {
    match result {
        Ok(_) => Fate::Done,
        Err(ClientError::OutcomeUnknown { .. }) => Fate::Unknown,
        Err(_) => Fate::NotDone,
    }
}

impl Worker {
    /// A worker with a process of its own.
    #[must_use]
    pub fn new(number: u8, shop: Arc<Workshop>, chance: Arc<Chance>) -> Self {
        let process = shop.process();
        Self { number, shop, chance, process, given_up: Default::default() }
    }

    /// Works.
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
            0..=44 => self.put().await,
            45..=64 => self.get().await,
            65..=74 => self.get_others().await,
            75..=81 => self.rename().await,
            82..=88 => self.remove().await,
            89..=93 => self.list().await,
            _ => self.die().await,
        }
    }

    fn folder(&self) -> String {
        format!("/c{}", self.number)
    }

    /// One of the names in use.
    fn name(&mut self) -> String {
        let slot = self.chance.range(0..=NAMES - 1) as usize;
        loop {
            let path = format!("{}/f{slot}.{}", self.folder(), self.given_up[slot]);
            if self.shop.model.known(&path).is_some() {
                return path;
            }
            // Nobody knows what is there: it is left alone.
            self.given_up[slot] += 1;
        }
    }

    fn told<T>(&self, what: &str, result: &Result<T, ClientError>) {
        let how = match result {
            Ok(_) => "done".to_owned(),
            Err(error) => {
                self.shop.failures.fetch_add(1, Ordering::Relaxed);
                format!("{error:?}")
            }
        };
        self.shop.history.tell(format!("c{} {what}: {how}", self.number));
    }

    /// In calm worlds nothing fails.
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

    fn put_options(&self, content: Content) -> PutOptions {
        let size = self.chance.percent(70).then_some(content.length as u64);
        PutOptions { size, method: self.method(), ..PutOptions::default() }
    }

    fn source(&self, content: Content) -> Source {
        let slow = self.chance.percent(15).then(|| self.chance.clone());
        Source { bytes: content.bytes(), taken: 0, pause: None, slow }
    }

    async fn put(&mut self) {
        let path = self.name();
        let content = self.shop.content(Plan::size(&self.chance));
        let (source, options) = (self.source(content), self.put_options(content));
        let model = &self.shop.model;
        model.attempt(&path, content);
        let what = format!("put {path} v{} {} B {:?}", content.version, content.length, options.method);
        self.shop.history.tell(format!("c{} begins {what}", self.number));
        let result = self.process.client.put(&path, source, options).await;
        self.told(&what, &result);
        self.excused(&what, &result);
        match fate(&result) {
            Fate::Done => model.set(&path, Some(content)),
            Fate::NotDone => {}
            Fate::Unknown => model.maybe(&path, Some(content)),
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
        self.told(&what, &result);
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

    /// Reads what another worker may be writing: any version, but a whole one.
    async fn get_others(&mut self) {
        let paths = self.shop.model.paths();
        if paths.is_empty() {
            return;
        }
        let path = self.chance.pick(&paths).clone();
        let mut bytes = Vec::new();
        let result = self.process.client.get(&path, &mut bytes, GetOptions::default()).await;
        let what = format!("get others' {path}");
        self.told(&what, &result);
        if result.is_ok() && !self.shop.model.was_ever(&path, &bytes) {
            self.shop.history.violate(format!("{what} gave {} bytes that never were", bytes.len()));
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
        self.told(&what, &result);
        match fate(&result) {
            Fate::Done => {
                if !replace && old.is_some() {
                    self.shop.history.violate(format!("{what} took the place of a file"));
                }
                model.set(&from, None);
                model.set(&to, Some(content));
            }
            Fate::NotDone => {
                if replace || old.is_none() {
                    self.excused(&what, &result);
                }
            }
            Fate::Unknown => {
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
        self.told(&what, &result);
        match (fate(&result), there) {
            (Fate::Done, None) => {
                self.shop.history.violate(format!("{what} removed what was not there"));
            }
            (Fate::Done, Some(_)) => model.set(&path, None),
            (Fate::Unknown, Some(_)) => model.maybe(&path, None),
            (Fate::NotDone, Some(_)) => self.excused(&what, &result),
            (_, None) => {}
        }
    }

    /// The folder holds what it must and nothing else; only this worker changes it.
    async fn list(&mut self) {
        let folder = self.folder();
        let entries = match self.process.client.list(&folder) {
            Ok(listing) => listing.collect().await,
            Err(error) => Err(error),
        };
        let what = format!("list {folder}");
        self.told(&what, &entries);
        self.excused(&what, &entries);
        let Ok(entries) = entries else { return };
        let found: Vec<String> =
            entries.iter().map(|entry| format!("{folder}/{}", entry.name.as_str())).collect();
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

    /// The process dies in the middle of a put, or soon after; another one takes its place.
    async fn die(&mut self) {
        let path = self.name();
        let content = self.shop.content(Plan::size(&self.chance));
        let (source, options) = (self.source(content), self.put_options(content));
        self.shop.model.attempt(&path, content);
        let client = self.process.client.clone();
        let target = path.clone();
        let task = tokio::spawn(async move { client.put(&target, source, options).await });
        sleep(Duration::from_millis(self.chance.logarithmic(1..=3_000))).await;
        task.abort();
        let ended = task.await;
        let host = self.process.host;
        self.process = self.shop.process();
        self.shop.network.cut(host);
        let what = format!("dies in put {path} v{} {} B", content.version, content.length);
        match ended {
            Ok(result) => {
                self.told(&what, &result);
                match fate(&result) {
                    Fate::Done => self.shop.model.set(&path, Some(content)),
                    Fate::NotDone => {}
                    Fate::Unknown => self.shop.model.maybe(&path, Some(content)),
                }
            }
            Err(error) if error.is_cancelled() => {
                self.shop.history.tell(format!("c{} {what}", self.number));
                self.shop.model.maybe(&path, Some(content));
            }
            Err(_) => self.shop.history.violate(format!("{what}: the client panicked")),
        }
    }
}

/// Bytes of a file on their way in: in pieces, perhaps slowly.
struct Source {
    bytes: Vec<u8>,
    taken: usize,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
    slow: Option<Arc<Chance>>,
}

impl AsyncRead for Source {
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
