//! A router that hands over where it pays: whoever computes a prompt, the answer is the single node's.

use std::thread;

use serde_json::{Value, json};

use crate::client::{ask, ask_all, get};
use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::{Model, completion, sampled, streamed};
use crate::node::wait_until;
use crate::parity::single_node;

fn setup(carrier: Carrier) -> Setup {
    let mut setup = Setup::new(Model::Llama, carrier);
    setup.flags.push("--handoff=auto");
    setup
}

/// Prompts of every length, some of which go on where others end.
fn requests() -> Vec<Value> {
    let request = |number: usize| {
        let mut prompt = Model::Llama.prompt(64 * (number % 3), 7);
        prompt.extend(Model::Llama.prompt(1 + 11 * number, number));
        let body = completion(&prompt, 1 + (number % 9) as u32 * 3);
        if number.is_multiple_of(2) { body } else { sampled(body, number as u64) }
    };
    (0..30).map(request).collect()
}

/// How often prompts were handed over, and how often the decode node computed them itself.
fn plans(cluster: &Cluster) -> (u64, u64) {
    let text = get(&format!("{}/stats", cluster.http())).1;
    let stats: Value = serde_json::from_str(&text).unwrap();
    let count = |place: &str| stats["plans"][place].as_u64().unwrap();
    (count("handoff"), count("local"))
}

/// The header that says how a request was served.
fn plan_of(cluster: &Cluster, body: &Value) -> String {
    let url = format!("{}/v1/completions", cluster.http());
    let answer = ureq::post(&url).send_json(body).unwrap();
    answer.headers()["x-blockwire-plan"].to_str().unwrap().to_owned()
}

fn every_plan_gives_the_single_nodes_answer(carrier: Carrier) {
    let bodies = requests();
    let expected = single_node(&setup(carrier), &[], &bodies);
    let cluster = Cluster::start(setup(carrier));
    // One by one first: an idle decode node is measured.
    for (body, expected) in bodies.iter().zip(&expected) {
        assert_eq!(ask(cluster.http(), body).unwrap(), *expected, "{body}");
    }
    let streams: Vec<Value> = bodies.iter().cloned().map(streamed).collect();
    for bodies in [&bodies, &streams] {
        let answers = ask_all(cluster.http(), bodies, 6);
        for (answer, expected) in answers.into_iter().zip(&expected) {
            assert_eq!(answer.unwrap(), *expected);
        }
    }
    let (handoff, local) = plans(&cluster);
    assert!(handoff > 0 && local > 0, "{handoff} handed over, {local} not");
    assert_eq!(cluster.router.metric("request_plans_total"), handoff + local);
    assert_eq!(cluster.decode.metric("local_prefills_total"), local);
    let told = plan_of(&cluster, &bodies[9]);
    assert!(told.contains("; why=") && told.contains("; handoff="), "{told}");
    let known = get(&format!("{}/stats", cluster.http())).1;
    let known: Value = serde_json::from_str(&known).unwrap();
    for node in known["nodes"].as_array().unwrap() {
        assert!(node["prefill_tokens_per_second"].as_f64().unwrap() > 0.0, "{node}");
    }
    cluster.settle();
    cluster.finish();
}

#[test]
fn every_plan_gives_the_single_nodes_answer_over_shm() {
    every_plan_gives_the_single_nodes_answer(Carrier::Shm);
}

#[test]
fn every_plan_gives_the_single_nodes_answer_over_tcp() {
    every_plan_gives_the_single_nodes_answer(Carrier::Tcp4);
}

/// The only prefill node dies amid requests, stays away, and comes back: nobody is refused, and nobody gets other tokens.
fn without_a_prefill_node_the_decode_node_serves_alone(carrier: Carrier) {
    let bodies = requests();
    let expected = single_node(&setup(carrier), &[], &bodies);
    let mut cluster = Cluster::start(setup(carrier));
    let http = cluster.http().to_owned();
    let many: Vec<Value> = bodies.iter().cycle().take(8 * bodies.len()).cloned().collect();
    let asked = many.clone();
    let under_way = thread::spawn(move || ask_all(&http, &asked, 6));
    wait_until("requests are under way", || cluster.router.metric("http_requests_in_flight") > 0);
    cluster.prefill[0].crash();
    let answers = under_way.join().unwrap();
    for (answer, expected) in answers.into_iter().zip(expected.iter().cycle()) {
        assert_eq!(answer.unwrap(), *expected);
    }
    assert_eq!(plan_of(&cluster, &bodies[3]), "local; why=no_prefill_node");
    assert_eq!(get(&format!("{}/ready", cluster.http())).0, 200);
    for (body, expected) in bodies.iter().zip(&expected) {
        assert_eq!(ask(cluster.http(), &streamed(body.clone())).unwrap(), *expected, "{body}");
    }
    cluster.settle_one(&cluster.decode);
    cluster.restart_prefill();
    wait_until("prompts are handed over again", || {
        ask(cluster.http(), &completion(&Model::Llama.prompt(40, 3), 3)).unwrap();
        cluster.prefill[0].metric("handoffs_sent_total") > 0
    });
    cluster.restart_accounts();
    assert_eq!(ask(cluster.http(), &bodies[5]).unwrap(), expected[5]);
    cluster.finish();
}

#[test]
fn without_a_prefill_node_the_decode_node_serves_alone_over_shm() {
    without_a_prefill_node_the_decode_node_serves_alone(Carrier::Shm);
}

#[test]
fn without_a_prefill_node_the_decode_node_serves_alone_over_tcp() {
    without_a_prefill_node_the_decode_node_serves_alone(Carrier::Tcp4);
}

/// A router that hands over always says so, and refuses where it cannot.
#[test]
fn a_router_that_was_not_told_otherwise_hands_over() {
    let mut cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm));
    let body = completion(&Model::Llama.prompt(40, 1), 8);
    assert_eq!(plan_of(&cluster, &body), "handoff; why=always");
    cluster.prefill[0].crash();
    let failed = ask(cluster.http(), &body).unwrap_err();
    let told = (failed.status, &failed.body["error"]["code"]);
    // Whether the router knew of it.
    assert!([(502, &json!("node_failed")), (503, &json!("no_node"))].contains(&told), "{told:?}");
    assert_eq!(plans(&cluster).1, 0);
    cluster.settle_one(&cluster.decode);
    cluster.restart_prefill();
    cluster.restart_accounts();
    cluster.finish();
}
