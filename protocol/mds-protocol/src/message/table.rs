//! The macros that define a table of messages, and the encoding of their bodies.

macro_rules! messages {
    ($(#[$meta:meta])* pub enum $name:ident as $what:literal, table $table:ident {
        $($(#[$variant_meta:meta])* $code:literal => $variant:ident {
            $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)?
        }),* $(,)?
    }) => {
        $(#[$meta])*
        #[allow(missing_docs, reason = "docs/standards/mds describes each field")]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant { $($(#[$field_meta])* $field: $type),* }),*
        }

        /// Number and name of every row, for documents, metrics and coverage tests.
        pub const $table: &[(u16, &str)] = &[$(($code, stringify!($variant))),*];

        impl $name {
            /// Returns the operation number.
            #[must_use]
            pub const fn operation(&self) -> u16 {
                match self { $(Self::$variant { .. } => $code),* }
            }

            /// Returns the name of the operation.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => stringify!($variant)),* }
            }

            fn put_fields(&self, out: &mut WireWriter) {
                match self {
                    $(Self::$variant { $($field),* } => { $(Wire::put($field, out);)* let _ = &out; })*
                }
            }

            fn get_fields(operation: u16, input: &mut WireReader<'_>) -> Result<Self, WireError> {
                match operation {
                    $($code => Ok(Self::$variant { $($field: <$type as Wire>::get(input)?),* }),)*
                    code => Err(WireError::UnknownCode { what: $what, code: u32::from(code) }),
                }
            }
        }
    };
}

macro_rules! body {
    ($name:ident) => {
        impl $name {
            /// Returns the body of a frame: the body's header, then the fields.
            ///
            /// # Errors
            /// `TooLong` if it does not fit into a frame or a field is over its limit.
            pub fn encode(&self, id: u64) -> Result<Vec<u8>, WireError> {
                let mut out = WireWriter::new();
                id.put(&mut out);
                self.operation().put(&mut out);
                SCHEMA.put(&mut out);
                0u8.put(&mut out);
                self.put_fields(&mut out);
                out.finish(BODY_MAX)
            }

            /// Decodes a body.
            ///
            /// # Errors
            /// Any [`WireError`], with the request id if the body got that far, so that it can be
            /// answered.
            pub fn decode(body: &[u8]) -> Result<(u64, Self), (Option<u64>, WireError)> {
                let mut input = WireReader::new(body);
                let id = u64::get(&mut input).map_err(|error| (None, error))?;
                Self::decode_rest(input).map(|message| (id, message)).map_err(|error| (Some(id), error))
            }

            fn decode_rest(mut input: WireReader<'_>) -> Result<Self, WireError> {
                let operation = u16::get(&mut input)?;
                let schema = u8::get(&mut input)?;
                if schema < SCHEMA {
                    return Err(WireError::UnknownCode { what: "schema", code: u32::from(schema) });
                }
                if u8::get(&mut input)? != 0 {
                    return Err(WireError::Malformed("reserved byte"));
                }
                let message = Self::get_fields(operation, &mut input)?;
                if schema == SCHEMA {
                    input.finish()?;
                }
                Ok(message)
            }
        }
    };
}
