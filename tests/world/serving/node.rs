//! One process of a cluster.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Endpoint, EndpointOptions};
use blockwire::pool::{BlockPool, PoolOptions};
use blockwire::session::{Identity, PieceCut, Timing};
use blockwire::transport::Address;
use blockwire_runtime::model::Model;
use blockwire_serving::backend::ModelCard;
use blockwire_serving::coordinator::{HandoffMetrics, ServingCoordinator};
use blockwire_serving::metrics::Metrics;
use blockwire_serving::protocol::NodeRole;
use blockwire_serving::router::{HandoffPolicy, RequestRouter};
use blockwire_serving::scheduler::{BatchScheduler, SchedulerOptions};
use blockwire_sim::{Audited, Network};
use bytes::Bytes;
use fastrand::Rng;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::model::{CONTEXT, EOS, Tiny, VOCAB};
use super::{BLOCK, role};
use crate::oracle::Oracle;
use crate::scenario::Ask;

use super::client::Client;

/// What a node is like, in all its lives.
#[derive(Clone, Debug)]
pub(super) struct Nature {
    pub(super) blocks: usize,
    pub(super) adopt: bool,
    pub(super) prefill_rows_max: usize,
}

impl Nature {
    pub(super) fn draw(random: &mut Rng) -> Self {
        // A sequence of the longest context always fits.
        let least = CONTEXT / BLOCK;
        Self {
            blocks: random.usize(least..4 * least),
            adopt: random.u8(0..4) > 0,
            prefill_rows_max: random.usize(1..40),
        }
    }
}

/// What all nodes of a world share.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) network: Network,
    pub(super) oracle: Oracle,
    pub(super) hosts: usize,
    pub(super) calm: bool,
}

/// A life of a node.
#[derive(Debug)]
pub(super) struct Node {
    name: String,
    pool: Option<BlockPool>,
    /// Milliseconds of a step of the model.
    step: Rc<Cell<u64>>,
    router: Option<RequestRouter>,
    surroundings: Surroundings,
    /// The driver, the model, the role: a node is over when all of them are.
    parts: Vec<AbortHandle>,
    clients: RefCell<Vec<AbortHandle>>,
    stop: Option<oneshot::Sender<()>>,
}

pub(super) fn name(number: usize) -> String {
    format!("{}{number}", role(number).as_str())
}

fn addresses(hosts: usize, wanted: NodeRole) -> Vec<Address> {
    let numbers = (0..hosts).filter(|number| role(*number) == wanted);
    numbers.map(|number| Address::new("sim", &name(number))).collect()
}

fn timing() -> Timing {
    Timing {
        hello_timeout: Duration::from_millis(800),
        ping_interval: Duration::from_millis(500),
        silence_max: Duration::from_secs(2),
        recall_max: Duration::from_millis(800),
    }
}

fn spawn(task: impl Future<Output = ()> + 'static) -> AbortHandle {
    tokio::task::spawn_local(task).abort_handle()
}

impl Node {
    /// Begins a life: a new instance under the name of the old one.
    pub(super) fn start(number: usize, life: u32, nature: &Nature, all: &Surroundings) -> Self {
        let (name, role) = (name(number), role(number));
        all.oracle.note(|| format!("{name} starts"));
        let spec = Tiny.kv_spec(BLOCK as u32);
        let options = PoolOptions::new(spec, nature.blocks);
        let pool = (role != NodeRole::Router).then(|| BlockPool::new(options).unwrap());
        let instance = Uuid::from_u64_pair(number as u64 + 1, u64::from(life));
        let (endpoint, driver) = endpoint(&name, role, instance, pool.as_ref(), all);
        let (stop, stopped) = oneshot::channel();
        let mut node = Self {
            name,
            pool: pool.clone(),
            step: Rc::new(Cell::new(1)),
            router: None,
            surroundings: all.clone(),
            parts: vec![spawn(driver)],
            clients: RefCell::default(),
            stop: Some(stop),
        };
        match pool {
            Some(pool) => node.start_worker(role, endpoint, pool, nature, stopped),
            None => {
                // Those that come back need no prefill node.
                let is_first = life as usize <= all.hosts;
                let policy = if is_first { HandoffPolicy::Always } else { HandoffPolicy::Auto };
                node.start_router(instance, policy, endpoint, stopped);
            }
        }
        node
    }

    fn start_router(
        &mut self,
        instance: Uuid,
        policy: HandoffPolicy,
        endpoint: Arc<Endpoint>,
        stopped: oneshot::Receiver<()>,
    ) {
        let model = ModelCard {
            id: "tiny".to_owned(),
            aliases: vec![],
            context_len: CONTEXT,
            vocab: VOCAB,
            created: 0,
        };
        let router = RequestRouter::new(instance, model, policy);
        self.router = Some(router.clone());
        let hosts = self.surroundings.hosts;
        let [prefill, decode] =
            [NodeRole::Prefill, NodeRole::Decode].map(|role| addresses(hosts, role));
        self.parts.push(spawn(async move {
            tokio::select! {
                biased;
                _ = stopped => {}
                () = router.run(endpoint, prefill, decode) => {}
            }
        }));
    }

    fn start_worker(
        &mut self,
        role: NodeRole,
        endpoint: Arc<Endpoint>,
        pool: BlockPool,
        nature: &Nature,
        stopped: oneshot::Receiver<()>,
    ) {
        let options = SchedulerOptions {
            name: self.name.clone(),
            prefill_rows_max: nature.prefill_rows_max,
            running_max: 8,
            waiting_max: 64,
            eos: vec![EOS],
            context_len_max: None,
            prefix_cache: true,
            state_handoff: true,
        };
        let step = self.step.clone();
        let rest = async move || match step.get() {
            0 => tokio::task::yield_now().await,
            millis => tokio::time::sleep(Duration::from_millis(millis)).await,
        };
        let started = BatchScheduler::local(Box::new(Tiny), pool, options, rest);
        let (scheduler, worker) = started.unwrap();
        self.parts.push(spawn(worker));
        let handoffs = HandoffMetrics::register(&Metrics::new());
        let node = ServingCoordinator::new(endpoint.clone(), scheduler, handoffs);
        let node = node.in_pieces(PieceCut { tokens: BLOCK as u32, layered_from: 0, layers: 1 });
        let node = if nature.adopt { node } else { node.without_adoption() };
        let (address, oracle) = (Address::new("sim", &self.name), self.surroundings.oracle.clone());
        let peers = addresses(self.surroundings.hosts, NodeRole::Decode);
        self.parts.push(spawn(async move {
            let listening = match endpoint.listen(&address).await {
                Ok(listening) => listening,
                Err(error) => return oracle.fail(format!("cannot listen on {address}: {error}")),
            };
            let stop = async {
                let _ = stopped.await;
            };
            match role {
                NodeRole::Prefill => node.run_prefill_role_networked(listening, peers, stop).await,
                _ => node.run_decode_role_networked(listening, stop).await,
            }
        }));
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn pool(&self) -> Option<&BlockPool> {
        self.pool.as_ref()
    }

    pub(super) fn router(&self) -> Option<&RequestRouter> {
        self.router.as_ref()
    }

    /// A client of this router asks for something.
    pub(super) fn ask(&self, ask: Ask) {
        let Some(router) = self.router.clone() else { return };
        let Surroundings { oracle, calm, .. } = self.surroundings.clone();
        let client = spawn(Client { router, oracle, calm }.ask(ask));
        let mut clients = self.clients.borrow_mut();
        clients.retain(|client| !client.is_finished());
        clients.push(client);
    }

    /// Whether a request is not over.
    pub(super) fn has_clients(&self) -> bool {
        self.clients.borrow().iter().any(|client| !client.is_finished())
    }

    /// From now on a step takes so many milliseconds.
    pub(super) fn slow_down(&self, millis: u64) {
        self.step.set(millis);
    }

    /// Takes blocks away for a while.
    pub(super) fn hog(&self, blocks: usize, hold: u64) {
        let Some(pool) = self.pool.clone() else { return };
        let hog = async move {
            // A whole sequence still fits beside them.
            let most = pool.options().blocks - CONTEXT / BLOCK;
            let taken = pool.reserve(blocks.min(most)).await;
            tokio::time::sleep(Duration::from_millis(hold)).await;
            drop(taken);
        };
        self.clients.borrow_mut().push(spawn(hog));
    }

    /// Dies without a word, at whatever step it is.
    pub(super) fn kill(&mut self) {
        self.surroundings.oracle.note(|| format!("{} is killed", self.name));
        self.stop = None;
        self.leave();
        self.parts.iter().for_each(AbortHandle::abort);
    }

    /// Ends in order.
    pub(super) fn stop(&mut self) {
        self.surroundings.oracle.note(|| format!("{} stops", self.name));
        self.leave();
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// The clients of a router end with it.
    fn leave(&mut self) {
        self.clients.borrow().iter().for_each(AbortHandle::abort);
        self.router = None;
    }

    /// Whether nothing of it runs any more.
    pub(super) fn is_over(&self) -> bool {
        self.parts.iter().all(AbortHandle::is_finished)
    }
}

/// An endpoint whose links are watched, and what drives it.
fn endpoint(
    name: &str,
    role: NodeRole,
    instance: Uuid,
    pool: Option<&BlockPool>,
    all: &Surroundings,
) -> (Arc<Endpoint>, impl Future<Output = ()> + use<>) {
    let role = Bytes::from_static(role.as_str().as_bytes());
    let identity = Identity { instance, role, ..Identity::new(name) };
    let oracle = all.oracle.clone();
    let audited = Audited::new(all.network.transport(name), move |what| oracle.fail(what));
    let transports = vec![Arc::new(audited) as Arc<_>];
    let options = EndpointOptions::new(identity, pool.cloned(), transports);
    let options = EndpointOptions { timing: timing(), ..options };
    let (endpoint, driver) = Endpoint::local(options);
    (Arc::new(endpoint), driver)
}
