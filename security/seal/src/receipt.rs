//! Receipts of functions: what ran on which inputs, authenticated by the device.
//!
//! Does: encode, authenticate, parse and verify a receipt.
//! Does not: run functions or store receipts.
//! Contract: the MAC covers every byte of the receipt. Only the device and its manager have the
//! key, so a receipt convinces the manager, and users whom it answers; it is no signature for
//! others.
//! Source of truth: docs/adr/0066-receipts-of-functions.md.
//!
//! Layout (big-endian): offset 0 format (1); 1 engine; 2 exit reason; 3 flags (bit 0 secret
//! arguments, bit 1 result in an object); 4 error code; 8 OSD SYSTEM ID (20 bytes), 4 reserved; 32
//! key identity (16); 48 job id (16); 64 function partition, object; 80 code digest; 112 digest of
//! method and arguments; 144 result digest; 176 result length; 184 result partition, object; 200
//! API major, minor; 204 number of inputs, 2 reserved; 208 AUDIT (20 bytes), 4 reserved; 232 start;
//! 240 end; 248 limits (6); 296 bytes read, bytes written, CPU time; 320 inputs of 72 bytes; MAC
//! (32).

use alloc::vec::Vec;

use sealstone_osd::ObjectId;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::algorithm::Hash;
use crate::hierarchy::{KeyHierarchy, KeyIdentity, KeySelector, SystemId};
use crate::provider::Provider;
use crate::tag::Tag;

/// Label of the key that authenticates receipts.
const LABEL_RECEIPT: &[u8] = b"sealstone receipt key v1";
/// The only format.
const FORMAT: u8 = 1;
/// Bytes before the inputs.
const HEADER_LEN: usize = 320;
/// Bytes of one input.
const INPUT_LEN: usize = 72;
/// Bytes of the MAC.
const MAC_LEN: usize = 32;
/// Maximum number of inputs.
pub const RECEIPT_INPUTS_MAX: usize = 64;
/// Maximum bytes of a receipt.
pub const RECEIPT_LEN_MAX: usize = HEADER_LEN + RECEIPT_INPUTS_MAX * INPUT_LEN + MAC_LEN;

const SECRET_ARGUMENTS: u8 = 0x01;
const RESULT_IN_OBJECT: u8 = 0x02;
const HAS_DIGEST: u8 = 0x01;
const IS_UNCHANGED: u8 = 0x02;

/// An object that a function could access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptInput {
    /// The object.
    pub object: ObjectId,
    /// Rights of the function: byte 49 of the permissions bit mask.
    pub rights: u8,
    /// Type of the object, as in capabilities.
    pub kind: u8,
    /// Length at the start, in bytes.
    pub length: u64,
    /// Time of the last change of the data before the start, in milliseconds since 1970; 0 if
    /// unknown.
    pub version: u64,
    /// Whether length and version were the same at the end.
    pub unchanged: bool,
    /// BLAKE3-256 of the bytes that the function read, in the order of its reads.
    pub digest: Option<[u8; 32]>,
}

/// Limits of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiptLimits {
    /// Wall time in milliseconds.
    pub wall_ms: u64,
    /// CPU time in milliseconds.
    pub cpu_ms: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Output in bytes.
    pub output: u64,
    /// Calls to the device.
    pub calls: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// Statement of a device about one run of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionReceipt {
    /// Engine type.
    pub engine: u8,
    /// Exit reason.
    pub exit: u8,
    /// Error code of the function, or the signal of a trap.
    pub error: i32,
    /// Whether the arguments were secret; then their digest covers the method only.
    pub secret_arguments: bool,
    /// OSD SYSTEM ID of the device.
    pub system_id: SystemId,
    /// Job id.
    pub job: [u8; 16],
    /// The function object.
    pub function: ObjectId,
    /// BLAKE3-256 of the code.
    pub code_digest: [u8; 32],
    /// BLAKE3-256 of the length of the method (4 bytes), the method, and the arguments.
    pub arguments_digest: [u8; 32],
    /// BLAKE3-256 of the result.
    pub result_digest: [u8; 32],
    /// Bytes of the result.
    pub result_length: u64,
    /// The result object, if the result was stored in one.
    pub result_object: Option<ObjectId>,
    /// API version, major and minor.
    pub api: (u16, u16),
    /// AUDIT field of the capability that started the run.
    pub audit: [u8; 20],
    /// Start by the device's clock, in milliseconds since 1970.
    pub started_ms: u64,
    /// End by the device's clock, in milliseconds since 1970.
    pub ended_ms: u64,
    /// Limits of the run.
    pub limits: ReceiptLimits,
    /// Bytes that the function read from objects.
    pub bytes_read: u64,
    /// Bytes that the function wrote, its result included.
    pub bytes_written: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// The objects that the function could access, in the order of the request.
    pub inputs: Vec<ReceiptInput>,
}

/// Why bytes are not a receipt of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReceiptRefusal {
    /// Not the layout of a receipt.
    #[error("these bytes are not a receipt")]
    Malformed,
    /// The receipt names another device.
    #[error("the receipt is of another device")]
    AnotherDevice,
    /// The device has no root key now, or another one than that of the receipt.
    #[error("the root key of the receipt was replaced, so it cannot be verified any more")]
    KeyReplaced,
    /// The MAC does not match: the receipt was changed or forged.
    #[error("the receipt was changed after the device issued it")]
    Forged,
}

/// The key of the receipts of one device.
pub struct ReceiptKey<P: Provider> {
    mac: P::MacKey,
    identity: KeyIdentity,
    system_id: SystemId,
}

impl<P: Provider> ReceiptKey<P> {
    /// Returns the OSD SYSTEM ID of the device.
    #[must_use]
    pub const fn system_id(&self) -> &SystemId {
        &self.system_id
    }

    /// Returns the receipt as bytes with a MAC; `None` with more than [`RECEIPT_INPUTS_MAX`]
    /// inputs. The system id is that of this key, whatever the receipt has.
    #[must_use]
    pub fn seal(&self, receipt: &FunctionReceipt) -> Option<Vec<u8>> {
        let mut bytes = receipt.encode(&self.system_id, self.identity)?;
        let tag = P::tag(&self.mac, &[&bytes]);
        bytes.extend_from_slice(tag.as_bytes());
        Some(bytes)
    }

    /// Parses a receipt and checks its MAC.
    ///
    /// # Errors
    /// See [`ReceiptRefusal`].
    pub fn verify(&self, bytes: &[u8]) -> Result<FunctionReceipt, ReceiptRefusal> {
        let (body, mac) = bytes.split_last_chunk::<MAC_LEN>().ok_or(ReceiptRefusal::Malformed)?;
        let (receipt, identity) = FunctionReceipt::parse(body).ok_or(ReceiptRefusal::Malformed)?;
        if receipt.system_id != self.system_id {
            return Err(ReceiptRefusal::AnotherDevice);
        }
        if identity != *self.identity.as_bytes() {
            return Err(ReceiptRefusal::KeyReplaced);
        }
        let expected: Tag = P::tag(&self.mac, &[body]);
        if expected.matches(mac) { Ok(receipt) } else { Err(ReceiptRefusal::Forged) }
    }
}

impl<P: Provider> KeyHierarchy<P> {
    /// Returns the key of receipts. It is derived from the root authentication key under a label of
    /// its own, so device and manager agree on it. `None` while there is no root key.
    #[must_use]
    pub fn receipt_key(&self) -> Option<ReceiptKey<P>> {
        let root = self.signing_key(KeySelector::Root)?;
        let key = Zeroizing::new(root.derive(&[LABEL_RECEIPT, self.system_id()]));
        let mac = P::mac_key(Hash::Sha256, &*key);
        Some(ReceiptKey { mac, identity: root.identity(), system_id: *self.system_id() })
    }

    /// Parses and verifies a receipt of this device.
    ///
    /// # Errors
    /// See [`ReceiptRefusal`].
    pub fn verify_receipt(&self, bytes: &[u8]) -> Result<FunctionReceipt, ReceiptRefusal> {
        self.receipt_key().ok_or(ReceiptRefusal::KeyReplaced)?.verify(bytes)
    }
}

impl FunctionReceipt {
    /// Parses a receipt without verifying it, to show it or to find its device.
    #[must_use]
    pub fn parse_unverified(bytes: &[u8]) -> Option<Self> {
        let (body, _) = bytes.split_last_chunk::<MAC_LEN>()?;
        Self::parse(body).map(|(receipt, _)| receipt)
    }

    fn encode(&self, system_id: &SystemId, identity: KeyIdentity) -> Option<Vec<u8>> {
        if self.inputs.len() > RECEIPT_INPUTS_MAX {
            return None;
        }
        let mut out = Vec::with_capacity(HEADER_LEN + self.inputs.len() * INPUT_LEN + MAC_LEN);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.secret_arguments, SECRET_ARGUMENTS)
            | flag(self.result_object.is_some(), RESULT_IN_OBJECT);
        out.extend_from_slice(&[FORMAT, self.engine, self.exit, flags]);
        out.extend_from_slice(&self.error.to_be_bytes());
        out.extend_from_slice(system_id);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(identity.as_bytes());
        out.extend_from_slice(&self.job);
        put_object(&mut out, self.function);
        for digest in [&self.code_digest, &self.arguments_digest, &self.result_digest] {
            out.extend_from_slice(digest);
        }
        out.extend_from_slice(&self.result_length.to_be_bytes());
        put_object(&mut out, self.result_object.unwrap_or(ObjectId::ROOT));
        for number in [self.api.0, self.api.1, u16::try_from(self.inputs.len()).ok()?, 0] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.audit);
        out.extend_from_slice(&[0; 4]);
        let limits = &self.limits;
        for number in [
            self.started_ms,
            self.ended_ms,
            limits.wall_ms,
            limits.cpu_ms,
            limits.memory,
            limits.output,
            limits.calls,
            limits.bytes,
            self.bytes_read,
            self.bytes_written,
            self.cpu_us,
        ] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        debug_assert_eq!(out.len(), HEADER_LEN);
        for input in &self.inputs {
            put_object(&mut out, input.object);
            let flags = flag(input.digest.is_some(), HAS_DIGEST) | flag(input.unchanged, IS_UNCHANGED);
            out.extend_from_slice(&[input.rights, input.kind, flags, 0, 0, 0, 0, 0]);
            out.extend_from_slice(&input.length.to_be_bytes());
            out.extend_from_slice(&input.version.to_be_bytes());
            out.extend_from_slice(&input.digest.unwrap_or_default());
        }
        Some(out)
    }

    /// Parses all bytes before the MAC; returns the identity of the root key too.
    fn parse(body: &[u8]) -> Option<(Self, [u8; KeyIdentity::LEN])> {
        let mut reader = FieldReader(body);
        let [format, engine, exit, flags] = reader.take()?;
        if format != FORMAT || flags & !(SECRET_ARGUMENTS | RESULT_IN_OBJECT) != 0 {
            return None;
        }
        let error = i32::from_be_bytes(reader.take()?);
        let system_id = reader.take()?;
        reader.zeros::<4>()?;
        let identity = reader.take()?;
        let job = reader.take()?;
        let function = reader.object()?;
        let [code_digest, arguments_digest, result_digest] = [reader.take()?, reader.take()?, reader.take()?];
        let result_length = reader.number()?;
        let object = reader.object()?;
        let result_object = (flags & RESULT_IN_OBJECT != 0).then_some(object);
        if result_object.is_none() && object != ObjectId::ROOT {
            return None;
        }
        let api = (reader.short()?, reader.short()?);
        let count = usize::from(reader.short()?);
        reader.zeros::<2>()?;
        let audit = reader.take()?;
        reader.zeros::<4>()?;
        let (started_ms, ended_ms) = (reader.number()?, reader.number()?);
        let limits = ReceiptLimits {
            wall_ms: reader.number()?,
            cpu_ms: reader.number()?,
            memory: reader.number()?,
            output: reader.number()?,
            calls: reader.number()?,
            bytes: reader.number()?,
        };
        let (bytes_read, bytes_written, cpu_us) = (reader.number()?, reader.number()?, reader.number()?);
        if count > RECEIPT_INPUTS_MAX || reader.0.len() != count * INPUT_LEN {
            return None;
        }
        let inputs = (0..count).map(|_| ReceiptInput::parse(&mut reader)).collect::<Option<Vec<_>>>()?;
        let receipt = Self {
            engine,
            exit,
            error,
            secret_arguments: flags & SECRET_ARGUMENTS != 0,
            system_id,
            job,
            function,
            code_digest,
            arguments_digest,
            result_digest,
            result_length,
            result_object,
            api,
            audit,
            started_ms,
            ended_ms,
            limits,
            bytes_read,
            bytes_written,
            cpu_us,
            inputs,
        };
        Some((receipt, identity))
    }
}

impl ReceiptInput {
    fn parse(reader: &mut FieldReader<'_>) -> Option<Self> {
        let object = reader.object()?;
        let [rights, kind, flags] = reader.take()?;
        reader.zeros::<5>()?;
        let (length, version) = (reader.number()?, reader.number()?);
        let digest: [u8; 32] = reader.take()?;
        let has_digest = flags & HAS_DIGEST != 0;
        let is_valid = flags & !(HAS_DIGEST | IS_UNCHANGED) == 0 && (has_digest || digest == [0; 32]);
        is_valid.then_some(Self {
            object,
            rights,
            kind,
            length,
            version,
            unchanged: flags & IS_UNCHANGED != 0,
            digest: has_digest.then_some(digest),
        })
    }
}

fn put_object(out: &mut Vec<u8>, object: ObjectId) {
    out.extend_from_slice(&object.partition.to_be_bytes());
    out.extend_from_slice(&object.object.to_be_bytes());
}

/// Reads fields of fixed lengths one after the other.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn zeros<const N: usize>(&mut self) -> Option<()> {
        (self.take::<N>()? == [0; N]).then_some(())
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn object(&mut self) -> Option<ObjectId> {
        Some(ObjectId::new(self.number()?, self.number()?))
    }
}
