//! The nodes that a router knows, and which of them a request gets.
//!
//! What counts, in this order: that the request did not have the node yet; that the node does not rest after
//! failures (`health`); that it was sent a prompt with the same beginning before (`affinity`), as long as it
//! has not too many more requests in flight than others; that it has the fewest.
//!
//! What the cost model asks of them is here too: how fast they compute prompts, and what they have of one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwire::clock;
use blockwire::endpoint::Connection;
use blockwire::pool::PrefixKey;
use uuid::Uuid;

use super::affinity::{self, Affinity};
use super::health::Health;
use super::rates::PrefillRates;
use crate::backend::{Computed, GenerateError};
use crate::coordinator::peers::{PeerSet, Place, Update};
use crate::protocol::NodeRole;
use crate::status::{NodeState, NodeStatus};

/// The prefill and the decode nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    prefill: Group,
    decode: Group,
    health: Mutex<Health>,
    rates: Mutex<PrefillRates>,
    /// Keeps ties between equally loaded nodes going round.
    turn: AtomicUsize,
}

/// The nodes of one role, and where prompts were sent among them.
#[derive(Debug)]
struct Group {
    peers: PeerSet,
    affinity: Mutex<Affinity>,
    /// Where prompts are, as the nodes say that keep them.
    kept: Mutex<Affinity>,
}

impl Group {
    fn new(role: NodeRole) -> Self {
        Self { peers: PeerSet::new(role), affinity: Mutex::default(), kept: Mutex::default() }
    }
}

/// What a request asks of its nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// What its prompt begins with.
    pub(super) beginnings: &'a [PrefixKey],
    /// Nodes that it had.
    pub(super) tried: &'a [Uuid],
}

impl Nodes {
    /// None yet.
    pub(super) fn new() -> Self {
        Self {
            prefill: Group::new(NodeRole::Prefill),
            decode: Group::new(NodeRole::Decode),
            health: Mutex::default(),
            rates: Mutex::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Those that are kept connected: prefill, then decode.
    pub(super) fn peers(&self) -> [&PeerSet; 2] {
        [&self.prefill.peers, &self.decode.peers]
    }

    /// Notes what happens on a connection.
    pub(super) fn note(&self, update: &Update) {
        self.peers().into_iter().for_each(|peers| peers.note(update));
    }

    /// How things stand with every node that this router was told of; `load` is how many requests one has.
    pub(super) fn status(&self, load: impl Fn(Uuid) -> usize) -> Vec<NodeStatus> {
        let (health, rates, now) = (self.health(), self.rates(), clock::now());
        let status = |role: NodeRole, place: Place| {
            let instance = place.peer.as_ref().map(|(instance, _)| *instance);
            let rests = instance.is_some_and(|instance| health.rests(instance, now));
            let state = match place.state {
                NodeState::Up if rests => NodeState::Resting,
                state => state,
            };
            NodeStatus {
                name: place.peer.map(|(_, name)| name).unwrap_or_default(),
                role: role.as_str(),
                address: place.address,
                state,
                in_flight: instance.map_or(0, &load),
                prefill_tokens_per_second: instance.map_or(0.0, |instance| rates.latest(instance)),
            }
        };
        let peers = self.peers().into_iter();
        peers
            .flat_map(|peers| peers.places().into_iter().map(|place| (peers.role(), place)))
            .map(|(role, place)| status(role, place))
            .collect()
    }

    /// The connection to a decode node.
    pub(super) fn decode(&self, instance: Uuid) -> Option<Connection> {
        self.decode.peers.by_instance(instance)
    }

    /// Whether a node of this role is connected.
    pub(super) fn has(&self, role: NodeRole) -> bool {
        !self.group(role).peers.connected().is_empty()
    }

    /// A prefill node for a request; `load` is how many requests a node has.
    ///
    /// # Errors
    /// [`GenerateError::NoNode`].
    pub(super) fn pick_prefill(
        &self,
        wanted: Wanted<'_>,
        load: impl Fn(Uuid) -> usize,
    ) -> Result<Connection, GenerateError> {
        self.pick_of(&self.prefill, wanted, load)
    }

    /// A decode node, in the same way.
    ///
    /// # Errors
    /// [`GenerateError::NoNode`].
    pub(super) fn pick_decode(
        &self,
        wanted: Wanted<'_>,
        load: impl Fn(Uuid) -> usize,
    ) -> Result<Connection, GenerateError> {
        self.pick_of(&self.decode, wanted, load)
    }

    /// A request goes to these nodes; none of `prefill` where the decode node computes its prompt.
    pub(super) fn sent(
        &self,
        beginnings: &[PrefixKey],
        prefill: Option<&Connection>,
        decode: &Connection,
    ) {
        for (group, node) in [(&self.prefill, prefill), (&self.decode, Some(decode))] {
            if let Some(node) = node {
                lock(&group.affinity).note(beginnings, node.peer().instance);
            }
        }
    }

    /// A node of this role says that it keeps the first `tokens` of a prompt with these beginnings.
    pub(super) fn kept(&self, role: NodeRole, node: Uuid, beginnings: &[PrefixKey], tokens: usize) {
        let steps = affinity::steps_of(tokens).min(beginnings.len());
        lock(&self.group(role).kept).note(&beginnings[..steps], node);
    }

    /// Tokens of a prompt with these beginnings that a node of this role has, as it said.
    pub(super) fn cached(&self, role: NodeRole, node: Uuid, beginnings: &[PrefixKey]) -> usize {
        lock(&self.group(role).kept).known(beginnings, node)
    }

    /// A node computed so much.
    pub(super) fn computed(&self, node: Uuid, computed: Computed) {
        self.rates().note(node, computed, clock::now());
    }

    /// Prompt tokens a second of a node, where known.
    pub(super) fn prefill_rate(&self, node: Uuid) -> Option<f64> {
        self.rates().of_late(node, clock::now())
    }

    fn group(&self, role: NodeRole) -> &Group {
        if role == NodeRole::Prefill { &self.prefill } else { &self.decode }
    }

    fn pick_of(
        &self,
        group: &Group,
        wanted: Wanted<'_>,
        load: impl Fn(Uuid) -> usize,
    ) -> Result<Connection, GenerateError> {
        let mut nodes = group.peers.connected();
        nodes.sort_by_key(|node| node.peer().instance);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % nodes.len().max(1);
        nodes.rotate_left(turn);
        let (health, now) = (self.health(), clock::now());
        let cost = |node: &Connection| {
            let instance = node.peer().instance;
            let doubts = (wanted.tried.contains(&instance), health.rests(instance, now));
            (doubts, load(instance))
        };
        let Some(least) = nodes.iter().min_by_key(|node| cost(node)) else {
            return Err(GenerateError::NoNode(format!(
                "no {} node is connected",
                group.peers.role()
            )));
        };
        let (doubts, fewest) = cost(least);
        let known = lock(&group.affinity).node(wanted.beginnings);
        let known = nodes.iter().find(|node| {
            let worst = (doubts, fewest + affinity::slack(fewest));
            known == Some(node.peer().instance) && cost(node) <= worst
        });
        Ok(known.unwrap_or(least).clone())
    }

    /// A request ended well that these nodes served.
    pub(super) fn succeeded<'a>(&self, nodes: impl Iterator<Item = &'a Connection>) {
        let mut health = self.health();
        nodes.for_each(|node| health.succeeded(node.peer().instance));
    }

    /// A request failed that these nodes served.
    pub(super) fn failed<'a>(&self, nodes: impl Iterator<Item = &'a Connection>) {
        let (mut health, now) = (self.health(), clock::now());
        for node in nodes.map(Connection::peer) {
            if let Some(rest) = health.failed(node.instance, now) {
                tracing::warn!(node = node.name, ?rest, "fails again and again: it rests");
            }
        }
    }

    /// A node is gone.
    pub(super) fn forget(&self, instance: Uuid) {
        self.health().forget(instance);
        self.rates().forget(instance);
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        lock(&self.health)
    }

    fn rates(&self) -> MutexGuard<'_, PrefillRates> {
        lock(&self.rates)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
