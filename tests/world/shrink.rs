//! Delta debugging (Zeller, Hildebrandt, 2002): from a failing list of events to a short one.

use crate::scenario::{Event, Scenario};

/// Cuts events out for as long as `fails` says that what is left still fails. Tries at most `tries` runs.
pub fn shrink(
    scenario: Scenario,
    mut tries: usize,
    mut fails: impl FnMut(&Scenario) -> bool,
) -> Scenario {
    let seed = scenario.seed;
    let mut events = scenario.events;
    let mut chunk = events.len().div_ceil(2).max(1);
    loop {
        let before = events.len();
        let mut at = 0;
        while at < events.len() && tries > 0 {
            tries -= 1;
            let candidate = Scenario { seed, events: without(&events, at, chunk) };
            if fails(&candidate) {
                events = candidate.events;
            } else {
                at += chunk;
            }
        }
        let smaller = events.len() < before;
        if tries == 0 || (chunk == 1 && !smaller) {
            return Scenario { seed, events };
        }
        // The same size again after a success: what was needed before may not be any more.
        chunk = if smaller { chunk } else { chunk.div_ceil(2) };
        chunk = chunk.min(events.len().max(1));
    }
}

fn without(events: &[Event], at: usize, count: usize) -> Vec<Event> {
    let end = (at + count).min(events.len());
    [&events[..at], &events[end..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::What;

    fn scenario(count: usize) -> Scenario {
        let events = (0..count).map(|at| Event { at: at as u64, what: What::Kill(at) }).collect();
        Scenario { seed: 1, events }
    }

    #[test]
    fn what_is_needed_stays_and_nothing_else() {
        for needed in [vec![], vec![0], vec![199], vec![3, 77], vec![10, 11, 12, 190]] {
            let all_there = |scenario: &Scenario| {
                needed.iter().all(|at| scenario.events.iter().any(|event| event.at == *at))
            };
            let shrunk = shrink(scenario(200), 10_000, all_there);
            let left: Vec<u64> = shrunk.events.iter().map(|event| event.at).collect();
            assert_eq!(left, needed);
        }
    }

    #[test]
    fn the_number_of_tries_is_bounded() {
        let mut runs = 0;
        let shrunk = shrink(scenario(200), 50, |scenario| {
            runs += 1;
            scenario.events.len() > 100
        });
        assert!(runs <= 50 && shrunk.events.len() > 100, "{runs}");
    }
}
