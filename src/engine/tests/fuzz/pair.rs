//! Two honest sessions and a link that does to their operations what the bytes say.

use blockwire_conformance::script::Script;

use super::world::{Way, World, step};

/// Most steps: what was begun must come to its end in the rounds that `World::finish` has.
const STEPS_MAX: usize = 200;

/// Plays a script of steps, of three bytes each, after one that says how payload moves.
///
/// # Panics
/// When an offer does not end exactly once, a block does not come back, or is freed under a reader.
pub(crate) fn play(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let ways = [Way::Push, Way::Lingering, Way::Pull, Way::Adopt];
    let mut world = World::new(ways[usize::from(script.byte()) % ways.len()]);
    for _ in 0..STEPS_MAX {
        if script.is_over() {
            break;
        }
        let (kind, number, index) = (script.byte() % 17, script.byte(), script.byte());
        step(&mut world, kind, number.into(), index.into());
    }
    world.finish();
    world.check_end();
}
