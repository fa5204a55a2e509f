//! LDAP messages: encodes bind, StartTLS, search and unbind, decodes responses and search results.
//!
//! Truth: RFC 4511 §4.

use alloc::string::String;
use alloc::vec::Vec;

use zeroize::Zeroizing;

use crate::ber::{
    BOOLEAN, BerElements, BerWriter, ENUMERATED, INTEGER, LdapError, MESSAGE_BYTES_MAX, OCTETS, SEQUENCE,
    SET, message_length_up_to,
};
use crate::filter::{Attribute, Filter};

/// Maximum number of values of an entry, over all its attributes.
pub const VALUES_MAX: usize = 4096;
/// Maximum characters that are kept of a diagnostic message.
const DIAGNOSTIC_CHARS_MAX: usize = 200;
/// LDAP version.
const VERSION: u32 = 3;
/// Extended operation that starts TLS (RFC 4511 §4.14).
const START_TLS_OID: &[u8] = b"1.3.6.1.4.1.1466.20037";
/// Message id of unsolicited messages.
const UNSOLICITED: u32 = 0;

const BIND: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const UNBIND: u8 = 0x42;
const SEARCH: u8 = 0x63;
const ENTRY: u8 = 0x64;
const DONE: u8 = 0x65;
const REFERENCE: u8 = 0x73;
const MODIFIED: u8 = 0x67;
const ADDED: u8 = 0x69;
const DELETED: u8 = 0x6B;
const RENAMED: u8 = 0x6D;
const EXTENDED: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;
const INTERMEDIATE: u8 = 0x79;
/// Tag of the controls of a message.
const CONTROLS: u8 = 0xA0;

pub(crate) fn message(id: u32, operation: impl FnOnce(&mut BerWriter)) -> Zeroizing<Vec<u8>> {
    let mut out = BerWriter::default();
    out.put_all(SEQUENCE, |out| {
        out.number(INTEGER, id);
        operation(out);
    });
    out.finish()
}

/// Encodes a simple bind; anonymous if both are empty.
#[must_use]
pub fn bind_request(id: u32, name: &str, password: &str) -> Zeroizing<Vec<u8>> {
    message(id, |out| {
        out.put_all(BIND, |out| {
            out.number(INTEGER, VERSION);
            out.put(OCTETS, name.as_bytes());
            out.put(0x80, password.as_bytes());
        });
    })
}

/// Encodes a request to start TLS.
#[must_use]
pub fn start_tls_request(id: u32) -> Zeroizing<Vec<u8>> {
    message(id, |out| out.put_all(EXTENDED, |out| out.put(0x80, START_TLS_OID)))
}

/// Encodes an unbind.
#[must_use]
pub fn unbind_request(id: u32) -> Zeroizing<Vec<u8>> {
    message(id, |out| out.put(UNBIND, &[]))
}

/// Entries that a search covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchScope {
    /// The base entry.
    Base = 0,
    /// Direct children of the base.
    Below = 1,
    /// The base and its whole subtree.
    Subtree = 2,
}

/// Parameters of a search; aliases are not dereferenced.
#[derive(Clone, Debug)]
pub struct Search<'a> {
    /// DN of the base entry.
    pub base: &'a str,
    /// Entries relative to the base.
    pub scope: SearchScope,
    /// Condition on the entries.
    pub filter: &'a Filter,
    /// Attributes to return.
    pub attributes: &'a [&'a Attribute],
    /// Maximum number of entries; the server reports if there are more. 0 is no limit.
    pub entries_max: u32,
    /// Time limit of the server in seconds; 0 is no limit.
    pub time_s_max: u32,
}

/// Encodes a search.
#[must_use]
pub fn search_request(id: u32, search: &Search<'_>) -> Zeroizing<Vec<u8>> {
    const NEVER_DEREF_ALIASES: u32 = 0;
    /// Requests no attributes (RFC 4511 §4.5.1.8); an empty list would request all.
    const NONE: &[u8] = b"1.1";
    message(id, |out| {
        out.put_all(SEARCH, |out| {
            out.put(OCTETS, search.base.as_bytes());
            out.number(ENUMERATED, search.scope as u32);
            out.number(ENUMERATED, NEVER_DEREF_ALIASES);
            out.number(INTEGER, search.entries_max);
            out.number(INTEGER, search.time_s_max);
            out.put(BOOLEAN, &[0]);
            search.filter.put(out);
            out.put_all(SEQUENCE, |out| {
                search.attributes.iter().for_each(|one| out.put(OCTETS, one.as_str().as_bytes()));
                if search.attributes.is_empty() {
                    out.put(OCTETS, NONE);
                }
            });
        });
    })
}

/// Result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapResult {
    /// Result code (RFC 4511 §4.1.9).
    pub code: u32,
    /// Diagnostic message for logs: one line, truncated.
    pub diagnostic: String,
}

impl LdapResult {
    /// The operation succeeded.
    pub const SUCCESS: u32 = 0;
    /// The server's time limit was exceeded.
    pub const TIME_LIMIT_EXCEEDED: u32 = 3;
    /// There are more entries than requested.
    pub const SIZE_LIMIT_EXCEEDED: u32 = 4;
    /// The entry is at another server.
    pub const REFERRAL: u32 = 10;
    /// An administrative limit was exceeded.
    pub const ADMIN_LIMIT_EXCEEDED: u32 = 11;
    /// The server does not know an attribute.
    pub const UNDEFINED_ATTRIBUTE: u32 = 17;
    /// A value does not fit the syntax of its attribute.
    pub const INVALID_SYNTAX: u32 = 21;
    /// The entry does not exist.
    pub const NO_SUCH_OBJECT: u32 = 32;
    /// The name or password is wrong.
    pub const INVALID_CREDENTIALS: u32 = 49;
    /// Access is denied.
    pub const INSUFFICIENT_ACCESS: u32 = 50;
    /// The server is busy.
    pub const BUSY: u32 = 51;
    /// The server is shutting down or starting.
    pub const UNAVAILABLE: u32 = 52;
    /// The server refuses.
    pub const UNWILLING: u32 = 53;
    /// The attributes do not match the object class.
    pub const CLASS_VIOLATION: u32 = 65;
    /// The entry has children.
    pub const NOT_A_LEAF: u32 = 66;
    /// The entry exists already.
    pub const EXISTS: u32 = 68;
    /// An error without a specific code, such as a full disk or database.
    pub const OTHER: u32 = 80;
}

impl core::fmt::Display for LdapResult {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "result {}", self.code)?;
        match self.code {
            Self::TIME_LIMIT_EXCEEDED => f.write_str(" (time limit exceeded)")?,
            Self::SIZE_LIMIT_EXCEEDED => f.write_str(" (size limit exceeded)")?,
            Self::REFERRAL => f.write_str(" (referral)")?,
            Self::ADMIN_LIMIT_EXCEEDED => f.write_str(" (administrative limit exceeded)")?,
            Self::UNDEFINED_ATTRIBUTE => f.write_str(" (undefined attribute type)")?,
            Self::INVALID_SYNTAX => f.write_str(" (invalid attribute syntax)")?,
            Self::NO_SUCH_OBJECT => f.write_str(" (no such object)")?,
            Self::INVALID_CREDENTIALS => f.write_str(" (invalid credentials)")?,
            Self::INSUFFICIENT_ACCESS => f.write_str(" (insufficient access)")?,
            Self::BUSY => f.write_str(" (busy)")?,
            Self::UNAVAILABLE => f.write_str(" (unavailable)")?,
            Self::UNWILLING => f.write_str(" (unwilling to perform)")?,
            Self::CLASS_VIOLATION => f.write_str(" (object class violation)")?,
            Self::NOT_A_LEAF => f.write_str(" (entries below)")?,
            Self::EXISTS => f.write_str(" (entry already exists)")?,
            Self::OTHER => f.write_str(" (other)")?,
            _ => {}
        }
        if self.diagnostic.is_empty() { Ok(()) } else { write!(f, ": {}", self.diagnostic) }
    }
}

/// An entry of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchEntry {
    /// DN, as the directory writes it.
    pub dn: Vec<u8>,
    attributes: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
}

impl SearchEntry {
    /// Returns the values of an attribute; none if it is missing or not readable.
    pub fn values<'a>(&'a self, attribute: &'a Attribute) -> impl Iterator<Item = &'a [u8]> {
        let name = attribute.as_str().as_bytes();
        let found = self.attributes.iter().filter(move |(found, _)| found.eq_ignore_ascii_case(name));
        found.flat_map(|(_, values)| values.iter().map(Vec::as_slice))
    }
}

/// Content of a message from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageBody {
    /// Response to a bind.
    Bound(LdapResult),
    /// Entry found by a search.
    SearchEntry(SearchEntry),
    /// Referral to another server; not decoded, because it is not followed.
    Reference,
    /// End of a search.
    Done(LdapResult),
    /// Response to a change.
    Changed(LdapResult),
    /// Response to an extended operation.
    Extended(LdapResult),
    /// Intermediate response, which no request here expects.
    Intermediate,
    /// Notice of disconnection (RFC 4511 §4.4.1).
    Disconnection,
}

/// A message from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Id of the request that it answers.
    pub id: u32,
    /// Content of the message.
    pub body: MessageBody,
}

impl Message {
    /// Decodes exactly one message.
    ///
    /// # Errors
    /// [`LdapError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, LdapError> {
        Self::parse_up_to(bytes, MESSAGE_BYTES_MAX)
    }

    /// Does the same as [`Message::parse`] with another maximum length.
    ///
    /// # Errors
    /// [`LdapError`].
    pub fn parse_up_to(bytes: &[u8], bytes_max: usize) -> Result<Self, LdapError> {
        match message_length_up_to(bytes, bytes_max)? {
            Some(length) if length == bytes.len() => {}
            Some(length) if length < bytes.len() => return Err(LdapError::Tail),
            _ => return Err(LdapError::CutOff),
        }
        let mut fields = BerElements::new(BerElements::new(bytes).expect(SEQUENCE, "message")?);
        let id = fields.number(INTEGER, "number of a message")?;
        let (operation, content) = fields.next()?;
        if id == UNSOLICITED {
            // The rest is ignored: some servers encode parts of this notice incorrectly.
            return match operation {
                EXTENDED_RESPONSE => Ok(Self { id, body: MessageBody::Disconnection }),
                _ => Err(LdapError::Unexpected("request that this answers")),
            };
        }
        let body = match operation {
            BIND_RESPONSE => MessageBody::Bound(outcome(content)?),
            ENTRY => MessageBody::SearchEntry(entry(content)?),
            DONE => MessageBody::Done(outcome(content)?),
            REFERENCE => MessageBody::Reference,
            MODIFIED | ADDED | DELETED | RENAMED => MessageBody::Changed(outcome(content)?),
            EXTENDED_RESPONSE => MessageBody::Extended(outcome(content)?),
            INTERMEDIATE => MessageBody::Intermediate,
            _ => return Err(LdapError::Unexpected("answer")),
        };
        if !fields.is_empty() {
            fields.expect(CONTROLS, "controls")?;
        }
        if fields.is_empty() { Ok(Self { id, body }) } else { Err(LdapError::Tail) }
    }
}

fn outcome(content: &[u8]) -> Result<LdapResult, LdapError> {
    let mut fields = BerElements::new(content);
    let code = fields.number(ENUMERATED, "result")?;
    fields.expect(OCTETS, "matched name")?;
    let diagnostic_text = String::from_utf8_lossy(fields.expect(OCTETS, "diagnostic message")?);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let diagnostic = diagnostic_text.chars().take(DIAGNOSTIC_CHARS_MAX).map(plain).collect::<String>();
    // Referrals and additional fields of some operations.
    while !fields.is_empty() {
        fields.next()?;
    }
    Ok(LdapResult { code, diagnostic: String::from(diagnostic.trim()) })
}

fn entry(content: &[u8]) -> Result<SearchEntry, LdapError> {
    let mut fields = BerElements::new(content);
    let dn = fields.expect(OCTETS, "name of an entry")?.to_vec();
    let mut list = BerElements::new(fields.expect(SEQUENCE, "attributes")?);
    if !fields.is_empty() {
        return Err(LdapError::Tail);
    }
    let (mut attributes, mut count) = (Vec::new(), 0);
    while !list.is_empty() {
        let mut one = BerElements::new(list.expect(SEQUENCE, "attribute")?);
        let name = one.expect(OCTETS, "name of an attribute")?.to_vec();
        let mut set = BerElements::new(one.expect(SET, "values")?);
        if !one.is_empty() {
            return Err(LdapError::Tail);
        }
        let mut values = Vec::new();
        // Attributes without values count as well, so that a list of names is limited too.
        count += 1;
        while !set.is_empty() {
            count += 1;
            if count > VALUES_MAX {
                return Err(LdapError::TooMany);
            }
            values.push(set.expect(OCTETS, "value")?.to_vec());
        }
        if count > VALUES_MAX {
            return Err(LdapError::TooMany);
        }
        attributes.push((name, values));
    }
    Ok(SearchEntry { dn, attributes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec;
    use proptest::prelude::*;

    fn response(id: u32, tag: u8, content: impl FnOnce(&mut BerWriter)) -> Vec<u8> {
        message(id, |out| out.put_all(tag, content)).to_vec()
    }

    fn result(code: u32, diagnostic_text: &str) -> impl FnOnce(&mut BerWriter) {
        move |out| {
            out.number(ENUMERATED, code);
            out.put(OCTETS, b"");
            out.put(OCTETS, diagnostic_text.as_bytes());
        }
    }

    fn an_entry(values: &[&[u8]]) -> Vec<u8> {
        response(2, ENTRY, |out| {
            out.put(OCTETS, b"uid=erika,dc=example");
            out.put_all(SEQUENCE, |out| {
                out.put_all(SEQUENCE, |out| {
                    out.put(OCTETS, b"UID");
                    out.put_all(SET, |out| values.iter().for_each(|value| out.put(OCTETS, value)));
                });
            });
        })
    }

    #[test]
    fn requests_encode_as_in_rfc_4511() {
        assert_eq!(
            &**bind_request(1, "cn=a", "pw"),
            b"\x30\x12\x02\x01\x01\x60\x0D\x02\x01\x03\x04\x04cn=a\x80\x02pw"
        );
        assert_eq!(&**unbind_request(3), b"\x30\x05\x02\x01\x03\x42\x00");
        assert_eq!(&**start_tls_request(1), b"\x30\x1D\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037");
        let filter = Filter::parse("(uid=erika)").unwrap();
        let uid = Attribute::new("uid").unwrap();
        let scope = SearchScope::Subtree;
        let attributes = &[&uid][..];
        let mut search =
            Search { base: "dc=x", scope, filter: &filter, attributes, entries_max: 2, time_s_max: 5 };
        assert_eq!(
            &**search_request(2, &search),
            b"\x30\x2F\x02\x01\x02\x63\x2A\x04\x04dc=x\x0A\x01\x02\x0A\x01\x00\x02\x01\x02\x02\x01\x05\x01\x01\x00\
              \xA3\x0C\x04\x03uid\x04\x05erika\x30\x05\x04\x03uid"
        );
        search.attributes = &[];
        assert!(
            search_request(2, &search).ends_with(b"\x30\x05\x04\x031.1"),
            "no attribute, not all of them"
        );
    }

    #[test]
    fn responses_parse() {
        let parsed = |bytes: &[u8]| Message::parse(bytes).unwrap().body;
        let outcome =
            |code, diagnostic_text: &str| LdapResult { code, diagnostic: diagnostic_text.to_string() };
        assert_eq!(parsed(&response(1, BIND_RESPONSE, result(49, ""))), MessageBody::Bound(outcome(49, "")));
        assert_eq!(
            parsed(&response(1, DONE, result(4, "too\nmany "))),
            MessageBody::Done(outcome(4, "too many"))
        );
        assert_eq!(
            parsed(&response(1, EXTENDED_RESPONSE, result(0, ""))),
            MessageBody::Extended(outcome(0, ""))
        );
        for tag in [MODIFIED, ADDED, DELETED, RENAMED] {
            assert_eq!(parsed(&response(1, tag, result(68, ""))), MessageBody::Changed(outcome(68, "")));
        }
        assert_eq!(
            parsed(&response(1, REFERENCE, |out| out.put(OCTETS, b"ldap://evil"))),
            MessageBody::Reference
        );
        assert_eq!(parsed(&response(0, EXTENDED_RESPONSE, result(52, ""))), MessageBody::Disconnection);
        let MessageBody::SearchEntry(entry) = parsed(&an_entry(&[b"erika", b"second"])) else {
            panic!("an entry")
        };
        assert_eq!(entry.dn, b"uid=erika,dc=example");
        let uid = Attribute::new("uid").unwrap();
        assert_eq!(entry.values(&uid).collect::<Vec<_>>(), [&b"erika"[..], b"second"]);
        assert_eq!(entry.values(&Attribute::new("cn").unwrap()).count(), 0);
        // A referral in a result, and controls, are skipped.
        let with_more = response(1, DONE, |out| {
            result(10, "elsewhere")(out);
            out.put_all(0xA3, |out| out.put(OCTETS, b"ldap://evil"));
        });
        assert_eq!(parsed(&with_more), MessageBody::Done(outcome(10, "elsewhere")));
        let controls = message(1, |out| {
            out.put_all(DONE, result(0, ""));
            out.put(CONTROLS, &[]);
        });
        assert_eq!(parsed(&controls), MessageBody::Done(outcome(0, "")));
    }

    #[test]
    fn invalid_responses_fail() {
        let fine = response(1, DONE, result(0, ""));
        for length in 0..fine.len() {
            assert_eq!(Message::parse(&fine[..length]), Err(LdapError::CutOff), "{length}");
        }
        assert!(Message::parse_up_to(&fine, fine.len()).is_ok());
        let (length, bytes_max) = (fine.len(), fine.len() - 1);
        assert_eq!(Message::parse_up_to(&fine, bytes_max), Err(LdapError::TooLong { length, bytes_max }));
        assert_eq!(Message::parse(&[&fine[..], &[0]].concat()), Err(LdapError::Tail));
        assert_eq!(Message::parse(b"HTTP/1.1"), Err(LdapError::Unexpected("message")));
        // A request instead of a response.
        assert_eq!(Message::parse(&bind_request(1, "", "")), Err(LdapError::Unexpected("answer")));
        assert!(Message::parse(&response(0, DONE, result(0, ""))).is_err(), "the answer to nothing");
        let tail = message(1, |out| {
            out.put_all(DONE, result(0, ""));
            out.put(CONTROLS, &[]);
            out.put(OCTETS, b"more");
        });
        assert_eq!(Message::parse(&tail), Err(LdapError::Tail));
    }

    #[test]
    fn entry_value_limit_is_exact() {
        let of = |count: usize| Message::parse(&an_entry(&vec![&b"v"[..]; count]));
        assert!(of(VALUES_MAX - 1).is_ok());
        assert_eq!(of(VALUES_MAX), Err(LdapError::TooMany));
        let names = response(2, ENTRY, |out| {
            out.put(OCTETS, b"");
            out.put_all(SEQUENCE, |out| {
                for _ in 0..=VALUES_MAX {
                    out.put_all(SEQUENCE, |out| {
                        out.put(OCTETS, b"a");
                        out.put(SET, &[]);
                    });
                }
            });
        });
        assert_eq!(Message::parse(&names), Err(LdapError::TooMany));
    }

    #[test]
    fn diagnostic_message_is_one_limited_line() {
        let MessageBody::Done(outcome) =
            Message::parse(&response(1, DONE, result(1, &"ä\r".repeat(500)))).unwrap().body
        else {
            panic!("an end")
        };
        assert_eq!(outcome.diagnostic.chars().count(), DIAGNOSTIC_CHARS_MAX - 1, "a blank at the end is off");
        assert!(!outcome.diagnostic.contains('\r'));
        assert!(format!("{outcome}").starts_with("result 1: ä"));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::parse(&bytes);
            let mut framed = vec![SEQUENCE, 0x81, bytes.len() as u8];
            framed.extend(&bytes);
            let _ = Message::parse(&framed);
        }

        #[test]
        fn changed_byte_parses_or_fails(at in 0usize..60, value in any::<u8>()) {
            let mut bytes = an_entry(&[b"erika"]);
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = Message::parse(&bytes);
        }
    }
}
