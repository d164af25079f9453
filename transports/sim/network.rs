//! All hosts, names and wires of one simulation.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blockwire::clock;
use blockwire::transport::{Address, Capabilities, ConnectError};
use fastrand::Rng;

use super::conditions::Conditions;
use super::link::{SimLink, ends, lock};
use super::path::Path;
use super::record::Record;
use super::trace::Trace;
use super::transport::SimTransport;
use super::wire::Wire;

/// Links dialled and not accepted yet; more are refused, as a full backlog of a socket does.
const BACKLOG_MAX: usize = 128;
/// Longest wait of a dial through a path that is cut.
const DIAL_MAX: Duration = Duration::from_secs(5);
/// Between two looks whether a path is still cut.
const DIAL_PAUSE: Duration = Duration::from_millis(20);

/// Pushed payload, copied once.
const PUSH: Capabilities =
    Capabilities { stream: Some(1), get: None, adopt: false, same_host: true, lingers: false };

/// Hosts and what lies between them, from one seed. Clones share it.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    table: Mutex<Table>,
    trace: Trace,
    record: Record,
}

#[derive(Debug)]
struct Table {
    random: Rng,
    bound: BTreeMap<String, Backlog>,
    capabilities: BTreeMap<String, Capabilities>,
    conditions: Conditions,
    paths: BTreeMap<(String, String), Arc<Path>>,
    wires: Vec<Weak<Mutex<Wire>>>,
    unnamed: u64,
    dialled: u64,
}

/// What was dialled under a name and not accepted yet.
#[derive(Debug)]
struct Backlog {
    host: String,
    links: VecDeque<SimLink>,
    waker: Option<Waker>,
}

impl Network {
    /// Hosts without faults or delays between them.
    pub fn new(seed: u64) -> Self {
        Self::traced(seed, Trace::default())
    }

    /// Like [`new`](Self::new); writes down what happens.
    pub fn traced(seed: u64, trace: Trace) -> Self {
        let table = Table {
            random: Rng::with_seed(seed),
            bound: BTreeMap::new(),
            capabilities: BTreeMap::new(),
            conditions: Conditions::default(),
            paths: BTreeMap::new(),
            wires: Vec::new(),
            unnamed: 0,
            dialled: 0,
        };
        Self(Arc::new(Inner { table: Mutex::new(table), trace, record: Record::default() }))
    }

    /// A transport of a host.
    pub fn transport(&self, host: &str) -> SimTransport {
        SimTransport::new(self.clone(), host)
    }

    /// What happened.
    pub fn trace(&self) -> &Trace {
        &self.0.trace
    }

    /// What must not be and no end noticed, since the last look: memory of a payload that changed while its
    /// link was open and still read it.
    pub fn findings(&self) -> Vec<String> {
        self.0.record.take_findings()
    }

    /// How often each fault was done so far: to links, frames, payloads and dials.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.0.record.faults()
    }

    /// What links to `sim:name` can do, from the next dial on; those to every other name for an empty
    /// one. At first payload is pushed.
    pub fn set_capabilities(&self, name: &str, capabilities: Capabilities) {
        self.table().capabilities.insert(name.to_owned(), capabilities);
    }

    /// What all paths are like, those that exist included.
    pub fn set_conditions(&self, conditions: Conditions) {
        let mut table = self.table();
        table.conditions = conditions;
        table.paths.values().for_each(|path| path.set_conditions(conditions));
    }

    /// What the path between two hosts is like.
    pub fn set_path_conditions(&self, one: &str, other: &str, conditions: Conditions) {
        self.table().path(one, other).set_conditions(conditions);
    }

    /// Lets nothing through between two hosts, without telling them.
    pub fn partition(&self, one: &str, other: &str) {
        self.set_cut(one, other, true);
    }

    /// Lets everything through again; what was sent meanwhile arrives.
    pub fn heal(&self, one: &str, other: &str) {
        self.set_cut(one, other, false);
    }

    /// Breaks every link between two hosts.
    pub fn reset(&self, one: &str, other: &str) {
        let now = clock::now();
        self.each_wire(one, other, |wire| wire.reset(now));
    }

    fn set_cut(&self, one: &str, other: &str, cut: bool) {
        if self.table().path(one, other).set_cut(cut) {
            let what = if cut { "is cut" } else { "is whole again" };
            self.0.record.count(if cut { "path cut" } else { "path healed" });
            self.0.trace.note(clock::now(), || format!("the path {one} - {other} {what}"));
            self.each_wire(one, other, |_| {});
        }
    }

    /// Does something to the wires between two hosts, and lets both their ends look.
    fn each_wire(&self, one: &str, other: &str, meddle: impl Fn(&mut Wire)) {
        let mut table = self.table();
        table.wires.retain(|wire| wire.strong_count() > 0);
        let path = table.path(one, other);
        let wires: Vec<_> = table.wires.iter().filter_map(Weak::upgrade).collect();
        drop(table);
        for wire in wires {
            let mut wire = lock(&wire);
            if !Arc::ptr_eq(wire.path(), &path) {
                continue;
            }
            meddle(&mut wire);
            let wakers = wire.wake_both();
            drop(wire);
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }

    pub(crate) async fn dial(
        &self,
        host: &str,
        address: &Address,
    ) -> Result<SimLink, ConnectError> {
        let fail = |kind: io::ErrorKind| {
            let (address, source) = (address.clone(), kind.into());
            Err(ConnectError::System { address, source })
        };
        let start = clock::now();
        let path = self.path_to(host, address.target());
        while path.as_ref().is_some_and(|path| path.is_cut()) {
            if clock::now() - start >= DIAL_MAX {
                return fail(io::ErrorKind::TimedOut);
            }
            tokio::time::sleep(DIAL_PAUSE).await;
        }
        let conditions = path.map(|path| path.conditions()).unwrap_or_default();
        let travel = conditions.travel(&mut self.table().random);
        if !travel.is_zero() {
            tokio::time::sleep(travel).await;
        }
        let lucky = !conditions.refuse_dial.strikes(&mut self.table().random);
        if !lucky {
            self.0.record.count("dial refused");
        }
        match lucky.then(|| self.link(host, address)).flatten() {
            Some(link) => Ok(link),
            None => {
                let line = || format!("{host} > {}: nobody answers", address.target());
                self.0.trace.note(clock::now(), line);
                fail(io::ErrorKind::ConnectionRefused)
            }
        }
    }

    /// The path to whoever listens under a name.
    fn path_to(&self, host: &str, name: &str) -> Option<Arc<Path>> {
        let mut table = self.table();
        let other = table.bound.get(name)?.host.clone();
        Some(table.path(host, &other))
    }

    /// A link to whoever listens; none when nobody does, or when too many wait already.
    fn link(&self, host: &str, address: &Address) -> Option<SimLink> {
        let name = address.target();
        let mut table = self.table();
        let backlog = table.bound.get(name)?;
        if backlog.links.len() >= BACKLOG_MAX {
            return None;
        }
        let other = backlog.host.clone();
        let path = table.path(host, &other);
        let known = [name, ""].into_iter().find_map(|name| table.capabilities.get(name));
        let capabilities = known.copied().unwrap_or(PUSH);
        table.dialled += 1;
        let number = table.dialled;
        let names = [format!("{host}#{number}"), format!("{other}#{number}")];
        let random = table.random.fork();
        let trace = self.0.trace.clone();
        trace.note(clock::now(), || format!("{} > {}: dials", names[0], names[1]));
        let record = self.0.record.clone();
        let wire = Wire::new(path, capabilities, random, names, trace, record);
        let (near, far) =
            ends(wire, &address.to_string(), &format!("{address}, dialled by {host}"));
        table.wires.push(Arc::downgrade(near.wire()));
        let backlog = table.bound.get_mut(name)?;
        backlog.links.push_back(far);
        let waker = backlog.waker.take();
        drop(table);
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(near)
    }

    /// Binds a name; an empty one stands for a fresh one. None when it is in use.
    pub(crate) fn bind(&self, host: &str, name: &str) -> Option<String> {
        let mut table = self.table();
        let name = if name.is_empty() { table.fresh_name() } else { name.to_owned() };
        if table.bound.contains_key(&name) {
            return None;
        }
        let backlog = Backlog { host: host.to_owned(), links: VecDeque::new(), waker: None };
        table.bound.insert(name.clone(), backlog);
        Some(name)
    }

    /// Frees a name. What waited behind it is handed out, to be dropped outside the lock.
    pub(crate) fn unbind(&self, name: &str) -> impl Sized + use<> {
        self.table().bound.remove(name)
    }

    pub(crate) fn poll_accept(&self, name: &str, cx: &mut Context<'_>) -> Poll<SimLink> {
        let mut table = self.table();
        let Some(backlog) = table.bound.get_mut(name) else { return Poll::Pending };
        match backlog.links.pop_front() {
            Some(link) => Poll::Ready(link),
            None => {
                backlog.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Consistent between statements, so a panic elsewhere does not spoil it.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn path(&mut self, one: &str, other: &str) -> Arc<Path> {
        let (low, high) = if one <= other { (one, other) } else { (other, one) };
        let key = (low.to_owned(), high.to_owned());
        let conditions = self.conditions;
        Arc::clone(self.paths.entry(key).or_insert_with(|| Arc::new(Path::new(conditions))))
    }

    fn fresh_name(&mut self) -> String {
        loop {
            self.unnamed += 1;
            let name = format!("unnamed-{}", self.unnamed);
            if !self.bound.contains_key(&name) {
                return name;
            }
        }
    }
}
