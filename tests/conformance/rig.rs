//! What a property runs on: a harness, a runtime as a driver's thread has it, connected pairs.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use blockwire::pool::{BlockPool, PoolOptions};
use blockwire::transport::{Address, ConnectError, Link, Listener, Transport};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::Harness;
use crate::drive::{Pair, STALL};
use crate::node::Node;

/// A test that never comes back from a poll is ended from outside after so long.
const HANG: Duration = Duration::from_secs(300);

/// Surroundings of one test.
pub struct Rig<H> {
    harness: H,
    runtime: Runtime,
    swapped: bool,
    _watchdog: Watchdog,
}

impl<H: Harness> Rig<H> {
    /// Surroundings in which the near end dials, or accepts where `swapped`.
    pub fn new(swapped: bool) -> Self {
        let runtime = H::runtime();
        let harness = runtime.block_on(async { H::new() });
        Self { harness, runtime, swapped, _watchdog: Watchdog::start() }
    }

    /// Runs a property twice: from the side that dialled, and from the side that accepted.
    pub fn both_ways(property: impl AsyncFn(&Self)) {
        for swapped in [false, true] {
            let rig = Self::new(swapped);
            rig.block_on(property(&rig));
        }
    }

    /// Runs a property once.
    pub fn once(property: impl AsyncFn(&Self)) {
        let rig = Self::new(false);
        rig.block_on(property(&rig));
    }

    /// Runs a future as a driver's thread would.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        LocalSet::new().block_on(&self.runtime, future)
    }

    /// The harness.
    pub fn harness(&self) -> &H {
        &self.harness
    }

    /// A transport of the harness.
    pub fn transport(&self) -> Box<dyn Transport> {
        self.harness.transport()
    }

    /// A pool that the links can register.
    ///
    /// # Panics
    /// When the system has no memory for it.
    pub fn pool(&self, options: PoolOptions) -> BlockPool {
        let options = PoolOptions { backing: self.harness.backing(), ..options };
        BlockPool::new(options).unwrap()
    }

    /// Two connected links, over an address of their own.
    ///
    /// # Panics
    /// When the transport cannot connect.
    pub async fn pair(&self) -> Pair {
        let transport = self.transport();
        let mut listener = listen(&*transport, &self.harness.address()).await;
        self.pair_of(&*transport, &mut *listener).await
    }

    /// Two connected links, over a listener that exists already.
    ///
    /// # Panics
    /// When the transport cannot connect.
    pub async fn pair_of(&self, transport: &dyn Transport, listener: &mut dyn Listener) -> Pair {
        let (dialled, accepted) = connect(transport, listener).await;
        let (near, far) = if self.swapped { (accepted, dialled) } else { (dialled, accepted) };
        Pair::new(Node::new("near", near), Node::new("far", far))
    }
}

impl<H> std::fmt::Debug for Rig<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig").field("swapped", &self.swapped).finish_non_exhaustive()
    }
}

/// Says that a property cannot be checked here, and why.
pub fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// A runtime as a driver's thread has it.
///
/// # Panics
/// When the system refuses one.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Binds an address that has to be free.
///
/// # Panics
/// When it is not, or after [`STALL`].
pub async fn listen(transport: &dyn Transport, address: &Address) -> Box<dyn Listener> {
    let listening = tokio::time::timeout(STALL, transport.listen(address)).await;
    listening.expect("stuck in listen").unwrap_or_else(|error| panic!("{error}"))
}

/// Dials a listener and accepts: the dialler's link, then the listener's.
///
/// # Panics
/// When either fails, or after [`STALL`].
pub async fn connect(
    transport: &dyn Transport,
    listener: &mut dyn Listener,
) -> (Box<dyn Link>, Box<dyn Link>) {
    let address = listener.local_address();
    let mut connecting = pin!(transport.connect(&address));
    let (mut dialled, mut accepted) = (None, None);
    let both = poll_fn(|cx| {
        if dialled.is_none() {
            dialled = ready_link(connecting.as_mut().poll(cx));
        }
        if accepted.is_none() {
            accepted = ready_link(listener.poll_accept(cx));
        }
        if dialled.is_some() && accepted.is_some() { Poll::Ready(()) } else { Poll::Pending }
    });
    let done = tokio::time::timeout(STALL, both).await.is_ok();
    match (dialled, accepted) {
        (Some(dialled), Some(accepted)) => (dialled, accepted),
        (dialled, accepted) => {
            let (dialled, accepted) = (dialled.is_some(), accepted.is_some());
            panic!("stuck: {done}, dialled: {dialled}, accepted: {accepted}, at {address}")
        }
    }
}

/// Waits for one link at a listener.
///
/// # Panics
/// When none comes for [`STALL`].
pub async fn accept(listener: &mut dyn Listener) -> Result<Box<dyn Link>, ConnectError> {
    let accepting = poll_fn(|cx| listener.poll_accept(cx));
    tokio::time::timeout(STALL, accepting).await.expect("stuck in accept")
}

fn ready_link(poll: Poll<Result<Box<dyn Link>, ConnectError>>) -> Option<Box<dyn Link>> {
    match poll {
        Poll::Ready(link) => Some(link.unwrap_or_else(|error| panic!("no link: {error}"))),
        Poll::Pending => None,
    }
}

/// Ends the process when a test does not come back: no timer of the stuck thread would.
struct Watchdog {
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    fn start() -> Self {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let (alive, dead) = channel();
        let thread = std::thread::spawn(move || {
            if dead.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs: a call into the transport did not return");
                std::process::abort();
            }
        });
        Self { alive: Some(alive), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
