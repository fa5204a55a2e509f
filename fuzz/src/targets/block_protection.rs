//! `sealstone-block-protection`: headers with key lists, records, settings of a login.

use sealstone_block_protection::{
    AppendedPdu, BHS_LEN, BlockKeyList, BlockKeys, BlockSealer, EPOCHS_MAX, Generation, HeaderOpener,
    HeaderSealer, KeyListForm, KeyScheme, LoginTranscript, PduBlocks, PduDirection, PduError, PduHeader,
    PduProtection, ProtectedBlock, ProtectionLevel, ProtectionProfile, ProtectionSettings, ReceivedSettings,
    RecordOpener, RecordProtection, RecordSealer, RecordSize, SegmentSeals, SessionKeys, SessionSecrets,
    UnitKeys,
};
use zeroize::Zeroizing;

use crate::Target;
use crate::input::{Input, seed};

const SCHEMES: [KeyScheme; 4] =
    [KeyScheme::Encryption, KeyScheme::Authentication, KeyScheme::Both, KeyScheme::Generation];
const MAC_LEVELS: [ProtectionLevel; 3] =
    [ProtectionLevel::S1LazyMac, ProtectionLevel::S2LazyCipherMac, ProtectionLevel::ModernLazy];

fn settings() -> ProtectionSettings {
    ProtectionSettings {
        level: ProtectionLevel::S2LazyCipherMac,
        block: ProtectedBlock::B512,
        profile: ProtectionProfile::PaperSafe,
        record: None,
    }
}

fn modern_settings() -> ProtectionSettings {
    let (level, profile) = (ProtectionLevel::ModernLazy, ProtectionProfile::Modern);
    ProtectionSettings { level, profile, ..settings() }
}

fn session() -> SessionKeys {
    let secrets = SessionSecrets { chap: b"a secret of CHAP", tls_exporter: &[] };
    let transcript = LoginTranscript {
        initiator: "iqn.i",
        target: "iqn.t",
        isid: [1; 6],
        settings: settings(),
        initiator_nonce: [2; 32],
        target_nonce: [3; 32],
    };
    SessionKeys::derive(secrets, &transcript).expect("there is a secret")
}

fn form(choice: u8) -> KeyListForm {
    KeyListForm {
        scheme: SCHEMES[usize::from(choice) % SCHEMES.len()],
        block: ProtectedBlock::B512,
        profile: ProtectionProfile::Paper,
    }
}

/// A choice, then all AHS of a PDU; and the same bytes as a PDU of an attacker.
fn headers(input: &[u8]) {
    let mut input = Input::new(input);
    let form = form(input.byte());
    let ahs = input.rest();
    if let Ok(Some(list)) = BlockKeyList::find(ahs, form) {
        assert!(!list.keys.is_empty() && list.keys.len() <= form.scheme.blocks_max(0));
        let again = list.encode(form).expect("what was parsed encodes");
        assert!(ahs.windows(again.len()).any(|bytes| bytes == &again[..]));
        let mut data = vec![1; list.keys.len() * form.block.bytes()];
        let macs = vec![[0; 16]; if form.scheme.has_authentication() { list.keys.len() } else { 0 }];
        if form.scheme.has_generations() {
            let unit = UnitKeys::new([5; 16], Zeroizing::new([6; 32]));
            for (lba, (keys, block)) in
                (list.first_lba..).zip(list.keys.iter().zip(data.chunks_exact_mut(512)))
            {
                assert!(!unit.open_block(lba, keys.generation, &[0; 16], block), "a guessed tag fits");
            }
        }
        let opened = BlockSealer::new(form).open(&list, &macs, &mut data);
        assert!(opened.is_err() || !form.scheme.has_authentication(), "a guessed MAC fits");
    }
    let Some((bhs, rest)) = ahs.split_first_chunk::<BHS_LEN>() else { return };
    let Some((found, mac)) = rest.split_last_chunk::<16>() else { return };
    for level in MAC_LEVELS {
        let mut opener =
            HeaderOpener::new(session().header_keys(), level, settings().profile, PduDirection::ToTarget, 1);
        let header = opener.begin(*bhs);
        assert!(header.wire_ahs_len() <= 1024);
        assert!(opener.finish(header, &mut found.to_vec(), Some(mac)).is_err(), "a guessed MAC fits");
    }
}

fn header_seeds() -> Vec<Vec<u8>> {
    let lists = (0..4).map(|choice| {
        let form = form(choice);
        let mut random = |into: &mut [u8]| into.fill(7);
        let keys = (0..2).map(|at| match form.scheme.has_generations() {
            true => BlockKeys::of_generation(Generation::new(3, at)),
            false => BlockKeys::generate(form.scheme, &mut random),
        });
        let keys = keys.collect();
        let list = BlockKeyList { first_lba: 9, keys }.encode(form).expect("two blocks fit");
        seed(&[choice], &list)
    });
    let mut bhs = [0; BHS_LEN];
    let mut ahs = Vec::new();
    let (level, profile) = (ProtectionLevel::S1LazyMac, settings().profile);
    // Sent in the other direction, so it must not open.
    let mac = HeaderSealer::new(session().header_keys(), level, profile, PduDirection::ToInitiator, 1)
        .seal(&mut bhs, &mut ahs)
        .expect("the first PDU")
        .expect("the level has header MACs");
    lists.chain([seed(&[0], &[&bhs[..], &mac].concat())]).collect()
}

/// A choice, positions where the stream is cut and changed, then data. The
/// opened data are a prefix, and complete if nothing was changed.
fn records(input: &[u8]) {
    let mut input = Input::new(input);
    let choice = input.byte();
    let kind = if choice & 1 == 0 { RecordProtection::Mac } else { RecordProtection::CipherMac };
    let (cut, at, change) = (usize::from(input.short()), usize::from(input.short()), input.byte());
    let data = input.rest();
    let keys = session().record_keys(PduDirection::ToTarget);
    let mut wire = Vec::new();
    RecordSealer::new(keys.clone(), kind, RecordSize::Packet)
        .seal(data, &mut |into| into.fill(choice), &mut wire)
        .expect("few records");
    let changed = match wire.get_mut(at) {
        Some(byte) => {
            *byte ^= change;
            change != 0
        }
        None => false,
    };
    let (head, tail) = wire.split_at(cut.min(wire.len()));
    let mut opener = RecordOpener::new(keys, kind, RecordSize::Packet);
    let mut out = Vec::new();
    let opened = opener.open(head, &mut out).and_then(|()| opener.open(tail, &mut out));
    assert_eq!(out[..], data[..out.len()]);
    assert!(changed || (opened.is_ok() && out.len() == data.len()));
    assert!(!changed || out.len() < data.len());
}

/// Passes data segments through, and expects no blocks.
struct NoBlocks;

impl PduBlocks for NoBlocks {
    fn sending(&mut self, _: &PduHeader, _: &mut [u8]) -> Result<Option<SegmentSeals>, PduError> {
        Ok(None)
    }

    fn received(
        &mut self,
        bhs: &mut PduHeader,
        _: &mut Vec<u8>,
        seals: Option<SegmentSeals>,
    ) -> Result<AppendedPdu, PduError> {
        if seals.is_none() { Ok(None) } else { Err(PduError::Keys(bhs[0])) }
    }
}

fn pdu_end(level: ProtectionLevel) -> PduProtection {
    let (profile, direction) = (settings().profile, PduDirection::ToTarget);
    let keys = session().header_keys();
    let sealer = HeaderSealer::new(keys.clone(), level, profile, direction, 0);
    let opener = HeaderOpener::new(keys, level, profile, direction, 0);
    PduProtection::new(form(2), sealer, opener, Box::new(NoBlocks))
}

/// A level, a position and a change of the wire, then a stream of plain PDUs. Only a prefix
/// of the stream opens. The stream is also opened as an attacker's.
fn pdus(input: &[u8]) {
    let mut input = Input::new(input);
    let level = MAC_LEVELS[usize::from(input.byte()) % MAC_LEVELS.len()];
    let (at, change) = (usize::from(input.short()), input.byte());
    let plain = input.rest();
    let mut out = Vec::new();
    assert!(pdu_end(level).open(plain, &mut out).is_err() || out.is_empty(), "a guessed MAC fits");
    let mut wire = Vec::new();
    if pdu_end(level).seal(plain, &mut wire).is_err() {
        return;
    }
    let is_changed = match wire.get_mut(at) {
        Some(byte) => {
            *byte ^= change;
            change != 0
        }
        None => false,
    };
    let mut out = Vec::new();
    let opened = pdu_end(level).open(&wire, &mut out);
    assert!(out.len() <= plain.len());
    // Padding of a segment is not kept.
    assert!(is_changed || opened.is_err() || wire.is_empty() || !out.is_empty());
}

fn pdu_seeds() -> Vec<Vec<u8>> {
    let mut command = [0; BHS_LEN + 20];
    (command[0], command[7]) = (0x01, 20);
    let stream = [&command[..], &[0; BHS_LEN]].concat();
    vec![seed(&[0, 0, 0, 0], &stream), seed(&[1, 0, 60, 4], &stream), seed(&[2, 0, 60, 4], &stream)]
}

/// Lines of key=value, as a login's text.
fn login_settings(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut received = ReceivedSettings::default();
    for pair in text.split('\0') {
        let Some((key, value)) = pair.split_once('=') else { continue };
        let known = received.take(key, value);
        assert_eq!(known.unwrap_or(true), ProtectionSettings::is_login_key(key));
    }
    for own in [settings(), modern_settings()] {
        let Ok(nonce) = received.check(&own, None) else { continue };
        for (key, value) in own.login_keys(&nonce, None) {
            let pair = format!("{key}={value}");
            assert!(text.to_lowercase().contains(&pair.to_lowercase()), "{pair}");
        }
    }
    if let Ok(proof) = received.proof() {
        let role = sealstone_block_protection::ProofRole::Target;
        assert!(!session().is_proof_text(role, proof), "a guessed proof fits");
    }
}

fn setting_seeds() -> Vec<Vec<u8>> {
    let role = sealstone_block_protection::ProofRole::Initiator;
    let keys = settings().login_keys(&[0xAB; 32], Some(session().proof_text(role)));
    let text: String = keys.iter().map(|(key, value)| format!("{key}={value}\0")).collect();
    let modern = text.replace("S2-5", "M-lazy").replace("paper+safe", "modern");
    vec![text.clone().into_bytes(), text.replace("S2-5", "S1-2").into_bytes(), modern.into_bytes()]
}

/// Keys of a unit, as a session receives them.
fn unit_keys(input: &[u8]) {
    let Ok((keys, session)) = UnitKeys::parse(input) else { return };
    assert_eq!(keys.encode(session)[..], *input);
    assert!(keys.is_current(session) && (1..=EPOCHS_MAX).contains(&keys.epoch_count()));
    let mut block = vec![1; 512];
    let generation = Generation::new(session, 0);
    let tag = keys.seal_block(9, generation, &mut block).expect("the session has an epoch");
    assert!(keys.open_block(9, generation, &tag, &mut block) && block == vec![1; 512]);
}

fn unit_key_seeds() -> Vec<Vec<u8>> {
    let mut keys = UnitKeys::new([5; 16], Zeroizing::new([6; 32]));
    let first = keys.encode(1).to_vec();
    keys.rotate(4, Zeroizing::new([7; 32])).expect("the second epoch");
    vec![first, keys.encode(9).to_vec()]
}

pub(crate) const UNIT_KEYS: Target = Target {
    name: "block-protection-unit-keys",
    about: "keys of a unit, which encode to the same bytes and open what they seal",
    run: unit_keys,
    seeds: unit_key_seeds,
    cost: 2,
    quarantine: None,
    covers: &["block-protection::UnitKeys::parse"],
};

pub(crate) const HEADERS: Target = Target {
    name: "block-protection-headers",
    about: "AHS with a key list, which encodes to the same bytes; a header with a guessed MAC never opens",
    run: headers,
    seeds: header_seeds,
    cost: 2,
    quarantine: None,
    covers: &["block-protection::BlockKeyList::parse", "block-protection::HeaderOpener::finish"],
};

pub(crate) const RECORDS: Target = Target {
    name: "block-protection-records",
    about: "a stream of records with one change: only what precedes the change opens",
    run: records,
    seeds: || vec![seed(&[0, 0, 9, 0, 3, 1], &[5; 2000]), seed(&[1, 5, 9, 5, 200, 8], &[5; 3000])],
    cost: 4,
    quarantine: None,
    covers: &["block-protection::RecordOpener::open"],
};

pub(crate) const PDUS: Target = Target {
    name: "block-protection-pdus",
    about: "a stream of protected PDUs with one change: only what precedes the change opens",
    run: pdus,
    seeds: pdu_seeds,
    cost: 4,
    quarantine: None,
    covers: &["block-protection::PduProtection::open"],
};

pub(crate) const SETTINGS: Target = Target {
    name: "block-protection-settings",
    about: "login keys of the protection; what passes is exactly the own settings",
    run: login_settings,
    seeds: setting_seeds,
    cost: 1,
    quarantine: None,
    covers: &["block-protection::ReceivedSettings::check"],
};
