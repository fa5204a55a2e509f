//! Quotas: subjects, limits and use.
//!
//! Truth: docs/standards/mds/operations.md §5.9.

use crate::name::{FilePath, UserName};
use crate::records::InodeId;
use crate::wire::{Wire, WireError, WireReader, WireWriter, record};

/// Subject of a quota in requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaSubject {
    /// Everything that a user owns.
    User(UserName),
    /// A directory and everything below it.
    Tree(FilePath),
}

impl Wire for QuotaSubject {
    fn put(&self, out: &mut WireWriter) {
        match self {
            Self::User(name) => {
                1u8.put(out);
                name.put(out);
            }
            Self::Tree(path) => {
                2u8.put(out);
                path.put(out);
            }
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            1 => Ok(Self::User(UserName::get(input)?)),
            2 => Ok(Self::Tree(FilePath::get(input)?)),
            code => Err(WireError::UnknownCode { what: "subject of a quota", code: u32::from(code) }),
        }
    }
}

impl core::fmt::Display for QuotaSubject {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name}"),
            Self::Tree(path) => write!(f, "tree {path}"),
        }
    }
}

/// Subject of a quota in lists: users by name, then trees by inode number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaCursor {
    /// A user.
    User(UserName),
    /// A quota tree.
    Tree(InodeId),
}

impl Wire for QuotaCursor {
    fn put(&self, out: &mut WireWriter) {
        match self {
            Self::User(name) => {
                1u8.put(out);
                name.put(out);
            }
            Self::Tree(id) => {
                2u8.put(out);
                id.put(out);
            }
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            1 => Ok(Self::User(UserName::get(input)?)),
            2 => Ok(Self::Tree(InodeId::get(input)?)),
            code => Err(WireError::UnknownCode { what: "place of a quota", code: u32::from(code) }),
        }
    }
}

impl core::fmt::Display for QuotaCursor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name}"),
            Self::Tree(id) => write!(f, "tree of node {}", id.0),
        }
    }
}

record! {
    /// New limits. `None` leaves one unchanged; `Some(None)` removes it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QuotaChange {
        /// Limit of bytes.
        pub bytes_max: Option<Option<u64>>,
        /// Limit of nodes of all kinds.
        pub nodes_max: Option<Option<u64>>,
    }
}

record! {
    /// Use and limits of a quota.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Quota {
        pub place: QuotaCursor,
        /// Path of the tree, if it was not moved since its quota was last set.
        pub path: Option<FilePath>,
        /// Sum of the sizes.
        pub bytes: u64,
        /// Number of nodes.
        pub nodes: u64,
        /// Limit of bytes, if any.
        pub bytes_max: Option<u64>,
        /// Limit of nodes, if any.
        pub nodes_max: Option<u64>,
    }
}

record! {
    /// A counter that differs from the actual use.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct QuotaDrift {
        pub place: QuotaCursor,
        /// Bytes as counted.
        pub bytes: u64,
        /// Nodes as counted.
        pub nodes: u64,
        /// Actual bytes.
        pub bytes_found: u64,
        /// Actual nodes.
        pub nodes_found: u64,
    }
}
