//! Links over TCP: from pool block to socket and from socket to pool block, with no copy in user space.
//!
//! Read in this order: [`TcpTransport`] (how links are made), `link` (one connection's life), `send`
//! and `receive` (its two halves, which know no socket), `mover` (how bytes go between a socket and the
//! halves), `ahead` (the only bytes that are read before it is known what they are).
//!
//! ```text
//! stream:  [header|body] [header|payload <= 1 MiB] [header|body] [header|payload] ...
//!           control       of stream 7               control       of stream 9
//! ```
//! Control frames go before payload, streams take turns frame by frame, and a frame that was begun is
//! finished, so that the stream stays readable whatever is cancelled.
//!
//! Links need a tokio runtime with I/O and time: their readiness and their few timers come from there.
#![forbid(unsafe_code)]

mod address;
mod ahead;
mod link;
mod listener;
mod mover;
mod options;
mod receive;
mod send;
mod socket;

use std::io;

use blockwire::transport::{
    Address, ConnectError, Link, ListenError, Listener, LocalFuture, Transport,
};
use tokio::net::lookup_host;
use tokio::time::timeout;

pub use crate::options::TcpOptions;

use crate::address::Target;
use crate::link::TcpLink;
use crate::listener::TcpLinkListener;

const SCHEME: &str = "tcp";

/// Dials and listens on `tcp://host:port`, `tcp://[::1]:port`, `tcp://[fe80::1%eth0]:port`.
///
/// ```
/// # use blockwire::transport::Transport;
/// # use blockwire_tcp::TcpTransport;
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// runtime.block_on(async {
///     let transport = TcpTransport::default();
///     let listener = transport.listen(&"tcp://127.0.0.1:0".parse().unwrap()).await.unwrap();
///     let link = transport.connect(&listener.local_address()).await.unwrap();
///     assert_eq!(link.capabilities().stream, Some(0));
/// });
/// ```
#[derive(Clone, Debug, Default)]
pub struct TcpTransport {
    options: TcpOptions,
}

impl TcpTransport {
    /// A transport whose links have these options.
    pub fn new(options: TcpOptions) -> Self {
        Self { options }
    }
}

impl Transport for TcpTransport {
    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        let (options, address) = (self.options.clone(), address.clone());
        Box::pin(async move { connect(&options, &address).await })
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let (options, address) = (self.options.clone(), address.clone());
        Box::pin(async move { listen(&options, &address).await })
    }
}

/// Tries every address of the name, in the resolver's order.
async fn connect(options: &TcpOptions, address: &Address) -> Result<Box<dyn Link>, ConnectError> {
    let refuse = |reason| ConnectError::Address { address: address.clone(), reason };
    let system = |source| ConnectError::System { address: address.clone(), source };
    let target = Target::to_dial(address).map_err(refuse)?;
    let mut error = no_address();
    for at in lookup_host((target.host.as_str(), target.port)).await.map_err(system)? {
        match timeout(options.connect_timeout, socket::connect(at, options)).await {
            Ok(Ok(stream)) => {
                let link = TcpLink::new(stream, options).map_err(system)?;
                return Ok(Box::new(link));
            }
            Ok(Err(refused)) => error = refused,
            Err(_elapsed) => error = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(system(error))
}

/// Binds the first address of the name that can be bound.
async fn listen(options: &TcpOptions, address: &Address) -> Result<Box<dyn Listener>, ListenError> {
    let refuse = |reason| ListenError::Address { address: address.clone(), reason };
    let system = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address: address.clone() },
        _ => ListenError::System { address: address.clone(), source },
    };
    let target = Target::parse(address).map_err(refuse)?;
    let mut error = no_address();
    for at in lookup_host((target.host.as_str(), target.port)).await.map_err(system)? {
        match socket::listen(at, options) {
            Ok(bound) => {
                let listener = TcpLinkListener::new(bound, options.clone()).map_err(system)?;
                return Ok(Box::new(listener));
            }
            Err(refused) => error = refused,
        }
    }
    Err(system(error))
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}
