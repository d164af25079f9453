//! What nodes say to each other.
#![no_main]

#[path = "../src/serving/tests/fuzz/frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| frames::play(bytes));
