//! A family whose models keep state that no block holds: the state goes along with the cache; where it may not, each
//! request is refused by the family's name, and the nodes stand as they stood.

use serde_json::{Value, json};

use crate::accounts::{Accounts, stop_all};
use crate::client;
use crate::cluster::{Carrier, Setup, runtime_dir, start_decode, start_prefill, start_router};
use crate::models::{Model, completion, streamed};
use crate::node::{Node, wait_until};
use crate::parity::single_node;
use crate::watchdog::Watchdog;

fn requests() -> Vec<Value> {
    let lengths = [1, 2, 3, 16, 17, 300].iter().enumerate();
    lengths.map(|(number, length)| completion(&Model::Lfm2.prompt(*length, number), 40)).collect()
}

#[test]
fn one_process_serves_a_model_owned_family() {
    let setup = Setup::new(Model::Lfm2, Carrier::Shm);
    let expected = single_node(&setup, &["--max-batch=1"], &requests());
    // Not enough for all: some are computed twice.
    let small = Setup { flags: vec!["--kv-blocks=30", "--prefill-chunk=7"], ..setup };
    assert_eq!(single_node(&small, &[], &requests()), expected);
    assert!(expected.iter().all(|answer| answer.tokens.len() == 40));
}

/// First and third criterion of the fault B30: the request fails with one error that names the family, the pool
/// is not read, the next one fares the same, and nobody takes a node for lost.
fn refused_by_name(carrier: Carrier) {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let mut setup = Setup::new(Model::Lfm2, carrier);
    setup.flags.push("--no-state-handoff");
    let mut decode = start_decode(&setup, dir.path(), &carrier.bind("d"));
    let mut prefill = start_prefill(&setup, dir.path(), &carrier.bind("p"), decode.serving());
    let mut router = start_router(&setup, dir.path(), &[prefill.serving()], decode.serving());
    let ready = |router: &Node| client::get(&format!("{}/ready", router.http())).0 == 200;
    wait_until("the router has both nodes", || ready(&router));
    // What a connection takes is there once a request went over it.
    wait_until("the nodes have each other", || {
        client::ask(router.http(), &requests()[0]).is_err_and(|refused| refused.status == 400)
    });
    let accounts = Accounts::take([&decode, &prefill, &router].into_iter());
    let lost = |node: &Node| node.log().matches(" WARN ").count() - refusals(node);
    let lost_before = [&decode, &prefill, &router].map(lost);
    for body in requests().iter().flat_map(|body| [body.clone(), streamed(body.clone())]) {
        let refused = client::ask(router.http(), &body).unwrap_err();
        assert_eq!(refused.status, 400, "{refused:?}");
        let error = &refused.body["error"];
        assert_eq!(error["code"], json!("unsupported_model"), "{refused:?}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("lfm2") && message.contains("handoff"), "{message}");
        assert!(ready(&router), "the router took a node for lost");
    }
    assert_eq!([&decode, &prefill, &router].map(lost), lost_before, "{}", router.log());
    for node in [&mut decode, &mut prefill, &mut router] {
        assert!(node.is_running() && !node.log().contains("panicked"), "{}", node.log());
    }
    assert_eq!(prefill.metric("prefill_tokens_computed_total"), 0);
    assert_eq!((prefill.metric("handoffs_sent_total"), payload(&[&prefill, &decode])), (0, 0));
    accounts.settle([&decode, &prefill, &router].into_iter());
    stop_all([router, prefill, decode], dir.path());
}

/// Warnings about requests, of which there may be one each.
fn refusals(node: &Node) -> usize {
    node.log().lines().filter(|line| line.contains(" WARN ") && line.contains("lfm2")).count()
}

fn payload(nodes: &[&Node]) -> u64 {
    nodes.iter().map(|node| node.metric("payload_landed_bytes_total")).sum()
}

#[test]
fn fault_b30_a_model_owned_family_is_refused_by_name_over_shm() {
    refused_by_name(Carrier::Shm);
}

#[test]
fn fault_b30_a_model_owned_family_is_refused_by_name_over_tcp() {
    refused_by_name(Carrier::Tcp4);
}
