//! Links over TCP: from pool block to socket and from socket to pool block, with no copy in user space.
//!
//! Read in this order: [`TcpTransport`], `address` and `connect` (how links are made), `greeting` (who is at
//! the other end, and whether it has the same [`ClusterKey`]), `link` (one connection's life), `send` and
//! `receive` (its two halves, which know no socket), `mover` (how bytes go between a socket and the
//! halves), `ahead` (the only bytes that are read before it is known what they are), `striped` (links of
//! several connections), `credit` (how far a sender may be ahead of its reader).
//!
//! ```text
//! stream:  greeting  [header|body] [header|payload <= 1 MiB] [header|body] [header|payload] ...
//!                     control       of stream 7               control       of stream 9
//! ```
//! Control frames go before payload, streams take turns frame by frame, and a frame that was begun is
//! finished, so that the stream stays readable whatever is cancelled.
//!
//! With a cluster key a tag follows every frame (`seal`). Where the address says so, all of it is
//! encrypted instead (`tls`).
//!
//! A receiver tells a tag when, and only when, it has blocks for the whole payload, so no more payload is ever
//! under way than there is room for. Credits only keep short what a control frame has to wait behind.
//! Control frames that nobody takes stop the reading, and TCP's window tells the peer.
//!
//! Links need a tokio runtime with I/O and time: their readiness and their few timers come from there. The
//! process has to ignore SIGPIPE, as every Rust program does that keeps its own `main`: `splice` raises it
//! when a peer is gone.
#![deny(unsafe_code)]

mod address;
mod ahead;
mod connect;
mod credit;
mod greeting;
mod key;
mod link;
mod listener;
mod mover;
mod options;
mod receive;
mod seal;
mod send;
#[cfg(all(test, target_os = "linux", feature = "uring"))]
mod send_tests;
mod socket;
mod source;
mod stage;
mod striped;

#[cfg_attr(
    not(all(feature = "tls", any(target_arch = "x86_64", target_arch = "aarch64"))),
    path = "no_tls.rs"
)]
mod tls;

#[cfg(target_os = "linux")]
#[path = "linux/interface.rs"]
mod interface;

#[cfg(target_os = "macos")]
#[path = "macos/interface.rs"]
mod interface;

#[cfg(test)]
mod vectors;

use std::io;
use std::sync::Arc;

use blockwire::transport::{
    Address, ConnectError, Link, ListenError, Listener, LocalFuture, Transport, Violation,
};
use tokio::net::lookup_host;
use uuid::Uuid;

pub use crate::key::{ClusterKey, ClusterKeyError};
pub use crate::mover::probe_uring;
pub use crate::options::{SendWay, SocketPath, TcpOptions};

use crate::address::Target;
use crate::greeting::{Greeted, Opening, Place, greet};
use crate::link::TcpLink;
use crate::listener::TcpLinkListener;
use crate::mover::Channel;
use crate::tls::Tls;

const SCHEME: &str = "tcp";

/// Why a name is not listened on.
const PLACEHOLDER: &str = "the hosts file of this system gives its name a loopback address, which no \
                           other host reaches: listen on an address, or on 0.0.0.0 or [::]";

/// Dials and listens on `tcp://host:port`, `tcp://[::1]:port`, `tcp://[fe80::1%eth0]:port`; dials from an
/// interface or an address with `tcp://host:port?bind=eth0` and `?bind=10.0.0.2`; dials several connections
/// for one link with `tcp://host:port?stripes=4`, from several interfaces with `?stripes=2&bind=eth0&bind=eth1`. With
/// `?tls=key` on both sides, and a cluster key, links are encrypted.
///
/// ```
/// # use blockwire::transport::Transport;
/// # use blockwire_tcp::TcpTransport;
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// runtime.block_on(async {
///     let transport = TcpTransport::default();
///     let mut listener = transport.listen(&"tcp://127.0.0.1:0".parse().unwrap()).await.unwrap();
///     // Both ends greet.
///     let dialled = transport.connect(&listener.local_address());
///     let accepting = std::future::poll_fn(|cx| listener.poll_accept(cx));
///     let (dialled, accepted) = tokio::join!(dialled, accepting);
///     assert_eq!(dialled.unwrap().capabilities(), accepted.unwrap().capabilities());
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
        let (mut options, address) = (self.options.clone(), address.clone());
        Box::pin(async move {
            let refuse = |reason| ConnectError::Address { address: address.clone(), reason };
            let target = Target::to_dial(&address).map_err(refuse)?;
            options.path = target.path.unwrap_or(options.path);
            let tls = target.tls.then(|| Tls::dialler(&options)).transpose().map_err(refuse)?;
            let dialler = Dialler { options, address, target, tls };
            if dialler.target.stripes() > 1 {
                let link = striped::connect(dialler).await?;
                return Ok(Box::new(link) as Box<dyn Link>);
            }
            let place = Place::alone(Uuid::new_v4());
            let (channel, greeted) = dialler.dial(place, 0).await?;
            match TcpLink::new(channel, &greeted, &dialler.options, Arc::default()) {
                Ok(link) => Ok(Box::new(link) as Box<dyn Link>),
                Err(source) => Err(dialler.system(source)),
            }
        })
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let (options, address) = (self.options.clone(), address.clone());
        Box::pin(async move { listen(options, &address).await })
    }
}

/// How the connections of a link are made.
#[derive(Debug)]
struct Dialler {
    options: TcpOptions,
    address: Address,
    target: Target,
    tls: Option<Tls>,
}

impl Dialler {
    /// Makes one connection from where stripe number `from` of a new link starts, and greets.
    async fn dial(&self, place: Place, from: u16) -> Result<(Channel, Greeted), ConnectError> {
        let Self { options, address, target, tls } = self;
        let stream = connect::connect(options, address, target, from).await?;
        let greeting = greet(stream, Opening::Dial(place), tls.as_ref(), options).await;
        greeting.map_err(|error| error.with(address.clone()))
    }

    fn system(&self, source: io::Error) -> ConnectError {
        ConnectError::System { address: self.address.clone(), source }
    }

    fn violated(&self, violation: Violation) -> ConnectError {
        ConnectError::Violated { address: self.address.clone(), violation }
    }
}

/// Binds the first address of the name that can be bound.
async fn listen(
    mut options: TcpOptions,
    address: &Address,
) -> Result<Box<dyn Listener>, ListenError> {
    let refuse = |reason| ListenError::Address { address: address.clone(), reason };
    let system = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address: address.clone() },
        _ => ListenError::System { address: address.clone(), source },
    };
    let target = Target::to_listen(address).map_err(refuse)?;
    options.path = target.path.unwrap_or(options.path);
    let tls = target.tls.then(|| Tls::acceptor(&options)).transpose().map_err(refuse)?;
    let found = lookup_host((target.host.as_str(), target.port)).await.map_err(system)?;
    let mut error = None;
    for at in found {
        if target.is_placeholder(at.ip()) {
            error.get_or_insert_with(|| refuse(PLACEHOLDER.into()));
            continue;
        }
        match socket::listen(at, &options) {
            Ok(bound) => {
                let listener = TcpLinkListener::new(bound, tls, options).map_err(system)?;
                return Ok(Box::new(listener));
            }
            Err(refused) => error = Some(system(refused)),
        }
    }
    Err(error.unwrap_or_else(|| system(connect::no_address())))
}
