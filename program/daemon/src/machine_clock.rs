//! The machine's clock as a daemon keeps it, and its reset by an administrator.
//!
//! Does: stores the state of `sealstone_initiator::machine` in the daemon's folder, reads the clock
//! often enough to confirm steps of the wall clock, and resets it where `RESET_FILE` requests
//! that.
//! Does not: decide which step is taken; `sealstone-sntp` does.
//! Contract: a state that cannot be written is logged, and the clock continues.
//! Truth: docs/adr/0057-clock-steps.md; docs/standards/time.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_initiator::machine;
use sealstone_sntp::{BEHIND_OK_MS, ClockTrust, MachineState};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::shutdown::Shutdown;
use crate::time::{CLOCK_FILE, FollowedClock};

/// File with the state of the machine's clock, in a daemon's folder.
pub const MACHINE_CLOCK_FILE: &str = "machine-clock.toml";
/// File that requests a reset, in a daemon's folder.
const RESET_FILE: &str = "clock-reset";
/// Maximum size of the state, bytes.
const BYTES_MAX: u64 = 4096;
/// Interval at which the clock is read and a reset is checked for.
const READ_EVERY: Duration = Duration::from_millis(500);
/// Interval between two writes of the state.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// How long the wall clock must run without a step after a boot before the metadata server starts.
const SETTLE: Duration = Duration::from_secs(16);
/// The longest wait for the clock of another boot.
const SETTLE_MAX: Duration = Duration::from_secs(40);
/// A wall clock that is ahead of the last time by less than this is used at once, milliseconds.
const DOWNTIME_MS: u64 = 600_000;

/// [`MachineState`] as a file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct StateFile {
    /// The boot of the machine, 32 hexadecimal digits.
    boot_id: String,
    offset_ms: i64,
    least_offset_ms: i64,
    least_ms: u64,
    trust: TrustName,
    since_ms: u64,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum TrustName {
    New,
    Held,
    Ahead,
}

impl From<ClockTrust> for TrustName {
    fn from(trust: ClockTrust) -> Self {
        match trust {
            ClockTrust::New => Self::New,
            ClockTrust::Held => Self::Held,
            ClockTrust::Ahead => Self::Ahead,
        }
    }
}

impl TrustName {
    const fn trust(self) -> ClockTrust {
        match self {
            Self::New => ClockTrust::New,
            Self::Held => ClockTrust::Held,
            Self::Ahead => ClockTrust::Ahead,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Held => "held",
            Self::Ahead => "ahead",
        }
    }
}

/// Reads the state in a folder; `None` if there is none.
fn read(folder: &Path) -> Outcome<Option<MachineState>> {
    let path = folder.join(MACHINE_CLOCK_FILE);
    let wrong = |what: String| {
        Failure::operation(what).at(path.shown()).hint(
            "remove the file if this machine's clock is right: the daemon then starts from the wall clock",
        )
    };
    let content =
        sealstone_slots::read(&path, BYTES_MAX).map_err(|error| Failure::from(error).at(path.shown()))?;
    let Some(content) = content else { return Ok(None) };
    let text = std::str::from_utf8(&content).map_err(|error| wrong(error.to_string()))?;
    let file: StateFile = toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
    let boot_id = u128::from_str_radix(&file.boot_id, 16).map_err(|error| wrong(error.to_string()))?;
    Ok(Some(MachineState {
        boot_id: boot_id.to_be_bytes(),
        offset_ms: file.offset_ms,
        least_offset_ms: file.least_offset_ms,
        least_ms: file.least_ms,
        trust: file.trust.trust(),
        since_ms: file.since_ms,
    }))
}

/// The machine's clock and the folder with its state.
pub struct KeptClock {
    folder: PathBuf,
    /// Whether the time is that of a new boot, and far ahead of the last known time.
    is_unconfirmed: bool,
}

impl KeptClock {
    /// Continues from the state in the folder, or from the wall clock if a reset is requested.
    pub fn open(folder: &Path) -> Outcome<Self> {
        let mut kept = Self { folder: folder.to_owned(), is_unconfirmed: false };
        if kept.take_reset() {
            for name in [MACHINE_CLOCK_FILE, CLOCK_FILE] {
                let path = folder.join(name);
                if path.exists() {
                    fs::remove_file(&path).map_err(|error| Failure::from(error).at(path.shown()))?;
                }
            }
            machine::reset();
            tracing::warn!("the clock was reset to the wall clock of this machine, as requested");
        } else if let Some(state) = read(folder)? {
            machine::continue_from(state);
            let is_far = machine::wall_ms() > state.least_ms.saturating_add(DOWNTIME_MS);
            kept.is_unconfirmed = is_far && state.boot_id != machine::state().boot_id;
        }
        Ok(kept)
    }

    /// Waits after a boot until the wall clock ran for `SETTLE` without a step.
    ///
    /// A wrong time would end all sessions.
    pub async fn settle(&self) {
        if !self.is_unconfirmed {
            return;
        }
        tracing::info!(seconds = SETTLE.as_secs(), "waiting until the wall clock runs without a step");
        let begun = Instant::now();
        let is_open = || begun.elapsed() < SETTLE || machine::step_ms().is_some();
        while begun.elapsed() < SETTLE_MAX && is_open() {
            let _ = machine::now_ms();
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// Removes a request for a reset. Returns whether there was one.
    fn take_reset(&self) -> bool {
        fs::remove_file(self.folder.join(RESET_FILE)).is_ok()
    }

    /// Reads and stores the clock until the shutdown. A reset also resets `followed`.
    pub fn start(self, followed: Option<Arc<FollowedClock>>, shutdown: &Shutdown) -> JoinHandle<()> {
        let until = shutdown.wait();
        tokio::spawn(async move {
            tokio::pin!(until);
            let mut complained = false;
            let mut saved: Option<Instant> = None;
            loop {
                let _ = machine::now_ms();
                if self.take_reset() {
                    let by_ms = machine::reset();
                    if let Some(followed) = &followed {
                        followed.reset();
                    }
                    saved = None;
                    tracing::warn!(
                        by_ms,
                        "the clock was reset to the wall clock of this machine, as requested"
                    );
                }
                if saved.is_none_or(|saved| saved.elapsed() >= SAVE_EVERY) {
                    self.save(&mut complained).await;
                    saved = Some(Instant::now());
                }
                tokio::select! {
                    biased;
                    () = &mut until => break,
                    () = tokio::time::sleep(READ_EVERY) => {}
                }
            }
            self.save(&mut complained).await;
        })
    }

    async fn save(&self, complained: &mut bool) {
        let path = self.folder.join(MACHINE_CLOCK_FILE);
        let state = machine::state();
        let written =
            tokio::task::spawn_blocking(move || sealstone_slots::write(&path, text(&state).as_bytes()));
        match written.await {
            Ok(Err(error)) if !*complained => {
                *complained = true;
                tracing::warn!(%error, "cannot store the state of the clock; continuing");
            }
            Ok(Ok(())) => *complained = false,
            // Logged already, or the runtime is ending.
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

fn text(state: &MachineState) -> String {
    let file = StateFile {
        boot_id: format!("{:032x}", u128::from_be_bytes(state.boot_id)),
        offset_ms: state.offset_ms,
        least_offset_ms: state.least_offset_ms,
        least_ms: state.least_ms,
        trust: state.trust.into(),
        since_ms: state.since_ms,
    };
    let text = toml::to_string(&file).expect("numbers and strings serialise");
    format!(
        "# The clock of this machine: docs/standards/time.md. `clock reset` sets it to the wall clock.\n{text}"
    )
}

/// Whether the machine's clock is not behind an earlier confirmed time.
pub fn is_sound() -> bool {
    known_behind_ms().is_none()
}

/// Returns how far the machine's clock is behind an earlier confirmed time, if that is too far,
/// milliseconds.
pub fn known_behind_ms() -> Option<u64> {
    Some(machine::behind_ms()).filter(|&behind_ms| behind_ms > BEHIND_OK_MS)
}

/// Returns the clock of a folder as `clock show` prints it.
pub fn show(folder: &Path) -> Outcome<serde_json::Value> {
    let state = read(folder)?;
    let (wall_ms, boot_ms) = (machine::wall_ms(), machine::boot_ms());
    let same_boot = state.filter(|state| state.boot_id == machine::state().boot_id);
    let clock_ms = same_boot.map(|state| boot_ms.saturating_add_signed(state.offset_ms));
    let least_ms = match (same_boot, state) {
        (Some(state), _) => Some(boot_ms.saturating_add_signed(state.least_offset_ms)),
        (None, state) => state.map(|state| state.least_ms),
    };
    let wall_ahead_ms = clock_ms.map(|clock_ms| i128::from(wall_ms) - i128::from(clock_ms));
    Ok(serde_json::json!({
        "wall_ms": wall_ms, "clock_ms": clock_ms, "wall_ahead_ms": wall_ahead_ms.map(|ms| ms as i64),
        "least_ms": least_ms, "trust": state.map(|state| TrustName::from(state.trust).text()),
        "reset_requested": folder.join(RESET_FILE).exists(),
    }))
}

/// How long `clock reset` waits for a running daemon.
const RESET_WAIT: Duration = Duration::from_secs(5);

/// Requests a reset. Returns whether a running daemon did it; otherwise the next start does it.
pub fn request_reset(folder: &Path) -> Outcome<bool> {
    let path = folder.join(RESET_FILE);
    secret_file::write(&path, b"")?;
    let begun = Instant::now();
    while begun.elapsed() < RESET_WAIT {
        std::thread::sleep(READ_EVERY / 5);
        if !path.exists() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_reads_back_and_refuses_nonsense() {
        let folder = tempfile::tempdir().expect("temporary folder");
        assert_eq!(read(folder.path()).expect("nothing kept"), None);
        let state = MachineState { trust: ClockTrust::Ahead, ..machine::state() };
        let path = folder.path().join(MACHINE_CLOCK_FILE);
        sealstone_slots::write(&path, text(&state).as_bytes()).expect("written");
        assert_eq!(read(folder.path()).expect("read"), Some(state));
        sealstone_slots::write(&path, b"boot_id = \"x\"").expect("written");
        let failure = read(folder.path()).expect_err("refused");
        assert!(failure.message.contains(MACHINE_CLOCK_FILE), "{failure}");
    }
}
