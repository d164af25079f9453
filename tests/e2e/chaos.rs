//! Everything at once, for as long as one likes: prompts of every kind, callers that leave, nodes that are killed or
//! told to stop and come back at the same address. Every answer is the single node's; every failure is an
//! error that says what happened; the router and whoever was not killed run on, and in the end nobody holds more than
//! at the start.
//!
//! `BLOCKWIRE_CHAOS_SECONDS=1800 cargo test -p blockwire-cli --test e2e chaos -- --nocapture` goes on for half an hour,
//! and kills a node every 20 seconds.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use blockwire::clock;
use fastrand::Rng;
use serde_json::Value;
use tempfile::TempDir;

use crate::accounts::{Accounts, stop_all};
use crate::client::{Caller, Completion, Failure, ask, ask_all};
use crate::cluster::{Carrier, Setup, runtime_dir, start_decode, start_prefill, start_router};
use crate::models::{Model, completion, sampled, streamed};
use crate::node::{Node, wait_until};
use crate::parity::single_node;
use crate::watchdog::Watchdog;

/// Callers at a time.
const CALLERS: usize = 6;
/// Different requests.
const REQUESTS: usize = 60;
/// Nodes of each role.
const EACH: usize = 2;

/// How long the callers go on.
fn duration() -> Duration {
    let seconds = std::env::var("BLOCKWIRE_CHAOS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(24, |seconds| seconds.parse().unwrap()))
}

/// Two prefill and two decode nodes, of which each can be replaced, and a router.
#[derive(Debug)]
struct Fleet {
    setup: Setup,
    dir: TempDir,
    decode: Vec<Node>,
    prefill: Vec<Node>,
    router: Node,
    start: Accounts,
}

impl Fleet {
    fn start(setup: Setup) -> Self {
        let dir = runtime_dir();
        let bind = |role: &str, number| setup.carrier.bind(&format!("{role}-{number}"));
        let decode: Vec<Node> = (0..EACH)
            .map(|number| start_decode(&setup, dir.path(), &bind("decode", number)))
            .collect();
        let both = addresses(&decode);
        let prefill: Vec<Node> = (0..EACH)
            .map(|number| start_prefill(&setup, dir.path(), &bind("prefill", number), &both))
            .collect();
        let entries: Vec<&str> = prefill.iter().map(Node::serving).collect();
        let router = start_router(&setup, dir.path(), &entries, &both);
        Self { setup, dir, decode, prefill, router, start: Accounts::default() }
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        iter::once(&self.router).chain(&self.decode).chain(&self.prefill)
    }

    /// Ends a node and starts another at its address.
    fn replace(&mut self, number: usize, how: How) {
        let prefills = number >= EACH;
        let nodes = if prefills { &mut self.prefill } else { &mut self.decode };
        let mut node = nodes.remove(number % EACH);
        let (pid, address) = (node.pid(), node.serving().to_owned());
        assert!(node.is_running(), "nobody killed {}, and it ended\n{}", node.role, node.log());
        match how {
            How::Killed => {
                node.crash();
                drop(node);
            }
            How::Stopped => node.stop(),
        }
        let dir = self.dir.path();
        let started = if prefills {
            start_prefill(&self.setup, dir, &address, &addresses(&self.decode))
        } else {
            start_decode(&self.setup, dir, &address)
        };
        self.start.pass_on(pid, started.pid());
        let nodes = if prefills { &mut self.prefill } else { &mut self.decode };
        nodes.insert(number % EACH, started);
    }

    /// All nodes work for the router.
    fn wait_until_whole(&self, bodies: &[Value]) {
        let works = |node: &Node| {
            let name = if node.role == "prefill" {
                "handoffs_sent_total"
            } else {
                "handoffs_received_total"
            };
            node.metric(name) > 0
        };
        wait_until("every node has its part of the work", || {
            for answer in ask_all(self.router.http(), bodies, CALLERS) {
                if let Err(failure) = answer {
                    assert!(is_typed(&failure), "{failure:?}");
                }
            }
            self.decode.iter().chain(&self.prefill).all(works)
        });
    }
}

/// As a flag names peers.
fn addresses(nodes: &[Node]) -> String {
    nodes.iter().map(Node::serving).collect::<Vec<_>>().join(",")
}

/// How a node ends.
#[derive(Clone, Copy, Debug)]
enum How {
    Killed,
    Stopped,
}

/// Prompts of every length, most of which begin like others, with short and long answers.
fn requests(rng: &mut Rng) -> Vec<Value> {
    let request = |number: usize| {
        let (common, own) = (rng.usize(0..=200), rng.usize(1..=200));
        let mut prompt = Model::Llama.prompt(common, 1000 + number % 5);
        prompt.extend(Model::Llama.prompt(own, number));
        let body = completion(&prompt, rng.u32(1..=100));
        if rng.bool() { sampled(body, number as u64) } else { body }
    };
    (0..REQUESTS).map(request).collect()
}

/// What callers were told.
#[derive(Debug, Default)]
struct Tally {
    answers: usize,
    left: usize,
    failures: BTreeMap<(u16, String), usize>,
}

/// An error that says what happened. A connection that breaks off says nothing: the router never dies.
fn is_typed(failure: &Failure) -> bool {
    let code = failure.body["error"]["code"].as_str().unwrap_or_default();
    matches!((failure.status, code), (502 | 200, "node_failed" | "nodes_lost") | (503, "no_node"))
}

/// One caller, until it is over.
fn call(
    http: &str,
    mut rng: Rng,
    requests: &[(Value, Completion)],
    over: &AtomicBool,
    tally: &Mutex<Tally>,
) {
    while !over.load(Relaxed) {
        let (body, expected) = &requests[rng.usize(..requests.len())];
        let body = if rng.bool() { streamed(body.clone()) } else { body.clone() };
        if rng.u8(..20) == 0 {
            let caller = Caller::ask(http, &body);
            thread::sleep(Duration::from_micros(rng.u64(..200_000)));
            caller.leave();
            tally.lock().unwrap().left += 1;
            continue;
        }
        match ask(http, &body) {
            Ok(answer) => {
                assert_eq!(answer, *expected, "wrong tokens for {body}");
                tally.lock().unwrap().answers += 1;
            }
            Err(failure) => {
                assert!(is_typed(&failure), "{failure:?} for {body}");
                let code = failure.body["error"]["code"].as_str().unwrap_or_default().to_owned();
                *tally.lock().unwrap().failures.entry((failure.status, code)).or_default() += 1;
                // As a client would that is told to try again.
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn chaos(carrier: Carrier) {
    let duration = duration();
    let _watchdog = Watchdog::start_for(duration);
    let seed = fastrand::u64(..);
    let mut rng = Rng::with_seed(seed);
    let mut setup = Setup::new(Model::Llama, carrier);
    // One run out of two, decode nodes compute prompts too.
    let handoff = if rng.bool() { "--handoff=auto" } else { "--handoff=always" };
    setup.flags.push(handoff);
    let bodies = requests(&mut rng);
    let expected = single_node(&setup.clone().without_prefix_cache(), &[], &bodies);
    let requests: Vec<_> = bodies.iter().cloned().zip(expected).collect();
    let mut fleet = Fleet::start(setup);
    fleet.wait_until_whole(&bodies);
    fleet.start = Accounts::take(fleet.nodes());
    if carrier == Carrier::Tcp4 {
        // A link's pipe comes with the first large payload, and some links had none yet.
        fleet.start.allow_descriptors(2 * EACH);
    }

    let (http, over, tally) =
        (fleet.router.http().to_owned(), AtomicBool::new(false), Mutex::default());
    let pause = (duration / 8).min(Duration::from_secs(20));
    let (begin, mut ends) = (clock::now(), [0, 0]);
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            let rng = rng.fork();
            scope.spawn(|| {
                // Whoever fails stops the others.
                let stop = StopAtEnd(&over);
                call(&http, rng, &requests, &over, &tally);
                drop(stop);
            });
        }
        let _stop = StopAtEnd(&over);
        while !over.load(Relaxed) && clock::now() - begin < duration {
            thread::sleep(pause.mul_f64(0.5 + rng.f64() / 2.0));
            let how = if rng.u8(..4) == 0 { How::Stopped } else { How::Killed };
            fleet.replace(rng.usize(..2 * EACH), how);
            ends[how as usize] += 1;
        }
    });
    let tally = tally.into_inner().unwrap();
    println!("seed {seed}, {handoff}: {} killed, {} stopped, {tally:?}", ends[0], ends[1]);
    // The others take over: hardly anybody notices.
    assert!(tally.answers > 10 * tally.failures.values().sum::<usize>(), "{tally:?}");

    fleet.wait_until_whole(&bodies);
    for (answer, (body, expected)) in
        ask_all(fleet.router.http(), &bodies, CALLERS).into_iter().zip(&requests)
    {
        assert_eq!(answer.unwrap(), *expected, "in the end, {body}");
    }
    fleet.start.settle(fleet.nodes());
    let Fleet { dir, decode, prefill, router, .. } = fleet;
    stop_all(iter::once(router).chain(prefill).chain(decode), dir.path());
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn chaos_over_shm() {
    chaos(Carrier::Shm);
}

#[test]
fn chaos_over_tcp() {
    chaos(Carrier::Tcp4);
}
