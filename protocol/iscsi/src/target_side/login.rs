//! Login, target side: a state machine over key=value text (RFC 7143 §6, §11.12).
//!
//! Does: checks stages and keys of each request, runs the security stage (`authenticate`),
//! negotiates parameters, and reports the session that the initiator asked for.
//! Does not: admit the session; the shell does, before the last response is sent.

use alloc::{boxed::Box, string::String, vec::Vec};

use super::{
    LoginGuard, LoginRequest, PortalConfig, Refusal, SessionKind,
    authenticate::{AuthenticationStage, ChapKeys},
};
use crate::{
    LoginExtension, LoginFacts, Parameters, limits,
    parameters::{self, KeyAnswer},
    pdu::{self, Bhs, flag, opcode},
    text,
};

pub(super) const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

#[derive(Default)]
pub(super) struct TargetLogin {
    /// Stage the next request must be in; `None` before the first.
    stage: Option<u8>,
    exchanges: u32,
    /// Text of C-bit continuations so far.
    gathered: Vec<u8>,
    /// Names of all keys so far: a key may occur once (§6.2).
    seen: Vec<String>,
    identity: Option<LoginIdentity>,
    initiator: Option<String>,
    alias: Option<String>,
    target: Option<String>,
    discovery: bool,
    kind: Option<SessionKind>,
    declared: bool,
    authentication: AuthenticationStage,
    agreed: Parameters,
    extension: Option<Box<dyn LoginExtension>>,
    changes_stream: bool,
}

/// Fields that are the same in all requests of a login (§11.12.5 to §11.12.8).
#[derive(Clone, Copy, PartialEq, Eq)]
struct LoginIdentity {
    tag: u32,
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
}

/// The next step after a login request.
pub(super) enum LoginStep {
    Respond(Bhs, Vec<u8>),
    /// The last response, to be sent when the shell admits the session.
    Finish(Bhs, Vec<u8>, LoginRequest),
}

/// Keys of one text that are processed after all of it was read.
#[derive(Default)]
struct DeferredKeys<'a> {
    methods: Option<&'a str>,
    chap: ChapKeys<'a>,
}

impl TargetLogin {
    /// Returns the name that the initiator sent.
    pub(super) fn initiator(&self) -> &str {
        self.initiator.as_deref().unwrap_or_default()
    }

    pub(super) fn set_extension(&mut self, extension: Box<dyn LoginExtension>) {
        self.extension = Some(extension);
    }

    /// Whether the stream has another form after the last response.
    pub(super) const fn changes_stream(&self) -> bool {
        self.changes_stream
    }

    pub(super) fn request(
        &mut self,
        config: &PortalConfig,
        guard: Option<&dyn LoginGuard>,
        bhs: &Bhs,
        data: &[u8],
    ) -> Result<LoginStep, Refusal> {
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
        let identity = LoginIdentity {
            tag: request.tag.get(),
            isid: request.isid,
            tsih: request.tsih.get(),
            cid: request.cid.get(),
        };
        if *self.identity.get_or_insert(identity) != identity {
            return Err(Refusal::InvalidDuringLogin);
        }
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
        answer.tsih = request.tsih;
        answer.tag = request.tag;
        if continues {
            return Ok(LoginStep::Respond(answer.wire(), Vec::new()));
        }
        let gathered = core::mem::take(&mut self.gathered);
        let mut answers = Vec::new();
        let offered = self.keys(config, &gathered, &mut answers)?;
        self.identify(config, &mut answers)?;
        let wanted = self.target.as_deref().filter(|_| !self.discovery);
        let initiator = self.initiator.as_deref().unwrap_or_default();
        let names = (initiator, wanted);
        let proven = self.authentication.step(
            config,
            guard,
            names,
            (stage, transit),
            offered.methods,
            &offered.chap,
            &mut answers,
        )?;
        if stage == OPERATIONAL && !self.declared {
            self.declared = true;
            self.agreed.max_receive =
                config.policy.max_receive.clamp(limits::BURST_MIN, limits::DATA_SEGMENT_MAX);
            text::put(&mut answers, "MaxRecvDataSegmentLength", self.agreed.max_receive);
        }
        // The security stage ends when nothing more must be proven, whatever the initiator
        // requests.
        if !transit || !proven {
            return Ok(LoginStep::Respond(answer.wire(), answers));
        }
        answer.flags |= flag::TRANSIT | next;
        self.stage = Some(next);
        if next != FULL_FEATURE {
            return Ok(LoginStep::Respond(answer.wire(), answers));
        }
        self.finish(config, identity, answer.wire(), answers)
    }

    fn finish(
        &mut self,
        config: &PortalConfig,
        identity: LoginIdentity,
        bhs: Bhs,
        mut answers: Vec<u8>,
    ) -> Result<LoginStep, Refusal> {
        if !config.policy.admits(&self.agreed) {
            return Err(Refusal::InitiatorError);
        }
        let initiator = self.initiator.clone().unwrap_or_default();
        let user = self.authentication.user();
        let kind = self.kind.unwrap_or(SessionKind::Discovery);
        let mut luns = None;
        if let SessionKind::Normal { target } = kind {
            let name = config.targets.get(target).map_or("", |entry| entry.name.as_str());
            let mut chap_secret: &[u8] = &[];
            if let Some(access) = &config.access {
                let rule = access.grant(&initiator, user.as_deref(), name).ok_or(Refusal::Authorization)?;
                luns.clone_from(&rule.luns);
                chap_secret = rule.account.as_ref().map_or(&[], |account| account.secret.bytes());
            }
            if let Some(extension) = &mut self.extension {
                let target = name.to_ascii_lowercase();
                let facts =
                    LoginFacts { initiator: &initiator, target: &target, isid: identity.isid, chap_secret };
                let outcome = extension.conclude(&facts).map_err(|_| Refusal::Protection)?;
                self.changes_stream = outcome.changes_stream;
                outcome.answers.iter().for_each(|(key, value)| text::put(&mut answers, key, value));
            }
        }
        let request = LoginRequest {
            initiator,
            alias: self.alias.clone(),
            isid: identity.isid,
            tsih: identity.tsih,
            cid: identity.cid,
            kind,
            user,
            luns,
            parameters: self.agreed.clone(),
        };
        Ok(LoginStep::Finish(bhs, answers, request))
    }

    fn keys<'a>(
        &mut self,
        config: &PortalConfig,
        gathered: &'a [u8],
        answers: &mut Vec<u8>,
    ) -> Result<DeferredKeys<'a>, Refusal> {
        let mut offered = DeferredKeys::default();
        let mut pairs = text::parse(gathered).map_err(|_| Refusal::InitiatorError)?;
        // Keys that others depend on come first: the session type, and the key that
        // FirstBurstLength depends on.
        pairs.sort_by_key(|(key, _)| match *key {
            "SessionType" => 0,
            "MaxBurstLength" => 1,
            _ => 2,
        });
        for (key, value) in pairs {
            if self.seen.len() >= limits::KEYS_MAX || self.seen.iter().any(|seen| seen == key) {
                return Err(Refusal::InitiatorError);
            }
            self.seen.push(String::from(key));
            match key {
                "InitiatorName" => self.initiator = Some(name(value)?),
                "InitiatorAlias" => self.alias = Some(String::from(value)),
                "TargetName" => self.target = Some(name(value)?),
                // The first request determines which rules apply.
                "SessionType" if self.kind.is_some() => return Err(Refusal::InitiatorError),
                "SessionType" => match value {
                    "Normal" => self.discovery = false,
                    "Discovery" => self.discovery = true,
                    _ => return Err(Refusal::SessionType),
                },
                "AuthMethod" => offered.methods = Some(value),
                _ if offered.chap.take(key, value) => {}
                // Only a target sends these (§13.5, §13.8, §13.9): an answer to them would collide
                // with our own.
                "TargetAlias" | "TargetAddress" | "TargetPortalGroupTag" => {
                    return Err(Refusal::InitiatorError);
                }
                // Full feature phase only (§13.3).
                "SendTargets" => text::put(answers, key, KeyAnswer::Reject),
                _ if !self.discovery && self.extend(key, value)? => {}
                _ if self.discovery && parameters::is_irrelevant_in_discovery(key) => {
                    text::put(answers, key, KeyAnswer::Irrelevant);
                }
                _ => match parameters::answer(&mut self.agreed, &config.policy, key, value) {
                    Some(KeyAnswer::Nothing) => {}
                    // A declaration cannot be refused by an answer, and our own has the same key
                    // (§13.12).
                    Some(KeyAnswer::Reject) if key == "MaxRecvDataSegmentLength" => {
                        return Err(Refusal::InitiatorError);
                    }
                    Some(answer) => text::put(answers, key, answer),
                    // A refusal of something that we never sent is not refused in turn (§6.2).
                    None if parameters::is_constant(value) => {}
                    None => text::put(answers, key, "NotUnderstood"),
                },
            }
        }
        Ok(offered)
    }

    /// Offers a key to the extension; returns whether it took the key.
    fn extend(&mut self, key: &str, value: &str) -> Result<bool, Refusal> {
        let Some(extension) = &mut self.extension else { return Ok(false) };
        extension.take(key, value).map_err(|_| Refusal::Protection)
    }

    /// After the first complete request: determines initiator and target (§6.3, §13.6 and §13.9).
    fn identify(&mut self, config: &PortalConfig, answers: &mut Vec<u8>) -> Result<(), Refusal> {
        if self.kind.is_some() {
            return Ok(());
        }
        let initiator = self.initiator.as_deref().ok_or(Refusal::MissingParameter)?;
        let allowed = |target: Option<&str>| match &config.access {
            Some(access) if access.candidates(initiator, target).next().is_none() => {
                Err(Refusal::Authorization)
            }
            _ => Ok(()),
        };
        if self.discovery {
            allowed(None)?;
            self.kind = Some(SessionKind::Discovery);
            return Ok(());
        }
        let wanted = self.target.as_deref().ok_or(Refusal::MissingParameter)?;
        let target = config
            .targets
            .iter()
            .position(|entry| entry.name.eq_ignore_ascii_case(wanted))
            .ok_or(Refusal::NotFound)?;
        if let Some(entry) = config.targets.get(target) {
            allowed(Some(&entry.name))?;
            if let Some(alias) = &entry.alias {
                text::put(answers, "TargetAlias", alias);
            }
        }
        text::put(answers, "TargetPortalGroupTag", config.portal_group);
        self.kind = Some(SessionKind::Normal { target });
        Ok(())
    }
}

/// Parses an iSCSI name, normalised as far as ASCII goes (§4.2.7.1).
fn name(value: &str) -> Result<String, Refusal> {
    let proper = !value.is_empty() && value.len() <= limits::NAME_MAX && !value.contains(char::is_whitespace);
    if proper { Ok(value.to_ascii_lowercase()) } else { Err(Refusal::InitiatorError) }
}
