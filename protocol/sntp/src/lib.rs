//! SNTP version 4, client and server, and the algorithm by which a clock follows another one.
//!
//! Does: packets with their MAC ([`NtpPacket`], [`TimeKey`]), a client's query ([`TimeQuery`]), a
//! server's responses ([`Responder`]), a slewed clock ([`SlewedClock`]), the judgement of samples
//! ([`Follower`]), and the acceptance of steps of a machine's wall clock ([`MachineClock`]).
//! Does not: use sockets, clocks, timers or random bytes; `sealstone` does.
//! Contract: a server never sends more bytes than it received. A slewed clock never goes back, and
//! no sample moves it further or faster than its [`FollowPolicy`] allows.
//! Truth: RFC 5905 (packet, on-wire protocol), RFC 4330 (SNTP, kiss-o'-death), RFC 8573 (AES-CMAC);
//! project rules are in `docs/standards/time.md`.

#![no_std]

#[cfg(test)]
extern crate std;

extern crate alloc;

mod follow;
mod keep;
mod key;
mod machine;
mod packet;
mod query;
mod responder;
mod stamp;
mod steer;

pub use follow::{FollowPolicy, Follower, ImplausibleSample, SampleOutcome};
pub use keep::{BEHIND_MAX_MS, StoredClock};
pub use key::{KEY_LEN, KeyFileError, TAG_LEN, TimeKey, parse_key_line};
pub use machine::{
    BEHIND_OK_MS, CONFIRM_MS, ClockReading, ClockTrust, GAP_MAX_MS, LONG_CONFIRM_MS, MachineClock,
    MachineState, RETURN_MAX_MS, STEP_MS, StepEvent, TRUST_AFTER_MS,
};
pub use packet::{
    HEADER_LEN, LeapIndicator, NAK_LEN, NtpPacket, NtpShort, PacketError, PacketMode, SIGNED_LEN, Trailer,
    VERSION, kiss,
};
pub use query::{ClockSample, DISTANCE_MAX_MS, ROUND_TRIP_MAX_MS, ResponseError, TimeQuery};
pub use responder::{
    ClockState, Datagram, KISS_EVERY_MS, RATE, ReplyDatagram, RequestCounts, RequestRate, RequestSource,
    RequestVerdict, Responder, SOURCES_MAX, TimeResponse,
};
pub use stamp::NtpTimestamp;
pub use steer::SlewedClock;
