//! Attributes: names, numbers, lists and pages (OSD-2 §7.1).

pub mod list;
pub mod page;
mod standard;

use core::fmt;

pub use standard::*;

/// Page and number of an attribute; the order is that of a retrieved list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeId {
    /// Attributes page.
    pub page: u32,
    /// Number within the page.
    pub number: u32,
}

impl AttributeId {
    /// In a request: every page, or every number of a page.
    pub const ALL: u32 = 0xFFFF_FFFF;

    /// Returns attribute `number` of `page`.
    #[must_use]
    pub const fn new(page: u32, number: u32) -> Self {
        Self { page, number }
    }

    /// Whether it stands for many attributes.
    #[must_use]
    pub const fn is_wildcard(self) -> bool {
        self.page == Self::ALL || self.number == Self::ALL
    }
}

impl fmt::Display for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.page, self.number)
    }
}

impl fmt::Debug for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
