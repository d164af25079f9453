//! Frames of the wire.
#![no_main]

#[path = "../src/engine/tests/fuzz/frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| frames::play(bytes));
