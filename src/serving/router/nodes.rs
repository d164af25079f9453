//! The nodes that a router knows, and which of them a request gets.
//!
//! What counts, in this order: that the request did not have the node yet; that the node does not rest after
//! failures (`health`); that it was sent a prompt with the same beginning before (`affinity`), as long as it
//! has not too many more requests in flight than others; that it has the fewest.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwire::clock;
use blockwire::endpoint::Connection;
use blockwire::pool::PrefixKey;
use uuid::Uuid;

use super::affinity::{self, Affinity};
use super::health::Health;
use crate::backend::GenerateError;
use crate::coordinator::peers::{PeerSet, Place, Update};
use crate::protocol::NodeRole;
use crate::status::{NodeState, NodeStatus};

/// The prefill and the decode nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    prefill: Group,
    decode: Group,
    health: Mutex<Health>,
    /// Keeps ties between equally loaded nodes going round.
    turn: AtomicUsize,
}

/// The nodes of one role, and where prompts were sent among them.
#[derive(Debug)]
struct Group {
    peers: PeerSet,
    affinity: Mutex<Affinity>,
}

impl Group {
    fn new(role: NodeRole) -> Self {
        Self { peers: PeerSet::new(role), affinity: Mutex::default() }
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
        let (health, now) = (self.health(), clock::now());
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
            }
        };
        let peers = self.peers().into_iter();
        peers
            .flat_map(|peers| peers.places().into_iter().map(|place| (peers.role(), place)))
            .map(|(role, place)| status(role, place))
            .collect()
    }

    /// The role that no node is connected for.
    pub(super) fn missing(&self) -> Option<NodeRole> {
        let groups = [&self.prefill, &self.decode];
        let lacks = |group: &&Group| group.peers.connected().is_empty();
        groups.into_iter().find(lacks).map(|group| group.peers.role())
    }

    /// A prefill and a decode node for a request; `load` is how many requests a node has.
    ///
    /// # Errors
    /// [`GenerateError::NoNode`].
    pub(super) fn pick(
        &self,
        wanted: Wanted<'_>,
        load: impl Fn(Uuid) -> usize,
    ) -> Result<(Connection, Connection), GenerateError> {
        Ok((
            self.pick_of(&self.prefill, wanted, &load)?,
            self.pick_of(&self.decode, wanted, &load)?,
        ))
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
        let mut affinity = group.affinity.lock().unwrap_or_else(PoisonError::into_inner);
        let known = affinity.node(wanted.beginnings);
        let known = nodes.iter().find(|node| {
            let worst = (doubts, fewest + affinity::slack(fewest));
            known == Some(node.peer().instance) && cost(node) <= worst
        });
        let chosen = known.unwrap_or(least);
        affinity.note(wanted.beginnings, chosen.peer().instance);
        Ok(chosen.clone())
    }

    /// A request ended well that these nodes served.
    pub(super) fn succeeded(&self, nodes: [&Connection; 2]) {
        let mut health = self.health();
        nodes.into_iter().for_each(|node| health.succeeded(node.peer().instance));
    }

    /// A request failed that these nodes served.
    pub(super) fn failed(&self, nodes: [&Connection; 2]) {
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
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
