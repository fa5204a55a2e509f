//! The security stage of a login, target side: AuthMethod None and CHAP (RFC 7143 §12.1).
//!
//! Does: chooses the method by the rules for the initiator, runs CHAP, answers a mutual challenge.
//! Does not: know stages.
//! Contract: `step` returns `true` only after everything that the rules require is proven.

use alloc::{string::String, vec, vec::Vec};

use super::{LoginGuard, PortalConfig, Refusal, access::AccessRules, login::OPERATIONAL};
use crate::{
    chap::{self, CHALLENGE_LEN, CHALLENGE_MIN, ChapAlgorithm},
    text,
};

#[derive(Default)]
pub(super) enum AuthenticationStage {
    /// No method is chosen yet.
    #[default]
    Begin,
    /// CHAP is chosen; the algorithm is not.
    Algorithm,
    /// This challenge was sent; the response is awaited.
    Challenge { algorithm: ChapAlgorithm, identifier: u8, challenge: Vec<u8> },
    /// Finished, with this CHAP name, or without authentication.
    Proven(Option<String>),
}

/// The CHAP keys of one text.
#[derive(Default)]
pub(super) struct ChapKeys<'a> {
    algorithms: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
}

impl<'a> ChapKeys<'a> {
    /// Keeps a key; returns false if it is not a CHAP key.
    pub(super) fn take(&mut self, key: &str, value: &'a str) -> bool {
        let place = match key {
            "CHAP_A" => &mut self.algorithms,
            "CHAP_N" => &mut self.name,
            "CHAP_R" => &mut self.response,
            "CHAP_I" => &mut self.identifier,
            "CHAP_C" => &mut self.challenge,
            _ => return false,
        };
        *place = Some(value);
        true
    }

    const fn is_empty(&self) -> bool {
        self.algorithms.is_none()
            && self.name.is_none()
            && self.response.is_none()
            && self.identifier.is_none()
            && self.challenge.is_none()
    }
}

impl AuthenticationStage {
    /// Returns the authenticated name; `None` before the end, too.
    pub(super) fn user(&self) -> Option<String> {
        match self {
            Self::Proven(user) => user.clone(),
            Self::Begin | Self::Algorithm | Self::Challenge { .. } => None,
        }
    }

    /// Processes one text; returns true when the stage may end. `identity` is the initiator's name
    /// and its requested target.
    pub(super) fn step(
        &mut self,
        config: &PortalConfig,
        guard: Option<&dyn LoginGuard>,
        identity: (&str, Option<&str>),
        (stage, transit): (u8, bool),
        methods: Option<&str>,
        keys: &ChapKeys<'_>,
        answers: &mut Vec<u8>,
    ) -> Result<bool, Refusal> {
        let chap = match (&*self, &config.access) {
            (Self::Algorithm | Self::Challenge { .. }, Some(access)) => Some(access),
            _ if keys.is_empty() => None,
            // CHAP before it was agreed, or after its end.
            _ => return Err(Refusal::InitiatorError),
        };
        match chap {
            // The exchange is not finished.
            Some(_) if stage == OPERATIONAL || methods.is_some() => Err(Refusal::InitiatorError),
            Some(access) => {
                self.exchange(access, guard.ok_or(Refusal::Unavailable)?, identity, keys, answers)
            }
            None => self.choose(config.access.as_deref(), identity, (stage, transit), methods, answers),
        }
    }

    fn choose(
        &mut self,
        access: Option<&AccessRules>,
        (initiator, target): (&str, Option<&str>),
        (stage, transit): (u8, bool),
        methods: Option<&str>,
        answers: &mut Vec<u8>,
    ) -> Result<bool, Refusal> {
        if matches!(self, Self::Proven(_)) {
            // A chosen method cannot change (§6.2: a key may occur once).
            return if methods.is_some() { Err(Refusal::InitiatorError) } else { Ok(true) };
        }
        let (open, chap) = access.map_or((true, false), |access| {
            let rules = access.candidates(initiator, target);
            (
                rules.clone().any(|rule| rule.account.is_none()),
                rules.clone().any(|rule| rule.account.is_some()),
            )
        });
        let Some(methods) = methods else {
            // Nothing offered: the security stage was skipped, or is being left (§6.3.2).
            if stage != OPERATIONAL && !transit {
                return Ok(false);
            }
            return self.unproven(open);
        };
        // The originator's order counts (§6.2.1).
        let chosen = methods.split(',').find(|method| match *method {
            "CHAP" => chap,
            "None" => open,
            _ => false,
        });
        match chosen {
            Some("CHAP") if stage != OPERATIONAL => {
                text::put(answers, "AuthMethod", "CHAP");
                *self = Self::Algorithm;
                Ok(false)
            }
            Some("None") => {
                text::put(answers, "AuthMethod", "None");
                self.unproven(open)
            }
            _ => Err(Refusal::Authentication),
        }
    }

    fn unproven(&mut self, open: bool) -> Result<bool, Refusal> {
        if !open {
            return Err(Refusal::Authentication);
        }
        *self = Self::Proven(None);
        Ok(true)
    }

    fn exchange(
        &mut self,
        access: &AccessRules,
        guard: &dyn LoginGuard,
        identity: (&str, Option<&str>),
        keys: &ChapKeys<'_>,
        answers: &mut Vec<u8>,
    ) -> Result<bool, Refusal> {
        match core::mem::take(self) {
            Self::Algorithm => {
                let offered = keys.algorithms.ok_or(Refusal::MissingParameter)?;
                let algorithm = chap::pick(&access.algorithms, offered).ok_or(Refusal::Authentication)?;
                let mut identifier = [0];
                let mut challenge = vec![0; CHALLENGE_LEN];
                guard.random(&mut identifier);
                guard.random(&mut challenge);
                text::put(answers, "CHAP_A", algorithm.number());
                text::put(answers, "CHAP_I", identifier[0]);
                text::put(answers, "CHAP_C", chap::hexadecimal(&challenge));
                *self = Self::Challenge { algorithm, identifier: identifier[0], challenge };
                Ok(false)
            }
            Self::Challenge { algorithm, identifier, challenge } => {
                if keys.algorithms.is_some() {
                    return Err(Refusal::InitiatorError);
                }
                let name = keys.name.ok_or(Refusal::MissingParameter)?;
                let response = keys.response.ok_or(Refusal::MissingParameter)?;
                if !guard.admits(name) {
                    return Err(Refusal::Authentication);
                }
                let accounts =
                    access.candidates(identity.0, identity.1).filter_map(|rule| rule.account.as_ref());
                // An unknown name costs the same time as a wrong response: any account serves for
                // that.
                let known = accounts.clone().find(|account| account.name == name);
                let account = known.or_else(|| accounts.clone().next()).ok_or(Refusal::Authentication)?;
                let response = chap::binary(response).unwrap_or_default();
                let right = algorithm.accepts(identifier, &account.secret, &challenge, &response);
                if !right || known.is_none() {
                    guard.failed(name);
                    return Err(Refusal::Authentication);
                }
                guard.passed(name);
                prove(access, algorithm, &challenge, keys, answers)?;
                *self = Self::Proven(Some(String::from(name)));
                Ok(true)
            }
            Self::Begin | Self::Proven(_) => Err(Refusal::InitiatorError),
        }
    }
}

/// Mutual CHAP: answers the initiator's challenge, if there is one. Only after the initiator has
/// authenticated, so that unauthenticated peers get no responses, and never our own challenge
/// (§12.1.3).
fn prove(
    access: &AccessRules,
    algorithm: ChapAlgorithm,
    sent: &[u8],
    keys: &ChapKeys<'_>,
    answers: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let (identifier, challenge) = match (keys.identifier, keys.challenge) {
        (None, None) => return Ok(()),
        (Some(identifier), Some(challenge)) => (chap::identifier(identifier), chap::binary(challenge)),
        _ => return Err(Refusal::MissingParameter),
    };
    let identifier = identifier.ok_or(Refusal::InitiatorError)?;
    let challenge = challenge.filter(|bytes| bytes.len() >= CHALLENGE_MIN).ok_or(Refusal::InitiatorError)?;
    let own = access.own.as_ref().ok_or(Refusal::Authentication)?;
    if challenge == sent {
        return Err(Refusal::Authentication);
    }
    text::put(answers, "CHAP_N", &own.name);
    let response = algorithm.response(identifier, &own.secret, &challenge);
    text::put(answers, "CHAP_R", chap::hexadecimal(&response));
    Ok(())
}
