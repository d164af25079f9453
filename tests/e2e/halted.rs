//! Nodes that are halted or gone in the middle of something: those that waited for them get their memory back,
//! and nobody waits for what cannot come.

use std::fs;
use std::time::Duration;
use std::{iter, thread};

use rustix::process::Signal;
use serde_json::Value;

use crate::client::{Caller, ask};
use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::{Model, completion};
use crate::node::{Node, wait_until};
use crate::watchdog::signal;

const CARRIERS: [Carrier; 2] = [Carrier::Shm, Carrier::Tcp4];

fn short(cluster: &Cluster) -> Vec<u32> {
    ask(cluster.http(), &completion(&Model::Llama.prompt(33, 3), 24)).unwrap().tokens
}

/// The caller leaves while the prefill node, which has its request, stands still: the decode node must not keep
/// what it had reserved, and the prefill node has everything back once it goes on.
#[test]
fn fault_b01_callers_that_leave_a_halted_prefill_node_cost_no_block() {
    for carrier in CARRIERS {
        let cluster = Cluster::start(Setup::new(Model::Llama, carrier).without_prefix_cache());
        let before = short(&cluster);
        for step in 0..12 {
            let mut body = completion(&Model::Llama.prompt(450, step), 60);
            body["n"] = 4.into();
            let caller = Caller::ask(cluster.http(), &body);
            thread::sleep(Duration::from_millis(7 * step as u64));
            signal(cluster.prefill[0].pid(), Signal::STOP);
            caller.leave();
            cluster.settle_one(&cluster.decode);
            signal(cluster.prefill[0].pid(), Signal::CONT);
            cluster.settle();
        }
        assert_eq!(short(&cluster), before);
        cluster.finish();
    }
}

/// Regions of others that a process has mapped.
fn pools_mapped(node: &Node) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", node.pid())).unwrap();
    let regions = maps.lines().filter(|line| line.contains("/memfd:"));
    regions
        .filter_map(|line| line.split_whitespace().nth(4))
        .collect::<std::collections::BTreeSet<_>>()
        .len()
}

/// What was mapped of a node that is gone goes, before another comes in its place.
#[test]
fn fault_b14_nothing_of_a_dead_prefill_node_stays_mapped() {
    let mut cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm));
    let before = short(&cluster);
    let mapped = pools_mapped(&cluster.decode);
    let open = cluster.decode.resources().descriptors;
    for _ in 0..3 {
        cluster.prefill[0].crash();
        wait_until("its memory is let go", || {
            pools_mapped(&cluster.decode) < mapped && cluster.decode.resources().descriptors < open
        });
        cluster.restart_prefill();
        assert_eq!(short(&cluster), before);
        wait_until("the new one's is mapped", || pools_mapped(&cluster.decode) == mapped);
    }
    cluster.restart_accounts();
    cluster.finish();
}

/// While no prefill node is there a request is refused at once, and the decode node hears nothing of it.
#[test]
fn fault_b23_no_decode_node_waits_for_a_prefill_that_failed() {
    for carrier in CARRIERS {
        let mut cluster = Cluster::start(Setup::new(Model::Llama, carrier));
        let before = short(&cluster);
        let received = cluster.decode.metric("handoffs_received_total");
        cluster.prefill[0].crash();
        let body: Value = completion(&Model::Llama.prompt(60, 4), 8);
        wait_until("the router knows", || ask(cluster.http(), &body).unwrap_err().status == 503);
        for _ in 0..5 {
            let failure = ask(cluster.http(), &body).unwrap_err();
            assert_eq!((failure.status, &failure.body["error"]["code"]), (503, &"no_node".into()));
        }
        for waiting in ["num_requests_running", "num_requests_waiting", "pool_blocks_reserved"] {
            assert_eq!(cluster.decode.metric(waiting), 0, "{waiting}");
        }
        assert_eq!(cluster.decode.metric("handoffs_received_total"), received);
        cluster.restart_prefill();
        assert_eq!(short(&cluster), before);
        cluster.restart_accounts();
        cluster.finish();
    }
}

/// A node that was killed a hundred times amid its handoffs starts once more: nothing of the system is used up.
#[test]
fn fault_b32_a_hundred_crashes_leave_room_for_another_start() {
    for carrier in CARRIERS {
        let mut cluster = Cluster::start(Setup::new(Model::Llama, carrier).without_prefix_cache());
        let before = short(&cluster);
        let others = [&cluster.router, &cluster.decode].map(|node| (node.pid(), node.resources()));
        for round in 0..50 {
            let callers = iter::repeat_with(|| {
                Caller::ask(cluster.http(), &completion(&Model::Llama.prompt(300, round), 3))
            });
            let callers: Vec<Caller> = callers.take(3).collect();
            thread::sleep(Duration::from_millis(round as u64 % 25));
            cluster.prefill[0].crash();
            callers.into_iter().for_each(|caller| drop(caller.rest()));
            cluster.restart_prefill();
        }
        assert_eq!(short(&cluster), before);
        cluster.settle_one(&cluster.decode);
        for (node, (pid, then)) in [&cluster.router, &cluster.decode].into_iter().zip(others) {
            assert_eq!(node.pid(), pid);
            wait_until("descriptors and threads are back", || {
                let now = node.resources();
                now.descriptors <= then.descriptors && now.threads <= then.threads
            });
        }
        cluster.restart_accounts();
        cluster.finish();
    }
}

/// A caller leaves while its request is at one stage, and is held there because a node is halted or full.
#[test]
fn fault_b45_callers_leave_at_each_stage() {
    for carrier in CARRIERS {
        let mut setup = Setup::new(Model::Llama, carrier).without_prefix_cache();
        setup.flags.retain(|flag| !flag.starts_with("--kv"));
        setup.prefill_flags = vec!["--kv-blocks=40"];
        setup.decode_flags = vec!["--kv-blocks=40"];
        let cluster = Cluster::start(setup);
        let before = short(&cluster);
        let (prefill, decode) = (&cluster.prefill[0], &cluster.decode);
        let has = |node: &Node, name: &str| node.metric(name) > 0;
        let long = |number| completion(&Model::Llama.prompt(490, number), 20);
        for round in 0..3 {
            // Offered, and not taken: the decode node hears nothing. Behind it one waits for the blocks.
            signal(decode.pid(), Signal::STOP);
            let offered = Caller::ask(cluster.http(), &long(round));
            wait_until("it is offered", || {
                has(prefill, "pool_blocks_sealed") && !has(prefill, "num_requests_running")
            });
            let queued = Caller::ask(cluster.http(), &long(10 + round));
            wait_until("it waits", || has(prefill, "num_requests_waiting"));
            queued.leave();
            wait_until("it waits no more", || !has(prefill, "num_requests_waiting"));
            offered.leave();
            signal(decode.pid(), Signal::CONT);
            cluster.settle();
            // Offered to a decode node without room, and generating there. A long prompt takes 31 of its 40 blocks.
            let generating =
                Caller::ask(cluster.http(), &completion(&Model::Llama.prompt(20, 3), 480));
            let taken =
                || decode.metric("pool_blocks_reserved") + decode.metric("pool_blocks_sealed");
            wait_until("it leaves no room", || taken() > 9);
            let refused_for_now = Caller::ask(cluster.http(), &long(20 + round));
            wait_until("it is computed", || has(prefill, "pool_blocks_sealed"));
            if round == 1 {
                generating.leave()
            } else {
                refused_for_now.leave()
            }
            cluster.settle();
        }
        assert_eq!(short(&cluster), before);
        cluster.finish();
    }
}
