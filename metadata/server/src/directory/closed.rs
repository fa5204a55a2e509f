//! What says that an account of a directory is closed, by the attributes that directories have for that.
//!
//! Contract: whatever cannot be read counts as closed. An attribute that the directory does not have, or does not show to
//! whoever asks, says nothing.
//! Truth: shadow(5) and RFC 2307 (shadowExpire), draft-behera-ldap-password-policy-10 §5.3.3 (pwdAccountLockedTime), the
//! manuals of 389 Directory Server (nsAccountLock), eDirectory (loginDisabled) and Active Directory (userAccountControl,
//! accountExpires).

use core::time::Duration;

use sealstone_ldap::{Attribute, Entry};

/// Reads one value; true if it says that the account is closed at that time since 1970.
type Rule = fn(&str, Duration) -> bool;

const RULES: [(&str, Rule); 6] = [
    // Days since 1970; -1 is never.
    ("shadowExpire", |value, now| {
        let today = i64::try_from(now.as_secs() / 86_400).unwrap_or(i64::MAX);
        value.parse::<i64>().map_or(true, |day| day >= 0 && today >= day)
    }),
    // The time of the lock, or 000001010000Z for one that only an administrator takes off. When one of the first kind
    // ends, a policy says that is not looked at here.
    ("pwdAccountLockedTime", |_, _| true),
    ("nsAccountLock", |value, _| !value.eq_ignore_ascii_case("false")),
    ("loginDisabled", |value, _| !value.eq_ignore_ascii_case("false")),
    // ACCOUNTDISABLE.
    ("userAccountControl", |value, _| value.parse::<i64>().map_or(true, |flags| flags & 2 != 0)),
    // 100 ns since 1601; 0 and the greatest number are never.
    ("accountExpires", |value, now| {
        let now = (now.as_nanos() / 100) as i128 + 116_444_736_000_000_000;
        value.parse::<i64>().map_or(true, |end| end != 0 && end != i64::MAX && i128::from(end) <= now)
    }),
];

/// The attributes that are looked at.
pub(super) fn marks() -> Vec<Attribute> {
    RULES.iter().filter_map(|(name, _)| Attribute::new(name).ok()).collect()
}

/// What says that the entry's account is closed; `None` if nothing does.
pub(super) fn mark(entry: &Entry, now: Duration) -> Option<&'static str> {
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

    /// 2026-11-22.
    const NOW: Duration = Duration::from_secs(20_779 * 86_400);

    fn is_closed(name: &str, value: &str) -> bool {
        let (_, rule) = RULES.iter().find(|(rule, _)| *rule == name).expect("a rule");
        rule(value, NOW)
    }

    #[test]
    fn accounts_are_closed_by_what_directories_write_for_that() {
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
        assert_eq!(marks().len(), RULES.len(), "all are names of attributes");
    }
}
