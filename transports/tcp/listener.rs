//! A bound port. Whatever happens to one that comes, or to the process's limits, it goes on.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use blockwire::transport::{Address, ConnectError, Link, Listener};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};

use crate::SCHEME;
use crate::greeting::{GreetError, HalfOpen, Opening, greet};
use crate::link::TcpLink;
use crate::options::TcpOptions;
use crate::source::reachable;
use crate::striped::{self, Connection, Doors, Gather, StripedLink};
use crate::tls::Tls;

/// Rest after an error that does not concern one peer, as a lack of descriptors: the connection still
/// waits, so trying at once again would only spin.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections taken in one poll, so that a crowd at the door does not keep the driver from its links.
const ACCEPTS_MAX: usize = 64;

/// What became of a connection.
#[derive(Debug)]
enum Accepted {
    Plain(Box<TcpLink>),
    Striped(Box<StripedLink>),
    /// It is part of another one's link.
    Part,
}

/// Makes links of those who dial.
#[derive(Debug)]
pub(crate) struct TcpLinkListener {
    listener: TcpListener,
    local: Address,
    half_open: HalfOpen<Result<Accepted, ConnectError>>,
    strangers: Strangers,
    pause: Option<Pin<Box<Sleep>>>,
}

impl TcpLinkListener {
    /// Takes a bound socket. Whoever dials what it is called speaks TLS if it does.
    pub(crate) fn new(
        listener: TcpListener,
        tls: Option<Tls>,
        options: TcpOptions,
    ) -> io::Result<Self> {
        let at = reachable(listener.local_addr()?);
        let query = if tls.is_some() { "?tls=key" } else { "" };
        let local = Address::new(SCHEME, &format!("{at}{query}"));
        let half_open = HalfOpen::new();
        let strangers = Strangers { tls, options, gather: Gather::new(), doors: Doors::new() };
        Ok(Self { listener, local, half_open, strangers, pause: None })
    }

    /// Takes whoever waits, a share of them; they greet side by side.
    fn poll_strangers(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.pause = None;
        }
        for _ in 0..ACCEPTS_MAX {
            let Poll::Ready(accepted) = self.listener.poll_accept(cx) else { return Ok(()) };
            match accepted {
                Ok((stream, from)) => {
                    let greeting = self.strangers.clone().accept(stream, from);
                    self.half_open.admit(from.ip().into(), greeting);
                }
                Err(error) => {
                    if !concerns_one_peer(&error) {
                        self.pause = Some(Box::pin(sleep(PAUSE)));
                    }
                    cx.waker().wake_by_ref();
                    return Err(error);
                }
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }
}

impl Listener for TcpLinkListener {
    fn local_address(&self) -> Address {
        self.local.clone()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        if let Err(source) = self.poll_strangers(cx) {
            let address = self.local.clone();
            return Poll::Ready(Err(ConnectError::System { address, source }));
        }
        loop {
            match ready!(self.half_open.poll_ended(cx)) {
                Ok(Accepted::Plain(link)) => return Poll::Ready(Ok(link)),
                Ok(Accepted::Striped(link)) => return Poll::Ready(Ok(link)),
                Ok(Accepted::Part) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// What those who come are received with.
#[derive(Clone, Debug)]
struct Strangers {
    tls: Option<Tls>,
    options: TcpOptions,
    gather: Gather<Connection>,
    doors: Doors<Connection>,
}

impl Strangers {
    async fn accept(self, stream: TcpStream, from: SocketAddr) -> Result<Accepted, ConnectError> {
        let Self { tls, options, gather, doors } = self;
        let address = Address::new(SCHEME, &from.to_string());
        let greeting = greet(stream, Opening::Answer, tls.as_ref(), &options).await;
        let (channel, greeted) = greeting.map_err(|error| error.with(address.clone()))?;
        let system = |source| ConnectError::System { address: address.clone(), source };
        let (place, instance, nonce) = (greeted.place, greeted.instance, greeted.nonce);
        if place.stripes == 1 {
            let link = TcpLink::new(channel, &greeted, &options, Arc::default()).map_err(system)?;
            return Ok(Accepted::Plain(Box::new(link)));
        }
        let (connection, time) = ((channel, greeted), options.greeting_timeout);
        if place.is_late() {
            let waited = doors.wait(place, instance, nonce, connection, time).await;
            return waited.map(|()| Accepted::Part).map_err(|error| error.with(address));
        }
        let whole = gather.join(place, instance, connection, time).await;
        let Some(connections) = whole.map_err(|error| error.with(address.clone()))? else {
            return Ok(Accepted::Part);
        };
        let door = doors.open(place.link, instance, place.stripes);
        let door = door.map_err(|violation| GreetError::from(violation).with(address.clone()))?;
        let link = striped::assemble(connections, door, &options).map_err(system)?;
        Ok(Accepted::Striped(Box::new(link)))
    }
}

fn concerns_one_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
