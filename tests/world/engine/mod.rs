//! Endpoints that hand blocks to one another.
//!
//! Every host has a pool, listens, and dials whoever it has something for. A sequence's bytes are a
//! function of its handoff and of the token, so that a receiver knows what it must read.

mod content;
mod host;
mod receive;
mod send;
mod world;

use blockwire_sim::Trace;
use fastrand::Rng;

use crate::oracle::Report;
use crate::runs::World;
use crate::scenario::{Answer, Hog, Offer, Scenario, Share, What, draw_events};

/// The world of endpoints.
pub const ENGINE: World = World { name: "engine", draw: scenario, run, happens: HAPPENS };

/// What comes of many runs.
const HAPPENS: &[&str] = &[
    "ended: in order",
    "ended: link",
    "ended: silent",
    "ended: violated",
    "event: offer",
    "event: recall",
    "lease lost",
    "lease unread",
    "not taken",
    "not taken: digest",
    "not taken: transport",
    "not taken: withdrawn",
    "offer committed",
    "offer failed",
    "offer given up",
    "operation refused",
    "read adopted",
    "read copied",
    "sent ahead",
    "sent whole",
];

/// Tokens of a block.
const BLOCK: usize = 4;

/// Draws a scenario.
pub fn scenario(seed: u64) -> Scenario {
    let mut random = Rng::with_seed(seed);
    let hosts = random.usize(2..=4);
    // Some runs are of work alone, some of little else than faults.
    let faults = [0, 5, 20, 50][random.usize(0..4)];
    let pace = [4, 20, 60][random.usize(0..3)];
    draw_events(seed, random, Share { hosts, faults, pace }, draw_strain, |random, id| {
        What::Offer(draw_offer(random, hosts, id))
    })
}

fn draw_strain(random: &mut Rng, hosts: usize) -> What {
    let host = random.usize(0..hosts);
    if random.u8(0..4) == 0 {
        return What::Recall(host);
    }
    What::Hog(Hog { host, blocks: random.usize(1..12), hold: random.u64(1..200) })
}

fn draw_offer(random: &mut Rng, hosts: usize, id: u32) -> Offer {
    let from = random.usize(0..hosts);
    let to = (from + random.usize(1..hosts)) % hosts;
    let answer = match random.u8(0..20) {
        0..8 => Answer::Copy,
        8..14 => Answer::Adopt,
        14..16 => Answer::From(random.usize(1..4)),
        16..18 => Answer::Drop,
        _ => Answer::Decline,
    };
    // Some leave at any step. The sender waits for as long as it takes, or for as long as most work takes.
    let patience = |random: &mut Rng, most| match random.u8(0..4) {
        0 => random.u64(0..40),
        1 => most,
        _ => 400,
    };
    Offer {
        id,
        from,
        to,
        tokens: random.usize(1..=6 * BLOCK),
        answer,
        patience: patience(random, 100_000),
        endurance: patience(random, 400),
        hold: if random.bool() { 0 } else { random.u64(0..100) },
    }
}

/// Runs a scenario.
pub fn run(scenario: &Scenario, trace: Trace) -> Report {
    world::run(scenario, trace)
}
