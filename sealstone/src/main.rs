//! sealstone

fn main() {}
