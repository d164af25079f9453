//! Dialling and listening.

use std::io;
use std::time::Duration;

use blockwire::transport::{
    Address, ConnectError, Link, ListenError, Listener, LocalFuture, Transport,
};
use tokio::net::UnixStream;

use crate::half::valid_ring_len;
use crate::link::ShmLink;
use crate::listener::ShmListener;
use crate::place::{PlaceError, socket_path};
use crate::setup::{Role, set_up};
use crate::spin;

/// Pause before a listener with a full queue is dialled again.
const REDIAL_PAUSE: Duration = Duration::from_millis(5);

/// What may be chosen about the links of a [`ShmTransport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmOptions {
    /// Bytes of the control ring that this side writes: a power of two, 4 KiB to 64 MiB.
    pub ring_len: usize,
    /// Bytes of the payload ring likewise: for payload of pools that the peer cannot map.
    pub payload_ring_len: usize,
    /// How long the first exchange with a peer may take.
    pub setup_limit: Duration,
    /// How long an end looks for more after something passed, before it sleeps; zero: not at all.
    pub spin_limit: Duration,
}

impl Default for ShmOptions {
    /// 1 MiB: both fit the caches of both cores. 5 s: only a stopped process needs longer. 25 us: twice
    /// the cost of a wake-up; zero where this thread has one core only, when first asked.
    fn default() -> Self {
        Self {
            ring_len: 1 << 20,
            payload_ring_len: 1 << 20,
            setup_limit: Duration::from_secs(5),
            spin_limit: spin::default_limit(),
        }
    }
}

/// Links between processes of one user on one host.
///
/// `connect` and `listen` need a tokio runtime with I/O and time.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShmTransport {
    options: ShmOptions,
}

impl ShmTransport {
    /// A transport with other options than the default ones.
    ///
    /// # Panics
    /// When a ring's length is out of bounds.
    pub fn new(options: ShmOptions) -> Self {
        for len in [options.ring_len, options.payload_ring_len] {
            assert!(valid_ring_len(len), "a ring of {len} bytes");
        }
        Self { options }
    }
}

impl Transport for ShmTransport {
    fn scheme(&self) -> &'static str {
        "shm"
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        let (address, options) = (address.clone(), self.options);
        Box::pin(async move { Ok(Box::new(dial(address, options).await?) as Box<dyn Link>) })
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let (address, options) = (address.clone(), self.options);
        Box::pin(async move {
            Ok(Box::new(ShmListener::bind(address, options).await?) as Box<dyn Listener>)
        })
    }
}

async fn dial(address: Address, options: ShmOptions) -> Result<ShmLink, ConnectError> {
    let path = match socket_path(address.target()) {
        Ok(path) => path,
        Err(PlaceError::Refused(reason)) => {
            return Err(ConnectError::Address { address, reason: reason.into() });
        }
        Err(PlaceError::System(source)) => return Err(ConnectError::System { address, source }),
    };
    let connecting = async {
        loop {
            match UnixStream::connect(&path).await {
                // The listener's queue is full: it is alive and busy.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(REDIAL_PAUSE).await;
                }
                other => return other,
            }
        }
    };
    let late = |_| Err(io::ErrorKind::TimedOut.into());
    let connected = tokio::time::timeout(options.setup_limit, connecting).await;
    match connected.unwrap_or_else(late) {
        Ok(stream) => set_up(stream, Role::Dialled, address, options).await,
        Err(source) => Err(ConnectError::System { address, source }),
    }
}
