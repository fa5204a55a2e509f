//! CHAP, one-way and mutual, and access rules (RFC 7143 §12.1, RFC 1994).

use crate::iscsi::{Connection, Pdu, text};
use crate::seal::md5;
use crate::suite::behaviours;
use crate::target::{ACCOUNT, OPEN_NAME, OWN_ACCOUNT, PROVEN_NAME, Portal};
use sha2::{Digest as _, Sha256};

behaviours! { "CHAP and access";
    Guarded "RFC 7143 12.1.3" a_right_answer_logs_in_by_sha256;
    Guarded "RFC 7143 12.1.3" a_right_answer_logs_in_by_md5;
    Guarded "RFC 7143 12.1.3" a_wrong_answer_is_refused;
    Guarded "RFC 7143 12.1.3" unknown_chap_name_fails_like_wrong_response;
    Guarded "RFC 7143 12.1" initiator_with_account_cannot_choose_none;
    Guarded "RFC 7143 6.3" the_security_stage_cannot_be_left_out;
    Guarded "RFC 7143 12.1.3" challenges_differ;
    Guarded "RFC 7143 12.1.3" target_authenticates_itself_on_request;
    Guarded "RFC 7143 12.1.3" the_targets_own_challenge_is_not_answered;
    Guarded "RFC 7143 12.1.3" unknown_algorithm_is_refused;
    Guarded "RFC 7143 6.3.2" whom_no_rule_names_is_refused;
    Guarded "RFC 7143 12.1" rule_without_chap_allows_login;
}

const SHA256: u8 = 7;
const MD5: u8 = 5;

fn pairs(all: &[(&str, &str)]) -> Vec<u8> {
    text(&all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Vec<_>>())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn binary(value: &str) -> Vec<u8> {
    let digits = value.strip_prefix("0x").unwrap_or_else(|| panic!("hexadecimal: {value}"));
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Returns CHAP_R: the hash of identifier, secret and challenge.
fn response(algorithm: u8, identifier: u8, secret: &str, challenge: &[u8]) -> Vec<u8> {
    let message = [&[identifier][..], secret.as_bytes(), challenge].concat();
    if algorithm == MD5 { md5(&message).to_vec() } else { Sha256::digest(&message).to_vec() }
}

/// Opens a connection in the security stage. Returns the target's identifier and challenge.
fn challenged(portal: &Portal, algorithm: &str) -> (Connection, u8, Vec<u8>) {
    let mut connection = Connection::open(portal);
    let mut first = text(&connection.identity(PROVEN_NAME));
    first.extend(pairs(&[("AuthMethod", "CHAP,None")]));
    let answer = connection.login_step(0x00, &first);
    assert_eq!(answer.value("AuthMethod").as_deref(), Some("CHAP"), "{answer:?}");
    let answer = connection.login_step(0x00, &pairs(&[("CHAP_A", algorithm)]));
    assert_eq!(answer.header[36], 0, "{answer:?}");
    let identifier = answer.value("CHAP_I").expect("CHAP_I").parse().expect("a number");
    let challenge = binary(&answer.value("CHAP_C").expect("CHAP_C"));
    assert_eq!(answer.value("CHAP_A").as_deref(), Some(algorithm));
    assert!(challenge.len() >= 16, "{} bytes", challenge.len());
    (connection, identifier, challenge)
}

/// Answers the challenge and requests the operational stage.
fn prove(connection: &mut Connection, user: &str, answer: &[u8], more: &[(&str, &str)]) -> Pdu {
    let proof = hex(answer);
    let mut all = vec![("CHAP_N", user), ("CHAP_R", proof.as_str())];
    all.extend_from_slice(more);
    connection.login_step(0x81, &pairs(&all))
}

fn logs_in(portal: &Portal, algorithm: u8) {
    let (mut connection, identifier, challenge) = challenged(portal, &algorithm.to_string());
    let right = response(algorithm, identifier, ACCOUNT.1, &challenge);
    let answer = prove(&mut connection, ACCOUNT.0, &right, &[]);
    assert_eq!((answer.header[36], answer.header[1] & 0x83), (0, 0x81), "{answer:?}");
    let answer = connection.login_step(0x87, &pairs(&[("HeaderDigest", "None"), ("DataDigest", "None")]));
    assert_eq!((answer.header[36], answer.header[1] & 0x87), (0, 0x87), "{answer:?}");
    connection.agreed(&answer);
    assert_eq!(connection.command(&[0x12, 0, 0, 0, 96, 0], &[], 96).status, 0);
}

fn a_right_answer_logs_in_by_sha256(portal: &Portal) {
    logs_in(portal, SHA256);
}

fn a_right_answer_logs_in_by_md5(portal: &Portal) {
    logs_in(portal, MD5);
}

fn refused(answer: &Pdu) {
    assert_eq!(answer.header[36..38], [2, 1], "authentication failure: {answer:?}");
}

fn a_wrong_answer_is_refused(portal: &Portal) {
    let (mut connection, identifier, challenge) = challenged(portal, "7");
    let wrong = response(SHA256, identifier, "another long secret", &challenge);
    refused(&prove(&mut connection, ACCOUNT.0, &wrong, &[]));
    connection.is_closed();
}

fn unknown_chap_name_fails_like_wrong_response(portal: &Portal) {
    let (mut connection, identifier, challenge) = challenged(portal, "7");
    let right = response(SHA256, identifier, ACCOUNT.1, &challenge);
    refused(&prove(&mut connection, "nobody", &right, &[]));
}

fn initiator_with_account_cannot_choose_none(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let mut first = text(&connection.identity(PROVEN_NAME));
    first.extend(pairs(&[("AuthMethod", "None")]));
    refused(&connection.login_step(0x81, &first));
}

fn the_security_stage_cannot_be_left_out(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let first = text(&connection.identity(PROVEN_NAME));
    let answer = connection.login_step(0x87, &first);
    assert_eq!(answer.header[36], 2, "{answer:?}");
}

fn challenges_differ(portal: &Portal) {
    let (one, other) = (challenged(portal, "7"), challenged(portal, "7"));
    assert_ne!(one.2, other.2);
}

fn target_authenticates_itself_on_request(portal: &Portal) {
    let (mut connection, identifier, challenge) = challenged(portal, "7");
    let right = response(SHA256, identifier, ACCOUNT.1, &challenge);
    let ours: Vec<u8> = (0..32).collect();
    let answer =
        prove(&mut connection, ACCOUNT.0, &right, &[("CHAP_I", "77"), ("CHAP_C", hex(&ours).as_str())]);
    assert_eq!(answer.header[36], 0, "{answer:?}");
    assert_eq!(answer.value("CHAP_N").as_deref(), Some(OWN_ACCOUNT.0));
    let proof = binary(&answer.value("CHAP_R").expect("its answer"));
    assert_eq!(proof, response(SHA256, 77, OWN_ACCOUNT.1, &ours));
}

fn the_targets_own_challenge_is_not_answered(portal: &Portal) {
    let (mut connection, identifier, challenge) = challenged(portal, "7");
    let right = response(SHA256, identifier, ACCOUNT.1, &challenge);
    let answer =
        prove(&mut connection, ACCOUNT.0, &right, &[("CHAP_I", "77"), ("CHAP_C", hex(&challenge).as_str())]);
    assert_eq!(answer.header[36], 2, "{answer:?}");
    assert_eq!(answer.value("CHAP_R"), None);
}

fn unknown_algorithm_is_refused(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let mut first = text(&connection.identity(PROVEN_NAME));
    first.extend(pairs(&[("AuthMethod", "CHAP")]));
    connection.login_step(0x00, &first);
    let answer = connection.login_step(0x00, &pairs(&[("CHAP_A", "99,100")]));
    assert_eq!(answer.header[36], 2, "{answer:?}");
}

fn whom_no_rule_names_is_refused(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let first = text(&connection.identity("of-no-rule"));
    let answer = connection.login_step(0x87, &first);
    assert_eq!(answer.header[36..38], [2, 2], "authorization failure: {answer:?}");
}

fn rule_without_chap_allows_login(portal: &Portal) {
    let mut connection = Connection::open(portal);
    connection.log_in(OPEN_NAME, &[]);
    assert_eq!(connection.command(&[0x12, 0, 0, 0, 96, 0], &[], 96).status, 0);
}
