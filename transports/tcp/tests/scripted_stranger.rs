//! A stranger that plays scripts, by seeds and by saved scripts. `BLOCKWIRE_FUZZ_SECONDS` says for how long
//! new seeds are tried, `BLOCKWIRE_FUZZ_SEED` names one seed to be played alone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod scripted;

use std::time::Duration;

use blockwire::clock;
use scripted::{Random, play};

/// Long enough for some hundred scripts.
const SECONDS: u64 = 5;

/// What a variable of the environment says, if it is there.
fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Names the seed whose script fails.
struct Playing(u64);

impl Drop for Playing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay this with BLOCKWIRE_FUZZ_SEED={}", self.0);
        }
    }
}

fn play_seed(seed: u64) {
    let playing = Playing(seed);
    play(&Random::new(seed).script());
    drop(playing);
}

#[test]
fn no_stranger_costs_more_than_its_connection() {
    if let Some(seed) = number_of("BLOCKWIRE_FUZZ_SEED") {
        return play_seed(seed);
    }
    let seconds = number_of("BLOCKWIRE_FUZZ_SECONDS");
    // Short runs play the same scripts each time, long ones others.
    let first = if seconds.is_some() { u64::from(std::process::id()) << 32 } else { 0 };
    let end = clock::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let mut seeds = 0;
    while clock::now() < end {
        play_seed(first + seeds);
        seeds += 1;
    }
    eprintln!("{seeds} scripts from seed {first}");
}
