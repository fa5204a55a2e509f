//! Negotiation of a session's protection, initiator side.
//!
//! Does: states the settings, requires the target's to be equal and its proof to be right, makes
//! the records of the stream.
//! Does not: accept a target without protection.
//! Truth: docs/standards/block-protection.md, "Negotiation".

use std::sync::{Arc, Mutex, PoisonError};

use sealstone_block_protection::{
    LoginNonce, LoginTranscript, NONCE_LEN, PduDirection, ProofRole, ProtectionSettings, ReceivedSettings,
    RecordOpener, RecordSealer, SessionKeys, SessionSecrets,
};
use sealstone_channel::StreamRecords;
use sealstone_iscsi::{ExtensionOutcome, ExtensionRefused, LoginExtension, LoginFacts};

use crate::{Environment as _, SystemEnvironment};

/// Records of a session whose login succeeded.
pub(crate) type RecordsOutcome = Arc<Mutex<Option<StreamRecords>>>;

/// The negotiation of one login.
pub(crate) struct ProtectionOffer {
    settings: ProtectionSettings,
    nonce: LoginNonce,
    received: ReceivedSettings,
    outcome: RecordsOutcome,
}

impl ProtectionOffer {
    pub(crate) fn new(settings: ProtectionSettings) -> (Self, RecordsOutcome) {
        let mut nonce = [0; NONCE_LEN];
        // Always from the system, in simulations too: a repeated nonce would repeat keys.
        SystemEnvironment.fill_random(&mut nonce);
        let outcome = RecordsOutcome::default();
        (
            Self { settings, nonce, received: ReceivedSettings::default(), outcome: Arc::clone(&outcome) },
            outcome,
        )
    }

    fn agree(&self, facts: &LoginFacts<'_>) -> Option<StreamRecords> {
        let settings = self.settings;
        let target_nonce = self.received.check(&settings, Some(&self.nonce)).ok()?;
        let transcript = LoginTranscript {
            initiator: facts.initiator,
            target: facts.target,
            isid: facts.isid,
            settings,
            initiator_nonce: self.nonce,
            target_nonce,
        };
        let secrets = SessionSecrets { chap: facts.chap_secret, tls_exporter: &[] };
        let keys = SessionKeys::derive(secrets, &transcript).ok()?;
        if !keys.is_proof_text(ProofRole::Target, self.received.proof().ok()?) {
            return None;
        }
        let (protection, size) = (settings.level.records()?, settings.record?);
        Some(StreamRecords {
            sealer: RecordSealer::new(keys.record_keys(PduDirection::ToTarget), protection, size),
            opener: RecordOpener::new(keys.record_keys(PduDirection::ToInitiator), protection, size),
            random: Box::new(|into| SystemEnvironment.fill_random(into)),
        })
    }
}

impl LoginExtension for ProtectionOffer {
    fn offer(&mut self) -> Vec<(&'static str, String)> {
        self.settings.login_keys(&self.nonce, None)
    }

    fn take(&mut self, key: &str, value: &str) -> Result<bool, ExtensionRefused> {
        self.received.take(key, value).map_err(|_| ExtensionRefused)
    }

    fn conclude(&mut self, facts: &LoginFacts<'_>) -> Result<ExtensionOutcome, ExtensionRefused> {
        let records = self.agree(facts).ok_or(ExtensionRefused)?;
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(records);
        Ok(ExtensionOutcome { answers: Vec::new(), changes_stream: true })
    }
}
