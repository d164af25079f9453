//! T9, and a run under load: what do users wait for when prefill and decode are two processes, and what when one does
//! everything?
//!
//! ```text
//! cargo bench -p blockwire-cli --bench serving
//! ```
//! Real `blockwire serve` processes with SmolLM2-135M; prompts of random token ids, so that the prefix cache finds
//! nothing.
//!
//! *Alone*: one request at a time, the deployments in turns; time to the first token of prompts of 512 and 1,700 tokens,
//! each node with one thread. The target: with a handoff over shared memory at most 1 % and 2 ms more than the single
//! node's.
//!
//! *Under load*: requests that come at random (a Poisson process, the same one for each deployment), prompts of 64 to 768
//! tokens and answers of 16 to 64: time to the first token and between tokens, as users see them. Each deployment has two
//! threads: the single node both, or each role one; at last with a router that hands over where that pays. `BLOCKWIRE_LOAD_RATE` sets the requests a second,
//! `BLOCKWIRE_LOAD_REQUESTS` how many. One run has one seed; repeat it for the spread.

mod client;
mod deployment;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use blockwire::clock;
use blockwire_benches::{Samples, default_model, print_ratio, runs};
use client::{Seen, ask};
use deployment::{Deployment, Wire};
use fastrand::Rng;

/// Tokens of the prompts that are asked alone.
const PROMPTS: [usize; 2] = [512, 1700];
/// Token ids are below this, above the special ones: of SmolLM2's vocabulary.
const IDS: std::ops::Range<u32> = 100..49_000;
/// Every prompt is handed over.
const ALWAYS: &str = "always";

fn main() {
    let model = default_model();
    alone(&model);
    under_load(&model);
}

fn prompt(rng: &mut Rng, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|_| rng.u32(IDS)).collect()
}

fn alone(model: &std::path::Path) {
    let wires = [Wire::None, Wire::Shm, Wire::Tcp];
    let deployments = wires.map(|wire| Deployment::start(model, wire, 1, ALWAYS));
    let mut rng = Rng::with_seed(1);
    println!("time to the first token, alone, ms; {} rounds", runs());
    for tokens in PROMPTS {
        let mut figures = wires.map(|_| Samples::default());
        for round in 0..=runs() {
            for (deployment, figures) in deployments.iter().zip(&mut figures) {
                let seen = ask(deployment.http(), &prompt(&mut rng, tokens), 4);
                // The first round warms up.
                if round > 0 {
                    figures.push(seen.first_token.as_secs_f64() * 1e3);
                }
            }
        }
        let [single, shm, tcp] = figures;
        for (wire, figure) in [("shm", &shm), ("tcp", &tcp)] {
            print_ratio(&format!("{tokens} tokens, handoff over {wire} / single"), &single, figure);
            let more = figure.median() - single.median();
            let allowed = 0.01 * single.median() + 2.0;
            println!("  {more:+.2} ms more (allowed over shm: {allowed:.2})");
        }
    }
}

/// A request of the load.
struct Planned {
    at: Duration,
    prompt: Vec<u32>,
    answer: u32,
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The same requests at the same moments for every deployment.
fn plan(rate: f64, requests: usize) -> Vec<Planned> {
    let mut rng = Rng::with_seed(setting("BLOCKWIRE_LOAD_SEED", 1));
    let mut at = 0.0;
    let mut planned = Vec::new();
    for _ in 0..requests {
        // Gaps of a Poisson process.
        at += -(1.0 - rng.f64()).ln() / rate;
        let tokens = rng.usize(64..=768);
        planned.push(Planned {
            at: Duration::from_secs_f64(at),
            prompt: prompt(&mut rng, tokens),
            answer: rng.u32(16..=64),
        });
    }
    planned
}

fn under_load(model: &std::path::Path) {
    let rate = setting("BLOCKWIRE_LOAD_RATE", 1.0);
    let requests = setting("BLOCKWIRE_LOAD_REQUESTS", 60);
    let planned = plan(rate, requests);
    println!("\nunder load: {requests} requests, {rate} a second; ms");
    println!("| | first token p50 | p90 | p99 | between tokens p50 | p90 | p99 | tokens/s |");
    println!("|---|---|---|---|---|---|---|---|");
    for (name, wire, threads, handoff) in [
        ("one process, two threads", Wire::None, 2, ALWAYS),
        ("prefill and decode over shm, a thread each", Wire::Shm, 1, ALWAYS),
        ("prefill and decode over tcp, a thread each", Wire::Tcp, 1, ALWAYS),
        ("the same over shm, handed over where that pays", Wire::Shm, 1, "auto"),
        ("the same over tcp, handed over where that pays", Wire::Tcp, 1, "auto"),
    ] {
        let deployment = Deployment::start(model, wire, threads, handoff);
        println!("| {name} | {} |", load(deployment.http(), &planned));
    }
}

fn load(http: &str, planned: &[Planned]) -> String {
    let seen: Mutex<Vec<Seen>> = Mutex::default();
    let begin = clock::now();
    thread::scope(|scope| {
        for request in planned {
            let wait = request.at.saturating_sub(clock::now() - begin);
            thread::sleep(wait);
            scope.spawn(|| {
                let answer = ask(http, &request.prompt, request.answer);
                seen.lock().expect("no caller failed").push(answer);
            });
        }
    });
    let elapsed = clock::now() - begin;
    let seen = seen.into_inner().expect("no caller failed");
    let first: Samples = seen.iter().map(|seen| seen.first_token.as_secs_f64() * 1e3).collect();
    let between: Samples =
        seen.iter().flat_map(|seen| &seen.between).map(|gap| gap.as_secs_f64() * 1e3).collect();
    let tokens: usize = seen.iter().map(|seen| seen.between.len() + 1).sum();
    let figures = [&first, &between].map(|samples| {
        [0.5, 0.9, 0.99].map(|share| format!("{:.0}", samples.quantile(share))).join(" | ")
    });
    let rate = tokens as f64 / elapsed.as_secs_f64();
    format!("{} | {rate:.1}", figures.join(" | "))
}
