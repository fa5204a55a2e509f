//! The client's side: signs commands with a credential, verifies replies.
//!
//! Does: nonce, request and continuation check values, integrity information of data-out, offsets
//! for data-in; verifies response and data-in check values of replies.
//! Does not: send, retry ([`crate::clock`] has the rule), or draw random bytes itself.
//! Contract: each signing uses a new nonce; to send a command again, sign it again. The result of
//! [`Signer::verify`] is as authentic as the credential's method makes it; anything else is an
//! error.
//! Source of truth: docs/design/security.md 3.2, 3.4; t10-osd 1.7.

use sealstone_digest::{CoveredDigests, DataDirection, DigestCover, Profile, ReceivedDigests};
use sealstone_osd::cdb::{CdbBytes, EncodeError};
use sealstone_osd::continuation::PROOF_LEN;
use sealstone_osd::{CapabilityBytes, CapabilityError, Cdb, Generation, SecurityMethod, offset};
use sealstone_scsi::{SenseKey, Status};
use thiserror::Error;

use crate::Tag;
use crate::algorithm::{Algorithm, AlgorithmSlots};
use crate::cover::{self, CoveredList, DataLocation, ObjectBounds, gather};
use crate::credential::Credential;
use crate::icv::{DataInCounts, DataOutCounts, IcvKeys, SecurityToken};
use crate::layout::CONTINUATION_ICV;
use crate::nonce::Nonce;
use crate::provider::{Provider, Random};
use crate::sense;

/// Maximum bytes of integrity information of data-out.
pub const INTEGRITY_MAX: usize = DataOutCounts::LEN + Generation::Osd2.icv_len();

/// A credential ready to sign, with its MAC keys prepared. Keep it as long as the credential.
pub struct Signer<P: Provider> {
    capability: CapabilityBytes,
    method: SecurityMethod,
    keys: IcvKeys<P>,
}

/// The parts of the Data-Out Buffer of a command to be signed.
#[derive(Default)]
pub struct SentParts<'a> {
    /// CDB continuation segment with its header; its check value is written here. Empty if there is
    /// none.
    pub continuation: &'a mut [u8],
    /// Command data, in pieces.
    pub data: &'a [&'a [u8]],
    /// Set attributes list, or the value in page format.
    pub set_attributes: &'a [u8],
    /// Get attributes list.
    pub get_attributes: &'a [u8],
}

/// A signed command, and the values for checking its reply.
#[derive(Clone, Copy, Debug)]
pub struct SignedCommand {
    /// The CDB to send.
    pub cdb: CdbBytes,
    /// Integrity information of data-out, and its location.
    pub integrity: Option<IntegrityInfo>,
    /// Maximum bytes of data-in to expect, including integrity information.
    pub data_in_len: u64,
    nonce: Nonce,
    data_max: u64,
    attributes: (u64, u64),
    data_in_icv: Option<u64>,
    origin: DataLocation,
    page: Option<u32>,
}

/// Integrity information to put into the Data-Out Buffer, with zeros before it up to the end of the
/// last part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegrityInfo {
    /// Its offset from the start of the buffer, bytes.
    pub offset: u64,
    block: [u8; INTEGRITY_MAX],
    len: u8,
}

impl IntegrityInfo {
    /// Returns counts and check value.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.block[..usize::from(self.len)]
    }
}

/// Why a command cannot be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SignError {
    /// The credential's capability cannot be parsed.
    #[error("capability: {0}")]
    Capability(CapabilityError),
    /// No usable algorithm in the capability's slot.
    #[error("no usable algorithm in slot {0}")]
    Algorithm(u8),
    /// The credential is for the other generation.
    #[error("the credential is for {0}")]
    Generation(Generation),
    /// CAPKEY needs the nexus's security token.
    #[error("no security token")]
    NoToken,
    /// The parts do not have the lengths in the CDB.
    #[error("the data-out parts do not have the lengths of the CDB")]
    Parts,
    /// No offset field can express the location of the integrity information.
    #[error("no valid offset for integrity information after byte {0}")]
    Place(u64),
    /// The CDB cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Why a reply is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// No check value: the device refused before the credential was proven to it, or the reply is
    /// not from the device. With BUSY and TASK SET FULL a later retry is safe.
    #[error("status {0} without a check value")]
    Unsealed(u8),
    /// Status or sense data were changed.
    #[error("response integrity check value is wrong")]
    ResponseIcv,
    /// Data-in ends before its integrity information.
    #[error("data-in without integrity information")]
    DataInMissing,
    /// Data or attributes were changed.
    #[error("data-in integrity check value is wrong")]
    DataInIcv,
}

/// A reply as delivered by the transport.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedReply<'a> {
    /// Status byte.
    pub status: u8,
    /// Sense data, without a length before it.
    pub sense: &'a [u8],
    /// The Data-In Buffer as far as it was filled.
    pub data_in: &'a [u8],
}

/// The parts of a verified reply. Under CAPKEY and NOSEC they are unprotected; under CMDRSP the
/// data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedReply<'a> {
    /// Command data.
    pub data: &'a [u8],
    /// Retrieved attributes.
    pub attributes: &'a [u8],
}

impl<P: Provider> Signer<P> {
    /// Prepares the keys of a credential for a device with these algorithm slots.
    ///
    /// # Errors
    /// [`SignError::Capability`], [`SignError::Algorithm`].
    pub fn new(credential: &Credential, slots: &AlgorithmSlots) -> Result<Self, SignError> {
        let clear = credential.capability.clear().map_err(SignError::Capability)?;
        let generation = credential.capability.generation();
        let slot = clear.icv_algorithm;
        let algorithm = slots
            .get(slot)
            .filter(|algorithm| algorithm.hash().tag_len() <= generation.icv_len())
            .ok_or(SignError::Algorithm(slot))?;
        Ok(Self {
            capability: credential.capability,
            method: clear.method,
            keys: IcvKeys::new(algorithm, &credential.key, clear.method),
        })
    }

    /// Returns the algorithm of the credential's slot: replies are verified by this one only.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.keys.algorithm()
    }

    /// Returns the credential's method.
    #[must_use]
    pub const fn method(&self) -> SecurityMethod {
        self.method
    }

    /// Signs a command: fills in capability, nonce, offsets and check values. `cdb` has everything
    /// else, including the offsets of its attribute parts; `time_ms` is
    /// [`crate::clock::DeviceClock::nonce_time`]; `token` is needed for CAPKEY only.
    ///
    /// # Errors
    /// See [`SignError`].
    pub fn sign(
        &self,
        cdb: Cdb,
        parts: &mut SentParts<'_>,
        time_ms: u64,
        token: Option<&SecurityToken>,
        random: &mut dyn Random,
    ) -> Result<SignedCommand, SignError> {
        self.sign_extended(cdb, parts, &[], time_ms, token, random)
    }

    /// Like [`Signer::sign`], with proofs for the extension capabilities in the continuation
    /// segment: they are written to the last 32 bytes of it for each, in order.
    ///
    /// # Errors
    /// See [`SignError`].
    pub fn sign_extended(
        &self,
        mut cdb: Cdb,
        parts: &mut SentParts<'_>,
        extensions: &[&Self],
        time_ms: u64,
        token: Option<&SecurityToken>,
        random: &mut dyn Random,
    ) -> Result<SignedCommand, SignError> {
        let generation = self.capability.generation();
        if cdb.generation != generation {
            return Err(SignError::Generation(generation));
        }
        let last = check_parts(&cdb, parts)?;
        cdb.capability = self.capability;
        let nonce = self.nonce(time_ms, random);
        cdb.security.nonce = nonce.0;
        cdb.security.request_icv = [0; 32];
        let place = |end: u64| offset::align_up(generation, end).ok_or(SignError::Place(end));
        let data_max = cdb.command.data_in_len();
        let retrieved = cdb.attributes.retrieved_segment().unwrap_or_default();
        let inward = data_max.max(if retrieved.length > 0 { retrieved.end() } else { 0 });
        let seals_data = self.method >= SecurityMethod::AllData;
        let integrity = if seals_data && last > u64::from(cdb.continuation_length) {
            Some(self.integrity(&cdb, place(last)?, &nonce, parts))
        } else {
            None
        };
        cdb.security.data_out_icv_offset = integrity.map(|integrity| integrity.offset);
        let data_in_icv = if seals_data && inward > 0 { Some(place(inward)?) } else { None };
        cdb.security.data_in_icv_offset = data_in_icv;
        let mut bytes = cdb.encode()?;
        for (number, extension) in extensions.iter().rev().enumerate() {
            let end = parts.continuation.len().checked_sub(number * PROOF_LEN).ok_or(SignError::Parts)?;
            let start = end.checked_sub(PROOF_LEN).ok_or(SignError::Parts)?;
            let field = parts.continuation.get_mut(start..end).ok_or(SignError::Parts)?;
            let proof = match extension.method {
                SecurityMethod::NoSec => continue,
                SecurityMethod::CapKey => Some(extension.keys.token(token.ok_or(SignError::NoToken)?)),
                SecurityMethod::CmdRsp | SecurityMethod::AllData => {
                    extension.keys.request(generation, &bytes)
                }
            };
            if !proof.is_some_and(|proof| proof.place(field)) {
                return Err(SignError::Parts);
            }
        }
        if self.method >= SecurityMethod::CmdRsp {
            self.seal_continuation(&nonce, parts.continuation)?;
        }
        let tag = match self.method {
            SecurityMethod::NoSec => None,
            SecurityMethod::CapKey => Some(self.keys.token(token.ok_or(SignError::NoToken)?)),
            SecurityMethod::CmdRsp | SecurityMethod::AllData => self.keys.request(generation, &bytes),
        };
        if let Some(tag) = tag {
            bytes.set_request_icv(tag.as_bytes());
        }
        let block = (self.data_in_head() + generation.icv_len()) as u64;
        Ok(SignedCommand {
            cdb: bytes,
            integrity,
            data_in_len: data_in_icv.map_or(inward, |at| at.saturating_add(block)),
            nonce,
            data_max,
            attributes: (retrieved.offset, u64::from(retrieved.length)),
            data_in_icv,
            origin: DataLocation::of(&cdb),
            page: cover::whole_page(&cdb, parts.get_attributes),
        })
    }

    /// Returns the bytes of data-in integrity information before its check value.
    fn data_in_head(&self) -> usize {
        DataInCounts::LEN + if self.keys.digest().is_some() { ObjectBounds::LEN } else { 0 }
    }

    /// Returns a nonce; zero where the method has none.
    fn nonce(&self, time_ms: u64, random: &mut dyn Random) -> Nonce {
        if self.method < SecurityMethod::CmdRsp {
            return Nonce::ZERO;
        }
        let mut chance = [0; 6];
        random.fill(&mut chance);
        Nonce::new(time_ms, chance)
    }

    fn integrity(&self, cdb: &Cdb, offset: u64, nonce: &Nonce, parts: &SentParts<'_>) -> IntegrityInfo {
        let (set, get) = (parts.set_attributes, parts.get_attributes);
        let mut block = [0; INTEGRITY_MAX];
        let (counts, icv) = block.split_at_mut(DataOutCounts::LEN);
        counts.copy_from_slice(&DataOutCounts::of(set, get, parts.data).encode());
        let tag = match self.keys.digest() {
            None => self.keys.data_out(nonce, set, get, parts.data),
            Some(profile) => {
                let origin = DataLocation::of(cdb);
                let covered = origin.cover_out(profile, &gather(parts.data));
                let lists = [set, get].map(CoveredList::of);
                cover::tag(
                    &self.keys,
                    DataDirection::Out,
                    nonce,
                    &origin,
                    ObjectBounds::NONE,
                    &covered,
                    lists,
                )
            }
        };
        let width = cdb.generation.icv_len();
        let placed = tag.place(&mut icv[..width]);
        debug_assert!(placed, "an algorithm whose tags do not fit makes no signer");
        IntegrityInfo { offset, block, len: (DataOutCounts::LEN + width) as u8 }
    }

    fn seal_continuation(&self, nonce: &Nonce, segment: &mut [u8]) -> Result<(), SignError> {
        if segment.is_empty() {
            return Ok(());
        }
        let tag = self.keys.continuation(nonce, segment).ok_or(SignError::Parts)?;
        let field = segment.get_mut(CONTINUATION_ICV).ok_or(SignError::Parts)?;
        if tag.place(field) { Ok(()) } else { Err(SignError::Parts) }
    }

    /// Verifies a reply to a command of this signer.
    ///
    /// # Errors
    /// See [`ReplyError`]; then no part of the reply may be trusted.
    pub fn verify<'a>(
        &self,
        signed: &SignedCommand,
        reply: &ReceivedReply<'a>,
    ) -> Result<VerifiedReply<'a>, ReplyError> {
        self.verify_arrived(signed, reply, None)
    }

    /// Returns the digest state to feed with data-in as it arrives, so that verifying the reply has
    /// less to do; `None` if its digests are not needed.
    #[must_use]
    pub fn arriving(&self, signed: &SignedCommand) -> Option<ReceivedDigests> {
        signed.data_in_icv?;
        Some(ReceivedDigests::new(self.keys.digest()?, signed.origin.start?, signed.data_max))
    }

    /// Like [`verify`](Self::verify), with the state from [`arriving`](Self::arriving): it was fed
    /// with exactly the bytes in the reply, and none of them changed since.
    ///
    /// # Errors
    /// As `verify`.
    pub fn verify_arrived<'a>(
        &self,
        signed: &SignedCommand,
        reply: &ReceivedReply<'a>,
        arrived: Option<&ReceivedDigests>,
    ) -> Result<VerifiedReply<'a>, ReplyError> {
        if self.method >= SecurityMethod::CmdRsp {
            self.verify_response(signed, reply)?;
        }
        let (at, allocation) = signed.attributes;
        let Some(place) = signed.data_in_icv else {
            return Ok(VerifiedReply {
                data: clip(reply.data_in, 0, signed.data_max),
                attributes: clip(reply.data_in, at, allocation),
            });
        };
        if !carries_data(reply) {
            return Ok(VerifiedReply { data: &[], attributes: &[] });
        }
        let (width, head) = (self.capability.generation().icv_len(), self.data_in_head());
        let block = exactly(reply.data_in, place, (head + width) as u64).ok_or(ReplyError::DataInMissing)?;
        let counts = DataInCounts::parse(block).ok_or(ReplyError::DataInMissing)?;
        if counts.data > signed.data_max || counts.attributes > allocation {
            return Err(ReplyError::DataInIcv);
        }
        let data = exactly(reply.data_in, 0, counts.data).ok_or(ReplyError::DataInIcv)?;
        let attributes = exactly(reply.data_in, at, counts.attributes).ok_or(ReplyError::DataInIcv)?;
        let tag = match self.keys.digest() {
            None => self.keys.data_in(&signed.nonce, &[data], attributes),
            Some(profile) => self
                .over_digests(profile, signed, &block[DataInCounts::LEN..head], (data, arrived), attributes)
                .ok_or(ReplyError::DataInIcv)?,
        };
        if !tag.matches(&block[head..]) {
            return Err(ReplyError::DataInIcv);
        }
        Ok(VerifiedReply { data, attributes })
    }

    /// Computes the expected check value of data-in; `None` if the reply's information about the
    /// object is impossible.
    fn over_digests(
        &self,
        profile: Profile,
        signed: &SignedCommand,
        place: &[u8],
        (data, arrived): (&[u8], Option<&ReceivedDigests>),
        attributes: &[u8],
    ) -> Option<Tag> {
        let place = ObjectBounds::parse(place)?;
        let (origin, moved) = (&signed.origin, data.len() as u64);
        let start = origin.start.unwrap_or(0);
        let end = start.checked_add(moved)?;
        // Fewer bytes than requested must be all up to the end of the object.
        let to_the_end = origin.start.is_none() || moved < signed.data_max;
        if end > place.object_length || to_the_end && end != place.object_length {
            return None;
        }
        // More of a unit behind the last byte of the data may have arrived: the other parts of the
        // reply.
        let full = end / profile.unit_bytes();
        let known = |unit| arrived.filter(|_| unit < full)?.value(unit);
        let covered =
            CoveredDigests::with(DigestCover::new(profile, start, moved, place.object_length), data, known);
        let page = signed
            .page
            .and_then(|page| cover::page_value(profile, self.capability.generation(), page, attributes));
        let lists = [CoveredList::default(), CoveredList { bytes: attributes, page }];
        Some(cover::tag(&self.keys, DataDirection::In, &signed.nonce, origin, place, &covered, lists))
    }

    fn verify_response(&self, signed: &SignedCommand, reply: &ReceivedReply<'_>) -> Result<(), ReplyError> {
        let width = self.capability.generation().icv_len();
        let unsealed = ReplyError::Unsealed(reply.status);
        let good = reply.status == Status::Good.byte();
        let (field, covered) = if good {
            (sense::good_carrier(reply.sense).ok_or(unsealed)?, &[][..])
        } else {
            let field = sense::response_icv_field(reply.sense).ok_or(unsealed)?;
            (&reply.sense[field], reply.sense)
        };
        let tag = self.keys.response(&signed.nonce, reply.status, covered);
        if field.len() == width && tag.matches(field) { Ok(()) } else { Err(ReplyError::ResponseIcv) }
    }
}

/// Whether the reply carries data: GOOD and recovered errors do; data of other refusals are
/// ignored.
fn carries_data(reply: &ReceivedReply<'_>) -> bool {
    let recovered = reply.status == Status::CheckCondition.byte()
        && reply.sense.get(1).is_some_and(|key| key & 0x0F == SenseKey::RecoveredError.nibble());
    reply.status == Status::Good.byte() || recovered
}

/// Checks that the parts have the lengths in the CDB. Returns the end of the last one.
fn check_parts(cdb: &Cdb, parts: &SentParts<'_>) -> Result<u64, SignError> {
    let continuation = u64::from(cdb.continuation_length);
    let data: u64 = parts.data.iter().map(|piece| piece.len() as u64).sum();
    let set = cdb.attributes.set_segment().unwrap_or_default();
    let get = cdb.attributes.get_list_segment().unwrap_or_default();
    let fits = parts.continuation.len() as u64 == continuation
        && data == cdb.command.data_out_len()
        && parts.set_attributes.len() as u64 == u64::from(set.length)
        && parts.get_attributes.len() as u64 == u64::from(get.length);
    if !fits {
        return Err(SignError::Parts);
    }
    let ends = [set, get].map(|part| if part.length > 0 { part.end() } else { 0 });
    Ok((continuation + data).max(ends[0]).max(ends[1]))
}

/// Returns exactly `length` bytes at `at`.
fn exactly(buffer: &[u8], at: u64, length: u64) -> Option<&[u8]> {
    if length == 0 {
        return Some(&[]);
    }
    buffer.get(usize::try_from(at).ok()?..usize::try_from(at.checked_add(length)?).ok()?)
}

/// Returns up to `length` bytes at `at`, as many as exist.
fn clip(buffer: &[u8], at: u64, length: u64) -> &[u8] {
    let start = usize::try_from(at).unwrap_or(usize::MAX).min(buffer.len());
    let rest = &buffer[start..];
    &rest[..usize::try_from(length).unwrap_or(usize::MAX).min(rest.len())]
}
