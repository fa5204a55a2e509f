//! Computes the integrity check values of one credential. Defines the exact input of each MAC.
//!
//! Does: builds the MAC input of requests, responses, data and continuation segments; one function
//! each.
//! Does not: find the parts in a buffer, or decide which value a method needs; [`crate::cover`]
//! handles data under an algorithm that covers digests.
//! Contract: every input except the CDB and the security token begins with its own domain string,
//! and every part of variable length is preceded by its length or covered by a count.
//! Source of truth: docs/design/security.md 3.2; `docs/standards/security.md` lists the choices;
//! vectors in `docs/standards/vectors/`.

use alloc::vec::Vec;

use sealstone_digest::Profile;
use sealstone_osd::{Generation, SecurityMethod};
use zeroize::Zeroize as _;

use crate::algorithm::Algorithm;
use crate::key::CapabilityKey;
use crate::layout::SecurityFields;
use crate::nonce::Nonce;
use crate::provider::Provider;
use crate::sense;
use crate::{TAG_MAX, Tag};

/// Domain string of the response check value.
pub const DOMAIN_RESPONSE: &[u8; 8] = b"OSDRSP01";
/// Domain string of the data-out check value.
pub const DOMAIN_DATA_OUT: &[u8; 8] = b"OSDDOU01";
/// Domain string of the data-in check value.
pub const DOMAIN_DATA_IN: &[u8; 8] = b"OSDDIN01";
/// Domain string of the check value of a CDB continuation segment.
pub const DOMAIN_CONTINUATION: &[u8; 8] = b"OSDCNT01";

/// Labels of HKDF-Expand (RFC 5869) with which algorithm F1h splits a capability key.
pub const LABELS: [(Purpose, &[u8]); 4] = [
    (Purpose::Request, b"sealstone osd req v1"),
    (Purpose::Response, b"sealstone osd rsp v1"),
    (Purpose::DataIn, b"sealstone osd din v1"),
    (Purpose::DataOut, b"sealstone osd dout v1"),
];

/// Purpose of a check value; with algorithm F1h each purpose has its own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// CDB, security token, continuation segment.
    Request,
    /// Status and sense data.
    Response,
    /// Data and attributes to the client.
    DataIn,
    /// Data, attributes and lists from the client.
    DataOut,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        LABELS[self as usize].1
    }
}

const _: () = assert!(
    matches!(LABELS[Purpose::Request as usize].0, Purpose::Request)
        && matches!(LABELS[Purpose::Response as usize].0, Purpose::Response)
        && matches!(LABELS[Purpose::DataIn as usize].0, Purpose::DataIn)
        && matches!(LABELS[Purpose::DataOut as usize].0, Purpose::DataOut)
);

/// Returns `HKDF-Expand(key, label, 32)`: one block, so one MAC.
#[must_use]
pub fn purpose_key<P: Provider>(capability_key: &P::MacKey, purpose: Purpose) -> Tag {
    P::tag(capability_key, &[purpose.label(), &[0x01]])
}

/// The MAC keys of one capability key, with midstates computed; only those that its method needs.
pub struct IcvKeys<P: Provider> {
    algorithm: Algorithm,
    request: P::MacKey,
    response: Option<P::MacKey>,
    data: Option<DataKeys<P>>,
}

struct DataKeys<P: Provider> {
    inward: P::MacKey,
    outward: P::MacKey,
}

impl<P: Provider> IcvKeys<P> {
    /// Prepares the keys: one midstate pair for a single-key algorithm; one, two or four for F1h.
    #[must_use]
    pub fn new(algorithm: Algorithm, key: &CapabilityKey, method: SecurityMethod) -> Self {
        let capability_key = P::mac_key(algorithm.hash(), key.expose());
        if !algorithm.is_split() {
            return Self { algorithm, request: capability_key, response: None, data: None };
        }
        let derive = |purpose| {
            let mut tag = purpose_key::<P>(&capability_key, purpose);
            let key = P::mac_key(algorithm.hash(), tag.as_bytes());
            tag.zeroize();
            key
        };
        Self {
            algorithm,
            request: derive(Purpose::Request),
            response: (method >= SecurityMethod::CmdRsp).then(|| derive(Purpose::Response)),
            data: (method >= SecurityMethod::AllData)
                .then(|| DataKeys { inward: derive(Purpose::DataIn), outward: derive(Purpose::DataOut) }),
        }
    }

    /// Returns the algorithm of the keys.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the digest profile that covers data in check values; `None`: the bytes are covered.
    #[must_use]
    pub const fn digest(&self) -> Option<Profile> {
        self.algorithm.digest()
    }

    /// Only a caller that requests a value that this method does not have gets here; the request
    /// key then yields a value that matches nothing, in its own domain.
    fn key(&self, purpose: Purpose) -> &P::MacKey {
        match purpose {
            Purpose::Request => &self.request,
            Purpose::Response => self.response.as_ref().unwrap_or(&self.request),
            Purpose::DataIn => self.data.as_ref().map_or(&self.request, |data| &data.inward),
            Purpose::DataOut => self.data.as_ref().map_or(&self.request, |data| &data.outward),
        }
    }

    /// Computes the CAPKEY check value: over the security token of the nexus.
    #[must_use]
    pub fn token(&self, token: &SecurityToken) -> Tag {
        P::tag(&self.request, &[&token.0])
    }

    /// Computes the request check value of CMDRSP and ALLDATA: over the CDB with its request ICV
    /// field as zero. `None` if the length is not that of the generation.
    #[must_use]
    pub fn request(&self, generation: Generation, cdb: &[u8]) -> Option<Tag> {
        if cdb.len() != generation.cdb_len() {
            return None;
        }
        let icv = SecurityFields::of(generation).request_icv;
        let zeros = [0; TAG_MAX];
        Some(P::tag(&self.request, &[&cdb[..icv.start], &zeros[..icv.len()], &cdb[icv.end..]]))
    }

    /// Computes the check value of status and sense data; the value in a response ICV descriptor
    /// (07h) counts as zero. For status GOOD pass no sense: its carrier is not covered.
    #[must_use]
    pub fn response(&self, nonce: &Nonce, status: u8, sense: &[u8]) -> Tag {
        let zeros = [0; u8::MAX as usize];
        let (head, masked, tail) = match sense::response_icv_field(sense) {
            Some(field) => (&sense[..field.start], &zeros[..field.len()], &sense[field.end..]),
            None => (sense, &zeros[..0], &[][..]),
        };
        let len = u16::try_from(sense.len()).unwrap_or(u16::MAX).to_be_bytes();
        P::tag(self.key(Purpose::Response), &[DOMAIN_RESPONSE, &nonce.0, &[status], &len, head, masked, tail])
    }

    /// Computes the ALLDATA check value of the Data-Out Buffer: set-attributes list, get-attributes
    /// list and command data.
    #[must_use]
    pub fn data_out(&self, nonce: &Nonce, set: &[u8], get: &[u8], data: &[&[u8]]) -> Tag {
        let counts = DataOutCounts::of(set, get, data).encode();
        self.over(Purpose::DataOut, &[DOMAIN_DATA_OUT, &nonce.0, &counts, set, get], data, &[])
    }

    /// Computes the ALLDATA check value of the Data-In Buffer: command data and retrieved
    /// attributes.
    #[must_use]
    pub fn data_in(&self, nonce: &Nonce, data: &[&[u8]], attributes: &[u8]) -> Tag {
        let counts = DataInCounts { data: total(data), attributes: attributes.len() as u64 }.encode();
        self.over(Purpose::DataIn, &[DOMAIN_DATA_IN, &nonce.0, &counts], data, attributes)
    }

    /// Computes an ALLDATA check value over digests, of the parts from [`crate::cover`].
    pub(crate) fn over_digests(&self, purpose: Purpose, parts: &[&[u8]]) -> Tag {
        P::tag(self.key(purpose), parts)
    }

    /// Computes the CMDRSP and ALLDATA check value of a CDB continuation segment, with its ICV
    /// field (bytes 8 to 39) as zero. The nonce binds it to its command. `None` if the segment is
    /// shorter than its header.
    #[must_use]
    pub fn continuation(&self, nonce: &Nonce, segment: &[u8]) -> Option<Tag> {
        let (head, rest) = segment.split_at_checked(crate::layout::CONTINUATION_ICV.start)?;
        let (_, body) = rest.split_at_checked(crate::layout::CONTINUATION_ICV.len())?;
        let zeros = [0; TAG_MAX];
        Some(P::tag(&self.request, &[DOMAIN_CONTINUATION, &nonce.0, head, &zeros, body]))
    }

    /// Computes the MAC of `head`, the pieces of `data`, `tail`. Does not allocate for up to
    /// [`PIECES_INLINE`] pieces.
    fn over(&self, purpose: Purpose, head: &[&[u8]], data: &[&[u8]], tail: &[u8]) -> Tag {
        let mut parts = [&[][..]; PIECES_INLINE + 6];
        let count = head.len() + data.len() + 1;
        match parts.get_mut(..count) {
            Some(parts) => {
                parts[..head.len()].copy_from_slice(head);
                parts[head.len()..count - 1].copy_from_slice(data);
                parts[count - 1] = tail;
                P::tag(self.key(purpose), parts)
            }
            None => {
                let parts: Vec<&[u8]> = head.iter().chain(data).copied().chain([tail]).collect();
                P::tag(self.key(purpose), &parts)
            }
        }
    }
}

/// Maximum number of data pieces whose check value is computed without allocation.
pub const PIECES_INLINE: usize = 8;

/// The security token of an `I_T` nexus: VPD page B1h, from byte 4; CAPKEY signs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityToken(pub [u8; Self::LEN]);

impl SecurityToken {
    /// Bytes of a token: exactly this, so that it can never be mistaken for a CDB.
    pub const LEN: usize = 32;
}

/// The counts of data-out integrity information, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutCounts {
    /// Command data, without the continuation segment.
    pub data: u64,
    /// Set-attributes list or value.
    pub set: u64,
    /// Get-attributes list.
    pub get: u64,
}

impl DataOutCounts {
    /// Bytes on the wire, before the check value.
    pub const LEN: usize = 24;

    /// Returns the counts of these parts.
    #[must_use]
    pub fn of(set: &[u8], get: &[u8], data: &[&[u8]]) -> Self {
        Self { data: total(data), set: set.len() as u64, get: get.len() as u64 }
    }

    /// Encodes data, set, get.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut wire = [0; Self::LEN];
        for (at, count) in [self.data, self.set, self.get].into_iter().enumerate() {
            wire[8 * at..8 * (at + 1)].copy_from_slice(&count.to_be_bytes());
        }
        wire
    }
}

/// The counts of data-in integrity information, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataInCounts {
    /// Command data.
    pub data: u64,
    /// Retrieved attributes.
    pub attributes: u64,
}

impl DataInCounts {
    /// Bytes on the wire, before the check value.
    pub const LEN: usize = 16;

    /// Encodes data, attributes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut wire = [0; Self::LEN];
        wire[..8].copy_from_slice(&self.data.to_be_bytes());
        wire[8..].copy_from_slice(&self.attributes.to_be_bytes());
        wire
    }

    /// Parses the first 16 bytes; `None` if there are fewer.
    #[must_use]
    pub fn parse(wire: &[u8]) -> Option<Self> {
        let (words, _) = wire.as_chunks::<8>();
        let &[data, attributes, ..] = words else { return None };
        Some(Self { data: u64::from_be_bytes(data), attributes: u64::from_be_bytes(attributes) })
    }
}

pub(crate) fn total(pieces: &[&[u8]]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}
