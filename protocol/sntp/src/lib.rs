//! SNTP version 4, both ends, and the rule by which a clock follows another one.
//!
//! Does: packets with their MAC ([`Packet`], [`TimeKey`]), a client's query ([`Query`]), a server's answers
//! ([`Responder`]), a clock that is steered ([`Steering`]), what it believes ([`Follower`]), and which steps of a machine's
//! wall clock are taken ([`MachineClock`]). Does not: sockets, clocks, timers, random bytes; `sealstone` has them.
//! Contract: a server never sends more bytes than it was sent. A steered clock never goes back, and no answer moves it
//! further or faster than its [`Policy`] says.
//! Truth: RFC 5905 (packet, on-wire protocol), RFC 4330 (SNTP, kiss-o'-death), RFC 8573 (AES-CMAC); what is ours stands in
//! `docs/standards/time.md`.

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

pub use follow::{Follower, Heard, Lie, Policy};
pub use keep::{BEHIND_MAX_MS, Kept};
pub use key::{KEY_LEN, KeyFileError, TAG_LEN, TimeKey, parse_key_line};
pub use machine::{
    BEHIND_OK_MS, CONFIRM_MS, GAP_MAX_MS, LONG_CONFIRM_MS, MachineClock, MachineState, RETURN_MAX_MS,
    Reading, STEP_MS, StepEvent, TRUST_AFTER_MS, Trust,
};
pub use packet::{
    HEADER_LEN, Leap, Mode, NAK_LEN, Packet, PacketError, SIGNED_LEN, Short, Trailer, VERSION, kiss,
};
pub use query::{DISTANCE_MAX_MS, Query, ROUND_TRIP_MAX_MS, Refusal, Sample};
pub use responder::{
    Answer, Came, ClockState, Counts, KISS_EVERY_MS, RATE, Rate, Reply, Responder, SOURCES_MAX, Source,
    Verdict,
};
pub use stamp::Stamp;
pub use steer::Steering;
