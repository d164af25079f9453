//! Many requests one after the other, and very long ones: what goes wrong a little with each would show.

use serde_json::Value;

use crate::client::{ask, ask_all};
use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::{Model, completion, sampled, streamed};
use crate::parity::single_node;

/// Requests in all.
const REQUESTS: usize = 2_000;
/// Different ones among them, asked again and again.
const DIFFERENT: usize = 100;

/// The hundredth answer is as good as the first, and the two thousandth.
fn many_requests(carrier: Carrier) {
    let request = |number: usize| {
        let body = completion(&Model::Llama.prompt(1 + number * 37 % 190, number), 6);
        let body = if number.is_multiple_of(3) { sampled(body, number as u64) } else { body };
        if number.is_multiple_of(2) { streamed(body) } else { body }
    };
    let bodies: Vec<Value> = (0..DIFFERENT).map(request).collect();
    let mut setup = Setup::new(Model::Llama, carrier);
    let expected = single_node(&setup.clone().without_prefix_cache(), &[], &bodies);
    // Less than they all need: what is cached has to make room again and again.
    setup.flags = vec!["--kv-blocks=300"];
    let cluster = Cluster::start(setup);
    for round in 0..REQUESTS / DIFFERENT {
        for (answer, expected) in ask_all(cluster.http(), &bodies, 8).iter().zip(&expected) {
            assert_eq!(answer.as_ref().unwrap(), expected, "in round {round}");
        }
    }
    cluster.finish();
}

#[test]
fn fault_b47_two_thousand_requests_end_as_they_began_over_shm() {
    many_requests(Carrier::Shm);
}

#[test]
fn fault_b47_two_thousand_requests_end_as_they_began_over_tcp() {
    many_requests(Carrier::Tcp4);
}

/// Prompts of thousands of tokens arrive whole, and a second time what is there is used.
#[test]
fn fault_b46_long_prompts_are_handed_over_whole() {
    let lengths = [1_000, 4_000];
    let bodies: Vec<Value> =
        lengths.map(|length| completion(&Model::SmolLm2.prompt(length, 5), 8)).to_vec();
    let setup = Setup::new(Model::SmolLm2, Carrier::Tcp4);
    let expected = single_node(&setup.clone().without_prefix_cache(), &[], &bodies);
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        let cluster = Cluster::start(Setup::new(Model::SmolLm2, carrier));
        let warm = cluster.decode.metric("prefill_tokens_computed_total");
        for (body, expected) in bodies.iter().zip(&expected) {
            let again = ["cold", "cached"].map(|_| ask(cluster.http(), body).unwrap());
            assert_eq!([&again[0], &again[1]], [expected; 2]);
            let prompt = expected.prompt_tokens;
            assert!(
                again[1].cached_tokens >= prompt - 16,
                "{} of {prompt}",
                again[1].cached_tokens
            );
        }
        assert_eq!(cluster.decode.metric("prefill_tokens_computed_total"), warm);
        cluster.finish();
    }
}
