//! Arguments of a call: `name=value` strings, each followed by a zero byte.
//!
//! Truth: docs/reference/shipped-functions.md, arguments; the function SDK has the other side.

use zeroize::Zeroizing;

use super::FunctionError;

/// Maximum number of arguments of a call.
pub const CALL_ARGUMENTS_MAX: usize = 256;

/// The arguments of a call. They are cleared when they are dropped, since they may be secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CallArguments {
    bytes: Zeroizing<Vec<u8>>,
    count: usize,
}

impl core::fmt::Debug for CallArguments {
    /// Omits the values.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CallArguments").field("count", &self.count).finish_non_exhaustive()
    }
}

impl CallArguments {
    /// Adds an argument.
    ///
    /// # Errors
    /// `Argument` for a name that is empty or has `=`, for a zero byte, for a name that occurs
    /// twice, or beyond [`CALL_ARGUMENTS_MAX`].
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), FunctionError> {
        let refused = |problem| FunctionError::Argument { name: name.to_owned(), problem };
        if name.is_empty() || name.contains('=') {
            return Err(refused("a name is not empty and has no '='"));
        }
        if name.contains('\0') || value.contains('\0') {
            return Err(refused("it has a zero byte"));
        }
        let is_same = |known: &[u8]| known.strip_prefix(name.as_bytes()).is_some_and(|rest| rest[0] == b'=');
        if self.bytes.split(|byte| *byte == 0).filter(|known| known.len() > name.len()).any(is_same) {
            return Err(refused("it occurs twice"));
        }
        if self.count == CALL_ARGUMENTS_MAX {
            return Err(refused("a call has at most 256 arguments"));
        }
        self.count += 1;
        for part in [name.as_bytes(), b"=", value.as_bytes(), b"\0"] {
            // Grows by copying to a buffer that is cleared too.
            let mut longer = Zeroizing::new(Vec::with_capacity(self.bytes.len() + part.len()));
            longer.extend_from_slice(&self.bytes);
            longer.extend_from_slice(part);
            self.bytes = longer;
        }
        Ok(())
    }

    /// Returns the bytes for the device.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_encode_with_zero_bytes() {
        let mut arguments = CallArguments::default();
        arguments.add("pattern", "a=b").unwrap();
        arguments.add("pat", "").unwrap();
        assert_eq!(arguments.bytes(), b"pattern=a=b\0pat=\0");
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let mut arguments = CallArguments::default();
        arguments.add("a", "1").unwrap();
        for (name, value) in [("", "x"), ("a=b", "x"), ("b", "x\0y"), ("a", "2")] {
            assert!(matches!(arguments.add(name, value), Err(FunctionError::Argument { .. })), "{name}");
        }
        assert_eq!(arguments.bytes(), b"a=1\0");
    }

    #[test]
    fn too_many_arguments_are_refused() {
        let mut arguments = CallArguments::default();
        (0..CALL_ARGUMENTS_MAX).for_each(|at| arguments.add(&at.to_string(), "").unwrap());
        assert!(matches!(arguments.add("more", ""), Err(FunctionError::Argument { .. })));
    }
}
