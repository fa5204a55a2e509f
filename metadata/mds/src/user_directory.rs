//! The user directory, for example an LDAP server, as the metadata server sees it.
//!
//! Does: define the queries and their results, and roles by groups.
//! Does not: speak LDAP; the server passes a [`UserDirectory`]. Does not: decide when to query, and
//! what follows for sessions; `directory` does.
//! Truth: docs/adr/0026-users-from-ldap.md.

use sealstone_mds_protocol::{GroupName, Role, UserName};

/// Maximum number of groups of one directory user: each access check searches them.
pub const DIRECTORY_GROUPS_MAX: usize = 256;

/// A user's entry in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Digest of the permanent id of the entry, which no other entry ever gets.
    pub entry: [u8; 32],
    /// Groups, at most [`DIRECTORY_GROUPS_MAX`].
    pub groups: Vec<GroupName>,
}

/// Result of a lookup in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryLookup {
    /// An entry of a user with access.
    Entry(DirectoryEntry),
    /// No entry, or one without access.
    NotFound,
    /// A locked, disabled or expired entry, with the attribute that marks it.
    Closed(&'static str),
}

/// Reasons why a directory query failed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// No directory is configured.
    #[error("no directory is configured")]
    None,
    /// The directory is unreachable, too slow, closes the connection, or sends invalid data.
    #[error("user directory unavailable: {0}")]
    Unreachable(String),
    /// The directory does not permit the metadata server's queries.
    #[error("user directory refused the metadata server: {0}")]
    Refused(String),
    /// Several entries have the user's name.
    #[error("user directory has several entries for the user")]
    Ambiguous,
    /// The entry has no permanent id.
    #[error("directory entry of the user does not have exactly one {0}, which must identify it")]
    NoLastingName(String),
    /// The user is a member of too many groups.
    #[error("user is in more than {DIRECTORY_GROUPS_MAX} groups; narrow the group filter")]
    TooManyGroups,
}

impl DirectoryError {
    /// Whether no usable answer came, so that nothing is known about any user.
    #[must_use]
    pub const fn is_silence(&self) -> bool {
        self.of_user().is_none()
    }

    /// Returns the reason if the error concerns this user only, who then loses access.
    pub(crate) const fn of_user(&self) -> Option<&'static str> {
        match self {
            Self::None | Self::Unreachable(_) | Self::Refused(_) => None,
            Self::Ambiguous => Some("twice in the directory"),
            Self::NoLastingName(_) => Some("no lasting name in the directory"),
            Self::TooManyGroups => Some("too many groups in the directory"),
        }
    }
}

/// A source of users and groups.
pub trait UserDirectory: Send + Sync + 'static {
    /// Returns the current entry of a user. May take some seconds at most.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    fn look_up(&self, user: &UserName) -> Result<DirectoryLookup, DirectoryError>;
}

/// Directory groups whose members have a role. If none is set, an account has the role set by an
/// administrator; otherwise the directory determines the role of all its accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryRoles {
    /// Group of administrators.
    pub admin: Option<GroupName>,
    /// Group of operators.
    pub operator: Option<GroupName>,
    /// Group of users.
    pub user: Option<GroupName>,
    /// Group of read-only users.
    pub read_only: Option<GroupName>,
}

impl DirectoryRoles {
    fn all(&self) -> [(Role, Option<&GroupName>); 4] {
        [
            (Role::Admin, self.admin.as_ref()),
            (Role::Operator, self.operator.as_ref()),
            (Role::User, self.user.as_ref()),
            (Role::ReadOnly, self.read_only.as_ref()),
        ]
    }

    /// Whether no role has a group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all().iter().all(|(_, group)| group.is_none())
    }

    /// Returns the role of a member of these groups: the first of admin, operator, user, read-only.
    /// Without one the user may not log in.
    #[must_use]
    pub fn of(&self, groups: &[GroupName]) -> Option<Role> {
        let mut all = self.all().into_iter();
        all.find(|(_, group)| group.is_some_and(|group| groups.contains(group))).map(|(role, _)| role)
    }
}
