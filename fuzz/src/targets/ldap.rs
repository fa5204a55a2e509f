//! `sealstone-ldap`: answers of a directory, and filters.

use sealstone_ldap::{Filter, MESSAGE_BYTES_MAX, Message, MessageBody, message_length};

use crate::Target;

/// Answers in the encoding of OpenLDAP and Active Directory.
fn message_seeds() -> Vec<Vec<u8>> {
    let bound = b"\x30\x0C\x02\x01\x01\x61\x07\x0A\x01\x00\x04\x00\x04\x00".to_vec();
    let refused = b"\x30\x0C\x02\x01\x01\x61\x07\x0A\x01\x31\x04\x00\x04\x00".to_vec();
    let four_bytes =
        b"\x30\x84\x00\x00\x00\x10\x02\x01\x02\x65\x84\x00\x00\x00\x07\x0A\x01\x00\x04\x00\x04\x00".to_vec();
    let entry = b"\x30\x2C\x02\x01\x02\x64\x27\x04\x0Duid=a,dc=test\x30\x16\x30\x14\x04\x03uid\x31\x0D\x04\x01a\x04\x08another ".to_vec();
    let reference = b"\x30\x14\x02\x01\x02\x73\x0F\x04\x0Dldap://h/dc=x".to_vec();
    let removed =
        b"\x30\x22\x02\x01\x00\x78\x1D\x0A\x01\x34\x04\x00\x04\x00\x8A\x141.3.6.1.4.1.1466.200".to_vec();
    vec![bound, refused, four_bytes, entry, reference, removed]
}

fn message(input: &[u8]) {
    let length = message_length(input);
    if let Ok(Some(length)) = length {
        assert!(length <= MESSAGE_BYTES_MAX);
    }
    let Ok(message) = Message::parse(input) else { return };
    assert_eq!(length, Ok(Some(input.len())), "exactly one message");
    match message.body {
        // An entry is no longer than the message.
        MessageBody::SearchEntry(entry) => assert!(entry.dn.len() < input.len()),
        MessageBody::Bound(outcome)
        | MessageBody::Done(outcome)
        | MessageBody::Changed(outcome)
        | MessageBody::Extended(outcome) => {
            assert!(!outcome.to_string().contains(char::is_control), "one line for the log");
        }
        MessageBody::Disconnection => assert_eq!(message.id, 0),
        MessageBody::Reference | MessageBody::Intermediate => {}
    }
}

pub(crate) const MESSAGE: Target = Target {
    name: "ldap-message",
    about: "an answer of a directory; what it says is one line, and nothing is longer than what came",
    run: message,
    seeds: message_seeds,
    cost: 1,
    quarantine: None,
    covers: &["ldap::Message::parse", "ldap::Message::parse_up_to"],
};

fn filter_seeds() -> Vec<Vec<u8>> {
    [
        "(objectClass=person)",
        "(&(objectClass=person)(!(employeeType=guest))(|(l=Bonn)(l=Trier)))",
        "(cn=a*b*c)",
        "(cn=*)",
        "(uid=\\2a\\28)",
        "(n>=1)",
        "(n<=1)",
        "(n~=x)",
        "(userAccountControl:1.2.840.113556.1.4.803:=2)",
        "(cn:dn:=x)",
        "(:caseExactMatch:=x)",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn filter(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else { return };
    if let Ok(filter) = Filter::parse(text) {
        assert_eq!(Filter::parse(&filter.to_string()), Ok(filter));
    }
}

pub(crate) const FILTER: Target = Target {
    name: "ldap-filter",
    about: "a filter as text; what parses is written and parses the same",
    run: filter,
    seeds: filter_seeds,
    cost: 1,
    quarantine: None,
    covers: &["ldap::Filter::parse"],
};
