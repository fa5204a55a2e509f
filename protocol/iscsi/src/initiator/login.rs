//! Login, initiator side: a state machine over key=value text (RFC 7143 §6, §11.12).
//!
//! Does: offers security and operational keys, proves the CHAP account, collects the negotiated
//! parameters.
//! Does not: read PDUs from a stream; `session` passes each response.

use alloc::{boxed::Box, string::String, vec::Vec};

use super::{InitiatorChap, InitiatorClosed, InitiatorConfig, LoginRefusal, Violation};
use crate::{
    LoginExtension, LoginFacts, Parameters,
    chap::{self, CHALLENGE_MIN, ChapAlgorithm},
    limits, parameters,
    pdu::{self, Bhs, flag, opcode},
    text,
};

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;
const REDIRECTION: u8 = 1;

pub(super) struct InitiatorLogin {
    stage: u8,
    exchanges: u32,
    /// Text of C-bit continuations so far.
    gathered: Vec<u8>,
    proof: ChapProgress,
    pub(super) agreed: Parameters,
    extension: Option<Box<dyn LoginExtension>>,
    /// Whether the target requested CHAP, and not only this end offered it.
    chap_was_used: bool,
    pub(super) changes_stream: bool,
}

/// Progress of the authentication of both ends.
enum ChapProgress {
    /// Complete, or not required by either end.
    Given,
    /// CHAP was offered.
    Offered,
    /// CHAP_A was sent.
    Algorithms,
    /// Our response was sent, with our challenge if the target must authenticate.
    Responded(ChapAlgorithm),
}

/// The next step after a login response.
pub(super) enum LoginStep {
    /// Send this request with this text.
    Request(Bhs, Vec<u8>),
    /// Full feature phase.
    Done,
}

impl InitiatorLogin {
    /// Returns the state machine, and the first request.
    pub(super) fn begin(config: &InitiatorConfig, cmd_sn: u32, tag: u32) -> (Self, Bhs, Vec<u8>) {
        let agreed = Parameters { max_receive: limits::LOGIN_SEGMENT_MAX, ..Parameters::default() };
        let proof = if config.chap.is_some() { ChapProgress::Offered } else { ChapProgress::Given };
        let mut login = Self {
            stage: SECURITY,
            exchanges: 0,
            gathered: Vec::new(),
            proof,
            agreed,
            extension: None,
            chap_was_used: false,
            changes_stream: false,
        };
        let mut keys = Vec::new();
        text::put(&mut keys, "InitiatorName", &config.initiator_name);
        if let Some(alias) = &config.initiator_alias {
            text::put(&mut keys, "InitiatorAlias", alias);
        }
        if let Some(target) = &config.target_name {
            text::put(&mut keys, "TargetName", target);
            text::put(&mut keys, "SessionType", "Normal");
        } else {
            text::put(&mut keys, "SessionType", "Discovery");
        }
        // A target that must authenticate cannot be accepted without.
        let methods = match &config.chap {
            None => "None",
            Some(InitiatorChap { target: None, .. }) => "CHAP,None",
            Some(InitiatorChap { target: Some(_), .. }) => "CHAP",
        };
        text::put(&mut keys, "AuthMethod", methods);
        let bhs = login.request(config, cmd_sn, tag, config.chap.is_none());
        (login, bhs, keys)
    }

    pub(super) fn set_extension(&mut self, extension: Box<dyn LoginExtension>) {
        self.extension = Some(extension);
    }

    /// Ends the login for the extension.
    fn conclude(&mut self, config: &InitiatorConfig) -> Result<(), Violation> {
        let (Some(extension), Some(target)) = (&mut self.extension, &config.target_name) else {
            return Ok(());
        };
        let chap_secret = config
            .chap
            .as_ref()
            .filter(|_| self.chap_was_used)
            .map_or(&[][..], |own| own.account.secret.bytes());
        let (initiator, target) = (config.initiator_name.to_ascii_lowercase(), target.to_ascii_lowercase());
        let facts = LoginFacts { initiator: &initiator, target: &target, isid: config.isid, chap_secret };
        let outcome = extension.conclude(&facts).map_err(|_| Violation::Extension)?;
        self.changes_stream = outcome.changes_stream;
        Ok(())
    }

    fn request(&mut self, config: &InitiatorConfig, cmd_sn: u32, tag: u32, transit: bool) -> Bhs {
        self.exchanges += 1;
        let next = if self.stage == SECURITY { OPERATIONAL } else { FULL_FEATURE };
        let flags = (self.stage << 2) | if transit { flag::TRANSIT | next } else { 0 };
        let mut pdu = pdu::Login::new(opcode::LOGIN | opcode::IMMEDIATE, flags);
        pdu.isid = config.isid;
        pdu.tag.set(tag);
        pdu.cmd_sn.set(cmd_sn);
        pdu.wire()
    }

    pub(super) fn response(
        &mut self,
        config: &InitiatorConfig,
        cmd_sn: u32,
        response: &pdu::LoginResponse,
        data: &[u8],
    ) -> Result<LoginStep, InitiatorClosed> {
        if response.class != 0 {
            return Err(InitiatorClosed::Refused(refusal(response, data)));
        }
        if self.gathered.len() + data.len() > limits::TEXT_MAX
            || self.exchanges >= limits::LOGIN_EXCHANGES_MAX
        {
            return Err(InitiatorClosed::Violation(Violation::EndlessNegotiation));
        }
        let (flags, tag) = (response.flags, response.tag.get());
        let (stage, next) = ((flags >> 2) & 3, flags & 3);
        if stage != self.stage || response.version_active != 0 || response.isid != config.isid {
            return Err(InitiatorClosed::Violation(Violation::Negotiation));
        }
        self.gathered.extend_from_slice(data);
        if flags & flag::CONTINUE != 0 {
            if flags & flag::TRANSIT != 0 {
                return Err(InitiatorClosed::Violation(Violation::Negotiation));
            }
            return Ok(LoginStep::Request(self.request(config, cmd_sn, tag, false), Vec::new()));
        }
        let gathered = core::mem::take(&mut self.gathered);
        let mut answers = self.take_keys(config, &gathered).map_err(InitiatorClosed::Violation)?;
        let proven = matches!(self.proof, ChapProgress::Given);
        if flags & flag::TRANSIT == 0 {
            // Our response is our last message, unless it is refused.
            let transit = matches!(self.proof, ChapProgress::Given | ChapProgress::Responded(_));
            return Ok(LoginStep::Request(self.request(config, cmd_sn, tag, transit), answers));
        }
        if !proven {
            return Err(InitiatorClosed::Violation(Violation::Unproven));
        }
        match (self.stage, next) {
            (SECURITY, OPERATIONAL) => {
                self.stage = OPERATIONAL;
                for (name, value) in parameters::offers(&config.policy) {
                    text::put(&mut answers, name, value);
                }
                if let Some(extension) = self.extension.as_mut().filter(|_| config.target_name.is_some()) {
                    extension.offer().iter().for_each(|(key, value)| text::put(&mut answers, key, value));
                }
                Ok(LoginStep::Request(self.request(config, cmd_sn, tag, true), answers))
            }
            (OPERATIONAL, FULL_FEATURE) if response.tsih.get() != 0 => {
                if !config.policy.admits(&self.agreed) {
                    return Err(InitiatorClosed::Violation(Violation::Selection));
                }
                self.conclude(config).map_err(InitiatorClosed::Violation)?;
                self.agreed.max_receive = config.policy.max_receive;
                self.agreed.max_send = self.agreed.max_send.min(config.policy.max_send);
                self.agreed.first_burst = self.agreed.first_burst.min(self.agreed.max_burst);
                Ok(LoginStep::Done)
            }
            _ => Err(InitiatorClosed::Violation(Violation::Negotiation)),
        }
    }

    /// Processes the target's answers and declarations; returns our answers to its offers.
    fn take_keys(&mut self, config: &InitiatorConfig, gathered: &[u8]) -> Result<Vec<u8>, Violation> {
        let mut answers = Vec::new();
        let mut pairs = text::parse(gathered)?;
        // The answer to FirstBurstLength depends on this one.
        pairs.sort_by_key(|(key, _)| *key != "MaxBurstLength");
        let chap_was_agreed = config.chap.is_some() && pairs.contains(&("AuthMethod", "CHAP"));
        self.prove(config, &pairs, &mut answers)?;
        for (key, value) in pairs {
            match key {
                "AuthMethod" if value != "None" && !chap_was_agreed => return Err(Violation::Selection),
                key if key.starts_with("CHAP_") && config.chap.is_some() => {}
                "AuthMethod" | "TargetPortalGroupTag" | "TargetAlias" | "TargetAddress" => {}
                _ if self.extend(key, value)? => {}
                _ if self.stage == SECURITY => text::put(&mut answers, key, "NotUnderstood"),
                _ => match parameters::conclude(&mut self.agreed, &config.policy, key, value) {
                    Some(true) => {}
                    Some(false) => return Err(Violation::Selection),
                    None if value == "NotUnderstood" => {}
                    None => text::put(&mut answers, key, "NotUnderstood"),
                },
            }
        }
        Ok(answers)
    }
}

impl InitiatorLogin {
    /// Offers a key to the extension; returns whether it took the key.
    fn extend(&mut self, key: &str, value: &str) -> Result<bool, Violation> {
        let Some(extension) = &mut self.extension else { return Ok(false) };
        extension.take(key, value).map_err(|_| Violation::Extension)
    }

    /// Performs our steps of CHAP (§12.1.3), and checks the target's.
    fn prove(
        &mut self,
        config: &InitiatorConfig,
        pairs: &[(&str, &str)],
        answers: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let Some(own) = &config.chap else { return Ok(()) };
        let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let need = |name: &str| value(name).ok_or(Violation::Unproven);
        match self.proof {
            ChapProgress::Given => {}
            ChapProgress::Offered => match value("AuthMethod") {
                // The target requires no authentication.
                Some("None") if own.target.is_none() => self.proof = ChapProgress::Given,
                Some("CHAP") => {
                    text::put(answers, "CHAP_A", chap::offer(&own.algorithms));
                    self.proof = ChapProgress::Algorithms;
                }
                Some(_) => return Err(Violation::Selection),
                None if own.target.is_none() => {}
                None => return Err(Violation::Unproven),
            },
            ChapProgress::Algorithms => {
                let algorithm = text::number(need("CHAP_A")?).and_then(ChapAlgorithm::of);
                let algorithm = algorithm
                    .filter(|algorithm| own.algorithms.contains(algorithm))
                    .ok_or(Violation::Selection)?;
                let identifier = chap::identifier(need("CHAP_I")?).ok_or(Violation::Unproven)?;
                let challenge = chap::binary(need("CHAP_C")?).filter(|bytes| bytes.len() >= CHALLENGE_MIN);
                let challenge = challenge.ok_or(Violation::Unproven)?;
                // If our own challenge were accepted, we would compute the target's response
                // (§12.1.3).
                if challenge == own.challenge {
                    return Err(Violation::Unproven);
                }
                let response = algorithm.response(identifier, &own.account.secret, &challenge);
                text::put(answers, "CHAP_N", &own.account.name);
                text::put(answers, "CHAP_R", chap::hexadecimal(&response));
                if own.target.is_some() {
                    text::put(answers, "CHAP_I", own_identifier(own));
                    text::put(answers, "CHAP_C", chap::hexadecimal(&own.challenge));
                }
                self.chap_was_used = true;
                self.proof = ChapProgress::Responded(algorithm);
            }
            ChapProgress::Responded(algorithm) => {
                if let Some(target) = &own.target {
                    let response = chap::binary(need("CHAP_R")?).unwrap_or_default();
                    let right =
                        algorithm.accepts(own_identifier(own), &target.secret, &own.challenge, &response);
                    if !right || need("CHAP_N")? != target.name {
                        return Err(Violation::Unproven);
                    }
                }
                self.proof = ChapProgress::Given;
            }
        }
        Ok(())
    }
}

/// Returns CHAP_I of our challenge: as unpredictable as that is.
const fn own_identifier(chap: &InitiatorChap) -> u8 {
    chap.challenge[0]
}

fn refusal(response: &pdu::LoginResponse, data: &[u8]) -> LoginRefusal {
    let address = || {
        let pairs = text::parse(data).ok()?;
        pairs.iter().find(|(key, _)| *key == "TargetAddress").map(|(_, value)| String::from(*value))
    };
    let redirect = if response.class == REDIRECTION { address() } else { None };
    LoginRefusal { class: response.class, detail: response.detail, redirect }
}
