//! The fuzz bodies of the engine, over their corpus and mutations of it: the same functions that `fuzz/`
//! gives to libFuzzer. See `blockwire_conformance::mutate`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod frames;
mod hello;
mod liar;
mod pair;
mod seeds;
#[path = "../session/world.rs"]
mod world;

use std::path::{Path, PathBuf};

use blockwire_conformance::mutate::{check_seeds, play_corpus};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target)
}

#[test]
fn frames_are_read_or_refused() {
    check_seeds(corpus("frames"), &seeds::frames());
    play_corpus(corpus("frames"), frames::play);
}

#[test]
fn hellos_are_taken_or_refused() {
    check_seeds(corpus("hello"), &seeds::hellos());
    play_corpus(corpus("hello"), hello::play);
}

#[test]
fn no_lie_breaks_a_session() {
    check_seeds(corpus("session_liar"), &seeds::scripts());
    play_corpus(corpus("session_liar"), |script| {
        liar::play(script);
    });
}

/// A script that ends at its first step would find nothing.
#[test]
fn the_scripts_of_a_liar_come_as_far_as_they_say() {
    let reached =
        |taken, adopted, given, recalled| liar::Reached { taken, adopted, given, recalled };
    let scripts: std::collections::HashMap<_, _> = seeds::scripts().into_iter().collect();
    for (name, expected) in [
        ("hello", reached(0, 0, 0, 0)),
        ("offered_and_pulled", reached(1, 0, 0, 0)),
        ("offered_and_adopted", reached(1, 1, 0, 0)),
        ("offered_and_pushed", reached(1, 0, 0, 0)),
        ("offers_and_lends", reached(0, 0, 1, 1)),
        ("offers_and_streams", reached(0, 0, 1, 0)),
        ("offers_in_pieces", reached(0, 0, 1, 0)),
        ("offered_in_pieces", reached(1, 0, 0, 0)),
    ] {
        assert_eq!(liar::play(&scripts[name]), expected, "{name}");
    }
}

#[cfg_attr(miri, ignore = "the rounds in which all comes to its end take it minutes")]
#[test]
fn no_order_of_steps_breaks_a_pair_of_sessions() {
    check_seeds(corpus("session_pair"), &seeds::steps());
    play_corpus(corpus("session_pair"), pair::play);
}
