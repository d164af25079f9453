//! The receiving half of a link: decides where the next bytes go. Knows no socket.
//!
//! A round is [`Receiver::room`], one scattering read, [`Receiver::filled`]. That no payload byte is
//! ever copied rests on how far a read may reach:
//! - inside a payload frame: the rest of the frame straight into its blocks, then the next header;
//! - elsewhere, while a payload may come: to the end of the next header, and no byte further;
//! - while no `Land` is posted, no payload that is wanted can be under way, because a `Land` is posted
//!   before its tag is told: reads take what comes, control frames by the hundred.
//!
//! With a cluster key every frame has a tag behind it, which is read like the header that follows, and a
//! frame counts only once its tag was checked (`seal`).
//!
//! Should a peer guess a tag before it is told, its bytes are copied, and the copy is counted.
//!
//! Whoever gives the room to the kernel for longer than a call makes it [lent](Receiver::lend): until it
//! is said what was filled, a `Land` that ends stays. Such a room never reaches past the next header,
//! because a `Land` may be posted meanwhile.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Arc;

use blockwire::pool::{Cursor, Digest, ScatterList, TransferStats, copy_payload};
use blockwire::transport::{
    CloseReason, Completion, LinkEvent, OpError, OpId, OpMemory, StreamTag, TagSet, Violation,
};
use blockwire::wire::{FrameError, HEADER_LEN, Header, Kind};
use bytes::{Bytes, BytesMut};

use crate::ahead::{AHEAD_LEN, Ahead};
use crate::credit::Taken;
use crate::seal::{SEAL_LEN, Sealer};

/// Payload bytes of one read: they are digested right after it, while still in the cache.
const PIECE_LEN: usize = 512 * 1024;

/// Where the next bytes belong, and what was posted for them.
#[derive(Debug)]
pub(crate) struct Receiver {
    ahead: Ahead,
    stage: Stage,
    lands: BTreeMap<StreamTag, Box<Incoming>>,
    posted: TagSet,
    cancelled: TagSet,
    dropped: u64,
    taken: Taken,
    /// What the peer said last of what it read.
    credit: Option<u64>,
    digests: bool,
    sealer: Option<Sealer>,
    /// Rooms are lent: none reaches past the next header.
    lends: bool,
    /// A room is with the kernel.
    lent: bool,
    /// A `Land` that ended meanwhile.
    unwanted: Option<(StreamTag, OpError)>,
    /// Copies that the mover makes of a payload byte.
    copies: u8,
    stats: Arc<TransferStats>,
}

/// What the next byte belongs to.
#[derive(Debug)]
enum Stage {
    Header,
    /// A control frame's body; `frame` grows as bytes come, whatever its header promises.
    Body {
        frame: BytesMut,
        left: usize,
    },
    Payload {
        tag: StreamTag,
        left: usize,
    },
    /// Payload for a tag that ended.
    Drop {
        left: usize,
    },
    /// The tag of a frame that is here, whole.
    Seal(Came),
}

/// A whole frame.
#[derive(Debug)]
enum Came {
    Control(Bytes),
    Payload(StreamTag),
    Dropped,
    /// So many payload bytes were read by the peer.
    Credit(u64),
}

/// A payload on its way in.
#[derive(Debug)]
struct Incoming {
    op: OpId,
    room: ScatterList,
    cursor: Cursor,
    /// None where nobody digests; its value counts as 0 then.
    digest: Option<Digest>,
}

impl Receiver {
    /// Between two frames, nothing posted.
    pub(crate) fn new(
        digests: bool,
        sealer: Option<Sealer>,
        lends: bool,
        copies: u8,
        stats: Arc<TransferStats>,
    ) -> Self {
        Self {
            ahead: Ahead::default(),
            stage: Stage::Header,
            lands: BTreeMap::new(),
            posted: TagSet::default(),
            cancelled: TagSet::default(),
            dropped: 0,
            taken: Taken::default(),
            credit: None,
            digests,
            sealer,
            lends,
            lent: false,
            unwanted: None,
            copies,
            stats,
        }
    }

    /// Whether the peer could end here without cutting a frame.
    pub(crate) fn at_boundary(&self) -> bool {
        matches!(self.stage, Stage::Header) && self.ahead.unused().is_empty()
    }

    /// Posts room for a tag; gives it back when the tag does not rise.
    pub(crate) fn post(
        &mut self,
        op: OpId,
        tag: StreamTag,
        room: ScatterList,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), ScatterList> {
        if self.posted.last().is_some_and(|last| tag <= last) {
            return Err(room);
        }
        self.posted.insert(tag);
        let (cursor, digest) = (Cursor::default(), self.digests.then(Digest::default));
        let incoming = Box::new(Incoming { op, room, cursor, digest });
        if incoming.room.is_empty() {
            events.push(incoming.complete(None));
        } else {
            self.lands.insert(tag, incoming);
        }
        Ok(())
    }

    /// The room is with the kernel until [`filled`](Self::filled) is called.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "uring")),
        expect(dead_code, reason = "only rings borrow")
    )]
    pub(crate) fn lend(&mut self) {
        debug_assert!(self.lends, "the room may reach too far");
        self.lent = true;
    }

    /// Whether something is lent that should end: the kernel is to give the room back.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "uring")),
        expect(dead_code, reason = "only rings borrow")
    )]
    pub(crate) fn wants_back(&self) -> bool {
        self.lent && self.unwanted.is_some()
    }

    /// Ends a `Land`. The room is free at once, unless it is lent: nothing writes to it between two reads.
    pub(crate) fn cancel(&mut self, op: OpId, events: &mut Vec<LinkEvent>) {
        let found = self.lands.iter().find(|(_, land)| land.op == op).map(|(tag, _)| *tag);
        if let Some(tag) = found {
            self.end(tag, OpError::Cancelled, events);
        }
    }

    /// Ends every `Land`.
    pub(crate) fn end_all(&mut self, reason: &CloseReason, events: &mut Vec<LinkEvent>) {
        let tags: Vec<_> = self.lands.keys().copied().collect();
        for tag in tags {
            self.end(tag, OpError::Closed(reason.clone()), events);
        }
    }

    /// Ends everything at once: there is no wire any more, and no room is with the kernel.
    pub(crate) fn abort(&mut self, reason: &CloseReason, events: &mut Vec<LinkEvent>) {
        self.lent = false;
        self.end_all(reason, events);
    }

    fn end(&mut self, ended: StreamTag, error: OpError, events: &mut Vec<LinkEvent>) {
        if let Stage::Payload { tag, left } = self.stage
            && tag == ended
        {
            if self.lent {
                self.unwanted.get_or_insert((ended, error));
                return;
            }
            self.note_dropped(tag, left);
            self.stage = Stage::Drop { left };
        }
        self.cancelled.insert(ended);
        events.extend(self.lands.remove(&ended).map(|land| land.complete(Some(error))));
    }

    /// Room for the next bytes; returns how many slices were set, at least one.
    pub(crate) fn room<'a>(&'a mut self, slices: &mut [IoSliceMut<'a>]) -> usize {
        let ahead_max = self.ahead_max();
        let mut count = 0;
        if let Stage::Payload { tag, left } = self.stage
            && let Some(land) = self.lands.get_mut(&tag)
        {
            let wanted = left.min(PIECE_LEN);
            let mut planned = 0;
            let room = land.room.slices(&land.cursor, wanted);
            for (slice, room) in slices.iter_mut().zip(room) {
                planned += room.len();
                *slice = IoSliceMut::new(room);
                count += 1;
            }
            if planned < left || count == slices.len() {
                return count;
            }
        }
        slices[count] = IoSliceMut::new(self.ahead.room(ahead_max));
        count + 1
    }

    /// Payload bytes of the frame at work that go straight to their blocks.
    pub(crate) fn payload_left(&self) -> usize {
        if let Stage::Payload { left, .. } = self.stage { left } else { 0 }
    }

    /// How many bytes may be read without knowing what they are.
    fn ahead_max(&self) -> usize {
        if self.lands.is_empty() && !self.lends {
            return AHEAD_LEN;
        }
        let between = if self.sealer.is_some() { SEAL_LEN } else { 0 } + HEADER_LEN;
        match self.stage {
            Stage::Header => HEADER_LEN - self.ahead.unused().len(),
            Stage::Body { left, .. } | Stage::Drop { left } => left + between,
            Stage::Payload { .. } => between,
            Stage::Seal(_) => between - self.ahead.unused().len(),
        }
    }

    /// Says that the first `len` bytes of the room are filled.
    ///
    /// # Errors
    /// [`Violation`]: the stream cannot be read further.
    pub(crate) fn filled(
        &mut self,
        len: usize,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), Violation> {
        self.lent = false;
        let mut of_payload = 0;
        if let Stage::Payload { tag, left } = self.stage
            && let Some(land) = self.lands.get_mut(&tag)
        {
            of_payload = len.min(left);
            land.filled(of_payload, self.sealer.as_mut());
            self.payload_came(tag, left - of_payload, of_payload, events);
        }
        self.ahead.fill(len - of_payload);
        while self.step(events)? {}
        if let Some((tag, error)) = self.unwanted.take()
            && self.lands.contains_key(&tag)
        {
            self.end(tag, error, events);
        }
        Ok(())
    }

    /// Uses what was read ahead; false when it does not suffice.
    fn step(&mut self, events: &mut Vec<LinkEvent>) -> Result<bool, Violation> {
        let unused = self.ahead.unused();
        match &mut self.stage {
            Stage::Header => {
                let Some(head) = unused.first_chunk() else { return Ok(false) };
                let header = Header::parse(head)?;
                if let Some(sealer) = &mut self.sealer {
                    sealer.begin(head);
                }
                match header.kind {
                    Kind::Payload => {
                        check_bare_header(head, &header)?;
                        self.stage = self.begin_payload(&header)?;
                        self.ahead.consume(HEADER_LEN);
                    }
                    Kind::Credit => {
                        check_bare_header(head, &header)?;
                        self.ahead.consume(HEADER_LEN);
                        self.came(Came::Credit(header.offset), events);
                    }
                    _ => self.begin_control(&header, events),
                }
                Ok(true)
            }
            _ if unused.is_empty() => Ok(false),
            Stage::Body { frame, left } => {
                let step = unused.len().min(*left);
                frame.extend_from_slice(&unused[..step]);
                *left -= step;
                let whole = (*left == 0).then(|| std::mem::take(frame).freeze());
                self.ahead.consume(step);
                if let Some(frame) = whole {
                    self.came_control(frame, events);
                }
                Ok(true)
            }
            Stage::Drop { left } => {
                let step = unused.len().min(*left);
                if let Some(sealer) = &mut self.sealer {
                    sealer.update(&unused[..step]);
                }
                *left -= step;
                let whole = *left == 0;
                self.taken.read(step as u64);
                self.ahead.consume(step);
                if whole {
                    self.came(Came::Dropped, events);
                }
                Ok(true)
            }
            Stage::Payload { .. } => {
                self.copy_guessed(events);
                Ok(true)
            }
            Stage::Seal(came) => {
                let (Some(tag), Some(sealer)) = (unused.first_chunk(), &self.sealer) else {
                    return Ok(false);
                };
                if !sealer.is_sealed_by(tag) {
                    return Err(Violation::Seal { frame: sealer.next() - 1 });
                }
                let came = std::mem::replace(came, Came::Dropped);
                self.ahead.consume(SEAL_LEN);
                self.accept(came, events);
                Ok(true)
            }
        }
    }

    /// A frame that came whole is handed on at once; another one is collected.
    fn begin_control(&mut self, header: &Header, events: &mut Vec<LinkEvent>) {
        let whole = HEADER_LEN + header.body_len as usize;
        let unused = self.ahead.unused();
        if let Some(frame) = unused.get(..whole) {
            let frame = Bytes::copy_from_slice(frame);
            self.ahead.consume(whole);
            self.came_control(frame, events);
        } else {
            let mut frame = BytesMut::with_capacity(whole.min(AHEAD_LEN));
            frame.extend_from_slice(&unused[..HEADER_LEN]);
            self.stage = Stage::Body { frame, left: header.body_len as usize };
            self.ahead.consume(HEADER_LEN);
        }
    }

    fn came_control(&mut self, frame: Bytes, events: &mut Vec<LinkEvent>) {
        if let Some(sealer) = &mut self.sealer {
            sealer.update(&frame[HEADER_LEN..]);
        }
        self.came(Came::Control(frame), events);
    }

    /// A frame is whole: its tag is next, if it has one.
    fn came(&mut self, came: Came, events: &mut Vec<LinkEvent>) {
        if self.sealer.is_some() {
            self.stage = Stage::Seal(came);
        } else {
            self.accept(came, events);
        }
    }

    /// A frame is whole, and the peer's.
    fn accept(&mut self, came: Came, events: &mut Vec<LinkEvent>) {
        self.stage = Stage::Header;
        match came {
            Came::Control(frame) => events.push(LinkEvent::Received(frame)),
            Came::Payload(tag) => {
                if self.lands.get(&tag).is_some_and(|land| land.is_full()) {
                    events.extend(self.lands.remove(&tag).map(|land| land.complete(None)));
                }
            }
            Came::Dropped => {}
            Came::Credit(read) => self.credit = Some(read),
        }
    }

    fn begin_payload(&mut self, header: &Header) -> Result<Stage, Violation> {
        let (tag, left) = (StreamTag(header.tag), header.payload_len as usize);
        let (expected, len) = match self.lands.get(&tag) {
            Some(land) => (land.cursor.position(), land.room.len()),
            None if self.cancelled.contains(tag) => {
                self.note_dropped(tag, left);
                return Ok(Stage::Drop { left });
            }
            // It is complete, and what it was is forgotten: nothing more is expected.
            None if self.posted.contains(tag) => (0, 0),
            None => return Err(Violation::UnknownTag(tag)),
        };
        if header.offset != expected || header.payload_len > len - expected {
            let (offset, end) = (header.offset, header.offset.saturating_add(header.payload_len));
            return Err(Violation::PayloadRange { tag, offset, end, expected, len });
        }
        Ok(Stage::Payload { tag, left })
    }

    /// Payload that was read before its `Land` was posted: the peer guessed the tag.
    fn copy_guessed(&mut self, events: &mut Vec<LinkEvent>) {
        let Stage::Payload { tag, left } = self.stage else { return };
        let Some(land) = self.lands.get_mut(&tag) else { return };
        let unused = self.ahead.unused();
        let step = unused.len().min(left);
        let mut rest = &unused[..step];
        let mut unread = Digest::default();
        let digest = land.digest.as_mut().unwrap_or(&mut unread);
        for room in land.room.slices(&land.cursor, step) {
            let (now, later) = rest.split_at(room.len());
            copy_payload(now, room, digest, &self.stats);
            if let Some(sealer) = &mut self.sealer {
                sealer.update(now);
            }
            rest = later;
        }
        land.cursor.advance(land.room.extents(), step);
        self.ahead.consume(step);
        self.payload_came(tag, left - step, step, events);
    }

    fn payload_came(
        &mut self,
        tag: StreamTag,
        left: usize,
        came: usize,
        events: &mut Vec<LinkEvent>,
    ) {
        self.taken.read(came as u64);
        self.stats.add_landed(came as u64);
        self.stats.add_copied(came as u64 * u64::from(self.copies));
        if left == 0 {
            self.came(Came::Payload(tag), events);
        } else {
            self.stage = Stage::Payload { tag, left };
        }
    }

    /// What to tell the peer of the payload that was read, if it is time to.
    pub(crate) fn news(&mut self) -> Option<u64> {
        self.taken.news()
    }

    /// What the peer told since the last call of how much it read.
    pub(crate) fn take_credit(&mut self) -> Option<u64> {
        self.credit.take()
    }

    fn note_dropped(&mut self, tag: StreamTag, len: usize) {
        self.dropped += len as u64;
        tracing::debug!(tag = tag.0, len, total = self.dropped, "late payload is dropped");
    }
}

impl Incoming {
    fn is_full(&self) -> bool {
        self.cursor.position() == self.room.len()
    }

    fn filled(&mut self, len: usize, mut sealer: Option<&mut Sealer>) {
        for slice in self.room.slices(&self.cursor, len) {
            if let Some(digest) = &mut self.digest {
                digest.update(slice);
            }
            if let Some(sealer) = &mut sealer {
                sealer.update(slice);
            }
        }
        self.cursor.advance(self.room.extents(), len);
    }

    fn complete(self, error: Option<OpError>) -> LinkEvent {
        let outcome = error.map_or_else(|| Ok(self.digest.map_or(0, |digest| digest.value())), Err);
        let memory = OpMemory::Room(self.room);
        LinkEvent::Completed(Completion { op: self.op, memory, outcome })
    }
}

/// Nobody checks a header without a body later, so it is checked whole here.
fn check_bare_header(head: &[u8; HEADER_LEN], header: &Header) -> Result<(), Violation> {
    if header.body_len > 0 {
        let found = HEADER_LEN + header.body_len as usize;
        return Err(FrameError::Length { found, expected: HEADER_LEN }.into());
    }
    Ok(Header::verify(head, &[])?)
}
