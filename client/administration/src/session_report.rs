//! The session of a user, and its end, as text and JSON.

use sealstone_client::{GroupName, Revoking, Role, WhoAmI};
use sealstone_failure::{Failure, Outcome};
use sealstone_units::utc;
use serde_json::{Value, json};

/// Returns the user of a session as `--json` prints it.
#[must_use]
pub fn whoami_json(who: &WhoAmI, server: &str) -> Value {
    json!({
        "user": who.user.as_str(), "role": who.role.as_str(), "admin": who.role == Role::Admin,
        "groups": groups(who), "mds": server, "expires_ms": who.expires_ms,
    })
}

/// Returns the user of a session as text.
#[must_use]
pub fn whoami_text(who: &WhoAmI, server: &str) -> String {
    let groups = groups(who);
    let in_groups = if groups.is_empty() { String::new() } else { format!(", in {}", groups.join(", ")) };
    let (user, role) = (who.user.as_str(), who.role.as_str());
    format!("{user} ({role}{in_groups}) at {server}, until {}", utc(who.expires_ms))
}

fn groups(who: &WhoAmI) -> Vec<&str> {
    who.groups.iter().map(GroupName::as_str).collect()
}

/// The revocation of the credentials of an ended session.
#[derive(Debug)]
pub struct LogoutRevocation(Revoking);

impl LogoutRevocation {
    /// Returns the revocation of the server's response to a logout.
    ///
    /// # Errors
    /// Nothing was revoked, or not all credentials are listed.
    pub fn new(revoking: Option<Revoking>) -> Outcome<Self> {
        let Some(revoking) = revoking else {
            return Err(Failure::operation(
                "the session has ended, but its credentials were not revoked: too many revocations are under way",
            )
            .hint("they expire; an administrator sees pending revocations with: sealstone revoke --list"));
        };
        if !revoking.complete {
            let what = format!(
                "the session ended, but not all of its credentials are listed: some are accepted until {}",
                utc_rounded_up(revoking.until_ms)
            );
            return Err(Failure::operation(what)
                .hint("an administrator can revoke them: sealstone revoke --user NAME"));
        }
        Ok(Self(revoking))
    }

    /// Returns the revocation as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let Revoking { id, objects, until_ms, complete } = self.0;
        let until = (objects > 0).then_some(until_ms);
        json!({ "id": id, "objects": objects, "until_ms": until, "complete": complete })
    }

    /// Returns the revocation as text.
    #[must_use]
    pub fn text(&self) -> String {
        let Revoking { id, objects, until_ms, .. } = self.0;
        if objects == 0 {
            return "the session had no valid credentials".to_owned();
        }
        let until = utc_rounded_up(until_ms);
        format!(
            "credentials for {objects} objects are being revoked (revocation {id}); all expire by {until}"
        )
    }
}

/// Formats a time in UTC, rounded up to a whole minute.
fn utc_rounded_up(ms: u64) -> String {
    utc(ms.saturating_add(59_999))
}
