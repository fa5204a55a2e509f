//! Who may log in to what: initiator names, CHAP accounts, logical units.
//!
//! Does: find the rule for a name, an account and a target. Does not: run the exchange; `login` does.
//! Contract: without rules for it, a name gets nothing. Names are compared in lower case (RFC 7143 §4.2.7.1).

use alloc::{string::String, vec::Vec};

use crate::chap::{Account, Algorithm};

/// Rules of one portal; whoever is in none of them is refused.
#[derive(Clone, Debug)]
pub struct Access {
    /// The rules; the first that fits counts.
    pub rules: Vec<Rule>,
    /// CHAP algorithms that are taken, in our order of preference.
    pub algorithms: Vec<Algorithm>,
    /// What we prove to initiators that ask it of us (mutual CHAP).
    pub own: Option<Account>,
}

/// What some initiators may.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// iSCSI names in lower case; one that ends in `*` stands for all that begin so.
    pub initiators: Vec<String>,
    /// The account with which they must prove themselves; `None`: their word is enough.
    pub account: Option<Account>,
    /// Names of the targets; empty: all.
    pub targets: Vec<String>,
    /// Logical unit numbers; `None`: all.
    pub luns: Option<Vec<u16>>,
}

impl Rule {
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

impl Access {
    /// Rules with [`Algorithm::DEFAULT`], and nothing proven of us.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self { rules, algorithms: Algorithm::DEFAULT.to_vec(), own: None }
    }

    /// The rules for an initiator that says this name, towards a target or any.
    pub(super) fn candidates<'a>(
        &'a self,
        initiator: &'a str,
        target: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Rule> + Clone {
        self.rules.iter().filter(move |rule| rule.is_for(initiator, target))
    }

    /// The rule under which this initiator, with this account proven, reaches the target.
    pub(super) fn grant(&self, initiator: &str, user: Option<&str>, target: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.is_for(initiator, Some(target)) && rule.user() == user)
    }
}

/// Which format of sense data a logical unit has (SPC-4 §4.5.1): what the transport answers in its name has the same.
pub trait SenseFormat: Send + Sync {
    /// Descriptor format, for this LUN in wire form? A logical unit that is not there has fixed format.
    fn is_descriptor(&self, lun: u64) -> bool;
}

/// What a login with CHAP needs of the shell: one for each connection.
pub trait Doorkeeper: Send + Sync {
    /// Fills `into` with fresh unpredictable bytes.
    fn random(&self, into: &mut [u8]);
    /// Whether this peer may try a response for an account now; false after too many failures.
    fn admits(&self, account: &str) -> bool;
    /// This peer gave a wrong response for an account, which may not exist.
    fn failed(&self, account: &str);
    /// This peer gave the right response for an account.
    fn passed(&self, account: &str);
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::chap::Secret;

    fn rule(initiators: &[&str], user: Option<&str>, targets: &[&str], luns: &[u16]) -> Rule {
        let account = user.map(|name| Account { name: name.into(), secret: Secret::new(&[7; 16]).unwrap() });
        let strings = |texts: &[&str]| texts.iter().map(|text| String::from(*text)).collect();
        Rule {
            initiators: strings(initiators),
            account,
            targets: strings(targets),
            luns: Some(luns.to_vec()),
        }
    }

    #[test]
    fn the_first_rule_that_fits_name_account_and_target_counts() {
        let access = Access::new(vec![
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
