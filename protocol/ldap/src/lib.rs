//! LDAP, as much of it as a directory of users and groups and a store of records take.
//!
//! Does: requests (bind with a name and password, StartTLS, search, add, replace, delete, rename, unbind) into bytes,
//! responses out of bytes, an operator's filter out of its text. Does not: sockets, TLS, follow referrals.
//! Contract: nothing here panics on any input; every length is compared with its limit before anything is kept. A value
//! goes into a filter as bytes with a length ([`Filter::equal`]), never as text: there is nothing that it could close or
//! open, and nothing to escape.
//! Truth: RFC 4511 (messages), RFC 4515 (filters as text), X.690 (BER, of which RFC 4511 §5.1 leaves the definite form).

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
    Body, Entry, Message, Outcome, Scope, Search, VALUES_MAX, bind_request, search_request,
    start_tls_request, unbind_request,
};
