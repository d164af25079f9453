//! A bound socket. Set-ups run side by side, so that a client which says nothing delays nobody.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdListener;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use blockwire::transport::{Address, ConnectError, Link, ListenError, Listener, LocalFuture};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;

use crate::link::ShmLink;
use crate::place::{Claim, PlaceError, socket_path};
use crate::setup::{Role, set_up};
use crate::transport::ShmOptions;

/// Clients that may be in the middle of their set-up; the oldest makes room for one more.
const SETUPS_MAX: usize = 64;
/// Pause after a failed accept: want of descriptors does not pass by asking again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct ShmListener {
    // Dropped first: nobody may connect to a socket whose file is being removed.
    socket: UnixListener,
    setups: VecDeque<LocalFuture<Result<ShmLink, ConnectError>>>,
    pause: Option<Pin<Box<Sleep>>>,
    options: ShmOptions,
    address: Address,
    _claim: Claim,
}

impl ShmListener {
    /// Binds an address; a dead process' socket is replaced.
    pub(crate) async fn bind(address: Address, options: ShmOptions) -> Result<Self, ListenError> {
        let system = |source| ListenError::System { address: address.clone(), source };
        let place = |error| match error {
            PlaceError::Refused(reason) => {
                ListenError::Address { address: address.clone(), reason: reason.into() }
            }
            PlaceError::System(source) => system(source),
        };
        let path = socket_path(address.target()).map_err(place)?;
        let claim = Claim::take(&path).map_err(system)?;
        let Some(mut claim) = claim else {
            return Err(ListenError::InUse { address });
        };
        if answers(&claim).await {
            // Another program's, that knows nothing of our lock.
            return Err(ListenError::InUse { address });
        }
        claim.remove_stale().map_err(place)?;
        let socket = bind(&mut claim).map_err(system)?;
        let address = Address::new("shm", &path.to_string_lossy());
        let (setups, pause) = (VecDeque::new(), None);
        Ok(Self { socket, setups, pause, options, address, _claim: claim })
    }

    /// Accepts whoever waits, at most as many as may be set up at once.
    fn poll_clients(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.pause = None;
        }
        for _ in 0..SETUPS_MAX {
            let Poll::Ready(accepted) = self.socket.poll_accept(cx) else { return Ok(()) };
            let (stream, _) = accepted.inspect_err(|_| {
                self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                cx.waker().wake_by_ref();
            })?;
            if self.setups.len() == SETUPS_MAX {
                tracing::warn!(address = %self.address, "too many clients in set-up, one dropped");
                self.setups.pop_front();
            }
            let setup = set_up(stream, Role::Accepted, self.address.clone(), self.options);
            self.setups.push_back(Box::pin(setup));
        }
        cx.waker().wake_by_ref();
        Ok(())
    }
}

impl Listener for ShmListener {
    fn local_address(&self) -> Address {
        self.address.clone()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        if let Err(source) = self.poll_clients(cx) {
            return Poll::Ready(Err(ConnectError::System {
                address: self.address.clone(),
                source,
            }));
        }
        for index in 0..self.setups.len() {
            if let Poll::Ready(done) = self.setups[index].as_mut().poll(cx) {
                drop(self.setups.remove(index));
                return Poll::Ready(done.map(|link| Box::new(link) as Box<dyn Link>));
            }
        }
        Poll::Pending
    }
}

/// Whether somebody listens at the path.
async fn answers(claim: &Claim) -> bool {
    match UnixStream::connect(claim.path()).await {
        Ok(_) => true,
        // Its queue is full, so there is one.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn bind(claim: &mut Claim) -> io::Result<UnixListener> {
    let socket = StdListener::bind(claim.path())?;
    claim.set_bound();
    // Between the two calls another user may connect, and is refused by his credentials.
    fs::set_permissions(claim.path(), PermissionsExt::from_mode(0o600))?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket)
}
