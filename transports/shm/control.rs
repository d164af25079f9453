//! Control frames, between operations and the rings.
//!
//! # What a message costs
//! A frame of 64 bytes between two far cores that spin takes 480 to 600 ns (`benches/shm_control.rs`),
//! 2.4 to 2.7 times the bare slot's 195 to 220; between near ones 295 to 350, 6 to 7 times its 50. One
//! cache line moves each way, as through the slot; the rest are instructions. With both ends on one
//! core, where no line moves, a message takes 390 ns: a fifth takes the frame out of the ring (copy,
//! header, allocation), an eighth puts it in (with the fence of SYNC-3), a sixth looks at an empty
//! payload ring, and the others, none above a tenth, are operations, events, `Bytes` and the poll around
//! them.

use std::collections::VecDeque;

use blockwire::transport::{
    CloseReason, Completion, LinkEvent, OpError, OpId, OpMemory, StreamTag, Violation,
};
use blockwire::wire::{BODY_LEN_MAX, HEADER_LEN, Header, Kind};
use bytes::{Bytes, BytesMut};

use crate::ring::{Consumer, Producer, WHOLE_MAX};

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

/// Sends frames in order, long ones in pieces where the ring is short.
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
        while budget > 0
            && let Some(need) = self.need()
            && self.ring.has_space(need)?
            && let Some(front) = self.queue.front_mut()
        {
            let rest = &front.frame[front.written..];
            let rest = &rest[..rest.len().min(budget.max(WHOLE_MAX))];
            let begins = front.written == 0;
            let written = if begins { self.ring.begin(rest)? } else { self.ring.write(rest)? };
            front.written += written;
            budget = budget.saturating_sub(written);
            if front.written == front.frame.len() {
                self.ring.finish();
                events.push(completed(front.op, Ok(0)));
                self.queue.pop_front();
            }
        }
        Ok(self.ring.publish())
    }

    /// Bytes that the next step takes at least, if there is one: short frames are not cut.
    fn need(&self) -> Option<usize> {
        let need = |queued: &Queued| match queued.written {
            0 => queued.frame.len().min(WHOLE_MAX),
            _ => 1,
        };
        self.queue.front().map(need)
    }

    /// Prepares for sleep. True when there is something to do instead.
    pub(crate) fn sleep(&mut self) -> Result<bool, Violation> {
        self.need().map_or(Ok(false), |need| self.ring.sleep(need))
    }

    /// Whether there is something to do.
    pub(crate) fn look(&mut self) -> Result<bool, Violation> {
        self.need().map_or(Ok(false), |need| self.ring.has_space(need))
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
    /// Something came in the last poll, so more than one frame may have come since.
    busy: bool,
}

impl Receiver {
    pub(crate) fn new(ring: Consumer) -> Self {
        Self { ring, frame: BytesMut::new(), frame_len: None, busy: false }
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
            if self.frame_len.is_none() {
                // To look for another frame costs a cache line: the caller has one to answer first.
                if taken > 0 && self.ring.ready() == 0 {
                    break;
                }
                taken += self.begin(limit - taken)?;
            }
            let Some(len) = self.frame_len else { break };
            let step = (len - self.frame.len()).min(limit - taken).min(READ_BYTES);
            let read = if step > 0 { self.ring.read(step, &mut self.frame)? } else { 0 };
            taken += read;
            if read == READ_BYTES {
                must_ring |= self.ring.publish();
            }
            if self.frame.len() == len {
                taken += self.ring.finish();
                self.frame_len = None;
                events.push(LinkEvent::Received(std::mem::take(&mut self.frame).freeze()));
            } else if read == 0 {
                break;
            }
        }
        self.busy = taken > 0;
        // The peer learns of space by the quarter: each time costs both sides a fence or a cache line,
        // and whoever waits for space has more than a quarter to get back.
        if self.ring.owes_space() {
            must_ring |= self.ring.publish();
        }
        Ok((taken, must_ring))
    }

    /// Begins a frame, if there is one. Returns how many bytes it took.
    fn begin(&mut self, limit: usize) -> Result<usize, Violation> {
        if limit < HEADER_LEN || !self.ring.has_frame() {
            return Ok(0);
        }
        if self.busy {
            self.ring.available()?;
        }
        let mut head = [0; HEADER_LEN];
        self.ring.know(HEADER_LEN);
        self.ring.read_whole(&mut head)?;
        let len = frame_len(&head)?;
        if len <= WHOLE_MAX {
            self.ring.know(len - HEADER_LEN);
        }
        self.frame = BytesMut::with_capacity(len);
        self.frame.extend_from_slice(&head);
        self.frame_len = Some(len);
        Ok(HEADER_LEN)
    }

    /// Prepares for sleep. True when there is something to do instead.
    pub(crate) fn sleep(&mut self) -> Result<bool, Violation> {
        if self.frame_len.is_some() { self.ring.sleep(1) } else { Ok(self.ring.sleep_for_frame()) }
    }

    /// Whether there is something to do.
    pub(crate) fn look(&mut self) -> Result<bool, Violation> {
        if self.frame_len.is_some() { self.ring.look() } else { Ok(self.ring.has_frame()) }
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
