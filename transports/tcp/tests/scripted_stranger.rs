//! A stranger that plays the scripts of seeds (see `blockwire_conformance::script`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod scripted;

#[test]
fn fault_b43_no_stranger_costs_more_than_its_connection() {
    blockwire_conformance::script::play_seeds(scripted::play);
}
