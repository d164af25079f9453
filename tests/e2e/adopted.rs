//! Caches that stay where they were computed: nothing is copied, and nothing depends on it that the
//! node which computed them lives on, has room, or is in time. Without the prefix cache: each request is handed
//! over as a whole.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::accounts::stop_all;
use crate::client::{Caller, Completion, Failure, ask, ask_all};
use crate::cluster::{
    Carrier, Cluster, Setup, runtime_dir, start_decode, start_prefill, start_router,
};
use crate::models::{Model, completion, streamed};
use crate::node::{Node, wait_until};
use crate::parity::single_node;
use crate::watchdog::{Watchdog, signal};

fn adopted(cluster: &Cluster) -> u64 {
    cluster.decode.metric("handoff_adopted_bytes_total")
}

#[test]
fn a_gibibyte_is_adopted_without_a_copy() {
    let mut setup = Setup::new(Model::Wide, Carrier::Shm);
    setup.flags = vec!["--no-prefix-cache", "--kv-dtype=f32", "--kv-memory=1600"];
    let bodies = [completion(&Model::Wide.prompt(512, 1), 6)];
    let expected = single_node(&setup, &[], &bodies);
    let cluster = Cluster::start(setup);
    let before = (cluster.payload(), adopted(&cluster));
    let answer = ask(cluster.http(), &bodies[0]).unwrap();
    assert_eq!(answer.tokens, expected[0].tokens);
    assert_eq!(cluster.payload(), before.0, "bytes were moved, or copied");
    assert_eq!(adopted(&cluster) - before.1, 1 << 30);
    cluster.finish();
}

/// A request whose prompt is adopted, 12 blocks of it.
fn long_answer(number: usize) -> Value {
    completion(&Model::Llama.prompt(200, number), 300)
}

/// The same for some choices, each of which is handed over by itself: it takes a while.
fn some_answers(number: usize) -> Value {
    let mut body = long_answer(number);
    body["n"] = json!(4);
    body
}

#[test]
fn a_prefill_node_that_dies_leaves_its_readers_what_they_read() {
    let mut cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm).without_prefix_cache());
    let expected = ask(cluster.http(), &some_answers(1)).unwrap();
    let recomputed = cluster.decode.metric("prefill_tokens_computed_total");
    let before = cluster.prefill[0].metric("handoffs_sent_total");
    let asked = thread::spawn({
        let http = cluster.http().to_owned();
        move || ask(&http, &some_answers(1))
    });
    let sent = || cluster.prefill[0].metric("handoffs_sent_total");
    wait_until("all are handed over", || sent() == before + 4);
    cluster.prefill[0].crash();
    assert_eq!(asked.join().unwrap().unwrap(), expected);
    // Not because the decode node has computed the prompts itself.
    assert_eq!(cluster.decode.metric("prefill_tokens_computed_total"), recomputed);
    cluster.restart_prefill();
    cluster.restart_accounts();
    assert_eq!(ask(cluster.http(), &long_answer(2)).unwrap().tokens.len(), 300);
    cluster.finish();
}

#[test]
fn a_prefill_node_that_stops_waits_for_its_readers() {
    let mut cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm).without_prefix_cache());
    let expected = ask(cluster.http(), &some_answers(1)).unwrap();
    let mut stream = Caller::ask(cluster.http(), &streamed(some_answers(1)));
    stream.wait_for_event();
    wait_until("it is handed over", || cluster.prefill[0].metric("pool_blocks_lent") > 0);
    cluster.replace_prefill();
    let rest = stream.rest();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    cluster.restart_accounts();
    assert_eq!(ask(cluster.http(), &some_answers(1)).unwrap(), expected);
    assert_eq!(cluster.decode.metric("handoff_recomputes_total"), 0, "it was copied in time");
    cluster.finish();
}

/// Ten prompts of which the prefill node's pool holds one and a fifth; the decode node is slower than
/// they come.
#[test]
fn fault_b06_a_prefill_pool_of_one_prompt_serves_many() {
    let mut setup = Setup::new(Model::Llama, Carrier::Shm);
    setup.flags = vec!["--no-prefix-cache"];
    setup.prefill_flags = vec!["--kv-blocks=16"];
    setup.decode_flags = vec!["--kv-blocks=400"];
    let cluster = Cluster::start(setup);
    let bodies: Vec<Value> = (0..10).map(long_answer).collect();
    let alone: Vec<_> =
        ask_all(cluster.http(), &bodies, 1).into_iter().map(Result::unwrap).collect();
    let together = ask_all(cluster.http(), &bodies, 10);
    for (together, alone) in together.into_iter().zip(alone) {
        assert_eq!(together.unwrap().tokens, alone.tokens);
    }
    assert!(adopted(&cluster) > 0);
    assert_eq!(cluster.decode.metric("prefill_tokens_computed_total"), 0);
    cluster.finish();
}

/// The decode node has no room to take the blocks home: they stay until somebody is done.
#[test]
fn pools_that_are_both_short_finish_everything() {
    let mut setup = Setup::new(Model::Llama, Carrier::Shm);
    setup.flags = vec!["--no-prefix-cache"];
    setup.prefill_flags = vec!["--kv-blocks=30"];
    setup.decode_flags = vec!["--kv-blocks=40"];
    let cluster = Cluster::start(setup);
    let mut bodies: Vec<Value> = (0..8).map(long_answer).collect();
    let alone: Vec<_> =
        ask_all(cluster.http(), &bodies, 1).into_iter().map(Result::unwrap).collect();
    for body in &mut bodies {
        body["stream"] = json!(true);
    }
    let together = ask_all(cluster.http(), &bodies, 8);
    for (together, alone) in together.into_iter().zip(alone) {
        assert_eq!(together.unwrap().tokens, alone.tokens);
    }
    cluster.finish();
}

/// Two decode nodes read one prefill node's blocks. One of them stands still, for longer than the prefill
/// node waits; what it read is given to others meanwhile, and its answers go on on the other one.
#[test]
fn a_decode_node_that_stands_still_never_goes_on_with_what_it_lost() {
    let _watchdog = Watchdog::start();
    let dir = runtime_dir();
    let mut setup = Setup::new(Model::Llama, Carrier::Shm);
    setup.flags = vec!["--no-prefix-cache"];
    setup.prefill_flags = vec!["--kv-blocks=60"];
    setup.decode_flags = vec!["--kv-blocks=400"];
    let decode = [0, 1].map(|n| start_decode(&setup, dir.path(), &format!("shm:decode-{n}")));
    let both = decode.each_ref().map(Node::serving).join(",");
    let prefill = start_prefill(&setup, dir.path(), "shm:prefill", &both);
    let router = start_router(&setup, dir.path(), &[prefill.serving()], &both);
    let received = |node: &Node| node.metric("handoffs_received_total");
    let warm = |number| {
        let before = decode.each_ref().map(received);
        wait_until("both decode nodes serve", || {
            let some = [(); 4].map(|()| completion(&Model::Llama.prompt(40, number), 60));
            let _ = ask_all(router.http(), &some, 4);
            (0..2).all(|n| received(&decode[n]) > before[n])
        });
    };
    warm(8);
    let bodies: Vec<Value> = (0..4).map(some_answers).collect();
    let expected: Vec<_> =
        ask_all(router.http(), &bodies, 1).into_iter().map(Result::unwrap).collect();
    let before = received(&decode[0]);
    let check = |results: Vec<Result<Completion, Failure>>| {
        for (result, expected) in results.into_iter().zip(&expected) {
            assert_eq!(&result.unwrap(), expected);
        }
    };
    thread::scope(|scope| {
        let asked = scope.spawn(|| ask_all(router.http(), &bodies, 4));
        wait_until("the first node has work", || {
            received(&decode[0]) > before && decode[0].metric("num_requests_running") > 0
        });
        signal(decode[0].pid(), Signal::STOP);
        check(asked.join().unwrap());
    });
    assert!(router.log().contains("tried on other nodes"), "the node was stopped too late");
    // Everybody noticed; the other node has the prefill node's whole pool.
    wait_until("the blocks are back", || prefill.metric("pool_blocks_free") == 60);
    check(ask_all(router.http(), &bodies, 1));
    signal(decode[0].pid(), Signal::CONT);
    warm(9);
    check(ask_all(router.http(), &bodies, 4));
    stop_all([router, prefill].into_iter().chain(decode), dir.path());
}
