//! iSCSI login and negotiation (RFC 7143 §6, §11.12, §11.13, §13).

use crate::iscsi::{Connection, IMMEDIATE, LOGIN_RESPONSE, Pdu, SCSI_COMMAND, TEXT, TEXT_RESPONSE, text};
use crate::suite::behaviours;
use crate::target::Portal;

behaviours! { "iSCSI login";
    Iscsi "RFC 7143 6.3" one_step_login_reaches_full_feature_phase;
    Iscsi "RFC 7143 6.3" two_stage_login_reaches_full_feature_phase;
    Iscsi "RFC 7143 11.13.4" session_gets_tsih_and_keeps_isid;
    Iscsi "RFC 7143 13.9" first_response_declares_the_portal_group;
    Iscsi "RFC 7143 11.13.5" unknown_target_is_not_found;
    Iscsi "RFC 7143 11.13.5" a_login_without_a_name_lacks_a_parameter;
    Iscsi "RFC 7143 11.13.5" a_login_without_a_target_lacks_a_parameter;
    Iscsi "RFC 7143 11.13.5" an_unknown_session_type_is_refused;
    Iscsi "RFC 7143 11.12.4" an_unsupported_version_is_refused;
    Iscsi "RFC 7143 11.13.5" an_unknown_authentication_method_is_refused;
    Iscsi "RFC 7143 6.3.4" unknown_session_handle_is_refused;
    Iscsi "RFC 7143 11.12.2" a_transit_with_continuation_is_refused;
    Iscsi "RFC 7143 6.2" keys_may_be_cut_by_continuation;
    Iscsi "RFC 7143 6.2" a_key_twice_ends_the_login;
    Iscsi "RFC 7143 6.2" an_unknown_key_is_not_understood;
    Iscsi "RFC 7143 6.2" text_that_is_no_pair_ends_the_login;
    Iscsi "RFC 7143 6.2" too_many_keys_end_the_login;
    Iscsi "RFC 7143 13.1" digests_are_agreed_when_offered_alone;
    Iscsi "RFC 7143 13.1" the_initiators_order_of_digests_counts;
    Iscsi "RFC 7143 13.14" the_first_burst_does_not_exceed_the_burst;
    Iscsi "RFC 7143 13.13, 13.14" burst_lengths_are_the_lesser_of_both;
    Iscsi "RFC 7143 13.10" initial_r2t_is_the_or_of_both;
    Iscsi "RFC 7143 13.11" immediate_data_is_the_and_of_both;
    Iscsi "RFC 7143 13.12" the_target_declares_its_own_segment_length;
    Iscsi "RFC 7143 13.18, 13.19" ordering_keys_negotiate_to_yes;
    Iscsi "RFC 7143 13.20" the_recovery_level_is_the_lesser_of_both;
    Iscsi "RFC 7143 13.2" more_connections_are_not_granted_than_offered;
    Iscsi "RFC 7143 6.2" out_of_range_value_is_rejected;
    Iscsi "RFC 7143 6.1" hexadecimal_numbers_are_understood;
    Iscsi "RFC 7143 13.21" a_discovery_session_names_the_target;
    Iscsi "RFC 7143 app. C" send_targets_lists_address_and_portal_group;
    Iscsi "RFC 7143 4.3" a_discovery_session_runs_no_commands;
    Iscsi "RFC 7143 6.3" first_pdu_must_be_login;
    Iscsi "RFC 7143 6.3" a_login_in_full_feature_phase_is_refused;
}

fn keys(pairs: &[(&str, &str)]) -> Vec<u8> {
    text(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Vec<_>>())
}

/// Logs in in one step, with these keys besides the identity.
fn login(portal: &Portal, pairs: &[(&str, &str)]) -> (Connection, Pdu) {
    let mut connection = Connection::open(portal);
    let answer = connection.log_in("conformance-login", pairs);
    (connection, answer)
}

/// Logs in in one step with exactly this text. Returns class and detail of the response; `None` if
/// the connection closed.
fn refused(portal: &Portal, flags: u8, body: &[u8]) -> Option<(u8, u8)> {
    let mut connection = Connection::open(portal);
    let request = connection.login_request(flags, body);
    connection.send(&request);
    let answer = connection.answer()?;
    assert_eq!(answer.opcode(), LOGIN_RESPONSE);
    assert_ne!(answer.header[36], 0, "refused: {answer:?}");
    connection.is_closed();
    Some((answer.header[36], answer.header[37]))
}

fn who(portal: &Portal) -> Vec<u8> {
    text(&Connection::open(portal).identity("conformance-login"))
}

fn one_step_login_reaches_full_feature_phase(portal: &Portal) {
    let (mut connection, answer) = login(portal, &[]);
    assert_eq!(answer.header[1] & 0x87, 0x87, "transit to full feature phase");
    assert_ne!(connection.command(&[0; 6], &[], 0).status, 0xFF);
}

fn two_stage_login_reaches_full_feature_phase(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let security = [who(portal), keys(&[("AuthMethod", "None")])].concat();
    let answer = connection.login_step(0x81, &security);
    assert_eq!((answer.header[36], answer.header[1] & 0x8F), (0, 0x81), "{answer:?}");
    assert_eq!(answer.value("AuthMethod").as_deref(), Some("None"));
    let request = connection.login_request(0x87, &keys(&[("HeaderDigest", "None"), ("DataDigest", "None")]));
    connection.send(&request);
    let answer = connection.answer().unwrap();
    assert_eq!((answer.header[36], answer.header[1] & 0x87), (0, 0x87), "{answer:?}");
}

fn session_gets_tsih_and_keeps_isid(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let request = connection.login_request(0x87, &who(portal));
    connection.send(&request);
    let answer = connection.answer().unwrap();
    assert_ne!(answer.header[14..16], [0, 0], "TSIH");
    assert_eq!(answer.header[8..14], request.header[8..14], "ISID");
    assert_eq!(answer.word(16), request.word(16), "initiator task tag");
}

fn first_response_declares_the_portal_group(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let answer = connection.login_step(0x00, &who(portal));
    let group = answer.value("TargetPortalGroupTag").expect("in the first response");
    assert!(group.parse::<u16>().is_ok(), "{group}");
}

fn unknown_target_is_not_found(portal: &Portal) {
    let body = keys(&[
        ("InitiatorName", "iqn.2026-11.org.example:c"),
        ("TargetName", "iqn.2026-11.org.example:nobody"),
        ("SessionType", "Normal"),
    ]);
    assert_eq!(refused(portal, 0x87, &body), Some((2, 3)));
}

fn a_login_without_a_name_lacks_a_parameter(portal: &Portal) {
    let body = keys(&[("TargetName", &portal.target), ("SessionType", "Normal")]);
    assert_eq!(refused(portal, 0x87, &body), Some((2, 7)));
}

fn a_login_without_a_target_lacks_a_parameter(portal: &Portal) {
    let body = keys(&[("InitiatorName", "iqn.2026-11.org.example:c"), ("SessionType", "Normal")]);
    assert_eq!(refused(portal, 0x87, &body), Some((2, 7)));
}

fn an_unknown_session_type_is_refused(portal: &Portal) {
    let body = keys(&[
        ("InitiatorName", "iqn.2026-11.org.example:c"),
        ("TargetName", &portal.target),
        ("SessionType", "Strange"),
    ]);
    assert_eq!(refused(portal, 0x87, &body), Some((2, 9)));
}

fn an_unsupported_version_is_refused(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let mut request = connection.login_request(0x87, &who(portal));
    (request.header[2], request.header[3]) = (9, 9);
    connection.send(&request);
    let answer = connection.answer().unwrap();
    assert_eq!(answer.header[36..38], [2, 5]);
}

fn an_unknown_authentication_method_is_refused(portal: &Portal) {
    let body = [who(portal), keys(&[("AuthMethod", "KRB5,SRP")])].concat();
    let received = refused(portal, 0x81, &body);
    assert!(matches!(received, Some((2, 0 | 1))), "{received:?}");
}

fn unknown_session_handle_is_refused(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let mut request = connection.login_request(0x87, &who(portal));
    request.header[14..16].copy_from_slice(&0x7777_u16.to_be_bytes());
    connection.send(&request);
    let answer = connection.answer().unwrap();
    assert_eq!(answer.header[36], 2, "{answer:?}");
    assert!(matches!(answer.header[37], 0x06 | 0x0A), "session does not exist, or one connection only");
}

fn a_transit_with_continuation_is_refused(portal: &Portal) {
    assert_eq!(refused(portal, 0xC7, &who(portal)), Some((2, 0)));
}

fn keys_may_be_cut_by_continuation(portal: &Portal) {
    let all = who(portal);
    for cut in [1, 13, 14, 30, all.len() - 1] {
        let mut connection = Connection::open(portal);
        let answer = connection.login_step(0x44, &all[..cut]);
        assert_eq!((answer.header[36], answer.data.len()), (0, 0), "an empty response asks for the rest");
        let answer = connection.login_step(0x87, &all[cut..]);
        assert_eq!((answer.header[36], answer.header[1] & 0x87), (0, 0x87), "cut at {cut}");
    }
}

fn a_key_twice_ends_the_login(portal: &Portal) {
    let body = [who(portal), keys(&[("MaxBurstLength", "8192"), ("MaxBurstLength", "8192")])].concat();
    let received = refused(portal, 0x87, &body);
    assert!(matches!(received, None | Some((2, _))), "{received:?}");
}

fn an_unknown_key_is_not_understood(portal: &Portal) {
    let (_, answer) = login(portal, &[("X-org.example.key", "1"), ("Fantasy", "2")]);
    assert_eq!(answer.value("X-org.example.key").as_deref(), Some("NotUnderstood"));
    assert_eq!(answer.value("Fantasy").as_deref(), Some("NotUnderstood"));
}

fn text_that_is_no_pair_ends_the_login(portal: &Portal) {
    for bad in [&b"Nothing\0"[..], b"=value\0", b"a b=c\0", &[0xFF, 0xFE, 0]] {
        let received = refused(portal, 0x87, &[&who(portal), bad].concat());
        assert!(matches!(received, None | Some((2, _))), "{received:?}");
    }
}

fn too_many_keys_end_the_login(portal: &Portal) {
    let mut body = who(portal);
    (0..400).for_each(|at| body.extend(format!("X-n{at}=1\0").into_bytes()));
    let received = refused(portal, 0x87, &body);
    assert!(matches!(received, None | Some((2 | 3, _))), "{received:?}");
}

fn digests_are_agreed_when_offered_alone(portal: &Portal) {
    let (mut connection, answer) = login(portal, &[("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")]);
    assert_eq!(answer.value("HeaderDigest").as_deref(), Some("CRC32C"));
    assert_eq!(answer.value("DataDigest").as_deref(), Some("CRC32C"));
    // Every received digest is verified.
    let reply = connection.command(&[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert!(reply.status == 0 && reply.data_in.len() >= 36);
}

fn the_initiators_order_of_digests_counts(portal: &Portal) {
    for (offer, first) in [("None,CRC32C", "None"), ("CRC32C,None", "CRC32C")] {
        let (_, answer) = login(portal, &[("HeaderDigest", offer)]);
        assert_eq!(answer.value("HeaderDigest").as_deref(), Some(first));
    }
}

fn number(answer: &Pdu, key: &str) -> u64 {
    let value = answer.value(key).unwrap_or_else(|| panic!("{key} is answered: {:?}", answer.pairs()));
    value.parse().unwrap_or_else(|_| panic!("{key}={value}"))
}

fn the_first_burst_does_not_exceed_the_burst(portal: &Portal) {
    let (_, answer) = login(portal, &[("FirstBurstLength", "262144"), ("MaxBurstLength", "8192")]);
    assert!(number(&answer, "FirstBurstLength") <= number(&answer, "MaxBurstLength"));
}

fn burst_lengths_are_the_lesser_of_both(portal: &Portal) {
    let (_, answer) = login(portal, &[("FirstBurstLength", "512"), ("MaxBurstLength", "1024")]);
    assert_eq!((number(&answer, "FirstBurstLength"), number(&answer, "MaxBurstLength")), (512, 1024));
    let (_, answer) = login(portal, &[("MaxBurstLength", "16777215")]);
    assert!(number(&answer, "MaxBurstLength") <= 16_777_215);
}

fn initial_r2t_is_the_or_of_both(portal: &Portal) {
    let (_, answer) = login(portal, &[("InitialR2T", "Yes")]);
    assert_eq!(answer.value("InitialR2T").as_deref(), Some("Yes"));
}

fn immediate_data_is_the_and_of_both(portal: &Portal) {
    let (_, answer) = login(portal, &[("ImmediateData", "No")]);
    assert_eq!(answer.value("ImmediateData").as_deref(), Some("No"));
}

fn the_target_declares_its_own_segment_length(portal: &Portal) {
    let (_, answer) = login(portal, &[("MaxRecvDataSegmentLength", "512")]);
    let own = number(&answer, "MaxRecvDataSegmentLength");
    assert!((512..=16_777_215).contains(&own), "{own}");
}

fn ordering_keys_negotiate_to_yes(portal: &Portal) {
    let (_, answer) = login(portal, &[("DataPDUInOrder", "Yes"), ("DataSequenceInOrder", "Yes")]);
    assert_eq!(answer.value("DataPDUInOrder").as_deref(), Some("Yes"));
    assert_eq!(answer.value("DataSequenceInOrder").as_deref(), Some("Yes"));
}

fn the_recovery_level_is_the_lesser_of_both(portal: &Portal) {
    let (_, answer) = login(portal, &[("ErrorRecoveryLevel", "0")]);
    assert_eq!(number(&answer, "ErrorRecoveryLevel"), 0);
    let (_, answer) = login(portal, &[("ErrorRecoveryLevel", "2")]);
    assert!(number(&answer, "ErrorRecoveryLevel") <= 2);
}

fn more_connections_are_not_granted_than_offered(portal: &Portal) {
    let (_, answer) = login(portal, &[("MaxConnections", "1")]);
    assert_eq!(number(&answer, "MaxConnections"), 1);
    let (_, answer) = login(portal, &[("MaxConnections", "64")]);
    assert!((1..=64).contains(&number(&answer, "MaxConnections")));
}

fn out_of_range_value_is_rejected(portal: &Portal) {
    for (key, value) in [("MaxBurstLength", "511"), ("InitialR2T", "Perhaps"), ("ErrorRecoveryLevel", "3")] {
        let mut connection = Connection::open(portal);
        let body = [who(portal), keys(&[(key, value)])].concat();
        let request = connection.login_request(0x87, &body);
        connection.send(&request);
        let answer = connection.answer();
        let fine = answer
            .as_ref()
            .is_none_or(|answer| answer.header[36] == 2 || answer.value(key).as_deref() == Some("Reject"));
        assert!(fine, "{key}={value}: {answer:?}");
    }
}

fn hexadecimal_numbers_are_understood(portal: &Portal) {
    let (_, answer) = login(portal, &[("MaxBurstLength", "0x400"), ("FirstBurstLength", "512")]);
    let value = answer.value("MaxBurstLength").unwrap();
    assert!(matches!(value.as_str(), "1024" | "0x400"), "{value}");
}

fn discovery(portal: &Portal) -> Connection {
    let mut connection = Connection::open(portal);
    let body = keys(&[("InitiatorName", "iqn.2026-11.org.example:finder"), ("SessionType", "Discovery")]);
    let answer = connection.login_step(0x87, &body);
    assert_eq!((answer.header[36], answer.header[1] & 0x87), (0, 0x87), "{answer:?}");
    connection
}

fn ask(connection: &mut Connection, question: &[(&str, &str)]) -> Pdu {
    let mut request = Pdu::new(TEXT | IMMEDIATE, 0x80);
    request
        .put(16, 77)
        .put(20, u32::MAX)
        .put(24, connection.command_number)
        .put(28, connection.status_number);
    request.data = keys(question);
    connection.send(&request);
    let answer = connection.next();
    assert_eq!((answer.opcode(), answer.word(16)), (TEXT_RESPONSE, 77), "{answer:?}");
    answer
}

fn a_discovery_session_names_the_target(portal: &Portal) {
    let answer = ask(&mut discovery(portal), &[("SendTargets", "All")]);
    let named = answer.pairs().into_iter().any(|(key, value)| key == "TargetName" && value == portal.target);
    assert!(named, "{:?}", answer.pairs());
}

fn send_targets_lists_address_and_portal_group(portal: &Portal) {
    let answer = ask(&mut discovery(portal), &[("SendTargets", &portal.target)]);
    let address = answer.value("TargetAddress").expect("an address");
    let (host, group) = address.rsplit_once(',').expect("a portal group tag");
    assert!(!host.is_empty() && group.parse::<u16>().is_ok(), "{address}");
}

fn a_discovery_session_runs_no_commands(portal: &Portal) {
    let mut connection = discovery(portal);
    let request = connection.command_pdu(&[0; 6], 0, 0);
    assert_eq!(request.opcode(), SCSI_COMMAND);
    connection.send(&request);
    if let Some(answer) = connection.answer() {
        assert_eq!(answer.opcode(), crate::iscsi::REJECT, "{answer:?}");
    }
}

fn first_pdu_must_be_login(portal: &Portal) {
    let mut connection = Connection::open(portal);
    let request = connection.command_pdu(&[0; 6], 0, 0);
    connection.send(&request);
    connection.is_closed();
}

fn a_login_in_full_feature_phase_is_refused(portal: &Portal) {
    let (mut connection, _) = login(portal, &[]);
    let request = connection.login_request(0x87, &who(portal));
    connection.send(&request);
    if let Some(answer) = connection.answer() {
        assert!(matches!(answer.opcode(), crate::iscsi::REJECT | LOGIN_RESPONSE), "{answer:?}");
        assert!(answer.opcode() != LOGIN_RESPONSE || answer.header[36] != 0, "{answer:?}");
    }
}
