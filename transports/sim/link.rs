//! One end of a wire, as its owner holds it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use blockwire::clock;
use blockwire::pool::{PeerMemory, Region, TransferStats};
use blockwire::transport::{
    Capabilities, Link, LinkEvent, Op, OpError, OpId, Refused, RegionKey, RegisterError,
};
use blockwire::wire::{BODY_LEN_MAX, HEADER_LEN};
use tokio::time::Sleep;

use super::wire::{Side, Wire};

/// Most bytes of a control frame.
const FRAME_LEN_MAX: usize = HEADER_LEN + BODY_LEN_MAX;

/// One end of a wire. Dropping it is the death that its peer sees.
#[derive(Debug)]
pub struct SimLink {
    wire: Arc<Mutex<Wire>>,
    side: Side,
    capabilities: Capabilities,
    stats: Arc<TransferStats>,
    peer: String,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Both ends of a wire, with what each calls its peer.
pub(crate) fn ends(wire: Wire, near_peer: &str, far_peer: &str) -> (SimLink, SimLink) {
    let capabilities = wire.capabilities();
    let [near, far] = [Side::Near, Side::Far].map(|side| Arc::clone(wire.stats(side)));
    let wire = Arc::new(Mutex::new(wire));
    let link = |wire, side, stats, peer: &str| {
        let peer = peer.to_owned();
        SimLink { wire, side, capabilities, stats, peer, timer: None }
    };
    let near = link(Arc::clone(&wire), Side::Near, near, near_peer);
    (near, link(wire, Side::Far, far, far_peer))
}

pub(crate) fn lock(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    // A panic of the other end's thread leaves at worst an operation that ends with this link.
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimLink {
    /// The wire of both ends, for whoever meddles with it.
    pub(crate) fn wire(&self) -> &Arc<Mutex<Wire>> {
        &self.wire
    }

    /// Ready if `due` has come; else the task is woken then.
    fn poll_timer(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let timer =
            self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due.into())));
        if timer.deadline() != due.into() {
            timer.as_mut().reset(due.into());
        }
        timer.as_mut().poll(cx)
    }
}

impl Link for SimLink {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn stats(&self) -> &Arc<TransferStats> {
        &self.stats
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<RegionKey, RegisterError> {
        match self.capabilities.get {
            Some(_) => Ok(lock(&self.wire).register(self.side, region)),
            None => Err(RegisterError::Unsupported),
        }
    }

    fn peer_memory(&mut self, key: RegionKey) -> Option<Arc<dyn PeerMemory>> {
        let region = lock(&self.wire).peer_region(self.side, key);
        region.filter(|_| self.capabilities.adopt).map(|region| region as Arc<dyn PeerMemory>)
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Refused> {
        match &op {
            Op::Control(frame) if frame.len() > FRAME_LEN_MAX => {
                let error = OpError::ControlTooLong(frame.len());
                Err(Refused { op, error })
            }
            _ => lock(&self.wire).submit(self.side, op, clock::now()),
        }
    }

    fn cancel(&mut self, op: OpId) {
        lock(&self.wire).cancel(self.side, op, clock::now());
    }

    fn close(&mut self) {
        lock(&self.wire).close(self.side, clock::now());
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        let (before, now) = (events.len(), clock::now());
        let mut wire = lock(&self.wire);
        wire.watch(self.side, cx.waker());
        let next = wire.progress(self.side, now, events);
        let peer = wire.take_wake(self.side.peer());
        drop(wire);
        if let Some(peer) = peer {
            peer.wake();
        }
        match next {
            _ if events.len() > before => Poll::Ready(()),
            Some(due) if due <= now => Poll::Ready(()),
            Some(due) => self.poll_timer(cx, due),
            None => Poll::Pending,
        }
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        let mut wire = lock(&self.wire);
        let abandoned = wire.die(self.side, clock::now());
        let peer = wire.take_wake(self.side.peer());
        drop(wire);
        // Blocks go back outside the lock: whoever waits for them is woken by that.
        drop(abandoned);
        if let Some(peer) = peer {
            peer.wake();
        }
    }
}
