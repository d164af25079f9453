//! The scripts of `transports/shm/tests/liar`, by a fuzzer that looks for new paths.
#![no_main]

#[path = "../transports/shm/tests/liar/mod.rs"]
mod liar;

libfuzzer_sys::fuzz_target!(|script: &[u8]| liar::play(script));
