//! Search filters: parsed from an operator's text, encoded as BER.
//!
//! Truth: RFC 4511 §4.5.1.7 (as bytes), RFC 4515 (as text).

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::ber::{BerWriter, OCTETS, SEQUENCE};

/// Maximum bytes of a filter as text.
pub const FILTER_BYTES_MAX: usize = 4096;
/// Maximum nesting depth of filters.
pub const FILTER_DEPTH_MAX: usize = 16;
/// Maximum bytes of an attribute name.
pub const ATTRIBUTE_BYTES_MAX: usize = 128;

/// Error of a filter that does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct FilterError {
    /// Description of the error.
    pub what: &'static str,
    /// Byte offset of the error.
    pub at: usize,
}

/// Name of an attribute: letters, digits, hyphens, dots (an OID), semicolons (options).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute(String);

impl Attribute {
    /// Validates a name.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn new(name: &str) -> Result<Self, FilterError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-.;".contains(&byte);
        if name.len() > ATTRIBUTE_BYTES_MAX {
            return Err(FilterError { what: "attribute name too long", at: ATTRIBUTE_BYTES_MAX });
        }
        if !name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) {
            return Err(FilterError { what: "invalid attribute name", at: 0 });
        }
        match name.bytes().position(|byte| !fits(byte)) {
            Some(at) => Err(FilterError { what: "invalid attribute name", at }),
            None => Ok(Self(String::from(name))),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Condition on an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of these.
    And(Vec<Filter>),
    /// One of these.
    Or(Vec<Filter>),
    /// Not this.
    Not(Box<Filter>),
    /// The attribute has this value.
    Equal(Attribute, Vec<u8>),
    /// The attribute has a value with these parts in this order.
    Substrings {
        /// Name of the attribute.
        attribute: Attribute,
        /// Start of the value.
        initial: Option<Vec<u8>>,
        /// Parts in the middle.
        any: Vec<Vec<u8>>,
        /// End of the value.
        last: Option<Vec<u8>>,
    },
    /// The attribute has a value that is greater or equal.
    AtLeast(Attribute, Vec<u8>),
    /// The attribute has a value that is less or equal.
    AtMost(Attribute, Vec<u8>),
    /// The attribute has any value.
    Present(Attribute),
    /// The attribute has approximately this value.
    Approximate(Attribute, Vec<u8>),
    /// The attribute has a value that matches by a rule.
    Extensible {
        /// Matching rule; `None` for the attribute's own.
        rule: Option<Attribute>,
        /// Attribute; `None` for all to which the rule applies.
        attribute: Option<Attribute>,
        /// Whether attributes of the entry's DN match too.
        names: bool,
        /// Value to match.
        value: Vec<u8>,
    },
}

impl Filter {
    /// Matches a value of any bytes, which needs no escaping.
    #[must_use]
    pub fn equal(attribute: &Attribute, value: impl AsRef<[u8]>) -> Self {
        Self::Equal(attribute.clone(), value.as_ref().to_vec())
    }

    /// Parses a filter such as `(&(objectClass=person)(!(employeeType=guest)))`.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        if text.len() > FILTER_BYTES_MAX {
            return Err(FilterError { what: "filter too long", at: FILTER_BYTES_MAX });
        }
        let mut parser = FilterParser { text: text.as_bytes(), at: 0 };
        let filter = parser.filter(0)?;
        if parser.at == text.len() { Ok(filter) } else { Err(parser.wrong("text after the filter")) }
    }

    pub(crate) fn put(&self, out: &mut BerWriter) {
        let pair = |out: &mut BerWriter, tag, attribute: &Attribute, value: &[u8]| {
            out.put_all(tag, |out| {
                out.put(OCTETS, attribute.0.as_bytes());
                out.put(OCTETS, value);
            });
        };
        match self {
            Self::And(all) => out.put_all(0xA0, |out| all.iter().for_each(|one| one.put(out))),
            Self::Or(all) => out.put_all(0xA1, |out| all.iter().for_each(|one| one.put(out))),
            Self::Not(one) => out.put_all(0xA2, |out| one.put(out)),
            Self::Equal(attribute, value) => pair(out, 0xA3, attribute, value),
            Self::Substrings { attribute, initial, any, last } => out.put_all(0xA4, |out| {
                out.put(OCTETS, attribute.0.as_bytes());
                out.put_all(SEQUENCE, |out| {
                    initial.iter().for_each(|part| out.put(0x80, part));
                    any.iter().for_each(|part| out.put(0x81, part));
                    last.iter().for_each(|part| out.put(0x82, part));
                });
            }),
            Self::AtLeast(attribute, value) => pair(out, 0xA5, attribute, value),
            Self::AtMost(attribute, value) => pair(out, 0xA6, attribute, value),
            Self::Present(attribute) => out.put(0x87, attribute.0.as_bytes()),
            Self::Approximate(attribute, value) => pair(out, 0xA8, attribute, value),
            Self::Extensible { rule, attribute, names, value } => out.put_all(0xA9, |out| {
                rule.iter().for_each(|rule| out.put(0x81, rule.0.as_bytes()));
                attribute.iter().for_each(|attribute| out.put(0x82, attribute.0.as_bytes()));
                out.put(0x83, value);
                if *names {
                    out.put(0x84, &[0xFF]);
                }
            }),
        }
    }
}

struct FilterParser<'a> {
    text: &'a [u8],
    at: usize,
}

impl FilterParser<'_> {
    const fn wrong(&self, what: &'static str) -> FilterError {
        FilterError { what, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_present = self.peek() == Some(byte);
        self.at += usize::from(is_present);
        is_present
    }

    fn need(&mut self, byte: u8, what: &'static str) -> Result<(), FilterError> {
        if self.take(byte) { Ok(()) } else { Err(self.wrong(what)) }
    }

    fn filter(&mut self, depth: usize) -> Result<Filter, FilterError> {
        if depth >= FILTER_DEPTH_MAX {
            return Err(self.wrong("filter nested too deeply"));
        }
        self.need(b'(', "opening parenthesis expected")?;
        let filter = match self.peek() {
            Some(b'&') => Filter::And(self.list(depth)?),
            Some(b'|') => Filter::Or(self.list(depth)?),
            Some(b'!') => {
                self.at += 1;
                Filter::Not(Box::new(self.filter(depth + 1)?))
            }
            _ => self.item()?,
        };
        self.need(b')', "closing parenthesis expected")?;
        Ok(filter)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Filter>, FilterError> {
        self.at += 1;
        let mut all = Vec::new();
        while self.peek() == Some(b'(') {
            all.push(self.filter(depth + 1)?);
        }
        // RFC 4526 allows an empty list, but here it is most likely a mistake.
        if all.is_empty() { Err(self.wrong("empty filter list")) } else { Ok(all) }
    }

    fn name(&mut self) -> Result<Option<Attribute>, FilterError> {
        let begin = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"-.;".contains(&byte)) {
            self.at += 1;
        }
        if begin == self.at {
            return Ok(None);
        }
        // These bytes are ASCII.
        let name = core::str::from_utf8(&self.text[begin..self.at]).unwrap_or_default();
        Attribute::new(name).map(Some).map_err(|error| FilterError { at: begin + error.at, ..error })
    }

    fn item(&mut self) -> Result<Filter, FilterError> {
        let name = self.name()?;
        if self.peek() == Some(b':') {
            return self.extensible(name);
        }
        let attribute = name.ok_or(self.wrong("invalid attribute name"))?;
        let kind = self.peek();
        if let Some(b'~' | b'>' | b'<') = kind {
            self.at += 1;
            self.need(b'=', "equals sign expected")?;
            let value = self.value()?;
            return Ok(match kind {
                Some(b'~') => Filter::Approximate(attribute, value),
                Some(b'>') => Filter::AtLeast(attribute, value),
                _ => Filter::AtMost(attribute, value),
            });
        }
        self.need(b'=', "equals sign expected")?;
        let mut parts = Vec::from([self.value()?]);
        while self.take(b'*') {
            parts.push(self.value()?);
        }
        if parts.len() == 1 {
            return Ok(Filter::Equal(attribute, parts.swap_remove(0)));
        }
        if parts.len() == 2 && parts.iter().all(Vec::is_empty) {
            return Ok(Filter::Present(attribute));
        }
        let full = |part: Vec<u8>| Some(part).filter(|part| !part.is_empty());
        let last = parts.pop().and_then(full);
        let initial = full(parts.remove(0));
        if parts.iter().any(Vec::is_empty) {
            return Err(self.wrong("consecutive asterisks"));
        }
        Ok(Filter::Substrings { attribute, initial, any: parts, last })
    }

    /// Parses `attr[:dn][:rule]:=value` or `[:dn]:rule:=value`.
    fn extensible(&mut self, attribute: Option<Attribute>) -> Result<Filter, FilterError> {
        let (mut names, mut rule) = (false, None);
        while !self.text[self.at..].starts_with(b":=") {
            self.need(b':', ":= expected")?;
            let part = self.name()?.ok_or(self.wrong("rule name expected"))?;
            if !names && rule.is_none() && part.0.eq_ignore_ascii_case("dn") {
                names = true;
            } else if rule.is_none() {
                rule = Some(part);
            } else {
                return Err(self.wrong("two rules"));
            }
        }
        self.at += 2;
        if attribute.is_none() && rule.is_none() {
            return Err(self.wrong("neither attribute nor rule"));
        }
        Ok(Filter::Extensible { rule, attribute, names, value: self.value()? })
    }

    /// Parses a value up to an asterisk or parenthesis.
    fn value(&mut self) -> Result<Vec<u8>, FilterError> {
        let mut value = Vec::new();
        while let Some(byte) = self.peek() {
            match byte {
                b'*' | b'(' | b')' => break,
                0 => return Err(self.wrong("NUL character; write \\00")),
                b'\\' => {
                    let digit = |at: usize| char::from(*self.text.get(at)?).to_digit(16);
                    let (Some(high), Some(low)) = (digit(self.at + 1), digit(self.at + 2)) else {
                        return Err(self.wrong("two hexadecimal digits expected after a backslash"));
                    };
                    value.push((high << 4 | low) as u8);
                    self.at += 3;
                }
                byte => {
                    value.push(byte);
                    self.at += 1;
                }
            }
        }
        Ok(value)
    }
}

impl fmt::Display for Filter {
    /// Formats as in RFC 4515; parsing the result gives the same filter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all =
            |f: &mut fmt::Formatter<'_>, all: &[Self]| all.iter().try_for_each(|one| write!(f, "{one}"));
        f.write_str("(")?;
        match self {
            Self::And(list) => {
                f.write_str("&")?;
                all(f, list)?;
            }
            Self::Or(list) => {
                f.write_str("|")?;
                all(f, list)?;
            }
            Self::Not(one) => write!(f, "!{one}")?,
            Self::Equal(attribute, value) => write!(f, "{}={}", attribute.0, EscapedValue(value))?,
            Self::Substrings { attribute, initial, any, last } => {
                let part = |part: &Option<Vec<u8>>| part.clone().unwrap_or_default();
                write!(f, "{}={}*", attribute.0, EscapedValue(&part(initial)))?;
                any.iter().try_for_each(|part| write!(f, "{}*", EscapedValue(part)))?;
                write!(f, "{}", EscapedValue(&part(last)))?;
            }
            Self::AtLeast(attribute, value) => write!(f, "{}>={}", attribute.0, EscapedValue(value))?,
            Self::AtMost(attribute, value) => write!(f, "{}<={}", attribute.0, EscapedValue(value))?,
            Self::Present(attribute) => write!(f, "{}=*", attribute.0)?,
            Self::Approximate(attribute, value) => write!(f, "{}~={}", attribute.0, EscapedValue(value))?,
            Self::Extensible { rule, attribute, names, value } => {
                f.write_str(attribute.as_ref().map_or("", Attribute::as_str))?;
                f.write_str(if *names { ":dn" } else { "" })?;
                if let Some(rule) = rule {
                    write!(f, ":{}", rule.0)?;
                }
                write!(f, ":={}", EscapedValue(value))?;
            }
        }
        f.write_str(")")
    }
}

/// A value as text: special and non-printing characters are escaped.
struct EscapedValue<'a>(&'a [u8]);

impl fmt::Display for EscapedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| {
            if (b' '..=b'~').contains(byte) && !b"*()\\".contains(byte) {
                write!(f, "{}", char::from(*byte))
            } else {
                write!(f, "\\{byte:02x}")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn bytes(filter: &Filter) -> Vec<u8> {
        let mut out = BerWriter::default();
        filter.put(&mut out);
        out.finish().to_vec()
    }

    fn parsed(text: &str) -> Filter {
        Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn filters_encode_as_in_rfc_4511() {
        assert_eq!(bytes(&parsed("(a=b)")), b"\xA3\x06\x04\x01a\x04\x01b");
        assert_eq!(bytes(&parsed("(a=*)")), b"\x87\x01a");
        assert_eq!(bytes(&parsed("(!(a=*))")), b"\xA2\x03\x87\x01a");
        assert_eq!(bytes(&parsed("(&(a=*)(b=*))")), b"\xA0\x06\x87\x01a\x87\x01b");
        assert_eq!(bytes(&parsed("(|(a=*))")), b"\xA1\x03\x87\x01a");
        assert_eq!(bytes(&parsed("(a>=b)")), b"\xA5\x06\x04\x01a\x04\x01b");
        assert_eq!(bytes(&parsed("(a<=b)")), b"\xA6\x06\x04\x01a\x04\x01b");
        assert_eq!(bytes(&parsed("(a~=b)")), b"\xA8\x06\x04\x01a\x04\x01b");
        assert_eq!(
            bytes(&parsed("(a=i*m*n*l)")),
            b"\xA4\x11\x04\x01a\x30\x0C\x80\x01i\x81\x01m\x81\x01n\x82\x01l"
        );
        assert_eq!(bytes(&parsed("(a=*m*)")), b"\xA4\x08\x04\x01a\x30\x03\x81\x01m");
        assert_eq!(
            bytes(&parsed("(userAccountControl:1.2.840.113556.1.4.803:=2)")),
            b"\xA9\x2F\x81\x161.2.840.113556.1.4.803\x82\x12userAccountControl\x83\x012"
        );
        assert_eq!(bytes(&parsed("(cn:dn:=x)")), b"\xA9\x0A\x82\x02cn\x83\x01x\x84\x01\xFF");
        assert_eq!(bytes(&parsed(r"(a=\2a\28\29\5c\00)")), b"\xA3\x0A\x04\x01a\x04\x05*()\\\x00");
    }

    #[test]
    fn filter_values_are_not_interpreted() {
        let uid = Attribute::new("uid").unwrap();
        for name in ["*", "*)(uid=*", "erika)(|(uid=*", "\\2a", "\0", ""] {
            let filter = Filter::equal(&uid, name);
            let head = [0xA3, 7 + name.len() as u8, 4, 3, b'u', b'i', b'd', 4, name.len() as u8];
            assert_eq!(bytes(&filter), [&head, name.as_bytes()].concat(), "{name}");
            assert_eq!(parsed(&filter.to_string()), filter, "as text it stays one value too");
        }
    }

    #[test]
    fn invalid_filters_report_position_and_cause() {
        for (text, what, at) in [
            ("", "opening parenthesis expected", 0),
            ("objectClass=person", "opening parenthesis expected", 0),
            ("(a=b", "closing parenthesis expected", 4),
            ("(a=b)(c=d)", "text after the filter", 5),
            ("(|(a=b)", "closing parenthesis expected", 7),
            ("(&)", "empty filter list", 2),
            ("(=b)", "invalid attribute name", 1),
            ("(a b=c)", "equals sign expected", 2),
            ("(a=(b))", "closing parenthesis expected", 3),
            ("(a=\\2)", "two hexadecimal digits expected after a backslash", 3),
            ("(a=b**c)", "consecutive asterisks", 7),
            ("(:=x)", "neither attribute nor rule", 3),
            ("(a:dn:r:s:=x)", "two rules", 9),
            ("(a=\0)", "NUL character; write \\00", 3),
        ] {
            assert_eq!(Filter::parse(text), Err(FilterError { what, at }), "{text}");
        }
    }

    #[test]
    fn filter_limits_are_exact() {
        let nested = |depth: usize| format!("{}(a=b){}", "(!".repeat(depth - 1), ")".repeat(depth - 1));
        assert!(Filter::parse(&nested(FILTER_DEPTH_MAX)).is_ok());
        let error = Filter::parse(&nested(FILTER_DEPTH_MAX + 1)).unwrap_err();
        assert_eq!(error.what, "filter nested too deeply");
        let long = |length: usize| format!("(a={})", "b".repeat(length - 4));
        assert!(Filter::parse(&long(FILTER_BYTES_MAX)).is_ok());
        assert_eq!(Filter::parse(&long(FILTER_BYTES_MAX + 1)).unwrap_err().what, "filter too long");
        assert!(Attribute::new(&"a".repeat(ATTRIBUTE_BYTES_MAX)).is_ok());
        assert!(Attribute::new(&"a".repeat(ATTRIBUTE_BYTES_MAX + 1)).is_err());
        for name in ["", "-a", "u id", "uid=*)(", "ü"] {
            assert!(Attribute::new(name).is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_fails(text in "[(&|!)a-c=*:\\\\0-9<>~ ]{0,60}") {
            if let Ok(filter) = Filter::parse(&text) {
                prop_assert_eq!(Filter::parse(&filter.to_string()), Ok(filter));
            }
        }
    }
}
