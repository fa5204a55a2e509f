//! Negotiation of a session's protection, initiator side.
//!
//! Does: states the settings, requires the target's to be equal and its proof to be right, makes
//! the protection of the stream.
//! Does not: accept a target without protection.
//! Truth: docs/standards/block-protection.md, "Negotiation".

use std::sync::{Arc, Mutex, PoisonError};

use sealstone_block_protection::{
    HeaderOpener, HeaderSealer, LoginNonce, LoginTranscript, NONCE_LEN, PduDirection, PduProtection,
    ProofRole, ProtectedBlock, ProtectionSettings, ReceivedSettings, RecordOpener, RecordSealer, SessionKeys,
    SessionSecrets,
};
use sealstone_channel::{ChannelSecret, StreamProtection, StreamRecords};
use sealstone_iscsi::{ExtensionOutcome, ExtensionRefused, LoginExtension, LoginFacts};

use crate::block_seals::{BlockReports, InitiatorPduBlocks};
use crate::{Environment as _, SystemEnvironment};

/// Protection of a session whose login succeeded.
pub(crate) type ProtectionOutcome = Arc<Mutex<Option<StreamProtection>>>;

/// Returns the maximum data segment of a session whose PDUs have keys of blocks: 16 blocks, whose
/// keys fit into the additional headers, or 64 with generations. `None` for other sessions.
pub(crate) fn segment_max(settings: &ProtectionSettings) -> Option<u32> {
    settings.key_list_form().map(|form| match (form.block, form.scheme.has_generations()) {
        (ProtectedBlock::B512, false) => 8 << 10,
        (ProtectedBlock::B512, true) => 32 << 10,
        (ProtectedBlock::B4096, false) => 64 << 10,
        (ProtectedBlock::B4096, true) => 256 << 10,
    })
}

/// The negotiation of one login.
pub(crate) struct ProtectionOffer {
    settings: ProtectionSettings,
    nonce: LoginNonce,
    received: ReceivedSettings,
    outcome: ProtectionOutcome,
    /// Logical unit with blocks, in wire form.
    lun: u64,
    reports: BlockReports,
    /// Secret of the TLS channel, if there is one.
    channel: Option<ChannelSecret>,
}

impl ProtectionOffer {
    pub(crate) fn new(
        settings: ProtectionSettings,
        lun: u64,
        reports: BlockReports,
        channel: Option<ChannelSecret>,
    ) -> (Self, ProtectionOutcome) {
        let mut nonce = [0; NONCE_LEN];
        // Always from the system, in simulations too: a repeated nonce would repeat keys.
        SystemEnvironment.fill_random(&mut nonce);
        let outcome = ProtectionOutcome::default();
        let received = ReceivedSettings::default();
        (Self { settings, nonce, received, outcome: Arc::clone(&outcome), lun, reports, channel }, outcome)
    }

    fn agree(&self, facts: &LoginFacts<'_>) -> Option<StreamProtection> {
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
        let tls_exporter = self.channel.as_ref().map_or(&[][..], ChannelSecret::bytes);
        let secrets = SessionSecrets { chap: facts.chap_secret, tls_exporter };
        let keys = SessionKeys::derive(secrets, &transcript).ok()?;
        if !keys.is_proof_text(ProofRole::Target, self.received.proof().ok()?) {
            return None;
        }
        let records = settings.level.records().zip(settings.record).map(|(protection, size)| StreamRecords {
            sealer: RecordSealer::new(keys.record_keys(PduDirection::ToTarget), protection, size),
            opener: RecordOpener::new(keys.record_keys(PduDirection::ToInitiator), protection, size),
            random: Box::new(|into| SystemEnvironment.fill_random(into)),
        });
        let pdus = settings.key_list_form().map(|form| {
            let (level, profile) = (settings.level, settings.profile);
            let sealer = HeaderSealer::new(keys.header_keys(), level, profile, PduDirection::ToTarget, 0);
            let opener = HeaderOpener::new(keys.header_keys(), level, profile, PduDirection::ToInitiator, 0);
            let blocks = InitiatorPduBlocks::new(form, self.lun, self.reports.clone());
            PduProtection::new(form, sealer, opener, Box::new(blocks))
        });
        Some(StreamProtection { pdus, records })
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
