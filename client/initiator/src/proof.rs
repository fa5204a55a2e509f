//! CHAP accounts for logins to targets, and for targets that have to authenticate themselves (RFC
//! 7143 §12.1.3).
//!
//! Does: selects the account for a target.
//! Does not: run the exchange; `sealstone_iscsi` does.
//! Contract: queried for each login, so that a changed account is used from the next login on. Each
//! login has a new challenge.

use core::fmt;
use std::sync::Arc;

use sealstone_iscsi::chap::{CHALLENGE_LEN, ChapAccount, ChapAlgorithm};
use sealstone_iscsi::initiator::InitiatorChap;

use crate::{Environment as _, SystemEnvironment};

/// The authentication for one target.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The account and secret of this initiator.
    pub account: ChapAccount,
    /// The account that the target must prove (mutual CHAP); `None` if it need not.
    pub target: Option<ChapAccount>,
    /// Offered algorithms, the preferred one first.
    pub algorithms: Vec<ChapAlgorithm>,
}

impl Proof {
    /// Creates an authentication with [`ChapAlgorithm::DEFAULT`], which excludes MD5.
    #[must_use]
    pub fn new(account: ChapAccount, target: Option<ChapAccount>) -> Self {
        Self { account, target, algorithms: ChapAlgorithm::DEFAULT.to_vec() }
    }

    pub(crate) fn machine(self) -> InitiatorChap {
        let mut challenge = [0; CHALLENGE_LEN];
        // Always from the system, in simulations too: a repeated challenge would accept an old
        // response.
        SystemEnvironment.fill_random(&mut challenge);
        InitiatorChap { account: self.account, target: self.target, algorithms: self.algorithms, challenge }
    }
}

/// Why the account could not be determined; the text has no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProofError(pub String);

type Ask = dyn Fn(&str) -> Result<Option<Proof>, ProofError> + Send + Sync;

/// The accounts for all targets.
#[derive(Clone, Default)]
pub struct Proofs(Option<Arc<Ask>>);

impl Proofs {
    /// Uses a function of the target's iSCSI name; `None` from it means no authentication.
    pub fn new(ask: impl Fn(&str) -> Result<Option<Proof>, ProofError> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(ask)))
    }

    /// Uses the same account for every target.
    #[must_use]
    pub fn always(proof: Proof) -> Self {
        Self::new(move |_| Ok(Some(proof.clone())))
    }

    pub(crate) fn for_target(&self, target: &str) -> Result<Option<Proof>, ProofError> {
        self.0.as_ref().map_or(Ok(None), |ask| ask(target))
    }
}

impl fmt::Debug for Proofs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proofs")
    }
}

#[cfg(test)]
mod tests {
    use sealstone_iscsi::chap::ChapSecret;

    use super::*;

    #[test]
    fn each_login_has_new_challenge_and_hides_secrets() {
        let account = ChapAccount { name: "ann".into(), secret: ChapSecret::new(b"twelve bytes").unwrap() };
        let proofs = Proofs::always(Proof::new(account, None));
        let challenge = || proofs.for_target("iqn.a").unwrap().unwrap().machine().challenge;
        assert_ne!(challenge(), challenge());
        let proof = proofs.for_target("iqn.a").unwrap().unwrap();
        assert_eq!(
            proof.algorithms,
            [ChapAlgorithm::Sha256, ChapAlgorithm::Sha3],
            "SHA-256 first, MD5 only if named"
        );
        assert!(!format!("{proofs:?} {proof:?}").contains("twelve"));
        assert!(Proofs::default().for_target("iqn.a").unwrap().is_none());
    }
}
