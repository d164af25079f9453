//! The networked forms of the roles: connections in, work items out.

use std::future::Future;
use std::time::Duration;

use blockwire::endpoint::{Connection, Event, IncomingHandoff, Listening};
use blockwire::session::{DeclineCode, HandoffKey, PeerMessage};
use blockwire::transport::Address;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::decode::DecodeRoleHandoff;
use super::local::LocalRequest;
use super::peers::{Change, Connected, PeerSet, Update, UpdateSender, updates};
use super::prefill::PrefillRoleRequest;
use super::tasks::Tasks;
use super::{ResultSink, ServingCoordinator};
use crate::backend::{GenerateError, GenerateRequest, TokenEvent};
use crate::protocol::{DecodeMetaFrame, NodeRole, Phase, PrefillRequestFrame, ResultFrame, kind};

/// Longest a node goes on with its requests after it was told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// Between two looks whether lent blocks are back.
const LENT_PAUSE: Duration = Duration::from_millis(10);

impl ServingCoordinator {
    /// Serves routers that dial `listening` and hands their caches to `decode_peers`, until `stop`
    /// completes; then finishes what runs.
    pub async fn run_prefill_role_networked(
        &self,
        listening: Listening,
        decode_peers: Vec<Address>,
        stop: impl Future<Output = ()>,
    ) {
        let decode = PeerSet::new(NodeRole::Decode);
        let (sender, updates) = updates();
        let mut keepers = JoinSet::new();
        for address in decode_peers {
            let endpoint = self.endpoint.clone();
            keepers.spawn(decode.clone().keep(endpoint, address, sender.clone()));
        }
        keepers.spawn(accept_all(listening, sender));
        let mut node = Node::new(self);
        node.run(updates, stop, |node, update| {
            decode.note(&update);
            if let Change::Event(Event::Message(message)) = update.change {
                node.handle_prefill_message(&decode, &update.connection, message);
            }
        })
        .await;
        self.wait_for_lent(&decode).await;
    }

    /// Waits until the decode nodes have copied what they read in this node's pool. One that does not in
    /// time computes its prompts again.
    async fn wait_for_lent(&self, decode: &PeerSet) {
        decode.connected().iter().for_each(Connection::recall_all);
        let pool = self.scheduler.pool();
        let given_back = async {
            while pool.lent_blocks() > 0 {
                tokio::time::sleep(LENT_PAUSE).await;
            }
        };
        if tokio::time::timeout(DRAIN_MAX, given_back).await.is_err() {
            tracing::warn!(blocks = pool.lent_blocks(), "stopping while decode nodes read here");
        }
    }

    /// Takes caches from prefill nodes that dial `listening` and reports to routers that dial it too,
    /// until `stop` completes; then finishes what runs.
    pub async fn run_decode_role_networked(
        &self,
        listening: Listening,
        stop: impl Future<Output = ()>,
    ) {
        let (sender, updates) = updates();
        let mut keepers = JoinSet::new();
        keepers.spawn(accept_all(listening, sender));
        let mut node = Node::new(self);
        node.run(updates, stop, |node, update| match update.change {
            Change::Event(Event::Handoff(incoming)) => node.handle_handoff(incoming),
            Change::Event(Event::Message(message)) => {
                node.handle_decode_message(&update.connection, message);
            }
            _ => {}
        })
        .await;
    }
}

/// What a networked role keeps: its routers and its requests.
struct Node<'a> {
    coordinator: &'a ServingCoordinator,
    routers: Connected,
    tasks: Tasks,
}

impl<'a> Node<'a> {
    fn new(coordinator: &'a ServingCoordinator) -> Self {
        Self { coordinator, routers: Connected::default(), tasks: Tasks::default() }
    }

    async fn run(
        &mut self,
        mut updates: mpsc::Receiver<Update>,
        stop: impl Future<Output = ()>,
        mut handle: impl FnMut(&mut Self, Update),
    ) {
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                // A fixed order, for simulations. No more tasks end than updates began.
                biased;
                () = &mut stop => break,
                () = self.tasks.next_end() => {}
                update = updates.recv() => match update {
                    Some(update) => {
                        self.note_router(&update);
                        handle(self, update);
                    }
                    None => break,
                },
            }
        }
        let drain = async {
            while !self.tasks.is_empty() {
                tokio::select! {
                    biased;
                    () = self.tasks.next_end() => {}
                    // Cancellations still count while the last requests finish.
                    Some(update) = updates.recv() => {
                        self.note_router(&update);
                        if let Some(update) = refuse_new_work(update) {
                            handle(self, update);
                        }
                    }
                }
            }
        };
        if tokio::time::timeout(DRAIN_MAX, drain).await.is_err() {
            tracing::warn!("stopping with requests in flight");
        }
    }

    fn note_router(&mut self, update: &Update) {
        let peer = update.connection.peer();
        if NodeRole::parse(&peer.role) != Some(NodeRole::Router) {
            return;
        }
        self.routers.note(update);
        match update.change {
            Change::Up => tracing::info!(router = peer.name, "router connected"),
            Change::Down(_) => {
                tracing::info!(router = peer.name, "router gone");
                self.tasks.cancel_owner(&update.connection);
            }
            Change::Event(_) => {}
        }
    }

    fn handle_prefill_message(
        &mut self,
        decode: &PeerSet,
        from: &Connection,
        message: PeerMessage,
    ) {
        let key = key(&message);
        let HandoffKey { request, epoch } = key;
        match message.kind {
            kind::CANCEL => self.tasks.cancel(key),
            kind::PREFILL_REQUEST => {
                let results = ResultSink::Peer { connection: from.clone(), key };
                if let Some((request, to, reply_to)) = read_request(from, key, message.body) {
                    let decode = decode.by_instance(to);
                    let item = PrefillRoleRequest { request, epoch, decode, reply_to, results };
                    self.coordinator.spawn_prefill(&mut self.tasks, Some(from.clone()), item);
                }
            }
            other => note_unknown(from, request, other),
        }
    }

    fn handle_decode_message(&mut self, from: &Connection, message: PeerMessage) {
        let key = key(&message);
        let HandoffKey { request, epoch } = key;
        match message.kind {
            kind::CANCEL => self.tasks.cancel(key),
            kind::PREFILL_REQUEST => {
                let results = ResultSink::Peer { connection: from.clone(), key };
                match read_request(from, key, message.body) {
                    Some((request, decode, _))
                        if decode == self.coordinator.endpoint.instance() =>
                    {
                        let item = LocalRequest { request, epoch, results };
                        self.coordinator.spawn_local(&mut self.tasks, Some(from.clone()), item);
                    }
                    Some(_) => {
                        let reason = "a decode node hands no caches over".to_owned();
                        refuse(from, key, GenerateError::NodeFailed(reason));
                    }
                    None => {}
                }
            }
            other => note_unknown(from, request, other),
        }
    }

    fn handle_handoff(&mut self, incoming: IncomingHandoff) {
        let key = incoming.key();
        let id = key.request;
        let meta = incoming.manifest().meta.clone();
        let (request, reply_to, state) = match DecodeMetaFrame::read(id, meta) {
            Ok(meta) => meta,
            Err(error) => {
                let prefill = &incoming.connection().peer().name;
                tracing::warn!(request = %id, prefill, %error, "unreadable handoff");
                incoming.decline(DeclineCode::DeclineManifest, &error.to_string());
                return;
            }
        };
        let Some(connection) = self.routers.by_instance(reply_to).cloned() else {
            incoming.decline(DeclineCode::DeclineNoPath, "its router is not connected here");
            return;
        };
        let results = ResultSink::Peer { connection: connection.clone(), key };
        let item = DecodeRoleHandoff { request, state, incoming, results };
        self.coordinator.spawn_decode(&mut self.tasks, Some(connection), item);
    }
}

/// Refuses work, which a node that is about to stop does not begin any more: whoever asked must not wait for
/// the requests that still run. Any other update comes back.
fn refuse_new_work(update: Update) -> Option<Update> {
    let Update { connection, change } = update;
    let stopping = "this node is about to stop";
    match change {
        Change::Event(Event::Handoff(incoming)) => {
            incoming.decline(DeclineCode::DeclineNoPath, stopping);
            None
        }
        Change::Event(Event::Message(message)) if message.kind == kind::PREFILL_REQUEST => {
            refuse(&connection, key(&message), GenerateError::NoNode(stopping.to_owned()));
            None
        }
        change => Some(Update { connection, change }),
    }
}

/// What a router asks for: the request, the decode node, the router. What cannot be read is refused.
fn read_request(
    from: &Connection,
    key: HandoffKey,
    body: Bytes,
) -> Option<(GenerateRequest, Uuid, Uuid)> {
    match PrefillRequestFrame::read(key.request, body) {
        Ok(read) => Some(read),
        Err(error) => {
            tracing::warn!(request = %key.request, router = from.peer().name, %error, "unreadable request");
            refuse(from, key, GenerateError::BadRequest(error.to_string()));
            None
        }
    }
}

fn note_unknown(from: &Connection, request: Uuid, kind: u32) {
    tracing::warn!(%request, peer = from.peer().name, kind, "unknown message");
}

/// Which attempt at which request a message is about.
fn key(message: &PeerMessage) -> HandoffKey {
    HandoffKey { request: message.request, epoch: message.epoch }
}

/// Ends a request that was not begun.
fn refuse(router: &Connection, key: HandoffKey, error: GenerateError) {
    let frame = ResultFrame::carrying(Phase::FirstToken, TokenEvent::Failed(error));
    let body = prost::Message::encode_to_vec(&frame).into();
    router.post(key.request, key.epoch, kind::RESULT, body);
}

async fn accept_all(mut listening: Listening, to: UpdateSender) {
    let mut pumps = JoinSet::new();
    loop {
        tokio::select! {
            // A fixed order, for simulations. No more pumps end than peers arrived.
            biased;
            Some(_) = pumps.join_next() => {}
            arrival = listening.accept() => match arrival {
                Some((connection, events)) => {
                    let to = to.clone();
                    pumps.spawn(async move { to.pump(connection, events).await });
                }
                None => break,
            },
        }
    }
    while pumps.join_next().await.is_some() {}
}
