//! Login, target side: a stage machine over key=value text (RFC 7143 §6, §11.12).

use alloc::{string::String, vec::Vec};

use super::{Config, LoginRequest, Refusal, SessionKind};
use crate::{
    Parameters, limits,
    parameters::{self, Answer},
    pdu::{self, Bhs, flag, opcode},
    text,
};

const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

#[derive(Default)]
pub(super) struct Login {
    /// Stage the next request must be in; `None` before the first.
    stage: Option<u8>,
    exchanges: u32,
    /// Text of C-bit continuations so far.
    gathered: Vec<u8>,
    /// Names of all keys so far: a key may come once (§6.2).
    seen: Vec<String>,
    identity: Option<(u32, u16)>,
    isid: [u8; 6],
    initiator: Option<String>,
    alias: Option<String>,
    target: Option<String>,
    discovery: bool,
    kind: Option<SessionKind>,
    declared: bool,
    agreed: Parameters,
}

/// What to do after a login request.
pub(super) enum Next {
    Respond(Bhs, Vec<u8>),
    /// The last response, to be sent once the shell admits the session.
    Finish(Bhs, Vec<u8>, LoginRequest),
}

impl Login {
    pub(super) fn request(&mut self, config: &Config, bhs: &Bhs, data: &[u8]) -> Result<Next, Refusal> {
        let request = pdu::Login::of(bhs);
        let (stage, next) = ((request.flags >> 2) & 3, request.flags & 3);
        let transit = request.flags & flag::TRANSIT != 0;
        let continues = request.flags & flag::CONTINUE != 0;
        self.exchanges += 1;
        if self.exchanges > limits::LOGIN_EXCHANGES_MAX || self.gathered.len() + data.len() > limits::TEXT_MAX
        {
            return Err(Refusal::InitiatorError);
        }
        if request.version_min != 0 {
            return Err(Refusal::Version);
        }
        self.same_login(&request)?;
        let lawful = stage <= OPERATIONAL
            && self.stage.is_none_or(|expected| expected == stage)
            && !(transit && (continues || next <= stage || next == 2));
        if !lawful {
            return Err(Refusal::InitiatorError);
        }
        self.stage = Some(stage);
        self.gathered.extend_from_slice(data);
        let mut answer = pdu::LoginResponse::new(opcode::LOGIN_RESPONSE, stage << 2);
        answer.isid = request.isid;
        answer.tag = request.tag;
        if continues {
            return Ok(Next::Respond(answer.wire(), Vec::new()));
        }
        let gathered = core::mem::take(&mut self.gathered);
        let mut answers = Vec::new();
        self.keys(config, &gathered, &mut answers)?;
        self.identify(config, &mut answers)?;
        if stage == OPERATIONAL && !self.declared {
            self.declared = true;
            self.agreed.max_receive =
                config.policy.max_receive.clamp(limits::BURST_MIN, limits::DATA_SEGMENT_MAX);
            text::put(&mut answers, "MaxRecvDataSegmentLength", self.agreed.max_receive);
        }
        if !transit {
            return Ok(Next::Respond(answer.wire(), answers));
        }
        answer.flags |= flag::TRANSIT | next;
        self.stage = Some(next);
        if next != FULL_FEATURE {
            return Ok(Next::Respond(answer.wire(), answers));
        }
        if !config.policy.admits(&self.agreed) {
            return Err(Refusal::InitiatorError);
        }
        let request = LoginRequest {
            initiator: self.initiator.clone().unwrap_or_default(),
            alias: self.alias.clone(),
            isid: self.isid,
            kind: self.kind.unwrap_or(SessionKind::Discovery),
            parameters: self.agreed.clone(),
        };
        Ok(Next::Finish(answer.wire(), answers, request))
    }

    /// Tag, ISID, CID and TSIH stay the same through a login; a TSIH names a session to join, which we have no use for.
    fn same_login(&mut self, request: &pdu::Login) -> Result<(), Refusal> {
        let identity = (request.tag.get(), request.cid.get());
        match self.identity {
            None => {
                self.identity = Some(identity);
                self.isid = request.isid;
                // One connection a session (§6.3.4: recovery level 0 may refuse a second one).
                if request.tsih.get() != 0 { Err(Refusal::TooManyConnections) } else { Ok(()) }
            }
            Some(first) if first == identity && self.isid == request.isid && request.tsih.get() == 0 => {
                Ok(())
            }
            Some(_) => Err(Refusal::InvalidDuringLogin),
        }
    }

    fn keys(&mut self, config: &Config, gathered: &[u8], answers: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut pairs = text::parse(gathered).map_err(|_| Refusal::InitiatorError)?;
        // The answer to FirstBurstLength rests on this one.
        pairs.sort_by_key(|(key, _)| *key != "MaxBurstLength");
        for (key, value) in pairs {
            if self.seen.len() >= limits::KEYS_MAX || self.seen.iter().any(|seen| seen == key) {
                return Err(Refusal::InitiatorError);
            }
            self.seen.push(String::from(key));
            match key {
                "InitiatorName" => self.initiator = Some(name(value)?),
                "InitiatorAlias" => self.alias = Some(String::from(value)),
                "TargetName" => self.target = Some(name(value)?),
                "SessionType" => match value {
                    "Normal" => self.discovery = false,
                    "Discovery" => self.discovery = true,
                    _ => return Err(Refusal::SessionType),
                },
                // The one method we have. CHAP would begin its exchange here and keep the stage.
                "AuthMethod" if value.split(',').any(|method| method == "None") => {
                    text::put(answers, key, "None");
                }
                "AuthMethod" => return Err(Refusal::Authentication),
                // Only a target says these (§13.5, §13.8, §13.9): an answer to them would meet our own.
                "TargetAlias" | "TargetAddress" | "TargetPortalGroupTag" => {
                    return Err(Refusal::InitiatorError);
                }
                _ => match parameters::answer(&mut self.agreed, &config.policy, key, value) {
                    Some(Answer::Nothing) => {}
                    // A declaration has no answer that could refuse it, and our own carries the same key (§13.12).
                    Some(Answer::Reject) if key == "MaxRecvDataSegmentLength" => {
                        return Err(Refusal::InitiatorError);
                    }
                    Some(answer) => text::put(answers, key, answer),
                    None => text::put(answers, key, "NotUnderstood"),
                },
            }
        }
        Ok(())
    }

    /// After the first whole request: who calls whom (§6.3, §13.6 and §13.9).
    fn identify(&mut self, config: &Config, answers: &mut Vec<u8>) -> Result<(), Refusal> {
        if self.kind.is_some() {
            return Ok(());
        }
        if self.initiator.is_none() {
            return Err(Refusal::MissingParameter);
        }
        if self.discovery {
            self.kind = Some(SessionKind::Discovery);
            return Ok(());
        }
        let wanted = self.target.as_deref().ok_or(Refusal::MissingParameter)?;
        let target = config.targets.iter().position(|entry| entry.name == wanted).ok_or(Refusal::NotFound)?;
        if let Some(alias) = config.targets.get(target).and_then(|entry| entry.alias.as_ref()) {
            text::put(answers, "TargetAlias", alias);
        }
        text::put(answers, "TargetPortalGroupTag", config.portal_group);
        self.kind = Some(SessionKind::Normal { target });
        Ok(())
    }
}

fn name(value: &str) -> Result<String, Refusal> {
    let proper = !value.is_empty() && value.len() <= limits::NAME_MAX && !value.contains(char::is_whitespace);
    if proper { Ok(String::from(value)) } else { Err(Refusal::InitiatorError) }
}
