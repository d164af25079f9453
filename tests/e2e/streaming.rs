//! Caches that leave while their prompts are computed: whole and right in the end, whoever dies meanwhile.

use std::thread;

use serde_json::{Value, json};

use crate::client::{Failure, ask};
use crate::cluster::{Carrier, Cluster, Setup, runtime_dir, start_decode};
use crate::keyed;
use crate::models::{Model, completion};
use crate::node::{Node, wait_until};
use crate::parity::single_node;

fn chunked(mut setup: Setup) -> Setup {
    // In place of the memory that suits shorter contexts.
    setup.flags[0] = "--kv-memory=64";
    setup.flags.push("--prefill-chunk=512");
    setup.without_prefix_cache()
}

/// Bytes that the first prefill node handed over, and those among them that left before the end of their prompts.
fn handed_over(cluster: &Cluster) -> (u64, u64) {
    let metric = |name| cluster.prefill[0].metric(name);
    (metric("handoff_sent_bytes_total"), metric("handoff_ahead_bytes_total"))
}

fn prompts_of_one_chunk_and_of_many(setup: Setup) {
    let lengths = [511, 512, 513, 4097];
    let body = |(number, tokens): (usize, &usize)| {
        completion(&Model::LongLlama.prompt(*tokens, 60 + number), 24)
    };
    let bodies: Vec<Value> = lengths.iter().enumerate().map(body).collect();
    let setup = chunked(setup);
    let expected = single_node(&setup, &[], &bodies);
    let streams = setup.carrier != Carrier::Shm;
    let cluster = Cluster::start(setup);
    for ((body, expected), tokens) in bodies.iter().zip(&expected).zip(lengths) {
        let once = || {
            let before = handed_over(&cluster);
            assert_eq!(ask(cluster.http(), body).unwrap(), *expected, "{tokens} tokens");
            cluster.settle();
            let after = handed_over(&cluster);
            let (sent, ahead) = (after.0 - before.0, after.1 - before.1);
            assert!(ahead <= sent, "{ahead} of {sent} bytes left early");
            (sent, ahead)
        };
        let (sent, ahead) = once();
        if streams {
            // Whether the nodes hear of a layer before the last one is there, is chance; some time they do.
            let mut most = ahead;
            wait_until("bytes leave ahead", || {
                most = most.max(once().1);
                most > 0
            });
        } else {
            assert_eq!(ahead, 0, "of {sent} bytes that stay where they are");
        }
    }
    assert_eq!(cluster.decode.metric("prefill_tokens_computed_total"), 0);
    cluster.finish();
}

#[test]
fn fault_b48_prompts_of_one_chunk_and_of_many_over_tcp() {
    prompts_of_one_chunk_and_of_many(Setup::new(Model::LongLlama, Carrier::Tcp4));
}

#[test]
fn fault_b48_prompts_of_one_chunk_and_of_many_over_tls() {
    let keys = runtime_dir();
    prompts_of_one_chunk_and_of_many(keyed::tls(Model::LongLlama, keys.path()));
}

#[test]
fn fault_b48_prompts_of_one_chunk_and_of_many_over_shm() {
    prompts_of_one_chunk_and_of_many(Setup::new(Model::LongLlama, Carrier::Shm));
}

/// Prompts of many small chunks.
fn long_prompts() -> Value {
    let prompts: Vec<Vec<u32>> = (0..6).map(|n| Model::LongLlama.prompt(8000, 200 + n)).collect();
    let mut body = completion(&[], 4);
    body["prompt"] = json!(prompts);
    body
}

/// Asks for these, and waits until the decode node has room for a cache that is still computed.
fn amid_a_stream(
    cluster: &Cluster,
) -> thread::JoinHandle<Result<crate::client::Completion, Failure>> {
    let http = cluster.http().to_owned();
    let asked = thread::spawn(move || ask(&http, &long_prompts()));
    wait_until("a cache is on its way", || {
        let running = cluster.prefill[0].metric("num_requests_running");
        running > 0 && cluster.decode.metric("pool_blocks_loaned") > 0
    });
    asked
}

fn with_little_chunks() -> Setup {
    let mut setup = Setup::new(Model::LongLlama, Carrier::Tcp4);
    setup.flags = vec!["--kv-memory=64", "--prefill-chunk=64"];
    setup.without_prefix_cache()
}

fn assert_told(asked: thread::JoinHandle<Result<crate::client::Completion, Failure>>) {
    let failed = asked.join().unwrap().expect_err("the caller is told");
    assert!([502, 503].contains(&failed.status), "{failed:?}");
}

#[test]
fn a_prefill_node_that_dies_amid_a_stream_leaves_nothing_behind() {
    let mut cluster = Cluster::start(with_little_chunks());
    let asked = amid_a_stream(&cluster);
    cluster.prefill[0].crash();
    assert_told(asked);
    cluster.settle_one(&cluster.decode);
    cluster.restart_prefill();
    cluster.restart_accounts();
    cluster.wait_until_serving();
    cluster.finish();
}

/// The prefill node stops at once: nobody would take what it goes on to compute.
#[test]
fn a_decode_node_that_dies_amid_a_stream_ends_the_work() {
    let mut cluster = Cluster::start(with_little_chunks());
    let computed = |node: &Node| node.metric("prefill_tokens_computed_total");
    let before = computed(&cluster.prefill[0]);
    let asked = amid_a_stream(&cluster);
    let (address, setup) = (cluster.decode.serving().to_owned(), cluster.setup.clone());
    let dir = cluster.dir.path().to_owned();
    cluster.decode.crash();
    assert_told(asked);
    cluster.settle_one(&cluster.prefill[0]);
    let computed = computed(&cluster.prefill[0]) - before;
    assert!(computed < 6 * 8000, "{computed} tokens for nobody");
    cluster.decode = start_decode(&setup, &dir, &address);
    cluster.wait_until_serving();
    cluster.restart_accounts();
    cluster.wait_until_serving();
    cluster.finish();
}
