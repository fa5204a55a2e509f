//! Access rules: initiator names, CHAP accounts, targets and logical units.
//!
//! Does: finds the rule for a name, an account and a target.
//! Does not: run the exchange; `login` does.
//! Contract: a name without a matching rule has no access. Names are compared in lower case (RFC
//! 7143 §4.2.7.1).

use alloc::{string::String, vec::Vec};

use crate::chap::{ChapAccount, ChapAlgorithm};

/// Rules of one portal; an initiator without a matching rule is refused.
#[derive(Clone, Debug)]
pub struct AccessRules {
    /// The rules; the first match counts.
    pub rules: Vec<AccessRule>,
    /// Accepted CHAP algorithms, in our order of preference.
    pub algorithms: Vec<ChapAlgorithm>,
    /// Our account for initiators that require mutual CHAP.
    pub own: Option<ChapAccount>,
}

/// The rights of some initiators.
#[derive(Clone, Debug, Default)]
pub struct AccessRule {
    /// iSCSI names in lower case; one that ends in `*` matches all names with that prefix.
    pub initiators: Vec<String>,
    /// The account with which they must authenticate; `None`: no authentication.
    pub account: Option<ChapAccount>,
    /// Names of the targets; empty: all.
    pub targets: Vec<String>,
    /// Logical unit numbers; `None`: all.
    pub luns: Option<Vec<u16>>,
}

impl AccessRule {
    fn is_for(&self, initiator: &str, target: Option<&str>) -> bool {
        let named = self.initiators.iter().any(|name| match name.strip_suffix('*') {
            Some(prefix) => initiator.starts_with(prefix),
            None => name == initiator,
        });
        let reached =
            |target: &str| self.targets.is_empty() || self.targets.iter().any(|name| name == target);
        named && target.is_none_or(reached)
    }

    fn user(&self) -> Option<&str> {
        self.account.as_ref().map(|account| account.name.as_str())
    }
}

impl AccessRules {
    /// Creates rules with [`ChapAlgorithm::DEFAULT`], without mutual CHAP.
    #[must_use]
    pub fn new(rules: Vec<AccessRule>) -> Self {
        Self { rules, algorithms: ChapAlgorithm::DEFAULT.to_vec(), own: None }
    }

    /// Returns the rules for an initiator with this name, for a target or any.
    pub(super) fn candidates<'a>(
        &'a self,
        initiator: &'a str,
        target: Option<&'a str>,
    ) -> impl Iterator<Item = &'a AccessRule> + Clone {
        self.rules.iter().filter(move |rule| rule.is_for(initiator, target))
    }

    /// Returns the rule by which this initiator, with this authenticated account, may use the
    /// target.
    pub(super) fn grant(&self, initiator: &str, user: Option<&str>, target: &str) -> Option<&AccessRule> {
        self.rules.iter().find(|rule| rule.is_for(initiator, Some(target)) && rule.user() == user)
    }
}

/// The format of a logical unit's sense data (SPC-4 §4.5.1): replies that the transport sends on
/// its behalf use the same.
pub trait SenseFormat: Send + Sync {
    /// Whether this LUN (in wire form) uses descriptor format. A logical unit that does not exist
    /// uses fixed format.
    fn is_descriptor(&self, lun: u64) -> bool;
}

/// Random bytes and rate limits for logins with CHAP, supplied by the shell; one per connection.
pub trait LoginGuard: Send + Sync {
    /// Fills `into` with fresh unpredictable bytes.
    fn random(&self, into: &mut [u8]);
    /// Whether this peer may attempt a response for an account now; false after too many failures.
    fn admits(&self, account: &str) -> bool;
    /// Records a wrong response of this peer for an account, which may not exist.
    fn failed(&self, account: &str);
    /// Records a right response of this peer for an account.
    fn passed(&self, account: &str);
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::chap::ChapSecret;

    fn rule(initiators: &[&str], user: Option<&str>, targets: &[&str], luns: &[u16]) -> AccessRule {
        let account =
            user.map(|name| ChapAccount { name: name.into(), secret: ChapSecret::new(&[7; 16]).unwrap() });
        let strings = |texts: &[&str]| texts.iter().map(|text| String::from(*text)).collect();
        AccessRule {
            initiators: strings(initiators),
            account,
            targets: strings(targets),
            luns: Some(luns.to_vec()),
        }
    }

    #[test]
    fn first_matching_access_rule_counts() {
        let access = AccessRules::new(vec![
            rule(&["iqn.a:1", "iqn.b:*"], None, &["t1"], &[0]),
            rule(&["iqn.a:1"], Some("ann"), &[], &[1]),
            rule(&["iqn.*"], Some("bob"), &[], &[2]),
        ]);
        let luns = |initiator, user, target| {
            access.grant(initiator, user, target).and_then(|rule| rule.luns.clone())
        };
        assert_eq!(luns("iqn.a:1", None, "t1"), Some(vec![0]));
        assert_eq!(luns("iqn.a:1", None, "t2"), None);
        assert_eq!(luns("iqn.a:1", Some("ann"), "t2"), Some(vec![1]));
        assert_eq!(luns("iqn.a:12", Some("ann"), "t2"), None, "a name is no prefix");
        assert_eq!(luns("iqn.b:9", None, "t1"), Some(vec![0]));
        assert_eq!(luns("iqn.z", Some("bob"), "t1"), Some(vec![2]));
        assert_eq!(access.candidates("eui.1", None).count(), 0);
        assert_eq!(access.candidates("iqn.a:1", Some("t2")).count(), 2);
    }
}
