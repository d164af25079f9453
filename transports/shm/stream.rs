//! Payload on its way out through the payload ring, for pools that the peer cannot map.
//!
//! A payload goes in frames (`src/engine/manual/wire.md`) of at most 64 KiB, each put into the ring
//! whole and shown at once, so that both sides copy at the same time, and so that a cancelled stream
//! ends between two frames. Streams take turns by the frame. Control has its own ring and never waits.
//!
//! A near peer reads fastest what lies in the caches that it shares. Where it shares none, its reads
//! and these writes would pull every line back and forth; stores past the caches go to memory once.
//! Messages of 1 MiB, against one cold memcpy (`benches/shm_ring.rs`): through the caches 1.05 to 1.3
//! near and 0.5 to 0.7 far, past them 0.9 to 1.1 near and 0.95 to 1.2 far. So `distance` chooses.

use std::collections::VecDeque;
use std::sync::Arc;

use blockwire::clock;
use blockwire::pool::{Cursor, Digest, GatherList, Stores, TransferStats, copy_payload_from_peer};
use blockwire::transport::{
    CloseReason, Completion, LinkEvent, OpError, OpId, OpMemory, StreamTag, Violation,
};
use blockwire::wire::{HEADER_LEN, Header};

use crate::distance::Distance;
use crate::half::LINE;
use crate::ring::Producer;

/// Longest payload of a frame: some pieces fit a ring that fits the cache.
pub(crate) const PIECE_LEN: usize = 64 * 1024;
/// Payload bytes moved by one poll and direction: 50 us, so that control never waits for long.
pub(crate) const POLL_BYTES: usize = 256 * 1024;

#[derive(Debug)]
struct Stream {
    op: OpId,
    tag: StreamTag,
    payload: GatherList,
    cursor: Cursor,
    digest: Digest,
}

/// Everything on its way out.
#[derive(Debug)]
pub(crate) struct Streams {
    ring: Producer,
    piece_len: usize,
    queue: VecDeque<Stream>,
    distance: Distance,
    stats: Arc<TransferStats>,
}

impl Streams {
    pub(crate) fn new(ring: Producer, stats: Arc<TransferStats>) -> Self {
        // Four frames in the ring, so that neither side waits for the other's whole copy.
        let piece_len = PIECE_LEN.min((ring.ring_len() - LINE) / 4 - HEADER_LEN);
        let (queue, distance) = <_>::default();
        Self { ring, piece_len, queue, distance, stats }
    }

    pub(crate) fn push(
        &mut self,
        op: OpId,
        tag: StreamTag,
        payload: GatherList,
        events: &mut Vec<LinkEvent>,
    ) {
        let (cursor, digest) = (Cursor::default(), Digest::default());
        let stream = Stream { op, tag, payload, cursor, digest };
        if stream.left() == 0 {
            return events.push(stream.complete(None));
        }
        self.queue.push_back(stream);
    }

    pub(crate) fn cancel(&mut self, op: OpId, events: &mut Vec<LinkEvent>) {
        let found = self.queue.iter().position(|stream| stream.op == op);
        let stream = found.and_then(|index| self.queue.remove(index));
        events.extend(stream.map(|stream| stream.complete(Some(OpError::Cancelled))));
    }

    /// Ends every stream, because the link does.
    pub(crate) fn abandon(&mut self, reason: &CloseReason, events: &mut Vec<LinkEvent>) {
        let closed = || Some(OpError::Closed(reason.clone()));
        events.extend(self.queue.drain(..).map(|stream| stream.complete(closed())));
    }

    /// Moves payload into the ring. Returns how many bytes, and whether the peer must be rung.
    pub(crate) fn send(&mut self, events: &mut Vec<LinkEvent>) -> Result<(usize, bool), Violation> {
        let (mut moved, mut must_ring) = (0, false);
        while moved < POLL_BYTES
            && let Some(need) = self.need()
            && self.has_space(need)?
            && let Some(mut stream) = self.queue.pop_front()
        {
            let stores = self.stores();
            stream.write(need - HEADER_LEN, &mut self.ring, stores, &self.stats);
            must_ring |= self.ring.publish();
            moved += need;
            if stream.left() == 0 {
                events.push(stream.complete(None));
            } else {
                self.queue.push_back(stream);
            }
        }
        Ok((moved, must_ring))
    }

    /// Whether a frame fits. An answer that needs the peer's word tells how far the peer is.
    fn has_space(&mut self, need: usize) -> Result<bool, Violation> {
        let (before, start) = (self.ring.space(), clock::now());
        let enough = self.ring.has_space(need)?;
        if self.ring.space() > before {
            self.distance.felt(clock::now() - start);
        }
        Ok(enough)
    }

    fn stores(&self) -> Stores {
        if self.distance.is_far() { Stores::Streaming } else { Stores::Cached }
    }

    /// Bytes of the next frame, if there is one.
    fn need(&self) -> Option<usize> {
        let piece = |stream: &Stream| stream.left().min(self.piece_len as u64) as usize;
        self.queue.front().map(|stream| HEADER_LEN + piece(stream))
    }

    /// Prepares for sleep. True when there is something to do instead.
    pub(crate) fn sleep(&mut self) -> Result<bool, Violation> {
        self.need().map_or(Ok(false), |need| self.ring.sleep(need))
    }

    /// Whether there is something to do.
    pub(crate) fn look(&mut self) -> Result<bool, Violation> {
        self.need().map_or(Ok(false), |need| self.has_space(need))
    }

    pub(crate) fn wake(&mut self) {
        self.ring.wake();
    }
}

impl Stream {
    fn left(&self) -> u64 {
        self.payload.len() - self.cursor.position()
    }

    /// Writes a frame with the next `len` bytes.
    fn write(&mut self, len: usize, ring: &mut Producer, stores: Stores, stats: &TransferStats) {
        let header = Header::payload(self.tag.0, self.cursor.position(), len as u64).encode(&[]);
        ring.fill_from(&header);
        let Self { payload, cursor, digest, .. } = self;
        let mut slices = payload.slices(cursor, len);
        let mut from: &[u8] = &[];
        ring.fill(len, |mut to| {
            let pieces = std::iter::from_fn(|| {
                if to.is_empty() {
                    return None;
                }
                if from.is_empty() {
                    from = slices.next().expect("as many bytes as the frame has");
                }
                let step = from.len().min(to.len());
                let (now, later) = std::mem::take(&mut to).split_at_mut(step);
                let head = from.as_ptr();
                (from, to) = (&from[step..], later);
                Some((head, now))
            });
            // SAFETY: every source is the start of a slice of at least its target's length.
            unsafe { copy_payload_from_peer(pieces, stores, Some(digest), stats) };
        });
        drop(slices);
        self.cursor.advance(self.payload.extents(), len);
        stats.add_sent(len as u64);
    }

    fn complete(self, error: Option<OpError>) -> LinkEvent {
        let outcome = error.map_or_else(|| Ok(self.digest.value()), Err);
        let memory = OpMemory::Payload(self.payload);
        LinkEvent::Completed(Completion { op: self.op, memory, outcome })
    }
}
