//! End to end: the client signs, the device verifies and seals, the client verifies; any change on
//! the way is found.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use crate::common::*;
use proptest::prelude::*;
use proptest::sample::Index;
use sealstone_crypto::RustCrypto;
use sealstone_osd::cdb::{GetList, Segment};
use sealstone_osd::{AttributeParameters, Cdb, Generation, SecurityMethod};
use sealstone_scsi::{Sense, SenseKey, Status, additional};
use sealstone_seal::*;

/// A WRITE with set and get lists, at offsets that both generations can express.
fn busy_write(generation: Generation, data: usize, set: usize, get: usize) -> Cdb {
    let step = |end: u64| sealstone_osd::offset::align_up(generation, end).unwrap();
    let set_part = Segment { offset: step(data as u64), length: set as u32 };
    let get_part = Segment { offset: step(set_part.end()), length: get as u32 };
    let attributes = AttributeParameters::List {
        get: (get > 0).then_some(GetList { list: get_part, retrieved: Segment { offset: 0, length: 64 } }),
        set: (set > 0).then_some(set_part),
    };
    Cdb { attributes, ..write(generation, data as u64) }
}

/// Returns the Data-Out Buffer as a transport carries it.
fn buffer(cdb: &Cdb, signed: &SignedCommand, data: &[u8], set: &[u8], get: &[u8]) -> Vec<u8> {
    let mut out = data.to_vec();
    let mut put = |at: u64, bytes: &[u8]| {
        let at = at as usize;
        out.resize(out.len().max(at + bytes.len()), 0);
        out[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(cdb.attributes.set_segment().unwrap_or_default().offset, set);
    put(cdb.attributes.get_list_segment().unwrap_or_default().offset, get);
    if let Some(integrity) = &signed.integrity {
        put(integrity.offset, integrity.as_bytes());
    }
    out
}

struct SeedExchange {
    device: Device,
    signer: TestSigner,
    signed: SignedCommand,
    data_out: Vec<u8>,
}

impl SeedExchange {
    fn new(generation: Generation, method: SecurityMethod, data: &[u8], set: &[u8], get: &[u8]) -> Self {
        let device = Device::new();
        let signer = signer(&device.keys, &capability(generation, method));
        let cdb = busy_write(generation, data.len(), set.len(), get.len());
        let pieces = [data];
        let mut parts =
            SentParts { data: &pieces, set_attributes: set, get_attributes: get, ..SentParts::default() };
        let signed = signer.sign(cdb, &mut parts, NOW, None, &mut random()).unwrap();
        let data_out = buffer(&cdb, &signed, data, set, get);
        Self { device, signer, signed, data_out }
    }

    fn admitted(&self) -> (Cdb, Admitted<RustCrypto>) {
        let cdb = Cdb::parse(&self.signed.cdb).unwrap();
        (cdb, self.device.admit(&self.signed.cdb).map_err(|refused| refused.denial).unwrap())
    }
}

fn methods() -> impl Strategy<Value = SecurityMethod> {
    prop_oneof![Just(SecurityMethod::CmdRsp), Just(SecurityMethod::AllData)]
}

fn generations() -> impl Strategy<Value = Generation> {
    prop_oneof![Just(Generation::Osd1), Just(Generation::Osd2)]
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..max)
}

proptest! {
    #[test]
    fn command_and_reply_verify_end_to_end(
        generation in generations(), method in methods(),
        data in bytes(700), set in bytes(90), get in bytes(90), answer in bytes(64),
    ) {
        let exchange = SeedExchange::new(generation, method, &data, &set, &get);
        let (cdb, admitted) = exchange.admitted();
        let authentic = admitted.authenticate(&cdb, &exchange.data_out).unwrap();
        prop_assert_eq!(authentic.data(), &data[..]);
        prop_assert_eq!(authentic.set_attributes(), &set[..]);
        prop_assert_eq!(authentic.get_attributes(), &get[..]);
        prop_assert_eq!(authentic.used(), exchange.data_out.len() as u64);
        let layout = admitted.data_in_layout(&cdb).unwrap();
        let answer = if layout.attributes.is_some() { &answer[..] } else { &[] };
        let mut data_in = answer.to_vec();
        if let Some(at) = layout.integrity {
            data_in.resize(at as usize, 0);
            data_in.extend(admitted.reply().data_in(&[], answer).unwrap());
            prop_assert_eq!(data_in.len() as u64, exchange.signed.data_in_len);
        }
        let sense = admitted.reply().sense(0, &[]);
        let reply = ReceivedReply { status: 0, sense: &sense, data_in: &data_in };
        let checked = exchange.signer.verify(&exchange.signed, &reply).unwrap();
        prop_assert_eq!(checked.attributes, answer);
        prop_assert_eq!(checked.data, &[0_u8; 0]);
    }

    /// D1: any changed bit of a protected part of data-out is found, and the handler receives
    /// nothing.
    #[test]
    fn a_changed_bit_of_data_out_is_refused(
        generation in generations(),
        data in bytes(300), set in bytes(90), get in bytes(90), at in any::<Index>(), bit in 0..8,
    ) {
        prop_assume!(data.len() + set.len() + get.len() > 0);
        let exchange = SeedExchange::new(generation, SecurityMethod::AllData, &data, &set, &get);
        let (cdb, admitted) = exchange.admitted();
        let integrity = exchange.signed.integrity.unwrap();
        let part = |segment: Segment| segment.offset..segment.end();
        let protected: Vec<u64> = (0..data.len() as u64)
            .chain(part(cdb.attributes.set_segment().unwrap_or_default()))
            .chain(part(cdb.attributes.get_list_segment().unwrap_or_default()))
            .chain(integrity.offset..exchange.data_out.len() as u64)
            .collect();
        let mut forged = exchange.data_out.clone();
        forged[protected[at.index(protected.len())] as usize] ^= 1_u8 << bit;
        prop_assert_eq!(admitted.authenticate(&cdb, &forged), Err(Denial::DataOutIcv));
        prop_assert!(admitted.authenticate(&cdb, &exchange.data_out).is_ok());
    }

    /// D7: any changed bit of status or sense.
    #[test]
    fn changed_status_or_sense_is_refused(
        generation in generations(), method in methods(), good in any::<bool>(), at in any::<Index>(), bit in 0..8,
    ) {
        let exchange = SeedExchange::new(generation, method, &[], &[], &[]);
        let (_, admitted) = exchange.admitted();
        let plain = Sense::new(SenseKey::DataProtect, additional::QUOTA_ERROR).with_attribute(1, 2).encode();
        let status = if good { 0 } else { 2 };
        let sense = admitted.reply().sense(status, if good { &[] } else { &plain });
        let verify = |status, sense: &[u8]| {
            exchange.signer.verify(&exchange.signed, &ReceivedReply { status, sense, data_in: &[] }).map(|_| ())
        };
        prop_assert!(verify(status, &sense).is_ok());
        prop_assert!(verify(status ^ 2, &sense).is_err());
        prop_assert!(verify(0, &[]).is_err() && verify(2, &plain).is_err());
        let mut forged = sense.clone();
        forged[at.index(sense.len())] ^= 1_u8 << bit;
        prop_assert!(verify(status, &forged).is_err());
    }

    #[test]
    fn no_reply_of_random_bytes_verifies(
        generation in generations(), method in methods(),
        status in any::<u8>(), sense in bytes(100), data_in in bytes(400),
    ) {
        let exchange = SeedExchange::new(generation, method, &[], &[], &[1]);
        let reply = ReceivedReply { status, sense: &sense, data_in: &data_in };
        prop_assert!(exchange.signer.verify(&exchange.signed, &reply).is_err());
    }

    #[test]
    fn arbitrary_buffers_and_offsets_never_panic(
        tail in bytes(600), attributes in proptest::collection::vec(any::<u8>(), 28), format in 0_u8..4,
        lengths in any::<[u8; 20]>(),
    ) {
        let device = Device::with(GatePolicy { insecure_nosec: true, ..GatePolicy::default() });
        let mut bytes = write(Generation::Osd2, 0).encode().unwrap().to_vec();
        bytes[11] = format << 4;
        bytes[32..52].copy_from_slice(&lengths);
        bytes[52..80].copy_from_slice(&attributes);
        if let Ok(cdb) = Cdb::parse(&bytes)
            && let Ok(admitted) = device.admit(&bytes)
        {
            let _ = admitted.authenticate(&cdb, &tail);
            let _ = admitted.data_in_layout(&cdb);
        }
    }
}

fn sealed_read(method: SecurityMethod, data: &[u8]) -> (TestSigner, SignedCommand, Vec<u8>, Vec<u8>) {
    let device = Device::new();
    let signer = signer(&device.keys, &capability(Generation::Osd2, method));
    let signed = sign(&signer, read(Generation::Osd2), NOW, &mut random());
    let cdb = Cdb::parse(&signed.cdb).unwrap();
    let Ok(admitted) = device.admit(&signed.cdb) else { panic!("admitted") };
    let mut data_in = data.to_vec();
    if let Some(at) = admitted.data_in_layout(&cdb).unwrap().integrity {
        data_in.resize(at as usize, 0);
        data_in.extend(admitted.reply().data_in(&[data], &[]).unwrap());
    }
    let sense = admitted.reply().sense(0, &[]);
    (signer, signed, data_in, sense)
}

/// D5, D9.
#[test]
fn data_of_another_time_or_place_is_refused() {
    let data: Vec<u8> = (0..4096_u32).map(|at| (at / 512) as u8).collect();
    let (signer, signed, data_in, sense) = sealed_read(SecurityMethod::AllData, &data);
    let verify = |signed: &SignedCommand, data_in: &[u8]| {
        signer
            .verify(signed, &ReceivedReply { status: 0, sense: &sense, data_in })
            .map(|checked| checked.data.to_vec())
    };
    assert_eq!(verify(&signed, &data_in), Ok(data.clone()));
    let mut swapped = data_in.clone();
    swapped[1536..2560].rotate_left(512);
    assert_eq!(verify(&signed, &swapped), Err(ReplyError::DataInIcv));
    let mut shorter = data_in.clone();
    shorter[4096 + 6..4096 + 8].copy_from_slice(&[0, 1]);
    assert_eq!(verify(&signed, &shorter), Err(ReplyError::DataInIcv));
    assert_eq!(verify(&signed, &data_in[..4100]), Err(ReplyError::DataInMissing));
    let again = sign(&signer, read(Generation::Osd2), NOW + 1, &mut random());
    assert_eq!(verify(&again, &data_in), Err(ReplyError::ResponseIcv));
}

/// D17: a short read is as long as the device says, and only the device can say so.
#[test]
fn short_read_length_is_authenticated() {
    for len in [0, 1, 4095, 4096] {
        let (signer, signed, data_in, sense) = sealed_read(SecurityMethod::AllData, &vec![7; len]);
        let reply = ReceivedReply { status: 0, sense: &sense, data_in: &data_in };
        assert_eq!(signer.verify(&signed, &reply).unwrap().data, vec![7; len]);
    }
}

#[test]
fn only_recovered_errors_carry_data() {
    let data = [9; 100];
    let device = Device::new();
    let signer = signer(&device.keys, &capability(Generation::Osd2, SecurityMethod::AllData));
    let signed = sign(&signer, read(Generation::Osd2), NOW, &mut random());
    let Ok(admitted) = device.admit(&signed.cdb) else { panic!("admitted") };
    let mut data_in = vec![0; 4096];
    data_in[..100].copy_from_slice(&data);
    data_in.extend(admitted.reply().data_in(&[&data], &[]).unwrap());
    for (key, expected) in [(SenseKey::RecoveredError, &data[..]), (SenseKey::MediumError, &[])] {
        let sense = Sense::new(key, additional::READ_PAST_END_OF_USER_OBJECT).with_command_specific(100);
        let sense = admitted.reply().sense(Status::CheckCondition.byte(), &sense.encode());
        let reply = ReceivedReply { status: 2, sense: &sense, data_in: &data_in };
        assert_eq!(signer.verify(&signed, &reply).unwrap().data, expected);
        assert_eq!(Sense::parse(&sense).unwrap().command_specific, Some(100));
    }
}

/// Attack D3 of docs/design/security.md, section 8.
#[test]
fn misplaced_integrity_information_is_refused() {
    let device = Device::new();
    let keys = &device.keys;
    let capability = capability(Generation::Osd2, SecurityMethod::AllData);
    let credential = credential(keys, &capability);
    let macs = IcvKeys::<RustCrypto>::new(Algorithm::HmacSha256Split, &credential.key, capability.method);
    let data_out = vec![5; 4096];
    let mut number = 0;
    for (offset, expected) in [
        (None, Denial::DataOutIcvOffset),
        (Some(0), Denial::DataOutIcvOffset),
        (Some(24), Denial::DataOutIcvOffset),
        (Some(4048), Denial::DataOutIcvOffset),
        (Some(1 << 34), Denial::DataOutIcvOffset),
        (Some(64), Denial::DataOutIcv),
    ] {
        let mut cdb = write(Generation::Osd2, 64);
        cdb.capability = credential.capability;
        number += 1;
        cdb.security.nonce = Nonce::new(NOW, [number; 6]).0;
        cdb.security.data_out_icv_offset = offset;
        let mut bytes = cdb.encode().unwrap();
        let tag = macs.request(Generation::Osd2, &bytes).unwrap();
        bytes.set_request_icv(tag.as_bytes());
        let Ok(admitted) = device.admit(&bytes) else { panic!("admitted") };
        assert_eq!(
            admitted.authenticate(&Cdb::parse(&bytes).unwrap(), &data_out),
            Err(expected),
            "{offset:?}"
        );
    }
}

/// A segment of another command, even of the same credential, is refused.
#[test]
fn a_continuation_segment_belongs_to_its_command() {
    let device = Device::new();
    let signer = signer(&device.keys, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    let mut chance = random();
    let mut segment_of = |fill: u8| {
        let cdb = Cdb { continuation_length: 56, ..read(Generation::Osd2) };
        let mut segment = vec![fill; 56];
        let mut parts = SentParts { continuation: &mut segment, ..SentParts::default() };
        let signed = signer.sign(cdb, &mut parts, NOW, None, &mut chance).unwrap();
        (signed.cdb, segment)
    };
    let (first, segment) = segment_of(1);
    let (_, other) = segment_of(1);
    let cdb = Cdb::parse(&first).unwrap();
    let Ok(admitted) = device.admit(&first) else { panic!("admitted") };
    assert_eq!(admitted.authenticate(&cdb, &segment).unwrap().continuation(), &segment[..]);
    assert_eq!(admitted.authenticate(&cdb, &other), Err(Denial::ContinuationIcv));
    for bit in 0..56 * 8 {
        let mut forged = segment.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(admitted.authenticate(&cdb, &forged), Err(Denial::ContinuationIcv), "bit {bit}");
    }
    assert_eq!(admitted.authenticate(&cdb, &segment[..55]), Err(Denial::DataOutLayout));
}

/// N13, over the wire: the device reports its clock under a check value, and the client signs again
/// once.
#[test]
fn client_with_wrong_clock_succeeds_on_retry() {
    let device = Device::new();
    let signer = signer(&device.keys, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    let (mut clock, mut retry, mut chance) = (DeviceClock::default(), NonceRetry::default(), random());
    let local = NOW + 600_000;
    let first = sign(&signer, read(Generation::Osd2), clock.nonce_time(local), &mut chance);
    let Err(refused) = device.admit(&first.cdb) else { panic!("refused") };
    let sense = refused.denial.sense(Generation::Osd2).unwrap().encode();
    let sense = refused.reply.sense(2, &sense);
    signer.verify(&first, &ReceivedReply { status: 2, sense: &sense, data_in: &[] }).unwrap();
    let sense = Sense::parse(&sense).unwrap();
    assert_eq!(retry.after(Some(&sense), &mut clock, local, 0), RetryAdvice::SignAgain);
    let second = sign(&signer, read(Generation::Osd2), clock.nonce_time(local), &mut chance);
    assert!(device.admit(&second.cdb).is_ok());
}

#[test]
fn unproven_refusal_is_unsealed_and_rejected() {
    let device = Device::new();
    let stranger = Keys::factory(Hash::Sha256, &InitialKey::new(&[1; 32]).unwrap(), SYSTEM);
    let mut stranger = stranger;
    stranger.add_partition(PARTITION).unwrap();
    let signer = signer(&stranger, &capability(Generation::Osd2, SecurityMethod::CmdRsp));
    let signed = sign(&signer, read(Generation::Osd2), NOW, &mut random());
    let Err(refused) = device.admit(&signed.cdb) else { panic!("refused") };
    let plain = refused.denial.sense(Generation::Osd2).unwrap().encode();
    let sense = refused.reply.sense(2, &plain);
    assert_eq!(sense, plain);
    let reply = ReceivedReply { status: 2, sense: &sense, data_in: &[] };
    assert_eq!(signer.verify(&signed, &reply), Err(ReplyError::Unsealed(2)));
}

#[test]
fn parts_not_matching_cdb_are_not_signed() {
    let keys = keys();
    let signer = signer(&keys, &capability(Generation::Osd2, SecurityMethod::AllData));
    let pieces: [&[u8]; 1] = [&[0; 10]];
    let mut parts = SentParts { data: &pieces, ..SentParts::default() };
    let result = signer.sign(write(Generation::Osd2, 11), &mut parts, NOW, None, &mut random());
    assert_eq!(result.err(), Some(SignError::Parts));
    let result = signer.sign(write(Generation::Osd1, 10), &mut parts, NOW, None, &mut random());
    assert_eq!(result.err(), Some(SignError::Generation(Generation::Osd2)));
}

#[test]
fn pieces_of_data_are_signed_like_the_whole() {
    let keys = keys();
    let capability = capability(Generation::Osd2, SecurityMethod::AllData);
    let credential = credential(&keys, &capability);
    let macs = IcvKeys::<RustCrypto>::new(Algorithm::HmacSha256Split, &credential.key, capability.method);
    let data: Vec<u8> = (0..200).collect();
    let nonce = Nonce::new(NOW, [1; 6]);
    let whole = macs.data_out(&nonce, b"set", b"get", &[&data]);
    for size in [1, 3, 25, 200] {
        let pieces: Vec<&[u8]> = data.chunks(size).collect();
        assert!(whole.matches(macs.data_out(&nonce, b"set", b"get", &pieces).as_bytes()), "{size}");
    }
}
