//! Connections that a role keeps: to the addresses that it was told, and from whoever dials it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwire::endpoint::{Connection, ConnectionError, Endpoint, Event, Events};
use blockwire::session::SessionEnd;
use blockwire::transport::Address;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::persistence::{Persistence, Standing};
use crate::protocol::NodeRole;
use crate::status::NodeState;

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

/// Whether a peer went away without a word: neither side ended the connection on purpose.
pub(crate) fn is_loss(end: &SessionEnd) -> bool {
    !matches!(end, SessionEnd::Local | SessionEnd::Goodbye(_))
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

/// Connections that are open now, by the peer's instance. A peer may have several: it was dialled under
/// two addresses, or it came back before its old connection was known to be dead.
#[derive(Debug, Default)]
pub(crate) struct Connected(BTreeMap<Uuid, Vec<Connection>>);

impl Connected {
    /// Notes a connection as open, or as over.
    pub(crate) fn note(&mut self, update: &Update) {
        let (connection, instance) = (&update.connection, update.connection.peer().instance);
        match update.change {
            Change::Up => self.0.entry(instance).or_default().push(connection.clone()),
            Change::Down(_) => {
                let open = self.0.entry(instance).or_default();
                open.retain(|other| !other.is_same(connection));
                if open.is_empty() {
                    self.0.remove(&instance);
                }
            }
            Change::Event(_) => {}
        }
    }

    /// The newest connection to a peer.
    pub(crate) fn by_instance(&self, instance: Uuid) -> Option<&Connection> {
        self.0.get(&instance).and_then(|open| open.last())
    }

    /// The newest connection to each peer.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &Connection> {
        self.0.values().filter_map(|open| open.last())
    }
}

/// The peers of one role that are connected now.
#[derive(Clone, Debug)]
pub(crate) struct PeerSet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    role: NodeRole,
    connected: Mutex<Connected>,
    /// By the address at which each is kept.
    places: Mutex<BTreeMap<String, Place>>,
}

/// An address at which a peer is kept, and how things stand with it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: String,
    pub(crate) state: NodeState,
    /// Instance and name of whoever was there last.
    pub(crate) peer: Option<(Uuid, String)>,
}

impl PeerSet {
    /// No peer yet; only those of `role` count.
    pub(crate) fn new(role: NodeRole) -> Self {
        Self(Arc::new(Inner { role, connected: Mutex::default(), places: Mutex::default() }))
    }

    /// Whose peers these are.
    pub(crate) fn role(&self) -> NodeRole {
        self.0.role
    }

    /// Keeps a connection to `address`, for as long as the future runs. The address is looked up anew at
    /// every try.
    pub(crate) async fn keep(self, endpoint: Arc<Endpoint>, address: Address, to: UpdateSender) {
        let mut persistence = Persistence::default();
        let place = address.to_string();
        self.stands(&place, NodeState::Connecting, None);
        loop {
            match endpoint.connect(&address).await {
                Ok((connection, events)) if self.admits(&connection) => {
                    self.stands(&place, NodeState::Up, Some(&connection));
                    if persistence.stands(Standing::Up) {
                        tracing::info!(%address, peer = connection.peer().name, "connected");
                    }
                    to.pump(connection, events).await;
                    self.stands(&place, NodeState::Lost, None);
                    if persistence.stands(Standing::Lost) {
                        tracing::warn!(%address, "connection lost");
                    }
                }
                Ok((connection, _)) => {
                    self.stands(&place, NodeState::WrongRole, Some(&connection));
                    if persistence.stands(Standing::WrongRole) {
                        let role = String::from_utf8_lossy(&connection.peer().role).into_owned();
                        tracing::error!(%address, expected = %self.0.role, role, "wrong role");
                    }
                    connection.close("wrong role");
                }
                Err(error) => {
                    let (standing, state) = match error {
                        ConnectionError::Handshake { .. } => {
                            (Standing::Refused, NodeState::Refused)
                        }
                        _ => (Standing::Unreachable, NodeState::Unreachable),
                    };
                    self.stands(&place, state, None);
                    if persistence.stands(standing) {
                        tracing::warn!(%error, "no connection yet, trying on");
                    } else {
                        tracing::debug!(%error, "no connection yet");
                    }
                }
            }
            persistence.rest().await;
        }
    }

    /// Notes how things stand at an address; without a peer, whoever was there last is remembered.
    fn stands(&self, address: &str, state: NodeState, peer: Option<&Connection>) {
        let mut places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = places.entry(address.to_owned()).or_insert_with(|| Place {
            address: address.to_owned(),
            state,
            peer: None,
        });
        noted.state = state;
        if let Some(peer) = peer.map(Connection::peer) {
            noted.peer = Some((peer.instance, peer.name.clone()));
        }
    }

    /// The addresses at which peers are kept.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.0.places.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Whether the peer has this set's role.
    pub(crate) fn admits(&self, connection: &Connection) -> bool {
        NodeRole::parse(&connection.peer().role) == Some(self.0.role)
    }

    /// Notes a peer of this set's role as connected or gone.
    pub(crate) fn note(&self, update: &Update) {
        if self.admits(&update.connection) {
            self.lock().note(update);
        }
    }

    /// The peers that are connected now.
    pub(crate) fn connected(&self) -> Vec<Connection> {
        self.lock().newest().cloned().collect()
    }

    /// A peer that is connected now.
    pub(crate) fn by_instance(&self, instance: Uuid) -> Option<Connection> {
        self.lock().by_instance(instance).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Connected> {
        self.0.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
