//! Login keys beyond RFC 7143, which the shells of both ends implement (X- keys, section 6.3).
//!
//! Does: defines the trait between the login of either end and its extension.
//! Does not: define any such key.
//! Contract: an extension that refuses ends the login. One that changes the stream after the login
//! concludes only if no byte that the other end sent before the change is buffered.

use alloc::{string::String, vec::Vec};

/// Facts of a login at its end, equal at both ends.
#[derive(Clone, Copy)]
pub struct LoginFacts<'a> {
    /// Initiator's name in lower case.
    pub initiator: &'a str,
    /// Target's name in lower case.
    pub target: &'a str,
    /// Session identifier of the initiator.
    pub isid: [u8; 6],
    /// Secret of the account with which the initiator authenticated; empty without CHAP.
    pub chap_secret: &'a [u8],
}

/// The extension does not permit the login (status 0200h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an extension of the login refused it")]
pub struct ExtensionRefused;

/// Result of an extension at the end of a login.
#[derive(Debug, Default)]
pub struct ExtensionOutcome {
    /// Keys that the target adds to its last response.
    pub answers: Vec<(&'static str, String)>,
    /// Whether all bytes after the last response are in another form.
    pub changes_stream: bool,
}

/// Additional keys of one login to a target, at either end. Discovery sessions have none.
pub trait LoginExtension: Send {
    /// Returns the keys that an initiator offers.
    fn offer(&mut self) -> Vec<(&'static str, String)>;

    /// Takes a key of the other end; returns whether it is one of the extension.
    ///
    /// # Errors
    /// If the login must end.
    fn take(&mut self, key: &str, value: &str) -> Result<bool, ExtensionRefused>;

    /// Concludes the login, at the target before its last response, at the initiator after it.
    ///
    /// # Errors
    /// If the login must end.
    fn conclude(&mut self, facts: &LoginFacts<'_>) -> Result<ExtensionOutcome, ExtensionRefused>;
}
