//! CHAP with both ends: negotiation and access.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

use std::sync::Arc;

use sealstone_iscsi::{
    Pool,
    chap::{ChapAccount, ChapAlgorithm, ChapSecret},
    initiator::{self, InitiatorChap},
    target_side::{self, AccessRule, AccessRules, LoginGuard},
};

const TARGET: &str = "iqn.2026-11.org.sealstone:osd.test";
const INITIATOR: &str = "iqn.2026-11.org.sealstone:client";

struct Heap;

impl Pool for Heap {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        Some(vec![0; len])
    }
    fn give(&self, _: Vec<u8>) {}
}

struct RecordingGuard;

impl LoginGuard for RecordingGuard {
    fn random(&self, into: &mut [u8]) {
        into.fill(0x33);
    }
    fn admits(&self, _: &str) -> bool {
        true
    }
    fn passed(&self, _: &str) {}
    fn failed(&self, _: &str) {}
}

fn account(name: &str, secret: &str) -> ChapAccount {
    ChapAccount { name: name.into(), secret: ChapSecret::new(secret.as_bytes()).unwrap() }
}

/// Returns the result for the initiator, what the target learned, and the discovered targets.
fn connect(
    access: Option<AccessRules>,
    chap: Option<InitiatorChap>,
    discovery: bool,
) -> (Result<(), initiator::InitiatorClosed>, Option<target_side::LoginRequest>, Vec<String>) {
    let entry = |name: &str| target_side::TargetEntry { name: name.into(), alias: None, addresses: vec![] };
    let mut server =
        target_side::PortalConfig::new(vec![entry(TARGET), entry("iqn.2026-11.org.sealstone:osd.hidden")]);
    server.access = access.map(Arc::new);
    let target_name = (!discovery).then(|| TARGET.into());
    let mut client = initiator::InitiatorConfig::new(INITIATOR.into(), target_name, [0x80, 0, 0, 1, 0, 0]);
    client.chap = chap;
    let mut initiator = initiator::InitiatorConnection::new(client, 0);
    let target =
        target_side::TargetConnection::new(Arc::new(server), Arc::new(Heap), "127.0.0.1:3260".into(), 0);
    let mut target = target.with_login_guard(Arc::new(RecordingGuard));
    let (mut result, mut learned, mut found_targets) = (None, None, Vec::new());
    for _ in 0..100 {
        while let Some(piece) = initiator.poll_transmit() {
            pour(&piece, |bytes| {
                let taken = fill(target.rx_space(), bytes);
                target.received(taken, 0);
                taken
            });
        }
        while let Some(event) = target.poll_event() {
            if let target_side::TargetEvent::Login(request) = event {
                learned = Some(request);
                target.admit(1);
            }
        }
        while let Some(piece) = target.poll_transmit() {
            pour(&piece, |bytes| {
                let taken = fill(initiator.rx_space(), bytes);
                initiator.received(taken, 0);
                taken
            });
        }
        while let Some(event) = initiator.poll_event() {
            match event {
                initiator::InitiatorEvent::LoggedIn(_) => {
                    result = Some(Ok(()));
                    if discovery {
                        initiator.send_targets("All").unwrap();
                    }
                }
                initiator::InitiatorEvent::Closed(reason) => result = Some(Err(reason)),
                initiator::InitiatorEvent::Targets(targets) => {
                    found_targets = targets.into_iter().map(|t| t.name).collect()
                }
                _ => {}
            }
        }
    }
    (result.expect("a login ends"), learned, found_targets)
}

fn pour(mut bytes: &[u8], mut give: impl FnMut(&[u8]) -> usize) {
    while !bytes.is_empty() {
        let taken = give(bytes);
        if taken == 0 {
            return; // the other end is closed
        }
        bytes = &bytes[taken..];
    }
}

fn fill(space: [&mut [u8]; 2], mut bytes: &[u8]) -> usize {
    let before = bytes.len();
    for slice in space {
        let part = slice.len().min(bytes.len());
        slice[..part].copy_from_slice(&bytes[..part]);
        bytes = &bytes[part..];
    }
    before - bytes.len()
}

fn access() -> AccessRules {
    let mut access = AccessRules::new(vec![AccessRule {
        initiators: vec![INITIATOR.into()],
        account: Some(account("ann", "secret of ann!")),
        targets: vec![TARGET.into()],
        luns: Some(vec![0, 3]),
    }]);
    access.own = Some(account("osd", "secret of osd!"));
    access.algorithms = ChapAlgorithm::ALL.to_vec();
    access
}

fn chap(secret: &str, mutual: Option<&str>) -> InitiatorChap {
    InitiatorChap {
        account: account("ann", secret),
        target: mutual.map(|secret| account("osd", secret)),
        algorithms: ChapAlgorithm::ALL.to_vec(),
        challenge: [0x77; 32],
    }
}

#[test]
fn both_ends_prove_themselves_with_every_algorithm() {
    for algorithm in ChapAlgorithm::ALL {
        for mutual in [None, Some("secret of osd!")] {
            let mut ours = chap("secret of ann!", mutual);
            ours.algorithms = vec![algorithm];
            let (result, learned, _) = connect(Some(access()), Some(ours), false);
            let learned = learned.expect("admitted");
            assert_eq!(result, Ok(()), "{algorithm:?} {mutual:?}");
            assert_eq!((learned.user.as_deref(), learned.luns), (Some("ann"), Some(vec![0, 3])));
        }
    }
}

#[test]
fn wrong_secret_on_either_side_ends_login() {
    let refused = |chap: Option<InitiatorChap>| match connect(Some(access()), chap, false) {
        (Err(initiator::InitiatorClosed::Refused(why)), None, _) => (why.class, why.detail),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(Some(chap("another secret", None))), (2, 1));
    assert_eq!(refused(None), (2, 1));
    let (result, learned, _) =
        connect(Some(access()), Some(chap("secret of ann!", Some("not the target's"))), false);
    assert_eq!(result, Err(initiator::InitiatorClosed::Violation(initiator::Violation::Unproven)));
    assert!(learned.is_none(), "the initiator leaves before full feature phase");
}

#[test]
fn required_mutual_chap_cannot_be_skipped() {
    let (result, ..) = connect(None, Some(chap("secret of ann!", Some("secret of osd!"))), false);
    assert!(
        matches!(result, Err(initiator::InitiatorClosed::Refused(_))),
        "CHAP alone was offered: {result:?}"
    );
    let (result, learned, _) = connect(None, Some(chap("secret of ann!", None)), false);
    assert_eq!((result, learned.unwrap().user), (Ok(()), None), "a target that asks for nothing");
}

#[test]
fn our_own_challenge_sent_back_is_not_answered() {
    let mut reflected = chap("secret of ann!", Some("secret of osd!"));
    reflected.challenge = [0x33; 32];
    let (result, ..) = connect(Some(access()), Some(reflected), false);
    assert_eq!(result, Err(initiator::InitiatorClosed::Violation(initiator::Violation::Unproven)));
}

#[test]
fn discovery_lists_permitted_targets() {
    let (result, _, found_targets) = connect(Some(access()), Some(chap("secret of ann!", None)), true);
    assert_eq!((result, found_targets), (Ok(()), vec![TARGET.to_owned()]));
    let (_, _, found_targets) = connect(None, None, true);
    assert_eq!(found_targets.len(), 2);
    let (result, _, found_targets) = connect(Some(access()), None, true);
    assert!(matches!(result, Err(initiator::InitiatorClosed::Refused(_))) && found_targets.is_empty());
}
