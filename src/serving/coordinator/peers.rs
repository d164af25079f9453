//! Connections that a role keeps: to the addresses that it was told, and from whoever dials it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blockwire::endpoint::{Connection, Endpoint, Event, Events};
use blockwire::session::SessionEnd;
use blockwire::transport::Address;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::protocol::NodeRole;

/// First and longest pause between two tries to reach a peer.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Updates that wait for the role's loop; more slow their peers down.
const UPDATES_MAX: usize = 1024;

/// What happens on the connections of a role.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) connection: Connection,
    pub(crate) change: Change,
}

/// One of those.
#[derive(Debug)]
pub(crate) enum Change {
    Up,
    Event(Event),
    Down(SessionEnd),
}

/// Where updates go; clones feed the same loop.
#[derive(Clone, Debug)]
pub(crate) struct UpdateSender(mpsc::Sender<Update>);

/// The queue of a role's loop.
pub(crate) fn updates() -> (UpdateSender, mpsc::Receiver<Update>) {
    let (sender, receiver) = mpsc::channel(UPDATES_MAX);
    (UpdateSender(sender), receiver)
}

impl UpdateSender {
    /// Feeds one connection's events to the loop until it ends.
    pub(crate) async fn pump(&self, connection: Connection, mut events: Events) {
        let send = |change| {
            let update = Update { connection: connection.clone(), change };
            async { self.0.send(update).await.is_ok() }
        };
        if !send(Change::Up).await {
            return;
        }
        while let Some(event) = events.next().await {
            if !send(Change::Event(event)).await {
                return;
            }
        }
        let end = connection.closed().await;
        send(Change::Down(end)).await;
    }
}

/// The peers of one role that are connected now, by instance.
#[derive(Clone, Debug)]
pub(crate) struct PeerSet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    role: NodeRole,
    connected: Mutex<HashMap<Uuid, Connection>>,
}

impl PeerSet {
    /// No peer yet; only those of `role` count.
    pub(crate) fn new(role: NodeRole) -> Self {
        Self(Arc::new(Inner { role, connected: Mutex::default() }))
    }

    /// Keeps a connection to `address`, for as long as the future runs.
    pub(crate) async fn keep(self, endpoint: Arc<Endpoint>, address: Address, to: UpdateSender) {
        let (mut pause, longest) = RETRY_PAUSE;
        let mut told = false;
        loop {
            match endpoint.connect(&address).await {
                Ok((connection, events)) if self.admits(&connection) => {
                    tracing::info!(%address, peer = connection.peer().name, "connected");
                    (pause, told) = (RETRY_PAUSE.0, false);
                    to.pump(connection, events).await;
                    tracing::warn!(%address, "connection lost");
                }
                Ok((connection, _)) => {
                    let role = String::from_utf8_lossy(&connection.peer().role).into_owned();
                    tracing::error!(%address, expected = %self.0.role, role, "wrong role");
                    connection.close("wrong role");
                }
                // A peer that is not up yet is said once; a refusal is worth a line each.
                Err(error) if !std::mem::replace(&mut told, true) => {
                    tracing::warn!(%error, "no connection yet, trying on");
                }
                Err(error) => tracing::debug!(%error, "no connection yet"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Whether the peer has this set's role.
    pub(crate) fn admits(&self, connection: &Connection) -> bool {
        NodeRole::parse(&connection.peer().role) == Some(self.0.role)
    }

    /// Notes a peer of this set's role as connected or gone.
    pub(crate) fn note(&self, update: &Update) {
        if !self.admits(&update.connection) {
            return;
        }
        let instance = update.connection.peer().instance;
        match update.change {
            Change::Up => {
                self.lock().insert(instance, update.connection.clone());
            }
            Change::Down(_) => {
                self.lock().remove(&instance);
            }
            Change::Event(_) => {}
        }
    }

    /// The peers that are connected now.
    pub(crate) fn connected(&self) -> Vec<Connection> {
        self.lock().values().cloned().collect()
    }

    /// A peer that is connected now.
    pub(crate) fn by_instance(&self, instance: Uuid) -> Option<Connection> {
        self.lock().get(&instance).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Connection>> {
        self.0.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
