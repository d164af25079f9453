//! Whole clusters: routers, prefill and decode nodes, with the real role loops and the real scheduler, and a
//! model whose tokens can be foretold.
//!
//! Hosts take turns in their roles: number 0 is a router, 1 a prefill node, 2 a decode node, 3 a router
//! again, and so on.

mod client;
mod model;
mod node;
mod world;

use blockwire_serving::protocol::NodeRole;
use blockwire_sim::Trace;
use fastrand::Rng;

use crate::oracle::Report;
use crate::runs::World;
use crate::scenario::{Ask, Hog, Scenario, Share, What, draw_events};

/// The world of clusters.
pub const SERVING: World = World { name: "serving", draw: scenario, run, happens: HAPPENS };

/// What comes of many runs.
const HAPPENS: &[&str] = &[
    "answered",
    "client left",
    "event: ask",
    "event: slow",
    "failed: busy",
    "failed: deadline",
    "failed: deadline, say the nodes",
    "failed: no node",
    "failed: node",
    "gone on elsewhere",
    "served by a decode node alone",
    "tried again",
];

/// Tokens of a block.
const BLOCK: usize = 4;

/// What a host is.
fn role(number: usize) -> NodeRole {
    [NodeRole::Router, NodeRole::Prefill, NodeRole::Decode][number % 3]
}

/// Draws a scenario.
pub fn scenario(seed: u64) -> Scenario {
    let mut random = Rng::with_seed(seed);
    let hosts = random.usize(3..=6);
    let faults = [0, 5, 15, 40][random.usize(0..4)];
    let pace = [10, 30, 100][random.usize(0..3)];
    draw_events(seed, random, Share { hosts, faults, pace }, draw_strain, |random, id| {
        What::Ask(draw_ask(random, hosts, id))
    })
}

fn draw_strain(random: &mut Rng, hosts: usize) -> What {
    let host = random.usize(0..hosts);
    if random.bool() {
        return What::Slow(host, random.u64(0..40));
    }
    What::Hog(Hog { host, blocks: random.usize(1..20), hold: random.u64(1..300) })
}

fn draw_ask(random: &mut Rng, hosts: usize, id: u32) -> Ask {
    let sometimes = |random: &mut Rng, most| {
        if random.u8(0..8) == 0 { Some(random.u64(0..most)) } else { None }
    };
    Ask {
        id,
        router: random.usize(0..hosts.div_ceil(3)) * 3,
        prompt: random.usize(1..=6 * BLOCK),
        common: [0, 0, BLOCK, 2 * BLOCK + 1, 4 * BLOCK][random.usize(0..5)],
        max_tokens: random.u32(1..=10),
        patience: sometimes(random, 200),
        deadline: sometimes(random, 1000),
    }
}

/// Runs a scenario.
pub fn run(scenario: &Scenario, trace: Trace) -> Report {
    world::run(scenario, trace)
}
