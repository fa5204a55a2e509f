//! Limits of the protocol state machines.

/// Bytes of received stream kept for headers and small segments, per connection.
pub const SPILL: usize = 16 * 1024;

/// Longest additional header area: the maximum of its length byte, in words (RFC 7143 §11.2.1.5).
pub const AHS_MAX: usize = 255 * 4;

/// Longest CDB: the maximum of SPC's ADDITIONAL CDB LENGTH byte, 7 + 1 + 252.
pub const CDB_MAX: usize = 260;

/// Largest data segment that we declare to receive, in bytes.
pub const DATA_SEGMENT_MAX: u32 = 256 * 1024;

/// Largest data segment of a login PDU, in bytes: the default MaxRecvDataSegmentLength (RFC 7143
/// §13.12).
pub const LOGIN_SEGMENT_MAX: u32 = 8192;

/// Maximum number of login requests in one login.
pub const LOGIN_EXCHANGES_MAX: u32 = 32;

/// Maximum bytes of one negotiation request or answer, collected over C-bit continuations.
pub const TEXT_MAX: usize = 16 * 1024;

/// Maximum number of keys in one negotiation; with this many, our answers fit one login PDU.
pub const KEYS_MAX: usize = 96;

/// Longest key name (RFC 7143 §6.1).
pub const KEY_NAME_MAX: usize = 63;

/// Longest value of a key (RFC 7143 §6.1), except large binary values.
pub const KEY_VALUE_MAX: usize = 255;

/// Longest large binary value (CHAP challenge and response): 1024 bytes as hexadecimal, and its
/// prefix.
pub const KEY_BINARY_MAX: usize = 2 + 2 * crate::chap::CHALLENGE_MAX;

/// Longest iSCSI name, in bytes (RFC 7143 §4.2.7.2).
pub const NAME_MAX: usize = 223;

/// Maximum number of commands in progress on one session, except immediate ones; configurations
/// choose less.
pub const QUEUE_DEPTH_MAX: u16 = 1024;

/// Maximum number of immediate SCSI commands in progress on one session.
pub const IMMEDIATE_MAX: u16 = 8;

/// Maximum number of pending task management functions on one session.
pub const MANAGEMENT_MAX: usize = 8;

/// Maximum number of outstanding R2Ts for one command that we accept.
pub const OUTSTANDING_R2T_MAX: u32 = 16;

/// Longest burst that we accept, in bytes: the maximum of the field (RFC 7143 §13.13).
pub const BURST_MAX: u32 = 16_777_215;

/// Longest burst that is requested while data-out is pulled, in bytes: a short command behind it
/// waits this long.
pub const PULL_BURST: u32 = 256 * 1024;

/// Shortest burst and data segment (RFC 7143 §13.12-13.14).
pub const BURST_MIN: u32 = 512;

/// Maximum ping payload that we echo, in bytes; the rest is dropped.
pub const PING_ECHO_MAX: usize = 4096;

/// Maximum sense and response data segment that an initiator accepts, in bytes.
pub const RESPONSE_SEGMENT_MAX: u32 = 4096;

/// Number of untransmitted responses beyond which nothing more is read: a peer that does not read
/// is not served.
pub const TRANSMIT_BACKLOG_MAX: usize = 64;

/// Maximum bytes of a refused PDU in a Reject: its header only.
pub const REJECT_ECHO: usize = 48;
