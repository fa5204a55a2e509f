//! Hash and MAC: attacks by a man in the middle on data whose check value covers digests; all of
//! them fail.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use crate::common::*;
use proptest::prelude::*;
use proptest::sample::Index;
use sealstone_crypto::RustCrypto;
use sealstone_digest::{
    CoverPart, CoveredDigests, DataDirection, DigestCover, DigestValue, Profile, RangeHeader,
};
use sealstone_osd::attribute::list;
use sealstone_osd::cdb::{Append, Extent, GetList, Segment, Target};
use sealstone_osd::{AttributeId, AttributeParameters, Cdb, Command, Generation, SecurityMethod};
use sealstone_seal::algorithm::{SLOT_HMAC_SHA256, SLOT_UNITS_ADHASH, SLOT_UNITS_BLAKE3, SLOT_UNITS_SHA1};
use sealstone_seal::cover::{DataLocation, ObjectBounds};
use sealstone_seal::*;

/// Every generation with every algorithm over digests whose tags fit.
const CASES: [(Generation, u8); 5] = [
    (Generation::Osd2, SLOT_UNITS_BLAKE3),
    (Generation::Osd2, SLOT_UNITS_SHA1),
    (Generation::Osd2, SLOT_UNITS_ADHASH),
    (Generation::Osd1, SLOT_UNITS_SHA1),
    (Generation::Osd1, SLOT_UNITS_ADHASH),
];
const SLOTS: AlgorithmSlots = AlgorithmSlots::WITH_BROKEN;

fn device() -> Device {
    let nonces = NonceLimits { slots_per_second: 1 << 14, ..NonceLimits::default() };
    Device::with(GatePolicy { slots: SLOTS, nonces, ..GatePolicy::default() })
}

fn credential_of(keys: &Keys, generation: Generation, slot: u8) -> Credential {
    let mut capability = capability(generation, SecurityMethod::AllData);
    capability.icv_algorithm = slot;
    Credential::issue(keys, &SLOTS, &capability).unwrap()
}

fn profile_of(slot: u8) -> Profile {
    SLOTS.get(slot).unwrap().digest().unwrap()
}

/// The bytes of the object.
fn content(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at * 7 + at / 251 + at / 4093) as u8).collect()
}

fn extent(start: u64, length: u64) -> Extent {
    Extent { object: OBJECT, start, length }
}

/// A command that was signed and admitted.
struct SeedExchange {
    signer: TestSigner,
    signed: SignedCommand,
    cdb: Cdb,
    admitted: Admitted<RustCrypto>,
    profile: Profile,
    data_in_key: <RustCrypto as Provider>::MacKey,
}

impl SeedExchange {
    fn new(generation: Generation, slot: u8, command: Command, data: &[&[u8]]) -> Self {
        Self::at(&device(), generation, slot, command, data, &mut random())
    }

    fn at(
        device: &Device,
        generation: Generation,
        slot: u8,
        command: Command,
        data: &[&[u8]],
        random: &mut dyn Random,
    ) -> Self {
        let credential = credential_of(&device.keys, generation, slot);
        let signer = TestSigner::new(&credential, &SLOTS).unwrap();
        let cdb = Cdb::new(generation, command);
        let mut parts = SentParts { data, ..SentParts::default() };
        let signed = signer.sign(cdb, &mut parts, NOW, None, random).unwrap();
        let cdb = Cdb::parse(&signed.cdb).unwrap();
        let Ok(admitted) = device.admit(&signed.cdb) else { panic!("admitted") };
        let algorithm = SLOTS.get(slot).unwrap();
        let mut data_in_key = RustCrypto::mac_key(algorithm.hash(), credential.key.expose());
        if algorithm.is_split() {
            let key = icv::purpose_key::<RustCrypto>(&data_in_key, icv::Purpose::DataIn);
            data_in_key = RustCrypto::mac_key(algorithm.hash(), key.as_bytes());
        }
        Self { signer, signed, cdb, admitted, profile: profile_of(slot), data_in_key }
    }

    fn read(generation: Generation, slot: u8, start: u64, length: u64) -> Self {
        Self::new(generation, slot, Command::Read(extent(start, length)), &[])
    }

    fn write(generation: Generation, slot: u8, start: u64, data: &[u8]) -> Self {
        let command = Command::Write(extent(start, data.len() as u64));
        Self::new(generation, slot, command, &[data])
    }

    /// Returns the Data-Out Buffer.
    fn data_out(&self, data: &[u8]) -> Vec<u8> {
        let mut buffer = data.to_vec();
        if let Some(block) = &self.signed.integrity {
            buffer.resize(block.offset as usize, 0);
            buffer.extend(block.as_bytes());
        }
        buffer
    }

    /// Returns the Data-In Buffer with these bytes of an object and this integrity information.
    fn buffer(&self, data: &[u8], block: &[u8]) -> Vec<u8> {
        let layout = self.admitted.data_in_layout(&self.cdb).unwrap();
        assert_eq!(layout.integrity_len, block.len() as u64);
        let mut data_in = data.to_vec();
        data_in.resize(layout.integrity.unwrap() as usize, 0);
        data_in.extend(block);
        data_in
    }

    /// Returns what the device sends of an object of that length.
    fn reply(&self, data: &[u8], stored: &StoredObject<'_>) -> Vec<u8> {
        self.buffer(data, &self.admitted.reply().data_in_of(&[data], b"", Some(stored)).unwrap())
    }

    fn verify(&self, data_in: &[u8]) -> Result<Vec<u8>, ReplyError> {
        let sense = self.admitted.reply().sense(0, &[]);
        let reply = ReceivedReply { status: 0, sense: &sense, data_in };
        let verdict = self.signer.verify(&self.signed, &reply).map(|checked| checked.data.to_vec());
        // A client that hashed while the buffer filled gets the same result.
        let mut arriving = self.signer.arriving(&self.signed).expect("digests count for this read");
        for end in (0..data_in.len()).step_by(5000) {
            arriving.advance(&data_in[..end]);
        }
        arriving.advance(data_in);
        let arrived = self.signer.verify_arrived(&self.signed, &reply, Some(&arriving));
        assert_eq!(arrived.map(|checked| checked.data.to_vec()), verdict);
        verdict
    }

    /// Returns integrity information as a holder of the key could create it, with any header and
    /// any digests.
    fn forge(&self, header: &RangeHeader, values: &[u8]) -> Vec<u8> {
        let mut field = vec![0; self.cdb.generation.icv_len()];
        assert!(RustCrypto::tag(&self.data_in_key, &[&header.encode(), values]).place(&mut field));
        let counts = icv::DataInCounts { data: header.moved, attributes: 0 };
        let place = ObjectBounds { object_length: header.object_length, generation: header.generation };
        [&counts.encode()[..], &place.encode(), &field].concat()
    }

    /// Returns the header that the device uses.
    fn header(&self, moved: u64, object_length: u64, digests: u32) -> RangeHeader {
        let origin = DataLocation::of(&self.cdb);
        RangeHeader {
            profile: self.profile,
            direction: DataDirection::In,
            nonce: self.cdb.security.nonce,
            partition: origin.object.partition,
            object: origin.object.object,
            start: origin.start.unwrap(),
            moved,
            object_length,
            generation: 0,
            digests,
            set_attributes: 0,
            get_attributes: 0,
        }
    }
}

fn of_length(object_length: u64) -> StoredObject<'static> {
    StoredObject { place: ObjectBounds { object_length, generation: 0 }, covered: None, page: None }
}

/// Returns the digests of a range from `start` on.
fn values(profile: Profile, start: u64, object_length: u64, data: &[u8]) -> Vec<u8> {
    CoveredDigests::of(DigestCover::new(profile, start, data.len() as u64, object_length), data).to_bytes()
}

/// Returns what a store keeps: the digest of each unit of the object.
fn kept(profile: Profile, object: &[u8]) -> Vec<DigestValue> {
    object.chunks(profile.unit_bytes() as usize).zip(0..).map(|(unit, at)| profile.value(at, unit)).collect()
}

fn cases() -> impl Strategy<Value = (Generation, u8)> {
    proptest::sample::select(&CASES[..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any range of any object, with every digest: the read verifies, and the device needs no byte
    /// of whole units for it.
    #[test]
    fn every_range_verifies_with_stored_values(
        (generation, slot) in cases(), length in 0_u64..60_000, start in any::<Index>(), wanted in 0_u64..50_000,
    ) {
        let object = content(length as usize);
        let start = start.index(length as usize + 1) as u64;
        let end = (start + wanted).min(length);
        let data = &object[start as usize..end as usize];
        let exchange = SeedExchange::read(generation, slot, start, wanted);
        if wanted == 0 {
            prop_assert_eq!(exchange.admitted.data_in_layout(&exchange.cdb).unwrap().integrity, None);
            return Ok(());
        }
        let profile = profile_of(slot);
        prop_assert_eq!(exchange.admitted.reply().digest(), Some((profile, start)));
        let kept = kept(profile, &object);
        let cover = DigestCover::new(profile, start, data.len() as u64, length);
        // Where units are whole the device has other bytes in memory: they are not used.
        let mut edges = data.to_vec();
        for part in cover.parts() {
            if let CoverPart::Whole { range, .. } = part {
                edges[(range.start - start) as usize..(range.end - start) as usize].fill(0xEE);
            }
        }
        let covered = CoveredDigests::with(cover, &edges, |unit| Some(kept[unit as usize]));
        let stored = StoredObject { covered: Some(&covered), ..of_length(length) };
        let data_in = exchange.reply(data, &stored);
        prop_assert_eq!(exchange.verify(&data_in).unwrap(), data);
        prop_assert_eq!(&data_in, &exchange.reply(data, &of_length(length)));
    }

    /// Any changed bit of data or of integrity information.
    #[test]
    fn a_changed_bit_of_a_read_is_found(
        (generation, slot) in cases(), start in 0_u64..20_000, wanted in 1_u64..20_000, at in any::<Index>(), bit in 0..8,
    ) {
        let object = content(40_000);
        let data = &object[start as usize..(start + wanted) as usize];
        let exchange = SeedExchange::read(generation, slot, start, wanted);
        let data_in = exchange.reply(data, &of_length(40_000));
        prop_assert_eq!(exchange.verify(&data_in).unwrap(), data);
        let block = exchange.admitted.data_in_layout(&exchange.cdb).unwrap().integrity.unwrap() as usize;
        let protected: Vec<usize> = (0..data.len()).chain(block..data_in.len()).collect();
        let mut forged = data_in.clone();
        forged[protected[at.index(protected.len())]] ^= 1_u8 << bit;
        prop_assert_eq!(exchange.verify(&forged), Err(ReplyError::DataInIcv));
    }

    /// The same for data-out; and the verified digests are what a store may keep.
    #[test]
    fn writes_are_verified_over_stored_digests(
        (generation, slot) in cases(), start in 0_u64..40_000, length in 1_usize..40_000, at in any::<Index>(), bit in 0..8,
    ) {
        let data = content(length);
        let exchange = SeedExchange::write(generation, slot, start, &data);
        let buffer = exchange.data_out(&data);
        let authentic = exchange.admitted.authenticate(&exchange.cdb, &buffer).unwrap();
        let covered = authentic.covered().unwrap();
        let cover = DigestCover::of_write(profile_of(slot), start, length as u64);
        prop_assert_eq!(covered, &CoveredDigests::of(cover, &data));
        let block = exchange.signed.integrity.unwrap().offset as usize;
        let protected: Vec<usize> = (0..length).chain(block..buffer.len()).collect();
        let mut forged = buffer.clone();
        forged[protected[at.index(protected.len())]] ^= 1_u8 << bit;
        prop_assert_eq!(exchange.admitted.authenticate(&exchange.cdb, &forged), Err(Denial::DataOutIcv));
    }

    /// Any bytes in place of the integrity information: neither end panics or accepts them.
    #[test]
    fn random_integrity_information_is_refused(
        (generation, slot) in cases(), noise in proptest::collection::vec(any::<u8>(), 80), count in 0_u64..5000,
    ) {
        let exchange = SeedExchange::read(generation, slot, 100, 4096);
        let len = exchange.admitted.data_in_layout(&exchange.cdb).unwrap().integrity_len as usize;
        let mut block = noise[..len].to_vec();
        block[..8].copy_from_slice(&count.to_be_bytes());
        block[8..16].fill(0);
        let data_in = exchange.buffer(&content(4096), &block);
        prop_assert_eq!(exchange.verify(&data_in), Err(ReplyError::DataInIcv));
        let data = content(4096);
        let write = SeedExchange::write(generation, slot, 100, &data);
        let mut buffer = write.data_out(&data);
        let at = write.signed.integrity.unwrap().offset as usize;
        let end = buffer.len();
        buffer[at + 24..end].copy_from_slice(&noise[..end - at - 24]);
        prop_assert_eq!(write.admitted.authenticate(&write.cdb, &buffer), Err(Denial::DataOutIcv));
    }
}

/// D9: blocks of one reply are swapped, with their digests or without.
#[test]
fn swapped_blocks_are_found() {
    for (generation, slot) in CASES {
        let object = content(32_768);
        let exchange = SeedExchange::read(generation, slot, 0, 32_768);
        let data_in = exchange.reply(&object, &of_length(32_768));
        let mut swapped = data_in.clone();
        swapped[8192..24_576].rotate_left(8192);
        assert_eq!(exchange.verify(&swapped), Err(ReplyError::DataInIcv), "{generation} slot {slot}");
        // A store swapped the digests of two units.
        let kept = kept(profile_of(slot), &object);
        let last = kept.len() - 1;
        let cover = DigestCover::new(profile_of(slot), 0, 32_768, 32_768);
        let mixed = CoveredDigests::with(cover, &object, |unit| Some(kept[last - unit as usize]));
        let mixed = StoredObject { covered: Some(&mixed), ..of_length(32_768) };
        assert_eq!(exchange.verify(&exchange.reply(&object, &mixed)), Err(ReplyError::DataInIcv));
    }
}

/// A short read must be short because the object ends: not even a device that says otherwise is
/// trusted.
#[test]
fn truncated_read_is_detected() {
    for (generation, slot) in CASES {
        let object = content(20_000);
        let exchange = SeedExchange::read(generation, slot, 4096, 16_384);
        let whole = exchange.reply(&object[4096..], &of_length(20_000));
        assert_eq!(exchange.verify(&whole).unwrap(), &object[4096..]);
        for length in [0, 1, 4096, 12_288, 15_903] {
            let data = &object[4096..4096 + length];
            let values = values(profile_of(slot), 4096, 20_000, data);
            let count = (values.len() / profile_of(slot).value_bytes()) as u32;
            let block = exchange.forge(&exchange.header(length as u64, 20_000, count), &values);
            assert_eq!(exchange.verify(&exchange.buffer(data, &block)), Err(ReplyError::DataInIcv));
            // Only the counts changed; the buffer is unchanged.
            let mut forged = whole.clone();
            let at = forged.len() - block.len();
            forged[at..at + 8].copy_from_slice(&(length as u64).to_be_bytes());
            assert_eq!(exchange.verify(&forged), Err(ReplyError::DataInIcv), "{length}");
        }
        // More than the object has.
        let data = &object[4096..];
        let values = values(profile_of(slot), 4096, 20_000, data);
        let count = (values.len() / profile_of(slot).value_bytes()) as u32;
        let block = exchange.forge(&exchange.header(15_904, 10_000, count), &values);
        assert_eq!(exchange.verify(&exchange.buffer(data, &block)), Err(ReplyError::DataInIcv));
    }
}

/// D5: an old reply to the same command.
#[test]
fn a_replayed_reply_is_found() {
    for (generation, slot) in CASES {
        let (device, mut chance) = (device(), random());
        let command = Command::Read(extent(0, 10_000));
        let mut exchange = || SeedExchange::at(&device, generation, slot, command, &[], &mut chance);
        let (yesterday, today) = (exchange(), exchange());
        let data = content(10_000);
        let old = yesterday.reply(&data, &of_length(10_000));
        assert!(yesterday.verify(&old).is_ok());
        assert_eq!(today.verify(&old), Err(ReplyError::DataInIcv));
    }
}

/// Data-out cannot be replayed as data-in, even if one key is used for everything.
#[test]
fn a_reflected_direction_is_found() {
    for (generation, slot) in CASES {
        let data = content(16_384);
        let exchange = SeedExchange::read(generation, slot, 0, 16_384);
        let values = values(profile_of(slot), 0, 16_384, &data);
        let count = (values.len() / profile_of(slot).value_bytes()) as u32;
        let inward = exchange.header(16_384, 16_384, count);
        let good = exchange.forge(&inward, &values);
        assert_eq!(exchange.verify(&exchange.buffer(&data, &good)).unwrap(), data);
        for wrong in [
            RangeHeader { direction: DataDirection::Out, ..inward },
            RangeHeader { nonce: Nonce::new(NOW, [9; 6]).0, ..inward },
            RangeHeader { partition: 5, ..inward },
            RangeHeader { object: 5, ..inward },
            RangeHeader { start: 8192, ..inward },
            RangeHeader { moved: 8192, ..inward },
            RangeHeader { digests: count + 1, ..inward },
            RangeHeader { set_attributes: 1, ..inward },
            RangeHeader { get_attributes: 1, ..inward },
            RangeHeader { profile: Profile::AdHash128, ..inward },
        ] {
            let mut block = exchange.forge(&wrong, &values);
            block[..8].copy_from_slice(&16_384_u64.to_be_bytes());
            let received = exchange.verify(&exchange.buffer(&data, &block));
            assert_eq!(received, Err(ReplyError::DataInIcv), "{wrong:?}");
        }
    }
}

/// The right bytes of another object, or of another offset of this one.
#[test]
fn data_of_another_object_or_place_are_found() {
    for (generation, slot) in CASES {
        let data = vec![7; 16_384];
        let here = SeedExchange::read(generation, slot, 0, 16_384);
        let there = SeedExchange::read(generation, slot, 16_384, 16_384);
        let reply = there.reply(&data, &of_length(65_536));
        assert!(there.verify(&reply).is_ok());
        assert_eq!(here.verify(&reply), Err(ReplyError::DataInIcv), "{generation} slot {slot}");
    }
}

/// An edge that covers one byte less or more, or that replaces a unit.
#[test]
fn a_wrong_edge_is_found() {
    for (generation, slot) in CASES {
        let object = content(40_000);
        let (start, end) = (5000_usize, 21_000_usize);
        let data = &object[start..end];
        let exchange = SeedExchange::read(generation, slot, start as u64, (end - start) as u64);
        let profile = profile_of(slot);
        let (unit, len) = (profile.unit_bytes() as usize, profile.value_bytes());
        let good = values(profile, 5000, 40_000, data);
        let header = exchange.header(data.len() as u64, 40_000, (good.len() / len) as u32);
        let received =
            |values: &[u8]| exchange.verify(&exchange.buffer(data, &exchange.forge(&header, values)));
        assert!(received(&good).is_ok());
        // The digest of the whole first unit instead of that of its end, and edges one byte too
        // long.
        let whole = values(profile, 0, 40_000, &object[..unit]);
        assert_eq!(received(&[&whole, &good[len..]].concat()), Err(ReplyError::DataInIcv));
        let early = values(profile, 4999, 40_000, &object[4999..unit]);
        assert_eq!(received(&[&early, &good[len..]].concat()), Err(ReplyError::DataInIcv));
        let late = values(profile, 16_384, 40_000, &object[16_384..21_001]);
        assert_eq!(received(&[&good[..good.len() - len], &late[..]].concat()), Err(ReplyError::DataInIcv));
        assert_eq!(received(&good[..good.len() - len]), Err(ReplyError::DataInIcv));
    }
}

/// If a device supplies digests it may not have checked the bytes: no digests are computed from
/// those, and for other bytes than the digests cover there is no check value at all.
#[test]
fn foreign_cover_yields_no_check_value() {
    for (generation, slot) in CASES {
        let object = content(40_000);
        let exchange = SeedExchange::read(generation, slot, 0, 32_768);
        let data = &object[..32_768];
        let made = |covered: &CoveredDigests| {
            let stored = StoredObject { covered: Some(covered), ..of_length(40_000) };
            exchange.admitted.reply().data_in_of(&[data], b"", Some(&stored))
        };
        let own = profile_of(slot);
        let of = |profile, at: u64, length: u64, end| {
            CoveredDigests::of(
                DigestCover::new(profile, at, length, end),
                &object[at as usize..(at + length) as usize],
            )
        };
        assert!(made(&of(own, 0, 32_768, 40_000)).is_some());
        let other = if own == Profile::Blake3 { Profile::Sha1 } else { Profile::Blake3 };
        for wrong in [
            of(own, 0, 32_767, 40_000),
            of(own, 1, 32_768, 40_000),
            of(own, 0, 32_768, 32_768),
            of(other, 0, 32_768, 40_000),
        ] {
            assert_eq!(made(&wrong), None, "{:?}", wrong.cover());
        }
    }
}

/// D13: a store's digest was damaged, or its bytes were: the client rejects the read.
#[test]
fn a_damaged_stored_digest_is_found() {
    for (generation, slot) in CASES {
        let object = content(16_384);
        let profile = profile_of(slot);
        let exchange = SeedExchange::read(generation, slot, 0, 16_384);
        let kept = kept(profile, &object);
        let reply = |data: &[u8], kept: &[DigestValue]| {
            let cover = DigestCover::new(profile, 0, 16_384, 16_384);
            let covered = CoveredDigests::with(cover, data, |unit| Some(kept[unit as usize]));
            exchange.reply(data, &StoredObject { covered: Some(&covered), ..of_length(16_384) })
        };
        for bit in 0..profile.value_bytes() * 8 {
            let mut damaged = kept.clone();
            let mut bytes = damaged[0].as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            damaged[0] = DigestValue::new(&bytes).unwrap();
            assert_eq!(exchange.verify(&reply(&object, &damaged)), Err(ReplyError::DataInIcv), "{bit}");
        }
        let mut rotten = object.clone();
        rotten[9000] ^= 1;
        assert_eq!(exchange.verify(&reply(&rotten, &kept)), Err(ReplyError::DataInIcv));
        assert!(exchange.verify(&reply(&object, &kept)).is_ok());
    }
}

/// The credential determines the algorithm; another slot is another capability, and has no key.
#[test]
fn another_slot_is_another_credential() {
    let device = device();
    let genuine = credential_of(&device.keys, Generation::Osd2, SLOT_UNITS_BLAKE3);
    for slot in [SLOT_HMAC_SHA256, 0, SLOT_UNITS_SHA1, SLOT_UNITS_ADHASH] {
        let signer = TestSigner::new(&genuine, &SLOTS).unwrap();
        let signed = sign(&signer, read(Generation::Osd2), NOW, &mut random());
        let mut wire = signed.cdb.to_vec();
        wire[81] = wire[81] & 0xF0 | slot;
        let Err(refused) = device.admit(&wire) else { panic!("slot {slot} was admitted") };
        assert_eq!(refused.denial, Denial::RequestIcv);
    }
}

/// A reply with a weaker algorithm is rejected, even from a peer that knows the capability key.
#[test]
fn a_reply_by_another_algorithm_is_found() {
    let data = content(16_384);
    let exchange = SeedExchange::read(Generation::Osd2, SLOT_UNITS_BLAKE3, 0, 16_384);
    let device = device();
    let key = credential_of(&device.keys, Generation::Osd2, SLOT_UNITS_BLAKE3).key;
    let nonce = Nonce(exchange.cdb.security.nonce);
    assert_eq!(exchange.signer.algorithm(), Algorithm::UnitsBlake3);
    let origin = DataLocation::of(&exchange.cdb);
    let place = ObjectBounds { object_length: 16_384, generation: 0 };
    let counts = icv::DataInCounts { data: 16_384, attributes: 0 }.encode();
    for row in algorithm::ALGORITHMS {
        let keys = IcvKeys::<RustCrypto>::new(row.algorithm, &key, SecurityMethod::AllData);
        let tag = match row.digest {
            None => keys.data_in(&nonce, &[&data], &[]),
            Some(profile) => {
                let covered = CoveredDigests::of(DigestCover::new(profile, 0, 16_384, 16_384), &data);
                cover::tag(
                    &keys,
                    DataDirection::In,
                    &nonce,
                    &origin,
                    place,
                    &covered,
                    [cover::CoveredList::default(); 2],
                )
            }
        };
        let mut field = [0; 32];
        assert!(tag.place(&mut field));
        let block = [&counts[..], &place.encode(), &field].concat();
        let received = exchange.verify(&exchange.buffer(&data, &block));
        match row.algorithm {
            Algorithm::UnitsBlake3 => assert_eq!(received.unwrap(), data),
            _ => assert_eq!(received, Err(ReplyError::DataInIcv), "{}", row.name),
        }
    }
}

/// The broken slot is empty for a device or a client that did not enable it.
#[test]
fn broken_slot_is_empty_by_default() {
    let opted_in = device();
    let credential = credential_of(&opted_in.keys, Generation::Osd2, SLOT_UNITS_ADHASH);
    let refused = TestSigner::new(&credential, &AlgorithmSlots::DEFAULT).err();
    assert_eq!(refused, Some(SignError::Algorithm(SLOT_UNITS_ADHASH)));
    let signer = TestSigner::new(&credential, &SLOTS).unwrap();
    let signed = sign(&signer, read(Generation::Osd2), NOW, &mut random());
    assert!(opted_in.admit(&signed.cdb).is_ok());
    let Err(refused) = Device::new().admit(&signed.cdb) else { panic!("admitted") };
    assert_eq!(refused.denial, Denial::Algorithm(SLOT_UNITS_ADHASH));
}

/// Data without an offset in an object are covered too: as units from zero on.
#[test]
fn append_is_covered_without_an_offset() {
    for (generation, slot) in CASES {
        let data = content(20_000);
        let command = Command::Append(Append { object: OBJECT, length: 20_000 });
        let exchange = SeedExchange::new(generation, slot, command, &[&data[..7000], &data[7000..]]);
        let buffer = exchange.data_out(&data);
        let authentic = exchange.admitted.authenticate(&exchange.cdb, &buffer).unwrap();
        assert_eq!(authentic.data(), data);
        assert_eq!(authentic.covered(), None);
        let mut forged = buffer.clone();
        forged[19_999] ^= 0x80;
        assert_eq!(exchange.admitted.authenticate(&exchange.cdb, &forged), Err(Denial::DataOutIcv));
    }
}

/// GET ATTRIBUTES of one page as a whole.
fn page_exchange(generation: Generation, slot: u8, names: &[AttributeId]) -> (SeedExchange, Vec<u8>) {
    let device = device();
    let credential = credential_of(&device.keys, generation, slot);
    let signer = TestSigner::new(&credential, &SLOTS).unwrap();
    let get = list::encode_get(generation, names);
    let attributes = AttributeParameters::List {
        get: Some(GetList {
            list: Segment { offset: 0, length: get.len() as u32 },
            retrieved: Segment { offset: 0, length: 2048 },
        }),
        set: None,
    };
    let cdb = Cdb { attributes, ..Cdb::new(generation, Command::GetAttributes(Target { object: OBJECT })) };
    let mut parts = SentParts { get_attributes: &get, ..SentParts::default() };
    let signed = signer.sign(cdb, &mut parts, NOW, None, &mut random()).unwrap();
    let cdb = Cdb::parse(&signed.cdb).unwrap();
    let Ok(admitted) = device.admit(&signed.cdb) else { panic!("admitted") };
    let algorithm = SLOTS.get(slot).unwrap();
    let data_in_key = RustCrypto::mac_key(algorithm.hash(), credential.key.expose());
    (SeedExchange { signer, signed, cdb, admitted, profile: profile_of(slot), data_in_key }, get)
}

fn retrieved(generation: Generation, page: u32, values: &[(u32, &[u8])], room: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = list::RetrievedWriter::new(generation, &mut bytes, room);
    values.iter().for_each(|(number, value)| out.push(AttributeId::new(page, *number), value));
    out.finish();
    bytes
}

/// The stored digest of the page is sufficient for the device; any changed byte of the list is
/// found; a list that is truncated, or that is not one page, is covered by its bytes.
#[test]
fn whole_page_uses_its_stored_digest() {
    const PAGE: u32 = 0x1_0005;
    let values: [(u32, &[u8]); 3] = [(0, &[b' '; 40]), (7, b"seven"), (9, &[3; 300])];
    for (generation, slot) in CASES {
        let whole = [AttributeId::new(PAGE, AttributeId::ALL)];
        let (exchange, get) = page_exchange(generation, slot, &whole);
        assert_eq!(cover::whole_page(&exchange.cdb, &get), Some(PAGE));
        let list = retrieved(generation, PAGE, &values, 2048);
        let profile = profile_of(slot);
        let mut digest = sealstone_digest::AttributePage::new(profile, PAGE);
        values.iter().for_each(|(number, value)| digest.push(*number, value));
        let stored = digest.finish();
        assert_eq!(cover::page_value(profile, generation, PAGE, &list), Some(stored));
        let place = exchange.admitted.data_in_layout(&exchange.cdb).unwrap().integrity.unwrap() as usize;
        let reply = |list: &[u8], page: Option<DigestValue>| {
            let stored = StoredObject { page, ..of_length(0) };
            let block = exchange.admitted.reply().data_in_of(&[], list, Some(&stored)).unwrap();
            let mut data_in = list.to_vec();
            data_in.resize(place, 0);
            data_in.extend(block);
            data_in
        };
        let verify = |data_in: &[u8]| {
            let sense = exchange.admitted.reply().sense(0, &[]);
            let reply = ReceivedReply { status: 0, sense: &sense, data_in };
            exchange.signer.verify(&exchange.signed, &reply).map(|checked| checked.attributes.to_vec())
        };
        let good = reply(&list, Some(stored));
        assert_eq!(verify(&good).unwrap(), list);
        for at in 0..list.len() {
            let mut forged = good.clone();
            forged[at] ^= 0x10;
            assert_eq!(verify(&forged), Err(ReplyError::DataInIcv), "{generation} slot {slot} byte {at}");
        }
        // The digest of the list itself is not valid here, nor the reverse.
        assert_eq!(verify(&reply(&list, None)), Err(ReplyError::DataInIcv));
        let cut = retrieved(generation, PAGE, &values, 100);
        assert_eq!(cover::page_value(profile, generation, PAGE, &cut), None);
        assert_eq!(verify(&reply(&cut, None)).unwrap(), cut);
        assert_eq!(verify(&reply(&cut, Some(stored))), Err(ReplyError::DataInIcv));
        let other = retrieved(generation, PAGE + 1, &values, 2048);
        assert_eq!(cover::page_value(profile, generation, PAGE, &other), None);
    }
}

/// The list of a page without attributes cannot be replaced by one that is the number of the page.
#[test]
fn empty_page_cannot_replace_list_of_number() {
    const PAGE: u32 = 0x1_0005;
    for (generation, slot) in CASES {
        let (exchange, _) = page_exchange(generation, slot, &[AttributeId::new(PAGE, AttributeId::ALL)]);
        let list = retrieved(generation, PAGE, &[], 2048);
        let stored = sealstone_digest::AttributePage::new(profile_of(slot), PAGE).finish();
        assert_eq!(cover::page_value(profile_of(slot), generation, PAGE, &list), Some(stored));
        let place = exchange.admitted.data_in_layout(&exchange.cdb).unwrap().integrity.unwrap() as usize;
        let known = StoredObject { page: Some(stored), ..of_length(0) };
        let mut data_in = list.clone();
        data_in.resize(place, 0);
        data_in.extend(exchange.admitted.reply().data_in_of(&[], &list, Some(&known)).unwrap());
        let verify = |data_in: &[u8]| {
            let sense = exchange.admitted.reply().sense(0, &[]);
            let reply = ReceivedReply { status: 0, sense: &sense, data_in };
            exchange.signer.verify(&exchange.signed, &reply).map(|checked| checked.attributes.to_vec())
        };
        assert_eq!(verify(&data_in).unwrap(), list);
        if generation == Generation::Osd1 {
            assert_eq!(list.len(), 4, "as long as the forged one");
        }
        data_in[..4].copy_from_slice(&PAGE.to_be_bytes());
        assert_eq!(verify(&data_in), Err(ReplyError::DataInIcv), "{generation} slot {slot}");
    }
}

#[test]
fn only_single_application_page_counts_as_whole() {
    let page = |names: &[AttributeId]| {
        let (exchange, get) = page_exchange(Generation::Osd2, SLOT_UNITS_BLAKE3, names);
        cover::whole_page(&exchange.cdb, &get)
    };
    let all = |page| AttributeId::new(page, AttributeId::ALL);
    assert_eq!(page(&[all(0x1_0000)]), Some(0x1_0000));
    assert_eq!(page(&[all(0x3001_0000)]), Some(0x3001_0000));
    for names in [
        &[all(0x1_0000), all(0x1_0001)][..],
        &[AttributeId::new(0x1_0000, 1)],
        &[all(1)],
        &[all(0x3000_0001)],
        &[all(AttributeId::ALL)],
        &[all(0xFFFF_FFFE)],
        &[all(0xF000_0000)],
    ] {
        assert_eq!(page(names), None, "{names:?}");
    }
}
