//! The hosts and what happens to them.

use std::time::Duration;

use blockwire_sim::{Network, Trace};
use fastrand::Rng;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::host::{Host, Nature, name};
use super::send;
use crate::oracle::{Oracle, Report};
use crate::scenario::{Hog, Scenario, Weather, What};
use crate::weather::{conditions, draw_capabilities};

/// Longest time after the last event until everything has come to rest.
const REST_MAX: Duration = Duration::from_secs(60);

struct World {
    network: Network,
    oracle: Oracle,
    blameless: bool,
    natures: Vec<Nature>,
    /// The life of each host; none while it is gone.
    hosts: Vec<Option<Host>>,
    lives: u32,
    /// Those that ended: their pools become whole too.
    gone: Vec<Host>,
}

/// Runs a scenario in virtual time.
pub(super) fn run(scenario: &Scenario, trace: Trace) -> Report {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let oracle = Oracle::new(trace.clone());
        let mut world = World::new(scenario, oracle.clone(), trace);
        world.play(scenario).await;
        if !oracle.has_failed() {
            world.rest().await;
        }
        oracle.add(world.network.faults());
        oracle.report()
    })
}

impl World {
    fn new(scenario: &Scenario, oracle: Oracle, trace: Trace) -> Self {
        let mut random = Rng::with_seed(scenario.seed ^ 0x5eed);
        let network = Network::traced(random.u64(..), trace);
        let conditions = conditions(if random.bool() { Weather::Fair } else { Weather::Still });
        network.set_conditions(conditions);
        let count = scenario.hosts().max(2);
        for host in 0..count {
            network.set_capabilities(&name(host), draw_capabilities(&mut random));
        }
        let natures: Vec<_> = (0..count).map(|_| Nature::draw(&mut random)).collect();
        let blameless = !scenario.events.iter().any(|event| is_foul(&event.what));
        let hosts = vec![None; count];
        let mut world = Self { network, oracle, blameless, natures, hosts, lives: 0, gone: vec![] };
        (0..count).for_each(|host| world.start(host));
        world
    }

    async fn play(&mut self, scenario: &Scenario) {
        let start = Instant::now();
        for event in &scenario.events {
            sleep_until(start + Duration::from_millis(event.at)).await;
            self.apply(&event.what);
            self.check();
            if self.oracle.has_failed() {
                return;
            }
        }
    }

    fn apply(&mut self, what: &What) {
        self.oracle.count(what.kind());
        match *what {
            What::Offer(offer) => {
                if let Some(host) = self.alive(offer.from) {
                    host.spawn(send::offer(host.clone(), offer));
                }
            }
            What::Cut(one, other) => self.network.partition(&name(one), &name(other)),
            What::Heal(one, other) => self.network.heal(&name(one), &name(other)),
            What::Reset(one, other) => self.network.reset(&name(one), &name(other)),
            What::Kill(host) => self.end(host, Host::kill),
            What::Stop(host) => self.end(host, Host::stop),
            What::Start(host) => self.start(host),
            What::Weather(one, other, weather) => {
                self.oracle.note(|| format!("weather {one} - {other}: {weather:?}"));
                let conditions = conditions(weather);
                self.network.set_path_conditions(&name(one), &name(other), conditions);
            }
            What::Hog(hog) => {
                if let Some(host) = self.alive(hog.host) {
                    host.spawn(take_blocks(host.clone(), hog));
                }
            }
            What::Recall(host) => {
                if let Some(host) = self.alive(host) {
                    host.recall();
                }
            }
            What::Ask(_) | What::Slow(..) => {}
        }
    }

    /// After every step.
    fn check(&self) {
        for host in self.hosts.iter().flatten().chain(&self.gone) {
            self.oracle.check_pool(host.name(), host.pool());
        }
        // Nobody writes to the memory of a process that is gone.
        self.hosts.iter().flatten().for_each(Host::spoil_free_blocks);
        self.network.findings().into_iter().for_each(|finding| self.oracle.fail(finding));
    }

    /// Everything comes to rest, and every block comes back: first with the connections still open, then
    /// after an orderly end of all.
    async fn rest(&mut self) {
        self.oracle.note(|| "the weather clears up".to_owned());
        self.network.set_conditions(conditions(Weather::Fair));
        for one in 0..self.hosts.len() {
            (0..one).for_each(|other| self.network.heal(&name(one), &name(other)));
        }
        self.wait_for_blocks("with open connections").await;
        for host in 0..self.hosts.len() {
            self.end(host, Host::stop);
        }
        self.wait_for_blocks("after the end").await;
        self.wait_for_drivers().await;
        self.check();
    }

    async fn wait_for_drivers(&self) {
        let start = Instant::now();
        while let Some(host) = self.gone.iter().find(|host| !host.is_over()) {
            if start.elapsed() > REST_MAX {
                return self.oracle.fail(format!("{} does not end", host.name()));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn wait_for_blocks(&self, when: &str) {
        let start = Instant::now();
        let all = || self.hosts.iter().flatten().chain(&self.gone);
        while !all().all(|host| Oracle::is_full(host.pool())) {
            if start.elapsed() > REST_MAX {
                for host in all().filter(|host| !Oracle::is_full(host.pool())) {
                    let count = host.pool().accounting();
                    self.oracle.fail(format!("{} at rest {when}: {count:?}", host.name()));
                }
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn alive(&self, host: usize) -> Option<&Host> {
        self.hosts.get(host).and_then(Option::as_ref)
    }

    fn end(&mut self, host: usize, end: fn(&Host)) {
        if let Some(life) = self.hosts.get_mut(host).and_then(Option::take) {
            self.oracle.count("life ended");
            end(&life);
            self.gone.push(life);
        }
    }

    fn start(&mut self, number: usize) {
        // A name is free again when the one who had it is over.
        let held = self.gone.iter().any(|host| host.number() == number && !host.is_over());
        if !held && self.hosts.get(number).is_some_and(Option::is_none) {
            self.oracle.count("life begun");
            self.lives += 1;
            let nature = self.natures[number];
            let host = Host::start(
                number,
                self.lives,
                nature,
                &self.network,
                &self.oracle,
                self.blameless,
            );
            self.hosts[number] = Some(host);
        }
    }
}

/// Takes blocks away for a while.
async fn take_blocks(host: Host, hog: Hog) {
    let blocks = hog.blocks.min(host.pool().options().blocks);
    let taken = host.pool().reserve(blocks).await;
    sleep(Duration::from_millis(hog.hold)).await;
    drop(taken);
}

/// Whether peers may look as if they broke the rules.
fn is_foul(what: &What) -> bool {
    matches!(what, What::Weather(_, _, Weather::Corrupt | Weather::Breaking))
}
