//! Error numbers that calls return.

use core::fmt;

macro_rules! errors {
    ($($variant:ident = $number:literal, $symbol:literal, $doc:literal;)*) => {
        /// Why a call failed. Functions see it as a negative number, as in `errno.h` of Linux.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        #[non_exhaustive]
        pub enum CallErrno {
            $(#[doc = $doc] $variant = $number,)*
        }

        impl CallErrno {
            /// All errors, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the symbol of `errno.h`.
            #[must_use]
            pub const fn symbol(self) -> &'static str {
                match self { $(Self::$variant => $symbol,)* }
            }

            /// Returns the line of the documentation.
            #[must_use]
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }

            /// Returns the error of a negative result; `None` for a number that no call returns.
            #[must_use]
            pub const fn from_result(result: i64) -> Option<Self> {
                $(if result == -$number { return Some(Self::$variant); })*
                None
            }
        }
    };
}

errors! {
    NotFound = 2, "ENOENT", "The object, attribute or method does not exist.";
    InputOutput = 5, "EIO", "The device failed to read or write.";
    NotExecutable = 8, "ENOEXEC", "The code cannot be loaded, or has no entry point.";
    BadHandle = 9, "EBADF", "The call has no object or stream of this number.";
    NoMemory = 12, "ENOMEM", "The memory limit of the job or its heap is reached.";
    AccessRefused = 13, "EACCES", "The capability does not permit the access, or is expired or revoked.";
    Busy = 16, "EBUSY", "Too many streams are open, or a buffer is in use.";
    Invalid = 22, "EINVAL", "An argument is invalid.";
    TooLarge = 27, "EFBIG", "An object, a result or a value is larger than its limit.";
    NoSpace = 28, "ENOSPC", "The device or the quota is full.";
    Unsupported = 38, "ENOSYS", "The device does not implement the call.";
    NotEmpty = 39, "ENOTEMPTY", "The collection has members.";
    BadData = 74, "EBADMSG", "The data does not have the expected format.";
    Cancelled = 125, "ECANCELED", "The job was cancelled.";
}

impl CallErrno {
    /// Returns the result of a failed call: the negative error number.
    #[must_use]
    pub const fn result(self) -> i64 {
        -(self as i32 as i64)
    }
}

impl fmt::Display for CallErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol())
    }
}

impl core::error::Error for CallErrno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_results_convert_back() {
        for &error in CallErrno::ALL {
            assert!(error.result() < 0);
            assert_eq!(CallErrno::from_result(error.result()), Some(error));
        }
        assert_eq!(CallErrno::from_result(0), None);
        assert_eq!(CallErrno::from_result(2), None);
        assert!(CallErrno::ALL.is_sorted());
    }
}
