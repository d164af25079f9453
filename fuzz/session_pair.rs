//! Two sessions and a link that is slow, breaks off and dies.
#![no_main]

#[path = "../src/engine/tests/fuzz/pair.rs"]
mod pair;
#[path = "../src/engine/tests/session/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pair::play(bytes));
