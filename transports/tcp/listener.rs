//! A bound port. Whatever happens to one that comes, or to the process's limits, it goes on.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use blockwire::transport::{Address, ConnectError, Link, Listener};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};

use crate::SCHEME;
use crate::link::TcpLink;
use crate::options::TcpOptions;
use crate::source::reachable;

/// Rest after an error that does not concern one peer, as a lack of descriptors: the connection still
/// waits, so trying at once again would only spin.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes links of those who dial.
#[derive(Debug)]
pub(crate) struct TcpLinkListener {
    listener: TcpListener,
    local: Address,
    options: TcpOptions,
    pause: Option<Pin<Box<Sleep>>>,
}

impl TcpLinkListener {
    /// Takes a bound socket.
    pub(crate) fn new(listener: TcpListener, options: TcpOptions) -> io::Result<Self> {
        let at = reachable(listener.local_addr()?);
        let local = Address::new(SCHEME, &at.to_string());
        Ok(Self { listener, local, options, pause: None })
    }

    fn link(&self, accepted: io::Result<(TcpStream, SocketAddr)>) -> Result<TcpLink, ConnectError> {
        let mut address = self.local.clone();
        accepted
            .and_then(|(stream, from)| {
                address = Address::new(SCHEME, &from.to_string());
                TcpLink::new(stream, &self.options)
            })
            .map_err(|source| ConnectError::System { address, source })
    }
}

impl Listener for TcpLinkListener {
    fn local_address(&self) -> Address {
        self.local.clone()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let accepted = ready!(self.listener.poll_accept(cx));
        if accepted.as_ref().is_err_and(|error| !concerns_one_peer(error)) {
            self.pause = Some(Box::pin(sleep(PAUSE)));
        }
        Poll::Ready(self.link(accepted).map(|link| Box::new(link) as Box<dyn Link>))
    }
}

fn concerns_one_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
