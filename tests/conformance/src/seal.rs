//! Keys and check values, implemented independently of the product (docs/standards/security.md 1
//! and 2).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

use crate::cdb::Generation;

/// How a command is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Method {
    /// No protection.
    NoSec,
    /// Only the capability, over a channel that is secure by itself.
    #[allow(dead_code, reason = "the other codes follow from it")]
    CapKey,
    /// CDB, status and sense data.
    CmdRsp,
    /// Data and attributes too.
    AllData,
}

pub(crate) fn sha256(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

fn sha1(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha1>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

/// Key that signs a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SigningKey {
    Master,
    Root,
    Partition(u64),
    Working(u64),
}

/// A generation key and an authentication key.
#[derive(Clone)]
pub(crate) struct KeyPair {
    pub(crate) generation: Vec<u8>,
    pub(crate) authentication: Vec<u8>,
}

impl KeyPair {
    pub(crate) fn derive(parent: &[u8], seed: &[u8; 20], suffix: &[u8]) -> Self {
        Self::of_seed(parent, seed, suffix)
    }

    /// Derives a pair from a seed of any length.
    pub(crate) fn of_seed(parent: &[u8], seed: &[u8], suffix: &[u8]) -> Self {
        let (mut even, mut odd) = (seed.to_vec(), seed.to_vec());
        even[seed.len() - 1] &= 0xFE;
        odd[seed.len() - 1] |= 1;
        Self { generation: sha256(parent, &[&even, suffix]), authentication: sha256(parent, &[&odd, suffix]) }
    }
}

fn factory_seed(level: u8, partition: u64) -> [u8; 20] {
    let mut seed = [0; 20];
    seed[..9].copy_from_slice(b"sealstone");
    seed[9] = level;
    seed[11..19].copy_from_slice(&partition.to_be_bytes());
    seed
}

/// The factory hierarchy of a device, from its initial key.
#[derive(Clone)]
pub(crate) struct FactoryKeys {
    pub(crate) system_id: [u8; 20],
    pub(crate) master: KeyPair,
    pub(crate) root: KeyPair,
    /// Keys that were set later, by partition, and by partition and version.
    partitions: BTreeMap<u64, KeyPair>,
    working: BTreeMap<(u64, u8), Vec<u8>>,
}

impl FactoryKeys {
    pub(crate) fn factory(initial: &[u8], system_id: [u8; 20]) -> Self {
        let master = KeyPair::derive(initial, &factory_seed(1, 0), &system_id);
        let root = KeyPair::derive(&master.generation, &factory_seed(2, 0), &[]);
        Self { system_id, master, root, partitions: BTreeMap::new(), working: BTreeMap::new() }
    }

    /// Replaces a partition's keys; keys below become invalid.
    pub(crate) fn set_partition(&mut self, partition: u64, pair: KeyPair) {
        self.working.retain(|(of, _), _| *of != partition);
        self.partitions.insert(partition, pair);
    }

    pub(crate) fn set_working(&mut self, partition: u64, version: u8, key: Vec<u8>) {
        self.working.insert((partition, version), key);
    }

    pub(crate) fn partition(&self, partition: u64) -> KeyPair {
        if let Some(pair) = self.partitions.get(&partition) {
            return pair.clone();
        }
        KeyPair::derive(&self.root.generation, &factory_seed(3, partition), &[])
    }

    /// Returns the authentication key of a level.
    pub(crate) fn signing(&self, signer: SigningKey, version: u8) -> Vec<u8> {
        match signer {
            SigningKey::Master => self.master.authentication.clone(),
            SigningKey::Root => self.root.authentication.clone(),
            SigningKey::Partition(partition) => self.partition(partition).authentication,
            SigningKey::Working(partition) => {
                if let Some(key) = self.working.get(&(partition, version)) {
                    return key.clone();
                }
                let parent = self.partition(partition).generation;
                KeyPair::derive(&parent, &factory_seed(4, partition), &[]).authentication
            }
        }
    }
}

/// Range and direction of a command's data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataOrigin {
    pub(crate) inward: bool,
    pub(crate) partition: u64,
    pub(crate) object: u64,
    /// First byte in the object; `None` if the data are no range of it.
    pub(crate) start: Option<u64>,
}

/// How a slot covers data: numbers of the profile and of the list digest, bytes of a unit.
#[derive(Clone, Copy)]
struct SlotUnits {
    profile: u8,
    lists: u8,
    bytes: u64,
}

impl SlotUnits {
    fn of_slot(slot: u8) -> Option<Self> {
        match slot {
            2 => Some(Self { profile: 4, lists: 4, bytes: 16 << 10 }),
            3 => Some(Self { profile: 1, lists: 1, bytes: 8 << 10 }),
            _ => None,
        }
    }

    fn list(self, bytes: &[u8]) -> Vec<u8> {
        match self.lists {
            1 => Sha1::digest(bytes).to_vec(),
            _ => blake3::hash(bytes).as_bytes().to_vec(),
        }
    }

    /// Returns the digest of an attribute page: its number, then number, length and value of each
    /// attribute.
    fn page(self, record: &[u8]) -> Vec<u8> {
        match self.lists {
            1 => Sha1::digest([&b"OSDPAGE01"[..], record].concat()).to_vec(),
            _ => blake3::derive_key("sealstone attribute page v1", record).to_vec(),
        }
    }

    /// Returns the value of each unit that the data touch, in order.
    fn values(self, start: u64, data: &[u8], object_length: u64) -> Vec<Vec<u8>> {
        let (mut values, mut at, end) = (Vec::new(), start, start + data.len() as u64);
        while at < end {
            let first = at - at % self.bytes;
            let stop = (first + self.bytes).min(end);
            let whole = at == first && stop == (first + self.bytes).min(object_length);
            let bytes = &data[(at - start) as usize..(stop - start) as usize];
            values.push(match (self.profile, whole) {
                (1, _) => Sha1::digest(bytes).to_vec(),
                (_, true) => {
                    use blake3::hazmat::HasherExt as _;
                    let mut tree = blake3::Hasher::new();
                    tree.set_input_offset(at).update(bytes);
                    tree.finalize_non_root().to_vec()
                }
                (_, false) => {
                    let input = [bytes, &at.to_be_bytes()].concat();
                    blake3::derive_key("osd range edge v1", &input).to_vec()
                }
            });
            at = stop;
        }
        values
    }
}

/// The keys of one credential. Slot 0 is HMAC-SHA1, slot 1 HMAC-SHA256 with separate keys, slot 2
/// the same over BLAKE3 units, slot 3 HMAC-SHA1 over SHA-1 units.
pub(crate) struct CredentialKeys {
    generation: Generation,
    slot: u8,
    key: Vec<u8>,
}

impl CredentialKeys {
    pub(crate) fn new(
        generation: Generation,
        slot: u8,
        signing: &[u8],
        capability: &[u8],
        system_id: &[u8; 20],
    ) -> Self {
        let key = match slot {
            0 | 3 => sha1(signing, &[capability, system_id]),
            _ => sha256(signing, &[capability, system_id]),
        };
        Self { generation, slot, key }
    }

    fn tag(&self, label: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let mut tag = match self.slot {
            0 | 3 => sha1(&self.key, parts),
            _ => sha256(&sha256(&self.key, &[label, &[1]]), parts),
        };
        tag.resize(self.generation.icv_len(), 0);
        tag
    }

    pub(crate) fn request(&self, message: &[u8]) -> Vec<u8> {
        self.tag(b"sealstone osd req v1", &[message])
    }

    pub(crate) fn continuation(&self, nonce: &[u8], segment: &[u8]) -> Vec<u8> {
        let mut tag = self.tag(b"sealstone osd req v1", &[b"OSDCNT01", nonce, segment]);
        tag.resize(32, 0);
        tag
    }

    pub(crate) fn response(&self, nonce: &[u8], status: u8, sense: &[u8]) -> Vec<u8> {
        let length = (sense.len() as u16).to_be_bytes();
        self.tag(b"sealstone osd rsp v1", &[b"OSDRSP01", nonce, &[status], &length, sense])
    }

    /// Returns the bytes of data-in integrity information.
    pub(crate) fn data_in_len(&self) -> usize {
        16 + if SlotUnits::of_slot(self.slot).is_some() { 16 } else { 0 } + self.generation.icv_len()
    }

    /// Returns the check value over digests of data and lists.
    fn over_units(
        &self,
        units: SlotUnits,
        nonce: &[u8],
        origin: &DataOrigin,
        data: &[u8],
        lists: [&[u8]; 2],
        page: Option<&[u8]>,
        (object_length, generation): (u64, u64),
    ) -> Vec<u8> {
        let start = origin.start.unwrap_or(0);
        let values = units.values(start, data, if origin.inward { object_length } else { u64::MAX });
        let mut header = b"OSDHM\0\x01".to_vec();
        header.extend([units.profile, if origin.inward { 1 } else { 2 }, units.lists, 0, 0]);
        header.extend_from_slice(nonce);
        for word in [origin.partition, origin.object, start, data.len() as u64, object_length, generation] {
            header.extend(word.to_be_bytes());
        }
        header.extend((units.bytes as u32).to_be_bytes());
        header.extend((values.len() as u32).to_be_bytes());
        lists.iter().for_each(|list| header.extend((list.len() as u64).to_be_bytes()));
        assert_eq!(header.len(), 96, "the header's length");
        let lists = lists.iter().filter(|list| !list.is_empty());
        let lists = lists.map(|list| page.map_or_else(|| units.list(list), |record| units.page(record)));
        let all: Vec<u8> = [header].into_iter().chain(values).chain(lists).flatten().collect();
        self.tag(if origin.inward { b"sealstone osd din v1" } else { b"sealstone osd dout v1" }, &[&all])
    }

    pub(crate) fn data_out(
        &self,
        nonce: &[u8],
        origin: &DataOrigin,
        set: &[u8],
        get: &[u8],
        data: &[u8],
    ) -> Vec<u8> {
        let counts = [data.len(), set.len(), get.len()].map(|count| (count as u64).to_be_bytes()).concat();
        if let Some(units) = SlotUnits::of_slot(self.slot) {
            let tag = self.over_units(units, nonce, origin, data, [set, get], None, (0, 0));
            return [counts, tag].concat();
        }
        let tag = self.tag(b"sealstone osd dout v1", &[b"OSDDOU01", nonce, &counts, set, get, data]);
        [counts, tag].concat()
    }

    /// Returns the check value of data-in. `page` is the record of a page that was retrieved
    /// completely. The object values come from the received integrity information.
    pub(crate) fn data_in(
        &self,
        nonce: &[u8],
        origin: &DataOrigin,
        received: &[u8],
        data: &[u8],
        attributes: &[u8],
        page: Option<&[u8]>,
    ) -> Vec<u8> {
        let counts = [data.len(), attributes.len()].map(|count| (count as u64).to_be_bytes()).concat();
        if let Some(units) = SlotUnits::of_slot(self.slot) {
            let word = |at: usize| u64::from_be_bytes(received[at..at + 8].try_into().unwrap());
            let place = (word(16), word(24));
            assert!(place.0 >= origin.start.unwrap_or(0) + data.len() as u64, "data within the object");
            let tag = self.over_units(units, nonce, origin, data, [&[], attributes], page, place);
            return [counts, received[16..32].to_vec(), tag].concat();
        }
        let tag = self.tag(b"sealstone osd din v1", &[b"OSDDIN01", nonce, &counts, data, attributes]);
        [counts, tag].concat()
    }
}

/// MD5 (RFC 1321), for CHAP with old initiators.
pub(crate) fn md5(message: &[u8]) -> [u8; 16] {
    const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(64) - 8, 0);
    padded.extend_from_slice(&(8 * message.len() as u64).to_le_bytes());
    let mut state = [0x6745_2301_u32, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
    for block in padded.chunks_exact(64) {
        let words: Vec<u32> =
            block.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        let [mut a, mut b, mut c, mut d] = state;
        for step in 0..64 {
            let (mixed, word) = match step / 16 {
                0 => (b & c | !b & d, step),
                1 => (d & b | !d & c, (5 * step + 1) % 16),
                2 => (b ^ c ^ d, (3 * step + 5) % 16),
                _ => (c ^ (b | !d), 7 * step % 16),
            };
            let sine = ((step as f64 + 1.0).sin().abs() * 4_294_967_296.0) as u32;
            let sum = a.wrapping_add(mixed).wrapping_add(words[word]).wrapping_add(sine);
            let next = b.wrapping_add(sum.rotate_left(SHIFTS[step / 16][step % 4]));
            (a, b, c, d) = (d, next, b, c);
        }
        for (one, more) in state.iter_mut().zip([a, b, c, d]) {
            *one = one.wrapping_add(more);
        }
    }
    let mut digest = [0; 16];
    digest
        .chunks_exact_mut(4)
        .zip(state)
        .for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    digest
}

/// Returns milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Returns an unused nonce of this time: 6 bytes of time, 6 unique ones.
pub(crate) fn nonce(time_ms: u64) -> [u8; 12] {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let process = u64::from(std::process::id());
    let mut nonce = [0; 12];
    nonce[..6].copy_from_slice(&time_ms.to_be_bytes()[2..]);
    nonce[6..].copy_from_slice(&(process << 32 | count).to_be_bytes()[2..]);
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn md5_gives_the_vectors_of_its_rfc() {
        assert_eq!(hex(&md5(b"")), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(hex(&md5(b"message digest")), "f96b697d7cb7938d525a2f31aaf161d0");
        assert_eq!(hex(&md5(&b"1234567890".repeat(8))), "57edf4a22be3c955ac49da2e2107b67a");
    }

    /// The vectors of the documentation, created by a third program.
    #[test]
    fn the_factory_hierarchy_is_that_of_the_vectors() {
        let text = include_str!("../../../docs/standards/vectors/keys.json");
        let system: Vec<u8> = (0..20)
            .map(|at| {
                if at == 0 {
                    0xF1
                } else if at < 5 {
                    0
                } else {
                    at - 4
                }
            })
            .collect();
        let keys = FactoryKeys::factory(&[0xA5; 32], system.try_into().unwrap());
        assert!(text.contains(&hex(&keys.root.generation)));
        assert!(text.contains(&hex(&keys.signing(SigningKey::Working(0x10000), 0))));
    }
}
