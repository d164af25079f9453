//! The cluster and what happens to it.

use std::time::Duration;

use blockwire_sim::{Network, Trace};
use fastrand::Rng;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::node::{Nature, Node, Surroundings, name};
use crate::oracle::{Oracle, Report};
use crate::scenario::{Scenario, Weather, What};
use crate::weather::{conditions, draw_capabilities};

/// Until everybody has found everybody.
const WARM_UP: Duration = Duration::from_secs(3);
/// Longest time after the last event until everything has come to rest.
const REST_MAX: Duration = Duration::from_secs(300);

struct World {
    all: Surroundings,
    natures: Vec<Nature>,
    /// The life of each node; none while it is gone.
    nodes: Vec<Option<Node>>,
    lives: u32,
    /// Those that ended: their pools become whole too.
    gone: Vec<Node>,
}

/// Runs a scenario in virtual time.
pub(super) fn run(scenario: &Scenario, trace: Trace) -> Report {
    // The pauses of those who look for their peers are drawn by this thread's generator.
    fastrand::seed(scenario.seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let oracle = Oracle::new(trace.clone());
        let mut world = World::new(scenario, oracle.clone(), trace);
        sleep(WARM_UP).await;
        world.play(scenario).await;
        if !oracle.has_failed() {
            world.rest().await;
        }
        oracle.add(world.all.network.faults());
        oracle.report()
    })
}

impl World {
    fn new(scenario: &Scenario, oracle: Oracle, trace: Trace) -> Self {
        let mut random = Rng::with_seed(scenario.seed ^ 0x5eed);
        let network = Network::traced(random.u64(..), trace);
        let weather = if random.bool() { Weather::Fair } else { Weather::Still };
        network.set_conditions(conditions(weather));
        let hosts = scenario.hosts().max(3);
        for number in 0..hosts {
            network.set_capabilities(&name(number), draw_capabilities(&mut random));
        }
        let natures: Vec<_> = (0..hosts).map(|_| Nature::draw(&mut random)).collect();
        let calm = !scenario.events.iter().any(|event| breaks(&event.what));
        let all = Surroundings { network, oracle, hosts, calm };
        let nodes = (0..hosts).map(|_| None).collect();
        let mut world = Self { all, natures, nodes, lives: 0, gone: vec![] };
        (0..hosts).for_each(|number| world.start(number));
        world
    }

    async fn play(&mut self, scenario: &Scenario) {
        let start = Instant::now();
        for event in &scenario.events {
            sleep_until(start + Duration::from_millis(event.at)).await;
            self.apply(&event.what);
            self.check();
            if self.all.oracle.has_failed() {
                return;
            }
        }
    }

    fn apply(&mut self, what: &What) {
        self.all.oracle.count(what.kind());
        let network = &self.all.network;
        match *what {
            What::Ask(ask) => self.with(ask.router, |node| node.ask(ask)),
            What::Cut(one, other) => network.partition(&name(one), &name(other)),
            What::Heal(one, other) => network.heal(&name(one), &name(other)),
            What::Reset(one, other) => network.reset(&name(one), &name(other)),
            What::Kill(number) => self.end(number, Node::kill),
            What::Stop(number) => self.end(number, Node::stop),
            What::Start(number) => self.start(number),
            What::Weather(one, other, weather) => {
                self.all.oracle.note(|| format!("weather {one} - {other}: {weather:?}"));
                network.set_path_conditions(&name(one), &name(other), conditions(weather));
            }
            What::Hog(hog) => self.with(hog.host, |node| node.hog(hog.blocks, hog.hold)),
            What::Slow(number, millis) => self.with(number, |node| node.slow_down(millis)),
            What::Offer(_) | What::Recall(_) => {}
        }
    }

    /// After every step.
    fn check(&self) {
        for node in self.nodes.iter().flatten().chain(&self.gone) {
            if let Some(pool) = node.pool() {
                self.all.oracle.check_pool(node.name(), pool);
            }
        }
        let found = self.all.network.findings();
        found.into_iter().for_each(|finding| self.all.oracle.fail(finding));
    }

    /// Everything comes to rest, and every block comes back: first while all still run, then after an
    /// orderly end of all.
    async fn rest(&mut self) {
        self.all.oracle.note(|| "the weather clears up".to_owned());
        self.all.network.set_conditions(conditions(Weather::Fair));
        for one in 0..self.nodes.len() {
            (0..one).for_each(|other| self.all.network.heal(&name(one), &name(other)));
        }
        self.wait("has clients at rest", |node| !node.has_clients()).await;
        let in_flight = |node: &Node| node.router().map_or(0, |router| router.in_flight());
        self.wait("has requests in flight at rest", |node| in_flight(node) == 0).await;
        self.wait("has blocks in use at rest", |node| node.pool().is_none_or(Oracle::is_full))
            .await;
        for number in 0..self.nodes.len() {
            self.end(number, Node::stop);
        }
        self.wait("does not end", Node::is_over).await;
        self.wait("has blocks in use at its end", |node| node.pool().is_none_or(Oracle::is_full))
            .await;
        self.check();
    }

    /// Waits until something holds of every node, or says of which it does not.
    async fn wait(&self, otherwise: &str, holds: impl Fn(&Node) -> bool) {
        let start = Instant::now();
        let all = || self.nodes.iter().flatten().chain(&self.gone);
        while let Some(node) = all().find(|node| !holds(node)) {
            if start.elapsed() > REST_MAX {
                let accounting = node.pool().map(|pool| pool.accounting());
                let name = node.name();
                return self.all.oracle.fail(format!("{name} {otherwise}: {accounting:?}"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn with(&self, number: usize, then: impl FnOnce(&Node)) {
        if let Some(node) = self.nodes.get(number).and_then(Option::as_ref) {
            then(node);
        }
    }

    fn end(&mut self, number: usize, end: fn(&mut Node)) {
        if let Some(mut node) = self.nodes.get_mut(number).and_then(Option::take) {
            self.all.oracle.count("life ended");
            end(&mut node);
            self.gone.push(node);
        }
    }

    fn start(&mut self, number: usize) {
        // A name is free again when the one who had it is over.
        let held = self.gone.iter().any(|node| node.name() == name(number) && !node.is_over());
        if !held && self.nodes.get(number).is_some_and(Option::is_none) {
            self.all.oracle.count("life begun");
            self.lives += 1;
            let node = Node::start(number, self.lives, &self.natures[number], &self.all);
            self.nodes[number] = Some(node);
        }
    }
}

/// Whether an event can make a request fail.
fn breaks(what: &What) -> bool {
    use Weather::{Fair, Slow, Still};
    !matches!(
        what,
        What::Ask(_)
            | What::Hog(_)
            | What::Slow(..)
            | What::Heal(..)
            | What::Start(_)
            | What::Weather(_, _, Still | Fair | Slow)
    )
}
