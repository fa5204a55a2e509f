//! Clocks that follow another one: a device's the metadata server's, the metadata server's an NTP
//! server's.
//!
//! Does: sends requests, passes responses to `sealstone-sntp`, stores the last served time in
//! `clock.toml`, audits and counts refused responses.
//! Does not: decide which responses are accepted.
//! Contract: a file that cannot be written is logged, and the clock continues; the start waits for
//! the first response for at most `START_WAIT`.
//! Truth: docs/standards/time.md; docs/adr/0030-time-from-the-metadata-server.md.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_initiator::machine;
use sealstone_sntp::{
    BEHIND_MAX_MS, ClockSample, ClockState, FollowPolicy, Follower, ResponseError, SampleOutcome,
    StoredClock, TimeKey, TimeQuery, parse_key_line,
};
use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

use crate::audit_log::AuditLog;
use crate::machine::{now_ms, random};
use crate::metrics::Page;
use crate::shutdown::Shutdown;

/// File with the state of a clock, in the daemon's folder.
pub(crate) const CLOCK_FILE: &str = "clock.toml";
/// Maximum size of that file, bytes.
const CLOCK_BYTES_MAX: u64 = 4096;
/// Interval between two writes of the file.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of a request.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Maximum time that the start waits for the first response.
const START_WAIT: Duration = Duration::from_secs(3);
/// Maximum number of datagrams that are read per request.
const DATAGRAMS_MAX: usize = 64;
/// Interval between two audit records of the same reason; the record has the count.
const AUDIT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum time: 48 bits of milliseconds.
const TIME_MAX_MS: u64 = (1 << 48) - 1;

/// [`StoredClock`] as a file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct KeptFile {
    told_ms: u64,
    ahead_ms: i64,
}

fn read(path: &Path) -> Outcome<StoredClock> {
    let wrong = |what: String| {
        Failure::operation(what)
            .at(path.shown())
            .hint("if the clock of this machine is right, remove the file")
    };
    let content = sealstone_slots::read(path, CLOCK_BYTES_MAX)
        .map_err(|error| Failure::from(error).at(path.shown()))?;
    let Some(content) = content else { return Ok(StoredClock::default()) };
    let text = std::str::from_utf8(&content).map_err(|error| wrong(error.to_string()))?;
    let KeptFile { told_ms, ahead_ms } =
        toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
    if told_ms > TIME_MAX_MS || ahead_ms.unsigned_abs() > TIME_MAX_MS {
        return Err(wrong("time out of range".to_owned()));
    }
    Ok(StoredClock { last_served_ms: told_ms, ahead_ms })
}

/// A clock that follows another one.
pub struct FollowedClock {
    follower: Mutex<Follower>,
    /// Time since the boot of the machine, which includes suspended time, at the start of the
    /// stopwatch.
    began_ms: u64,
    file: PathBuf,
    /// Whether the time is in use: then it must not go back.
    in_use: AtomicBool,
}

impl FollowedClock {
    /// Opens the clock of a daemon with this folder.
    pub fn open(folder: &Path, policy: FollowPolicy) -> Outcome<Arc<Self>> {
        let file = folder.join(CLOCK_FILE);
        let follower = Follower::resume(policy, now_ms(), read(&file)?);
        let (follower, began_ms) = (Mutex::new(follower), machine::boot_ms());
        Ok(Arc::new(Self { follower, began_ms, file, in_use: AtomicBool::new(false) }))
    }

    fn stopwatch_ms(&self) -> u64 {
        machine::boot_ms().saturating_sub(self.began_ms)
    }

    /// Returns the time in milliseconds since 1970. If it would stand still for more than
    /// [`BEHIND_MAX_MS`], it goes back instead; daemons with a state of their own refuse that.
    pub fn now_ms(&self) -> u64 {
        let mut follower = self.follower.lock();
        let stopwatch_ms = self.stopwatch_ms();
        if !self.in_use.load(Ordering::Relaxed) || follower.behind_ms(stopwatch_ms) > BEHIND_MAX_MS {
            return follower.unclamped_ms(stopwatch_ms);
        }
        follower.time_ms(stopwatch_ms)
    }

    /// Starts the use of the time: it does not go back from here on.
    pub fn begin(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    /// Resets to the clock of this machine, for an administrator. The next response is treated as
    /// the first one.
    pub(crate) fn reset(&self) {
        let mut follower = self.follower.lock();
        let stopwatch_ms = self.stopwatch_ms();
        *follower = Follower::new(follower.policy(), now_ms(), stopwatch_ms, 0, 0);
    }

    /// Returns the last served time, milliseconds since 1970.
    fn told_ms(&self) -> u64 {
        self.follower.lock().last_served_ms()
    }

    /// Returns how far it is behind the last served time before the start, milliseconds.
    pub fn behind_ms(&self) -> u64 {
        self.follower.lock().behind_ms(self.stopwatch_ms())
    }

    /// Whether the time is in use, and not too far behind the last served time.
    pub fn is_sound(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) && self.behind_ms() <= BEHIND_MAX_MS
    }

    /// Returns the path of its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the last accepted sample, and how far the server is ahead by it.
    fn latest(&self) -> Option<(ClockSample, i64)> {
        self.follower.lock().latest(self.stopwatch_ms())
    }

    /// Stores the last served time, if the time is in use.
    fn save(&self) -> Outcome {
        if !self.in_use.load(Ordering::Relaxed) {
            return Ok(());
        }
        let kept = self.follower.lock().keep(self.stopwatch_ms(), now_ms());
        let Some(StoredClock { last_served_ms: told_ms, ahead_ms }) = kept else { return Ok(()) };
        let text = toml::to_string(&KeptFile { told_ms, ahead_ms }).expect("two numbers serialise");
        let text =
            format!("# The last time that this daemon served: it does not serve an earlier one.\n{text}");
        sealstone_slots::write(&self.file, text.as_bytes())
            .map_err(|error| Failure::from(error).at(self.file.shown()))
    }
}

impl sealstone_initiator::Environment for FollowedClock {
    fn now_ms(&self) -> u64 {
        Self::now_ms(self)
    }

    fn fill_random(&self, into: &mut [u8]) {
        sealstone_initiator::Environment::fill_random(&sealstone_initiator::SystemEnvironment, into);
    }
}

/// Returns the state of a clock for the time service: a followed clock, or that of this machine.
pub fn state(clock: Option<&FollowedClock>) -> ClockState {
    let Some(clock) = clock else { return ClockState::own(now_ms()) };
    match clock.latest() {
        None => ClockState::own(clock.now_ms()),
        Some((sample, _)) => {
            let age_ms = clock.stopwatch_ms().saturating_sub(sample.at_ms);
            ClockState::following(&sample, age_ms, clock.now_ms())
        }
    }
}

/// Returns the current key of signed responses.
pub type KeyNow = Arc<dyn Fn() -> Option<TimeKey> + Send + Sync>;

/// Authentication of responses.
#[derive(Clone)]
pub enum ResponseAuth {
    /// Signed with this key.
    Key(KeyNow),
    /// Not authenticated.
    None,
}

/// Counters of one result.
struct ResultCount {
    /// Number since the start.
    count: u64,
    /// Since the last audit record, and the time of that record.
    open: u64,
    recorded: Option<Instant>,
}

/// Requests the time of a server, and lets a clock follow it.
pub struct Following {
    server: String,
    proof: ResponseAuth,
    clock: Arc<FollowedClock>,
    audit: Arc<AuditLog>,
    found: Mutex<BTreeMap<&'static str, ResultCount>>,
    /// Whether a failed write of the file has been logged.
    complained: AtomicBool,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestResult {
    /// The response was accepted.
    Followed,
    /// The server requires a lower rate (kiss-o'-death).
    Kissed,
    /// There is no key, or the server does not know it.
    NoKey,
    /// No accepted response.
    Missed,
}

impl Following {
    /// Follows a server with a clock; nothing is sent yet.
    pub fn new(
        server: &str,
        proof: ResponseAuth,
        clock: Arc<FollowedClock>,
        audit: Arc<AuditLog>,
    ) -> Arc<Self> {
        let server = server.to_owned();
        let complained = AtomicBool::new(false);
        Arc::new(Self { server, proof, clock, audit, found: Mutex::default(), complained })
    }

    /// Returns the address of the server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns the clock.
    pub const fn clock(&self) -> &Arc<FollowedClock> {
        &self.clock
    }

    /// Sends requests until a response is accepted, for at most `START_WAIT`.
    pub async fn first(&self) {
        let requests = async {
            loop {
                match self.request().await {
                    RequestResult::Followed => return true,
                    // A device that is not added yet has no key that the server knows.
                    RequestResult::NoKey => return false,
                    RequestResult::Kissed | RequestResult::Missed => {
                        tokio::time::sleep(Duration::from_millis(100)).await
                    }
                }
            }
        };
        // A failing name look-up takes longer.
        if timeout(START_WAIT, requests).await.unwrap_or(false) {
            return;
        }
        tracing::warn!(server = %self.server, "no response of the time server yet; using the clock of this machine");
    }

    /// Sends requests until the shutdown.
    pub fn start(self: &Arc<Self>, shutdown: &Shutdown) -> JoinHandle<()> {
        let (this, until) = (Arc::clone(self), shutdown.wait());
        tokio::spawn(async move {
            tokio::pin!(until);
            let mut next = Instant::now() + this.pause();
            let mut saved = Instant::now();
            this.save().await;
            loop {
                let wake = next.min(saved + SAVE_INTERVAL);
                tokio::select! {
                    biased;
                    () = &mut until => break,
                    () = tokio::time::sleep_until(wake.into()) => {}
                }
                if saved.elapsed() >= SAVE_INTERVAL {
                    this.save().await;
                    saved = Instant::now();
                }
                if Instant::now() >= next {
                    let before_ms = this.clock.told_ms();
                    tokio::select! {
                        biased;
                        () = &mut until => break,
                        _ = this.request() => {}
                    }
                    if this.clock.told_ms() < before_ms {
                        // After a restart the withdrawn later time must not be used.
                        this.save().await;
                    }
                    next = Instant::now() + this.pause();
                }
            }
            this.save().await;
        })
    }

    /// Returns the time to the next request, varied by a sixteenth, so that devices do not send at
    /// the same moment.
    fn pause(&self) -> Duration {
        let pause = self.clock.follower.lock().pause_ms();
        let [chance] = random::<1>();
        Duration::from_millis(pause - pause / 16 + pause * u64::from(chance) / 2048)
    }

    async fn save(&self) {
        let clock = Arc::clone(&self.clock);
        match tokio::task::spawn_blocking(move || clock.save()).await {
            Ok(Err(error)) if !self.complained.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "cannot store the last served time; continuing");
            }
            Ok(Ok(())) => self.complained.store(false, Ordering::Relaxed),
            // Logged already, or the runtime is stopping.
            Ok(Err(_)) | Err(_) => {}
        }
    }

    async fn request(&self) -> RequestResult {
        let end = match self.exchange().await {
            Ok(end) => end,
            Err(error) => {
                tracing::debug!(server = %self.server, %error, "cannot reach the time server");
                self.note("unreachable");
                RequestResult::Missed
            }
        };
        let mut follower = self.clock.follower.lock();
        match end {
            RequestResult::Followed => {}
            RequestResult::Kissed => follower.record_kiss(),
            RequestResult::NoKey | RequestResult::Missed => follower.record_failure(),
        }
        end
    }

    async fn exchange(&self) -> std::io::Result<RequestResult> {
        let key = match &self.proof {
            ResponseAuth::None => None,
            ResponseAuth::Key(key) => match key() {
                Some(key) => Some(key),
                None => return Ok(RequestResult::NoKey),
            },
        };
        let no_address = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
        let server = tokio::net::lookup_host(&self.server).await?.next().ok_or_else(no_address)?;
        let any: SocketAddr = if server.is_ipv4() { ([0u8; 4], 0).into() } else { ([0u16; 8], 0).into() };
        // A new port for each request is harder to guess for an attacker.
        let socket = UdpSocket::bind(any).await?;
        socket.connect(server).await?;
        let query = TimeQuery::new(u64::from_be_bytes(random()), key, self.clock.stopwatch_ms());
        socket.send(query.bytes()).await?;
        let until = tokio::time::Instant::now() + RESPONSE_TIMEOUT;
        let mut datagram = [0; 128];
        for _ in 0..DATAGRAMS_MAX {
            let Ok(received) = timeout_at(until, socket.recv(&mut datagram)).await else {
                self.note("silent");
                return Ok(RequestResult::Missed);
            };
            let length = received?;
            let received_ms = self.clock.stopwatch_ms();
            match query.read(&datagram[..length], received_ms, now_ms()) {
                Ok(sample) => return Ok(self.take(sample)),
                Err(refusal) => {
                    self.refused(refusal);
                    match refusal {
                        ResponseError::Kiss(_) => return Ok(RequestResult::Kissed),
                        ResponseError::Unsynchronised
                        | ResponseError::Slow(_)
                        | ResponseError::Distant(_) => {
                            return Ok(RequestResult::Missed);
                        }
                        // This one can be forged; the genuine response may follow.
                        ResponseError::UnknownKey if !self.is_unset() => {}
                        ResponseError::UnknownKey => return Ok(RequestResult::NoKey),
                        _ => {}
                    }
                }
            }
        }
        Ok(RequestResult::Missed)
    }

    /// Whether there was no response yet. Then a device that is not added does not wait for one.
    fn is_unset(&self) -> bool {
        !self.clock.follower.lock().is_set()
    }

    fn take(&self, sample: ClockSample) -> RequestResult {
        let accepted = {
            let mut follower = self.clock.follower.lock();
            follower.apply_sample(sample, self.clock.stopwatch_ms(), machine::wall_ms())
        };
        match accepted {
            Ok(accepted) => {
                let name = match accepted {
                    SampleOutcome::Set { .. } => "set",
                    SampleOutcome::Steered { .. } => "steered",
                    SampleOutcome::Unchanged => "kept",
                };
                self.note(name);
                if let SampleOutcome::Set { by_ms } = accepted {
                    tracing::info!(server = %self.server, by_ms, error_ms = sample.error_ms, "the clock is set");
                    let at = (self.clock.now_ms(), self.server.as_str());
                    self.audit.time(at, "done", None, Some(by_ms), 1);
                }
                RequestResult::Followed
            }
            Err(lie) => {
                self.report_suspect(lie.name(), Some(lie.by_ms()), &lie);
                RequestResult::Missed
            }
        }
    }

    fn refused(&self, refusal: ResponseError) {
        match refusal.is_suspect() {
            true => self.report_suspect(refusal.name(), None, &refusal),
            false => {
                tracing::debug!(server = %self.server, %refusal, "no time from the server");
                self.note(refusal.name());
            }
        }
    }

    /// Counts a result. Returns the count for an audit record, or 0 if none is due.
    fn note(&self, name: &'static str) -> u64 {
        let mut found = self.found.lock();
        let found = found.entry(name).or_insert(ResultCount { count: 0, open: 0, recorded: None });
        found.count += 1;
        found.open += 1;
        if found.recorded.is_some_and(|at| at.elapsed() < AUDIT_INTERVAL) {
            return 0;
        }
        found.recorded = Some(Instant::now());
        std::mem::take(&mut found.open)
    }

    /// Logs and audits a response that may be forged.
    fn report_suspect(&self, name: &'static str, ahead_ms: Option<i64>, why: &dyn std::fmt::Display) {
        let count = self.note(name);
        if count > 0 {
            tracing::warn!(server = %self.server, count, "response of the time server refused: {why}");
            let at = (self.clock.now_ms(), self.server.as_str());
            self.audit.time(at, "refused", Some(name), ahead_ms, count);
        }
    }

    /// Adds the metrics of the clock.
    pub fn observe(&self, daemon: &str, page: &mut Page) {
        let label = daemon.replace(['\\', '"', '\n'], "_");
        let found = self.found.lock();
        let mut text = String::from(
            "# HELP sealstone_time_answers_total Requests for the time by result.\n\
             # TYPE sealstone_time_answers_total counter\n",
        );
        for (name, found) in found.iter() {
            text.push_str(&format!(
                "sealstone_time_answers_total{{daemon=\"{label}\",result=\"{name}\"}} {}\n",
                found.count
            ));
        }
        drop(found);
        let latest = self.clock.latest();
        let mut gauge = |name: &str, help: &str, value: Option<i64>| {
            text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n"));
            if let Some(value) = value {
                text.push_str(&format!("{name}{{daemon=\"{label}\"}} {value}\n"));
            }
        };
        gauge(
            "sealstone_time_followed",
            "Whether the clock follows a response.",
            Some(latest.is_some().into()),
        );
        let ahead = latest.map(|(_, ahead_ms)| ahead_ms);
        gauge("sealstone_time_server_ahead_ms", "How far the server's clock is ahead, milliseconds.", ahead);
        let error = latest.map(|(sample, _)| i64::try_from(sample.error_ms).unwrap_or(i64::MAX));
        gauge("sealstone_time_error_ms", "Maximum error of that, milliseconds.", error);
        page.raw(&text);
    }
}

/// Reads the single key of a private file.
pub fn key_file(path: &Path) -> Outcome<TimeKey> {
    let at = |failure: Failure| failure.at(path.shown());
    let text = secret_file::read(path)?;
    let mut keys = Vec::new();
    for line in text.lines() {
        // The error does not quote the line, which may have the key.
        keys.extend(parse_key_line(line).map_err(|error| at(Failure::usage(error)))?);
    }
    match <[TimeKey; 1]>::try_from(keys) {
        Ok([key]) => Ok(key),
        Err(keys) => Err(at(Failure::usage(format!("the file has {} keys; required is one", keys.len())))
            .hint("one line: NUMBER AES128 HEX:32 hexadecimal digits, as in chrony's key file")),
    }
}

/// Whether all addresses of a name are on this machine.
pub async fn is_here(server: &str) -> bool {
    let Ok(mut addresses) = tokio::net::lookup_host(server).await else { return false };
    let mut any = false;
    let all = addresses.all(|address| {
        any = true;
        address.ip().to_canonical().is_loopback()
    });
    any && all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_file_reads_back_and_refuses_nonsense() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let clock = FollowedClock::open(folder.path(), FollowPolicy::SIGNED).expect("a new clock");
        clock.save().expect("nothing to save");
        assert!(!clock.file().exists(), "the time was not in use");
        clock.begin();
        let told = clock.now_ms();
        clock.save().expect("saved");
        let kept = read(clock.file()).expect("read");
        assert!(kept.last_served_ms >= told && kept.ahead_ms.abs() < 60_000, "{kept:?}");
        for nonsense in
            ["told_ms = -1\nahead_ms = 0", "told_ms = 1", "told_ms = 281474976710656\nahead_ms = 0", "x"]
        {
            std::fs::write(clock.file(), nonsense).expect("written");
            let failure = FollowedClock::open(folder.path(), FollowPolicy::SIGNED).err().expect("refused");
            assert!(failure.message.contains(CLOCK_FILE), "{failure}");
        }
        std::fs::write(clock.file(), "told_ms = 281474976710655\nahead_ms = -5").expect("written");
        assert!(
            FollowedClock::open(folder.path(), FollowPolicy::SIGNED).expect("the limit").behind_ms()
                > BEHIND_MAX_MS
        );
    }

    #[test]
    fn key_file_has_one_key_that_errors_hide() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("ntp.key");
        let secret = "00112233445566778899aabbccddeeff";
        let write = |text: &str| secret_file::write(&path, text.as_bytes()).expect("written");
        write(&format!("# upstream\n7 AES128 HEX:{secret}\n"));
        assert_eq!(key_file(&path).expect("a key").id(), 7);
        for (text, says) in [
            (format!("7 AES128 {secret}\n8 AES128 {secret}\n"), "2 keys"),
            ("# none\n".to_owned(), "0 keys"),
            (format!("7 SHA1 {secret}\n"), "AES128"),
            (format!("7 AES128 {secret}0\n"), "32 hexadecimal digits"),
        ] {
            write(&text);
            let failure = key_file(&path).expect_err("refused").to_string();
            assert!(failure.contains(says) && !failure.contains(secret), "{failure}");
        }
    }
}
