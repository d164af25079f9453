//! Payload on its way in through the payload ring, straight into the blocks that wait for it.
//!
//! A frame's header is copied out and checked before any of it counts: the tag was posted, the bytes
//! go on where the last ones ended, and they fit. A peer that changes a header or an index later
//! changes nothing here; one that changes payload changes bytes, which the digest shows.
//!
//! Blocks are filled past the caches: whoever reads them does so much later, and the ring stays cached.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockwire::pool::{Cursor, Digest, ScatterList, Stores, TransferStats, copy_payload_from_peer};
use blockwire::transport::{
    CloseReason, Completion, LinkEvent, OpError, OpId, OpMemory, StreamTag, TagSet, Violation,
};
use blockwire::wire::{FrameError, HEADER_LEN, Header, Kind};

use crate::ring::Consumer;
use crate::stream::{PIECE_LEN, POLL_BYTES};

/// Room for a payload.
#[derive(Debug)]
struct Land {
    op: OpId,
    room: ScatterList,
    cursor: Cursor,
    digest: Digest,
}

/// The frame whose bytes come next: so many are missing. Without a `Land` of its tag they are dropped.
#[derive(Debug)]
struct Body {
    tag: StreamTag,
    left: usize,
}

/// Everything that is posted, and where the ring is read.
#[derive(Debug)]
pub(crate) struct Lands {
    ring: Consumer,
    body: Option<Body>,
    lands: BTreeMap<StreamTag, Land>,
    posted: TagSet,
    cancelled: TagSet,
    stats: Arc<TransferStats>,
}

impl Lands {
    pub(crate) fn new(ring: Consumer, stats: Arc<TransferStats>) -> Self {
        let (lands, posted, cancelled) = <_>::default();
        Self { ring, body: None, lands, posted, cancelled, stats }
    }

    /// Whether a tag is larger than every one before it.
    pub(crate) fn rises(&self, tag: StreamTag) -> bool {
        self.posted.last().is_none_or(|last| tag > last)
    }

    /// Posts room for a tag that [rises](Self::rises).
    pub(crate) fn post(
        &mut self,
        op: OpId,
        tag: StreamTag,
        room: ScatterList,
        events: &mut Vec<LinkEvent>,
    ) {
        self.posted.insert(tag);
        let land = Land { op, room, cursor: Cursor::default(), digest: Digest::default() };
        if land.left() == 0 {
            return events.push(land.complete(None));
        }
        self.lands.insert(tag, land);
    }

    /// Ends a `Land`; its room is free at once, and what still comes for it is dropped.
    pub(crate) fn cancel(&mut self, op: OpId, events: &mut Vec<LinkEvent>) {
        let found = self.lands.iter().find(|(_, land)| land.op == op).map(|(tag, _)| *tag);
        if let Some((tag, land)) = found.and_then(|tag| self.lands.remove_entry(&tag)) {
            self.cancelled.insert(tag);
            events.push(land.complete(Some(OpError::Cancelled)));
        }
    }

    /// Ends every `Land`, because the link ends.
    pub(crate) fn abandon(&mut self, reason: &CloseReason, events: &mut Vec<LinkEvent>) {
        for (tag, land) in std::mem::take(&mut self.lands) {
            self.cancelled.insert(tag);
            events.push(land.complete(Some(OpError::Closed(reason.clone()))));
        }
    }

    /// Takes payload out of the ring. Returns how many bytes, and whether the peer must be rung.
    pub(crate) fn receive(
        &mut self,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(usize, bool), Violation> {
        let (mut taken, mut must_ring) = (0, false);
        while taken < POLL_BYTES {
            let step = match self.body.take() {
                None => self.begin()?,
                Some(body) => self.go_on(body, events)?,
            };
            if step == 0 {
                break;
            }
            taken += step;
            must_ring |= self.ring.publish();
        }
        Ok((taken, must_ring))
    }

    /// Reads and checks a header, if one is here.
    fn begin(&mut self) -> Result<usize, Violation> {
        let mut head = [0; HEADER_LEN];
        if !self.ring.read_whole(&mut head)? {
            return Ok(0);
        }
        let header = Header::parse(&head)?;
        if header.kind != Kind::Payload || header.body_len > 0 {
            let found = HEADER_LEN + header.body_len as usize;
            return Err(FrameError::Length { found, expected: HEADER_LEN }.into());
        }
        Header::verify(&head, &[])?;
        let (tag, left) = (StreamTag(header.tag), header.payload_len as usize);
        self.check(tag, header.offset, header.payload_len)?;
        self.body = Some(Body { tag, left });
        Ok(HEADER_LEN)
    }

    fn check(&self, tag: StreamTag, offset: u64, bytes: u64) -> Result<(), Violation> {
        let (expected, len) = match self.lands.get(&tag) {
            Some(land) => (land.cursor.position(), land.room.len()),
            None if self.cancelled.contains(tag) => return Ok(()),
            // It is complete, and what it was is forgotten: nothing more is expected.
            None if self.posted.contains(tag) => (0, 0),
            None => return Err(Violation::UnknownTag(tag)),
        };
        if offset != expected || bytes > len - expected {
            let end = offset.saturating_add(bytes);
            return Err(Violation::PayloadRange { tag, offset, end, expected, len });
        }
        Ok(())
    }

    /// Takes what is here of a frame's bytes.
    fn go_on(&mut self, body: Body, events: &mut Vec<LinkEvent>) -> Result<usize, Violation> {
        let Body { tag, left } = body;
        let step = self.ring.available()?.min(left).min(PIECE_LEN);
        match self.lands.get_mut(&tag) {
            Some(land) => land.take(step, &mut self.ring, &self.stats),
            None => self.ring.take(step, |_, _| {}),
        }
        self.body = (step < left).then_some(Body { tag, left: left - step });
        if self.lands.get(&tag).is_some_and(|land| land.left() == 0) {
            events.extend(self.lands.remove(&tag).map(|land| land.complete(None)));
        }
        Ok(step)
    }

    /// Prepares for sleep. True when there is something to do instead.
    pub(crate) fn sleep(&mut self) -> Result<bool, Violation> {
        // Less than a header is nothing: a peer that keeps the rules never shows it.
        self.ring.sleep(if self.body.is_some() { 1 } else { HEADER_LEN })
    }

    /// Whether there is something to do: payload that nobody waits for is not looked for.
    pub(crate) fn look(&mut self) -> Result<bool, Violation> {
        if self.lands.is_empty() { Ok(false) } else { self.ring.look() }
    }

    pub(crate) fn wake(&mut self) {
        self.ring.wake();
    }
}

impl Land {
    fn left(&self) -> u64 {
        self.room.len() - self.cursor.position()
    }

    /// Copies the next `len` bytes, which are available, into the room, where they fit.
    fn take(&mut self, len: usize, ring: &mut Consumer, stats: &TransferStats) {
        let Self { room, cursor, digest, .. } = self;
        let mut slices = room.slices(cursor, len);
        let mut to: &mut [u8] = &mut [];
        ring.take(len, |mut from, mut run| {
            let pieces = std::iter::from_fn(|| {
                if run == 0 {
                    return None;
                }
                if to.is_empty() {
                    to = slices.next().expect("the frame fits the room");
                }
                let step = run.min(to.len());
                let (now, later) = std::mem::take(&mut to).split_at_mut(step);
                let head = from;
                (from, to, run) = (from.wrapping_add(step), later, run - step);
                Some((head, now))
            });
            // SAFETY: the run is mapped and readable for `run` bytes (`half.rs`, H1 and H4), and the
            // pieces lie in it one after the other.
            unsafe { copy_payload_from_peer(pieces, Stores::Streaming, Some(digest), stats) };
        });
        drop(slices);
        self.cursor.advance(self.room.extents(), len);
        stats.add_landed(len as u64);
    }

    fn complete(self, error: Option<OpError>) -> LinkEvent {
        let outcome = error.map_or_else(|| Ok(self.digest.value()), Err);
        let memory = OpMemory::Room(self.room);
        LinkEvent::Completed(Completion { op: self.op, memory, outcome })
    }
}
