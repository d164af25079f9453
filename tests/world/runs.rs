//! Many runs, one after the other; a failure is cut down, written down and printed.
//!
//! `BLOCKWIRE_SIM_SEED=7` replays one seed with its trace, `BLOCKWIRE_SIM_RUNS=100000` asks for as many
//! seeds, `BLOCKWIRE_SIM_FROM` says where they begin.

use std::str::FromStr;
use std::time::Duration;

use blockwire::clock;
use blockwire_sim::Trace;

use crate::oracle::{Counts, Report};
use crate::panics;
use crate::regressions;
use crate::scenario::Scenario;
use crate::shrink::shrink;
use crate::watchdog::Watchdog;

/// Runs of a shrink.
const TRIES_MAX: usize = 4000;

/// What happens in many runs of any world: every kind of event and of fault.
const HAPPENS: &[&str] = &[
    "dial refused",
    "event: cut",
    "event: heal",
    "event: hog",
    "event: kill",
    "event: reset",
    "event: start",
    "event: stop",
    "event: weather breaking",
    "event: weather corrupt",
    "event: weather fair",
    "event: weather rude",
    "event: weather slow",
    "event: weather still",
    "frame corrupted",
    "frame doubled",
    "frame lost",
    "life begun",
    "life ended",
    "link broken",
    "link reset",
    "path cut",
    "path healed",
    "payload corrupted",
    "tail lost",
];

/// Something that scenarios are run in.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Names the folder of its regressions, and the test that replays a seed.
    pub name: &'static str,
    /// Draws a scenario.
    pub draw: fn(u64) -> Scenario,
    /// Runs one.
    pub run: fn(&Scenario, Trace) -> Report,
    /// What happens in many runs beside the events and faults of all worlds, or else they find less than they
    /// seem to.
    pub happens: &'static [&'static str],
}

impl World {
    /// Runs a scenario; a panic anywhere in it is a failure too.
    pub fn run(&self, scenario: &Scenario, trace: Trace) -> Report {
        let (report, panics) = panics::catch(|| (self.run)(scenario, trace));
        match panics.into_iter().next() {
            Some(panic) => Report { verdict: Err(panic), ..report },
            None => report,
        }
    }

    /// Runs `usual` seeds, or what the environment asks for, and prints how often what happened.
    ///
    /// # Panics
    /// With the line that replays it and the trace, when one fails; when something never
    /// [`happens`](Self::happens) in `usual` seeds or more.
    pub fn run_many(&self, usual: u64) {
        let watchdog = Watchdog::default();
        if let Some(seed) = from_env("BLOCKWIRE_SIM_SEED") {
            watchdog.begin(self.replay(seed));
            return self.explain(&(self.draw)(seed), &format!("seed {seed}"), true);
        }
        let first = from_env("BLOCKWIRE_SIM_FROM").unwrap_or(0);
        let runs = from_env("BLOCKWIRE_SIM_RUNS").unwrap_or(usual);
        let (mut counts, start) = (Counts::new(), clock::now());
        for seed in first..first + runs {
            watchdog.begin(self.replay(seed));
            let scenario = (self.draw)(seed);
            let report = self.run(&scenario, Trace::default());
            if let Err(why) = report.verdict {
                eprintln!("seed {seed} fails: {why}\nreplay: {}", self.replay(seed));
                self.cut_down(scenario, &why, &watchdog);
            }
            for (what, count) in report.counts {
                *counts.entry(what).or_default() += count;
            }
        }
        self.sum_up(runs, start.elapsed(), &counts);
        for what in HAPPENS.iter().chain(self.happens).filter(|_| runs >= usual) {
            assert!(counts.contains_key(what), "{} world: {what:?} never happens", self.name);
        }
    }

    /// Prints how often what happened.
    fn sum_up(&self, runs: u64, took: Duration, counts: &Counts) {
        let rate = runs as f64 / took.as_secs_f64();
        eprintln!("{} world: {runs} seeds without a failure, {rate:.1} a second", self.name);
        for (what, count) in counts {
            eprintln!("{count:>12}  {what}");
        }
    }

    /// Runs every scenario that failed once.
    ///
    /// # Panics
    /// When one fails.
    pub fn run_regressions(&self) {
        let watchdog = Watchdog::default();
        for (name, scenario) in regressions::all(self.name) {
            watchdog.begin(format!("regression {name}"));
            self.explain(&scenario, &name, false);
        }
    }

    /// The same scenario twice is the same trace.
    ///
    /// # Panics
    /// When it is not.
    pub fn check_determinism(&self, seeds: u64) {
        for seed in 0..seeds {
            let scenario = (self.draw)(seed);
            let [first, second] = [(); 2].map(|()| {
                let mut text = String::new();
                self.traced(&scenario, &mut text).unwrap_or_else(|why| panic!("{text}{why}"));
                text
            });
            let differs = first.lines().zip(second.lines()).position(|(one, other)| one != other);
            if let Some(line) = differs {
                let pick = |text: &str| {
                    text.lines()
                        .skip(line.saturating_sub(5))
                        .take(7)
                        .fold(String::new(), |all, line| all + line + "\n")
                };
                panic!(
                    "seed {seed} differs at line {line}:\n{}---\n{}",
                    pick(&first),
                    pick(&second)
                );
            }
            assert_eq!(first.len(), second.len(), "seed {seed}: one trace goes on");
        }
    }

    fn cut_down(&self, scenario: Scenario, why: &str, watchdog: &Watchdog) {
        let shrunk = shrink(scenario, TRIES_MAX, |candidate| {
            watchdog.begin(format!("a part of seed {}: {candidate:?}", candidate.seed));
            self.run(candidate, Trace::default()).verdict.is_err()
        });
        let name = format!("seed-{}", shrunk.seed);
        let path = regressions::save(self.name, &name, &shrunk, why);
        eprintln!("cut down to {} events: {}", shrunk.events.len(), path.display());
        self.explain(&shrunk, &name, false);
        panic!("the failure of seed {} went away when it was run again", shrunk.seed);
    }

    /// Runs a scenario with its trace; prints that where it fails, or where `always`.
    fn explain(&self, scenario: &Scenario, name: &str, always: bool) {
        let mut text = String::new();
        let result = self.traced(scenario, &mut text);
        if always || result.is_err() {
            eprintln!("{text}");
        }
        if let Err(why) = result {
            panic!("{} world, {name}: {why}", self.name);
        }
    }

    fn traced(&self, scenario: &Scenario, text: &mut String) -> Result<(), String> {
        let trace = Trace::kept();
        let report = self.run(scenario, trace.clone());
        *text = trace.text();
        report.verdict
    }

    fn replay(&self, seed: u64) -> String {
        let name = self.name;
        format!(
            "BLOCKWIRE_SIM_SEED={seed} cargo test -p blockwire-world --test {name} seeds -- --nocapture"
        )
    }
}

fn from_env<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}
