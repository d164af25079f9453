//! Clusters serve while everything goes wrong.

use blockwire_world::serving::SERVING;

#[test]
fn seeds() {
    SERVING.run_many(600);
}

#[test]
fn what_failed_once() {
    SERVING.run_regressions();
}

#[test]
fn a_seed_is_a_run() {
    SERVING.check_determinism(20);
}
