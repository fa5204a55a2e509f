//! Attacks on the paper's login and its channel, frame by frame. Each is refused with its reason in
//! the log and only a code on the wire. docs/standards/login-attacks.md has the list.

use sealstone_mds_protocol::paper::{Confirm, Element, Nonce, Offers, Proof};
use sealstone_mds_protocol::{Role, frame};

use super::*;
use crate::HALF_OPEN_MAX;

#[test]
fn replayed_or_altered_init_is_refused() {
    let mut paper = Paper::new();
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let mut connection = paper.connect();
    assert!(!paper.message(&mut connection, PaperType::Init, &init).close);
    let mut another = paper.connect();
    let output = paper.message(&mut another, PaperType::Init, &init);
    paper.refused(&output, PaperErrorCode::Replay, "carol", "replay");
    // The slot of the refused login was released.
    assert_eq!(paper.listener.half_open_counts(), (1, 1));
    let mut altered = init.clone();
    altered.group = 14;
    let mut another = paper.connect();
    let output = paper.message(&mut another, PaperType::Init, &altered);
    paper.refused(&output, PaperErrorCode::Refused, "carol", "signature");
}

#[test]
fn repeated_init_is_answered_twice() {
    let mut paper = Paper::new();
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let mut connection = paper.connect();
    let first = paper.message(&mut connection, PaperType::Init, &init).frame;
    assert_eq!(paper.message(&mut connection, PaperType::Init, &init).frame, first);
    assert_eq!(paper.message(&mut connection, PaperType::Init, &init).frame, first);
    let output = paper.message(&mut connection, PaperType::Init, &init);
    paper.refused(&output, PaperErrorCode::Malformed, "carol", "out-of-place");
}

#[test]
fn late_or_foreign_confirmation_is_refused() {
    let mut paper = Paper::new();
    let (mut first, mut second) = (paper.connect(), paper.connect());
    let (confirm, _) = paper.half_open(&mut first);
    let (_, _) = paper.half_open(&mut second);
    let output = paper.send(&mut second, &confirm);
    paper.refused(&output, PaperErrorCode::Malformed, "carol", "spliced");
    paper.world.now += 5_001;
    let output = paper.send(&mut first, &confirm);
    paper.refused(&output, PaperErrorCode::Timeout, "carol", "late");
    assert_eq!(paper.listener.half_open_counts().0, 0);
}

#[test]
fn messages_out_of_place_are_refused() {
    let mut paper = Paper::new();
    // Before any other message.
    let mut connection = paper.connect();
    let (confirm, _) = paper.half_open(&mut connection);
    let mut fresh = paper.connect();
    let output = paper.send(&mut fresh, &confirm);
    paper.refused(&output, PaperErrorCode::Malformed, "", "out-of-place");
    // Another message instead of the confirmation.
    let request = CookieRequest { client_cookie: [0; 8], user: user("carol") };
    let output = paper.message(&mut connection, PaperType::CookieRequest, &request);
    paper.refused(&output, PaperErrorCode::Malformed, "carol", "out-of-place");
    // A login during a session.
    let mut connection = paper.connect();
    paper.login(&mut connection);
    let output = paper.message(&mut connection, PaperType::CookieRequest, &request);
    paper.refused(&output, PaperErrorCode::Malformed, "", "out-of-place");
    // After the end.
    let output = paper.message(&mut connection, PaperType::CookieRequest, &request);
    assert!(output.close);
}

#[test]
fn tampered_records_close_connection() {
    let mut paper = Paper::new();
    for attack in 0..7 {
        let mut connection = paper.connect();
        let mut channel = paper.login(&mut connection).channel;
        let body = Request::WhoAmI {}.encode(1).unwrap();
        let mut seal =
            |paper: &mut Paper| channel.sealer.seal(&mut paper.world.rng, PaperType::Data, &body).unwrap();
        let (first, second) = (seal(&mut paper), seal(&mut paper));
        let frame = match attack {
            0 => {
                let mut altered = first.clone();
                *altered.last_mut().unwrap() ^= 1;
                altered
            }
            1 => second.clone(),
            2 => {
                assert!(!paper.send(&mut connection, &first).close);
                first.clone()
            }
            3 => frame(PaperType::Data, 1, &first[HEADER_BYTES..first.len() - 1]).unwrap(),
            // With another type, and with another number in the header.
            4 => frame(PaperType::Logout, 1, &first[HEADER_BYTES..]).unwrap(),
            5 => frame(PaperType::Data, 2, &first[HEADER_BYTES..]).unwrap(),
            // Of another session.
            _ => {
                let mut other = paper.connect();
                let mut channel = paper.login(&mut other).channel;
                channel.sealer.seal(&mut paper.world.rng, PaperType::Data, &body).unwrap()
            }
        };
        let output = paper.send(&mut connection, &frame);
        paper.refused(&output, PaperErrorCode::Malformed, "", "record");
        assert!(!connection.is_active());
    }
}

#[test]
fn reflected_server_signature_is_refused() {
    let mut paper = Paper::new();
    let mut connection = paper.connect();
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let output = paper.message(&mut connection, PaperType::Init, &init);
    let response: InitResponse = answer(&output, PaperType::Response).unwrap();
    let reflected = Confirm {
        client_cookie: response.client_cookie,
        server_cookie: response.server_cookie,
        client_nonce: response.client_nonce,
        server_nonce: response.server_nonce,
        signature: response.signature,
    };
    let output = paper.message(&mut connection, PaperType::Confirm, &reflected);
    paper.refused(&output, PaperErrorCode::Refused, "carol", "signature");
}

#[test]
fn abandoned_paper_login_frees_its_slot() {
    let mut paper = Paper::new();
    let mut connection = paper.connect();
    paper.half_open(&mut connection);
    assert_eq!(paper.listener.half_open_counts().0, 1);
    connection.ended(&paper.world.mds, paper.world.now);
    assert_eq!(paper.listener.half_open_counts().0, 0);
    let last = ("carol".to_owned(), "paper-login".to_owned(), "abandoned".to_owned());
    assert_eq!(paper.seen.last(), last);
}

/// A client that knows a passphrase and never confirms.
#[test]
fn half_open_logins_are_bounded() {
    let mut paper = Paper::new();
    let mut held = Vec::new();
    for _ in 0..HALF_OPEN_MAX {
        // Slow enough for the limiter.
        paper.world.now += 60_000;
        let mut connection = paper.connect();
        paper.half_open(&mut connection);
        held.push(connection);
    }
    assert_eq!(paper.listener.half_open_counts().0, HALF_OPEN_MAX);
    paper.world.now += 60_000;
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let mut connection = paper.connect();
    let output = paper.message(&mut connection, PaperType::Init, &init);
    paper.refused(&output, PaperErrorCode::Busy, "carol", "limited");
    held.clear();
    assert_eq!(paper.listener.half_open_counts().0, 0);
}

/// As fast as possible, from all addresses and for all users.
#[test]
fn cookie_flood_uses_no_memory() {
    let mut paper = Paper::new();
    let request = |at: u32| CookieRequest {
        client_cookie: u64::from(at).to_be_bytes(),
        user: user(&format!("u{}", at % 50_000)),
    };
    let mut flood = |range: core::ops::Range<u32>| {
        for at in range {
            let [_, a, b, c] = at.to_be_bytes();
            let mut connection = paper.connect_from([10, a, b, c]);
            let output = paper.message(&mut connection, PaperType::CookieRequest, &request(at));
            assert!(output.close);
            paper.seen.clear();
        }
    };
    flood(0..100_000);
    assert_eq!(paper.listener.half_open_counts(), (0, 0));
}

/// Any bytes on the wire, without a session: never a session, never a panic.
#[test]
fn random_frames_open_no_paper_session() {
    let mut paper = Paper::new();
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let honest = encode_message(PaperType::Init, 0, &init).unwrap();
    for at in HEADER_BYTES..honest.len() {
        paper.world.now += 12_000;
        let mut altered = honest.clone();
        altered[at] ^= 0x55;
        let mut connection = paper.connect();
        let output = paper.send(&mut connection, &altered);
        assert!(output.close, "byte {at}");
        assert!(!connection.is_active());
        // Truncated there.
        let (header, body) = split(&honest);
        let cut = &body[..at - HEADER_BYTES];
        let mut connection = paper.connect();
        let now = paper.world.now;
        let output = connection.receive(&paper.world.mds, &header, cut, now, &mut paper.world.rng);
        assert!(output.close && !connection.is_active());
    }
}

#[test]
fn invalid_and_oversize_frames_are_refused() {
    let mut paper = Paper::new();
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let honest = encode_message(PaperType::Init, 0, &init).unwrap();
    let attacks = [
        (0, b'G', "foreign-frame", PaperErrorCode::Malformed),
        (4, 9, "foreign-frame", PaperErrorCode::Version),
        // A frame of the modern profile.
        (5, 1, "foreign-frame", PaperErrorCode::Version),
        (6, 0x7F, "foreign-frame", PaperErrorCode::Malformed),
        (7, 1, "foreign-frame", PaperErrorCode::Malformed),
        (8, 1, "oversize", PaperErrorCode::Malformed),
        // A sequence number on a frame that is not a record.
        (15, 1, "foreign-frame", PaperErrorCode::Malformed),
    ];
    for (at, byte, verdict, code) in attacks {
        let mut header: [u8; HEADER_BYTES] = *honest.first_chunk().unwrap();
        header[at] = byte;
        let error = PaperHeader::parse(&header).unwrap_err();
        let mut connection = paper.connect();
        let output = connection.reject(&paper.world.mds, error, paper.world.now);
        paper.refused(&output, code, "", verdict);
        let mut connection = paper.connect();
        paper.half_open(&mut connection);
        let output = connection.reject(&paper.world.mds, error, paper.world.now);
        paper.refused(&output, code, "carol", verdict);
        let mut connection = paper.connect();
        paper.login(&mut connection);
        let output = connection.reject(&paper.world.mds, error, paper.world.now);
        paper.refused(&output, code, "", verdict);
        assert!(!connection.is_active());
        paper.world.now += 24_000;
    }
    assert_eq!(paper.listener.half_open_counts().0, 0);
}

type Alter<'a> = &'a dyn Fn(&mut Init);

/// A client that knows the passphrase, as a guesser does: all messages are signed, and still
/// refused.
#[test]
fn weak_groups_and_invalid_offers_are_refused() {
    let mut paper = Paper::new();
    let server = Identity::new(SERVER_IDENTITY).unwrap();
    let attacks: [(Alter<'_>, PaperErrorCode, &str); 12] = [
        (&|init| init.group = 1, PaperErrorCode::Group, "group-refused"),
        (&|init| init.group = 3, PaperErrorCode::Group, "group-unknown"),
        (&|init| init.group = u32::MAX, PaperErrorCode::Group, "group-unknown"),
        (&|init| init.public = number(128, 0), PaperErrorCode::Malformed, "element-weak"),
        (&|init| init.public = number(128, 1), PaperErrorCode::Malformed, "element-weak"),
        (&|init| init.public = Element::new([0xFF; 128]).unwrap(), PaperErrorCode::Malformed, "element-weak"),
        (&|init| init.public = number(127, 2), PaperErrorCode::Malformed, "element-length"),
        (&|init| init.public = number(129, 2), PaperErrorCode::Malformed, "element-length"),
        (&|init| init.client = server.clone(), PaperErrorCode::Refused, "identity"),
        (&|init| init.server = Identity::new(*b"mds2").unwrap(), PaperErrorCode::Refused, "identity"),
        (
            &|init| init.offers = Offers::new([(1, 2), (2, 1), (3, 1)]).unwrap(),
            PaperErrorCode::Algorithms,
            "no-common-algorithm",
        ),
        (&|init| init.server_cookie = [1; 8], PaperErrorCode::Cookie, "server-cookie-mismatch"),
    ];
    for (alter, code, verdict) in attacks {
        paper.world.now += 60_000;
        let (mut init, _) = paper.init(terms("carol"), PASSPHRASE);
        alter(&mut init);
        sign(&mut init);
        let mut connection = paper.connect();
        let output = paper.message(&mut connection, PaperType::Init, &init);
        paper.refused(&output, code, "carol", verdict);
        assert_eq!(paper.listener.half_open_counts().0, 0);
    }
}

/// The cookie of that address would begin like the signing key.
#[test]
fn nonce_equal_to_address_is_refused() {
    let mut paper = Paper::new();
    let client = IpAddr::from([0x2001, 0xDB8, 0, 0, 0, 0, 0, 1]);
    let server = IpAddr::from([0x2001, 0xDB8, 0, 0, 0, 0, 0, 2]);
    let terms = ClientTerms { addresses: Addresses { client, server }, ..terms("carol") };
    for address in [client, server] {
        let (mut init, _) = paper.init(terms.clone(), PASSPHRASE);
        let IpAddr::V6(bytes) = address else { panic!("not this one") };
        init.client_nonce = Nonce::new(bytes.octets()).unwrap();
        sign(&mut init);
        let mut connection = PaperConnection::new(paper.listener.clone(), terms.addresses);
        let output = paper.message(&mut connection, PaperType::Init, &init);
        paper.refused(&output, PaperErrorCode::Malformed, "carol", "nonce-is-address");
    }
}

/// Returns `value` as a number of `bytes` bytes.
fn number(bytes: usize, value: u8) -> Element {
    let mut element = vec![0; bytes];
    element[bytes - 1] = value;
    Element::new(element).unwrap()
}

/// Signs an INIT with the passphrase, implemented from the description alone.
fn sign(init: &mut Init) {
    use hmac::{Hmac, KeyInit, Mac};
    use sha1::{Digest, Sha1};
    fn lv(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
        out.extend(bytes);
    }
    let key = PassphraseKey::derive(&init.user, PASSPHRASE).to_bytes();
    let signing = Sha1::new().chain_update(init.client_nonce.as_slice()).chain_update(*key).finalize();
    let mut text = Vec::new();
    for field in [init.client.as_slice(), init.server.as_slice(), init.user.as_str().as_bytes()] {
        lv(&mut text, field);
    }
    lv(&mut text, init.client_nonce.as_slice());
    lv(&mut text, &[]);
    text.extend(init.group.to_be_bytes());
    lv(&mut text, init.public.as_slice());
    lv(&mut text, &[]);
    lv(&mut text, &init.offers.to_bytes());
    let mut mac = Hmac::<Sha1>::new_from_slice(signing.as_slice()).unwrap();
    mac.update(&text);
    let signature: [u8; 20] = mac.finalize().into_bytes().into();
    init.signature = Proof::new(signature).unwrap();
}

#[test]
fn lists_and_fields_over_their_limit_are_malformed() {
    let mut paper = Paper::new();
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let honest = content(&init);
    // The offers are before the signature: `lv16` of that many pairs.
    let signature = 2 + init.signature.as_slice().len();
    let offers = 2 + 2 * init.offers.pairs().len();
    let head = &honest[..honest.len() - signature - offers];
    for pairs in [17usize, 0] {
        let list = [&u16::try_from(2 * pairs).unwrap().to_be_bytes()[..], &vec![1; 2 * pairs]].concat();
        let body = [head, &list, &honest[honest.len() - signature..]].concat();
        let mut connection = paper.connect();
        let output = paper.send(&mut connection, &frame(PaperType::Init, 0, &body).unwrap());
        // A message that does not parse has no user.
        paper.refused(&output, PaperErrorCode::Malformed, "", "malformed");
    }
}

/// The account changes between the two halves of a login.
#[test]
fn paper_login_fails_after_concurrent_change() {
    let mut paper = Paper::new();
    let changes: [fn(&mut Paper); 4] = [
        |paper| assert!(matches!(paper.set_key("carol", Some("another")), Response::Done {})),
        |paper| assert!(matches!(paper.set_key("carol", None), Response::Done {})),
        |paper| {
            let request = Request::UserSetRole { name: user("carol"), role: Role::Operator };
            assert!(matches!(paper.world.ask(ADMIN, request), Response::Done {}));
        },
        |paper| {
            let request = Request::UserSetEnabled { name: user("carol"), enabled: false };
            assert!(matches!(paper.world.ask(ADMIN, request), Response::Revocation { .. }));
        },
    ];
    for change in changes {
        for request in [
            Request::UserSetEnabled { name: user("carol"), enabled: true },
            Request::UserSetRole { name: user("carol"), role: Role::User },
        ] {
            assert!(matches!(paper.world.ask(ADMIN, request), Response::Done {}));
        }
        paper.set_key("carol", Some(PASSPHRASE));
        paper.world.now += 12_000;
        let mut connection = paper.connect();
        let (confirm, _) = paper.half_open(&mut connection);
        change(&mut paper);
        let output = paper.send(&mut connection, &confirm);
        paper.refused(&output, PaperErrorCode::Cookie, "carol", "unknown-user");
        assert!(!connection.is_active());
    }
}

#[test]
fn operators_have_no_paper_key() {
    let mut paper = Paper::new();
    let role = |role| Request::UserSetRole { name: user("carol"), role };
    assert!(matches!(paper.world.ask(ADMIN, role(Role::Operator)), Response::Done {}));
    assert!(paper.world.disk.dump().iter().all(|(key, _)| key[0] != b'p'), "it went with the old role");
    let refused = paper.set_key("carol", Some(PASSPHRASE));
    assert!(matches!(refused, Response::Failed { failure } if failure.code == ErrorCode::Denied));
    // Restoring the old role does not restore the key.
    assert!(matches!(paper.world.ask(ADMIN, role(Role::User)), Response::Done {}));
    let (init, _) = paper.init(terms("carol"), PASSPHRASE);
    let mut connection = paper.connect();
    let output = paper.message(&mut connection, PaperType::Init, &init);
    paper.refused(&output, PaperErrorCode::Cookie, "carol", "unknown-user");
}

/// A new key of this profile does not end sessions of the other one.
#[test]
fn new_passphrase_ends_only_paper_sessions() {
    let mut paper = Paper::new();
    paper.world.session([7; 16], "carol", false);
    let mut connection = paper.connect();
    let mut channel = paper.login(&mut connection).channel;
    paper.set_key("carol", Some("another"));
    assert!(matches!(paper.world.ask([7; 16], Request::WhoAmI {}), Response::WhoAmI { .. }));
    let response = paper.data(&mut connection, &mut channel, &Request::WhoAmI {});
    assert!(matches!(response, Response::Failed { failure } if failure.code == ErrorCode::NotLoggedIn));
}

#[test]
fn invalid_continuations_get_the_same_answer() {
    let mut paper = Paper::new();
    let (mut first, mut second) = (paper.connect(), paper.connect());
    let (opened, other) = (paper.login(&mut first), paper.login(&mut second));
    let (honest, _) = opened.session.resume(&mut paper.world.rng, opened.terms.session);
    // The proof of another session of the same user.
    let (spliced, _) = other.session.resume(&mut paper.world.rng, opened.terms.session);
    let mut nonce = honest.clone();
    nonce.nonce[0] ^= 1;
    let mut unknown = honest.clone();
    unknown.session[0] ^= 1;
    for (forged, caller) in [(spliced, "carol"), (nonce, "carol"), (unknown, "")] {
        let mut connection = paper.connect();
        let output = paper.message(&mut connection, PaperType::Continue, &forged);
        paper.refused(&output, PaperErrorCode::SessionExpired, caller, "no-session");
    }
    // A replayed message gets an answer with another nonce, but the attacker has no keys for it.
    let mut connection = paper.connect();
    let output = paper.message(&mut connection, PaperType::Continue, &honest);
    assert!(answer::<ContinueOk>(&output, PaperType::ContinueOk).is_ok());
    let mut replayed = paper.connect();
    let output = paper.message(&mut replayed, PaperType::Continue, &honest);
    assert!(answer::<ContinueOk>(&output, PaperType::ContinueOk).is_ok());
    let record = frame(PaperType::Data, 1, &[7; 80]).unwrap();
    let output = paper.send(&mut replayed, &record);
    paper.refused(&output, PaperErrorCode::Malformed, "", "record");
}
