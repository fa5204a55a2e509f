//! The address of a logical unit: `iscsi://HOST[:PORT]/TARGET-NAME/LUN`.
//!
//! Does: parses and prints it.
//! Does not: resolve names or connect.
//! Truth: the de-facto syntax of libiscsi and open-iscsi tools; names as in RFC 7143 §4.2.7 and RFC
//! 3722.

use core::fmt;
use core::str::FromStr;

/// The port that an iSCSI target listens on when none is named (RFC 7143 §15).
pub const DEFAULT_PORT: u16 = 3260;
/// The longest iSCSI name, in bytes (RFC 7143 §4.2.7.1).
pub const NAME_LENGTH_MAX: usize = 223;
/// The longest host part, in bytes (a DNS name is at most 253).
pub const HOST_LENGTH_MAX: usize = 255;
/// The largest LUN number that single-level addressing can carry (SAM-5 §4.7).
pub const LUN_MAX: u16 = 0x3FFF;

/// A logical unit's address.
///
/// ```
/// use sealstone_initiator::TargetUrl;
/// let url: TargetUrl = "iscsi://127.0.0.1:3260/iqn.2026-11.org.sealstone:osd.a/0".parse()?;
/// assert_eq!(url.target, "iqn.2026-11.org.sealstone:osd.a");
/// assert_eq!(url.authority(), "127.0.0.1:3260");
/// # Ok::<(), sealstone_initiator::UrlError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetUrl {
    /// A DNS name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The target's iSCSI name.
    pub target: String,
    /// The logical unit's number, at most [`LUN_MAX`].
    pub lun: u16,
}

/// Why a text is not an `iscsi://` address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It does not begin with `iscsi://`.
    #[error("an address begins with iscsi://")]
    Scheme,
    /// The host is empty, too long, or has an invalid character.
    #[error("the host is empty or malformed")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("the port is not a number from 1 to 65535")]
    Port,
    /// The target name is missing, longer than 223 bytes, or not an iqn., eui. or naa. name.
    #[error("the target name is not an iqn., eui. or naa. name of at most {NAME_LENGTH_MAX} bytes")]
    Target,
    /// The LUN is missing or not a number up to 16383.
    #[error("the LUN is not a number from 0 to {LUN_MAX}")]
    Lun,
}

impl TargetUrl {
    /// Returns `HOST:PORT`, with brackets around an IPv6 address, as resolvers expect.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for TargetUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix("iscsi://").ok_or(UrlError::Scheme)?;
        let (authority, path) = rest.split_once('/').ok_or(UrlError::Target)?;
        let (host, port) = split_authority(authority)?;
        let (target, lun) = path.split_once('/').ok_or(UrlError::Lun)?;
        if !is_iscsi_name(target) {
            return Err(UrlError::Target);
        }
        let lun = number(lun).filter(|lun| *lun <= LUN_MAX).ok_or(UrlError::Lun)?;
        Ok(Self { host: host.to_owned(), port, target: target.to_owned(), lun })
    }
}

impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iscsi://{}/{}/{}", self.authority(), self.target, self.lun)
    }
}

/// `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`.
fn split_authority(authority: &str) -> Result<(&str, u16), UrlError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or(UrlError::Host)?;
            let is_v6 =
                host.contains(':') && host.bytes().all(|b| b.is_ascii_hexdigit() || b":.".contains(&b));
            if !is_v6 {
                return Err(UrlError::Host);
            }
            match after {
                "" => (host, None),
                _ => (host, Some(after.strip_prefix(':').ok_or(UrlError::Port)?)),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let host_byte = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
    if host.is_empty() || host.len() > HOST_LENGTH_MAX || !host.bytes().all(host_byte) {
        return Err(UrlError::Host);
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(text) => number(text).filter(|port| *port != 0).ok_or(UrlError::Port)?,
    };
    Ok((host, port))
}

/// Digits only: `FromStr` of integers would also take a sign.
fn number(text: &str) -> Option<u16> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Whether the name is valid in a login. Upper case is refused, since RFC 3722 folds names before
/// they are compared.
fn is_iscsi_name(name: &str) -> bool {
    let known = name.starts_with("iqn.") || name.starts_with("eui.") || name.starts_with("naa.");
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    known && name.len() > 4 && name.len() <= NAME_LENGTH_MAX && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_port_and_v6_brackets_are_optional() {
        let url: TargetUrl = "iscsi://osd-1/iqn.2026-11.org.sealstone:osd.a/3".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.lun), ("osd-1", DEFAULT_PORT, 3));
        let url: TargetUrl = "iscsi://[::1]:9/iqn.x/0".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port), ("::1", 9));
        assert_eq!(url.to_string(), "iscsi://[::1]:9/iqn.x/0");
    }

    #[test]
    fn each_malformed_part_is_named() {
        for (text, error) in [
            ("http://h/iqn.x/0", UrlError::Scheme),
            ("iscsi:///iqn.x/0", UrlError::Host),
            ("iscsi://a b/iqn.x/0", UrlError::Host),
            ("iscsi://[1/iqn.x/0", UrlError::Host),
            ("iscsi://h:0/iqn.x/0", UrlError::Port),
            ("iscsi://h:65536/iqn.x/0", UrlError::Port),
            ("iscsi://h:+1/iqn.x/0", UrlError::Port),
            ("iscsi://h", UrlError::Target),
            ("iscsi://h/IQN.x/0", UrlError::Target),
            ("iscsi://h/iqn./0", UrlError::Target),
            ("iscsi://h/iqn.x", UrlError::Lun),
            ("iscsi://h/iqn.x/", UrlError::Lun),
            ("iscsi://h/iqn.x/16384", UrlError::Lun),
            ("iscsi://h/iqn.x/0/1", UrlError::Lun),
        ] {
            assert_eq!(text.parse::<TargetUrl>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsed_url_prints_and_parses_equal(text in "iscsi://[a-z0-9.\\[\\]:]{0,12}/[iqn.a-z:]{0,9}/[0-9]{0,6}") {
            if let Ok(url) = text.parse::<TargetUrl>() {
                prop_assert_eq!(url.to_string().parse::<TargetUrl>(), Ok(url));
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,300}") {
            let _ = text.parse::<TargetUrl>();
        }
    }
}
