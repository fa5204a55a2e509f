//! Clock and random numbers of a device.

use std::sync::Arc;

use sealstone_daemon::machine::now_ms;
use sealstone_daemon::machine_clock;
use sealstone_daemon::time::FollowedClock;
use sealstone_osd_device::DeviceEnvironment;

/// Clock and random numbers of the machine.
pub struct MachineEnvironment;

impl DeviceEnvironment for MachineEnvironment {
    fn now_ms(&self) -> u64 {
        now_ms()
    }

    fn is_sound(&self) -> bool {
        machine_clock::is_sound()
    }

    fn known_behind_ms(&self) -> Option<u64> {
        machine_clock::known_behind_ms()
    }

    fn fill_random(&self, into: &mut [u8]) {
        getrandom::fill(into).expect("the system has random bytes");
    }
}

/// Clock of the metadata server, which the device follows, and random numbers of the machine.
pub(crate) struct FollowedEnvironment(pub(crate) Arc<FollowedClock>);

impl DeviceEnvironment for FollowedEnvironment {
    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    fn is_sound(&self) -> bool {
        self.0.is_sound()
    }

    fn fill_random(&self, into: &mut [u8]) {
        getrandom::fill(into).expect("the system has random bytes");
    }
}
