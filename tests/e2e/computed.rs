//! What is computed, where, and how often: a prompt once and on one node, an answer's tokens once, and what was
//! there already not again. Usage and metrics say the same.

use serde_json::{Value, json};

use crate::client::{Completion, ask, ask_all};
use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::{Model, completion, streamed};
use crate::node::Node;
use crate::parity::single_node;

const CARRIERS: [Carrier; 2] = [Carrier::Shm, Carrier::Tcp4];

/// Prompt tokens that a node computed, and tokens that it drew.
fn computed(node: &Node) -> (u64, u64) {
    (node.metric("prefill_tokens_computed_total"), node.metric("sampled_tokens_total"))
}

/// The fields that ask for long answers, or for several, are the decode node's: the prefill node draws the first
/// token of each choice, and nothing more.
#[test]
fn fault_b21_the_prefill_node_draws_one_token_whatever_is_asked_for() {
    let wishes = [
        json!({"max_tokens": 40}),
        json!({"max_tokens": null, "max_completion_tokens": 40}),
        json!({"max_tokens": 40, "min_tokens": 8}),
        json!({"max_tokens": 40, "n": 2, "temperature": 0.9, "seed": 3}),
        json!({"max_tokens": 40, "logprobs": 3}),
        json!({"max_tokens": 40, "stop": ["never to be seen"]}),
    ];
    for carrier in CARRIERS {
        let cluster = Cluster::start(Setup::new(Model::Llama, carrier).without_prefix_cache());
        for (number, wish) in wishes.iter().enumerate() {
            let mut body = completion(&Model::Llama.prompt(50, number), 40);
            for (field, value) in wish.as_object().unwrap() {
                body[field] = value.clone();
            }
            let choices = body["n"].as_u64().unwrap_or(1);
            for body in [body.clone(), streamed(body)] {
                let before = [&cluster.prefill[0], &cluster.decode].map(computed);
                let answer = ask(cluster.http(), &body).unwrap();
                cluster.settle();
                let after = [&cluster.prefill[0], &cluster.decode].map(computed);
                assert_eq!(answer.completion_tokens, 40 * choices, "{body}");
                let drawn = [0, 1].map(|node| after[node].1 - before[node].1);
                assert_eq!(drawn, [choices, 39 * choices], "{body}");
            }
        }
        cluster.finish();
    }
}

/// A decode node computes no prompt: neither of what was handed over nor behind anybody's back.
#[test]
fn fault_b22_no_prompt_is_computed_twice() {
    for carrier in CARRIERS {
        let cluster = Cluster::start(Setup::new(Model::Llama, carrier).without_prefix_cache());
        let bodies: Vec<Value> =
            (0..24).map(|n| completion(&Model::Llama.prompt(1 + 20 * n, n), 8)).collect();
        let before = [&cluster.prefill[0], &cluster.decode].map(computed);
        for answer in ask_all(cluster.http(), &bodies, 6) {
            assert_eq!(answer.unwrap().tokens.len(), 8);
        }
        cluster.settle();
        let after = [&cluster.prefill[0], &cluster.decode].map(computed);
        let tokens: u64 = (0..24).map(|n| 1 + 20 * n).sum();
        assert_eq!([0, 1].map(|node| after[node].0 - before[node].0), [tokens, 0]);
        let received = cluster.decode.metric("handoffs_received_total");
        assert_eq!(received, cluster.prefill[0].metric("handoffs_sent_total"));
        cluster.finish();
    }
}

/// Handing over takes nothing of a node's memory away.
#[test]
fn fault_b51_a_role_has_the_pool_of_a_single_node() {
    let blocks = |node: &Node| {
        let states = ["free", "cached", "reserved", "loaned", "quarantined", "sealed"];
        states.map(|state| node.metric(&format!("pool_blocks_{state}"))).iter().sum::<u64>()
    };
    let setup = Setup::new(Model::Llama, Carrier::Shm);
    let dir = crate::cluster::runtime_dir();
    let _watchdog = crate::watchdog::Watchdog::start();
    let single = Node::start(dir.path(), "single", &setup.node_flags(&[]));
    let expected = blocks(&single);
    assert!(expected > 0);
    single.stop();
    for carrier in CARRIERS {
        let cluster = Cluster::start(Setup::new(Model::Llama, carrier));
        for node in [&cluster.prefill[0], &cluster.decode] {
            assert_eq!(blocks(node), expected, "{} over {carrier:?}", node.role);
        }
        cluster.finish();
    }
}

/// Tokens per block of every node.
const BLOCK: usize = 16;

/// The turns of a chat: each prompt is the one before, its answer, and what is said next.
fn next_turn(prompt: &[u32], answer: &Completion, number: usize) -> Vec<u32> {
    let mut next = prompt.to_vec();
    next.extend(&answer.tokens);
    next.extend(Model::Llama.prompt(9, 300 + number));
    next
}

/// Two chats share a long beginning and take turns; nobody's cache throws the other's out.
#[test]
fn fault_b52_chats_that_take_turns_compute_what_is_new() {
    for carrier in CARRIERS {
        let setup = Setup::new(Model::Llama, carrier);
        let cluster = Cluster::start(setup.clone());
        let system = Model::Llama.prompt(200, 1);
        let mut prompts = [2, 3].map(|own| [&system[..], &Model::Llama.prompt(12, own)].concat());
        let mut asked = vec![];
        for turn in 0..4 {
            for (chat, said) in prompts.iter_mut().enumerate() {
                let prompt = said.clone();
                let before = cluster.prefill[0].metric("prefill_tokens_computed_total");
                let body = completion(&prompt, 7);
                let answer = ask(cluster.http(), &body).unwrap();
                let computed = cluster.prefill[0].metric("prefill_tokens_computed_total") - before;
                assert_eq!(computed, prompt.len() as u64 - answer.cached_tokens);
                // What a turn before has filled is there, but for the blocks that only the decode node saw.
                let known = match (turn, chat) {
                    (0, 0) => 0,
                    (0, _) => system.len(),
                    _ => prompt.len() - 9 - answer.tokens.len(),
                };
                assert!(answer.cached_tokens as usize >= known / BLOCK * BLOCK, "turn {turn}");
                *said = next_turn(&prompt, &answer, 10 * turn + chat);
                asked.push((body, answer));
            }
        }
        cluster.finish();
        let bodies: Vec<Value> = asked.iter().map(|(body, _)| body.clone()).collect();
        let expected = single_node(&setup.without_prefix_cache(), &[], &bodies);
        for ((body, answer), expected) in asked.iter().zip(&expected) {
            assert_eq!(answer, expected, "{body}");
        }
    }
}
