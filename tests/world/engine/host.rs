//! One host: a process that can die and come back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Events};
use blockwire::pool::{BlockPool, Dtype, KvSpec, Layout, PoolOptions};
use blockwire::session::{Identity, SessionEnd, Timing};
use blockwire::transport::Address;
use blockwire_sim::{Audited, Network};
use fastrand::Rng;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::{BLOCK, content, receive};
use crate::oracle::Oracle;

/// Longest wait for a connection.
const DIAL_MAX: Duration = Duration::from_secs(1);

/// What a host is like, in all its lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nature {
    pub(super) blocks: usize,
    pub(super) layout: Layout,
}

impl Nature {
    pub(super) fn draw(random: &mut Rng) -> Self {
        let layout = if random.bool() { Layout::BlockMajor } else { Layout::LayerMajor };
        Self { blocks: random.usize(10..60), layout }
    }
}

/// A life of a host. Clones are one.
#[derive(Clone, Debug)]
pub(super) struct Host(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    number: usize,
    name: String,
    pool: BlockPool,
    oracle: Oracle,
    /// May a peer be at fault? Where bits change, everybody seems to be.
    blameless: bool,
    driver: AbortHandle,
    life: RefCell<Life>,
}

#[derive(Debug, Default)]
struct Life {
    endpoint: Option<Rc<Endpoint>>,
    /// One to each peer, by its number, dialled from here.
    connections: BTreeMap<usize, Connection>,
    tasks: Vec<AbortHandle>,
}

pub(super) fn name(number: usize) -> String {
    format!("h{number}")
}

/// Times that suit a world of milliseconds.
fn timing() -> Timing {
    Timing {
        hello_timeout: Duration::from_millis(400),
        ping_interval: Duration::from_millis(200),
        silence_max: Duration::from_millis(800),
        recall_max: Duration::from_millis(500),
    }
}

impl Host {
    /// Begins a life: a new instance under the name of the old one.
    pub(super) fn start(
        number: usize,
        life: u32,
        nature: Nature,
        network: &Network,
        oracle: &Oracle,
        blameless: bool,
    ) -> Self {
        let name = name(number);
        let spec = KvSpec::uniform(BLOCK as u32, 2, 1, 4, Dtype::F16);
        let options =
            PoolOptions { layout: nature.layout, ..PoolOptions::new(spec, nature.blocks) };
        let pool = BlockPool::new(options).unwrap();
        let instance = Uuid::from_u64_pair(number as u64 + 1, u64::from(life));
        let identity = Identity { instance, ..Identity::new(format!("{name}.{life}")) };
        let failed = oracle.clone();
        let audited = Audited::new(network.transport(&name), move |what| failed.fail(what));
        let transports = vec![Arc::new(audited) as Arc<_>];
        let options = EndpointOptions::new(identity, Some(pool.clone()), transports);
        let options = EndpointOptions { timing: timing(), ..options };
        let (endpoint, driver) = Endpoint::local(options);
        let endpoint = Rc::new(endpoint);
        let life = Life { endpoint: Some(endpoint.clone()), ..Life::default() };
        let oracle = oracle.clone();
        oracle.note(|| format!("{name} starts"));
        let host = Self(Rc::new(Inner {
            number,
            name,
            pool,
            oracle,
            blameless,
            driver: tokio::task::spawn_local(driver).abort_handle(),
            life: RefCell::new(life),
        }));
        host.spawn(host.clone().listen(endpoint));
        host
    }

    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    pub(super) fn pool(&self) -> &BlockPool {
        &self.0.pool
    }

    pub(super) fn oracle(&self) -> &Oracle {
        &self.0.oracle
    }

    /// Whether a fault of a peer's is this program's fault.
    pub(super) fn is_blameless(&self) -> bool {
        self.0.blameless
    }

    pub(super) fn number(&self) -> usize {
        self.0.number
    }

    /// Runs something for as long as the host lives.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let task = tokio::task::spawn_local(task).abort_handle();
        let mut life = self.0.life.borrow_mut();
        life.tasks.retain(|task| !task.is_finished());
        life.tasks.push(task);
    }

    /// Dies without a word, at whatever step it is.
    pub(super) fn kill(&self) {
        self.0.oracle.note(|| format!("{} is killed", self.0.name));
        let life = std::mem::take(&mut *self.0.life.borrow_mut());
        self.0.driver.abort();
        life.tasks.iter().for_each(AbortHandle::abort);
    }

    /// Ends in order: what it does is given up, its connections are closed.
    pub(super) fn stop(&self) {
        self.0.oracle.note(|| format!("{} stops", self.0.name));
        let life = std::mem::take(&mut *self.0.life.borrow_mut());
        // The driver ends by itself, with the last handle of the endpoint.
        life.tasks.iter().for_each(AbortHandle::abort);
    }

    /// Overwrites every free block: whoever still reads one is found out.
    pub(super) fn spoil_free_blocks(&self) {
        let free = self.0.pool.accounting().free;
        // Where others wait for blocks, it is their turn; so nobody is woken by this.
        for mut block in self.0.pool.try_reserve(free).unwrap_or_default() {
            block.fill(content::SPOILT);
        }
    }

    /// Whether its driver has ended.
    pub(super) fn is_over(&self) -> bool {
        self.0.driver.is_finished()
    }

    /// Asks for all that was lent.
    pub(super) fn recall(&self) {
        self.0.life.borrow().connections.values().for_each(Connection::recall_all);
    }

    /// A connection to a peer: the one that is open, or a new one.
    pub(super) async fn connection(&self, to: usize) -> Option<Connection> {
        let known = self.0.life.borrow().connections.get(&to).cloned();
        if let Some(known) = known.filter(|known| !known.is_closed()) {
            return Some(known);
        }
        let endpoint = self.0.life.borrow().endpoint.clone()?;
        let address = Address::new("sim", &name(to));
        let dialled = tokio::time::timeout(DIAL_MAX, endpoint.connect(&address)).await;
        match dialled {
            Ok(Ok((connection, events))) => {
                self.adopt(connection.clone(), events);
                self.0.life.borrow_mut().connections.insert(to, connection.clone());
                Some(connection)
            }
            Ok(Err(error)) => {
                self.0.oracle.note(|| format!("{}: no connection: {error}", self.0.name));
                None
            }
            Err(_) => None,
        }
    }

    async fn listen(self, endpoint: Rc<Endpoint>) {
        let address = Address::new("sim", &self.0.name);
        let bound = endpoint.listen(&address).await;
        drop(endpoint);
        let mut listening = match bound {
            Ok(listening) => listening,
            Err(error) => {
                return self.0.oracle.fail(format!("{} cannot listen: {error}", self.0.name));
            }
        };
        while let Some((connection, events)) = listening.accept().await {
            self.adopt(connection, events);
        }
    }

    /// Takes what comes on a connection, and looks how it ends.
    fn adopt(&self, connection: Connection, events: Events) {
        self.spawn(receive::events(self.clone(), connection.clone(), events));
        self.spawn(watch(self.clone(), connection));
    }
}

/// A connection ends because somebody wanted it or because of a fault, never by itself.
async fn watch(host: Host, connection: Connection) {
    let end = connection.closed().await;
    host.oracle().count(match end {
        SessionEnd::Silent => "ended: silent",
        SessionEnd::Violated(_) => "ended: violated",
        SessionEnd::Link(_) => "ended: link",
        _ => "ended: in order",
    });
    host.oracle().note(|| {
        format!("{}: the connection to {} ended: {end}", host.name(), connection.peer().name)
    });
    if host.is_blameless() {
        let violated = matches!(end, SessionEnd::Violated(_) | SessionEnd::Refused(_));
        host.oracle().check(!violated, || format!("{}: a peer without fault: {end}", host.name()));
    }
}
