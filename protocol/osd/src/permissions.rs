//! PERMISSIONS BIT MASK (capability bytes 49–53).

use core::fmt;
use core::ops::BitOr;

/// A set of permission bits: the five wire bytes as the low 40 bits, byte 49 highest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Permissions(u64);

macro_rules! permissions {
    ($($name:ident = $byte:literal . $bit:literal, $doc:literal;)*) => {
        impl Permissions {
            $(#[doc = $doc] pub const $name: Self = Self($bit << (8 * (53 - $byte)));)*
            /// Every defined bit, by name.
            pub const NAMES: &[(Self, &str)] = &[$((Self::$name, stringify!($name))),*];
        }
    };
}

permissions! {
    READ = 49 . 0x80, "READ, READ MAP, LIST and LIST COLLECTION.";
    WRITE = 49 . 0x40, "WRITE, CLEAR, PUNCH.";
    GET_ATTR = 49 . 0x20, "Retrieve attributes in any command.";
    SET_ATTR = 49 . 0x10, "Set attributes in any command.";
    CREATE = 49 . 0x08, "CREATE and its kin.";
    REMOVE = 49 . 0x04, "REMOVE and its kin.";
    OBJ_MGMT = 49 . 0x02, "FLUSH and its kin, FORMAT OSD.";
    APPEND = 49 . 0x01, "APPEND.";
    DEV_MGMT = 50 . 0x80, "PERFORM SCSI COMMAND, task management.";
    GLOBAL = 50 . 0x40, "Commands that touch everything beneath the addressed object.";
    POL_SEC = 50 . 0x20, "Policy/Security attributes and keys.";
    M_OBJECT = 50 . 0x10, "Commands on the members of a collection (OSD-2).";
    QUERY = 50 . 0x08, "QUERY (OSD-2).";
    GBL_REM = 50 . 0x04, "REMOVE PARTITION with its contents (OSD-2 r05).";
    EXECUTE = 53 . 0x01, "EXECUTE FUNCTION: our extension.";
    REWRITE_CONDITIONAL = 53 . 0x02, "Conditional REWRITE: our extension.";
}

impl Permissions {
    /// No permission.
    pub const NONE: Self = Self(0);
    /// All permissions of OSD-1: FF E0 00 00 00.
    pub const ALL_OSD1: Self = Self(0xFF_E000_0000);
    /// All permissions of OSD-2: FF FC 00 00 00.
    pub const ALL_OSD2: Self = Self(0xFF_FC00_0000);

    /// Converts from the wire; reserved bits are kept, since the check value covers them.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 5]) -> Self {
        let [a, b, c, d, e] = bytes;
        Self(u64::from_be_bytes([0, 0, 0, a, b, c, d, e]))
    }

    /// Converts to the wire.
    #[must_use]
    pub const fn bytes(self) -> [u8; 5] {
        let [_, _, _, a, b, c, d, e] = self.0.to_be_bytes();
        [a, b, c, d, e]
    }

    /// Whether every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the bits of this one that `other` lacks.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether no bit is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Permissions {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut rest = *self;
        let mut separator = "";
        for (bit, name) in Self::NAMES.iter().filter(|(bit, _)| self.contains(*bit)) {
            write!(f, "{separator}{name}")?;
            rest = rest.without(*bit);
            separator = "+";
        }
        if rest.is_empty() { Ok(()) } else { write!(f, "{separator}{:#x}", rest.0) }
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_stand_where_the_standard_puts_them() {
        assert_eq!(Permissions::READ.bytes(), [0x80, 0, 0, 0, 0]);
        assert_eq!(Permissions::DEV_MGMT.bytes(), [0, 0x80, 0, 0, 0]);
        assert_eq!(Permissions::EXECUTE.bytes(), [0, 0, 0, 0, 1]);
        assert_eq!(Permissions::from_bytes([0xFF, 0xE0, 0, 0, 0]), Permissions::ALL_OSD1);
        let ours = Permissions::EXECUTE | Permissions::REWRITE_CONDITIONAL;
        let all = Permissions::NAMES.iter().fold(Permissions::NONE, |sum, (bit, _)| sum | *bit);
        assert_eq!(all, Permissions::ALL_OSD2 | ours);
    }
}
