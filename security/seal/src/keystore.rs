//! Encoding of a key hierarchy, only for the file that stores it.
//!
//! Does: encodes and decodes.
//! Does not: encrypt; the caller that stores the bytes protects them.
//! Contract: the bytes are secret and wiped when dropped; `decode(encode(h))` signs exactly as `h`
//! does.
//!
//! Layout: `"OSDKH02\0"`, hash (1 SHA-1, 2 SHA-256), system id 20, master, root, number of
//! partitions 4, then each: partition id 8, pair, 16 working keys; number of ranges of retired
//! partition ids 4, then each: first 8, last 8. A pair is: present 1, authentication key,
//! generation key, identifier; a working key: present 1, key, identifier; an identifier: present 1,
//! 7 bytes. Absent items are one zero byte. `"OSDKH01\0"` ends before the ranges.
//!
//! Costs: O(partitions + retired ranges) to encode and to decode; see docs/standards/security.md,
//! section 5.

use alloc::sync::Arc;
use alloc::vec::Vec;

use thiserror::Error;
use zeroize::Zeroizing;

use crate::algorithm::Hash;
use crate::hierarchy::{KeyHierarchy, KeyLevel, PARTITIONS_MAX, PartitionKeys, level, working_key};
use crate::key::{AuthenticationKey, GenerationKey, KeyIdentifier, KeyPair};
use crate::provider::Provider;
use crate::retired::{RETIRED_RANGES_MAX, RetiredIds};

const MAGIC: &[u8; 8] = b"OSDKH02\0";
/// The part above the partitions: hash, system id, master, root, proposed master.
const MAGIC_TOP: &[u8; 8] = b"OSDKT01\0";
/// The keys of one partition: hash, pair, 16 working keys.
const MAGIC_PARTITION: &[u8; 8] = b"OSDKP01\0";
/// The layout before there were retired partitions: it ends after the partitions.
const MAGIC_WITHOUT_RETIRED: &[u8; 8] = b"OSDKH01\0";

/// Why bytes are not a key hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeystoreError {
    /// The magic number is missing: something else, or another version.
    #[error("not a key hierarchy of this version")]
    Magic,
    /// A field has a value that the layout does not define, or bytes are left over.
    #[error("malformed key hierarchy")]
    Malformed,
    /// The bytes end early.
    #[error("the key hierarchy is truncated")]
    Truncated,
}

impl<P: Provider> KeyHierarchy<P> {
    /// Returns the secret bytes to store.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        // Reserved in full, so that no reallocation leaves a copy behind.
        let pair = 10 + 2 * self.hash.tag_len();
        let partition = 8 + pair + 16 * (9 + self.hash.tag_len());
        let retired = 4 + 16 * RETIRED_RANGES_MAX;
        let room = 64 + 2 * pair + partition * self.partitions.len() + retired;
        let mut out = Zeroizing::new(Vec::with_capacity(room));
        out.extend_from_slice(MAGIC);
        out.push(hash_code(self.hash));
        out.extend_from_slice(&self.system_id);
        write_pair(&mut out, Some(&self.master));
        write_pair(&mut out, self.root.as_deref());
        out.extend_from_slice(&(self.partitions.len() as u32).to_be_bytes());
        for (id, keys) in &self.partitions {
            out.extend_from_slice(&id.to_be_bytes());
            write_partition(&mut out, keys);
        }
        out.extend_from_slice(&(self.retired.ranges().count() as u32).to_be_bytes());
        for (first, last) in self.retired.ranges() {
            out.extend_from_slice(&first.to_be_bytes());
            out.extend_from_slice(&last.to_be_bytes());
        }
        out
    }

    /// Decodes stored bytes.
    ///
    /// # Errors
    /// See [`KeystoreError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, KeystoreError> {
        let mut reader = KeystoreReader { rest: bytes };
        let has_retired = match &reader.array::<8>() {
            Ok(magic) if magic == MAGIC => true,
            Ok(magic) if magic == MAGIC_WITHOUT_RETIRED => false,
            _ => return Err(KeystoreError::Magic),
        };
        let hash = reader.hash()?;
        let system_id = reader.array()?;
        let (master, identifier) = reader.pair(hash)?.ok_or(KeystoreError::Malformed)?;
        let mut this = Self::bare(hash, system_id, master.clone());
        this.master = level(master, identifier);
        if let Some((pair, identifier)) = reader.pair(hash)? {
            this.root = Some(level(pair, identifier));
        }
        let count = u32::from_be_bytes(reader.array()?) as usize;
        if count > PARTITIONS_MAX {
            return Err(KeystoreError::Malformed);
        }
        for _ in 0..count {
            let id = u64::from_be_bytes(reader.array()?);
            let keys = reader.partition(hash)?;
            if this.partitions.insert(id, Arc::new(keys)).is_some() {
                return Err(KeystoreError::Malformed);
            }
        }
        if has_retired {
            let count = u32::from_be_bytes(reader.array()?) as usize;
            if count > RETIRED_RANGES_MAX {
                return Err(KeystoreError::Malformed);
            }
            let mut ranges = Vec::with_capacity(count);
            for _ in 0..count {
                let first = u64::from_be_bytes(reader.array()?);
                ranges.push((first, u64::from_be_bytes(reader.array()?)));
            }
            let retired = RetiredIds::from_ranges(ranges.into_iter()).ok_or(KeystoreError::Malformed)?;
            this.retired = Arc::new(retired);
        }
        if reader.rest.is_empty() { Ok(this) } else { Err(KeystoreError::Malformed) }
    }
}

/// Encoding in parts, for a store with a record per partition, so that a change writes little.
impl<P: Provider> KeyHierarchy<P> {
    /// Encodes everything above the partitions, with a proposed master key; secret.
    #[must_use]
    pub fn encode_top(&self) -> Zeroizing<Vec<u8>> {
        let pair = 10 + 2 * self.hash.tag_len();
        let mut out = Zeroizing::new(Vec::with_capacity(64 + 3 * pair));
        out.extend_from_slice(MAGIC_TOP);
        out.push(hash_code(self.hash));
        out.extend_from_slice(&self.system_id);
        write_pair(&mut out, Some(&self.master));
        write_pair(&mut out, self.root.as_deref());
        write_pair(&mut out, self.next_master.as_deref());
        out
    }

    /// Decodes a hierarchy without partitions, from [`Self::encode_top`].
    ///
    /// # Errors
    /// See [`KeystoreError`].
    pub fn decode_top(bytes: &[u8]) -> Result<Self, KeystoreError> {
        let mut reader = KeystoreReader { rest: bytes };
        reader.magic(MAGIC_TOP)?;
        let hash = reader.hash()?;
        let system_id = reader.array()?;
        let (master, identifier) = reader.pair(hash)?.ok_or(KeystoreError::Malformed)?;
        let mut this = Self::bare(hash, system_id, master.clone());
        this.master = level(master, identifier);
        this.root = reader.pair(hash)?.map(|(pair, identifier)| level(pair, identifier));
        this.next_master = reader.pair(hash)?.map(|(pair, identifier)| level(pair, identifier));
        if reader.rest.is_empty() { Ok(this) } else { Err(KeystoreError::Malformed) }
    }

    /// Encodes the keys of one partition; secret. `None` if it has no place for keys.
    #[must_use]
    pub fn encode_partition(&self, partition: u64) -> Option<Zeroizing<Vec<u8>>> {
        let keys = self.partitions.get(&partition)?;
        let pair = 10 + 2 * self.hash.tag_len();
        let mut out = Zeroizing::new(Vec::with_capacity(16 + pair + 16 * (9 + self.hash.tag_len())));
        out.extend_from_slice(MAGIC_PARTITION);
        out.push(hash_code(self.hash));
        write_partition(&mut out, keys);
        Some(out)
    }

    /// Adds the keys of a partition, from [`Self::encode_partition`].
    ///
    /// # Errors
    /// See [`KeystoreError`]; `Malformed` if there is no space for another partition.
    pub fn put_partition(&mut self, partition: u64, bytes: &[u8]) -> Result<(), KeystoreError> {
        let mut reader = KeystoreReader { rest: bytes };
        reader.magic(MAGIC_PARTITION)?;
        if reader.hash()? != self.hash {
            return Err(KeystoreError::Malformed);
        }
        let keys = reader.partition(self.hash)?;
        let is_new = !self.partitions.contains_key(&partition);
        if !reader.rest.is_empty() || is_new && self.partitions.len() >= PARTITIONS_MAX {
            return Err(KeystoreError::Malformed);
        }
        self.partitions.insert(partition, Arc::new(keys));
        Ok(())
    }
}

const fn hash_code(hash: Hash) -> u8 {
    match hash {
        Hash::Sha1 => 1,
        Hash::Sha256 => 2,
    }
}

fn write_partition<P: Provider>(out: &mut Vec<u8>, keys: &PartitionKeys<P>) {
    write_pair(out, keys.pair.as_deref());
    for working in &keys.working {
        match working {
            Some(working) => {
                out.push(1);
                out.extend_from_slice(working.signing.secret.expose());
                write_identifier(out, working.identifier);
            }
            None => out.push(0),
        }
    }
}

fn write_pair<P: Provider>(out: &mut Vec<u8>, level: Option<&KeyLevel<P>>) {
    match level {
        Some(level) => {
            out.push(1);
            out.extend_from_slice(level.signing.secret.expose());
            out.extend_from_slice(level.generation.expose());
            write_identifier(out, level.identifier);
        }
        None => out.push(0),
    }
}

fn write_identifier(out: &mut Vec<u8>, identifier: Option<KeyIdentifier>) {
    match identifier {
        Some(identifier) => {
            out.push(1);
            out.extend_from_slice(&identifier);
        }
        None => out.push(0),
    }
}

struct KeystoreReader<'a> {
    rest: &'a [u8],
}

impl<'a> KeystoreReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], KeystoreError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(KeystoreError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], KeystoreError> {
        self.take(N)?.first_chunk().copied().ok_or(KeystoreError::Truncated)
    }

    fn byte(&mut self) -> Result<u8, KeystoreError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn magic(&mut self, magic: &[u8; 8]) -> Result<(), KeystoreError> {
        let found = self.array::<8>().map_err(|_| KeystoreError::Magic)?;
        if found == *magic { Ok(()) } else { Err(KeystoreError::Magic) }
    }

    fn hash(&mut self) -> Result<Hash, KeystoreError> {
        match self.byte()? {
            1 => Ok(Hash::Sha1),
            2 => Ok(Hash::Sha256),
            _ => Err(KeystoreError::Malformed),
        }
    }

    fn partition<P: Provider>(&mut self, hash: Hash) -> Result<PartitionKeys<P>, KeystoreError> {
        let mut keys = PartitionKeys::unset();
        if let Some((pair, identifier)) = self.pair(hash)? {
            keys.pair = Some(level(pair, identifier));
        }
        for slot in &mut keys.working {
            if self.present()? {
                let key = self.key(hash, AuthenticationKey::new)?;
                let identifier = self.identifier()?;
                *slot = Some(working_key(key, identifier));
            }
        }
        Ok(keys)
    }

    fn present(&mut self) -> Result<bool, KeystoreError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(KeystoreError::Malformed),
        }
    }

    fn key<K>(&mut self, hash: Hash, make: impl FnOnce(&[u8]) -> Option<K>) -> Result<K, KeystoreError> {
        make(self.take(hash.tag_len())?).ok_or(KeystoreError::Malformed)
    }

    fn identifier(&mut self) -> Result<Option<KeyIdentifier>, KeystoreError> {
        if self.present()? { self.array().map(Some) } else { Ok(None) }
    }

    fn pair(&mut self, hash: Hash) -> Result<Option<(KeyPair, Option<KeyIdentifier>)>, KeystoreError> {
        if !self.present()? {
            return Ok(None);
        }
        let authentication = self.key(hash, AuthenticationKey::new)?;
        let generation = self.key(hash, GenerationKey::new)?;
        Ok(Some((KeyPair { authentication, generation }, self.identifier()?)))
    }
}
