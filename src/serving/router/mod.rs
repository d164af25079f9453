//! The router's backend: picks a prefill and a decode node, sends the request, merges the results.
//!
//! A node is picked that was sent a prompt with the same beginning before, as long as it has not too many more
//! requests in flight than others: then the one with the fewest.

mod affinity;
mod bridge;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwire::endpoint::{Connection, Endpoint, Event};
use blockwire::pool::PrefixKey;
use blockwire::session::PeerMessage;
use blockwire::transport::Address;
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use affinity::Affinity;
pub use bridge::StreamBridge;

use crate::backend::{
    Backend, GenerateError, GenerateFuture, GenerateRequest, Generation, ModelCard, Readiness,
};
use crate::coordinator::peers::{Change, PeerSet, Update, updates};
use crate::protocol::{NodeRole, Phase, PrefillRequestFrame, ResultFrame, kind};

/// Picks nodes and bridges their results. A [`Backend`], so that the HTTP front is the single node's.
#[derive(Clone, Debug)]
pub struct RequestRouter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    instance: Uuid,
    model: ModelCard,
    prefill: PeerSet,
    decode: PeerSet,
    /// Where the prompts' beginnings are, as prefill nodes and as decode nodes.
    computed: Mutex<Affinity>,
    received: Mutex<Affinity>,
    /// In a fixed order, for simulations: whoever loses his node fails in this order.
    routes: Mutex<BTreeMap<Uuid, Route>>,
    /// Keeps ties between equally loaded nodes going round.
    turn: std::sync::atomic::AtomicUsize,
}

/// A request in flight.
#[derive(Debug)]
struct Route {
    bridge: StreamBridge,
    prefill: Connection,
    decode: Connection,
}

impl Route {
    fn uses(&self, instance: Uuid) -> bool {
        self.prefill.peer().instance == instance || self.decode.peer().instance == instance
    }
}

impl RequestRouter {
    /// A router that is `instance` to its peers and serves `model`.
    pub fn new(instance: Uuid, model: ModelCard) -> Self {
        Self(Arc::new(Inner {
            instance,
            model,
            prefill: PeerSet::new(NodeRole::Prefill),
            decode: PeerSet::new(NodeRole::Decode),
            computed: Mutex::default(),
            received: Mutex::default(),
            routes: Mutex::default(),
            turn: std::sync::atomic::AtomicUsize::new(0),
        }))
    }

    /// Keeps the connections to all nodes and bridges their results, for as long as the future runs.
    pub async fn run(
        self,
        endpoint: Arc<Endpoint>,
        prefill_peers: Vec<Address>,
        decode_peers: Vec<Address>,
    ) {
        let (sender, mut updates) = updates();
        let mut keepers = JoinSet::new();
        for (peers, addresses) in [(&self.0.prefill, prefill_peers), (&self.0.decode, decode_peers)]
        {
            for address in addresses {
                keepers.spawn(peers.clone().keep(endpoint.clone(), address, sender.clone()));
            }
        }
        while let Some(update) = updates.recv().await {
            self.0.prefill.note(&update);
            self.0.decode.note(&update);
            self.handle(update);
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.routes().len()
    }

    fn handle(&self, update: Update) {
        let instance = update.connection.peer().instance;
        match update.change {
            Change::Event(Event::Message(message)) if message.kind == kind::RESULT => {
                self.handle_result(&update.connection, message);
            }
            Change::Event(event) => {
                tracing::warn!(peer = update.connection.peer().name, ?event, "unexpected");
            }
            Change::Down(end) => self.handle_loss(instance, &end.to_string()),
            Change::Up => {}
        }
    }

    fn handle_result(&self, from: &Connection, message: PeerMessage) {
        let id = message.request;
        let mut routes = self.routes();
        let Some(route) = routes.get_mut(&id) else {
            // Late results of a request that was cancelled or failed.
            tracing::debug!(request = %id, "late result");
            return;
        };
        if !route.uses(from.peer().instance) {
            tracing::warn!(request = %id, peer = from.peer().name, "result of another node");
            return;
        }
        let over = match ResultFrame::read(message.body) {
            Ok(frame) if frame.phase() == Phase::FirstToken => {
                log_handoff(id, &frame);
                route.bridge.submit_first_token(frame)
            }
            Ok(frame) => route.bridge.submit_decode_token(frame),
            Err(error) => {
                route.bridge.fail(GenerateError::NodeFailed(error.to_string()));
                true
            }
        };
        if over
            && let Some(route) = routes.remove(&id)
            && route.bridge.has_failed()
        {
            // Where one node failed, the other must not go on.
            cancel(id, [&route.prefill, &route.decode]);
        }
    }

    /// A node is gone: every request that still needs it fails, and its other node is told.
    fn handle_loss(&self, instance: Uuid, why: &str) {
        self.routes().retain(|id, route| {
            let was_prefill = route.prefill.peer().instance == instance;
            let lost = route.decode.peer().instance == instance
                || (was_prefill && !route.bridge.is_handed_over());
            if lost {
                let node = if was_prefill { &route.prefill } else { &route.decode };
                let reason = format!("{} failed: {why}", node.peer().name);
                route.bridge.fail(GenerateError::NodeFailed(reason));
                cancel(*id, [&route.prefill, &route.decode]);
            }
            !lost
        });
    }

    /// The connected node of a set that has a prompt's beginning, or else the one with the fewest requests
    /// in flight: also where the first has too many more.
    fn pick(
        &self,
        peers: &PeerSet,
        affinity: &Mutex<Affinity>,
        beginnings: &[PrefixKey],
    ) -> Result<Connection, GenerateError> {
        let mut nodes = peers.connected();
        if nodes.is_empty() {
            let role = if std::ptr::eq(peers, &self.0.prefill) { "prefill" } else { "decode" };
            return Err(GenerateError::NoNode(format!("no {role} node is connected")));
        }
        nodes.sort_by_key(|node| node.peer().instance);
        let turn = self.0.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % nodes.len();
        nodes.rotate_left(turn);
        let routes = self.routes();
        let load = |node: &Connection| {
            routes.values().filter(|route| route.uses(node.peer().instance)).count()
        };
        let Some(least) = nodes.iter().min_by_key(|node| load(node)) else {
            return Err(GenerateError::NoNode("no node is connected".to_owned()));
        };
        let most = load(least) + affinity::slack(load(least));
        let mut affinity = affinity.lock().unwrap_or_else(PoisonError::into_inner);
        let known = affinity.node(beginnings).and_then(|known| {
            nodes.iter().find(|node| node.peer().instance == known && load(node) <= most)
        });
        let chosen = known.unwrap_or(least);
        affinity.note(beginnings, chosen.peer().instance);
        Ok(chosen.clone())
    }

    async fn start(&self, request: GenerateRequest) -> Result<Generation, GenerateError> {
        let beginnings = affinity::beginnings(&request);
        let prefill = self.pick(&self.0.prefill, &self.0.computed, &beginnings)?;
        let decode = self.pick(&self.0.decode, &self.0.received, &beginnings)?;
        let id = request.id;
        let frame = PrefillRequestFrame::new(&request, decode.peer().instance, self.0.instance);
        let notes = vec![
            ("prefill-node", prefill.peer().name.clone()),
            ("decode-node", decode.peer().name.clone()),
        ];
        let (events, receiver) = mpsc::unbounded_channel();
        let bridge = StreamBridge::new(events, notes);
        let route = Route { bridge, prefill: prefill.clone(), decode };
        match self.routes().entry(id) {
            Entry::Occupied(_) => {
                let reason = format!("a request {id} is in flight already");
                return Err(GenerateError::BadRequest(reason));
            }
            Entry::Vacant(free) => free.insert(route),
        };
        let router = self.clone();
        let generation = Generation::new(receiver).with_cancel(move || router.cancel(id));
        let body = Bytes::from(frame.encode_to_vec());
        // On an error the generation is dropped, which takes the route out again.
        let sent = prefill.send(id, 0, kind::PREFILL_REQUEST, body).await;
        sent.map_err(|error| GenerateError::NodeFailed(error.to_string()))?;
        Ok(generation)
    }

    /// The client left: both nodes drop the request in whatever state it is.
    fn cancel(&self, id: Uuid) {
        if let Some(route) = self.routes().remove(&id) {
            cancel(id, [&route.prefill, &route.decode]);
        }
    }

    fn routes(&self) -> MutexGuard<'_, BTreeMap<Uuid, Route>> {
        self.0.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for RequestRouter {
    fn models(&self) -> Vec<ModelCard> {
        vec![self.0.model.clone()]
    }

    fn readiness(&self) -> Readiness {
        let missing = [(&self.0.prefill, "prefill"), (&self.0.decode, "decode")]
            .into_iter()
            .find(|(peers, _)| peers.connected().is_empty());
        match missing {
            Some((_, role)) => {
                Readiness::NotReady { reason: format!("no {role} node is connected") }
            }
            None => Readiness::Ready,
        }
    }

    fn generate(&self, request: GenerateRequest) -> GenerateFuture<'_> {
        Box::pin(self.start(request))
    }
}

/// Tells nodes that a request is over. Nodes that are done with it, or gone, do not mind.
fn cancel<'a>(id: Uuid, nodes: impl IntoIterator<Item = &'a Connection>) {
    for node in nodes {
        node.post(id, 0, kind::CANCEL, Bytes::new());
    }
}

fn log_handoff(id: Uuid, frame: &ResultFrame) {
    if let Some(handoff) = &frame.handoff {
        tracing::info!(
            request = %id,
            bytes = handoff.payload_bytes,
            micros = handoff.elapsed_us,
            link = handoff.link,
            "handed over"
        );
    }
}
