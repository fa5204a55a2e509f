//! Profile 0: the messages of the paper's login, types 01h to 10h. Insecure by design; the modern
//! profile is the default.
//!
//! Does: types with a limit on every field, checked before memory is reserved.
//! Does not: cryptography; `sealstone-login::paper` does.
//! Contract: a header of the other profile is refused before its body is read. The listener selects
//! the profile; it is never negotiated.
//! Truth: docs/standards/paper-login.md; docs/design/security.md 2.2.

use alloc::vec::Vec;
use core::fmt;

use crate::frame::{BODY_MAX, FrameType, Header};
use crate::login::SessionId;
use crate::name::UserName;
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter, code, record};

/// Number of the paper's profile.
pub const PROFILE_PAPER: u8 = 0;
/// Length of a cookie: the first bytes of a SHA-1.
pub const COOKIE_BYTES: usize = 8;
/// Minimum length of a nonce.
pub const NONCE_MIN: usize = 16;
/// Maximum length of a nonce.
pub const NONCE_MAX: usize = 64;
/// Maximum length of an identity.
pub const IDENTITY_MAX: usize = 64;
/// Maximum length of a public value: group 14.
pub const ELEMENT_MAX: usize = 256;
/// Maximum number of pairs in an offer list; seven exist.
pub const OFFERS_MAX: usize = 16;
/// Maximum length of a signature or proof: HMAC-SHA256.
pub const MAC_MAX: usize = 32;
/// Maximum length of a body before login; the longest, RESP in group 14, has 684.
pub const LOGIN_BODY_MAX: usize = 1_024;
/// Maximum overhead of a record: number 8, IV 16, padding 16, check value 32.
pub const RECORD_OVERHEAD_MAX: usize = 72;

/// ID(M) of this server.
pub const SERVER_IDENTITY: &[u8] = b"mds";
/// ID(C) of this client.
pub const CLIENT_IDENTITY: &[u8] = b"client";

/// A cookie: eight bytes of a hash over an address and the passphrase's key.
pub type Cookie = [u8; COOKIE_BYTES];
/// Identity of a peer; opaque bytes.
pub type Identity = Bytes<1, IDENTITY_MAX>;
/// N_c or N_m.
pub type Nonce = Bytes<NONCE_MIN, NONCE_MAX>;
/// g^x or g^y, with the length of the prime.
pub type Element = Bytes<1, ELEMENT_MAX>;
/// A signature (HMAC under k_i), or a proof of a session.
pub type Proof = Bytes<1, MAC_MAX>;

/// `MIN` to `MAX` bytes, on the wire as `lv16`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes<const MIN: usize, const MAX: usize>(Vec<u8>);

impl<const MIN: usize, const MAX: usize> Bytes<MIN, MAX> {
    /// Checks the length.
    ///
    /// # Errors
    /// `TooLong`; `Malformed` for fewer than `MIN`.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, WireError> {
        let bytes = bytes.into();
        match bytes.len() {
            length if length > MAX => Err(WireError::TooLong { limit: MAX }),
            length if length < MIN => Err(WireError::Malformed("short field")),
            _ => Ok(Self(bytes)),
        }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl<const MIN: usize, const MAX: usize> fmt::Debug for Bytes<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const MIN: usize, const MAX: usize> Wire for Bytes<MIN, MAX> {
    fn put(&self, out: &mut WireWriter) {
        out.lv16(&self.0);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Self::new(input.lv16(MAX)?)
    }
}

/// EHAO or EHAS: pairs of a class (1 encryption, 2 hash, 3 authentication) and an algorithm.
/// Unknown codes are kept, so that a decoder can ignore them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offers(Vec<(u8, u8)>);

impl Offers {
    /// Checks the number of pairs.
    ///
    /// # Errors
    /// `TooLong` above [`OFFERS_MAX`], `Malformed` for none.
    pub fn new(pairs: impl Into<Vec<(u8, u8)>>) -> Result<Self, WireError> {
        let pairs = pairs.into();
        match pairs.len() {
            0 => Err(WireError::Malformed("list of algorithms")),
            count if count > OFFERS_MAX => Err(WireError::TooLong { limit: OFFERS_MAX }),
            _ => Ok(Self(pairs)),
        }
    }

    /// Returns the pairs in the sender's order of preference.
    #[must_use]
    pub fn pairs(&self) -> &[(u8, u8)] {
        &self.0
    }

    /// Returns the pairs in the signed form, two bytes each.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|&(class, algorithm)| [class, algorithm]).collect()
    }
}

impl Wire for Offers {
    fn put(&self, out: &mut WireWriter) {
        out.lv16(&self.to_bytes());
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        let bytes = input.lv16(2 * OFFERS_MAX).map_err(|error| match error {
            WireError::TooLong { .. } => WireError::TooLong { limit: OFFERS_MAX },
            other => other,
        })?;
        let (pairs, []) = bytes.as_chunks::<2>() else {
            return Err(WireError::Malformed("list of algorithms"));
        };
        Self::new(pairs.iter().map(|&[class, algorithm]| (class, algorithm)).collect::<Vec<_>>())
    }
}

code! {
    /// Message types of this profile.
    pub enum PaperType: u8 as "message type" {
        /// Conservative mode: the client requests the server's cookie first.
        CookieRequest = 0x01,
        /// The server's cookie.
        CookieResponse = 0x02,
        /// The client's part of the exchange, signed.
        Init = 0x03,
        /// The server's part.
        Response = 0x04,
        /// The client confirms the server's part.
        Confirm = 0x05,
        /// The session; a record.
        SessionOk = 0x06,
        /// The client ends its session; a record.
        Logout = 0x07,
        /// The server confirms the logout; a record.
        LogoutOk = 0x08,
        /// A client resumes a session on a new connection; ours, not the paper's.
        Continue = 0x09,
        /// The server's part of the resumption.
        ContinueOk = 0x0A,
        /// A step was refused.
        Error = 0x0E,
        /// A request or its response; a record.
        Data = 0x10,
    }
}

impl PaperType {
    /// Whether the body is a record under the session's keys.
    #[must_use]
    pub const fn is_record(self) -> bool {
        matches!(self, Self::SessionOk | Self::Logout | Self::LogoutOk | Self::Data)
    }
}

impl FrameType for PaperType {
    const PROFILE: u8 = PROFILE_PAPER;

    fn of_number(number: u8) -> Option<Self> {
        Self::from_code(number)
    }

    fn number(self) -> u8 {
        self.code()
    }

    fn body_max(self) -> usize {
        match self {
            Self::Data => BODY_MAX + RECORD_OVERHEAD_MAX,
            _ => LOGIN_BODY_MAX,
        }
    }

    /// Only records have a sequence number.
    fn takes_sequence(self, sequence: u32) -> bool {
        (sequence == 0) != self.is_record()
    }
}

/// A header of this profile.
pub type PaperHeader = Header<PaperType>;

record! {
    /// Message 01h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CookieRequest {
        /// The client's cookie, CKY-C.
        pub client_cookie: Cookie,
        pub user: UserName,
    }
}

record! {
    /// Message 02h.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CookieResponse {
        /// CKY-C, as received.
        pub client_cookie: Cookie,
        /// The server's cookie, CKY-M.
        pub server_cookie: Cookie,
    }
}

record! {
    /// Message 03h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Init {
        /// The client's cookie, CKY-C.
        pub client_cookie: Cookie,
        /// CKY-M; zero in aggressive mode.
        pub server_cookie: Cookie,
        /// Number of the Diffie-Hellman group, GRP.
        pub group: u32,
        /// Name of the user, UID.
        pub user: UserName,
        /// Identity of the client, ID(C).
        pub client: Identity,
        /// ID(M) of the intended server.
        pub server: Identity,
        /// The client's nonce, N_c.
        pub client_nonce: Nonce,
        /// The client's public value, g^x.
        pub public: Element,
        /// Offered algorithms, EHAO.
        pub offers: Offers,
        /// SIG1 over TBS1.
        pub signature: Proof,
    }
}

record! {
    /// Message 04h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct InitResponse {
        /// The client's cookie, CKY-C.
        pub client_cookie: Cookie,
        /// The server's cookie, CKY-M.
        pub server_cookie: Cookie,
        /// GRP, as received.
        pub group: u32,
        /// UID, as received.
        pub user: UserName,
        /// Identity of the server, ID(M).
        pub server: Identity,
        /// ID(C), as received.
        pub client: Identity,
        /// The server's nonce, N_m.
        pub server_nonce: Nonce,
        /// N_c, as received.
        pub client_nonce: Nonce,
        /// The server's public value, g^y.
        pub public: Element,
        /// EHAS: one pair of each class, all of them offered.
        pub choice: Offers,
        /// TS: the server's clock, milliseconds since 1970.
        pub time_ms: u64,
        /// SIG2 over TBS2.
        pub signature: Proof,
    }
}

record! {
    /// Message 05h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Confirm {
        /// The client's cookie, CKY-C.
        pub client_cookie: Cookie,
        /// The server's cookie, CKY-M.
        pub server_cookie: Cookie,
        /// The client's nonce, N_c.
        pub client_nonce: Nonce,
        /// The server's nonce, N_m.
        pub server_nonce: Nonce,
        /// SIG3 over TBS3.
        pub signature: Proof,
    }
}

record! {
    /// Content of the record 06h.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SessionOk {
        /// The session.
        pub session: SessionId,
        /// Absolute expiry, milliseconds since 1970.
        pub expires_ms: u64,
        /// Idle timeout in seconds.
        pub idle_s: u32,
        /// Bytes of records in one direction after which a new connection is needed.
        pub rekey_bytes: u64,
    }
}

record! {
    /// Content of the records 07h and 08h.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PaperLogout {
        /// The session to end; must be the connection's own.
        pub session: SessionId,
    }
}

record! {
    /// Message 09h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Continue {
        /// The session to resume.
        pub session: SessionId,
        /// Fresh random bytes.
        pub nonce: [u8; 16],
        /// MAC under the session's key.
        pub proof: Proof,
    }
}

record! {
    /// Message 0Ah.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ContinueOk {
        /// Fresh random bytes.
        pub nonce: [u8; 16],
        /// The server's clock, milliseconds since 1970.
        pub time_ms: u64,
        /// MAC under the session's key.
        pub proof: Proof,
    }
}

code! {
    /// Why a step was refused, as reported to an unauthenticated peer.
    pub enum PaperErrorCode: u16 as "login error" {
        /// Frame or profile version unknown.
        Version = 1,
        /// Malformed, or not allowed in this state.
        Malformed = 2,
        /// Group unknown or refused.
        Group = 3,
        /// No common algorithm of a class.
        Algorithms = 4,
        /// An unexpected cookie: another address, another passphrase, or no such user. Reported as
        /// an attack.
        Cookie = 5,
        /// A wrong signature, or the message is for another server.
        Refused = 6,
        /// A replayed nonce.
        Replay = 7,
        /// Too many attempts; wait.
        Busy = 8,
        /// The step took too long.
        Timeout = 9,
        /// The session does not exist or has ended.
        SessionExpired = 10,
    }
}

record! {
    /// Message 0Eh. The text is empty for unauthenticated peers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PaperError {
        pub code: PaperErrorCode,
        /// Description for users; only after a login.
        pub text: Text<64>,
        /// Delay before another attempt, milliseconds; 0 if waiting does not help.
        pub retry_ms: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{
        FrameHeader, HEADER_BYTES, MessageType, PROFILE_MODERN, decode_message, encode_message,
    };
    use alloc::vec;
    use proptest::prelude::*;

    fn init() -> Init {
        Init {
            client_cookie: [1; 8],
            server_cookie: [0; 8],
            group: 2,
            user: UserName::new("alice").unwrap(),
            client: Identity::new(*b"client1").unwrap(),
            server: Identity::new(*b"mds1").unwrap(),
            client_nonce: Nonce::new([2; 16]).unwrap(),
            public: Element::new([3; 128]).unwrap(),
            offers: Offers::new([(1, 1), (2, 2), (3, 1)]).unwrap(),
            signature: Proof::new([4; 20]).unwrap(),
        }
    }

    /// The body of an INIT with one variable field replaced by `length` bytes.
    fn init_with(field: usize, length: usize) -> Vec<u8> {
        let init = init();
        let mut out = WireWriter::new();
        out.raw(&init.client_cookie);
        out.raw(&init.server_cookie);
        out.raw(&init.group.to_be_bytes());
        let offers = init.offers.to_bytes();
        let fields: [&[u8]; 7] = [
            init.user.as_str().as_bytes(),
            init.client.as_slice(),
            init.server.as_slice(),
            init.client_nonce.as_slice(),
            init.public.as_slice(),
            &offers,
            init.signature.as_slice(),
        ];
        for (at, bytes) in fields.into_iter().enumerate() {
            if at == field { out.lv16(&vec![b'a'; length]) } else { out.lv16(bytes) }
        }
        out.finish(BODY_MAX).unwrap()
    }

    #[test]
    fn login_fields_enforce_minimum_and_maximum() {
        // Field, least, most.
        let bounds = [(0, 1, 64), (1, 1, 64), (2, 1, 64), (3, 16, 64), (4, 1, 256), (5, 2, 32), (6, 1, 32)];
        for (field, least, most) in bounds {
            for good in [least, most] {
                assert!(decode_message::<Init>(&init_with(field, good)).is_ok(), "{field} {good}");
            }
            let limit = if field == 5 { OFFERS_MAX } else { most };
            let over = decode_message::<Init>(&init_with(field, most + 1));
            assert_eq!(over, Err(WireError::TooLong { limit }), "{field}");
            assert!(decode_message::<Init>(&init_with(field, least - 1)).is_err(), "{field}");
        }
        assert_eq!(
            decode_message::<Init>(&init_with(5, 7)),
            Err(WireError::Malformed("list of algorithms")),
            "half a pair"
        );
    }

    #[test]
    fn longest_login_message_fits_limit() {
        let longest = InitResponse {
            client_cookie: [0; 8],
            server_cookie: [0; 8],
            group: 14,
            user: UserName::new("u".repeat(64)).unwrap(),
            server: Identity::new([1; IDENTITY_MAX]).unwrap(),
            client: Identity::new([2; IDENTITY_MAX]).unwrap(),
            server_nonce: Nonce::new([3; NONCE_MAX]).unwrap(),
            client_nonce: Nonce::new([4; NONCE_MAX]).unwrap(),
            public: Element::new([5; ELEMENT_MAX]).unwrap(),
            choice: Offers::new([(1, 1); OFFERS_MAX]).unwrap(),
            time_ms: 0,
            signature: Proof::new([6; MAC_MAX]).unwrap(),
        };
        let frame = encode_message(PaperType::Response, 0, &longest).unwrap();
        assert!(frame.len() - HEADER_BYTES <= LOGIN_BODY_MAX);
    }

    #[test]
    fn header_of_other_profile_is_refused() {
        let paper = encode_message(PaperType::Init, 0, &init()).unwrap();
        let header = *paper.first_chunk::<HEADER_BYTES>().unwrap();
        assert_eq!(FrameHeader::parse(&header), Err(WireError::Frame("profile")));
        let modern = FrameHeader { kind: MessageType::LoginStart, body_length: 0, sequence: 0 }.encode();
        assert_eq!(modern[5], PROFILE_MODERN);
        assert_eq!(PaperHeader::parse(&modern), Err(WireError::Frame("profile")));
    }

    #[test]
    fn paper_body_over_limit_is_refused() {
        for kind in PaperType::ALL {
            let sequence = u32::from(kind.is_record());
            let mut header = PaperHeader { kind: *kind, body_length: kind.body_max() as u32, sequence };
            assert_eq!(PaperHeader::parse(&header.encode()), Ok(header));
            header.body_length += 1;
            let over = Err(WireError::TooLong { limit: kind.body_max() });
            assert_eq!(PaperHeader::parse(&header.encode()), over);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_headers_never_panic_and_reencode(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = PaperHeader::parse(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn arbitrary_bodies_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            fn one<T: Wire>(body: &[u8]) {
                if let Ok(message) = decode_message::<T>(body) {
                    let mut out = WireWriter::new();
                    message.put(&mut out);
                    assert_eq!(out.finish(BODY_MAX).unwrap(), body);
                }
            }
            one::<CookieRequest>(&body);
            one::<CookieResponse>(&body);
            one::<Init>(&body);
            one::<InitResponse>(&body);
            one::<Confirm>(&body);
            one::<SessionOk>(&body);
            one::<PaperLogout>(&body);
            one::<Continue>(&body);
            one::<ContinueOk>(&body);
            one::<PaperError>(&body);
        }
    }
}
