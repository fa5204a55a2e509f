//! Serves time to devices and other clients: SNTP on a UDP port.
//!
//! Does: receives requests, finds the key of a device, sends the response of `sealstone-sntp`.
//! Does not: decide the response, or adjust the clock.
//! Contract: a datagram causes at most one response, never a longer one. After a failure of the
//! port the server pauses and continues.
//! Truth: docs/standards/time.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_mds::Mds;
use sealstone_sntp::{ClockState, Datagram, Responder, TimeKey};
use tokio::net::UdpSocket;
use tokio::sync::watch;

use crate::environment::Environment;

/// Receive buffer. A valid request has at most 68 bytes; a longer one is truncated here, and
/// rejected for its length.
const DATAGRAM_BYTES: usize = 128;
/// Age after which keys are read again.
const KEYS_AGE_MAX: Duration = Duration::from_secs(5);
/// Age after which keys are read again for an unknown key number.
const KEYS_AGE_MIN: Duration = Duration::from_secs(1);
/// Pause after the port failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the state of the clock; called for each response.
pub type ClockStateSource = Arc<dyn Fn() -> ClockState + Send + Sync>;

/// Cached time keys of the devices.
struct TimeKeyCache {
    by_number: BTreeMap<u32, TimeKey>,
    read: Option<Instant>,
}

impl TimeKeyCache {
    fn find(&mut self, mds: &Mds, number: u32) -> Option<TimeKey> {
        let least = if self.by_number.contains_key(&number) { KEYS_AGE_MAX } else { KEYS_AGE_MIN };
        if self.read.is_none_or(|read| read.elapsed() >= least) {
            let keys = mds.time_keys().into_iter().map(|(_, bytes)| TimeKey::derived(&bytes));
            self.by_number = keys.map(|key| (key.id(), key)).collect();
            self.read = Some(Instant::now());
        }
        self.by_number.get(&number).cloned()
    }
}

/// The time port with its counters.
#[derive(Clone, Default)]
pub(crate) struct TimePort(Arc<Mutex<Responder>>);

impl TimePort {
    /// Answers requests until `stop` is set.
    pub(crate) async fn serve(
        self,
        socket: UdpSocket,
        mds: Arc<Mds>,
        environment: Environment,
        state: ClockStateSource,
        mut stop: watch::Receiver<bool>,
    ) {
        let began = Instant::now();
        let mut keys = TimeKeyCache { by_number: BTreeMap::new(), read: None };
        let mut datagram = [0; DATAGRAM_BYTES];
        loop {
            let received = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                received = socket.recv_from(&mut datagram) => received,
            };
            let received_ms = environment.now_ms();
            let (length, from) = match received {
                Ok(received) => received,
                Err(error) => {
                    tracing::debug!(%error, "time port failed; retrying");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let stopwatch_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            let request = Datagram {
                datagram: &datagram[..length],
                source: from.ip().into(),
                stopwatch_ms,
                received_ms,
                now_ms: environment.now_ms(),
            };
            let answer = self.0.lock().answer(&request, &state(), |number| keys.find(&mds, number));
            if let Some(reply) = answer.reply {
                // A full send queue drops the response, like any lost datagram.
                let _ = socket.try_send_to(reply.bytes(), from);
            }
        }
    }

    /// Returns the metrics as Prometheus text.
    pub(crate) fn metrics(&self) -> String {
        let name = "sealstone_mds_time_requests_total";
        let mut text = format!("# HELP {name} Time requests by result.\n# TYPE {name} counter\n");
        let counts = self.0.lock().counts();
        for (verdict, count) in [
            ("signed", counts.signed),
            ("plain", counts.plain),
            ("bad_mac", counts.bad_mac),
            ("limited", counts.limited),
            ("malformed", counts.malformed),
            ("no_room", counts.no_room),
        ] {
            let _ = writeln!(text, "{name}{{verdict=\"{verdict}\"}} {count}");
        }
        text
    }
}
