//! Quotas: what is limited, to how much, and how much of it is used.
//!
//! Truth: docs/standards/mds/operations.md §5.9.

use crate::name::{FilePath, UserName};
use crate::records::InodeId;
use crate::wire::{Wire, WireError, WireReader, WireWriter, record};

/// Whose quota is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaOf {
    /// Of everything that a user owns.
    User(UserName),
    /// Of everything below a directory, itself included.
    Tree(FilePath),
}

impl Wire for QuotaOf {
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

impl core::fmt::Display for QuotaOf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name}"),
            Self::Tree(path) => write!(f, "tree {path}"),
        }
    }
}

/// A quota's place in a list: users by name, then trees by the number of their directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaPlace {
    /// A user's.
    User(UserName),
    /// A tree's.
    Tree(InodeId),
}

impl Wire for QuotaPlace {
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

impl core::fmt::Display for QuotaPlace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name}"),
            Self::Tree(id) => write!(f, "tree of node {}", id.0),
        }
    }
}

record! {
    /// New limits. None: stays as it is; none inside: no limit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QuotaChange {
        /// Bytes.
        pub bytes_max: Option<Option<u64>>,
        /// Nodes: files, directories and all else that has a number.
        pub nodes_max: Option<Option<u64>>,
    }
}

record! {
    /// What is used, and how much may be.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Quota {
        /// Whose.
        pub place: QuotaPlace,
        /// Where the tree is, if it is where it was when its quota was last set.
        pub path: Option<FilePath>,
        /// Sum of the sizes.
        pub bytes: u64,
        /// Number of nodes.
        pub nodes: u64,
        /// Bytes at most.
        pub bytes_max: Option<u64>,
        /// Nodes at most.
        pub nodes_max: Option<u64>,
    }
}

record! {
    /// A count that is not what is there.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct QuotaDrift {
        /// Whose.
        pub place: QuotaPlace,
        /// Bytes as counted.
        pub bytes: u64,
        /// Nodes as counted.
        pub nodes: u64,
        /// Bytes that are there.
        pub bytes_found: u64,
        /// Nodes that are there.
        pub nodes_found: u64,
    }
}
