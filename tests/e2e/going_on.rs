//! Answers whose node is killed: they go on on another one, but a request takes no third node with it.

use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use crate::client::{Caller, ask};
use crate::cluster::{
    Carrier, Setup, alone, runtime_dir, start_decode, start_prefill, start_router,
};
use crate::models::{Model, completion, streamed};
use crate::node::{Node, wait_until};
use crate::parity::single_node;
use crate::watchdog::Watchdog;

/// Tokens of an answer: seconds of work.
const OUT: u32 = 160;

/// One prefill node and some decode nodes.
#[derive(Debug)]
struct Fleet {
    router: Node,
    prefill: Node,
    decode: Vec<Node>,
}

impl Fleet {
    fn start(setup: &Setup, dir: &Path, decode: usize) -> Self {
        let bind = |number| setup.carrier.bind(&format!("decode-{number}"));
        let decode: Vec<_> =
            (0..decode).map(|number| start_decode(setup, dir, &bind(number))).collect();
        let all = decode.iter().map(Node::serving).collect::<Vec<_>>().join(",");
        let prefill = start_prefill(setup, dir, &setup.carrier.bind("prefill"), &all);
        let router = start_router(setup, dir, &[prefill.serving()], &all);
        let fleet = Self { router, prefill, decode };
        wait_until("every decode node serves", || {
            let _ = ask(fleet.router.http(), &completion(&Model::SmolLm2.prompt(20, 9), 3));
            fleet.decode.iter().all(|node| node.metric("handoffs_received_total") > 0)
        });
        fleet
    }

    /// Kills the node that generates the one answer there is, once its client has tokens of it.
    fn kill_the_one_that_generates(&mut self) {
        let sampled = |node: &Node| node.metric("sampled_tokens_total");
        let before: Vec<u64> = self.decode.iter().map(sampled).collect();
        let mut found = None;
        wait_until("a node generates", || {
            let mut nodes = self.decode.iter().zip(&before);
            found = nodes.position(|(node, before)| sampled(node) > before + 4);
            found.is_some()
        });
        let mut node = self.decode.remove(found.unwrap());
        assert_eq!(node.metric("num_requests_running"), 1, "it was over too early");
        node.crash();
    }

    /// Stops those that are left. What was killed leaves its socket, for whoever comes in its place.
    fn stop(self) {
        let Self { router, prefill, decode } = self;
        wait_until("the blocks are back", || {
            decode.iter().chain([&prefill]).all(|node| node.metric("pool_blocks_sealed") == 0)
        });
        [router, prefill].into_iter().chain(decode).for_each(Node::stop);
    }
}

fn setup(carrier: Carrier) -> Setup {
    let mut setup = Setup::new(Model::SmolLm2, carrier).without_prefix_cache();
    setup.flags[0] = "--kv-memory=64";
    setup
}

fn goes_on(carrier: Carrier) {
    let setup = setup(carrier);
    let body = completion(&Model::SmolLm2.prompt(40, 1), OUT);
    let expected = single_node(&setup, &[], std::slice::from_ref(&body)).remove(0);
    let (_alone, _watchdog, dir) = (alone(setup.model), Watchdog::start(), runtime_dir());
    let mut fleet = Fleet::start(&setup, dir.path(), 3);
    let http = fleet.router.http().to_owned();

    let stream = streamed(body.clone());
    let asked = thread::spawn({
        let http = http.clone();
        move || ask(&http, &stream)
    });
    fleet.kill_the_one_that_generates();
    assert_eq!(asked.join().unwrap().unwrap(), expected);
    assert_eq!(fleet.router.metric("request_retries_total"), 1);

    let mut whole = body;
    whole["return_token_ids"] = json!(true);
    let asked = Caller::ask(&http, &whole);
    fleet.kill_the_one_that_generates();
    let answer = asked.rest();
    let (head, text) = answer.split_once("\n\n").unwrap();
    assert!(head.contains("x-blockwire-attempts: 2"), "{head}");
    let told: Value = serde_json::from_str(text).unwrap();
    assert_eq!(told["choices"][0]["token_ids"], json!(expected.tokens));
    assert_eq!(fleet.router.metric("request_retries_total"), 2);
    fleet.stop();
}

#[test]
fn an_answer_goes_on_where_its_node_was_killed_over_shm() {
    goes_on(Carrier::Shm);
}

#[test]
fn an_answer_goes_on_where_its_node_was_killed_over_tcp() {
    goes_on(Carrier::Tcp4);
}

#[test]
fn a_request_takes_two_nodes_with_it_and_no_third() {
    let setup = setup(Carrier::Shm);
    let (_alone, _watchdog, dir) = (alone(setup.model), Watchdog::start(), runtime_dir());
    let mut fleet = Fleet::start(&setup, dir.path(), 3);
    let http = fleet.router.http().to_owned();
    let received = fleet.decode.iter().map(|node| node.metric("handoffs_received_total"));
    let received: Vec<u64> = received.collect();
    let names: Vec<String> = fleet.decode.iter().map(|node| node.serving().to_owned()).collect();
    let poison = streamed(completion(&Model::SmolLm2.prompt(40, 1), OUT));
    let asked = thread::spawn({
        let http = http.clone();
        move || ask(&http, &poison)
    });
    fleet.kill_the_one_that_generates();
    fleet.kill_the_one_that_generates();
    let failed = asked.join().unwrap().unwrap_err();
    let error = &failed.body["error"];
    assert_eq!((failed.status, &error["code"]), (200, &json!("nodes_lost")), "{failed:?}");
    let told = error["message"].as_str().unwrap();
    assert!(told.starts_with("two nodes were lost while they computed this request"), "{told}");
    // The last one never had the request, and serves others.
    let left = &fleet.decode[0];
    let number = names.iter().position(|name| name == left.serving()).unwrap();
    assert_eq!(left.metric("handoffs_received_total"), received[number]);
    assert_eq!(left.metric("num_requests_waiting"), 0);
    assert_eq!(ask(&http, &completion(&[5, 6], 4)).unwrap().tokens.len(), 4);
    fleet.stop();
}
