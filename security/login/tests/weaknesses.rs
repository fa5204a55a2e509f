//! Demonstrates the weaknesses of the paper's login, and that the modern one does not have them.
//!
//! The tests of the paper's profile are expected to succeed at breaking it.
//! `docs/standards/paper-login.md` has the list.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

#[path = "../examples/dictionary.rs"]
mod dictionary;

use std::net::IpAddr;

use dictionary::Recorded;
use rand::SeedableRng;
use rand::rngs::StdRng;
use sealstone_login::paper::{
    Addresses, Algorithms, AwaitingCookie, AwaitingResponse, ClientTerms, OakleyGroup, PassphraseKey,
    REPLAYS_MAX, ReplayCache, ServerTerms, check_init,
};
use sealstone_login::{
    AccountRecord, ChannelBinding, LoginContext, LoginFailure, ServerKeys, start_login, start_registration,
};
use sealstone_mds_protocol::login::{LoginChallenge, LoginFinish, LoginStart, SUITE_LIGHT};
use sealstone_mds_protocol::paper::{Identity, PaperType};
use sealstone_mds_protocol::{UserName, Wire, WireWriter, encode_message};

const WORDS: [&str; 5] = ["letmein", "password1", "swordfish", "correct horse battery", "zzz"];
const PASSPHRASE: &str = "swordfish";

fn user() -> UserName {
    UserName::new("alice").unwrap()
}

fn terms() -> ClientTerms {
    ClientTerms {
        user: user(),
        client: Identity::new(*b"client1").unwrap(),
        server: Identity::new(*b"mds1").unwrap(),
        addresses: Addresses { client: IpAddr::from([192, 0, 2, 10]), server: IpAddr::from([192, 0, 2, 1]) },
        group: OakleyGroup::Modp1024,
        offers: Algorithms::offers(),
    }
}

fn server_terms() -> ServerTerms {
    ServerTerms { identity: terms().server, takes_group_1: false }
}

fn key() -> PassphraseKey {
    PassphraseKey::derive(&user(), PASSPHRASE)
}

#[test]
fn recorded_cookie_allows_offline_dictionary_attack() {
    let mut rng = StdRng::seed_from_u64(1);
    let (request, _) = AwaitingCookie::start(terms(), key());
    let (init, _) = AwaitingResponse::start(&mut rng, terms(), key()).unwrap();
    for frame in
        [encode_message(PaperType::CookieRequest, 0, &request), encode_message(PaperType::Init, 0, &init)]
    {
        let recorded = Recorded::from_frame(&frame.unwrap(), terms().addresses.client).unwrap();
        assert_eq!(recorded.guess(WORDS), Some(PASSPHRASE));
        assert_eq!(recorded.guess(["none", "of", "these"]), None);
    }
}

/// Without the client's address, for example behind NAT, the signature serves as well: everything
/// it covers is in INIT.
#[test]
fn recorded_signature_allows_offline_dictionary_attack() {
    let mut rng = StdRng::seed_from_u64(2);
    let (init, _) = AwaitingResponse::start(&mut rng, terms(), key()).unwrap();
    let found = WORDS.iter().find(|word| {
        let key = PassphraseKey::derive(&user(), word);
        // The guess is used as the key, and its cookie is filled in: no address is needed.
        let anywhere = Addresses { client: IpAddr::from([0, 0, 0, 0]), ..terms().addresses };
        let mut init = init.clone();
        init.client_cookie = key.cookie(anywhere.client);
        check_init(&server_terms(), &key, &anywhere, init).is_ok()
    });
    assert_eq!(found, Some(&PASSPHRASE));
}

#[test]
fn cookie_identifies_its_user_to_eavesdroppers() {
    let mut rng = StdRng::seed_from_u64(3);
    let cookies: Vec<[u8; 8]> =
        (0..3).map(|_| AwaitingResponse::start(&mut rng, terms(), key()).unwrap().0.client_cookie).collect();
    assert!(cookies.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn stolen_server_record_suffices_for_a_login() {
    let mut rng = StdRng::seed_from_u64(4);
    let stored = *key().to_bytes();
    let thief = PassphraseKey::from_bytes(stored);
    let (init, client) = AwaitingResponse::start(&mut rng, terms(), thief).unwrap();
    let checked = check_init(&server_terms(), &key(), &terms().addresses, init).unwrap();
    let (response, half) = checked.fresh(&mut ReplayCache::default()).unwrap().respond(&mut rng, 0).unwrap();
    let (confirm, _) = client.answer(response, 0, 0).unwrap();
    assert!(half.confirm(&confirm, 0).is_ok());
}

/// INIT contains nothing of the server, so an old one is fresh again when its nonce was evicted. It
/// costs the server an exponentiation and five seconds of a slot, and gets no further.
#[test]
fn replayed_init_after_eviction_opens_nothing() {
    let mut rng = StdRng::seed_from_u64(5);
    let mut seen = ReplayCache::default();
    let (recorded, _) = AwaitingResponse::start(&mut rng, terms(), key()).unwrap();
    let check = |init| check_init(&server_terms(), &key(), &terms().addresses, init);
    assert!(check(recorded.clone()).unwrap().fresh(&mut seen).is_ok());
    assert!(check(recorded.clone()).unwrap().fresh(&mut seen).is_err());
    let (template, _) = AwaitingResponse::start(&mut rng, terms(), key()).unwrap();
    // As many other logins as are remembered. Only the nonces matter; the signature is computed
    // once each.
    let mut others = 0;
    while others < REPLAYS_MAX {
        let (init, _) = fast_init(&mut rng, &template);
        assert!(check(init).unwrap().fresh(&mut seen).is_ok());
        others += 1;
    }
    let (response, half) = check(recorded).unwrap().fresh(&mut seen).unwrap().respond(&mut rng, 0).unwrap();
    assert!(half.answered(&template).is_none());
    // The attacker has recorded the confirmation of the first login; it is for other nonces.
    let confirm = sealstone_mds_protocol::paper::Confirm {
        client_cookie: response.client_cookie,
        server_cookie: response.server_cookie,
        client_nonce: response.client_nonce,
        server_nonce: sealstone_mds_protocol::paper::Nonce::new([7; 16]).unwrap(),
        signature: template.signature,
    };
    assert!(half.confirm(&confirm, 0).is_err());
}

/// An INIT with the group's smallest public value: no exponentiation, which would take long for 16
/// 384 of them.
fn fast_init(
    rng: &mut StdRng,
    template: &sealstone_mds_protocol::paper::Init,
) -> (sealstone_mds_protocol::paper::Init, ()) {
    use hmac::{Hmac, KeyInit, Mac};
    use sha1::{Digest, Sha1};
    let mut init = template.clone();
    let mut nonce = [0; 16];
    sealstone_login::RngCore::fill_bytes(rng, &mut nonce);
    init.client_nonce = sealstone_mds_protocol::paper::Nonce::new(nonce).unwrap();
    let signing = Sha1::new().chain_update(nonce).chain_update(*key().to_bytes()).finalize();
    let mut mac = Hmac::<Sha1>::new_from_slice(signing.as_slice()).unwrap();
    let mut lv = |bytes: &[u8]| {
        mac.update(&u16::try_from(bytes.len()).unwrap().to_be_bytes());
        mac.update(bytes);
    };
    lv(init.client.as_slice());
    lv(init.server.as_slice());
    lv(init.user.as_str().as_bytes());
    lv(&nonce);
    lv(&[]);
    mac.update(&init.group.to_be_bytes());
    let mut lv = |bytes: &[u8]| {
        mac.update(&u16::try_from(bytes.len()).unwrap().to_be_bytes());
        mac.update(bytes);
    };
    lv(init.public.as_slice());
    lv(&[]);
    lv(&init.offers.to_bytes());
    let signature: [u8; 20] = mac.finalize().into_bytes().into();
    init.signature = sealstone_mds_protocol::paper::Proof::new(signature).unwrap();
    (init, ())
}

// --- the modern login, recorded ---

struct Modern {
    keys: ServerKeys,
    record: AccountRecord,
    rng: StdRng,
}

fn context() -> LoginContext {
    LoginContext::new(&[7; 16], &ChannelBinding([9; 32]))
}

impl Modern {
    fn new() -> Self {
        let mut rng = StdRng::seed_from_u64(6);
        let keys = ServerKeys::generate(&mut rng);
        let (request, started) = start_registration(&mut rng, &user(), PASSPHRASE.as_bytes()).unwrap();
        let response = keys.register(&user(), &request).unwrap();
        let record = started.finish(&mut rng, SUITE_LIGHT, &response).unwrap();
        Self { keys, record: AccountRecord::parse(&record).unwrap(), rng }
    }

    /// Returns all messages of a login: more than an eavesdropper sees, because TLS encrypts them.
    fn recorded(&mut self) -> (LoginStart, LoginChallenge, LoginFinish) {
        let (start, client) =
            start_login(&mut self.rng, SUITE_LIGHT, &user(), PASSPHRASE.as_bytes(), context()).unwrap();
        let (challenge, _) =
            self.keys.challenge(&mut self.rng, Some(&self.record), &start, context(), [1; 16], 5, 1).unwrap();
        let (finish, _) = client.challenge(&mut self.rng, challenge.clone()).unwrap();
        (start, challenge, finish)
    }
}

fn bytes(message: &impl Wire) -> Vec<u8> {
    let mut out = WireWriter::new();
    message.put(&mut out);
    out.finish(4096).unwrap()
}

/// The one computation that makes a guess comparable needs the blind of that login, which never
/// left the client. With any other blind the right word and the wrong ones give the same result:
/// nothing.
#[test]
fn recorded_modern_login_reveals_nothing_about_guesses() {
    let mut modern = Modern::new();
    let (_, challenge, _) = modern.recorded();
    for word in WORDS {
        let (_, guess) =
            start_login(&mut modern.rng, SUITE_LIGHT, &user(), word.as_bytes(), context()).unwrap();
        let verdict = guess.challenge(&mut modern.rng, challenge.clone()).err();
        assert_eq!(verdict, Some(LoginFailure::Refused), "{word}");
    }
}

/// Comparing a guess needs the server's keys. With them, after a break-in, guesses are possible,
/// each at the cost of Argon2id: that attack remains, and is why those keys are secrets.
#[test]
fn modern_password_guesses_need_server_keys() {
    let mut modern = Modern::new();
    let others = ServerKeys::generate(&mut modern.rng);
    let mut tries = |keys: &ServerKeys, word: &str| {
        let rng = &mut modern.rng;
        let (start, guess) = start_login(rng, SUITE_LIGHT, &user(), word.as_bytes(), context()).unwrap();
        let (challenge, _) =
            keys.challenge(rng, Some(&modern.record), &start, context(), [1; 16], 5, 1).unwrap();
        guess.challenge(rng, challenge).is_ok()
    };
    assert!(!tries(&others, PASSPHRASE), "the right word under other keys");
    assert!(tries(&modern.keys, PASSPHRASE));
    assert!(!tries(&modern.keys, "letmein"));
}

/// No 16 bytes occur twice in two logins of one user with one password, except the user's name.
#[test]
fn modern_logins_cannot_be_linked_to_a_user() {
    let mut modern = Modern::new();
    let record = |modern: &mut Modern| {
        let (start, challenge, finish) = modern.recorded();
        [start.ke1.to_vec(), challenge.ke2.to_vec(), finish.ke3.to_vec(), bytes(&finish)].concat()
    };
    let (first, second) = (record(&mut modern), record(&mut modern));
    let mut second = second;
    // The login's number is chosen by the test.
    second.truncate(96 + 320 + 64);
    let seen: std::collections::BTreeSet<&[u8]> = first[..96 + 320 + 64].windows(8).collect();
    let common: Vec<_> = second.windows(8).filter(|window| seen.contains(window)).collect();
    assert!(common.is_empty(), "{common:?}");
}
