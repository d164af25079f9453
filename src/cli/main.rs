//! The `blockwire` binary.
fn main() {}
