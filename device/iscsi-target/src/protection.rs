//! Negotiation of a session's protection, target side.
//!
//! Does: compares the initiator's settings with those that the logical units require, derives the
//! keys, makes the protection of the stream.
//! Does not: lower anything: settings that no unit requires end the login.
//! Contract: the outcome is present exactly if the initiator stated settings and the login
//! succeeded.
//! Truth: docs/standards/block-protection.md, "Negotiation".

use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_block_protection::{
    HeaderOpener, HeaderSealer, LoginTranscript, NONCE_LEN, PduDirection, PduProtection, ProofRole,
    ProtectionSettings, ReceivedSettings, RecordOpener, RecordSealer, SessionKeys, SessionSecrets,
};
use sealstone_channel::{ChannelSecret, StreamProtection, StreamRecords};
use sealstone_iscsi::{ExtensionOutcome, ExtensionRefused, LoginExtension, LoginFacts};

use crate::{
    RandomSource,
    block_seals::{ConnectionSeals, TargetPduBlocks},
    server::TargetState,
};

/// Protection of a session as negotiated.
pub(crate) struct NegotiatedProtection {
    pub(crate) settings: ProtectionSettings,
    pub(crate) stream: StreamProtection,
    /// Seals of blocks between PDUs and logical units, at levels with keys of blocks.
    pub(crate) seals: Option<ConnectionSeals>,
}

/// The outcome of a login, shared with its connection.
pub(crate) type ProtectionOutcome = Arc<Mutex<Option<NegotiatedProtection>>>;

/// The negotiation of one login.
pub(crate) struct ProtectionNegotiation {
    shared: Arc<TargetState>,
    received: ReceivedSettings,
    outcome: ProtectionOutcome,
    /// Secret of the TLS channel, if there is one.
    channel: Option<ChannelSecret>,
}

impl ProtectionNegotiation {
    pub(crate) fn new(shared: Arc<TargetState>, channel: Option<ChannelSecret>) -> (Self, ProtectionOutcome) {
        let outcome = ProtectionOutcome::default();
        let received = ReceivedSettings::default();
        (Self { shared, received, outcome: Arc::clone(&outcome), channel }, outcome)
    }

    fn agree(&self, facts: &LoginFacts<'_>) -> Option<(ProtectionSettings, Vec<(&'static str, String)>)> {
        let accepted = self.shared.luns.protections();
        let (settings, initiator_nonce) = accepted
            .iter()
            .find_map(|settings| Some((*settings, self.received.check(settings, None).ok()?)))?;
        let random = self.shared.config.random.clone();
        let mut target_nonce = [0; NONCE_LEN];
        random.fill(&mut target_nonce);
        let transcript = LoginTranscript {
            initiator: facts.initiator,
            target: facts.target,
            isid: facts.isid,
            settings,
            initiator_nonce,
            target_nonce,
        };
        let tls_exporter = self.channel.as_ref().map_or(&[][..], ChannelSecret::bytes);
        let secrets = SessionSecrets { chap: facts.chap_secret, tls_exporter };
        let keys = SessionKeys::derive(secrets, &transcript).ok()?;
        let records = settings.level.records().zip(settings.record).map(|(protection, size)| StreamRecords {
            sealer: RecordSealer::new(keys.record_keys(PduDirection::ToInitiator), protection, size),
            opener: RecordOpener::new(keys.record_keys(PduDirection::ToTarget), protection, size),
            random: fill_with(random),
        });
        let seals = settings.key_list_form().map(|_| ConnectionSeals::default());
        let pdus = settings.key_list_form().zip(seals.clone()).map(|(form, seals)| {
            let (level, profile) = (settings.level, settings.profile);
            let sealer = HeaderSealer::new(keys.header_keys(), level, profile, PduDirection::ToInitiator, 0);
            let opener = HeaderOpener::new(keys.header_keys(), level, profile, PduDirection::ToTarget, 0);
            PduProtection::new(form, sealer, opener, Box::new(TargetPduBlocks::new(form, seals)))
        });
        let stream = StreamProtection { pdus, records };
        *self.outcome.lock() = Some(NegotiatedProtection { settings, stream, seals });
        Some((settings, settings.login_keys(&target_nonce, Some(keys.proof_text(ProofRole::Target)))))
    }
}

fn fill_with(random: RandomSource) -> Box<dyn FnMut(&mut [u8]) + Send> {
    Box::new(move |into| random.fill(into))
}

impl LoginExtension for ProtectionNegotiation {
    fn offer(&mut self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn take(&mut self, key: &str, value: &str) -> Result<bool, ExtensionRefused> {
        self.received.take(key, value).map_err(|_| ExtensionRefused)
    }

    fn conclude(&mut self, facts: &LoginFacts<'_>) -> Result<ExtensionOutcome, ExtensionRefused> {
        if self.received.is_empty() {
            return Ok(ExtensionOutcome::default());
        }
        match self.agree(facts) {
            Some((_, answers)) => Ok(ExtensionOutcome { answers, changes_stream: true }),
            None => {
                tracing::warn!(
                    initiator = facts.initiator,
                    "login refused: no unit requires the stated protection, or the login has neither CHAP nor TLS"
                );
                Err(ExtensionRefused)
            }
        }
    }
}
