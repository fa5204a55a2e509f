//! Attributes: table, reading, setting and encoding.
//!
//! Truth: docs/design/t10-osd.md 3; docs/standards/osd.md.

pub(crate) mod change;
pub(crate) mod current;
pub(crate) mod engine;
pub(crate) mod limits;
pub(crate) mod membership;
#[cfg(test)]
mod reference;
pub(crate) mod rows;
pub(crate) mod view;
