//! The cipher of a client: AES-256-GCM-SIV of aws-lc, and many blocks at once on several cores.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::{Bytes, BytesMut};
use sealstone_block_e2e::{
    AeadMismatch, BLOCK_LEN, BlockAead, BlockEntry, BlockPosition, DiskSealer, E2eMismatch, KEY_LEN,
    NONCE_LEN, TAG_LEN,
};

use crate::BufferPool;

/// Blocks from which a request is divided among cores: 128 KiB.
const PARALLEL_BLOCKS_MIN: usize = 32;
/// Maximum parts of a request.
const PARTS_MAX: usize = 4;

struct FastAead(LessSafeKey);

/// Returns the implementation of aws-lc, several times as fast as the portable one.
///
/// # Panics
/// Never: the key has the length of the algorithm.
#[must_use]
pub fn fast_aead(key: &[u8; KEY_LEN]) -> Box<dyn BlockAead> {
    let key = UnboundKey::new(&AES_256_GCM_SIV, key).expect("a key of 32 bytes");
    Box::new(FastAead(LessSafeKey::new(key)))
}

impl BlockAead for FastAead {
    fn seal(&self, nonce: &[u8; NONCE_LEN], associated: &[u8], data: &mut [u8]) -> [u8; TAG_LEN] {
        let tag = self
            .0
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(*nonce), Aad::from(associated), data)
            .expect("blocks are far below 2^36 bytes");
        *tag.as_ref().first_chunk().expect("a tag has 16 bytes")
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        associated: &[u8],
        sealed: &[u8],
        tag: &[u8; TAG_LEN],
        data: &mut [u8],
    ) -> Result<(), AeadMismatch> {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        self.0.open_separate_gather(nonce, Aad::from(associated), sealed, tag, data).map_err(|_| {
            data.fill(0);
            AeadMismatch
        })
    }
}

/// Returns the blocks of each part of a request.
fn part_blocks(blocks: usize) -> usize {
    if blocks < PARALLEL_BLOCKS_MIN {
        return blocks.max(1);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(PARTS_MAX);
    blocks.div_ceil(cores)
}

/// Seals consecutive blocks, whose counters start at `counter`. Returns them with their tags.
pub(super) async fn seal_blocks(
    sealer: &Arc<DiskSealer>,
    lba: u64,
    counter: u64,
    data: &Bytes,
    pool: &BufferPool,
) -> (Bytes, Vec<[u8; TAG_LEN]>) {
    let blocks = data.len() / BLOCK_LEN;
    let part = part_blocks(blocks);
    if part >= blocks {
        let mut sealed = pool.take(data.len());
        sealed.copy_from_slice(data);
        let tags = seal_part(sealer, lba, counter, &mut sealed);
        return (pool.share(sealed), tags);
    }
    let mut rest = BytesMut::from(&data[..]);
    let mut others = Vec::new();
    let mut first = rest.split_to(part * BLOCK_LEN);
    let mut done = part;
    while !rest.is_empty() {
        let mut bytes = rest.split_to((part * BLOCK_LEN).min(rest.len()));
        let (sealer, offset) = (Arc::clone(sealer), done as u64);
        others.push(tokio::task::spawn_blocking(move || {
            let tags = seal_part(&sealer, lba + offset, counter + offset, &mut bytes);
            (bytes, tags)
        }));
        done += part;
    }
    let mut tags = seal_part(sealer, lba, counter, &mut first);
    for other in others {
        let (bytes, more) = other.await.expect("sealing does not panic");
        first.unsplit(bytes);
        tags.extend(more);
    }
    (first.freeze(), tags)
}

fn seal_part(sealer: &DiskSealer, lba: u64, counter: u64, data: &mut [u8]) -> Vec<[u8; TAG_LEN]> {
    let blocks = data.as_chunks_mut::<BLOCK_LEN>().0.iter_mut();
    blocks
        .zip((lba..).zip(counter..))
        .map(|(block, (lba, counter))| sealer.seal_block(BlockPosition::Data { lba }, counter, block).tag)
        .collect()
}

/// Opens consecutive blocks into a buffer of the same length. `sealed` is a buffer of the pool.
pub(super) async fn open_blocks(
    sealer: &Arc<DiskSealer>,
    lba: u64,
    entries: Vec<BlockEntry>,
    sealed: Vec<u8>,
    mut data: Vec<u8>,
    pool: &BufferPool,
) -> Result<Vec<u8>, E2eMismatch> {
    let part = part_blocks(entries.len());
    if part >= entries.len() {
        open_part(sealer, lba, &entries, &sealed, &mut data)?;
        pool.give(sealed);
        return Ok(data);
    }
    let (entries, sealed) = (Arc::new(entries), pool.share(sealed));
    let mut rest = BytesMut::zeroed(sealed.len());
    let mut first = rest.split_to(part * BLOCK_LEN);
    let mut others = Vec::new();
    let mut done = part;
    while !rest.is_empty() {
        let mut bytes = rest.split_to((part * BLOCK_LEN).min(rest.len()));
        let (sealer, entries, sealed, start) =
            (Arc::clone(sealer), Arc::clone(&entries), sealed.clone(), done);
        others.push(tokio::task::spawn_blocking(move || {
            let end = start * BLOCK_LEN + bytes.len();
            let sealed = &sealed[start * BLOCK_LEN..end];
            open_part(&sealer, lba + start as u64, &entries[start..], sealed, &mut bytes).map(|()| bytes)
        }));
        done += part;
    }
    let mut outcome = open_part(sealer, lba, &entries, &sealed[..part * BLOCK_LEN], &mut first);
    for other in others {
        match other.await.expect("opening does not panic") {
            Ok(bytes) => first.unsplit(bytes),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome.map(|()| first.into())
}

fn open_part(
    sealer: &DiskSealer,
    lba: u64,
    entries: &[BlockEntry],
    sealed: &[u8],
    data: &mut [u8],
) -> Result<(), E2eMismatch> {
    let blocks = sealed.chunks(BLOCK_LEN).zip(data.chunks_mut(BLOCK_LEN));
    for ((sealed, data), (entry, lba)) in blocks.zip(entries.iter().zip(lba..)) {
        sealer.open_block(BlockPosition::Data { lba }, entry, sealed, data)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sealstone_block_e2e::{KeyEpoch, LeaseEpoch, UnitId, UnitKey, UnitKeyRing, portable_aead};

    use super::*;

    #[test]
    fn both_implementations_agree() {
        let (key, nonce, associated) = ([7; KEY_LEN], [9; NONCE_LEN], [3; 34]);
        let (fast, portable) = (fast_aead(&key), portable_aead(&key));
        for length in [0, 1, 15, 16, 17, 255, 4096, 4032] {
            let data: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let (mut one, mut two) = (data.clone(), data.clone());
            let tag = fast.seal(&nonce, &associated, &mut one);
            assert_eq!(tag, portable.seal(&nonce, &associated, &mut two), "{length}");
            assert_eq!(one, two);
            let mut opened = vec![0; length];
            fast.open(&nonce, &associated, &one, &tag, &mut opened).expect("it was sealed");
            assert_eq!(opened, data);
            let mut wrong = tag;
            wrong[0] ^= 1;
            assert!(fast.open(&nonce, &associated, &one, &wrong, &mut opened).is_err());
            assert!(opened.iter().all(|byte| *byte == 0), "no plain text after an error");
        }
    }

    #[tokio::test]
    async fn requests_of_all_sizes_open_again() {
        let ring = UnitKeyRing::new(UnitId([1; 16]), KeyEpoch(1), UnitKey::new([2; 32]), fast_aead);
        let sealer = Arc::new(DiskSealer::new(ring.expect("epoch 1"), LeaseEpoch(3)));
        let pool = BufferPool::default();
        for blocks in [1_usize, 2, 31, 32, 33, 67, 250] {
            let data: Vec<u8> = (0..blocks * BLOCK_LEN).map(|at| (at / 7) as u8).collect();
            let (sealed, tags) = seal_blocks(&sealer, 5, 100, &Bytes::from(data.clone()), &pool).await;
            let entries = tags.iter().zip(100..).map(|(tag, counter)| BlockEntry {
                key_epoch: KeyEpoch(1),
                lease_epoch: LeaseEpoch(3),
                counter,
                tag: *tag,
                ..BlockEntry::UNWRITTEN
            });
            let entries: Vec<_> = entries.collect();
            assert_eq!(entries.len(), blocks);
            let mut other = pool.take(data.len());
            other.fill(0xEE);
            let opened = open_blocks(&sealer, 5, entries.clone(), sealed.to_vec(), other, &pool).await;
            assert_eq!(opened.as_ref(), Ok(&data), "{blocks}");
            let mut changed = sealed.to_vec();
            *changed.last_mut().expect("not empty") ^= 1;
            let other = pool.take(data.len());
            assert!(open_blocks(&sealer, 5, entries, changed, other, &pool).await.is_err());
        }
    }
}
