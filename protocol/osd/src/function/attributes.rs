//! Attributes of functions: the page of a function object, the policy page of a partition, and the
//! page of the root that lists engines.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{ApiVersion, CODE_DIGEST_LEN, EngineType};
use crate::AttributeId;
use crate::attribute::{PARTITION, ROOT, USER};
use crate::bytes::{array, u8_at};

/// Page of a function object: U+F002h.
pub const FUNCTION_PAGE: u32 = USER + 0xF002;
/// Page of a user object that a function created: which function, for which caller. U+F008h; that
/// of a collection, C+F008h, has the same attributes.
pub const CREATOR_PAGE: u32 = USER + 0xF008;
/// Partition and number of the function object, 8 bytes each.
pub const CREATOR_FUNCTION: AttributeId = AttributeId::new(CREATOR_PAGE, 1);
/// AUDIT field of the capability that executed the function, 20 bytes.
pub const CREATOR_AUDIT: AttributeId = AttributeId::new(CREATOR_PAGE, 2);
/// Page of a partition with its policy about functions: P+F002h.
pub const POLICY_PAGE: u32 = PARTITION + 0xF002;
/// Page of the root with one attribute for each engine type: R+F002h.
pub const ENGINES_PAGE: u32 = ROOT + 0xF002;

/// Engine type: one byte.
pub const ENGINE_TYPE: AttributeId = AttributeId::new(FUNCTION_PAGE, 1);
/// Lowest API version that the function works with: 4 bytes.
pub const API_LOWEST: AttributeId = AttributeId::new(FUNCTION_PAGE, 2);
/// Highest API version that the function works with: 4 bytes.
pub const API_HIGHEST: AttributeId = AttributeId::new(FUNCTION_PAGE, 3);
/// Version of the implementation: UTF-8, at most [`TEXT_MAX`] bytes.
pub const IMPLEMENTATION_VERSION: AttributeId = AttributeId::new(FUNCTION_PAGE, 4);
/// Name of the publisher: UTF-8, at most [`TEXT_MAX`] bytes.
pub const PUBLISHER: AttributeId = AttributeId::new(FUNCTION_PAGE, 5);
/// Ed25519 public key of the publisher: 32 bytes.
pub const PUBLISHER_KEY: AttributeId = AttributeId::new(FUNCTION_PAGE, 6);
/// Ed25519 signature over [`signed_message`]: 64 bytes.
pub const SIGNATURE: AttributeId = AttributeId::new(FUNCTION_PAGE, 7);
/// Manifest: UTF-8, at most [`MANIFEST_MAX`] bytes.
pub const MANIFEST: AttributeId = AttributeId::new(FUNCTION_PAGE, 8);
/// BLAKE3-256 of the code: 32 bytes. A run whose code differs is refused.
pub const CODE_DIGEST: AttributeId = AttributeId::new(FUNCTION_PAGE, 9);

/// Policy of a partition: one byte, see [`FunctionPolicy`].
pub const POLICY: AttributeId = AttributeId::new(POLICY_PAGE, 1);
/// First public key of a trusted publisher: 32 bytes each, [`POLICY_ENTRIES_MAX`] numbers.
pub const TRUSTED_KEYS: AttributeId = AttributeId::new(POLICY_PAGE, 0x1000);
/// First digest of allowed code: 32 bytes each, [`POLICY_ENTRIES_MAX`] numbers.
pub const ALLOWED_CODE: AttributeId = AttributeId::new(POLICY_PAGE, 0x2000);

/// Maximum bytes of a text attribute.
pub const TEXT_MAX: usize = 128;
/// Maximum bytes of a manifest.
pub const MANIFEST_MAX: usize = 16 << 10;
/// Maximum number of trusted keys, and of allowed digests, of a partition.
pub const POLICY_ENTRIES_MAX: u32 = 256;
/// Bytes of a public key.
pub const PUBLIC_KEY_LEN: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;
/// Maximum bytes of an engine entry.
pub const ENGINE_ENTRY_MAX: usize = 16 + 2 * TEXT_MAX;

/// Which functions of a partition may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum FunctionPolicy {
    /// Any function that a capability permits to execute.
    #[default]
    Any = 0,
    /// Functions with a valid signature of a trusted key.
    Signed = 1,
    /// Functions whose code digest is listed.
    AllowList = 2,
}

impl FunctionPolicy {
    /// Returns the policy of a code; `None` for a reserved one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Any),
            1 => Some(Self::Signed),
            2 => Some(Self::AllowList),
            _ => None,
        }
    }
}

/// Attributes of a function object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// Engine type; `None` if the page does not name one.
    pub engine: Option<EngineType>,
    /// Lowest and highest API version; `None` for any.
    pub api: Option<(ApiVersion, ApiVersion)>,
    /// Version of the implementation.
    pub version: String,
    /// Name of the publisher.
    pub publisher: String,
    /// Public key of the publisher.
    pub publisher_key: Option<[u8; PUBLIC_KEY_LEN]>,
    /// Signature over [`signed_message`].
    pub signature: Option<[u8; SIGNATURE_LEN]>,
    /// Manifest, whose format the SDK defines.
    pub manifest: String,
    /// Digest of the code.
    pub digest: Option<[u8; CODE_DIGEST_LEN]>,
}

impl FunctionAttributes {
    /// All attributes of the page, in the order of their numbers.
    pub const ALL: [AttributeId; 9] = [
        ENGINE_TYPE,
        API_LOWEST,
        API_HIGHEST,
        IMPLEMENTATION_VERSION,
        PUBLISHER,
        PUBLISHER_KEY,
        SIGNATURE,
        MANIFEST,
        CODE_DIGEST,
    ];

    /// Parses values; an undefined attribute has none or an empty one.
    ///
    /// # Errors
    /// The first attribute whose value is invalid.
    pub fn parse<'a>(mut value: impl FnMut(AttributeId) -> Option<&'a [u8]>) -> Result<Self, AttributeId> {
        let mut get = |id| value(id).filter(|value| !value.is_empty());
        let version = |id: AttributeId, value: Option<&[u8]>| match value {
            None => Ok(None),
            Some(value) => value.try_into().map(ApiVersion::from_bytes).map(Some).map_err(|_| id),
        };
        let text = |id: AttributeId, value: Option<&[u8]>| {
            core::str::from_utf8(value.unwrap_or_default()).map(ToString::to_string).map_err(|_| id)
        };
        let engine = match get(ENGINE_TYPE) {
            None => None,
            Some([code]) => Some(EngineType::from_code(*code).ok_or(ENGINE_TYPE)?),
            Some(_) => return Err(ENGINE_TYPE),
        };
        let api = match (version(API_LOWEST, get(API_LOWEST))?, version(API_HIGHEST, get(API_HIGHEST))?) {
            (None, None) => None,
            (Some(lowest), Some(highest)) if lowest <= highest => Some((lowest, highest)),
            (Some(lowest), None) => Some((lowest, ApiVersion { minor: u16::MAX, ..lowest })),
            _ => return Err(API_HIGHEST),
        };
        Ok(Self {
            engine,
            api,
            version: text(IMPLEMENTATION_VERSION, get(IMPLEMENTATION_VERSION))?,
            publisher: text(PUBLISHER, get(PUBLISHER))?,
            publisher_key: exact(PUBLISHER_KEY, get(PUBLISHER_KEY))?,
            signature: exact(SIGNATURE, get(SIGNATURE))?,
            manifest: text(MANIFEST, get(MANIFEST))?,
            digest: exact(CODE_DIGEST, get(CODE_DIGEST))?,
        })
    }

    /// Returns the values to set; an undefined attribute has an empty value, which removes it.
    #[must_use]
    pub fn encode(&self) -> Vec<(AttributeId, Vec<u8>)> {
        let list = |bytes: Option<&[u8]>| bytes.unwrap_or_default().to_vec();
        [
            (ENGINE_TYPE, self.engine.map(|engine| [engine.code()].to_vec()).unwrap_or_default()),
            (API_LOWEST, self.api.map(|(lowest, _)| lowest.bytes().to_vec()).unwrap_or_default()),
            (API_HIGHEST, self.api.map(|(_, highest)| highest.bytes().to_vec()).unwrap_or_default()),
            (IMPLEMENTATION_VERSION, self.version.as_bytes().to_vec()),
            (PUBLISHER, self.publisher.as_bytes().to_vec()),
            (PUBLISHER_KEY, list(self.publisher_key.as_ref().map(|key| &key[..]))),
            (SIGNATURE, list(self.signature.as_ref().map(|signature| &signature[..]))),
            (MANIFEST, self.manifest.as_bytes().to_vec()),
            (CODE_DIGEST, list(self.digest.as_ref().map(|digest| &digest[..]))),
        ]
        .to_vec()
    }

    /// Whether the function works with an API version; without a range it works with any.
    #[must_use]
    pub fn supports(&self, api: ApiVersion) -> bool {
        self.api.is_none_or(|(lowest, highest)| (lowest..=highest).contains(&api))
    }
}

/// Whether an attribute of the function page may have this value, apart from an empty one, which
/// removes it.
#[must_use]
pub fn is_valid_value(id: AttributeId, value: &[u8]) -> bool {
    let is_text = |max: usize| value.len() <= max && core::str::from_utf8(value).is_ok();
    match id {
        ENGINE_TYPE => matches!(value, [code] if EngineType::from_code(*code).is_some()),
        API_LOWEST | API_HIGHEST => value.len() == ApiVersion::LEN,
        IMPLEMENTATION_VERSION | PUBLISHER => is_text(TEXT_MAX),
        PUBLISHER_KEY => value.len() == PUBLIC_KEY_LEN,
        SIGNATURE => value.len() == SIGNATURE_LEN,
        MANIFEST => is_text(MANIFEST_MAX),
        CODE_DIGEST => value.len() == CODE_DIGEST_LEN,
        _ => false,
    }
}

fn exact<const N: usize>(id: AttributeId, value: Option<&[u8]>) -> Result<Option<[u8; N]>, AttributeId> {
    value.map(|value| value.try_into().map_err(|_| id)).transpose()
}

/// Start of [`signed_message`].
const SIGNED_PREFIX: &[u8] = b"sealstone function signature v1\0";

/// Returns the message that a publisher signs: prefix, code digest, engine type, API versions, then
/// version, publisher and manifest, each after its length in 4 bytes.
#[must_use]
pub fn signed_message(digest: &[u8; CODE_DIGEST_LEN], attributes: &FunctionAttributes) -> Vec<u8> {
    let mut out = SIGNED_PREFIX.to_vec();
    out.extend_from_slice(digest);
    out.push(attributes.engine.map_or(0, EngineType::code));
    let any = (ApiVersion { major: 0, minor: 0 }, ApiVersion { major: u16::MAX, minor: u16::MAX });
    let (lowest, highest) = attributes.api.unwrap_or(any);
    out.extend_from_slice(&lowest.bytes());
    out.extend_from_slice(&highest.bytes());
    for text in [&attributes.version, &attributes.publisher, &attributes.manifest] {
        out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    out
}

/// An engine as the root's page describes it: attribute number = engine type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineEntry {
    /// Whether functions can run in it.
    pub available: bool,
    /// Lowest API version.
    pub api_lowest: ApiVersion,
    /// Highest API version.
    pub api_highest: ApiVersion,
    /// Version of the engine, for example "wasmtime 48.0.8"; at most [`TEXT_MAX`] bytes.
    pub version: String,
    /// Why it is not available, or an empty text; at most [`TEXT_MAX`] bytes.
    pub detail: String,
}

impl EngineEntry {
    /// Returns the attribute of an engine type.
    #[must_use]
    pub const fn attribute(engine: EngineType) -> AttributeId {
        AttributeId::new(ENGINES_PAGE, engine.code() as u32)
    }

    /// Returns the value of the attribute: availability (1), API versions (4 each), length of the
    /// version (1), version, length of the detail (1), detail. Longer texts are truncated.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = [u8::from(self.available)].to_vec();
        out.extend_from_slice(&self.api_lowest.bytes());
        out.extend_from_slice(&self.api_highest.bytes());
        for text in [&self.version, &self.detail] {
            let mut end = text.len().min(TEXT_MAX);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            out.push(end as u8);
            out.extend_from_slice(&text.as_bytes()[..end]);
        }
        out
    }

    /// Parses the value of the attribute.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let available = match u8_at(value, 0)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (api_lowest, api_highest) = (array(value, 1)?, array(value, 5)?);
        let (version, rest) = text(value.get(9..)?)?;
        let (detail, rest) = text(rest)?;
        rest.is_empty().then_some(Self {
            available,
            api_lowest: ApiVersion::from_bytes(api_lowest),
            api_highest: ApiVersion::from_bytes(api_highest),
            version,
            detail,
        })
    }
}

/// Reads a text after its length in one byte.
fn text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let length = usize::from(u8_at(bytes, 0)?);
    let (text, rest) = bytes.get(1..)?.split_at_checked(length).filter(|_| length <= TEXT_MAX)?;
    Some((core::str::from_utf8(text).ok()?.to_string(), rest))
}
