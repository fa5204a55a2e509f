//! JSON lines: one object in each line. Only the fields of the expression are decoded.

use std::borrow::Cow;
use std::fmt;

use sealstone_function_host::{FunctionFailure, RecordBlock, RecordFormat};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::evaluate::FieldValue;
use super::{FilterExpression, malformed};
use crate::grep::for_each_line;
use crate::search::{RecordSearch, SelectRecord};

/// Search for objects.
pub(super) struct JsonSearch {
    expression: FilterExpression,
    skip_invalid: bool,
    skipped: u64,
}

impl JsonSearch {
    pub(super) fn new(expression: FilterExpression, skip_invalid: bool) -> Self {
        Self { expression, skip_invalid, skipped: 0 }
    }
}

impl RecordSearch for JsonSearch {
    fn format(&self) -> RecordFormat {
        RecordFormat::Lines
    }

    fn search(&mut self, block: RecordBlock<'_>, select: SelectRecord<'_>) -> Result<(), FunctionFailure> {
        let paths: Vec<FieldPath<'_>> = self
            .expression
            .fields()
            .iter()
            .enumerate()
            .map(|(index, keys)| FieldPath { keys, index })
            .collect();
        let mut skipped = 0;
        for_each_line(block, |line| {
            if line.bytes.trim_ascii().is_empty() {
                return Ok(());
            }
            let mut fields = vec![FieldValue::Null; paths.len()];
            let mut json = serde_json::Deserializer::from_slice(line.bytes);
            let read = ObjectSeed { paths: &paths, fields: &mut fields }
                .deserialize(&mut json)
                .and_then(|()| json.end());
            match read {
                Ok(()) if self.expression.is_true(&fields) => select(line),
                Ok(()) => Ok(()),
                Err(_) if self.skip_invalid => {
                    skipped += 1;
                    Ok(())
                }
                Err(error) => Err(malformed(line.offset, &format!("invalid JSON object: {error}"))),
            }
        })?;
        self.skipped += skipped;
        Ok(())
    }

    fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// Keys that lead to a field from the current object.
#[derive(Clone, Copy, Debug)]
struct FieldPath<'e> {
    keys: &'e [String],
    index: usize,
}

/// Decodes an object and stores the fields that are requested. A repeated key replaces the value.
struct ObjectSeed<'p, 'f, 'de> {
    paths: &'p [FieldPath<'p>],
    fields: &'f mut [FieldValue<'de>],
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(KeySeed)? {
            let is_next = |path: &&FieldPath<'_>| path.keys.first().is_some_and(|first| *first == key);
            let mut matching = self.paths.iter().filter(is_next).copied().peekable();
            if matching.peek().is_none() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let (ends, deeper): (Vec<FieldPath<'_>>, Vec<FieldPath<'_>>) = matching
                .map(|path| FieldPath { keys: &path.keys[1..], ..path })
                .partition(|path| path.keys.is_empty());
            for path in &deeper {
                self.fields[path.index] = FieldValue::Null;
            }
            let value = map.next_value_seed(ValueSeed { paths: &deeper, fields: &mut *self.fields })?;
            for path in &ends {
                self.fields[path.index] = value.clone();
            }
        }
        Ok(())
    }
}

/// Decodes a key, without a copy unless it has escapes.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(value.to_owned()))
    }
}

/// Decodes any value; descends into an object for the fields within it.
struct ValueSeed<'p, 'f, 'de> {
    paths: &'p [FieldPath<'p>],
    fields: &'f mut [FieldValue<'de>],
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, '_, 'de> {
    type Value = FieldValue<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<FieldValue<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_, '_, 'de> {
    type Value = FieldValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<FieldValue<'de>, E> {
        Ok(FieldValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<FieldValue<'de>, E> {
        Ok(FieldValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<FieldValue<'de>, E> {
        Ok(FieldValue::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<FieldValue<'de>, E> {
        Ok(FieldValue::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<FieldValue<'de>, E> {
        Ok(FieldValue::Float(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<FieldValue<'de>, E> {
        Ok(FieldValue::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<FieldValue<'de>, E> {
        Ok(FieldValue::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<FieldValue<'de>, A::Error> {
        while sequence.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FieldValue::Composite)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FieldValue<'de>, A::Error> {
        ObjectSeed { paths: self.paths, fields: self.fields }.visit_map(map)?;
        Ok(FieldValue::Composite)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sealstone_function_host::{FunctionArguments, FunctionCall, FunctionErrno, MemoryHost};

    use super::*;
    use crate::filter::run_filter;

    fn filter(data: &[u8], expression: &str, skip: bool) -> Result<usize, FunctionFailure> {
        let mut host = MemoryHost::new(vec![data.to_vec()]);
        let skip = if skip { "true" } else { "false" };
        let pairs = [("format", "jsonl"), ("where", expression), ("skip-invalid", skip)];
        let bytes = FunctionArguments::encode(pairs).unwrap();
        FunctionCall::new(&mut host, "", &bytes, 1).run(run_filter)?;
        Ok(memchr::memchr_iter(b'\n', &host.result).count())
    }

    #[test]
    fn nested_field_is_selected_by_path() {
        let data =
            br#"{"status":503,"user":{"name":"a\u0041","id":18446744073709551615},"x":[1,{"status":1}]}
 {"status":"503","user":null}

{"status":503,"status":200,"user":{"name":"b"},"a.b":true}
"#;
        for (expression, count) in [
            ("status = 503", 1),
            ("status = '503'", 1),
            ("status = 200", 1),
            ("user.name = 'aA'", 1),
            ("user.id = 18446744073709551615", 1),
            ("user.id is null", 2),
            ("user is null", 1),
            ("user is not null and user.name in ('b', 'c')", 1),
            ("`a.b` = true", 1),
            ("x is not null and x.status is null", 1),
        ] {
            assert_eq!(filter(data, expression, false).unwrap(), count, "{expression}");
        }
    }

    #[test]
    fn invalid_line_is_refused_or_skipped() {
        let data = b"{\"a\":1}\nnope\n[1]\n{\"a\":1} 2\n{\"a\":1}\n";
        let failure = filter(data, "a = 1", false).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::BAD_DATA);
        assert!(failure.message.starts_with("record at offset 8: invalid JSON object"), "{failure}");
        assert_eq!(filter(data, "a = 1", true).unwrap(), 2);
    }

    #[test]
    fn deep_value_is_refused() {
        let path = |depth: usize| vec!["a"; depth].join(".") + " = 1";
        let nested = |depth: usize| r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth) + "\n";
        assert_eq!(filter(nested(100).as_bytes(), &path(100), false).unwrap(), 1);
        for depth in [128, 2000] {
            let failure = filter(nested(depth).as_bytes(), &path(depth), false).unwrap_err();
            assert_eq!(failure.errno, FunctionErrno::BAD_DATA);
            assert!(failure.message.contains("recursion limit"), "{failure}");
        }
    }

    /// A value that the expression does not read is skipped in constant stack.
    #[test]
    fn deep_unread_value_is_skipped() {
        let data = r#"{"a":"#.to_owned() + &"[".repeat(1_000_000) + &"]".repeat(1_000_000) + "}\n";
        assert_eq!(filter(data.as_bytes(), "b is null", false).unwrap(), 1);
        assert_eq!(filter(data.as_bytes(), "a is not null", false).unwrap(), 1);
    }

    proptest! {
        #[test]
        fn selected_objects_equal_decoded_objects(values in proptest::collection::vec(any::<i64>(), 0..20), limit in any::<i64>()) {
            let data: String = values.iter().map(|value| format!("{{\"x\":[],\"v\":{value}}}\n")).collect();
            let expected = values.iter().filter(|value| **value >= limit).count();
            prop_assert_eq!(filter(data.as_bytes(), &format!("v >= {limit}"), false).unwrap(), expected);
        }

        #[test]
        fn arbitrary_lines_never_panic(data in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = filter(&data, "a.b = 1 or a = 2", true);
        }
    }
}
