//! The subset of LDAP that a directory of users and groups, and a store of records, need.
//!
//! Does: encodes requests (bind with a name and password, StartTLS, search, add, replace, delete,
//! rename, unbind), decodes responses, parses an operator's filter.
//! Does not: use sockets or TLS, follow referrals.
//! Contract: no input causes a panic; every length is checked against its limit before anything is
//! stored. A filter value is encoded as bytes with a length ([`Filter::equal`]), never as text, so
//! it needs no escaping and cannot change the filter.
//! Truth: RFC 4511 (messages), RFC 4515 (filters as text), X.690 (BER, restricted to the definite
//! form by RFC 4511 §5.1).

#![no_std]

extern crate alloc;

mod ber;
mod change;
mod filter;
mod message;

pub use ber::{LdapError, MESSAGE_BYTES_MAX, message_length, message_length_up_to};
pub use change::{Values, add_request, delete_request, rename_request, replace_request};
pub use filter::{ATTRIBUTE_BYTES_MAX, Attribute, FILTER_BYTES_MAX, FILTER_DEPTH_MAX, Filter, FilterError};
pub use message::{
    LdapResult, Message, MessageBody, Search, SearchEntry, SearchScope, VALUES_MAX, bind_request,
    search_request, start_tls_request, unbind_request,
};
