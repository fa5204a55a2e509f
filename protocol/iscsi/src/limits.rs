//! Every limit of the protocol machines, numbered.

/// Bytes of received stream kept for headers and small segments, per connection.
pub const SPILL: usize = 16 * 1024;

/// Longest additional header area: what its length byte, in words, can say (RFC 7143 §11.2.1.5).
pub const AHS_MAX: usize = 255 * 4;

/// Longest CDB: the longest that SPC's ADDITIONAL CDB LENGTH byte can say, 7 + 1 + 252.
pub const CDB_MAX: usize = 260;

/// Largest data segment that we declare to receive, in bytes.
pub const DATA_SEGMENT_MAX: u32 = 256 * 1024;

/// Largest data segment of a login PDU, in bytes: the default MaxRecvDataSegmentLength (RFC 7143 §13.12).
pub const LOGIN_SEGMENT_MAX: u32 = 8192;

/// Most login requests in one login.
pub const LOGIN_EXCHANGES_MAX: u32 = 32;

/// Most bytes of one negotiation request or answer put together over C-bit continuations.
pub const TEXT_MAX: usize = 16 * 1024;

/// Most keys in one negotiation; with this many, our answers fit one login PDU.
pub const KEYS_MAX: usize = 96;

/// Longest key name (RFC 7143 §6.1).
pub const KEY_NAME_MAX: usize = 63;

/// Longest value of a key (RFC 7143 §6.1), large binary values apart.
pub const KEY_VALUE_MAX: usize = 255;

/// Longest large binary value (CHAP challenge and response): 1024 bytes as hexadecimal, and its prefix.
pub const KEY_BINARY_MAX: usize = 2 + 2 * crate::chap::CHALLENGE_MAX;

/// Longest iSCSI name, in bytes (RFC 7143 §4.2.7.2).
pub const NAME_MAX: usize = 223;

/// Most commands under way on one session, immediate ones apart; configurations choose less.
pub const QUEUE_DEPTH_MAX: u16 = 1024;

/// Most immediate SCSI commands under way on one session.
pub const IMMEDIATE_MAX: u16 = 8;

/// Most task management functions waiting on one session.
pub const MANAGEMENT_MAX: usize = 8;

/// Most R2Ts outstanding for one command that we agree to.
pub const OUTSTANDING_R2T_MAX: u32 = 16;

/// Longest burst that we agree to, in bytes: the largest that the field can say (RFC 7143 §13.13).
pub const BURST_MAX: u32 = 16_777_215;

/// Longest burst that is asked for while data-out is pulled, in bytes: what a short command behind it has to wait for.
pub const PULL_BURST: u32 = 256 * 1024;

/// Shortest burst and data segment (RFC 7143 §13.12-13.14).
pub const BURST_MIN: u32 = 512;

/// Largest ping payload that we echo, in bytes; the rest is cut off.
pub const PING_ECHO_MAX: usize = 4096;

/// Largest sense and response data segment that an initiator takes, in bytes.
pub const RESPONSE_SEGMENT_MAX: u32 = 4096;

/// Answers waiting for transmission beyond which nothing more is read: a peer that does not read is not served.
pub const TRANSMIT_BACKLOG_MAX: usize = 64;

/// Most bytes of a refused PDU that a Reject carries back: its header alone.
pub const REJECT_ECHO: usize = 48;
