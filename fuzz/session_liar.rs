//! A session against a peer that lies.
#![no_main]

#[path = "../src/engine/tests/fuzz/liar/mod.rs"]
mod liar;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    liar::play(bytes);
});
