//! An attacker with an own connection and a recording of all earlier traffic.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sealstone_initiator::{ScsiRequest, Session, SessionConfig};
use tokio::time::{sleep, timeout};

use crate::clock::SimulatedClock;
use crate::history::History;
use crate::network::{Host, Network};
use crate::random::RandomSource;
use crate::wiretap::{ATTACKER, Captured, Wiretap};

const PATIENCE: Duration = Duration::from_secs(5);
/// Attempts over one session.
const ATTEMPTS_MAX: u64 = 8;

/// The attacker.
pub struct Attacker {
    /// Recorded commands.
    pub wiretap: Arc<Wiretap>,
    /// Number of devices to attack.
    pub devices: u8,
    /// The network.
    pub network: Arc<Network>,
    /// The attacker's clock.
    pub clock: Arc<SimulatedClock>,
    /// Random choices.
    pub chance: Arc<RandomSource>,
    /// Log of the results.
    pub history: Arc<History>,
}

impl Attacker {
    /// Attacks until aborted. The logical units under watch check that no device executes an
    /// attack.
    pub async fn run(self) {
        loop {
            sleep(Duration::from_millis(self.chance.range(50..=2_000))).await;
            if self.wiretap.is_empty() {
                continue;
            }
            let place = self.chance.range(0..=u64::from(self.devices) - 1) as u8;
            // An attack on a device that is down times out.
            let _ = timeout(PATIENCE * 8, self.attack(place)).await;
        }
    }

    async fn attack(&self, place: u8) -> Option<()> {
        let end = self.network.dial(Host::Attacker, Host::Device(place)).await.ok()?;
        let mut config = SessionConfig::new(Some(target(place)), &*self.clock);
        config.initiator_name = ATTACKER.to_owned();
        config.command_timeout = PATIENCE;
        let session = Session::over(end, config).await.ok()?;
        // The first command of a new nexus gets a POWER ON unit attention.
        let ready = ScsiRequest { cdb: Bytes::from_static(&[0; 6]), ..ScsiRequest::default() };
        session.execute(ready).await.ok()?;
        for _ in 0..self.chance.range(1..=ATTEMPTS_MAX) {
            let last = self.wiretap.len().checked_sub(1)?;
            let captured = self.wiretap.get(self.chance.range(0..=last as u64) as usize)?;
            let (what, captured) = self.change(captured);
            let request = ScsiRequest {
                cdb: captured.cdb.into(),
                data_out: vec![captured.data_out.into()],
                data_in_max: 64 << 10,
                ..ScsiRequest::default()
            };
            let answer = session.execute(request).await.ok()?;
            self.history.note(what, &[u64::from(place), u64::from(answer.status)]);
            self.history.note_bytes(&answer.sense);
        }
        session.logout().await;
        Some(())
    }

    fn change(&self, mut captured: Captured) -> (&'static str, Captured) {
        let Captured { cdb, data_out, .. } = &mut captured;
        let flip = |bytes: &mut Vec<u8>| {
            if let Some(last) = bytes.len().checked_sub(1) {
                bytes[self.chance.range(0..=last as u64) as usize] ^= 1 << self.chance.range(0..=7);
            }
        };
        match self.chance.range(0..=3) {
            0 => ("replay", captured),
            1 => {
                flip(cdb);
                ("flip", captured)
            }
            2 => {
                flip(cdb);
                flip(cdb);
                flip(cdb);
                ("flips", captured)
            }
            _ => {
                flip(data_out);
                ("flip of data", captured)
            }
        }
    }
}

fn target(place: u8) -> String {
    format!("iqn.2026-11.org.sealstone:osd.{place}")
}
