//! Limits of attribute lists.

/// Longest get-attributes list in bytes: 8191 attributes.
pub(crate) const GET_LIST_MAX: u32 = 64 * 1024;
/// Longest set-attributes list or value in bytes.
pub(crate) const SET_LIST_MAX: u32 = 1024 * 1024;
