//! Operational keys and their negotiation (RFC 7143 §13).
//!
//! Does: one table row per key; the responder's answer; the originator's processing of an answer.
//! Does not: handle text or know stages.
//! Source of truth: RFC 7143 §6.2, §13.

use alloc::vec::Vec;

use crate::{
    limits::{self, BURST_MAX, BURST_MIN, DATA_SEGMENT_MAX, OUTSTANDING_R2T_MAX},
    text,
};

/// One end's preference for a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestChoice {
    /// Only None.
    Never,
    /// None if the other end accepts it.
    #[default]
    PreferNone,
    /// CRC32C if the other end accepts it.
    PreferCrc32c,
    /// Only CRC32C.
    Always,
}

impl DigestChoice {
    const fn offer(self) -> &'static str {
        match self {
            Self::Never => "None",
            Self::PreferNone => "None,CRC32C",
            Self::PreferCrc32c => "CRC32C,None",
            Self::Always => "CRC32C",
        }
    }

    const fn allows(self, crc32c: bool) -> bool {
        !matches!((self, crc32c), (Self::Never, true) | (Self::Always, false))
    }

    /// Picks the first acceptable value, in the originator's order (§6.2.1).
    fn pick(self, offered: &str) -> Option<bool> {
        offered.split(',').find_map(|value| match value {
            "None" if self.allows(false) => Some(false),
            "CRC32C" if self.allows(true) => Some(true),
            _ => None,
        })
    }
}

/// The values that one end wants: what a target grants or an initiator offers.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Header digests.
    pub header_digest: DigestChoice,
    /// Data digests.
    pub data_digest: DigestChoice,
    /// Largest data segment we declare to receive, in bytes, 512 to [`DATA_SEGMENT_MAX`].
    pub max_receive: u32,
    /// Largest data segment we send in full feature phase, in bytes, whatever the other end
    /// accepts.
    pub max_send: u32,
    /// Whether unsolicited Data-Out is forbidden.
    pub initial_r2t: bool,
    /// Whether data may be in the command PDU.
    pub immediate_data: bool,
    /// Maximum unsolicited bytes of one command, 512 to [`BURST_MAX`].
    pub first_burst: u32,
    /// Maximum bytes of one solicited or Data-In sequence, 512 to [`BURST_MAX`].
    pub max_burst: u32,
    /// Maximum number of R2Ts at once for one command, 1 to [`OUTSTANDING_R2T_MAX`].
    pub max_outstanding_r2t: u32,
    /// Seconds to wait before a new login after a loss, 0 to 3600.
    pub time2wait: u32,
    /// Seconds that tasks are kept after a connection is lost; 0 at recovery level 0.
    pub time2retain: u32,
}

impl Default for Policy {
    /// Returns large segments, unsolicited data permitted, digests only if the other end requests
    /// them.
    fn default() -> Self {
        Self {
            header_digest: DigestChoice::PreferNone,
            data_digest: DigestChoice::PreferNone,
            max_receive: DATA_SEGMENT_MAX,
            max_send: u32::MAX,
            initial_r2t: false,
            immediate_data: true,
            first_burst: 256 * 1024,
            max_burst: 1024 * 1024,
            max_outstanding_r2t: 4,
            time2wait: 2,
            time2retain: 0,
        }
    }
}

impl Policy {
    /// Whether the negotiated parameters are permitted: the peer may have omitted a required
    /// digest.
    pub(crate) const fn admits(&self, agreed: &Parameters) -> bool {
        self.header_digest.allows(agreed.header_digest) && self.data_digest.allows(agreed.data_digest)
    }
}

/// The negotiated parameters; initially the defaults of §13.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Whether header digests are on.
    pub header_digest: bool,
    /// Whether data digests are on.
    pub data_digest: bool,
    /// Largest data segment that the other end accepts, in bytes.
    pub max_send: u32,
    /// Largest data segment that we declared to accept, in bytes.
    pub max_receive: u32,
    /// Whether unsolicited Data-Out PDUs are forbidden.
    pub initial_r2t: bool,
    /// Whether data may be in the command PDU.
    pub immediate_data: bool,
    /// Maximum unsolicited bytes of one command.
    pub first_burst: u32,
    /// Maximum bytes of one solicited or Data-In sequence.
    pub max_burst: u32,
    /// Maximum number of R2Ts at once for one command.
    pub max_outstanding_r2t: u32,
    /// Seconds to wait before a new login after a loss.
    pub time2wait: u32,
    /// Seconds that tasks are kept after a connection is lost.
    pub time2retain: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            max_send: limits::LOGIN_SEGMENT_MAX,
            max_receive: limits::LOGIN_SEGMENT_MAX,
            initial_r2t: true,
            immediate_data: true,
            first_burst: 65_536,
            max_burst: 262_144,
            max_outstanding_r2t: 1,
            time2wait: 2,
            time2retain: 20,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationalKey {
    HeaderDigest,
    DataDigest,
    MaxConnections,
    InitialR2t,
    ImmediateData,
    MaxReceive,
    MaxBurst,
    FirstBurst,
    Time2Wait,
    Time2Retain,
    MaxOutstandingR2t,
    DataPduInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    TaskReporting,
    ProtocolLevel,
    /// IFMarker, OFMarker, IFMarkInt, OFMarkInt.
    Obsolete,
}

struct KeyRow {
    key: OperationalKey,
    name: &'static str,
    /// Smallest and largest legal number; unused for lists and booleans.
    range: (u32, u32),
}

const fn row(key: OperationalKey, name: &'static str, min: u32, max: u32) -> KeyRow {
    KeyRow { key, name, range: (min, max) }
}

/// The operational keys of §13, in the order in which an originator offers them.
static KEYS: &[KeyRow] = &[
    row(OperationalKey::HeaderDigest, "HeaderDigest", 0, 0),
    row(OperationalKey::DataDigest, "DataDigest", 0, 0),
    row(OperationalKey::MaxConnections, "MaxConnections", 1, 65_535),
    row(OperationalKey::InitialR2t, "InitialR2T", 0, 0),
    row(OperationalKey::ImmediateData, "ImmediateData", 0, 0),
    row(OperationalKey::MaxReceive, "MaxRecvDataSegmentLength", BURST_MIN, BURST_MAX),
    row(OperationalKey::MaxBurst, "MaxBurstLength", BURST_MIN, BURST_MAX),
    row(OperationalKey::FirstBurst, "FirstBurstLength", BURST_MIN, BURST_MAX),
    row(OperationalKey::Time2Wait, "DefaultTime2Wait", 0, 3600),
    row(OperationalKey::Time2Retain, "DefaultTime2Retain", 0, 3600),
    row(OperationalKey::MaxOutstandingR2t, "MaxOutstandingR2T", 1, 65_535),
    row(OperationalKey::DataPduInOrder, "DataPDUInOrder", 0, 0),
    row(OperationalKey::DataSequenceInOrder, "DataSequenceInOrder", 0, 0),
    row(OperationalKey::ErrorRecoveryLevel, "ErrorRecoveryLevel", 0, 2),
    row(OperationalKey::TaskReporting, "TaskReporting", 0, 0),
    row(OperationalKey::ProtocolLevel, "iSCSIProtocolLevel", 0, 31),
    row(OperationalKey::Obsolete, "IFMarker", 0, 0),
    row(OperationalKey::Obsolete, "OFMarker", 0, 0),
    row(OperationalKey::Obsolete, "IFMarkInt", 0, 0),
    row(OperationalKey::Obsolete, "OFMarkInt", 0, 0),
];

/// Whether the value is a constant that only an answer may have (§6.2).
pub(crate) fn is_constant(value: &str) -> bool {
    matches!(value, "NotUnderstood" | "Irrelevant" | "Reject")
}

/// Whether a key is irrelevant in a discovery session (§13, "Irrelevant when:
/// SessionType=Discovery").
pub(crate) fn is_irrelevant_in_discovery(name: &str) -> bool {
    find(name).is_some_and(|row| {
        matches!(
            row.key,
            OperationalKey::MaxConnections
                | OperationalKey::InitialR2t
                | OperationalKey::ImmediateData
                | OperationalKey::MaxBurst
                | OperationalKey::FirstBurst
                | OperationalKey::MaxOutstandingR2t
                | OperationalKey::DataPduInOrder
                | OperationalKey::DataSequenceInOrder
                | OperationalKey::TaskReporting
                | OperationalKey::ProtocolLevel
        )
    })
}

/// Whether a key is negotiated at login and rejected afterwards.
pub(crate) fn is_for_login(name: &str) -> bool {
    let named = ["InitiatorName", "TargetName", "SessionType", "AuthMethod", "TargetPortalGroupTag"];
    find(name).is_some() || named.contains(&name) || name.starts_with("CHAP_")
}

/// An answer of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAnswer {
    Number(u32),
    Bool(bool),
    Word(&'static str),
    /// A declaration, which has no answer.
    Nothing,
    /// The value is not permitted; the key keeps its default.
    Reject,
    /// The key is irrelevant in this session.
    Irrelevant,
}

const RFC3720: &str = "RFC3720";
const PROTOCOL_LEVEL: u32 = 1;

fn find(name: &str) -> Option<&'static KeyRow> {
    KEYS.iter().find(|row| row.name == name)
}

/// Responder: returns the answer to an offered operational key; `None` if the key is not
/// operational.
pub(crate) fn answer(agreed: &mut Parameters, policy: &Policy, name: &str, value: &str) -> Option<KeyAnswer> {
    let row = find(name)?;
    let number = text::number(value).filter(|n| (row.range.0..=row.range.1).contains(n));
    Some(respond(agreed, policy, row.key, value, number).unwrap_or(KeyAnswer::Reject))
}

fn respond(
    agreed: &mut Parameters,
    policy: &Policy,
    key: OperationalKey,
    value: &str,
    number: Option<u32>,
) -> Option<KeyAnswer> {
    let boolean = text::boolean(value);
    let digest = |crc32c: bool| KeyAnswer::Word(if crc32c { "CRC32C" } else { "None" });
    let keep_number = |place: &mut u32, n: u32| {
        *place = n;
        KeyAnswer::Number(n)
    };
    let keep_bool = |place: &mut bool, b: bool| {
        *place = b;
        KeyAnswer::Bool(b)
    };
    Some(match key {
        OperationalKey::HeaderDigest => {
            agreed.header_digest = policy.header_digest.pick(value)?;
            digest(agreed.header_digest)
        }
        OperationalKey::DataDigest => {
            agreed.data_digest = policy.data_digest.pick(value)?;
            digest(agreed.data_digest)
        }
        OperationalKey::InitialR2t => keep_bool(&mut agreed.initial_r2t, boolean? || policy.initial_r2t),
        OperationalKey::ImmediateData => {
            keep_bool(&mut agreed.immediate_data, boolean? && policy.immediate_data)
        }
        OperationalKey::MaxReceive => {
            agreed.max_send = number?;
            KeyAnswer::Nothing
        }
        OperationalKey::MaxBurst => keep_number(&mut agreed.max_burst, number?.min(policy.max_burst)),
        OperationalKey::FirstBurst => {
            // Must not exceed MaxBurstLength (§13.14): answer that key first.
            let most = policy.first_burst.min(agreed.max_burst);
            keep_number(&mut agreed.first_burst, number?.min(most))
        }
        OperationalKey::Time2Wait => keep_number(&mut agreed.time2wait, number?.max(policy.time2wait)),
        OperationalKey::Time2Retain => keep_number(&mut agreed.time2retain, number?.min(policy.time2retain)),
        OperationalKey::MaxOutstandingR2t => {
            let most = policy.max_outstanding_r2t.clamp(1, OUTSTANDING_R2T_MAX);
            keep_number(&mut agreed.max_outstanding_r2t, number?.min(most))
        }
        // One connection per session, everything in order, recovery level 0: whatever is offered.
        OperationalKey::MaxConnections => KeyAnswer::Number(number?.min(1)),
        OperationalKey::DataPduInOrder | OperationalKey::DataSequenceInOrder => {
            boolean?;
            KeyAnswer::Bool(true)
        }
        OperationalKey::ErrorRecoveryLevel => {
            number?;
            KeyAnswer::Number(0)
        }
        // We have the behaviour of RFC 3720 (§13.23).
        OperationalKey::TaskReporting => {
            value.split(',').find(|value| *value == RFC3720).map(|_| KeyAnswer::Word(RFC3720))?
        }
        // RFC 7143 is level 1 (§13.24).
        OperationalKey::ProtocolLevel => KeyAnswer::Number(number?.min(PROTOCOL_LEVEL)),
        // §13.25: never NotUnderstood.
        OperationalKey::Obsolete => KeyAnswer::Reject,
    })
}

/// Originator: returns every operational key with the value that we offer.
pub(crate) fn offers(policy: &Policy) -> Vec<(&'static str, KeyAnswer)> {
    KEYS.iter()
        .filter_map(|row| {
            let value = match row.key {
                OperationalKey::HeaderDigest => KeyAnswer::Word(policy.header_digest.offer()),
                OperationalKey::DataDigest => KeyAnswer::Word(policy.data_digest.offer()),
                OperationalKey::MaxConnections => KeyAnswer::Number(1),
                OperationalKey::InitialR2t => KeyAnswer::Bool(policy.initial_r2t),
                OperationalKey::ImmediateData => KeyAnswer::Bool(policy.immediate_data),
                OperationalKey::MaxReceive => KeyAnswer::Number(policy.max_receive),
                OperationalKey::MaxBurst => KeyAnswer::Number(policy.max_burst),
                OperationalKey::FirstBurst => KeyAnswer::Number(policy.first_burst.min(policy.max_burst)),
                OperationalKey::Time2Wait => KeyAnswer::Number(policy.time2wait),
                OperationalKey::Time2Retain => KeyAnswer::Number(policy.time2retain),
                OperationalKey::MaxOutstandingR2t => KeyAnswer::Number(policy.max_outstanding_r2t),
                OperationalKey::DataPduInOrder | OperationalKey::DataSequenceInOrder => KeyAnswer::Bool(true),
                OperationalKey::ErrorRecoveryLevel => KeyAnswer::Number(0),
                // Defaults, and obsolete ones, are not offered.
                OperationalKey::TaskReporting | OperationalKey::ProtocolLevel | OperationalKey::Obsolete => {
                    return None;
                }
            };
            Some((row.name, value))
        })
        .collect()
}

/// Originator: processes the answer to one of our offers. Returns `Some(false)` for an answer that
/// we did not permit, `None` for a key that is not operational.
pub(crate) fn conclude(agreed: &mut Parameters, policy: &Policy, name: &str, value: &str) -> Option<bool> {
    let row = find(name)?;
    if is_constant(value) {
        return Some(true); // the default of §13 stays
    }
    let number = text::number(value).filter(|n| (row.range.0..=row.range.1).contains(n));
    let mut result = agreed.clone();
    // The answer must select what we would select if it were offered to us: min, max, OR and AND
    // are idempotent, so a legal answer is unchanged by it.
    let legal = match respond(&mut result, policy, row.key, value, number) {
        Some(KeyAnswer::Number(n)) => number == Some(n),
        Some(KeyAnswer::Bool(b)) => text::boolean(value) == Some(b),
        Some(KeyAnswer::Word(word)) => word == value,
        Some(KeyAnswer::Nothing) => true,
        Some(KeyAnswer::Reject | KeyAnswer::Irrelevant) | None => false,
    };
    if legal {
        *agreed = result;
    }
    Some(legal)
}

impl core::fmt::Display for KeyAnswer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(value) => f.write_str(text::word(*value)),
            Self::Word(word) => f.write_str(word),
            Self::Nothing => Ok(()),
            Self::Reject => f.write_str("Reject"),
            Self::Irrelevant => f.write_str("Irrelevant"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use proptest::prelude::*;

    use super::*;

    fn say(policy: &Policy, name: &str, value: &str) -> alloc::string::String {
        answer(&mut Parameters::default(), policy, name, value).unwrap().to_string()
    }

    #[test]
    fn each_key_follows_its_selection_rule() {
        let policy = Policy { max_burst: 1000, time2wait: 5, initial_r2t: true, ..Policy::default() };
        for (name, offer, reply) in [
            ("HeaderDigest", "CRC32C,None", "CRC32C"),
            ("HeaderDigest", "None,CRC32C", "None"),
            ("DataDigest", "x-own,None", "None"),
            ("DataDigest", "x-own", "Reject"),
            ("MaxConnections", "8", "1"),
            ("InitialR2T", "No", "Yes"),
            ("ImmediateData", "No", "No"),
            ("MaxBurstLength", "0x10000", "1000"),
            ("MaxBurstLength", "511", "Reject"),
            ("MaxBurstLength", "16777216", "Reject"),
            ("FirstBurstLength", "600", "600"),
            ("FirstBurstLength", "16777215", "262144"),
            ("DefaultTime2Wait", "1", "5"),
            ("DefaultTime2Retain", "20", "0"),
            ("DefaultTime2Retain", "3601", "Reject"),
            ("MaxOutstandingR2T", "0", "Reject"),
            ("MaxOutstandingR2T", "100", "4"),
            ("DataPDUInOrder", "No", "Yes"),
            ("DataSequenceInOrder", "maybe", "Reject"),
            ("ErrorRecoveryLevel", "2", "0"),
            ("MaxRecvDataSegmentLength", "8192", ""),
            ("TaskReporting", "FastAbort,RFC3720", "RFC3720"),
            ("TaskReporting", "FastAbort,ResponseFence", "Reject"),
            ("iSCSIProtocolLevel", "2", "1"),
            ("iSCSIProtocolLevel", "0", "0"),
            ("iSCSIProtocolLevel", "32", "Reject"),
            ("IFMarker", "No", "Reject"),
            ("OFMarkInt", "1~2", "Reject"),
        ] {
            assert_eq!(say(&policy, name, offer), reply, "{name}={offer}");
        }
        assert!(!is_for_login("X-com.example") && is_for_login("CHAP_A") && is_for_login("MaxConnections"));
    }

    #[test]
    fn a_required_digest_cannot_be_talked_away() {
        let policy = Policy { header_digest: DigestChoice::Always, ..Policy::default() };
        assert_eq!(say(&policy, "HeaderDigest", "None"), "Reject");
        assert_eq!(conclude(&mut Parameters::default(), &policy, "HeaderDigest", "None"), Some(false));
        let policy = Policy { header_digest: DigestChoice::Never, ..Policy::default() };
        assert_eq!(conclude(&mut Parameters::default(), &policy, "HeaderDigest", "CRC32C"), Some(false));
    }

    proptest! {
        #[test]
        fn both_ends_agree_on_the_same(burst in BURST_MIN..BURST_MAX, mine in BURST_MIN..BURST_MAX, r2t: bool, imm: bool) {
            let offered = Policy { max_burst: burst, initial_r2t: r2t, ..Policy::default() };
            let granted = Policy { max_burst: mine, immediate_data: imm, ..Policy::default() };
            let (mut ours, mut theirs) = (Parameters::default(), Parameters::default());
            for (name, value) in offers(&offered) {
                let reply = answer(&mut theirs, &granted, name, &value.to_string()).unwrap();
                if reply != KeyAnswer::Nothing {
                    prop_assert_eq!(conclude(&mut ours, &offered, name, &reply.to_string()), Some(true));
                }
            }
            prop_assert_eq!(Parameters { max_send: 0, ..ours }, Parameters { max_send: 0, ..theirs });
        }
    }
}
