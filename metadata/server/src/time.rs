//! The server's clock for the devices and for whoever asks: SNTP on a UDP port.
//!
//! Does: receive, find the key of a device, send what `sealstone-sntp` answers. Does not: decide what is answered, or steer
//! the clock.
//! Contract: a datagram costs one answer at most, never a longer one; a port that fails is tried again, and the rest of the
//! server goes on.
//! Truth: docs/standards/time.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_mds::Mds;
use sealstone_sntp::{Came, ClockState, Responder, TimeKey};
use tokio::net::UdpSocket;
use tokio::sync::watch;

use crate::environment::Environment;

/// A datagram of ours has 68 bytes; a longer one is cut here, and refused for its length.
const DATAGRAM_BYTES: usize = 128;
/// Keys are read again after this, and sooner if one is asked for that is not known.
const KEYS_AGE_MAX: Duration = Duration::from_secs(5);
/// At most so often.
const KEYS_AGE_MIN: Duration = Duration::from_secs(1);
/// Pause after the port failed.
const PAUSE: Duration = Duration::from_millis(100);

/// What the server says of its clock, asked at each answer.
pub type StateOfClock = Arc<dyn Fn() -> ClockState + Send + Sync>;

/// The devices' keys as of lately.
struct Keys {
    by_number: BTreeMap<u32, TimeKey>,
    read: Option<Instant>,
}

impl Keys {
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

/// The port's counters.
#[derive(Clone, Default)]
pub(crate) struct TimePort(Arc<Mutex<Responder>>);

impl TimePort {
    /// Answers until told to stop.
    pub(crate) async fn serve(
        self,
        socket: UdpSocket,
        mds: Arc<Mds>,
        environment: Environment,
        state: StateOfClock,
        mut stop: watch::Receiver<bool>,
    ) {
        let began = Instant::now();
        let mut keys = Keys { by_number: BTreeMap::new(), read: None };
        let mut datagram = [0; DATAGRAM_BYTES];
        loop {
            let came = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                came = socket.recv_from(&mut datagram) => came,
            };
            let received_ms = environment.now_ms();
            let (length, from) = match came {
                Ok(came) => came,
                Err(error) => {
                    tracing::debug!(%error, "the time port failed");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let stopwatch_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            let came = Came {
                datagram: &datagram[..length],
                source: from.ip().into(),
                stopwatch_ms,
                received_ms,
                now_ms: environment.now_ms(),
            };
            let answer = self.0.lock().answer(&came, &state(), |number| keys.find(&mds, number));
            if let Some(reply) = answer.reply {
                // A full queue is a reason not to answer, as any other loss of a datagram.
                let _ = socket.try_send_to(reply.bytes(), from);
            }
        }
    }

    /// Figures as Prometheus text.
    pub(crate) fn metrics(&self) -> String {
        let name = "sealstone_mds_time_requests_total";
        let mut text = format!("# HELP {name} Requests for the time.\n# TYPE {name} counter\n");
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
