//! How we prove who we are to targets, and which of them must prove themselves to us: CHAP accounts (RFC 7143 §12.1.3).
//!
//! Does: say which account is for which target. Does not: run the exchange; `sealstone_iscsi` does.
//! Contract: asked anew for each login, so that an account that was changed or added counts from the next login on; each
//! login has a challenge of its own.

use core::fmt;
use std::sync::Arc;

use sealstone_iscsi::chap::{Account, Algorithm, CHALLENGE_LEN};
use sealstone_iscsi::initiator::Chap;

use crate::{Environment as _, SystemEnvironment};

/// What we prove to one target.
#[derive(Clone, Debug)]
pub struct Proof {
    /// Who we are, and the secret that shows it.
    pub account: Account,
    /// Who the target must be (mutual CHAP); `None`: its word is enough.
    pub target: Option<Account>,
    /// Algorithms that we offer, the preferred one first.
    pub algorithms: Vec<Algorithm>,
}

impl Proof {
    /// With [`Algorithm::DEFAULT`]: MD5 only for whoever names it.
    #[must_use]
    pub fn new(account: Account, target: Option<Account>) -> Self {
        Self { account, target, algorithms: Algorithm::DEFAULT.to_vec() }
    }

    pub(crate) fn machine(self) -> Chap {
        let mut challenge = [0; CHALLENGE_LEN];
        // The system's, whatever the environment: a challenge that repeats lets an old response in.
        SystemEnvironment.fill_random(&mut challenge);
        Chap { account: self.account, target: self.target, algorithms: self.algorithms, challenge }
    }
}

/// Why there is no telling how to prove ourselves: the text says it without any secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProofError(pub String);

type Ask = dyn Fn(&str) -> Result<Option<Proof>, ProofError> + Send + Sync;

/// The accounts for all targets.
#[derive(Clone, Default)]
pub struct Proofs(Option<Arc<Ask>>);

impl Proofs {
    /// As the function says for a target's iSCSI name; `None` from it: we prove nothing there.
    pub fn new(ask: impl Fn(&str) -> Result<Option<Proof>, ProofError> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(ask)))
    }

    /// The same for every target.
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
    use sealstone_iscsi::chap::Secret;

    use super::*;

    #[test]
    fn each_login_has_a_challenge_of_its_own_and_no_secret_is_shown() {
        let account = Account { name: "ann".into(), secret: Secret::new(b"twelve bytes").unwrap() };
        let proofs = Proofs::always(Proof::new(account, None));
        let challenge = || proofs.for_target("iqn.a").unwrap().unwrap().machine().challenge;
        assert_ne!(challenge(), challenge());
        let proof = proofs.for_target("iqn.a").unwrap().unwrap();
        assert_eq!(
            proof.algorithms,
            [Algorithm::Sha256, Algorithm::Sha3],
            "SHA-256 first, MD5 only if named"
        );
        assert!(!format!("{proofs:?} {proof:?}").contains("twelve"));
        assert!(Proofs::default().for_target("iqn.a").unwrap().is_none());
    }
}
