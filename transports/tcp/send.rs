//! The sending half of a link: decides which bytes go next. Knows no socket.
//!
//! A round is [`Sender::plan`], one gathering write, [`Sender::wrote`]. The plan is
//! ```text
//! rest of the payload frame that was begun, then control     or
//! control, then a fresh payload frame of the next stream
//! ```
//! so that control waits for one frame at most, and small control and payload share a write. Whoever
//! sends payload in another way than the rest plans in two parts, [`Sender::plan_head`] and then
//! [`Sender::plan_payload`]. Whoever hands a plan to the kernel for longer than a call makes it
//! [lent](Sender::lend): until it is said what was written, its bytes stay, whatever is cancelled.
//!
//! With a cluster key every frame has a tag (`seal`). That of a control frame is made when it is
//! planned, when its number is known. That of a payload frame is known when its last byte was digested:
//! it opens the next plan, so nothing else is planned behind such a payload.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use blockwire::pool::{Cursor, Digest, GatherList, TransferStats};
use blockwire::transport::{
    CloseReason, Completion, LinkEvent, OpError, OpId, OpMemory, StreamTag, Violation,
};
use blockwire::wire::{HEADER_LEN, Header, Kind};
use bytes::{Buf, Bytes};
use uuid::Uuid;

use crate::credit::Unread;
use crate::seal::Sealer;

/// Payload bytes of one write: they are digested right after it, while still in the cache.
const PIECE_LEN: usize = 512 * 1024;

/// What is to be sent, and how far it got.
#[derive(Debug)]
pub(crate) struct Sender {
    control: VecDeque<Queued>,
    /// Bytes of the first control frame and its tag that are written.
    control_written: usize,
    /// The first one is the frame's.
    streams: VecDeque<Box<Outgoing>>,
    frame: Option<Frame>,
    unread: Unread,
    /// No frame may begin: the peer has enough to read.
    waits_for_credit: bool,
    /// A credit waits among the control frames.
    credit_waits: bool,
    sealer: Option<Sealer>,
    /// The tag of the payload frame before, as far as it is not written.
    trailer: Bytes,
    payload_len_max: u64,
    digests: bool,
    /// A plan is with the kernel: how many control frames there were when it was made.
    lent: Option<usize>,
    /// Control frames that were cancelled meanwhile.
    unwanted: Vec<OpId>,
    /// Copies that the mover makes of a payload byte.
    copies: u8,
    stats: Arc<TransferStats>,
}

/// A control frame that waits.
#[derive(Debug)]
struct Queued {
    /// None where nobody waits for its end: it is the link's own.
    op: Option<OpId>,
    frame: Bytes,
    /// Its tag, on the heap too, and the number that it is made with.
    seal: Option<(u64, Bytes)>,
}

impl Queued {
    fn tag(&self) -> &[u8] {
        self.seal.as_ref().map_or(&[], |(_, tag)| tag)
    }

    fn len(&self) -> usize {
        self.frame.len() + self.tag().len()
    }
}

/// A payload on its way out.
#[derive(Debug)]
struct Outgoing {
    op: OpId,
    tag: StreamTag,
    payload: GatherList,
    cursor: Cursor,
    /// None where nobody digests; its value counts as 0 then.
    digest: Option<Digest>,
    /// How it ends once its frame is out.
    ended: Option<OpError>,
}

/// The payload frame at work.
#[derive(Debug)]
struct Frame {
    /// On the heap, where it stays when the sender moves.
    header: Box<[u8; HEADER_LEN]>,
    header_written: usize,
    payload_left: u64,
}

impl Frame {
    fn begun(&self) -> bool {
        self.header_written > 0
    }
}

impl Sender {
    /// Nothing to send.
    pub(crate) fn new(
        payload_len_max: u64,
        unread: Unread,
        digests: bool,
        sealer: Option<Sealer>,
        copies: u8,
        stats: Arc<TransferStats>,
    ) -> Self {
        Self {
            control: VecDeque::new(),
            control_written: 0,
            streams: VecDeque::new(),
            frame: None,
            unread,
            waits_for_credit: false,
            credit_waits: false,
            sealer,
            trailer: Bytes::new(),
            payload_len_max,
            digests,
            lent: None,
            unwanted: Vec::new(),
            copies,
            stats,
        }
    }

    /// Whether everything is written.
    pub(crate) fn is_idle(&self) -> bool {
        self.control.is_empty() && self.streams.is_empty() && self.trailer.is_empty()
    }

    /// Whether there is nothing to write now: all is written, or a frame waits for the peer to read.
    /// `unacknowledged` are bytes that were written and that the peer's system does not have.
    pub(crate) fn rests(&mut self, unacknowledged: impl FnOnce() -> u64) -> bool {
        let could_begin = self.frame.is_none() && !self.streams.is_empty();
        self.waits_for_credit = could_begin && self.unread.is_much(unacknowledged);
        let waits = self.streams.is_empty() || self.waits_for_credit;
        waits && self.control.is_empty() && self.trailer.is_empty()
    }

    /// Queues a control frame.
    pub(crate) fn push_control(&mut self, op: OpId, frame: Bytes) {
        self.control.push_back(Queued { op: Some(op), frame, seal: None });
    }

    /// Whether [`push_credit`](Self::push_credit) is possible.
    pub(crate) fn takes_credit(&self) -> bool {
        !self.credit_waits
    }

    /// Queues the news how many payload bytes were read here.
    pub(crate) fn push_credit(&mut self, read: u64) {
        let header = Header { offset: read, ..Header::control(Kind::Credit, Uuid::nil(), 0) };
        let frame = Bytes::copy_from_slice(&header.encode(&[]));
        self.control.push_back(Queued { op: None, frame, seal: None });
        self.credit_waits = true;
    }

    /// The peer has read so many payload bytes.
    ///
    /// # Errors
    /// [`Violation`]: that cannot be.
    pub(crate) fn credited(&mut self, read: u64) -> Result<(), Violation> {
        let lent = self.frame.as_ref().filter(|_| self.lent.is_some());
        self.unread.credited(read, lent.map_or(0, |frame| frame.payload_left))
    }

    /// Queues a payload.
    pub(crate) fn push_stream(
        &mut self,
        op: OpId,
        tag: StreamTag,
        payload: GatherList,
        events: &mut Vec<LinkEvent>,
    ) {
        let (cursor, digest) = (Cursor::default(), self.digests.then(Digest::default));
        let outgoing = Box::new(Outgoing { op, tag, payload, cursor, digest, ended: None });
        if outgoing.payload.is_empty() {
            return events.push(outgoing.complete());
        }
        self.streams.push_back(outgoing);
    }

    /// Ends an operation: at once, or when the frame that was begun is out.
    pub(crate) fn cancel(&mut self, op: OpId, events: &mut Vec<LinkEvent>) {
        if let Some(index) = self.control.iter().position(|queued| queued.op == Some(op)) {
            if self.lent.is_some() {
                self.unwanted.push(op);
            } else if index > 0 || self.control_written == 0 {
                self.control.remove(index);
                events.push(control_done(op, Err(OpError::Cancelled)));
            }
        } else if let Some(index) = self.streams.iter().position(|stream| stream.op == op) {
            self.end_stream(index, OpError::Cancelled, events);
        }
    }

    /// Ends every payload; control goes on.
    pub(crate) fn end_streams(&mut self, reason: &CloseReason, events: &mut Vec<LinkEvent>) {
        for index in (0..self.streams.len()).rev() {
            self.end_stream(index, OpError::Closed(reason.clone()), events);
        }
    }

    /// Ends everything at once: there is no wire any more, and no plan is with the kernel.
    pub(crate) fn abort(&mut self, reason: &CloseReason, events: &mut Vec<LinkEvent>) {
        (self.frame, self.lent) = (None, None);
        self.trailer.clear();
        self.end_streams(reason, events);
        let closed = || Err(OpError::Closed(reason.clone()));
        let ops = self.control.drain(..).filter_map(|queued| queued.op);
        events.extend(ops.map(|op| control_done(op, closed())));
    }

    fn end_stream(&mut self, index: usize, error: OpError, events: &mut Vec<LinkEvent>) {
        if index == 0 && (self.lent.is_some() || self.frame.as_ref().is_some_and(Frame::begun)) {
            self.streams[0].ended.get_or_insert(error);
            return;
        }
        if index == 0 {
            self.frame = None;
        }
        if let Some(mut stream) = self.streams.remove(index) {
            stream.ended = Some(error);
            events.push(stream.complete());
        }
    }

    /// The plan is with the kernel until [`wrote`](Self::wrote) is called.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "uring")),
        expect(dead_code, reason = "only rings borrow")
    )]
    pub(crate) fn lend(&mut self) {
        self.lent = Some(self.control.len());
    }

    /// Whether something is lent that should end: the kernel is to give the plan back.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "uring")),
        expect(dead_code, reason = "only rings borrow")
    )]
    pub(crate) fn wants_back(&self) -> bool {
        self.lent.is_some() && (!self.unwanted.is_empty() || self.first_ends_unbegun())
    }

    fn first_ends_unbegun(&self) -> bool {
        let begun = self.frame.as_ref().is_some_and(Frame::begun);
        !begun && self.streams.front().is_some_and(|stream| stream.ended.is_some())
    }

    /// The next bytes; returns how many slices were set.
    pub(crate) fn plan<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        self.next_frame();
        self.seal_control(slices.len());
        let mut plan = Plan { slices, len: 0 };
        plan.push(&self.trailer);
        if self.frame.as_ref().is_some_and(Frame::begun) {
            if self.plan_frame(&mut plan) {
                self.plan_control(&mut plan);
            }
        } else if self.plan_control(&mut plan) {
            self.plan_frame(&mut plan);
        }
        plan.len
    }

    /// Payload bytes of the frame that goes next; 0 when none does.
    pub(crate) fn payload_next(&mut self) -> u64 {
        self.next_frame();
        self.frame.as_ref().map_or(0, |frame| frame.payload_left)
    }

    /// The bytes before those of [`payload_next`](Self::payload_next); returns how many slices were set.
    pub(crate) fn plan_head<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        self.next_frame();
        self.seal_control(slices.len());
        let mut plan = Plan { slices, len: 0 };
        plan.push(&self.trailer);
        let begun = self.frame.as_ref().is_some_and(Frame::begun);
        if begun || self.plan_control(&mut plan) {
            self.plan_header(&mut plan);
        }
        plan.len
    }

    /// The bytes of [`payload_next`](Self::payload_next), once nothing goes before them; returns how many
    /// slices were set.
    pub(crate) fn plan_payload<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut plan = Plan { slices, len: 0 };
        self.plan_bytes(&mut plan);
        plan.len
    }

    fn next_frame(&mut self) {
        if self.frame.is_none() && !self.waits_for_credit {
            self.frame = self.streams.front().map(|stream| stream.next_frame(self.payload_len_max));
        }
    }

    /// Makes the tags of the control frames that a plan can hold. One that was cancelled before its turn
    /// changes the numbers of those behind it.
    fn seal_control(&mut self, count: usize) {
        let Some(sealer) = &self.sealer else { return };
        for (number, queued) in (sealer.next()..).zip(self.control.iter_mut().take(count)) {
            if queued.seal.as_ref().is_none_or(|(sealed, _)| *sealed != number) {
                let tag = Bytes::copy_from_slice(&sealer.of_frame(number, &queued.frame));
                queued.seal = Some((number, tag));
            }
        }
    }

    /// Whether every control frame is in the plan, so that something may follow.
    fn plan_control<'a>(&'a self, plan: &mut Plan<'_, 'a>) -> bool {
        let mut skip = self.control_written;
        self.control.iter().all(|queued| {
            let of_frame = std::mem::take(&mut skip);
            let of_tag = of_frame.saturating_sub(queued.frame.len());
            plan.push(queued.frame.get(of_frame..).unwrap_or(&[]))
                && plan.push(&queued.tag()[of_tag..])
        })
    }

    /// Whether the whole frame is in the plan, so that something may follow.
    fn plan_frame<'a>(&'a self, plan: &mut Plan<'_, 'a>) -> bool {
        self.plan_header(plan) && self.plan_bytes(plan)
    }

    fn plan_header<'a>(&'a self, plan: &mut Plan<'_, 'a>) -> bool {
        self.frame.as_ref().is_none_or(|frame| plan.push(&frame.header[frame.header_written..]))
    }

    fn plan_bytes<'a>(&'a self, plan: &mut Plan<'_, 'a>) -> bool {
        let (Some(frame), Some(stream)) = (&self.frame, self.streams.front()) else { return true };
        let bytes_max = PIECE_LEN.min(frame.payload_left as usize);
        stream.payload.slices(&stream.cursor, bytes_max).all(|slice| plan.push(slice))
            && bytes_max as u64 == frame.payload_left
            && self.sealer.is_none()
    }

    /// Says that the first `len` bytes of the plan are written.
    pub(crate) fn wrote(&mut self, mut len: usize, events: &mut Vec<LinkEvent>) {
        let of_trailer = len.min(self.trailer.len());
        self.trailer.advance(of_trailer);
        len -= of_trailer;
        if self.frame.as_ref().is_some_and(Frame::begun) {
            let rest = self.wrote_payload(len, events);
            self.wrote_control(rest, events);
        } else {
            let rest = self.wrote_control(len, events);
            self.wrote_payload(rest, events);
        }
        if self.lent.take().is_some() {
            self.took_back(events);
        }
    }

    /// Ends what was cancelled while it was lent.
    fn took_back(&mut self, events: &mut Vec<LinkEvent>) {
        for op in std::mem::take(&mut self.unwanted) {
            self.cancel(op, events);
        }
        if self.first_ends_unbegun() {
            self.frame = None;
            events.extend(self.streams.pop_front().map(|stream| stream.complete()));
        }
    }

    fn wrote_control(&mut self, mut len: usize, events: &mut Vec<LinkEvent>) -> usize {
        // What was queued while the plan was lent is no part of it.
        for _ in 0..self.lent.unwrap_or(usize::MAX) {
            let Some(queued) = self.control.front() else { break };
            let step = len.min(queued.len() - self.control_written);
            self.control_written += step;
            len -= step;
            // The tag of one that was not planned yet is missing, but then it is not written either.
            if self.control_written < queued.len() {
                break;
            }
            match queued.op {
                Some(op) => events.push(control_done(op, Ok(0))),
                None => self.credit_waits = false,
            }
            self.sealer.iter_mut().for_each(Sealer::skip);
            self.control.pop_front();
            self.control_written = 0;
        }
        len
    }

    fn wrote_payload(&mut self, len: usize, events: &mut Vec<LinkEvent>) -> usize {
        let (Some(frame), Some(stream)) = (&mut self.frame, self.streams.front_mut()) else {
            return len;
        };
        if let Some(sealer) = self.sealer.as_mut().filter(|_| len > 0 && !frame.begun()) {
            sealer.begin(&frame.header[..]);
        }
        let of_header = len.min(HEADER_LEN - frame.header_written);
        frame.header_written += of_header;
        let of_payload = (len - of_header).min(frame.payload_left as usize);
        frame.payload_left -= of_payload as u64;
        self.unread.sent(of_payload as u64);
        stream.wrote(of_payload, self.sealer.as_mut());
        self.stats.add_sent(of_payload as u64);
        self.stats.add_copied(of_payload as u64 * u64::from(self.copies));
        if frame.payload_left == 0 {
            self.frame = None;
            if let Some(sealer) = &self.sealer {
                self.trailer = Bytes::copy_from_slice(&sealer.seal());
            }
            self.next_turn(events);
        }
        len - of_header - of_payload
    }

    /// The frame of the first stream is out: it ends, or goes to the back of the queue.
    fn next_turn(&mut self, events: &mut Vec<LinkEvent>) {
        let Some(stream) = self.streams.pop_front() else { return };
        if stream.left() == 0 || stream.ended.is_some() {
            events.push(stream.complete());
        } else {
            self.streams.push_back(stream);
        }
    }
}

/// Slices set so far.
struct Plan<'s, 'a> {
    slices: &'s mut [IoSlice<'a>],
    len: usize,
}

impl<'a> Plan<'_, 'a> {
    /// Adds bytes; false when there is no slice left for them.
    fn push(&mut self, bytes: &'a [u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let Some(slice) = self.slices.get_mut(self.len) else { return false };
        *slice = IoSlice::new(bytes);
        self.len += 1;
        true
    }
}

impl Outgoing {
    fn left(&self) -> u64 {
        self.payload.len() - self.cursor.position()
    }

    fn next_frame(&self, payload_len_max: u64) -> Frame {
        let payload_left = self.left().min(payload_len_max);
        let header = Header::payload(self.tag.0, self.cursor.position(), payload_left).encode(&[]);
        Frame { header: Box::new(header), header_written: 0, payload_left }
    }

    fn wrote(&mut self, len: usize, mut sealer: Option<&mut Sealer>) {
        for slice in self.payload.slices(&self.cursor, len) {
            if let Some(digest) = &mut self.digest {
                digest.update(slice);
            }
            if let Some(sealer) = &mut sealer {
                sealer.update(slice);
            }
        }
        self.cursor.advance(self.payload.extents(), len);
    }

    /// A payload that is all out is done, even if it was cancelled meanwhile.
    fn complete(self) -> LinkEvent {
        let outcome = match self.ended {
            Some(error) if self.cursor.position() < self.payload.len() => Err(error),
            _ => Ok(self.digest.map_or(0, |digest| digest.value())),
        };
        let memory = OpMemory::Payload(self.payload);
        LinkEvent::Completed(Completion { op: self.op, memory, outcome })
    }
}

/// The end of a control frame.
pub(crate) fn control_done(op: OpId, outcome: Result<u64, OpError>) -> LinkEvent {
    LinkEvent::Completed(Completion { op, memory: OpMemory::None, outcome })
}
