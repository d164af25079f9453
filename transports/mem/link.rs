//! One end of a wire, as its owner holds it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use blockwire::pool::{PeerMemory, Region, TransferStats};
use blockwire::transport::{
    Capabilities, Link, LinkEvent, Op, OpError, OpId, Refused, RegionKey, RegisterError,
};
use blockwire::wire::{BODY_LEN_MAX, HEADER_LEN};

use super::wire::{Side, Wire};

/// Most bytes of a control frame.
const FRAME_LEN_MAX: usize = HEADER_LEN + BODY_LEN_MAX;

/// One end of a wire. Dropping it is the death that its peer sees.
#[derive(Debug)]
pub struct MemLink {
    wire: Arc<Mutex<Wire>>,
    side: Side,
    stats: Arc<TransferStats>,
    peer: String,
}

/// Two links that are each other's peer; each may go to a thread of its own.
pub fn pair() -> (MemLink, MemLink) {
    named_pair("mem:pair", "mem:pair")
}

/// Like [`pair`], with what each end calls its peer.
pub(crate) fn named_pair(near_peer: &str, far_peer: &str) -> (MemLink, MemLink) {
    let wire = Wire::default();
    let [near, far] = [Side::Near, Side::Far].map(|side| Arc::clone(wire.stats(side)));
    let wire = Arc::new(Mutex::new(wire));
    let link = |wire, side, stats, peer: &str| MemLink { wire, side, stats, peer: peer.to_owned() };
    (link(Arc::clone(&wire), Side::Near, near, near_peer), link(wire, Side::Far, far, far_peer))
}

impl MemLink {
    /// The lock is held while payload is copied, so that a cancel waits for the copy.
    fn wire(&self) -> MutexGuard<'_, Wire> {
        // A panic of the other end's thread leaves at worst an operation that ends with this link.
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link for MemLink {
    fn capabilities(&self) -> Capabilities {
        Capabilities { stream: Some(1), get: None, adopt: false, same_host: true, lingers: false }
    }

    fn stats(&self) -> &Arc<TransferStats> {
        &self.stats
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn register(&mut self, _region: &Arc<Region>) -> Result<RegionKey, RegisterError> {
        Err(RegisterError::Unsupported)
    }

    fn peer_memory(&mut self, _key: RegionKey) -> Option<Arc<dyn PeerMemory>> {
        None
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Refused> {
        match &op {
            Op::Get { .. } => Err(Refused { op, error: OpError::Unsupported("get") }),
            Op::Control(frame) if frame.len() > FRAME_LEN_MAX => {
                let error = OpError::ControlTooLong(frame.len());
                Err(Refused { op, error })
            }
            _ => self.wire().submit(self.side, op),
        }
    }

    fn cancel(&mut self, op: OpId) {
        self.wire().cancel(self.side, op);
    }

    fn close(&mut self) {
        self.wire().close(self.side);
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        let mut wire = self.wire();
        wire.watch(self.side, cx.waker());
        let poll = wire.progress(self.side, events);
        let peer = wire.take_wake(self.side.peer());
        drop(wire);
        if let Some(peer) = peer {
            peer.wake();
        }
        poll
    }
}

impl Drop for MemLink {
    fn drop(&mut self) {
        let mut wire = self.wire();
        let abandoned = wire.die(self.side);
        let peer = wire.take_wake(self.side.peer());
        drop(wire);
        // Blocks go back outside the lock: whoever waits for them is woken by that.
        drop(abandoned);
        if let Some(peer) = peer {
            peer.wake();
        }
    }
}
