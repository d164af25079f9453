//! The scripts of `transports/tcp/tests/scripted`, by a fuzzer that looks for new paths.
#![no_main]

#[path = "../transports/tcp/tests/common/mod.rs"]
mod common;
#[path = "../transports/tcp/tests/scripted/mod.rs"]
mod scripted;

libfuzzer_sys::fuzz_target!(
    // Rust's own `main` does it, but libFuzzer brings another: a peer that is gone is an error, not an end.
    init: {
        // SAFETY: no handler is installed, the signal is ignored.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    },
    |script: &[u8]| scripted::play(script)
);
