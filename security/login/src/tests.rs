//! Logins that succeed, and all kinds that must fail.

use super::*;
use crate::stretch::CHEAP_FOR_TESTS as SUITE;
use alloc::vec::Vec;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use sealstone_mds_protocol::login::{LoginChallenge, LoginFinish, LoginOk, LoginStart};
use sealstone_mds_protocol::{Text, UserName};

const SERVER: ServerId = [7; 16];
const CHANNEL: ChannelBinding = ChannelBinding([9; 32]);

fn context() -> LoginContext {
    LoginContext::new(&SERVER, &CHANNEL)
}

fn alice() -> UserName {
    UserName::new("alice").unwrap()
}

struct World {
    rng: StdRng,
    keys: ServerKeys,
    record: AccountRecord,
}

fn world() -> World {
    let mut rng = StdRng::seed_from_u64(1);
    let keys = ServerKeys::generate(&mut rng);
    let (request, started) = start_registration(&mut rng, &alice(), b"correct horse").unwrap();
    let response = keys.register(&alice(), &request).unwrap();
    let record = started.finish(&mut rng, SUITE, &response).unwrap();
    World { rng, keys, record: AccountRecord::parse(&record).unwrap() }
}

fn terms() -> SessionTerms {
    SessionTerms { session: [3; 16], expires_ms: 1000, idle_s: 60, roles: Text::new("user").unwrap() }
}

impl World {
    fn begin(&mut self, password: &[u8], known: bool) -> (ClientStarted, LoginChallenge, ServerStarted) {
        let (start, client) = start_login(&mut self.rng, SUITE, &alice(), password, context()).unwrap();
        let record = known.then_some(&self.record);
        let (challenge, server) =
            self.keys.challenge(&mut self.rng, record, &start, context(), [1; 16], 5, 1).unwrap();
        (client, challenge, server)
    }

    fn login(&mut self) -> (ClientProven, ServerProven) {
        let (client, challenge, server) = self.begin(b"correct horse", true);
        let (finish, client) = client.challenge(&mut self.rng, challenge).unwrap();
        (client, server.finish(&finish).unwrap())
    }
}

#[test]
fn right_password_yields_equal_keys() {
    let mut world = world();
    let (client, server) = world.login();
    assert_eq!(server.user(), &alice());
    let (ok, server_keys) = server.open(terms());
    let client_keys = client.confirm(&ok).unwrap();
    assert_eq!(*client_keys.to_bytes(), *server_keys.to_bytes());
    assert_eq!(*SessionKeys::from_bytes(&client_keys.to_bytes()).to_bytes(), *server_keys.to_bytes());
}

#[test]
fn wrong_password_and_unknown_user_look_alike() {
    let mut world = world();
    for (password, known) in
        [(b"wrong".as_slice(), true), (b"correct horse".as_slice(), false), (b"wrong", false)]
    {
        let (client, challenge, server) = world.begin(password, known);
        assert_eq!(client.challenge(&mut world.rng, challenge).err(), Some(LoginFailure::Refused));
        // A client that continues regardless.
        let finish = LoginFinish { login_id: [1; 16], ke3: [0x5A; 64] };
        assert_eq!(server.finish(&finish).err(), Some(LoginFailure::Refused));
    }
}

#[test]
fn a_splice_of_two_channels_or_servers_fails() {
    let mut world = world();
    let elsewhere =
        [LoginContext::new(&SERVER, &ChannelBinding([8; 32])), LoginContext::new(&[6; 16], &CHANNEL)];
    for other in elsewhere {
        let (start, client) =
            start_login(&mut world.rng, SUITE, &alice(), b"correct horse", context()).unwrap();
        let (challenge, _) =
            world.keys.challenge(&mut world.rng, Some(&world.record), &start, other, [1; 16], 5, 1).unwrap();
        assert_eq!(client.challenge(&mut world.rng, challenge).err(), Some(LoginFailure::Refused));
    }
}

/// The three messages of a login, recorded and sent again: the server's nonce and share differ.
#[test]
fn a_recorded_login_played_again_opens_nothing() {
    let mut world = world();
    let (start, client) = start_login(&mut world.rng, SUITE, &alice(), b"correct horse", context()).unwrap();
    let mut challenge = || {
        world.keys.challenge(&mut world.rng, Some(&world.record), &start, context(), [1; 16], 5, 1).unwrap()
    };
    let ((first, server), (_, again)) = (challenge(), challenge());
    let (finish, _) = client.challenge(&mut world.rng, first).unwrap();
    assert!(server.finish(&finish).is_ok());
    assert_eq!(again.finish(&finish).err(), Some(LoginFailure::Refused));
}

/// The keys of one session do not open another one, though user, password, channel and terms are
/// the same.
#[test]
fn the_keys_of_a_session_open_no_other() {
    let mut world = world();
    let mut open = || {
        let (client, server) = world.login();
        let (ok, keys) = server.open(terms());
        (client, ok, keys)
    };
    let ((first, first_ok, lost), (second, second_ok, kept)) = (open(), open());
    assert_eq!(first_ok.session, second_ok.session);
    let resume = lost.resume(second_ok.session, &CHANNEL, [4; 16]);
    assert!(lost.proves(&resume, &CHANNEL) && !kept.proves(&resume, &CHANNEL));
    assert_eq!(second.confirm(&first_ok).err(), Some(LoginFailure::Refused));
    assert!(first.confirm(&first_ok).is_ok());
    let (lost, kept) = (lost.to_bytes(), kept.to_bytes());
    let keys: Vec<&[u8]> = lost.chunks(32).chain(kept.chunks(32)).collect();
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key), "key {i} is another one's too");
    }
}

/// Whether two messages have eight consecutive bytes in common.
fn share_bytes(one: &[u8], other: &[u8]) -> bool {
    one.windows(8).any(|window| other.windows(8).any(|found| found == window))
}

/// Two logins of one user with one password, on one channel: a recording shows nothing twice.
#[test]
fn logins_share_no_bytes() {
    let mut world = world();
    let mut record = || {
        let (start, client) =
            start_login(&mut world.rng, SUITE, &alice(), b"correct horse", context()).unwrap();
        let (challenge, _) = world
            .keys
            .challenge(&mut world.rng, Some(&world.record), &start, context(), [1; 16], 5, 1)
            .unwrap();
        let ke2 = challenge.ke2;
        let (finish, _) = client.challenge(&mut world.rng, challenge).unwrap();
        [start.ke1.as_slice(), ke2.as_slice(), finish.ke3.as_slice()].concat()
    };
    assert!(!share_bytes(&record(), &record()));
}

/// A registration as a thief would try one against a stolen record.
fn registered(keys: &ServerKeys, rng: &mut StdRng, user: &UserName, password: &[u8]) -> [u8; 192] {
    let (request, started) = start_registration(rng, user, password).unwrap();
    started.finish(rng, SUITE, &keys.register(user, &request).unwrap()).unwrap()
}

/// A record is public key, masking key and envelope. The masking key is what a guess can be
/// compared with.
fn masking_key(record: &[u8; 192]) -> &[u8] {
    &record[32..96]
}

/// With stolen records alone there is nothing to compare a guess with. With the server's keys too,
/// each guess takes the whole computation, including Argon2id, for one user.
#[test]
fn guessing_stolen_record_needs_the_server_keys() {
    let mut rng = StdRng::seed_from_u64(5);
    let (keys, others) = (ServerKeys::generate(&mut rng), ServerKeys::generate(&mut rng));
    let bob = UserName::new("bob").unwrap();
    let stolen = registered(&keys, &mut rng, &alice(), b"correct horse");
    let mut fits = |keys: &ServerKeys, user: &UserName, guess: &[u8]| {
        masking_key(&registered(keys, &mut rng, user, guess)) == masking_key(&stolen)
    };
    assert!(fits(&keys, &alice(), b"correct horse"), "a thief of both can guess");
    assert!(!fits(&keys, &alice(), b"wrong"));
    assert!(!fits(&others, &alice(), b"correct horse"), "without the server's keys he cannot");
    assert!(!fits(&keys, &bob, b"correct horse"), "a guess for one user is none for another");
}

#[test]
fn records_of_equal_passwords_share_nothing() {
    let mut rng = StdRng::seed_from_u64(6);
    let keys = ServerKeys::generate(&mut rng);
    let alices = registered(&keys, &mut rng, &alice(), b"correct horse");
    let bobs = registered(&keys, &mut rng, &UserName::new("bob").unwrap(), b"correct horse");
    assert!(!share_bytes(&alices, &bobs));
}

#[test]
fn session_terms_cannot_be_altered() {
    let mut world = world();
    let alterations: [fn(&mut LoginOk); 5] = [
        |ok| ok.session[0] ^= 1,
        |ok| ok.expires_ms += 1,
        |ok| ok.roles = Text::new("admin").unwrap(),
        |ok| ok.epoch += 1,
        |ok| ok.confirm[31] ^= 1,
    ];
    for alter in alterations {
        let (client, server) = world.login();
        let (mut ok, _) = server.open(terms());
        alter(&mut ok);
        assert_eq!(client.confirm(&ok).err(), Some(LoginFailure::Refused));
    }
}

/// The server's clock is in the challenge, which is part of the transcript at both ends.
#[test]
fn altered_challenge_fields_fail_the_login() {
    let mut world = world();
    let alterations: [fn(&mut LoginChallenge); 3] =
        [|one| one.time_ms += 3_600_000, |one| one.max_error_ms += 1, |one| one.login_id[0] ^= 1];
    for (number, alter) in alterations.into_iter().enumerate() {
        let (client, mut challenge, server) = world.begin(b"correct horse", true);
        alter(&mut challenge);
        let (mut finish, client) = client.challenge(&mut world.rng, challenge).unwrap();
        if number == 2 {
            assert_eq!(server.finish(&finish).err(), Some(LoginFailure::Refused));
            continue;
        }
        finish.login_id = [1; 16];
        let (ok, _) = server.finish(&finish).unwrap().open(terms());
        assert_eq!(client.confirm(&ok).err(), Some(LoginFailure::Refused));
    }
}

#[test]
fn session_resumes_only_with_its_key_and_channel() {
    let mut world = world();
    let (_, server) = world.login();
    let (ok, keys) = server.open(terms());
    let resume = keys.resume(ok.session, &CHANNEL, [4; 16]);
    assert!(keys.proves(&resume, &CHANNEL));
    assert!(!keys.proves(&resume, &ChannelBinding([8; 32])));
    let mut forged = resume.clone();
    forged.nonce[0] ^= 1;
    assert!(!keys.proves(&forged, &CHANNEL));
    let mut answer = ok;
    answer.confirm = keys.resume_confirm(&resume, &CHANNEL, &answer);
    assert_eq!(keys.check_resumed(&resume, &CHANNEL, &answer), Ok(()));
    answer.idle_s += 1;
    assert_eq!(keys.check_resumed(&resume, &CHANNEL, &answer), Err(LoginFailure::Refused));
}

#[test]
fn server_keys_survive_storage_and_damage_is_seen() {
    let mut world = world();
    let bytes = world.keys.to_bytes();
    world.keys = ServerKeys::from_bytes(&bytes).unwrap();
    world.login();
    assert_eq!(ServerKeys::from_bytes(&bytes[..40]).err(), Some(LoginFailure::Damaged));
}

#[test]
fn identity_point_is_malformed() {
    let mut world = world();
    let start = LoginStart { suite: SUITE, user: alice(), capabilities: 0, ke1: [0; 96] };
    let answer = world.keys.challenge(&mut world.rng, Some(&world.record), &start, context(), [1; 16], 5, 1);
    assert_eq!(answer.err(), Some(LoginFailure::Malformed));
    assert!(world.keys.register(&alice(), &[0; 32]).is_err());
}

#[test]
fn standard_suite_logs_in_at_full_cost() {
    let mut rng = StdRng::seed_from_u64(2);
    let keys = ServerKeys::generate(&mut rng);
    let suite = sealstone_mds_protocol::login::SUITE_STANDARD;
    let (request, started) = start_registration(&mut rng, &alice(), b"pw").unwrap();
    let record = started.finish(&mut rng, suite, &keys.register(&alice(), &request).unwrap()).unwrap();
    let record = AccountRecord::parse(&record).unwrap();
    let (start, client) = start_login(&mut rng, suite, &alice(), b"pw", context()).unwrap();
    let (challenge, server) =
        keys.challenge(&mut rng, Some(&record), &start, context(), [1; 16], 5, 1).unwrap();
    let (finish, client) = client.challenge(&mut rng, challenge).unwrap();
    let (ok, _) = server.finish(&finish).unwrap().open(terms());
    assert!(client.confirm(&ok).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_points_and_records_never_panic(ke in prop::collection::vec(any::<u8>(), 320), seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let keys = ServerKeys::generate(&mut rng);
        let start = LoginStart { suite: SUITE, user: alice(), capabilities: 0, ke1: ke[..96].try_into().unwrap() };
        let _ = keys.challenge(&mut rng, None, &start, context(), [1; 16], 5, 1);
        let _ = keys.register(&alice(), &ke[..32].try_into().unwrap());
        let _ = AccountRecord::parse(&ke[..192].try_into().unwrap());
        let _ = ServerKeys::from_bytes(&ke[..128]);
        let (_, client) = start_login(&mut rng, SUITE, &alice(), b"pw", context()).unwrap();
        let challenge = LoginChallenge { login_id: [0; 16], ke2: ke.try_into().unwrap(), time_ms: 0, max_error_ms: 0 };
        prop_assert!(client.challenge(&mut rng, challenge).is_err());
    }
}
