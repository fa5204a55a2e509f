//! Decides from the attributes of a directory entry whether its account is locked, disabled or
//! expired.
//!
//! Contract: a value that cannot be parsed counts as closed. An attribute that is missing, or
//! hidden from the bind name, has no effect.
//! Truth: shadow(5) and RFC 2307 (shadowExpire), draft-behera-ldap-password-policy-10 §5.3.3
//! (pwdAccountLockedTime), the manuals of 389 Directory Server (nsAccountLock), eDirectory
//! (loginDisabled) and Active Directory (userAccountControl, accountExpires).

use core::time::Duration;

use sealstone_ldap::{Attribute, SearchEntry};

/// Parses one value. Returns whether the account is closed at that time since 1970.
type AccountRule = fn(&str, Duration) -> bool;

const RULES: [(&str, AccountRule); 6] = [
    // Days since 1970; -1 means never.
    ("shadowExpire", |value, now| {
        let today = i64::try_from(now.as_secs() / 86_400).unwrap_or(i64::MAX);
        value.parse::<i64>().map_or(true, |day| day >= 0 && today >= day)
    }),
    // The time of the lock, or 000001010000Z if only an administrator can unlock the account. A
    // lock with a time ends by a policy that is not evaluated here.
    ("pwdAccountLockedTime", |_, _| true),
    ("nsAccountLock", |value, _| !value.eq_ignore_ascii_case("false")),
    ("loginDisabled", |value, _| !value.eq_ignore_ascii_case("false")),
    // Bit ACCOUNTDISABLE.
    ("userAccountControl", |value, _| value.parse::<i64>().map_or(true, |flags| flags & 2 != 0)),
    // 100 ns since 1601; 0 and the maximum mean never.
    ("accountExpires", |value, now| {
        let now = (now.as_nanos() / 100) as i128 + 116_444_736_000_000_000;
        value.parse::<i64>().map_or(true, |end| end != 0 && end != i64::MAX && i128::from(end) <= now)
    }),
];

/// Returns the attributes that the rules need.
pub(super) fn status_attributes() -> Vec<Attribute> {
    RULES.iter().filter_map(|(name, _)| Attribute::new(name).ok()).collect()
}

/// Returns the attribute by which the entry's account is closed; `None` if it is open.
pub(super) fn closing_attribute(entry: &SearchEntry, now: Duration) -> Option<&'static str> {
    RULES
        .iter()
        .find(|(name, rule)| {
            let Ok(attribute) = Attribute::new(name) else { return false };
            let mut values = entry.values(&attribute);
            values.any(|value| core::str::from_utf8(value).map_or(true, |value| rule(value.trim(), now)))
        })
        .map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of the tests, 2026-11-22.
    const NOW: Duration = Duration::from_secs(20_779 * 86_400);

    fn is_closed(name: &str, value: &str) -> bool {
        let (_, rule) = RULES.iter().find(|(rule, _)| *rule == name).expect("a rule");
        rule(value, NOW)
    }

    #[test]
    fn account_status_attributes_close_accounts() {
        for (name, value, closed) in [
            ("shadowExpire", "-1", false),
            ("shadowExpire", "20780", false),
            ("shadowExpire", "20779", true),
            ("shadowExpire", "1", true),
            ("shadowExpire", "0", true),
            ("shadowExpire", "soon", true),
            ("pwdAccountLockedTime", "000001010000Z", true),
            ("pwdAccountLockedTime", "20261122101112Z", true),
            ("nsAccountLock", "TRUE", true),
            ("nsAccountLock", "false", false),
            ("loginDisabled", "TRUE", true),
            ("loginDisabled", "FALSE", false),
            ("userAccountControl", "512", false),
            ("userAccountControl", "514", true),
            ("userAccountControl", "x", true),
            ("accountExpires", "0", false),
            ("accountExpires", "9223372036854775807", false),
            ("accountExpires", "133000000000000000", true),
            ("accountExpires", "144000000000000000", false),
        ] {
            assert_eq!(is_closed(name, value), closed, "{name}: {value}");
        }
        assert_eq!(status_attributes().len(), RULES.len(), "all are names of attributes");
    }
}
