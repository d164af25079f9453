//! Nodes that compute with MLX: on Linux by its CPU backend. Requests go one by one, because MLX rounds otherwise
//! where others share a batch.

use serde_json::Value;

use crate::client::{self, Completion};
use crate::cluster::{Carrier, Cluster, Setup, alone, runtime_dir};
use crate::models::{Model, completion, sampled};
use crate::node::Node;
use crate::refusals::assert_misfit;
use crate::watchdog::Watchdog;

/// Tokens of every answer.
const OUT: u32 = 24;

fn requests(model: Model, lengths: &[usize]) -> Vec<Value> {
    let bodies = lengths.iter().enumerate().map(|(number, length)| {
        let greedy = completion(&model.prompt(*length, number), OUT);
        [greedy.clone(), sampled(greedy, 1000 + number as u64)]
    });
    bodies.flatten().collect()
}

fn mlx(model: Model, carrier: Carrier) -> Setup {
    let mut setup = Setup::new(model, carrier).without_prefix_cache();
    setup.flags.push("--runtime=mlx");
    setup
}

fn one_by_one(http: &str, bodies: &[Value]) -> Vec<Completion> {
    client::ask_all(http, bodies, 1).into_iter().map(Result::unwrap).collect()
}

/// What one process answers.
fn single(setup: &Setup, bodies: &[Value]) -> Vec<Completion> {
    let _alone = alone(setup.model);
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let node = Node::start(dir.path(), "single", &setup.node_flags(&[]));
    let answers = one_by_one(node.http(), bodies);
    node.stop();
    answers
}

/// Several processes answer what one does, and the decode node computes no prompt.
fn assert_equal(setup: Setup, bodies: &[Value], expected: &[Completion]) {
    let cluster = Cluster::start(setup);
    let answers = one_by_one(cluster.http(), bodies);
    for (answer, expected) in answers.iter().zip(expected) {
        assert_eq!(answer.tokens.len(), OUT as usize);
        assert_eq!(answer, expected);
    }
    assert_eq!(cluster.decode.metric("prefill_tokens_computed_total"), 0);
    cluster.finish();
}

#[test]
fn three_processes_equal_one_over_every_carrier() {
    for model in [Model::Llama, Model::Qwen3, Model::Gemma3] {
        let bodies = requests(model, &[1, 16, 17, 300]);
        let expected = single(&mlx(model, Carrier::Shm), &bodies);
        assert_equal(mlx(model, Carrier::Shm), &bodies, &expected);
        assert_equal(mlx(model, Carrier::Tcp4), &bodies, &expected);
        let mut moved = mlx(model, Carrier::Shm);
        moved.decode_flags.push("--no-adopt");
        assert_equal(moved, &bodies, &expected);
    }
}

#[test]
fn three_processes_equal_one_with_a_real_model() {
    let bodies = requests(Model::SmolLm2, &[40]);
    let expected = single(&mlx(Model::SmolLm2, Carrier::Shm), &bodies);
    assert_equal(mlx(Model::SmolLm2, Carrier::Shm), &bodies, &expected);
    assert_equal(mlx(Model::SmolLm2, Carrier::Tcp4), &bodies, &expected);
}

#[test]
fn the_cpu_backends_caches_are_refused() {
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        let cpu = Setup::new(Model::Llama, carrier);
        assert_misfit(&cpu, &mlx(Model::Llama, carrier), &["cpu/1", "mlx-cpu/1"]);
    }
}

/// In blocks of the other's order, which shared memory leaves as they are.
#[test]
fn the_cpu_backends_caches_are_taken_where_both_sides_allow_it() {
    let (cpu, mlx) = ("--runtime=cpu", "--runtime=mlx");
    for (prefill, decode) in [(mlx, cpu), (cpu, mlx)] {
        for model in [Model::Llama, Model::Qwen3, Model::Gemma3] {
            for carrier in [Carrier::Shm, Carrier::Tcp4] {
                let bodies: Vec<_> = requests(model, &[17, 100]).into_iter().step_by(2).collect();
                let mut setup = Setup::new(model, carrier).without_prefix_cache();
                let expected = single(&setup, &bodies);
                setup.flags.push("--allow-cross-backend");
                setup.prefill_flags.push(prefill);
                setup.decode_flags.push(decode);
                assert_equal(setup, &bodies, &expected);
            }
        }
    }
}
