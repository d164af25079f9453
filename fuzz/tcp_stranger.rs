//! The scripts of `transports/tcp/tests/scripted`, by a fuzzer that looks for new paths.
#![no_main]

#[path = "../transports/tcp/tests/common/mod.rs"]
mod common;
#[path = "../transports/tcp/tests/scripted/mod.rs"]
mod scripted;

libfuzzer_sys::fuzz_target!(|script: &[u8]| scripted::play(script));
