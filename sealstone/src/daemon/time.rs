//! Clocks that follow another one: a device's the metadata server's, the metadata server's an NTP server's.
//!
//! Does: ask, hand what comes to `sealstone-sntp`, keep what was told in `clock.toml`, audit and count what is not believed.
//! Does not: decide what is believed. Contract: a file that cannot be written is told, and the clock goes on; an answer is
//! waited for at the start for [`START_WAIT`] at most.
//! Truth: docs/standards/time.md; docs/adr/0030-time-from-the-metadata-server.md.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_initiator::machine;
use sealstone_sntp::{
    BEHIND_MAX_MS, ClockSample, ClockState, FollowPolicy, Follower, ResponseError, SampleOutcome,
    StoredClock, TimeKey, TimeQuery, parse_key_line,
};
use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

use super::audit_log::AuditLog;
use super::{Shutdown, now_ms, random};
use crate::failure::{Failure, Outcome};
use crate::metrics::Page;
use crate::secret_file;
use crate::text::ShownPath as _;

/// What is kept of a clock, in the daemon's folder.
pub(crate) const CLOCK_FILE: &str = "clock.toml";
/// Longest content of that file, bytes.
const CLOCK_BYTES_MAX: u64 = 4096;
/// How often it is written.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// An answer is waited for so long.
const ANSWER_WAIT: Duration = Duration::from_millis(1_500);
/// At the start, the first one is waited for so long in all.
pub(crate) const START_WAIT: Duration = Duration::from_secs(3);
/// Datagrams that are no answer are looked at up to so many for each question.
const STRANGERS_MAX: usize = 64;
/// The same reason is audited again after this, with how often it was found meanwhile.
const AUDIT_EVERY: Duration = Duration::from_secs(60);
/// No clock gets here: 48 bits of milliseconds.
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
            .hint("without this file the clock starts from this machine's; take it away if that is right")
    };
    let content = sealstone_slots::read(path, CLOCK_BYTES_MAX)
        .map_err(|error| Failure::from(error).at(path.shown()))?;
    let Some(content) = content else { return Ok(StoredClock::default()) };
    let text = std::str::from_utf8(&content).map_err(|error| wrong(error.to_string()))?;
    let KeptFile { told_ms, ahead_ms } =
        toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
    if told_ms > TIME_MAX_MS || ahead_ms.unsigned_abs() > TIME_MAX_MS {
        return Err(wrong("a time that no clock tells".to_owned()));
    }
    Ok(StoredClock { last_served_ms: told_ms, ahead_ms })
}

/// A clock that follows another one.
pub(crate) struct FollowedClock {
    follower: Mutex<Follower>,
    /// The time since the machine's boot when the stopwatch began: it counts the time of a suspended machine, too.
    began_ms: u64,
    file: PathBuf,
    /// Somebody goes by it: what it tells cannot be taken back.
    told: AtomicBool,
}

impl FollowedClock {
    /// The clock of a daemon with this folder.
    pub(crate) fn open(folder: &Path, policy: FollowPolicy) -> Outcome<Arc<Self>> {
        let file = folder.join(CLOCK_FILE);
        let follower = Follower::resume(policy, now_ms(), read(&file)?);
        let (follower, began_ms) = (Mutex::new(follower), machine::boot_ms());
        Ok(Arc::new(Self { follower, began_ms, file, told: AtomicBool::new(false) }))
    }

    fn stopwatch_ms(&self) -> u64 {
        machine::boot_ms().saturating_sub(self.began_ms)
    }

    /// The time, milliseconds since 1970. One that would stand still for longer than anybody should wait goes on instead,
    /// and whoever has a memory of his own finds it too far behind.
    pub(crate) fn now_ms(&self) -> u64 {
        let mut follower = self.follower.lock();
        let stopwatch_ms = self.stopwatch_ms();
        if !self.told.load(Ordering::Relaxed) || follower.behind_ms(stopwatch_ms) > BEHIND_MAX_MS {
            return follower.unclamped_ms(stopwatch_ms);
        }
        follower.time_ms(stopwatch_ms)
    }

    /// From here on it never goes back.
    pub(crate) fn begin(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    /// Starts from this machine's clock, whatever was told: for an administrator. The next answer is the first one.
    pub(crate) fn reset(&self) {
        let mut follower = self.follower.lock();
        let stopwatch_ms = self.stopwatch_ms();
        *follower = Follower::new(follower.policy(), now_ms(), stopwatch_ms, 0, 0);
    }

    /// Returns the latest time told, milliseconds since 1970.
    fn told_ms(&self) -> u64 {
        self.follower.lock().last_served_ms()
    }

    /// How far it is behind what was told before the start, milliseconds.
    pub(crate) fn behind_ms(&self) -> u64 {
        self.follower.lock().behind_ms(self.stopwatch_ms())
    }

    /// Where what is kept of it lies.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The last sample that was believed, and how far the other clock is ahead by it.
    fn latest(&self) -> Option<(ClockSample, i64)> {
        self.follower.lock().latest(self.stopwatch_ms())
    }

    /// Makes what was told durable. A clock that is not believed itself is not kept.
    fn save(&self) -> Outcome {
        if !self.told.load(Ordering::Relaxed) {
            return Ok(());
        }
        let kept = self.follower.lock().keep(self.stopwatch_ms(), now_ms());
        let Some(StoredClock { last_served_ms: told_ms, ahead_ms }) = kept else { return Ok(()) };
        let text = toml::to_string(&KeptFile { told_ms, ahead_ms }).expect("two numbers serialise");
        let text = format!("# The latest time that this daemon told: it never tells an earlier one.\n{text}");
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

impl sealstone_device::Environment for FollowedClock {
    fn now_ms(&self) -> u64 {
        Self::now_ms(self)
    }

    fn is_sound(&self) -> bool {
        self.told.load(Ordering::Relaxed) && self.behind_ms() <= BEHIND_MAX_MS
    }

    fn fill_random(&self, into: &mut [u8]) {
        getrandom::fill(into).expect("the system gives random bytes");
    }
}

/// What a server says of its clock to those who follow it: of one that follows another one, or of this machine's.
pub(crate) fn state(clock: Option<&FollowedClock>) -> ClockState {
    let Some(clock) = clock else { return ClockState::own(now_ms()) };
    match clock.latest() {
        None => ClockState::own(clock.now_ms()),
        Some((sample, _)) => {
            let age_ms = clock.stopwatch_ms().saturating_sub(sample.at_ms);
            ClockState::following(&sample, age_ms, clock.now_ms())
        }
    }
}

/// The key that answers must be under, as it is now.
pub(crate) type KeyNow = Arc<dyn Fn() -> Option<TimeKey> + Send + Sync>;

/// Whether answers are signed.
#[derive(Clone)]
pub(crate) enum Proof {
    /// Under this key.
    Key(KeyNow),
    /// They are not.
    None,
}

/// Findings of one name.
struct Found {
    /// In all.
    count: u64,
    /// Since the last record of it, and when that was.
    open: u64,
    recorded: Option<Instant>,
}

/// Asks a server for the time, and has a clock follow it.
pub(crate) struct Following {
    server: String,
    proof: Proof,
    clock: Arc<FollowedClock>,
    audit: Arc<AuditLog>,
    found: Mutex<BTreeMap<&'static str, Found>>,
    /// That nothing can be kept was told.
    complained: AtomicBool,
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It was believed.
    Followed,
    /// The server asks to be asked less often.
    Kissed,
    /// Nobody can answer as things are: there is no key, or the server does not know it.
    NoKey,
    /// No answer that is believed.
    Missed,
}

impl Following {
    pub(crate) fn new(
        server: &str,
        proof: Proof,
        clock: Arc<FollowedClock>,
        audit: Arc<AuditLog>,
    ) -> Arc<Self> {
        let server = server.to_owned();
        let complained = AtomicBool::new(false);
        Arc::new(Self { server, proof, clock, audit, found: Mutex::default(), complained })
    }

    /// Whom it follows.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// The clock that follows.
    pub(crate) const fn clock(&self) -> &Arc<FollowedClock> {
        &self.clock
    }

    /// Asks until there was an answer that is believed, for [`START_WAIT`] at most.
    pub(crate) async fn first(&self) {
        let asked = async {
            loop {
                match self.ask().await {
                    End::Followed => return true,
                    // Waiting does not help: a device that nobody added yet has no key that the server knows.
                    End::NoKey => return false,
                    End::Kissed | End::Missed => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        // A name that is looked up in vain takes longer than anybody wants to wait.
        if timeout(START_WAIT, asked).await.unwrap_or(false) {
            return;
        }
        tracing::warn!(server = %self.server, "no time from the server yet; this machine's clock is believed until then");
    }

    /// Asks for as long as the daemon runs.
    pub(crate) fn start(self: &Arc<Self>, shutdown: &Shutdown) -> JoinHandle<()> {
        let (this, until) = (Arc::clone(self), shutdown.wait());
        tokio::spawn(async move {
            tokio::pin!(until);
            let mut next = Instant::now() + this.pause();
            let mut saved = Instant::now();
            this.save().await;
            loop {
                let wake = next.min(saved + SAVE_EVERY);
                tokio::select! {
                    biased;
                    () = &mut until => break,
                    () = tokio::time::sleep_until(wake.into()) => {}
                }
                if saved.elapsed() >= SAVE_EVERY {
                    this.save().await;
                    saved = Instant::now();
                }
                if Instant::now() >= next {
                    let before_ms = this.clock.told_ms();
                    tokio::select! {
                        biased;
                        () = &mut until => break,
                        _ = this.ask() => {}
                    }
                    if this.clock.told_ms() < before_ms {
                        // A restart must not find the later time that was taken back.
                        this.save().await;
                    }
                    next = Instant::now() + this.pause();
                }
            }
            this.save().await;
        })
    }

    /// Until the next question; a sixteenth more or less, so that many devices do not ask at the same moment.
    fn pause(&self) -> Duration {
        let pause = self.clock.follower.lock().pause_ms();
        let [chance] = random::<1>();
        Duration::from_millis(pause - pause / 16 + pause * u64::from(chance) / 2048)
    }

    async fn save(&self) {
        let clock = Arc::clone(&self.clock);
        match tokio::task::spawn_blocking(move || clock.save()).await {
            Ok(Err(error)) if !self.complained.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "what the clock told could not be kept");
            }
            Ok(Ok(())) => self.complained.store(false, Ordering::Relaxed),
            // Told already, or the runtime is ending.
            Ok(Err(_)) | Err(_) => {}
        }
    }

    async fn ask(&self) -> End {
        let end = match self.exchange().await {
            Ok(end) => end,
            Err(error) => {
                tracing::debug!(server = %self.server, %error, "the time server cannot be asked");
                self.note("unreachable");
                End::Missed
            }
        };
        let mut follower = self.clock.follower.lock();
        match end {
            End::Followed => {}
            End::Kissed => follower.record_kiss(),
            End::NoKey | End::Missed => follower.record_failure(),
        }
        end
    }

    async fn exchange(&self) -> std::io::Result<End> {
        let key = match &self.proof {
            Proof::None => None,
            Proof::Key(key) => match key() {
                Some(key) => Some(key),
                None => return Ok(End::NoKey),
            },
        };
        let nowhere = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
        let server = tokio::net::lookup_host(&self.server).await?.next().ok_or_else(nowhere)?;
        let any: SocketAddr = if server.is_ipv4() { ([0u8; 4], 0).into() } else { ([0u16; 8], 0).into() };
        // A port of its own for each question: one thing more that a stranger has to guess.
        let socket = UdpSocket::bind(any).await?;
        socket.connect(server).await?;
        let query = TimeQuery::new(u64::from_be_bytes(random()), key, self.clock.stopwatch_ms());
        socket.send(query.bytes()).await?;
        let until = tokio::time::Instant::now() + ANSWER_WAIT;
        let mut datagram = [0; 128];
        for _ in 0..STRANGERS_MAX {
            let Ok(came) = timeout_at(until, socket.recv(&mut datagram)).await else {
                self.note("silent");
                return Ok(End::Missed);
            };
            let length = came?;
            let received_ms = self.clock.stopwatch_ms();
            match query.read(&datagram[..length], received_ms, now_ms()) {
                Ok(sample) => return Ok(self.take(sample)),
                Err(refusal) => {
                    self.refused(refusal);
                    match refusal {
                        ResponseError::Kiss(_) => return Ok(End::Kissed),
                        ResponseError::Unsynchronised
                        | ResponseError::Slow(_)
                        | ResponseError::Distant(_) => {
                            return Ok(End::Missed);
                        }
                        // Anybody can send this one; the true answer may still come.
                        ResponseError::UnknownKey if !self.is_quick() => {}
                        ResponseError::UnknownKey => return Ok(End::NoKey),
                        _ => {}
                    }
                }
            }
        }
        Ok(End::Missed)
    }

    /// Was there no answer yet? Then a device that is not added does not wait for one.
    fn is_quick(&self) -> bool {
        !self.clock.follower.lock().is_set()
    }

    fn take(&self, sample: ClockSample) -> End {
        let heard = {
            let mut follower = self.clock.follower.lock();
            follower.apply_sample(sample, self.clock.stopwatch_ms(), machine::wall_ms())
        };
        match heard {
            Ok(heard) => {
                let name = match heard {
                    SampleOutcome::Set { .. } => "set",
                    SampleOutcome::Steered { .. } => "steered",
                    SampleOutcome::Unchanged => "kept",
                };
                self.note(name);
                if let SampleOutcome::Set { by_ms } = heard {
                    tracing::info!(server = %self.server, by_ms, error_ms = sample.error_ms, "the clock is set");
                    let at = (self.clock.now_ms(), self.server.as_str());
                    self.audit.time(at, "done", None, Some(by_ms), 1);
                }
                End::Followed
            }
            Err(lie) => {
                self.suspect(lie.name(), Some(lie.by_ms()), &lie);
                End::Missed
            }
        }
    }

    fn refused(&self, refusal: ResponseError) {
        match refusal.is_suspect() {
            true => self.suspect(refusal.name(), None, &refusal),
            false => {
                tracing::debug!(server = %self.server, %refusal, "no time from the server");
                self.note(refusal.name());
            }
        }
    }

    /// Counts a finding.
    fn note(&self, name: &'static str) -> u64 {
        let mut found = self.found.lock();
        let found = found.entry(name).or_insert(Found { count: 0, open: 0, recorded: None });
        found.count += 1;
        found.open += 1;
        if found.recorded.is_some_and(|at| at.elapsed() < AUDIT_EVERY) {
            return 0;
        }
        found.recorded = Some(Instant::now());
        std::mem::take(&mut found.open)
    }

    /// Somebody lies, or is out of order: that is for the audit log.
    fn suspect(&self, name: &'static str, ahead_ms: Option<i64>, why: &dyn std::fmt::Display) {
        let count = self.note(name);
        if count > 0 {
            tracing::warn!(server = %self.server, count, "the time is not believed: {why}");
            let at = (self.clock.now_ms(), self.server.as_str());
            self.audit.time(at, "refused", Some(name), ahead_ms, count);
        }
    }

    /// Adds its families to the page of this daemon.
    pub(crate) fn observe(&self, daemon: &str, page: &mut Page) {
        let label = daemon.replace(['\\', '"', '\n'], "_");
        let found = self.found.lock();
        let mut text = String::from(
            "# HELP sealstone_time_answers_total What became of questions for the time.\n\
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
            "Whether there is an answer that the clock follows.",
            Some(latest.is_some().into()),
        );
        let ahead = latest.map(|(_, ahead_ms)| ahead_ms);
        gauge("sealstone_time_server_ahead_ms", "How far the server's clock is ahead, milliseconds.", ahead);
        let error = latest.map(|(sample, _)| i64::try_from(sample.error_ms).unwrap_or(i64::MAX));
        gauge("sealstone_time_error_ms", "How far off that may be, milliseconds.", error);
        page.raw(&text);
    }
}

/// The one key in a private file.
pub(crate) fn key_file(path: &Path) -> Outcome<TimeKey> {
    let at = |failure: Failure| failure.at(path.shown());
    let text = secret_file::read(path)?;
    let mut keys = Vec::new();
    for line in text.lines() {
        // The error does not quote the line: it may hold the key.
        keys.extend(parse_key_line(line).map_err(|error| at(Failure::usage(error)))?);
    }
    match <[TimeKey; 1]>::try_from(keys) {
        Ok([key]) => Ok(key),
        Err(keys) => Err(at(Failure::usage(format!("{} keys: want one", keys.len())))
            .hint("one line: NUMBER AES128 HEX:32 hexadecimal digits, as in chrony's key file")),
    }
}

/// Does this name mean this machine, and nothing else?
pub(crate) async fn is_here(server: &str) -> bool {
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
    fn what_is_kept_is_read_back_and_nonsense_is_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let clock = FollowedClock::open(folder.path(), FollowPolicy::SIGNED).expect("a new clock");
        clock.save().expect("nothing to save");
        assert!(!clock.file().exists(), "nobody was told anything");
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
    fn a_key_file_holds_one_key_and_its_errors_do_not_show_it() {
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
