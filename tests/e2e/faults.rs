//! Nodes that die and callers that leave: errors instead of hangs, and nothing stays behind.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Caller, Completion, ask};
use crate::cluster::{Carrier, Cluster, Setup, start_decode};
use crate::models::{Model, completion, streamed};
use crate::node::{Node, wait_until};

/// Requests that keep the decode node busy for a while, each in many choices.
fn long(number: usize) -> Value {
    let mut body = completion(&Model::Llama.prompt(20, number), 480);
    body["n"] = json!(16);
    body
}

fn short(cluster: &Cluster) -> Completion {
    ask(cluster.http(), &completion(&Model::Llama.prompt(33, 3), 24)).unwrap()
}

/// Waits until a node computes requests.
fn wait_until_running(node: &Node, requests: u64) {
    wait_until("requests run", || node.metric("num_requests_running") >= requests);
}

fn decode_dies_while_it_generates(carrier: Carrier) {
    let mut cluster = Cluster::start(Setup::new(Model::Llama, carrier));
    let before = short(&cluster);
    let router = cluster.router.pid();
    let whole = thread::spawn({
        let http = cluster.http().to_owned();
        // Again and again, so that there is one when the node dies.
        move || loop {
            if let Err(failure) = ask(&http, &long(1)) {
                return failure;
            }
        }
    });
    let stream = loop {
        let mut stream = Caller::ask(cluster.http(), &streamed(long(2)));
        stream.wait_for_event();
        // More than the other caller's 16: it is not over yet.
        if cluster.decode.metric("num_requests_running") > 16 {
            break stream;
        }
    };
    let (address, setup) = (cluster.decode.serving().to_owned(), cluster.setup.clone());
    let dir = cluster.dir.path().to_owned();
    cluster.decode.crash();
    let failed = whole.join().unwrap();
    assert_eq!((failed.status, &failed.body["error"]["code"]), (502, &json!("node_failed")));
    let rest = stream.rest();
    assert!(rest.contains("node_failed"), "the stream ends with an error: {rest}");
    let refused = ask(cluster.http(), &completion(&[5, 6], 4)).unwrap_err();
    assert_eq!(refused.status, 503, "{refused:?}");
    cluster.settle_one(&cluster.prefill[0]);
    cluster.decode = start_decode(&setup, &dir, &address);
    cluster.wait_until_serving();
    assert_eq!(short(&cluster), before, "the new node computes the same");
    assert_eq!(cluster.router.pid(), router);
    cluster.restart_accounts();
    assert_eq!(short(&cluster).tokens, before.tokens);
    assert_eq!(ask(cluster.http(), &long_prompt()).unwrap().tokens.len(), 8);
    cluster.finish();
}

fn long_prompt() -> Value {
    completion(&Model::Llama.prompt(490, 4), 8)
}

#[test]
fn fault_b12_decode_dies_and_is_replaced_over_shm() {
    decode_dies_while_it_generates(Carrier::Shm);
}

#[test]
fn fault_b12_decode_dies_and_is_replaced_over_tcp() {
    decode_dies_while_it_generates(Carrier::Tcp4);
}

/// Many prompts of 490 tokens, of which the prefill node has a while to compute.
fn many_prompts() -> Value {
    let prompts: Vec<Vec<u32>> = (0..48).map(|n| Model::Llama.prompt(490, 100 + n)).collect();
    let mut body = completion(&[], 4);
    body["prompt"] = json!(prompts);
    body
}

fn prefill_dies_while_it_computes(carrier: Carrier) {
    let mut cluster = Cluster::start(Setup::new(Model::Llama, carrier));
    let before = short(&cluster);
    let asked = thread::spawn({
        let http = cluster.http().to_owned();
        move || ask(&http, &many_prompts())
    });
    wait_until_running(&cluster.prefill[0], 1);
    cluster.prefill[0].crash();
    let failed = asked.join().unwrap().expect_err("the caller is told");
    // Whether the router knew it before it had sent the last prompt.
    let told = (failed.status, failed.body["error"]["code"].as_str().unwrap());
    assert!([(502, "node_failed"), (503, "no_node")].contains(&told), "{told:?}");
    cluster.settle_one(&cluster.decode);
    cluster.restart_prefill();
    assert_eq!(short(&cluster), before, "the new node computes the same");
    cluster.restart_accounts();
    assert_eq!(short(&cluster).tokens, before.tokens);
    cluster.finish();
}

#[test]
fn fault_b26_prefill_dies_and_decode_serves_on_over_shm() {
    prefill_dies_while_it_computes(Carrier::Shm);
}

#[test]
fn fault_b26_prefill_dies_and_decode_serves_on_over_tcp() {
    prefill_dies_while_it_computes(Carrier::Tcp4);
}

/// While there is another node, its callers do not notice.
fn prefill_dies_and_another_computes(carrier: Carrier) {
    // What is asked twice takes as long the second time.
    let setup = Setup::new(Model::Llama, carrier).without_prefix_cache();
    let mut cluster = Cluster::start(Setup { prefill_nodes: 2, ..setup });
    let expected = ask(cluster.http(), &many_prompts()).unwrap();
    let asked = thread::spawn({
        let http = cluster.http().to_owned();
        move || ask(&http, &many_prompts())
    });
    wait_until_running(&cluster.prefill[0], 1);
    cluster.prefill[0].crash();
    let answer = asked.join().unwrap().expect("the other node computes them all");
    assert_eq!(answer.tokens, expected.tokens);
    assert!(cluster.router.log().contains("tried on other nodes"), "some were under way");
    for node in [&cluster.prefill[1], &cluster.decode] {
        cluster.settle_one(node);
    }
    cluster.restart_prefill();
    wait_until("the node in its place computes too", || {
        assert_eq!(ask(cluster.http(), &many_prompts()).unwrap().tokens, expected.tokens);
        cluster.prefill[0].metric("handoffs_sent_total") > 0
    });
    cluster.restart_accounts();
    assert_eq!(ask(cluster.http(), &many_prompts()).unwrap().tokens, expected.tokens);
    cluster.finish();
}

#[test]
fn a_prefill_node_that_dies_is_made_up_for_over_shm() {
    prefill_dies_and_another_computes(Carrier::Shm);
}

#[test]
fn a_prefill_node_that_dies_is_made_up_for_over_tcp() {
    prefill_dies_and_another_computes(Carrier::Tcp4);
}

#[test]
fn a_router_that_dies_frees_what_its_callers_had() {
    let mut cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm));
    let before = short(&cluster);
    let mut stream = Caller::ask(cluster.http(), &streamed(long(2)));
    stream.wait_for_event();
    wait_until_running(&cluster.decode, 1);
    cluster.router.crash();
    for node in [&cluster.prefill[0], &cluster.decode] {
        cluster.settle_one(node);
    }
    let prefill = [cluster.prefill[0].serving()];
    let dir = cluster.dir.path();
    let router =
        crate::cluster::start_router(&cluster.setup, dir, &prefill, cluster.decode.serving());
    cluster.router = router;
    cluster.wait_until_serving();
    cluster.restart_accounts();
    assert_eq!(short(&cluster).tokens, before.tokens);
    cluster.finish();
}

#[test]
fn fault_b07_callers_leave_at_every_moment() {
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        let cluster = Cluster::start(Setup::new(Model::Llama, carrier));
        let before = short(&cluster);
        for step in 0..30 {
            let prompt = Model::Llama.prompt(450, step);
            let body = completion(&prompt, 60);
            let body = if step.is_multiple_of(2) { streamed(body) } else { body };
            let caller = Caller::ask(cluster.http(), &body);
            thread::sleep(Duration::from_millis(4 * step as u64));
            caller.leave();
        }
        cluster.settle();
        assert_eq!(short(&cluster), before);
        cluster.finish();
    }
}

#[test]
fn fault_b08_callers_leave_in_a_stream_and_in_a_long_prefill() {
    let cluster = Cluster::start(Setup::new(Model::SmolLm2, Carrier::Shm));
    let received = || cluster.decode.metric("handoffs_received_total");
    let before = received();
    let body = completion(&Model::SmolLm2.prompt(20, 1), 1500);
    let mut stream = Caller::ask(cluster.http(), &streamed(body));
    stream.wait_for_event();
    wait_until_running(&cluster.decode, 1);
    stream.leave();
    cluster.settle();
    // The stream had 1,500 tokens to come; the node did not go on to make them.
    let sampled = cluster.decode.metric("sampled_tokens_total");
    assert!(sampled < 1000, "{sampled} tokens for nobody");
    let computed = || cluster.prefill[0].metric("prefill_tokens_computed_total");
    for body in [completion(&Model::SmolLm2.prompt(7000, 2), 8)]
        .iter()
        .flat_map(|b| [b.clone(), streamed(b.clone())])
    {
        let before = computed();
        let caller = Caller::ask(cluster.http(), &body);
        wait_until_running(&cluster.prefill[0], 1);
        caller.leave();
        cluster.settle();
        let done = computed() - before;
        assert!(done < 7000, "{done} tokens of a prompt that nobody waits for");
    }
    assert_eq!(received() - before, 1, "only the stream came so far");
    cluster.wait_until_serving();
    cluster.finish();
}

#[test]
fn fault_b19_cold_prompts_are_not_cached() {
    let cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm));
    for (number, length) in [1, 16, 17, 200].into_iter().enumerate() {
        let body = completion(&Model::Llama.prompt(length, 50 + number), 4);
        let stream = completion(&Model::Llama.prompt(length, 70 + number), 4);
        for body in [body, streamed(stream)] {
            let answer = ask(cluster.http(), &body).unwrap();
            assert_eq!((answer.cached_tokens, answer.prompt_tokens), (0, length as u64));
        }
    }
    cluster.finish();
}

#[test]
fn fault_b15_pools_that_are_too_small_finish_everything() {
    let mut setup = Setup::new(Model::Llama, Carrier::Shm);
    setup.flags = vec!["--kv-blocks=40"];
    let cluster = Cluster::start(setup);
    let body = |number| completion(&Model::Llama.prompt(100, number), 300);
    let bodies: Vec<Value> = (0..8).map(body).collect();
    let alone: Vec<Completion> =
        bodies.iter().map(|body| ask(cluster.http(), body).unwrap()).collect();
    let together = crate::client::ask_all(cluster.http(), &bodies, 8);
    for (together, alone) in together.into_iter().zip(alone) {
        assert_eq!(together.unwrap().tokens, alone.tokens);
    }
    let leaving: Vec<Caller> =
        bodies.iter().map(|body| Caller::ask(cluster.http(), body)).collect();
    for (number, caller) in leaving.into_iter().enumerate() {
        if number.is_multiple_of(2) { caller.leave() } else { drop(caller.rest()) }
    }
    cluster.finish();
}

#[test]
fn fault_b25_a_node_that_is_told_to_stop_finishes_what_it_has() {
    let cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Tcp4));
    let expected = ask(cluster.http(), &completion(&Model::Llama.prompt(20, 1), 480)).unwrap();
    let mut body = long(1);
    body["n"] = json!(8);
    let asked = thread::spawn({
        let http = cluster.http().to_owned();
        move || ask(&http, &body)
    });
    wait_until_running(&cluster.decode, 8);
    crate::watchdog::signal(cluster.decode.pid(), rustix::process::Signal::TERM);
    let answer = asked.join().unwrap().unwrap();
    assert_eq!(answer.tokens, expected.tokens);
    cluster.finish_without_decode();
}
