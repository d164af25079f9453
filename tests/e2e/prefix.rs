//! Prompts that begin alike: their tokens are those of nodes that compute every prompt as a whole, and usage
//! tells exactly what was not computed.

use std::iter;

use serde_json::{Value, json};

use crate::accounts::Accounts;
use crate::client::{ask, ask_all};
use crate::cluster::{Carrier, Cluster, Setup, runtime_dir};
use crate::models::{Model, completion, sampled, streamed};
use crate::node::Node;
use crate::parity::single_node;
use crate::watchdog::Watchdog;

/// Tokens per block of every node.
const BLOCK: usize = 16;
/// Tokens of the beginning that all prompts share.
const COMMON: usize = 80;

/// A prompt whose first `common` tokens are those of all others.
fn begun(model: Model, common: usize, own: usize, len: usize) -> Vec<u32> {
    let mut prompt = model.prompt(common, 0);
    prompt.extend(model.prompt(len - common, own));
    prompt
}

/// Prompts around the ends of blocks, in every form, and what of each is cached when they are asked in this order.
fn requests(model: Model) -> Vec<(Value, u64)> {
    let mut all = vec![(completion(&begun(model, COMMON, 1, COMMON + 5), 8), 0)];
    let commons = [15, 16, 17, 31, 32, 33, COMMON];
    for (own, common) in (10..).zip(commons) {
        let body = completion(&begun(model, common, own, common + 21), 8);
        let found = common / BLOCK * BLOCK;
        // Asked again, all but its last block is there, and a last token is computed.
        let again = (common + 20) / BLOCK * BLOCK;
        all.push((body.clone(), found as u64));
        all.push((streamed(body.clone()), again as u64));
        all.push((streamed(sampled(body.clone(), 5)), again as u64));
        all.push((body, again as u64));
    }
    all
}

/// Asks one after the other.
fn check(http: &str, requests: &[(Value, u64)], expected: &[Vec<u32>]) {
    for ((body, cached), expected) in requests.iter().zip(expected) {
        let answer = ask(http, body).unwrap();
        let prompt = body["prompt"].as_array().unwrap().len();
        assert_eq!(answer.tokens, *expected, "a prompt of {prompt}, {cached} cached");
        assert_eq!((answer.prompt_tokens, answer.cached_tokens), (prompt as u64, *cached));
    }
}

fn expected(setup: &Setup, requests: &[(Value, u64)]) -> Vec<Vec<u32>> {
    let bodies: Vec<Value> = requests.iter().map(|(body, _)| body.clone()).collect();
    let answers = single_node(&setup.clone().without_prefix_cache(), &[], &bodies);
    answers.into_iter().map(|answer| answer.tokens).collect()
}

fn alone(setup: &Setup, then: impl FnOnce(&Node)) {
    let _watchdog = Watchdog::start();
    let dir = runtime_dir();
    let node = Node::start(dir.path(), "single", &setup.node_flags(&[]));
    let start = Accounts::take(iter::once(&node));
    then(&node);
    start.settle(iter::once(&node));
    node.stop();
}

#[test]
fn one_node_answers_from_what_it_has_computed() {
    for model in [Model::Llama, Model::Qwen3] {
        let setup = Setup::new(model, Carrier::Shm);
        let requests = requests(model);
        let expected = expected(&setup, &requests);
        alone(&setup, |node| {
            check(node.http(), &requests, &expected);
            let cached: u64 = requests.iter().map(|(_, cached)| cached).sum();
            assert_eq!(node.metric("prefix_cache_hits_total"), cached);
            let computed = node.metric("prefill_tokens_computed_total");
            assert_eq!(node.metric("prefix_cache_queries_total"), cached + computed);
        });
    }
}

#[test]
fn three_nodes_answer_from_what_they_have() {
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        let setup = Setup::new(Model::Llama, carrier);
        let requests = requests(Model::Llama);
        let expected = expected(&setup, &requests);
        let cluster = Cluster::start(setup);
        check(cluster.http(), &requests, &expected);
        // All at once, in a pool that holds them: the same tokens.
        let bodies: Vec<Value> = requests.iter().map(|(body, _)| body.clone()).collect();
        for (answer, expected) in ask_all(cluster.http(), &bodies, 8).into_iter().zip(&expected) {
            assert_eq!(answer.unwrap().tokens, *expected);
        }
        assert_eq!(cluster.decode.metric("prefill_tokens_computed_total"), 0);
        cluster.finish();
    }
}

#[test]
fn fault_b11_blocks_that_the_decode_node_has_do_not_move() {
    for carrier in [Carrier::Tcp4, Carrier::Stripes] {
        let cluster = Cluster::start(Setup::new(Model::Llama, carrier));
        let prompt = begun(Model::Llama, COMMON, 1, COMMON + 5);
        let landed = |prompt: &[u32]| {
            let before = cluster.payload().0;
            ask(cluster.http(), &completion(prompt, 4)).unwrap();
            cluster.settle();
            cluster.payload().0 - before
        };
        let whole = landed(&prompt);
        // The last five tokens are no full block.
        let tail = whole / prompt.len() as u64 * 5;
        assert!(tail > 0);
        assert_eq!(landed(&prompt), tail);
        assert_eq!(landed(&prompt[..COMMON]), 0, "all of it is there");
        assert_eq!(landed(&[&prompt[..COMMON], &[7; 5]].concat()), tail);
        cluster.finish();
    }
}

#[test]
fn pools_that_hold_little_give_the_same_tokens() {
    let mut setup = Setup::new(Model::Llama, Carrier::Tcp4);
    setup.flags = vec![];
    setup.prefill_flags = vec!["--kv-blocks=16"];
    setup.decode_flags = vec!["--kv-blocks=24"];
    let requests = requests(Model::Llama);
    let expected = expected(&Setup::new(Model::Llama, Carrier::Tcp4), &requests);
    let cluster = Cluster::start(setup);
    let bodies: Vec<Value> = requests.iter().map(|(body, _)| body.clone()).collect();
    for (answer, expected) in ask_all(cluster.http(), &bodies, 8).into_iter().zip(&expected) {
        assert_eq!(answer.unwrap().tokens, *expected);
    }
    cluster.finish();
}

#[test]
fn tenants_with_salts_share_nothing() {
    alone(&Setup::new(Model::Llama, Carrier::Shm), |node| {
        let body = completion(&Model::Llama.prompt(40, 3), 2);
        let salted = |salt: &str| {
            let mut body = body.clone();
            body["cache_salt"] = json!(salt);
            ask(node.http(), &body).map(|answer| answer.cached_tokens)
        };
        assert_eq!(ask(node.http(), &body).unwrap().cached_tokens, 0);
        let seen = ["a", "b", "a", "b"].map(|salt| salted(salt).unwrap());
        assert_eq!(seen, [0, 0, 32, 32]);
        assert_eq!(salted("").unwrap_err().status, 400);
    });
}
