//! Logins of the paper profile that succeed, and all kinds that must fail.

use core::net::IpAddr;

use alloc::vec;
use alloc::vec::Vec;
use rand::SeedableRng;
use rand::rngs::StdRng;
use sealstone_mds_protocol::paper::{
    Confirm, Element, Identity, Init, InitResponse, Nonce, Offers, PaperErrorCode, PaperHeader, PaperType,
    Proof, SessionOk,
};
use sealstone_mds_protocol::{FrameType, HEADER_BYTES, UserName, Wire, decode_message, encode_message};

use super::*;

const NOW: u64 = 1_795_000_000_000;

fn user() -> UserName {
    UserName::new("alice").unwrap()
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn identity(name: &str) -> Identity {
    Identity::new(name.as_bytes()).unwrap()
}

fn key() -> PassphraseKey {
    PassphraseKey::derive(&user(), "correct horse battery")
}

fn client_terms() -> ClientTerms {
    ClientTerms {
        user: user(),
        client: identity("client1"),
        server: identity("mds1"),
        addresses: Addresses { client: address(10), server: address(1) },
        group: OakleyGroup::Modp1024,
        offers: Algorithms::offers(),
    }
}

struct World {
    rng: StdRng,
    terms: ServerTerms,
    key: PassphraseKey,
    seen: ReplayCache,
    now: u64,
}

impl World {
    fn new() -> Self {
        let terms = ServerTerms { identity: identity("mds1"), takes_group_1: false };
        Self { rng: StdRng::seed_from_u64(1), terms, key: key(), seen: ReplayCache::default(), now: NOW }
    }

    fn addresses() -> Addresses {
        client_terms().addresses
    }

    fn start(&mut self, terms: ClientTerms) -> (Init, AwaitingResponse) {
        AwaitingResponse::start(&mut self.rng, terms, key()).unwrap()
    }

    fn check(&self, init: &Init) -> Result<CheckedInit, PaperFailure> {
        check_init(&self.terms, &self.key, &Self::addresses(), through_the_wire(PaperType::Init, init))
    }

    fn respond(&mut self, init: &Init) -> Result<(InitResponse, HalfOpen), PaperFailure> {
        self.check(init)?.fresh(&mut self.seen)?.respond(&mut self.rng, self.now)
    }

    /// Runs a whole login; returns both ends.
    fn login(&mut self, terms: ClientTerms) -> (Opened, PaperSession, Channel) {
        let (init, client) = self.start(terms);
        self.finish(&init, client)
    }

    fn finish(&mut self, init: &Init, client: AwaitingResponse) -> (Opened, PaperSession, Channel) {
        let (response, half) = self.respond(init).unwrap();
        let (confirm, client) =
            client.answer(through_the_wire(PaperType::Response, &response), NOW, NOW).unwrap();
        let proven = half.confirm(&through_the_wire(PaperType::Confirm, &confirm), self.now).unwrap();
        let session = proven.session().clone();
        let (frame, channel) = proven.open(&mut self.rng, &session_terms()).unwrap();
        let (header, body) = split(&frame);
        (client.open(&header, body).unwrap(), session, channel)
    }
}

fn session_terms() -> SessionOk {
    SessionOk { session: [3; 16], expires_ms: NOW + 1, idle_s: 60, rekey_bytes: REKEY_BYTES }
}

/// Encodes the message, and decodes it again.
fn through_the_wire<T: Wire>(kind: PaperType, message: &T) -> T {
    let frame = encode_message(kind, 0, message).unwrap();
    decode_message(split(&frame).1).unwrap()
}

fn split(frame: &[u8]) -> (PaperHeader, &[u8]) {
    let (header, body) = frame.split_first_chunk::<HEADER_BYTES>().unwrap();
    let header = PaperHeader::parse(header).unwrap();
    assert_eq!(header.body_length as usize, body.len());
    (header, body)
}

/// Returns the failure, and checks the code that unauthenticated peers receive.
fn refused<T>(result: Result<T, PaperFailure>, code: PaperErrorCode) -> PaperFailure {
    let failure = result.err().expect("must be refused");
    assert_eq!(failure.code(), code, "{failure}");
    failure
}

#[test]
fn both_ends_agree_in_every_group_and_algorithm() {
    let mut world = World::new();
    world.terms.takes_group_1 = true;
    for group in OakleyGroup::ALL {
        for encryption in [Encryption::Aes128Cbc, Encryption::Aes256Gcm] {
            for hash in [Hash::Sha1, Hash::Sha256] {
                let algorithms = Algorithms { encryption, hash };
                let (opened, session, mut server) =
                    world.login(ClientTerms { group, offers: algorithms.list(), ..client_terms() });
                assert_eq!(opened.terms, session_terms());
                assert_eq!(opened.session.algorithms(), algorithms);
                assert_eq!(opened.session.skeyid(), session.skeyid());
                let stored = PaperSession::from_bytes(&session.to_bytes()).unwrap();
                assert_eq!(*stored.to_bytes(), *opened.session.to_bytes());
                let mut client = opened.channel;
                for length in [0, 1, 15, 16, 17, 4096] {
                    let content = vec![7; length];
                    let frame = client.sealer.seal(&mut world.rng, PaperType::Data, &content).unwrap();
                    let (header, body) = split(&frame);
                    assert_eq!(*server.opener.open(&header, body).unwrap(), content);
                    let frame = server.sealer.seal(&mut world.rng, PaperType::Data, &content).unwrap();
                    let (header, body) = split(&frame);
                    assert_eq!(*client.opener.open(&header, body).unwrap(), content);
                }
            }
        }
    }
}

#[test]
fn conservative_mode_needs_cookie_and_keeps_no_state() {
    let mut world = World::new();
    let (request, client) = AwaitingCookie::start(client_terms(), key());
    let response = answer_cookie(&world.key, &World::addresses(), &request).unwrap();
    let (init, client) = client.answer(&mut world.rng, &response).unwrap();
    assert_eq!(init.server_cookie, response.server_cookie);
    world.finish(&init, client);
    // A cookie of another user.
    for altered in [
        |r: &mut sealstone_mds_protocol::paper::CookieResponse| r.client_cookie[0] ^= 1,
        |r: &mut sealstone_mds_protocol::paper::CookieResponse| r.server_cookie[7] ^= 1,
    ] {
        let (_, client) = AwaitingCookie::start(client_terms(), key());
        let mut wrong = response;
        altered(&mut wrong);
        assert!(client.answer(&mut world.rng, &wrong).is_err());
    }
}

/// A1, A9: another passphrase, another address (NAT), no such user: the same failure, and no state
/// is kept.
#[test]
fn all_cookie_mismatches_are_refused_alike() {
    let mut world = World::new();
    let (init, _) = world.start(client_terms());
    for bit in 0..64 {
        let mut wrong = init.clone();
        wrong.client_cookie[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(refused(world.check(&wrong), PaperErrorCode::Cookie), PaperFailure::ClientCookie);
    }
    for key in [PassphraseKey::derive(&user(), "wrong"), PassphraseKey::dummy(&[7; 32], &user())] {
        let failure = check_init(&world.terms, &key, &World::addresses(), init.clone());
        assert_eq!(refused(failure, PaperErrorCode::Cookie), PaperFailure::ClientCookie);
    }
    // Translated on the way: the server sees another address than the client hashed. A false alarm.
    let seen = Addresses { client: address(200), ..World::addresses() };
    let failure = check_init(&world.terms, &world.key, &seen, init);
    assert_eq!(refused(failure, PaperErrorCode::Cookie), PaperFailure::ClientCookie);
    assert!(world.seen.is_empty());
}

#[test]
fn address_has_one_cookie_in_any_notation() {
    let mapped = IpAddr::from(core::net::Ipv4Addr::new(192, 0, 2, 10).to_ipv6_mapped());
    assert_eq!(key().cookie(mapped), key().cookie(address(10)));
    assert_ne!(key().cookie(address(10)), key().cookie(address(11)));
    // Composed and decomposed.
    assert_eq!(
        *PassphraseKey::derive(&user(), "\u{e9}").to_bytes(),
        *PassphraseKey::derive(&user(), "e\u{301}").to_bytes()
    );
}

/// A recorded cookie stays valid, but cannot sign.
#[test]
fn cookie_without_key_fails_at_the_signature() {
    let mut world = World::new();
    let (init, _) = world.start(client_terms());
    let mut forged = init.clone();
    forged.client_nonce = Nonce::new([9; 16]).unwrap();
    assert_eq!(refused(world.check(&forged), PaperErrorCode::Refused), PaperFailure::Signature(1));
    let alterations: [fn(&mut Init); 5] = [
        |init| init.group = 14,
        |init| init.client = identity("client2"),
        |init| init.offers = Algorithms::PAPER.list(),
        |init| init.signature = Proof::new([0; 20]).unwrap(),
        |init| init.signature = Proof::new(&init.signature.as_slice()[..19]).unwrap(),
    ];
    for alter in alterations {
        let mut forged = init.clone();
        alter(&mut forged);
        assert_eq!(refused(world.check(&forged), PaperErrorCode::Refused), PaperFailure::Signature(1));
    }
}

/// A3: no random byte is drawn, so there is no exponent and no power of it.
#[test]
fn a_replayed_init_is_refused_before_any_exponentiation() {
    let mut world = World::new();
    let (init, client) = world.start(client_terms());
    world.finish(&init, client);
    let checked = world.check(&init).unwrap();
    let failure = refused(checked.fresh(&mut world.seen), PaperErrorCode::Replay);
    assert_eq!(failure, PaperFailure::Replay);
}

#[test]
fn repeated_init_while_half_open_repeats_the_response() {
    let mut world = World::new();
    let (init, mut client) = world.start(client_terms());
    let (response, half) = world.respond(&init).unwrap();
    let again: Vec<Init> = core::iter::from_fn(|| client.again().cloned()).collect();
    assert_eq!(again.len(), RETRANSMITS_MAX as usize);
    for again in again {
        assert_eq!(half.answered(&again), Some(&response));
    }
    let mut other = init;
    other.offers = Algorithms::PAPER.list();
    assert_eq!(half.answered(&other), None);
    let (_, awaiting) = client.answer(response.clone(), NOW, NOW).unwrap();
    assert!(awaiting.is_repeat(&response));
}

/// A5 and similar: whatever an attacker changes in RESP, the client stops.
#[test]
fn an_altered_response_stops_the_client() {
    let mut world = World::new();
    type Alteration = (fn(&mut InitResponse), PaperFailure);
    let alterations: [Alteration; 12] = [
        (|r| r.public = Element::new([5; 128]).unwrap(), PaperFailure::Signature(2)),
        (|r| r.time_ms += 60_000, PaperFailure::Signature(2)),
        (|r| r.time_ms = 0, PaperFailure::Signature(2)),
        (|r| r.server_nonce = Nonce::new([1; 16]).unwrap(), PaperFailure::Signature(2)),
        (|r| r.signature = Proof::new([0; 20]).unwrap(), PaperFailure::Signature(2)),
        (|r| r.client_nonce = Nonce::new([1; 16]).unwrap(), PaperFailure::Echo("client nonce")),
        (|r| r.client_cookie[0] ^= 1, PaperFailure::Echo("client cookie")),
        (|r| r.server_cookie[0] ^= 1, PaperFailure::ServerCookie),
        (|r| r.group = 1, PaperFailure::Echo("group")),
        (|r| r.user = UserName::new("bob").unwrap(), PaperFailure::Echo("user")),
        (|r| r.server = identity("mds2"), PaperFailure::Identity("another server answers")),
        (|r| r.client = identity("client2"), PaperFailure::Identity("the answer is for another client")),
    ];
    for (alter, expected) in alterations {
        let (init, client) = world.start(client_terms());
        let (mut response, _) = world.respond(&init).unwrap();
        alter(&mut response);
        assert_eq!(client.answer(response, NOW, NOW).err(), Some(expected));
    }
}

/// Attack A7 of the design.
#[test]
fn invalid_algorithm_choices_stop_the_client() {
    let mut world = World::new();
    for pairs in [
        vec![(1, 2), (2, 2), (3, 1)],
        vec![(1, 1), (2, 1), (3, 1)],
        vec![(1, 1), (1, 9), (2, 2), (3, 1)],
        vec![(1, 1), (2, 2)],
        vec![(1, 1), (1, 9), (3, 1)],
    ] {
        let (init, client) = world.start(client_terms());
        let (mut response, _) = world.respond(&init).unwrap();
        response.choice = Offers::new(pairs).unwrap();
        let failure = refused(client.answer(response, NOW, NOW), PaperErrorCode::Algorithms);
        assert_eq!(failure, PaperFailure::ChoiceNotOffered);
    }
}

#[test]
fn an_offer_without_anything_in_common_is_refused() {
    let mut world = World::new();
    for (class, pairs) in [
        (1, vec![(1, 2), (2, 2), (3, 1)]),
        (2, vec![(1, 1), (2, 1), (3, 1)]),
        (3, vec![(1, 1), (2, 2), (3, 2)]),
        (3, vec![(1, 1), (2, 2)]),
    ] {
        let offers = Offers::new(pairs).unwrap();
        let (init, _) = world.start(ClientTerms { offers, ..client_terms() });
        let failure = refused(world.check(&init), PaperErrorCode::Algorithms);
        assert_eq!(failure, PaperFailure::NoCommon(class));
    }
}

/// k_i = SHA-1(N_c, k) and the cookie, the beginning of SHA-1(address, k), are the same function of
/// their inputs.
#[test]
fn nonce_equal_to_an_address_is_refused() {
    let mut world = World::new();
    let client = IpAddr::from([0x20, 1, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let IpAddr::V6(six) = client else { unreachable!() };
    let addresses = Addresses { client, ..World::addresses() };
    let (init, _) = world.start(ClientTerms { addresses, ..client_terms() });
    let nonce = Nonce::new(six.octets()).unwrap();
    let forged = signed(Init { client_nonce: nonce, ..init });
    let failure = check_init(&world.terms, &world.key, &addresses, forged);
    assert_eq!(refused(failure, PaperErrorCode::Malformed), PaperFailure::NonceIsAddress);
}

/// Returns INIT as a client that knows the key would sign it.
fn signed(mut init: Init) -> Init {
    init.signature = key().signing(&init.client_nonce).sign(&client::tbs1(&init));
    init
}

#[test]
fn unknown_and_broken_groups_are_refused() {
    let mut world = World::new();
    let (init, _) = world.start(client_terms());
    for group in [0, 3, 4, 15, u32::MAX] {
        let failure = refused(world.check(&signed(Init { group, ..init.clone() })), PaperErrorCode::Group);
        assert_eq!(failure, PaperFailure::GroupUnknown(group));
    }
    let (init, _) = world.start(ClientTerms { group: OakleyGroup::Modp768, ..client_terms() });
    assert_eq!(refused(world.check(&init), PaperErrorCode::Group), PaperFailure::GroupRefused(1));
}

#[test]
fn both_ends_refuse_weak_public_values() {
    let mut world = World::new();
    let weak = |last: u8, fill: u8| {
        let mut bytes = vec![fill; 128];
        bytes[127] = last;
        Element::new(bytes).unwrap()
    };
    let (init, _) = world.start(client_terms());
    for public in [weak(0, 0), weak(1, 0), weak(0xFF, 0xFF)] {
        let failure = world.check(&signed(Init { public: public.clone(), ..init.clone() }));
        assert_eq!(refused(failure, PaperErrorCode::Malformed), PaperFailure::ElementWeak);
        let (init, client) = world.start(client_terms());
        let (mut response, _) = world.respond(&init).unwrap();
        response.public = public;
        let signing = key().signing(&init.client_nonce);
        response.signature = signing.sign(&client::tbs2(&init, &response));
        assert_eq!(client.answer(response, NOW, NOW).err(), Some(PaperFailure::ElementWeak));
    }
    for length in [1, 127, 129, 256] {
        let public = Element::new(vec![7; length]).unwrap();
        let failure = world.check(&signed(Init { public, ..init.clone() }));
        let expected = PaperFailure::ElementLength { actual: length, expected: 128 };
        assert_eq!(refused(failure, PaperErrorCode::Malformed), expected);
    }
}

#[test]
fn a_reflection_and_another_servers_name_are_refused() {
    let mut world = World::new();
    let named = ClientTerms { client: identity("mds1"), ..client_terms() };
    let begun = AwaitingResponse::start(&mut world.rng, named, key());
    assert!(matches!(begun, Err(PaperFailure::Identity(_))));
    let (init, _) = world.start(client_terms());
    for (client, server) in [("mds1", "client1"), ("mds1", "mds1"), ("client1", "mds2")] {
        let (client, server) = (identity(client), identity(server));
        let failure = world.check(&signed(Init { client, server, ..init.clone() }));
        assert!(matches!(refused(failure, PaperErrorCode::Refused), PaperFailure::Identity(_)));
    }
    // The server's own signature is not valid as a client's.
    let (init, client) = world.start(client_terms());
    let (response, half) = world.respond(&init).unwrap();
    let (mut confirm, _) = client.answer(response.clone(), NOW, NOW).unwrap();
    confirm.signature = response.signature;
    let failure = refused(half.confirm(&confirm, NOW), PaperErrorCode::Refused);
    assert_eq!(failure, PaperFailure::Signature(3));
}

#[test]
fn invalid_or_late_confirmation_is_refused() {
    let mut world = World::new();
    let mut exchange = || {
        let (init, client) = world.start(client_terms());
        let (response, half) = world.respond(&init).unwrap();
        (client.answer(response, NOW, NOW).unwrap().0, half)
    };
    let (confirm, half) = exchange();
    assert!(half.confirm(&confirm, NOW + HALF_OPEN_MS).is_ok());
    let (confirm, half) = exchange();
    let failure = refused(half.confirm(&confirm, NOW + HALF_OPEN_MS + 1), PaperErrorCode::Timeout);
    assert_eq!(failure, PaperFailure::Late);
    let (_, half) = exchange();
    let (other, _) = exchange();
    assert!(matches!(half.confirm(&other, NOW), Err(PaperFailure::Echo("client nonce"))));
    let alterations: [fn(&mut Confirm); 4] = [
        |c| c.client_cookie[0] ^= 1,
        |c| c.server_cookie[0] ^= 1,
        |c| c.server_nonce = Nonce::new([1; 16]).unwrap(),
        |c| c.signature = Proof::new([1; 20]).unwrap(),
    ];
    for alter in alterations {
        let (mut confirm, half) = exchange();
        alter(&mut confirm);
        assert!(matches!(
            half.confirm(&confirm, NOW),
            Err(PaperFailure::Echo(_) | PaperFailure::Signature(3))
        ));
    }
}

/// A11: KEYID is the same in all logins of a user from one host.
#[test]
fn logins_of_one_user_share_only_the_keyid() {
    let mut world = World::new();
    let (first_init, first) = world.start(client_terms());
    let (second_init, second) = world.start(client_terms());
    assert_eq!(first_init.client_cookie, second_init.client_cookie);
    // The answer of one login sent to the other.
    let (response, _) = world.respond(&first_init).unwrap();
    assert_eq!(second.answer(response, NOW, NOW).err(), Some(PaperFailure::Echo("client nonce")));
    drop(first);
    let (one, _, mut one_server) = world.login(client_terms());
    let (two, _, _) = world.login(client_terms());
    assert_ne!(one.session.skeyid(), two.session.skeyid());
    let mut two = two.channel;
    let frame = two.sealer.seal(&mut world.rng, PaperType::Data, b"spliced").unwrap();
    let (header, body) = split(&frame);
    assert_eq!(one_server.opener.open(&header, body).err(), Some(RecordFailure::Forged));
}

/// Both kinds of records, with each attack on the way.
#[test]
fn manipulated_records_do_not_open() {
    let mut world = World::new();
    for encryption in [Encryption::Aes128Cbc, Encryption::Aes256Gcm] {
        let offers = Algorithms { encryption, hash: Hash::Sha256 }.list();
        let terms = ClientTerms { offers, ..client_terms() };
        let seal = |world: &mut World, channel: &mut Channel, text: &[u8]| {
            channel.sealer.seal(&mut world.rng, PaperType::Data, text).unwrap()
        };
        let (opened, _, mut server) = world.login(terms.clone());
        let mut client = opened.channel;
        let frame = seal(&mut world, &mut client, b"remove everything");
        let (header, body) = split(&frame);
        for bit in 0..8 * body.len() {
            let mut wrong = body.to_vec();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(server.opener.open(&header, &wrong).is_err(), "bit {bit}");
        }
        for length in 0..body.len() {
            assert!(server.opener.open(&header, &body[..length]).is_err(), "cut at {length}");
        }
        let renamed = PaperHeader { kind: PaperType::Logout, ..header };
        assert_eq!(server.opener.open(&renamed, body).err(), Some(RecordFailure::Forged));
        let renumbered = PaperHeader { sequence: 2, ..header };
        assert_eq!(server.opener.open(&renumbered, body).err(), Some(RecordFailure::Forged));
        // Reflected to the sender.
        assert_eq!(client.opener.open(&header, body).err(), Some(RecordFailure::Forged));
        // In sequence it opens, once.
        assert!(server.opener.open(&header, body).is_ok());
        assert_eq!(
            server.opener.open(&header, body).err(),
            Some(RecordFailure::Sequence { expected: 2, found: 1 })
        );
        // The third before the second.
        let _second = seal(&mut world, &mut client, b"2");
        let third = seal(&mut world, &mut client, b"3");
        let (header, body) = split(&third);
        assert_eq!(
            server.opener.open(&header, body).err(),
            Some(RecordFailure::Sequence { expected: 2, found: 3 })
        );
    }
}

#[test]
fn record_longer_than_frame_is_refused() {
    let mut world = World::new();
    for encryption in [Encryption::Aes128Cbc, Encryption::Aes256Gcm] {
        let offers = Algorithms { encryption, hash: Hash::Sha256 }.list();
        let (opened, _, mut server) = world.login(ClientTerms { offers, ..client_terms() });
        let mut client = opened.channel;
        let most = vec![1; sealstone_mds_protocol::BODY_MAX];
        let frame = client.sealer.seal(&mut world.rng, PaperType::Data, &most).unwrap();
        let (header, body) = split(&frame);
        assert_eq!(server.opener.open(&header, body).unwrap().len(), most.len());
        let over = vec![1; PaperType::Data.body_max()];
        let failure = client.sealer.seal(&mut world.rng, PaperType::Data, &over);
        assert_eq!(failure.err(), Some(RecordFailure::TooLong));
    }
}

#[test]
fn session_resumes_on_another_connection_with_new_keys() {
    let mut world = World::new();
    let (opened, session, _) = world.login(client_terms());
    let (message, client) = opened.session.resume(&mut world.rng, [3; 16]);
    let (ok, mut server) = answer_continue(&mut world.rng, &session, &message, NOW).unwrap();
    let (mut channel, clock) = client.answer(&ok, NOW - 10, NOW + 10).unwrap();
    assert_eq!(clock, Some(ClockReading { offset_ms: 0, error_ms: 10 }));
    let frame = channel.sealer.seal(&mut world.rng, PaperType::Data, b"on").unwrap();
    let (header, body) = split(&frame);
    // Replayed to a connection that the same CONTINUE opens again.
    let (_, mut again) = answer_continue(&mut world.rng, &session, &message, NOW).unwrap();
    assert_eq!(again.opener.open(&header, body).err(), Some(RecordFailure::Forged));
    assert_eq!(*server.opener.open(&header, body).unwrap(), b"on");
    // Of another session, or altered on the way.
    let (other, _, _) = world.login(client_terms());
    let failure = answer_continue(&mut world.rng, &other.session, &message, NOW);
    assert_eq!(refused(failure, PaperErrorCode::SessionExpired), PaperFailure::NoSession);
    for alter in [0, 1, 2] {
        let (message, client) = opened.session.resume(&mut world.rng, [3; 16]);
        let (mut ok, _) = answer_continue(&mut world.rng, &session, &message, NOW).unwrap();
        match alter {
            0 => ok.nonce[0] ^= 1,
            1 => ok.time_ms += 3_600_000,
            _ => ok.proof = Proof::new([0; 20]).unwrap(),
        }
        assert_eq!(client.answer(&ok, NOW, NOW).err(), Some(PaperFailure::NoSession));
    }
}

#[test]
fn clock_reading_needs_signature_and_short_round_trip() {
    let mut world = World::new();
    for (delay, expected) in [(100, Some(ClockReading { offset_ms: 5_000, error_ms: 50 })), (2_001, None)] {
        world.now = NOW + 5_000 + delay / 2;
        let (init, client) = world.start(client_terms());
        let (response, half) = world.respond(&init).unwrap();
        let (confirm, client) = client.answer(response, NOW, NOW + delay).unwrap();
        let proven = half.confirm(&confirm, world.now).unwrap();
        let (frame, _) = proven.open(&mut world.rng, &session_terms()).unwrap();
        let (header, body) = split(&frame);
        assert_eq!(client.open(&header, body).unwrap().clock, expected);
    }
}

#[test]
fn foreign_session_ok_is_refused() {
    let mut world = World::new();
    let mut begin = || {
        let (init, client) = world.start(client_terms());
        let (response, half) = world.respond(&init).unwrap();
        let (confirm, client) = client.answer(response, NOW, NOW).unwrap();
        let proven = half.confirm(&confirm, NOW).unwrap();
        (client, proven.open(&mut world.rng, &session_terms()).unwrap().0)
    };
    let (client, frame) = begin();
    let (header, body) = split(&frame);
    let renamed = PaperHeader { kind: PaperType::Data, ..header };
    assert_eq!(client.open(&renamed, body).err(), Some(PaperFailure::OutOfPlace));
    let (client, _) = begin();
    let failure = client.open(&header, body).err();
    assert_eq!(failure, Some(PaperFailure::Record(RecordFailure::Forged)));
}

#[test]
fn damaged_stored_sessions_are_refused() {
    let bytes = [0; PAPER_SESSION_BYTES];
    assert!(PaperSession::from_bytes(&bytes).is_none());
    let mut bytes = *World::new().login(client_terms()).1.to_bytes();
    bytes[1] = 1;
    assert!(PaperSession::from_bytes(&bytes).is_none());
}
