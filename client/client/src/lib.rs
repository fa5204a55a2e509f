//! Files over objects: the public Rust API.
