//! blockwire-benches.
