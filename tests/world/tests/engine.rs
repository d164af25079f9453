//! Endpoints hand blocks to one another while everything goes wrong.

use blockwire_world::engine::ENGINE;

#[test]
fn seeds() {
    ENGINE.run_many(1400);
}

#[test]
fn what_failed_once() {
    ENGINE.run_regressions();
}

#[test]
fn a_seed_is_a_run() {
    ENGINE.check_determinism(40);
}
