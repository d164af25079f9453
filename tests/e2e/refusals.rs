//! Peers that do not fit: refused at the handshake, both sides named, and nothing else happens.

use crate::accounts::{Accounts, stop_all};
use crate::client;
use crate::cluster::{Carrier, Setup, runtime_dir, start_decode, start_prefill, start_router};
use crate::models::{Model, completion};
use crate::node::{Node, wait_until};
use crate::start_up::{change_weights, copy_llama};
use crate::watchdog::Watchdog;

/// Starts a prefill and a decode node that do not fit, and a router that fits one of them at least.
/// Both logs must say all of `needles`, and the router 503.
pub(crate) fn assert_misfit(prefill: &Setup, decode: &Setup, needles: &[&str]) {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let mut decode_node = start_decode(decode, dir.path(), &decode.carrier.bind("d"));
    let bind = prefill.carrier.bind("p");
    let mut prefill_node = start_prefill(prefill, dir.path(), &bind, decode_node.serving());
    let peers = [prefill_node.serving()];
    let mut router = start_router(prefill, dir.path(), &peers, decode_node.serving());
    for node in [&prefill_node, &decode_node] {
        let said =
            |log: &str| log.lines().any(|line| needles.iter().all(|needle| line.contains(needle)));
        wait_until(&format!("{} names {needles:?}", node.role), || said(&node.log()));
    }
    wait_until_met(&router);
    let nodes = [&decode_node, &prefill_node, &router];
    let accounts = Accounts::take(nodes.into_iter());
    for _ in 0..3 {
        let refused = client::ask(router.http(), &completion(&[5, 6, 7], 4)).unwrap_err();
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(refused.body["error"]["type"], "service_unavailable_error", "{refused:?}");
    }
    for node in [&mut decode_node, &mut prefill_node, &mut router] {
        assert!(node.is_running(), "{} ended", node.role);
        assert!(!node.log().contains("panicked"), "{}", node.log());
    }
    accounts.settle([&prefill_node, &decode_node, &router].into_iter());
    stop_all([router, prefill_node, decode_node], dir.path());
}

/// Waits until the router has a connection to each of two nodes, or was refused.
fn wait_until_met(router: &Node) {
    let lines = ["INFO connected address", "WARN no connection yet"];
    let met = |log: &str| lines.iter().map(|line| log.matches(line).count()).sum::<usize>();
    wait_until("the router met both nodes", || met(&router.log()) >= 2);
}

fn with(model: Model, carrier: Carrier, flag: &'static str) -> Setup {
    let mut setup = Setup::new(model, carrier);
    setup.flags.push(flag);
    setup
}

#[test]
fn fault_b05_another_type_of_cache_is_refused() {
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        let (f16, bf16) = ("--kv-dtype=f16", "--kv-dtype=bf16");
        let setups = [f16, bf16].map(|flag| with(Model::Llama, carrier, flag));
        assert_misfit(&setups[0], &setups[1], &["2x16 f16", "2x16 bf16"]);
    }
}

#[test]
fn another_model_is_refused() {
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        let setups = [Model::Qwen3, Model::Llama].map(|model| Setup::new(model, carrier));
        assert_misfit(&setups[0], &setups[1], &["2x16 f16", "2x32 f16"]);
    }
}

#[test]
fn another_checkpoint_of_the_same_shape_is_refused() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let folder = dir.path().join("finetuned");
    copy_llama(&folder);
    change_weights(&folder);
    let setup = Setup::new(Model::Llama, Carrier::Tcp4);
    let mut decode = start_decode(&setup, dir.path(), "tcp://127.0.0.1:0");
    let model = folder.display().to_string();
    let bind = ["--serving-bind", "tcp://127.0.0.1:0", "--decode-peers", decode.serving()];
    let base = ["--model", &model, "--http", "127.0.0.1:0", "--kv-memory=16"];
    let flags: Vec<String> = base.iter().chain(&bind).map(|flag| (*flag).to_owned()).collect();
    let mut prefill = Node::start(dir.path(), "prefill", &flags);
    let router = start_router(&setup, dir.path(), &[prefill.serving()], decode.serving());
    for node in [&prefill, &decode, &router] {
        let said = |log: &str| {
            let both = |line: &str| line.contains("finetuned") && line.contains("llama (");
            log.lines().any(|line| both(line) && line.contains("fingerprints differ"))
        };
        wait_until(&format!("{} names both models", node.role), || said(&node.log()));
    }
    wait_until_met(&router);
    let accounts = Accounts::take([&prefill, &decode, &router].into_iter());
    let refused = client::ask(router.http(), &completion(&[5, 6, 7], 4)).unwrap_err();
    assert_eq!(refused.status, 503, "{refused:?}");
    let (status, reason) = client::get(&format!("{}/ready", router.http()));
    assert_eq!(status, 503);
    assert!(reason.contains("no prefill node"), "{reason}");
    assert!(decode.is_running() && prefill.is_running());
    // A right node at another address is all it takes: see `faults`.
    accounts.settle([&prefill, &decode, &router].into_iter());
    stop_all([router, prefill, decode], dir.path());
}
