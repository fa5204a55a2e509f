//! An initiator with an account that sends what no client sends, at level S1-2.
//!
//! Logs in as a client, derives the keys of the session from the login, and seals PDUs itself.

use std::sync::Arc;

use bytes::Bytes;
use sealstone_block_protection::{
    HeaderSealer, LoginTranscript, MacTag, PduDirection, ProtectionProfile, ProtectionSettings, SessionKeys,
    SessionSecrets,
};
use sealstone_initiator::chap::{ChapAccount, ChapSecret};
use sealstone_initiator::{
    BlockReport, INITIATOR_NAME, Proof, Proofs, REPORT_BLOCKS, ScsiRequest, Session, SessionConfig,
    SystemEnvironment,
};
use sealstone_scsi::Sense;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::block_proxy::{WireChange, WireProxy, lazy_pdu_len};

/// Secret of the account `vm1` of a protected device.
pub(crate) const SECRET: &[u8] = b"what the client says";

/// A session of a client, which its user controls completely.
pub(crate) struct HostileSession {
    runtime: Runtime,
    session: Session,
    target: String,
}

impl HostileSession {
    /// Logs in to LUN 1 of the target of a URL, at an address.
    pub(crate) fn login(address: &str, url: &str, settings: ProtectionSettings) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let target = url.split('/').nth(3).expect("a target").to_owned();
        let mut config = SessionConfig::new(Some(target.clone()), &SystemEnvironment);
        config.protection = Some(settings);
        config.protected_lun = 1;
        let secret = ChapSecret::new(SECRET).expect("long enough");
        config.proofs = Proofs::always(Proof::new(ChapAccount { name: "vm1".into(), secret }, None));
        let session = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.expect("connected");
            Session::over(stream, config).await.expect("logged in")
        });
        let hostile = Self { runtime, session, target };
        // The first commands end with unit attentions.
        while hostile.command(&[0; 6], &[], 0).0 != 0 {}
        hostile
    }

    /// Executes a command; returns status, ASC and ASCQ.
    pub(crate) fn command(&self, cdb: &[u8], data_out: &[u8], data_in_max: usize) -> (u8, (u8, u8)) {
        let request = ScsiRequest {
            lun: 1,
            cdb: Bytes::copy_from_slice(cdb),
            data_out: if data_out.is_empty() { Vec::new() } else { vec![Bytes::copy_from_slice(data_out)] },
            data_in_max,
            ..ScsiRequest::default()
        };
        let response = self.runtime.block_on(self.session.execute(request)).expect("the session lives");
        let code = Sense::parse(&response.sense).map(|sense| (sense.code.code(), sense.code.qualifier()));
        (response.status, code.unwrap_or_default())
    }

    /// Reads a block; returns status, ASC and ASCQ, and the reports about it.
    pub(crate) fn read(&self, lba: u8) -> ((u8, (u8, u8)), Vec<BlockReport>) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[9], cdb[13]) = (0x88, lba, 1);
        let outcome = self.command(&cdb, &[], 512);
        (outcome, self.session.block_reports().take(64))
    }

    /// Sends reports about blocks, true or not.
    pub(crate) fn report(&self, reports: &[BlockReport]) -> u8 {
        let list: Vec<u8> = reports.iter().flat_map(BlockReport::encode).collect();
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (REPORT_BLOCKS, u8::try_from(list.len()).expect("few"));
        self.command(&cdb, &list, 0).0
    }

    pub(crate) fn logout(&self) {
        self.runtime.block_on(self.session.logout());
    }
}

/// The answer of a device to a forged PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireAnswer {
    /// Reject, with its reason.
    Reject(u8),
    /// SCSI Response, with its status.
    Status(u8),
    /// The connection ended.
    Ended,
}

/// A write of LUN 1 as the attacker composes it.
pub(crate) struct ForgedWrite {
    pub(crate) lba: u8,
    /// Blocks in the CDB.
    pub(crate) blocks: u8,
    pub(crate) ahs: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// MACs of blocks behind the data.
    pub(crate) macs: Vec<MacTag>,
}

fn text_after<'a>(bytes: &'a [u8], key: &[u8]) -> &'a [u8] {
    let at = bytes.windows(key.len()).position(|part| part == key).expect("the login has the key");
    let value = &bytes[at + key.len()..];
    value.split(|byte| *byte == 0).next().expect("a value")
}

fn nonce_of(bytes: &[u8]) -> [u8; 32] {
    let digits = text_after(bytes, b"LazyNonce=0x");
    let nibble = |digit: u8| char::from(digit).to_digit(16).expect("hexadecimal") as u8;
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect();
    bytes.try_into().expect("32 bytes")
}

/// Logs in through a proxy, sends one forged write instead of a command, and returns the answer.
pub(crate) fn send_forged(
    proxy: &WireProxy,
    url: &str,
    settings: ProtectionSettings,
    write: &ForgedWrite,
) -> WireAnswer {
    proxy.take_sent();
    proxy.take_received();
    let hostile = HostileSession::login(&proxy.address, url, settings);
    let sent = proxy.take_sent().concat();
    let received = proxy.take_received().concat();
    let isid = sent[8..14].try_into().expect("6 bytes");
    let transcript = LoginTranscript {
        initiator: INITIATOR_NAME,
        target: &hostile.target,
        isid,
        settings,
        initiator_nonce: nonce_of(&sent),
        target_nonce: nonce_of(&received),
    };
    let secrets = SessionSecrets { chap: SECRET, tls_exporter: &[] };
    let keys = SessionKeys::derive(secrets, &transcript).expect("the login has a secret");
    let header_keys = keys.header_keys();
    let (level, profile) = (settings.level, settings.profile);
    let mut sealer = HeaderSealer::new(header_keys, level, profile, PduDirection::ToTarget, 0);
    // Commands that were sent since the login: its PDUs have opcode 03h and no MAC.
    let mut rest = &sent[..];
    while rest.first().is_some_and(|opcode| opcode & 0x3F == 0x03) {
        let length = 48 + (usize::from(rest[6]) << 8 | usize::from(rest[7])).next_multiple_of(4);
        rest = &rest[length..];
    }
    let mut last = Vec::new();
    while let Some(length) = lazy_pdu_len(rest) {
        let (pdu, next) = rest.split_at(length);
        last = pdu[..48].to_vec();
        let mut passed: [u8; 48] = pdu[..48].try_into().expect("48 bytes");
        sealer.seal(&mut passed, &mut Vec::new()).expect("sealed");
        rest = next;
    }
    let command_number = u32::from_be_bytes(last[24..28].try_into().expect("4 bytes")) + 1;
    let mut bhs = [0; 48];
    (bhs[0], bhs[1]) = (0x01, 0xA1);
    bhs[4] = u8::try_from(write.ahs.len() / 4).expect("short");
    bhs[5..8].copy_from_slice(&u32::try_from(write.data.len()).expect("short").to_be_bytes()[1..]);
    bhs[9] = 1;
    bhs[16..20].copy_from_slice(&[0x7A; 4]);
    bhs[20..24].copy_from_slice(&(u32::from(write.blocks) * 512).to_be_bytes());
    bhs[24..28].copy_from_slice(&command_number.to_be_bytes());
    bhs[28..32].copy_from_slice(&last[28..32]);
    (bhs[32], bhs[41], bhs[45]) = (0x8A, write.lba, write.blocks);
    let mut ahs = write.ahs.clone();
    let mac = sealer.seal(&mut bhs, &mut ahs).expect("sealed").expect("the level has MACs");
    let mut pdu = [&bhs[..], &ahs, &mac, &write.data].concat();
    write.macs.iter().for_each(|mac| pdu.extend_from_slice(mac));
    proxy.take_received();
    proxy.arm(true, WireChange::Replace(pdu), 1);
    let HostileSession { runtime, session, .. } = hostile;
    let request = ScsiRequest { lun: 1, cdb: Bytes::from_static(&[0; 6]), ..ScsiRequest::default() };
    // The session ends: the answer is not for its command, or the device closes the connection.
    let session = Arc::new(session);
    let command = Arc::clone(&session);
    let command = runtime.spawn(async move { command.execute(request).await.map(|_| ()) });
    let answer = loop {
        let received = proxy.take_received();
        if let Some(bytes) = received.iter().find(|bytes| bytes.len() >= 48) {
            break match bytes[0] & 0x3F {
                0x3F => WireAnswer::Reject(bytes[2]),
                0x21 => WireAnswer::Status(bytes[3]),
                opcode => panic!("an answer with opcode {opcode:#x}"),
            };
        }
        if command.is_finished() {
            break WireAnswer::Ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    drop(session);
    runtime.shutdown_background();
    answer
}

/// Returns settings of level S1-2 with blocks of 512 bytes.
pub(crate) fn lazy_settings(profile: ProtectionProfile) -> ProtectionSettings {
    use sealstone_block_protection::{ProtectedBlock, ProtectionLevel};
    let (level, block) = (ProtectionLevel::S1LazyMac, ProtectedBlock::B512);
    ProtectionSettings { level, block, profile, record: None }
}
