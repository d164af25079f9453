//! Control frames, between operations and the rings.

use std::collections::VecDeque;

use blockwire::transport::{
    CloseReason, Completion, LinkEvent, OpError, OpId, OpMemory, StreamTag, Violation,
};
use blockwire::wire::{BODY_LEN_MAX, HEADER_LEN, Header, Kind};
use bytes::{Bytes, BytesMut};

use crate::ring::{Consumer, Producer};

/// Longest control frame.
pub(crate) const FRAME_LEN_MAX: usize = HEADER_LEN + BODY_LEN_MAX;
/// Bytes moved by one poll and direction, so that neither starves the other.
const POLL_BYTES: usize = 1 << 20;
/// Bytes read before their space is given back, so that both sides of a long frame work at once.
const READ_BYTES: usize = 64 * 1024;

/// An accepted frame.
#[derive(Debug)]
struct Queued {
    op: OpId,
    frame: Bytes,
    written: usize,
}

/// Sends frames in order, in pieces where the ring is short.
#[derive(Debug)]
pub(crate) struct Sender {
    ring: Producer,
    queue: VecDeque<Queued>,
}

impl Sender {
    pub(crate) fn new(ring: Producer) -> Self {
        Self { ring, queue: VecDeque::new() }
    }

    pub(crate) fn push(&mut self, op: OpId, frame: Bytes) {
        self.queue.push_back(Queued { op, frame, written: 0 });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes a frame back of which the peer has seen nothing.
    pub(crate) fn cancel(&mut self, op: OpId) -> bool {
        let found = self.queue.iter().position(|queued| queued.op == op && queued.written == 0);
        found.and_then(|index| self.queue.remove(index)).is_some()
    }

    /// Moves frames into the ring and completes those that are in it. True when the peer must be
    /// rung.
    pub(crate) fn send(&mut self, events: &mut Vec<LinkEvent>) -> Result<bool, Violation> {
        let mut budget = POLL_BYTES;
        while let Some(front) = self.queue.front_mut().filter(|_| budget > 0) {
            let rest = &front.frame[front.written..];
            let written = self.ring.write(&rest[..rest.len().min(budget)])?;
            if written == 0 && !rest.is_empty() {
                break;
            }
            front.written += written;
            budget -= written;
            if front.written == front.frame.len() {
                events.push(completed(front.op, Ok(0)));
                self.queue.pop_front();
            }
        }
        Ok(self.ring.publish())
    }

    /// Prepares for sleep. True when there is something to do instead.
    pub(crate) fn sleep(&mut self) -> Result<bool, Violation> {
        if self.queue.is_empty() { Ok(false) } else { self.ring.sleep(1) }
    }

    /// Whether there is something to do.
    pub(crate) fn look(&mut self) -> Result<bool, Violation> {
        if self.queue.is_empty() { Ok(false) } else { self.ring.has_space(1) }
    }

    pub(crate) fn wake(&mut self) {
        self.ring.wake();
    }

    /// Completes whatever is left, because the link ends.
    pub(crate) fn abandon(&mut self, reason: &CloseReason, events: &mut Vec<LinkEvent>) {
        for queued in self.queue.drain(..) {
            events.push(completed(queued.op, Err(OpError::Closed(reason.clone()))));
        }
    }
}

/// The end of an operation that held no pool memory.
pub(crate) fn completed(op: OpId, outcome: Result<u64, OpError>) -> LinkEvent {
    LinkEvent::Completed(Completion { op, memory: OpMemory::None, outcome })
}

/// Puts arriving bytes together to whole frames.
#[derive(Debug)]
pub(crate) struct Receiver {
    ring: Consumer,
    frame: BytesMut,
    /// Bytes of the whole frame, once its header is here.
    frame_len: Option<usize>,
}

impl Receiver {
    pub(crate) fn new(ring: Consumer) -> Self {
        Self { ring, frame: BytesMut::new(), frame_len: None }
    }

    /// Takes at most `limit` bytes out of the ring and reports whole frames. Returns how many bytes
    /// it took, and whether the peer must be rung.
    pub(crate) fn receive(
        &mut self,
        limit: usize,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(usize, bool), Violation> {
        let limit = limit.min(POLL_BYTES);
        let (mut taken, mut must_ring) = (0, false);
        while taken < limit {
            if self.frame.is_empty() && limit - taken >= HEADER_LEN {
                taken += self.begin()?;
            }
            let missing = self.frame_len.unwrap_or(HEADER_LEN) - self.frame.len();
            let len = missing.min(limit - taken).min(READ_BYTES);
            let read = if len > 0 { self.ring.read(len, &mut self.frame)? } else { 0 };
            if read == 0 && missing > 0 {
                break;
            }
            taken += read;
            if read == READ_BYTES {
                must_ring |= self.ring.publish();
            }
            self.advance(events)?;
        }
        // In a busy ring the peer learns of space by the quarter: each time costs it a cache line.
        if taken == 0 || self.ring.owes_space() {
            must_ring |= self.ring.publish();
        }
        Ok((taken, must_ring))
    }

    /// Begins a frame whose header is here whole: most are, and then need one allocation.
    fn begin(&mut self) -> Result<usize, Violation> {
        let mut head = [0; HEADER_LEN];
        if !self.ring.read_whole(&mut head)? {
            return Ok(0);
        }
        let len = frame_len(&head)?;
        self.frame = BytesMut::with_capacity(len);
        self.frame.extend_from_slice(&head);
        self.frame_len = Some(len);
        Ok(HEADER_LEN)
    }

    /// Looks at the copied bytes: a header says how much follows, a whole frame is reported.
    fn advance(&mut self, events: &mut Vec<LinkEvent>) -> Result<(), Violation> {
        if self.frame_len.is_none() {
            let Some(head) = self.frame.first_chunk::<HEADER_LEN>() else { return Ok(()) };
            let len = frame_len(head)?;
            self.frame_len = Some(len);
            self.frame.reserve(len - HEADER_LEN);
        }
        if self.frame_len == Some(self.frame.len()) {
            self.frame_len = None;
            events.push(LinkEvent::Received(std::mem::take(&mut self.frame).freeze()));
        }
        Ok(())
    }

    /// Prepares for sleep. True when there is something to do instead.
    pub(crate) fn sleep(&mut self) -> Result<bool, Violation> {
        self.ring.sleep(1)
    }

    /// Whether there is something to do.
    pub(crate) fn look(&mut self) -> Result<bool, Violation> {
        self.ring.look()
    }

    pub(crate) fn wake(&mut self) {
        self.ring.wake();
    }

    /// Bytes that a peer which is gone left in the ring.
    pub(crate) fn remaining(&mut self) -> Result<usize, Violation> {
        self.ring.remaining()
    }
}

/// Bytes of the frame that a header opens.
fn frame_len(head: &[u8; HEADER_LEN]) -> Result<usize, Violation> {
    let header = Header::parse(head)?;
    if header.kind == Kind::Payload {
        return Err(Violation::UnknownTag(StreamTag(header.tag)));
    }
    Ok(HEADER_LEN + header.body_len as usize)
}
