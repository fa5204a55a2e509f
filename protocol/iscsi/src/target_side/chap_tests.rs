//! CHAP and access rules of a target, PDU by PDU, with input that a correct initiator never sends.

use alloc::{string::String, sync::Arc, vec, vec::Vec};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::{
    AccessRule, AccessRules, LoginGuard, PortalConfig, Refusal, TargetClosed, TargetConnection, TargetEntry,
    TargetEvent,
    tests::{Heap, answers, closed, feed, login},
};
use crate::{
    chap::{self, ChapAccount, ChapAlgorithm, ChapSecret},
    pdu,
};

const NAME: &str = "iqn.2026-11.org.sealstone:osd.test";
const FIRST: &str = "InitiatorName=iqn.x:y|TargetName=iqn.2026-11.org.sealstone:osd.test|SessionType=Normal|";
/// Security stage without and with transit, operational stage with transit.
const STAY: u8 = 0x00;
const GO: u8 = 0x81;
const OPERATIONAL_GO: u8 = 0x87;

#[derive(Default)]
struct RecordingGuard {
    failures: AtomicUsize,
    shut: bool,
}

impl LoginGuard for RecordingGuard {
    fn random(&self, into: &mut [u8]) {
        into.fill(0x5A);
    }
    fn admits(&self, _: &str) -> bool {
        !self.shut
    }
    fn passed(&self, _: &str) {}
    fn failed(&self, _: &str) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }
}

fn account(name: &str, secret: &str) -> ChapAccount {
    ChapAccount { name: name.into(), secret: ChapSecret::new(secret.as_bytes()).unwrap() }
}

fn access() -> AccessRules {
    let rule = |name: &str, account: Option<ChapAccount>, luns: Option<Vec<u16>>| AccessRule {
        initiators: vec![name.into()],
        account,
        luns,
        ..AccessRule::default()
    };
    let mut access = AccessRules::new(vec![
        rule("iqn.x:y", Some(account("ann", "a secret of ann")), Some(vec![0])),
        rule("iqn.x:open", None, None),
    ]);
    access.own = Some(account("osd", "a secret of the osd"));
    access.algorithms = ChapAlgorithm::ALL.to_vec();
    access
}

struct Bench {
    target: TargetConnection,
    guard: Arc<RecordingGuard>,
}

impl Bench {
    fn new(access: AccessRules, guard: RecordingGuard) -> Self {
        let mut config =
            PortalConfig::new(vec![TargetEntry { name: NAME.into(), alias: None, addresses: vec![] }]);
        config.access = Some(Arc::new(access));
        let guard = Arc::new(guard);
        let target = TargetConnection::new(Arc::new(config), Arc::new(Heap), "host:3260".into(), 0);
        Self { target: target.with_login_guard(Arc::clone(&guard) as Arc<dyn LoginGuard>), guard }
    }

    fn say(&mut self, flags: u8, keys: &str) -> String {
        feed(&mut self.target, &login(flags, keys));
        let output = answers(&mut self.target);
        let text = output.last().map(|(_, data)| String::from_utf8(data.clone()).unwrap());
        text.unwrap_or_default().replace('\0', "|")
    }

    /// Proceeds up to the challenge; returns the algorithm that the target chose.
    fn challenged(&mut self, algorithms: &str) -> ChapAlgorithm {
        let method = self.say(GO, &[FIRST, "AuthMethod=CHAP,None|"].concat());
        assert!(method.contains("AuthMethod=CHAP|"), "{method}");
        let challenge = self.say(STAY, &std::format!("CHAP_A={algorithms}|"));
        assert!(challenge.contains(&std::format!("CHAP_I=90|CHAP_C={}|", chap::hexadecimal(&[0x5A; 32]))));
        let number = challenge.split('|').find_map(|pair| pair.strip_prefix("CHAP_A=")).unwrap();
        ChapAlgorithm::of(number.parse().unwrap()).unwrap()
    }

    fn refused(&mut self) -> Option<Refusal> {
        match closed(&mut self.target) {
            Some(TargetClosed::Refused(why)) => Some(why),
            None => None,
            Some(other) => panic!("{other:?}"),
        }
    }
}

fn response(algorithm: ChapAlgorithm, secret: &str) -> String {
    let secret = ChapSecret::new(secret.as_bytes()).unwrap();
    chap::hexadecimal(&algorithm.response(0x5A, &secret, &[0x5A; 32]))
}

fn proof(algorithm: ChapAlgorithm) -> String {
    std::format!("CHAP_N=ann|CHAP_R={}|", response(algorithm, "a secret of ann"))
}

#[test]
fn each_chap_algorithm_works_and_preference_is_kept() {
    for (offered, expected) in
        [("5", ChapAlgorithm::Md5), ("5,8", ChapAlgorithm::Sha3), ("5,6,8,7", ChapAlgorithm::Sha256)]
    {
        let mut bench = Bench::new(access(), RecordingGuard::default());
        let algorithm = bench.challenged(offered);
        assert_eq!(algorithm, expected);
        bench.say(GO, &proof(algorithm));
        bench.say(OPERATIONAL_GO, "");
        let Some(TargetEvent::Login(request)) = bench.target.poll_event() else {
            panic!("{:?}", bench.refused())
        };
        assert_eq!((request.user.as_deref(), request.luns), (Some("ann"), Some(vec![0])));
        assert_eq!(bench.guard.failures.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn md5_is_used_if_requested() {
    let rules = AccessRules::new(access().rules);
    for (offered, refused) in [("5", Some(Refusal::Authentication)), ("5,7", None)] {
        let mut bench = Bench::new(rules.clone(), RecordingGuard::default());
        bench.say(GO, &[FIRST, "AuthMethod=CHAP|"].concat());
        bench.say(STAY, &std::format!("CHAP_A={offered}|"));
        assert_eq!(bench.refused(), refused, "{offered}");
    }
}

/// The target determines which account counts, so it cannot be omitted and set afterwards.
#[test]
fn session_type_is_only_accepted_first() {
    let mut bench = Bench::new(access(), RecordingGuard::default());
    bench.say(GO, &[FIRST, "AuthMethod=CHAP|"].concat().replace("SessionType=Normal|", ""));
    bench.say(STAY, "CHAP_A=7|SessionType=Discovery|");
    assert_eq!(bench.refused(), Some(Refusal::InitiatorError));
}

#[test]
fn every_wrong_response_is_a_counted_failure() {
    let wrong = response(ChapAlgorithm::Sha3, "another secret");
    let right = response(ChapAlgorithm::Sha3, "a secret of ann");
    for keys in [
        std::format!("CHAP_N=ann|CHAP_R={wrong}|"),
        std::format!("CHAP_N=bob|CHAP_R={right}|"),
        std::format!("CHAP_N=ann|CHAP_R={}|", &right[..right.len() - 2]),
        std::format!("CHAP_N=ann|CHAP_R={right}00|"),
        "CHAP_N=ann|CHAP_R=0x|".into(),
        "CHAP_N=ann|CHAP_R=nonsense|".into(),
    ] {
        let mut bench = Bench::new(access(), RecordingGuard::default());
        assert_eq!(bench.challenged("8"), ChapAlgorithm::Sha3);
        bench.say(GO, &keys);
        assert_eq!(bench.refused(), Some(Refusal::Authentication), "{keys}");
        assert_eq!(bench.guard.failures.load(Ordering::SeqCst), 1, "{keys}");
    }
    let mut bench = Bench::new(access(), RecordingGuard { shut: true, ..RecordingGuard::default() });
    let algorithm = bench.challenged("8");
    bench.say(GO, &proof(algorithm));
    assert_eq!(bench.refused(), Some(Refusal::Authentication), "too many failures before");
}

#[test]
fn chap_cannot_be_skipped_reordered_or_downgraded() {
    let refused = |steps: &[(u8, &str)]| {
        let mut bench = Bench::new(access(), RecordingGuard::default());
        for (flags, keys) in steps {
            bench.say(*flags, keys);
        }
        bench.refused()
    };
    let first = |keys: &str| [FIRST, keys].concat();
    let chap = first("AuthMethod=CHAP|");
    let authentication = Some(Refusal::Authentication);
    assert_eq!(refused(&[(OPERATIONAL_GO, FIRST)]), authentication, "the stage left out");
    assert_eq!(refused(&[(GO, FIRST)]), authentication, "no method");
    assert_eq!(refused(&[(GO, &first("AuthMethod=None|"))]), authentication);
    assert_eq!(refused(&[(GO, &first("AuthMethod=KRB5,SRP|"))]), authentication);
    assert_eq!(refused(&[(OPERATIONAL_GO, &chap)]), authentication);
    assert_eq!(refused(&[(STAY, &chap), (STAY, "CHAP_A=6|")]), authentication, "SHA-1 alone");
    let missing = Some(Refusal::MissingParameter);
    assert_eq!(refused(&[(STAY, &chap), (GO, "")]), missing);
    assert_eq!(refused(&[(STAY, &chap), (GO, "CHAP_N=ann|CHAP_R=0x00|")]), missing, "before a challenge");
    assert_eq!(refused(&[(STAY, &chap), (STAY, "CHAP_A=8|"), (GO, "CHAP_N=ann|")]), missing);
    let error = Some(Refusal::InitiatorError);
    assert_eq!(refused(&[(STAY, &first("AuthMethod=CHAP|CHAP_A=8|"))]), error, "not agreed yet");
    assert_eq!(refused(&[(STAY, &chap), (STAY, "CHAP_A=8|"), (STAY, "CHAP_A=5|")]), error, "a key twice");
    // The initiator requests a transit, but the target stays, and the operational stage cannot be
    // entered by force.
    assert_eq!(refused(&[(GO, &chap), (GO, "CHAP_A=8|"), (OPERATIONAL_GO, "")]), error);
    let mut bench = Bench::new(access(), RecordingGuard::default());
    feed(&mut bench.target, &login(GO, &chap));
    let (bhs, _) = answers(&mut bench.target).remove(0);
    assert_eq!(pdu::LoginResponse::of(&bhs).flags, 0, "no transit before proof");
}

#[test]
fn mutual_chap_refuses_the_targets_own_challenge() {
    let with = |challenge: &str| std::format!("{}CHAP_I=7|{challenge}", proof(ChapAlgorithm::Sha3));
    let run = |access: AccessRules, keys: &str| {
        let mut bench = Bench::new(access, RecordingGuard::default());
        bench.challenged("8");
        let output = bench.say(GO, keys);
        (bench.refused(), output)
    };
    let (refused, output) = run(access(), &with("CHAP_C=0x0102030405060708|"));
    let expected = ChapAlgorithm::Sha3.response(7, &access().own.unwrap().secret, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(refused, None);
    assert!(
        output.contains(&std::format!("CHAP_N=osd|CHAP_R={}|", chap::hexadecimal(&expected))),
        "{output}"
    );

    let own = std::format!("CHAP_C={}|", chap::hexadecimal(&[0x5A; 32]));
    assert_eq!(run(access(), &with(&own)).0, Some(Refusal::Authentication), "our challenge, reflected");
    let mut silent = access();
    silent.own = None;
    assert_eq!(run(silent, &with("CHAP_C=0x0102030405060708|")).0, Some(Refusal::Authentication));
    assert_eq!(run(access(), &with("")).0, Some(Refusal::MissingParameter), "half a challenge");
    assert_eq!(run(access(), &with("CHAP_C=0x01|")).0, Some(Refusal::InitiatorError), "a short one");
    let long = std::format!("CHAP_C=0x{}|", "00".repeat(1025));
    assert_eq!(run(access(), &with(&long)).0, Some(Refusal::InitiatorError));
    let longest = std::format!("CHAP_C=0x{}|", "00".repeat(1024));
    assert_eq!(run(access(), &with(&longest)).0, None);
    // After a wrong response we do not answer the mutual challenge.
    let (refused, output) = run(access(), "CHAP_N=ann|CHAP_R=0x00|CHAP_I=7|CHAP_C=0x0102030405060708|");
    assert!(refused == Some(Refusal::Authentication) && !output.contains("CHAP_R"));
}

#[test]
fn unknown_names_are_refused_unless_rule_is_open() {
    let mut bench = Bench::new(access(), RecordingGuard::default());
    bench.say(OPERATIONAL_GO, &FIRST.replace("iqn.x:y", "iqn.x:stranger"));
    assert_eq!(bench.refused(), Some(Refusal::Authorization));
    let mut bench = Bench::new(access(), RecordingGuard::default());
    bench.say(GO, "InitiatorName=iqn.x:stranger|SessionType=Discovery|AuthMethod=None|");
    assert_eq!(bench.refused(), Some(Refusal::Authorization), "discovery too");
    let mut bench = Bench::new(access(), RecordingGuard::default());
    bench.say(OPERATIONAL_GO, &FIRST.replace("iqn.x:y", "IQN.X:Open"));
    let Some(TargetEvent::Login(request)) = bench.target.poll_event() else {
        panic!("{:?}", bench.refused())
    };
    assert_eq!((request.initiator.as_str(), request.user, request.luns), ("iqn.x:open", None, None));
}

#[test]
fn chap_without_login_guard_is_unavailable() {
    let mut config =
        PortalConfig::new(vec![TargetEntry { name: NAME.into(), alias: None, addresses: vec![] }]);
    config.access = Some(Arc::new(access()));
    let mut target = TargetConnection::new(Arc::new(config), Arc::new(Heap), "host:3260".into(), 0);
    feed(&mut target, &login(STAY, &[FIRST, "AuthMethod=CHAP|"].concat()));
    feed(&mut target, &login(STAY, "CHAP_A=8|"));
    assert_eq!(closed(&mut target), Some(TargetClosed::Refused(Refusal::Unavailable)));
}
