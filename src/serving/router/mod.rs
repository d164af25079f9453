//! The router's backend: picks a prefill and a decode node (`pick`, `nodes`), asks whether a handoff pays (`cost`),
//! sends the request, merges the results (`bridge`).
//!
//! A request whose nodes fail is tried again on other nodes (`route` says how often); each attempt is an epoch
//! of the request, so that what an earlier one left on its way is told from it. What the client has already is
//! compared, not sent again.

mod affinity;
mod bridge;
mod cost;
mod health;
mod links;
mod metrics;
mod nodes;
mod pick;
mod rates;
mod route;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwire::clock;
use blockwire::endpoint::{Connection, Endpoint, Event, MessageError};
use blockwire::session::{PeerMessage, SessionEnd};
use blockwire::transport::Address;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::Span;
use uuid::Uuid;

pub use bridge::StreamBridge;
pub use cost::HandoffPolicy;

use self::cost::Place;
use self::links::Links;
use self::metrics::RouterMetrics;
use self::nodes::Nodes;
use self::pick::Picked;
use self::route::{Losses, Route};
use crate::backend::{
    Backend, GenerateError, GenerateFuture, GenerateRequest, Generation, ModelCard, Readiness,
};
use crate::coordinator::peers::{Change, Update, is_loss, updates};
use crate::metrics::Metrics;
use crate::protocol::{HandoffReport, NodeRole, Phase, ResultFrame, kind};
use crate::status::{BackendStatus, REQUESTS_MAX};

/// Picks nodes and bridges their results. A [`Backend`], so that the HTTP front is the single node's.
#[derive(Clone, Debug)]
pub struct RequestRouter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    instance: Uuid,
    model: ModelCard,
    policy: HandoffPolicy,
    nodes: Nodes,
    /// In a fixed order, for simulations: whoever loses his node fails in this order.
    routes: Mutex<BTreeMap<Uuid, Route>>,
    links: Mutex<Links>,
    metrics: RouterMetrics,
}

impl RequestRouter {
    /// A router that is `instance` to its peers and serves `model`; `policy` says when prompts are handed over.
    pub fn new(instance: Uuid, model: ModelCard, policy: HandoffPolicy) -> Self {
        Self(Arc::new(Inner {
            instance,
            model,
            policy,
            nodes: Nodes::new(),
            routes: Mutex::default(),
            links: Mutex::default(),
            metrics: RouterMetrics::default(),
        }))
    }

    /// Adds the router's own counters to what `metrics` shows.
    pub fn register_metrics(&self, metrics: &Metrics) {
        self.0.metrics.register(metrics);
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
        let addresses = [prefill_peers, decode_peers];
        for (peers, addresses) in self.0.nodes.peers().into_iter().zip(addresses) {
            for address in addresses {
                keepers.spawn(peers.clone().keep(endpoint.clone(), address, sender.clone()));
            }
        }
        while let Some(update) = updates.recv().await {
            self.0.nodes.note(&update);
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
            Change::Down(end) => self.handle_loss(instance, &end),
            Change::Up => {}
        }
    }

    fn handle_result(&self, from: &Connection, message: PeerMessage) {
        let id = message.request;
        let frame = ResultFrame::read(message.body);
        // Whether the request is over already or not.
        if let Ok(ResultFrame { handoff: Some(handoff), .. }) = &frame {
            self.note_link(from, handoff);
        }
        let mut routes = self.routes();
        let route = routes.get_mut(&id).filter(|route| route.epoch == message.epoch);
        let Some(route) = route else {
            // Of a request, or of an attempt at it, that was cancelled or failed, or that was over first.
            tracing::debug!(request = %id, peer = from.peer().name, "late result");
            return;
        };
        if !route.uses(from.peer().instance) {
            tracing::warn!(request = %id, peer = from.peer().name, "result of another node");
            return;
        }
        if let Ok(frame) = &frame {
            self.note_speed(from.peer().instance, route, frame);
        }
        let over = match frame {
            Ok(frame) if frame.phase() == Phase::FirstToken => {
                note_handoff(route, &frame);
                route.bridge.submit_first_token(frame)
            }
            Ok(frame) => route.bridge.submit_decode_token(frame),
            Err(error) => {
                route.bridge.fail(GenerateError::NodeFailed(error.to_string()));
                true
            }
        };
        let ended = over.then(|| routes.remove(&id)).flatten();
        drop(routes);
        if let Some(mut route) = ended {
            self.note_health(&route);
            if let Some(GenerateError::NodeLost(_)) = route.bridge.failure() {
                // It is the prefill node that says so: of the decode node.
                let decode = route.decode.peer();
                route.losses.note(decode.instance, &decode.name);
            }
            self.settle(route);
        }
    }

    /// Remembers how fast a node computed a prompt, and what of it is there now.
    fn note_speed(&self, node: Uuid, route: &Route, frame: &ResultFrame) {
        let nodes = &self.0.nodes;
        nodes.computed(node, frame.computed());
        let kept = frame.kept_tokens.unwrap_or_default();
        if self.0.policy == HandoffPolicy::Auto && kept > 0 {
            let decodes = route.decode.peer().instance == node;
            let role = if decodes { NodeRole::Decode } else { NodeRole::Prefill };
            nodes.kept(role, node, &affinity::beginnings(&route.request), kept as usize);
        }
    }

    /// Counts a handoff, as the prefill node reports it.
    fn note_link(&self, from: &Connection, handoff: &HandoffReport) {
        let decode = Uuid::from_slice(&handoff.decode).ok();
        match decode.and_then(|instance| self.0.nodes.decode(instance)) {
            Some(to) => {
                let [from, to] = [from.peer(), to.peer()].map(|node| (node.instance, &*node.name));
                self.links().note(from, to, handoff, clock::now());
            }
            None => self.links().note_gone(handoff),
        }
    }

    /// Remembers how the nodes of a request did.
    fn note_health(&self, route: &Route) {
        match route.bridge.failure() {
            None => self.0.nodes.succeeded(route.nodes()),
            // These did not fail, but cannot go on where another one did.
            Some(_) if route.bridge.diverges() => {}
            Some(GenerateError::NodeFailed(_) | GenerateError::NodeLost(_)) => {
                self.0.nodes.failed(route.nodes())
            }
            Some(_) => {}
        }
    }

    /// A node is gone: every request that still needs it fails, and its other node is told.
    fn handle_loss(&self, instance: Uuid, end: &SessionEnd) {
        self.0.nodes.forget(instance);
        self.links().forget(instance);
        let lost: Vec<_> = self.routes().extract_if(.., |_, route| route.needs(instance)).collect();
        for (_, mut route) in lost {
            let was_prefill = route.prefill.peer().instance == instance;
            let node = if was_prefill { &route.prefill } else { &route.decode };
            let reason = format!("{} failed: {end}", node.peer().name);
            let error = if is_loss(end) {
                route.losses.note(instance, &node.peer().name);
                GenerateError::NodeLost(reason)
            } else {
                GenerateError::NodeFailed(reason)
            };
            route.bridge.fail(error);
            self.settle(route);
        }
    }

    /// Tries a request that failed once more, or tells its client. Where one node failed, the other must not
    /// go on.
    fn settle(&self, failed: Route) {
        let mut failed = Some(failed);
        while let Some(mut route) = failed.take() {
            route.cancel();
            let Some(error) = route.bridge.failure().cloned() else {
                return self.0.metrics.restarted(route.bridge.restarts());
            };
            let Some(picked) = self.others(&mut route, &error) else {
                return route.report();
            };
            self.0.metrics.retried(&error);
            self.0.metrics.planned(&picked.plan);
            route.epoch += 1;
            let (id, epoch) = (route.request.id, route.epoch);
            let names = [&picked.prefill, &picked.decode].map(|node| &*node.peer().name);
            route.span.in_scope(|| {
                let [prefill, decode] = names;
                tracing::warn!(
                    request = %id, %error, attempt = epoch, prefill, decode, "tried on other nodes"
                );
            });
            route.bridge.begin_again(picked.notes(epoch));
            let Picked { prefill, decode, .. } = picked;
            (route.prefill, route.decode) = (prefill.clone(), decode);
            let body = route.ask(self.0.instance);
            // Who leaves closes the stream first and cancels then: one of the two is seen.
            let mut routes = self.routes();
            if route.bridge.is_abandoned() {
                return;
            }
            routes.insert(id, route);
            drop(routes);
            prefill.post(id, epoch, kind::PREFILL_REQUEST, body);
            failed = self.take_lost(id, epoch);
        }
    }

    /// Nodes for another attempt, at least one of which the request did not have yet, or which does by itself what it
    /// did with another one before.
    fn others(&self, route: &mut Route, error: &GenerateError) -> Option<Picked> {
        if !route.may_go_on(error) {
            return None;
        }
        let used: Vec<_> = route.nodes().map(|node| node.peer().instance).collect();
        route.tried.extend(used);
        let picked = self.pick(&route.request, &route.tried).ok()?;
        let is_new = |node: &Connection| !route.tried.contains(&node.peer().instance);
        let goes_alone = picked.plan.place == Place::Local && !route.is_local();
        (goes_alone || is_new(&picked.prefill) || is_new(&picked.decode)).then_some(picked)
    }

    /// Takes an attempt back that began when one of its nodes was lost already: who looked for requests of
    /// that node did not see it.
    fn take_lost(&self, id: Uuid, epoch: u32) -> Option<Route> {
        let mut routes = self.routes();
        let route = routes.get(&id).filter(|route| route.epoch == epoch)?;
        let lost = route.nodes().find(|node| node.is_closed())?;
        let reason = format!("{} is gone", lost.peer().name);
        let mut route = routes.remove(&id)?;
        route.bridge.fail(GenerateError::NodeFailed(reason));
        Some(route)
    }

    async fn start(&self, request: GenerateRequest) -> Result<Generation, GenerateError> {
        let picked = self.pick(&request, &[])?;
        self.0.metrics.planned(&picked.plan);
        let (id, epoch) = (request.id, 1);
        let (events, receiver) = mpsc::unbounded_channel();
        let bridge = StreamBridge::new(events, picked.notes(epoch), request.retractable);
        let Picked { prefill, decode, plan } = picked;
        let (to, tried, losses) = (prefill.clone(), Vec::new(), Losses::default());
        tracing::info!(
            request = %id,
            prefill = prefill.peer().name,
            decode = decode.peer().name,
            prompt_tokens = request.prompt.len(),
            %plan,
            "sent to its nodes"
        );
        let (begun, span) = (clock::now(), Span::current());
        let route = Route { request, span, begun, epoch, tried, losses, bridge, prefill, decode };
        let body = route.ask(self.0.instance);
        match self.routes().entry(id) {
            Entry::Occupied(_) => {
                let reason = format!("a request {id} is in flight already");
                return Err(GenerateError::BadRequest(reason));
            }
            Entry::Vacant(free) => free.insert(route),
        };
        let router = self.clone();
        let generation = Generation::new(receiver).with_cancel(move || router.cancel(id));
        if let Err(error @ MessageError::TooLong(_)) =
            to.send(id, epoch, kind::PREFILL_REQUEST, body).await
        {
            // The generation is dropped, which takes the route out again.
            return Err(GenerateError::NodeFailed(error.to_string()));
        }
        if let Some(route) = self.take_lost(id, epoch) {
            self.settle(route);
        }
        Ok(generation)
    }

    /// The client left: both nodes drop the request in whatever state it is.
    fn cancel(&self, id: Uuid) {
        if let Some(route) = self.routes().remove(&id) {
            route.cancel();
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
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
        // What no prefill node computes, a decode node does where it may.
        let needed: &[NodeRole] = match self.0.policy {
            HandoffPolicy::Always => &[NodeRole::Prefill, NodeRole::Decode],
            HandoffPolicy::Auto => &[NodeRole::Decode],
        };
        let missing = needed.iter().find(|role| !self.0.nodes.has(**role));
        missing.map_or(Readiness::Ready, |role| Readiness::NotReady {
            reason: format!("no {role} node is connected"),
        })
    }

    fn status(&self) -> BackendStatus {
        let routes = self.routes();
        let mut oldest: Vec<&Route> = routes.values().collect();
        oldest.sort_by_key(|route| route.begun);
        let load = |node| routes.values().filter(|route| route.needs(node)).count();
        let links = self.links();
        BackendStatus {
            role: NodeRole::Router.as_str(),
            in_flight: oldest.len(),
            requests: oldest.iter().take(REQUESTS_MAX).map(|route| route.status()).collect(),
            nodes: self.0.nodes.status(load),
            links: links.status(),
            handoffs: links.total(),
            plans: self.0.metrics.plans(),
            fallbacks: self.0.metrics.fallbacks(),
        }
    }

    fn generate(&self, request: GenerateRequest) -> GenerateFuture<'_> {
        Box::pin(self.start(request))
    }
}

/// Logs what a handoff cost.
fn note_handoff(route: &Route, frame: &ResultFrame) {
    let Some(handoff) = &frame.handoff else { return };
    let _in_request = route.span.enter();
    tracing::info!(
        request = %route.request.id,
        prefill = route.prefill.peer().name,
        decode = route.decode.peer().name,
        bytes = handoff.payload_bytes,
        ahead = handoff.ahead_bytes,
        exposed_micros = handoff.exposed_us,
        link = handoff.link,
        "handed over"
    );
}
