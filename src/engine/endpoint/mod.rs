//! What users hold: async handles over a driver that owns all links and sessions.
//!
//! ```text
//! Endpoint ──commands──> driver thread (current-thread runtime)
//!    connect(), listen()      one task a connection:  Session + Link
//! Connection, Events <──notices──┘
//! ```
//! An [`Endpoint`] has one thread of its own ([`Endpoint::start`]), so that sockets and rings make
//! progress while a model computes, or it runs as a future on a current-thread runtime of the
//! caller's ([`Endpoint::local`]). A connection's task shares nothing with another's: whatever a peer
//! does ends its own connection and nothing else.

mod backlog;
mod connection;
mod driver;
mod handles;
mod latch;
mod queue;
mod strangers;

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

pub use connection::{Connection, ConnectionStats, Event, Events, MessageError};
pub use handles::{IncomingHandoff, LandedPayload, OutgoingHandoff};

use crate::pool::BlockPool;
use crate::session::{Identity, SessionEnd, Timing};
use crate::transport::{Address, ConnectError, ListenError, Transport};
use driver::Command;
use queue::{Asker, queue};

/// What an endpoint is made of.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// Who this side is. Its geometry is filled in from the pool.
    pub identity: Identity,
    /// The pool whose blocks travel; none on a side that only sends messages.
    pub pool: Option<BlockPool>,
    /// One for each address scheme that should work.
    pub transports: Vec<Arc<dyn Transport>>,
    /// When silence counts.
    pub timing: Timing,
}

impl EndpointOptions {
    /// An endpoint over `transports` with default timing.
    pub fn new(
        mut identity: Identity,
        pool: Option<BlockPool>,
        transports: Vec<Arc<dyn Transport>>,
    ) -> Self {
        identity.geometry = pool.as_ref().map(|pool| pool.spec().clone());
        Self { identity, pool, transports, timing: Timing::default() }
    }
}

/// Why there is no connection to a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// No transport of this endpoint has the address's scheme.
    #[error("{address}: no transport for this scheme here")]
    Scheme {
        /// What was asked for.
        address: Address,
    },
    /// There is no link.
    #[error(transparent)]
    Link(#[from] ConnectError),
    /// There was a link, but the two sides do not fit, or the peer left.
    #[error("{peer}: {end}")]
    Handshake {
        /// Who it was.
        peer: String,
        /// How it ended.
        end: SessionEnd,
    },
    /// The endpoint is shut down.
    #[error("the endpoint is shut down")]
    ShutDown,
}

/// Why an address is not listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListeningError {
    /// No transport of this endpoint has the address's scheme.
    #[error("{address}: no transport for this scheme here")]
    Scheme {
        /// What was asked for.
        address: Address,
    },
    /// The address cannot be bound.
    #[error(transparent)]
    Bind(#[from] ListenError),
    /// The endpoint is shut down.
    #[error("the endpoint is shut down")]
    ShutDown,
}

/// What an endpoint calls itself now.
#[derive(Clone, Debug)]
struct Name(Arc<Mutex<String>>);

/// What all tasks of a driver share.
#[derive(Debug)]
struct Host {
    options: EndpointOptions,
    name: Name,
}

impl Host {
    /// Who this side is, to a peer that it meets now.
    fn identity(&self) -> Identity {
        let name = self.name.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Identity { name, ..self.options.identity.clone() }
    }
}

/// One process's end of all its connections. Dropping it closes them and joins its thread.
#[derive(Debug)]
pub struct Endpoint {
    commands: Asker<Command>,
    instance: Uuid,
    name: Name,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts an endpoint with a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread or no event queue.
    pub fn start(options: EndpointOptions) -> io::Result<Self> {
        let (mut endpoint, driver) = Self::local(options);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let body = move || tokio::task::LocalSet::new().block_on(&runtime, driver);
        endpoint.thread =
            Some(std::thread::Builder::new().name("blockwire-driver".into()).spawn(body)?);
        Ok(endpoint)
    }

    /// An endpoint, and the future that drives it. The future wants a tokio runtime with I/O and time,
    /// inside a `LocalSet`; it ends when the endpoint is dropped and its connections are closed.
    ///
    /// Spawn the user's own code as tasks of that `LocalSet` too: links that wait for a quick answer
    /// let other tasks run in between, while a future that is only blocked on waits for many rounds.
    pub fn local(options: EndpointOptions) -> (Self, impl Future<Output = ()> + use<>) {
        let (commands, asked) = queue();
        let instance = options.identity.instance;
        let name = Name(Arc::new(Mutex::new(options.identity.name.clone())));
        let host = Arc::new(Host { options, name: name.clone() });
        let driver = async move { driver::run(host, asked).await };
        (Self { commands, instance, name, thread: None }, driver)
    }

    /// Connects to a peer and exchanges hellos.
    ///
    /// # Errors
    /// [`ConnectionError`]: no link, or the two do not fit (both sides are named).
    ///
    /// # Cancel safety
    /// Dropping the future closes whatever was opened.
    pub async fn connect(
        &self,
        address: &Address,
    ) -> Result<(Connection, Events), ConnectionError> {
        let (reply, mut answer) = oneshot::channel();
        self.commands.ask(Command::Connect { address: address.clone(), reply });
        self.commands.answer(&mut answer).await.ok_or(ConnectionError::ShutDown)?
    }

    /// Listens on an address.
    ///
    /// # Errors
    /// [`ListeningError`].
    ///
    /// # Cancel safety
    /// Dropping the future unbinds.
    pub async fn listen(&self, address: &Address) -> Result<Listening, ListeningError> {
        let (reply, mut answer) = oneshot::channel();
        self.commands.ask(Command::Listen { address: address.clone(), reply });
        self.commands.answer(&mut answer).await.ok_or(ListeningError::ShutDown)?
    }

    /// What peers know this side by.
    pub fn instance(&self) -> Uuid {
        self.instance
    }

    /// Changes what this side calls itself to peers that it meets from now on: what a name tells may be known only
    /// after [`listen`](Self::listen), such as a port that the system chose.
    pub fn rename(&self, name: impl Into<String>) {
        *self.name.0.lock().unwrap_or_else(PoisonError::into_inner) = name.into();
    }

    /// Closes all connections in order and waits for the driver's thread.
    ///
    /// Blocks; call it outside async code. Dropping the endpoint does the same.
    pub fn shut_down(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.commands.ask(Command::ShutDown);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.end();
    }
}

/// A bound address: peers arrive here once their hello is accepted. Dropping it unbinds; connections
/// that arrived stay.
#[derive(Debug)]
pub struct Listening {
    local: Address,
    arrivals: mpsc::Receiver<(Connection, Events)>,
}

impl Listening {
    /// What peers dial, with the real port.
    pub fn local_address(&self) -> &Address {
        &self.local
    }

    /// The next peer; none once the endpoint is shut down.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn accept(&mut self) -> Option<(Connection, Events)> {
        self.arrivals.recv().await
    }
}
