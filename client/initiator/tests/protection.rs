//! Sessions with protected records, and a man in the middle that changes them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sealstone_initiator::chap::{ChapAccount, ChapSecret};
use sealstone_initiator::{
    Proof, Proofs, ProtectedBlock, ProtectionLevel, ProtectionProfile, ProtectionSettings, RecordSize,
    ScsiRequest, Session, SessionConfig, SessionError,
};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::session::{Mirror, NAME, config, mirrored};

/// Content that a listener can recognize.
const MARKER: &[u8] = b"a line that nobody else may read";
/// LUN of the unit without protection.
const OPEN_LUN: u16 = 0;
/// LUN of the first protected unit.
const PROTECTED_LUN: u16 = 1;

fn settings(level: ProtectionLevel, size: RecordSize) -> ProtectionSettings {
    let (block, profile) = (ProtectedBlock::B512, ProtectionProfile::PaperSafe);
    ProtectionSettings { level, block, profile, record: Some(size) }
}

const MAC: ProtectionLevel = ProtectionLevel::S1RecordMac;
const CIPHER: ProtectionLevel = ProtectionLevel::S2RecordCipher;

fn account(secret: &[u8]) -> ChapAccount {
    ChapAccount { name: "ann".into(), secret: ChapSecret::new(secret).unwrap() }
}

fn protected(settings: Option<ProtectionSettings>) -> SessionConfig {
    let proofs = Proofs::always(Proof::new(account(b"a secret of ann!"), None));
    SessionConfig { protection: settings, proofs, ..config() }
}

/// Changes of the man in the middle.
#[derive(Default)]
struct Middle {
    /// Flips a bit of the last byte of the next piece to the target.
    flips_next: AtomicBool,
    /// Texts to replace on the way to the target, and back on the way from it.
    replaced: Option<(&'static [u8], &'static [u8])>,
    /// A PDU without protection that follows the piece with this text.
    appended_after: Option<&'static [u8]>,
    /// All bytes that passed.
    seen: Mutex<Vec<u8>>,
}

fn replace(piece: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    while let Some(at) = piece.windows(from.len()).position(|bytes| bytes == from) {
        piece[at..at + to.len()].copy_from_slice(to);
    }
}

impl Middle {
    fn pass(&self, piece: &mut Vec<u8>, to_target: bool) {
        self.seen.lock().unwrap().extend_from_slice(piece);
        if let Some((own, other)) = self.replaced {
            if to_target { replace(piece, own, other) } else { replace(piece, other, own) }
        }
        if let Some(text) = self.appended_after
            && piece.windows(text.len()).any(|bytes| bytes == text)
        {
            // NOP-Out or NOP-In without a tag.
            let mut pdu = [0; 48];
            pdu[0] = if to_target { 0x40 } else { 0x20 };
            pdu[1] = 0x80;
            pdu[16..24].fill(0xFF);
            piece.extend_from_slice(&pdu);
        }
        if to_target && self.flips_next.swap(false, Ordering::SeqCst) {
            *piece.last_mut().unwrap() ^= 1;
        }
    }

    async fn relay(
        self: Arc<Self>,
        mut from: tokio::io::ReadHalf<DuplexStream>,
        mut to: tokio::io::WriteHalf<DuplexStream>,
        to_target: bool,
    ) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let mut piece = buffer[..count].to_vec();
            self.pass(&mut piece, to_target);
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    }
}

/// Returns a stream to a target with a plain unit and a unit for each of these settings. The only
/// way leads through the man in the middle.
fn stream(required: &[ProtectionSettings], middle: &Arc<Middle>, has_chap: bool) -> DuplexStream {
    use sealstone_iscsi::target_side::{AccessRule, AccessRules};
    let mut target = TargetConfig::new(NAME);
    if has_chap {
        let rule = AccessRule {
            initiators: vec!["iqn.*".into()],
            account: Some(account(b"a secret of ann!")),
            ..AccessRule::default()
        };
        target.protocol.access = Some(Arc::new(AccessRules::new(vec![rule])));
    }
    let target = IscsiTarget::new(target, vec![(OPEN_LUN.into(), Arc::new(Mirror) as _)]).unwrap();
    for (lun, settings) in (u64::from(PROTECTED_LUN)..).zip(required) {
        target.attach_protected(lun, Arc::new(Mirror), *settings).unwrap();
    }
    let (near, middle_near) = tokio::io::duplex(64 * 1024);
    let (middle_far, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move { target.serve_stream(far, "m:3260".to_owned(), "m:1".to_owned(), None).await });
    let (from_client, to_client) = tokio::io::split(middle_near);
    let (from_target, to_target) = tokio::io::split(middle_far);
    tokio::spawn(Arc::clone(middle).relay(from_client, to_target, true));
    tokio::spawn(Arc::clone(middle).relay(from_target, to_client, false));
    near
}

fn marked(lun: u16) -> ScsiRequest {
    let (_, request) = mirrored(MARKER.len());
    ScsiRequest { lun, data_out: vec![Bytes::from_static(MARKER)], ..request }
}

/// Whether a LUN exists in a session.
async fn exists(session: &Session, lun: u16) -> bool {
    let (_, request) = mirrored(8);
    session.execute(ScsiRequest { lun, ..request }).await.unwrap().status == 0
}

#[tokio::test]
async fn protected_sessions_move_data_of_all_sizes() {
    for level in [MAC, CIPHER] {
        for size in [RecordSize::Packet, RecordSize::Large] {
            let settings = settings(level, size);
            let middle = Arc::<Middle>::default();
            let near = stream(&[settings], &middle, true);
            let session = Session::over(near, protected(Some(settings))).await.unwrap();
            for length in [0, 1, 511, 8_192, 70_001, 1_500_000] {
                let (bytes, request) = mirrored(length);
                let request = ScsiRequest { lun: PROTECTED_LUN, ..request };
                let response = session.execute(request).await.unwrap();
                assert_eq!(response.status, 0);
                assert!(response.data_in == bytes, "{level} {size:?} {length}");
            }
            let response = session.execute(marked(PROTECTED_LUN)).await.unwrap();
            assert_eq!(response.data_in, MARKER);
            assert!(exists(&session, OPEN_LUN).await);
            session.logout().await;
            let seen = middle.seen.lock().unwrap();
            let is_readable = seen.windows(MARKER.len()).any(|bytes| bytes == MARKER);
            assert_eq!(is_readable, level == MAC, "{level} hides data exactly if it encrypts");
        }
    }
}

/// L6: a session has at least the required protection, or does not see the unit.
#[tokio::test]
async fn unprotected_session_does_not_see_unit() {
    let own = settings(MAC, RecordSize::Large);
    let near = stream(&[own], &Arc::default(), true);
    let session = Session::over(near, protected(None)).await.unwrap();
    assert!(exists(&session, OPEN_LUN).await);
    assert!(!exists(&session, PROTECTED_LUN).await);
    let both = [own, settings(CIPHER, RecordSize::Large)];
    let near = stream(&both, &Arc::default(), true);
    let session = Session::over(near, protected(Some(both[0]))).await.unwrap();
    assert!(exists(&session, PROTECTED_LUN).await);
    assert!(!exists(&session, PROTECTED_LUN + 1).await);
    // Encryption with a MAC is more than a MAC.
    let near = stream(&both, &Arc::default(), true);
    let session = Session::over(near, protected(Some(both[1]))).await.unwrap();
    assert!(exists(&session, PROTECTED_LUN).await && exists(&session, PROTECTED_LUN + 1).await);
}

#[tokio::test]
async fn settings_that_no_unit_requires_are_refused() {
    let required = settings(CIPHER, RecordSize::Large);
    for stated in [
        settings(MAC, RecordSize::Large),
        settings(CIPHER, RecordSize::Packet),
        ProtectionSettings { profile: ProtectionProfile::Paper, ..required },
        ProtectionSettings { block: ProtectedBlock::B4096, ..required },
    ] {
        let near = stream(&[required], &Arc::default(), true);
        let refused = Session::over(near, protected(Some(stated))).await.err();
        assert!(
            matches!(refused, Some(SessionError::LoginRefused { class: 2, detail: 0 })),
            "{stated:?}: {refused:?}"
        );
    }
}

/// A login without CHAP has no secret, so its session key would be public.
#[tokio::test]
async fn protection_without_account_is_refused() {
    let own = settings(CIPHER, RecordSize::Large);
    let near = stream(&[own], &Arc::default(), false);
    let refused = Session::over(near, protected(Some(own))).await.err();
    assert!(matches!(refused, Some(SessionError::LoginRefused { class: 2, detail: 0 })), "{refused:?}");
}

#[tokio::test]
async fn lowered_level_fails_the_login() {
    let required = [settings(CIPHER, RecordSize::Large), settings(MAC, RecordSize::Large)];
    let middle =
        Arc::new(Middle { replaced: Some((b"LazyLevel=S2-1u", b"LazyLevel=S1-1u")), ..Middle::default() });
    let near = stream(&required, &middle, true);
    let refused = Session::over(near, protected(Some(required[0]))).await.err();
    assert!(matches!(refused, Some(SessionError::Protocol(_))), "{refused:?}");
}

/// A login fails if the login keys of the target are removed or not understood.
#[tokio::test]
async fn removed_keys_fail_the_login() {
    let own = settings(CIPHER, RecordSize::Large);
    let middle = Arc::new(Middle {
        replaced: Some((b"X-org.sealstone.Lazy", b"X-org.sealstone.Lost")),
        ..Middle::default()
    });
    let near = stream(&[own], &middle, true);
    let refused = Session::over(near, protected(Some(own))).await.err();
    assert!(matches!(refused, Some(SessionError::Protocol(_))), "{refused:?}");
}

/// PDUs that were put behind the last plain one are never executed.
#[tokio::test]
async fn plain_pdus_behind_login_are_refused() {
    let own = settings(MAC, RecordSize::Large);
    for text in [b"LazyRecord=16384".as_slice(), b"LazyProof"] {
        let middle = Arc::new(Middle { appended_after: Some(text), ..Middle::default() });
        let near = stream(&[own], &middle, true);
        let refused = Session::over(near, protected(Some(own))).await.err();
        let right = match refused {
            Some(SessionError::LoginRefused { class: 2, detail: 0 }) => text != b"LazyProof",
            Some(SessionError::Protocol(_)) => text == b"LazyProof",
            _ => false,
        };
        assert!(right, "{refused:?}");
    }
}

#[tokio::test]
async fn changed_record_ends_the_session() {
    for level in [MAC, CIPHER] {
        let own = settings(level, RecordSize::Packet);
        let middle = Arc::<Middle>::default();
        let near = stream(&[own], &middle, true);
        let session = Session::over(near, protected(Some(own))).await.unwrap();
        assert!(exists(&session, PROTECTED_LUN).await);
        middle.flips_next.store(true, Ordering::SeqCst);
        let failed = session.execute(marked(PROTECTED_LUN)).await.err();
        assert!(matches!(failed, Some(SessionError::NexusLost)), "{failed:?}");
        assert!(session.is_closed());
    }
}

#[tokio::test]
async fn wrong_secret_fails_before_any_record() {
    let own = settings(CIPHER, RecordSize::Large);
    let near = stream(&[own], &Arc::default(), true);
    let proofs = Proofs::always(Proof::new(account(b"another secret.."), None));
    let refused = Session::over(near, SessionConfig { proofs, ..protected(Some(own)) }).await.err();
    assert!(matches!(refused, Some(SessionError::LoginRefused { class: 2, detail: 1 })), "{refused:?}");
}

#[tokio::test]
async fn level_without_protection_cannot_be_required() {
    let target = IscsiTarget::new(TargetConfig::new(NAME), Vec::new()).unwrap();
    for level in ProtectionLevel::ALL {
        let settings = settings(level, RecordSize::Large);
        let attached = target.attach_protected(level as u64, Arc::new(Mirror), settings);
        assert_eq!(attached.is_ok(), level != ProtectionLevel::S0, "{level}");
    }
}
