//! The state that two ends share, and the progress that either of them makes.
//!
//! Invariants:
//! - W1: an accepted operation is in exactly one of `outbox`, `streams`, `lands`, or has its one entry
//!   in `completions`, or was reported.
//! - W2: an end whose phase is `Ended` or `Reported` owns no operation.
//! - W3: whatever an end has to do because of its peer sets `wake`; the peer takes the waker and wakes
//!   it after it has left the lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Poll, Waker};

use blockwire::pool::TransferStats;
use blockwire::transport::{
    CloseReason, Completion, LinkEvent, Op, OpError, OpId, OpMemory, Refused, StreamTag, Violation,
};
use blockwire::wire::PAYLOAD_LEN_MAX;
use bytes::Bytes;

use super::payload::{LandOp, StreamOp};

/// Frames that wait at an end before its peer's stay in the outbox.
const INBOX_FRAMES_MAX: usize = 1024;
/// Their bytes; one frame of any length always fits an empty inbox.
const INBOX_BYTES_MAX: usize = 4 << 20;
/// Events reported by one poll.
const EVENTS_A_POLL: usize = 256;
/// Payload bytes moved by one poll, both directions together.
const PAYLOAD_A_POLL: usize = 4 << 20;
/// Payload bytes of a stream before the next stream has its turn.
const PAYLOAD_A_TURN: usize = PAYLOAD_LEN_MAX as usize;

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Near,
    Far,
}

impl Side {
    pub(crate) fn peer(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// How far an end is on its way from open to closed.
#[derive(Debug, Default)]
enum Phase {
    #[default]
    Open,
    /// Its owner asked for the end; the outbox still empties.
    Closing,
    /// No operation is left; what waits in inbox and completions is still reported.
    Ended(CloseReason),
    /// `Closed` was reported.
    Reported(CloseReason),
}

/// One end.
#[derive(Debug, Default)]
struct End {
    phase: Phase,
    stats: Arc<TransferStats>,
    waker: Option<Waker>,
    wake: bool,
    ops: u64,
    inbox: VecDeque<Bytes>,
    inbox_bytes: usize,
    outbox: VecDeque<(OpId, Bytes)>,
    streams: VecDeque<StreamOp>,
    lands: BTreeMap<StreamTag, LandOp>,
    /// Tags that were posted and cancelled and whose payload has not come: 8 bytes each.
    unwanted: BTreeSet<StreamTag>,
    last_tag: Option<StreamTag>,
    completions: VecDeque<Completion>,
}

/// Both ends.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    near: End,
    far: End,
}

impl Wire {
    pub(crate) fn stats(&self, side: Side) -> &Arc<TransferStats> {
        match side {
            Side::Near => &self.near.stats,
            Side::Far => &self.far.stats,
        }
    }

    /// Remembers whom to wake.
    pub(crate) fn watch(&mut self, side: Side, waker: &Waker) {
        let (end, _) = self.split(side);
        match &mut end.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// The waker of an end that has something to do (W3).
    pub(crate) fn take_wake(&mut self, side: Side) -> Option<Waker> {
        let (end, _) = self.split(side);
        if std::mem::take(&mut end.wake) { end.waker.clone() } else { None }
    }

    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    pub(crate) fn submit(&mut self, side: Side, op: Op) -> Result<OpId, Refused> {
        self.split(side).0.accept(op)
    }

    pub(crate) fn cancel(&mut self, side: Side, op: OpId) {
        self.split(side).0.cancel(op);
    }

    pub(crate) fn close(&mut self, side: Side) {
        let (end, _) = self.split(side);
        if matches!(end.phase, Phase::Open) {
            end.phase = Phase::Closing;
            end.fail_payload(&CloseReason::Local);
        }
    }

    /// The end is gone without a word. What it held is handed out, to be dropped outside the lock.
    pub(crate) fn die(&mut self, side: Side) -> impl Sized + use<> {
        let (end, peer) = self.split(side);
        let gone = End { phase: Phase::Reported(CloseReason::Local), ..End::default() };
        let abandoned = std::mem::replace(end, gone);
        peer.end(CloseReason::PeerGone);
        abandoned
    }

    /// Bounded work for both ends; reports to `side`.
    pub(crate) fn progress(&mut self, side: Side, events: &mut Vec<LinkEvent>) -> Poll<()> {
        let before = events.len();
        let (end, peer) = self.split(side);
        pass_control(end, peer);
        pass_control(peer, end);
        end.deliver(events);
        pass_control(peer, end);
        self.pass_payload(side);
        let (end, peer) = self.split(side);
        if matches!(end.phase, Phase::Closing) && end.outbox.is_empty() {
            end.end(CloseReason::Local);
            peer.end(CloseReason::PeerGone);
        }
        end.report(events);
        end.wake = false;
        let idle = end.inbox.is_empty()
            && end.completions.is_empty()
            && end.streams.is_empty()
            && peer.streams.is_empty();
        if idle && events.len() == before { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Streams take turns, and so do the directions, until a poll's worth is moved.
    fn pass_payload(&mut self, side: Side) {
        let mut left = PAYLOAD_A_POLL;
        while left > 0 {
            let turn = left.min(PAYLOAD_A_TURN / 2);
            let sent = self.turn(side, turn);
            let landed = self.turn(side.peer(), turn);
            if sent.is_none() && landed.is_none() {
                return;
            }
            left = left.saturating_sub(sent.unwrap_or(0) + landed.unwrap_or(0));
        }
    }

    /// A turn of the sender's first stream: bytes moved, or none where there is no stream.
    fn turn(&mut self, sender: Side, bytes_max: usize) -> Option<usize> {
        let (from, to) = self.split(sender);
        let mut stream = from.streams.pop_front()?;
        match to.take_payload(&mut stream, bytes_max) {
            Ok(moved) => {
                from.stats.add_sent(moved as u64);
                from.put_back(stream);
                Some(moved)
            }
            Err(violation) => {
                from.streams.push_front(stream);
                to.end(CloseReason::Violated(violation));
                from.end(CloseReason::PeerGone);
                Some(0)
            }
        }
    }

    fn split(&mut self, side: Side) -> (&mut End, &mut End) {
        match side {
            Side::Near => (&mut self.near, &mut self.far),
            Side::Far => (&mut self.far, &mut self.near),
        }
    }
}

/// Moves accepted frames to the peer's inbox while there is room.
fn pass_control(from: &mut End, to: &mut End) {
    while let Some((op, frame)) = from.outbox.pop_front() {
        let fits =
            to.inbox.len() < INBOX_FRAMES_MAX && to.inbox_bytes + frame.len() <= INBOX_BYTES_MAX;
        if !fits && !to.inbox.is_empty() {
            from.outbox.push_front((op, frame));
            return;
        }
        to.inbox_bytes += frame.len();
        to.inbox.push_back(frame);
        to.wake = true;
        from.complete(op, OpMemory::None, Ok(0));
    }
}

impl End {
    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    fn accept(&mut self, op: Op) -> Result<OpId, Refused> {
        let reason = match &self.phase {
            Phase::Open => None,
            Phase::Closing => Some(&CloseReason::Local),
            Phase::Ended(reason) | Phase::Reported(reason) => Some(reason),
        };
        if let Some(reason) = reason {
            return Err(Refused { op, error: OpError::Closed(reason.clone()) });
        }
        let id = OpId(self.ops);
        match op {
            Op::Control(frame) => self.outbox.push_back((id, frame)),
            Op::Stream { tag, payload } => {
                self.streams.push_back(StreamOp::new(id, tag, payload));
            }
            Op::Land { tag, .. } if self.last_tag.is_some_and(|last| tag <= last) => {
                return Err(Refused { op, error: OpError::TagReused(tag) });
            }
            Op::Land { tag, room } => {
                self.last_tag = Some(tag);
                self.lands.insert(tag, LandOp::new(id, room));
            }
            Op::Get { .. } => return Err(Refused { op, error: OpError::Unsupported("get") }),
        }
        self.ops += 1;
        Ok(id)
    }

    fn cancel(&mut self, op: OpId) {
        let cancelled = || Err(OpError::Cancelled);
        if let Some(at) = self.outbox.iter().position(|(id, _)| *id == op) {
            self.outbox.remove(at);
            self.complete(op, OpMemory::None, cancelled());
        } else if let Some(at) = self.streams.iter().position(|stream| stream.op == op) {
            if let Some(stream) = self.streams.remove(at) {
                self.complete(op, OpMemory::Payload(stream.payload), cancelled());
            }
        } else if let Some(tag) = self.lands.iter().find(|(_, land)| land.op == op).map(|l| *l.0)
            && let Some(land) = self.lands.remove(&tag)
        {
            self.unwanted.insert(tag);
            self.complete(op, OpMemory::Room(land.room), cancelled());
        }
    }

    /// Takes the next bytes of a peer's stream.
    fn take_payload(
        &mut self,
        stream: &mut StreamOp,
        bytes_max: usize,
    ) -> Result<usize, Violation> {
        let tag = stream.tag;
        let Some(land) = self.lands.get_mut(&tag) else {
            let open = matches!(self.phase, Phase::Open);
            if open && !self.unwanted.contains(&tag) && !stream.is_done() {
                return Err(Violation::UnknownTag(tag));
            }
            let moved = stream.discard(bytes_max);
            if stream.is_done() {
                self.unwanted.remove(&tag);
            }
            return Ok(moved);
        };
        let moved = stream.copy_into(land, bytes_max, &self.stats)?;
        self.stats.add_landed(moved as u64);
        if let Some(land) = stream.is_done().then(|| self.lands.remove(&tag)).flatten() {
            self.complete(land.op, OpMemory::Room(land.room), Ok(stream.digest()));
        }
        Ok(moved)
    }

    /// After its turn a stream is done, or goes behind the others.
    fn put_back(&mut self, stream: StreamOp) {
        if stream.is_done() {
            let digest = stream.digest();
            self.complete(stream.op, OpMemory::Payload(stream.payload), Ok(digest));
        } else {
            self.streams.push_back(stream);
        }
    }

    fn complete(&mut self, op: OpId, memory: OpMemory, outcome: Result<u64, OpError>) {
        self.completions.push_back(Completion { op, memory, outcome });
        self.wake = true;
    }

    /// Fails every operation (W2). What arrived before is still delivered.
    fn end(&mut self, reason: CloseReason) {
        if matches!(self.phase, Phase::Ended(_) | Phase::Reported(_)) {
            return;
        }
        for (op, _) in std::mem::take(&mut self.outbox) {
            self.complete(op, OpMemory::None, Err(OpError::Closed(reason.clone())));
        }
        self.fail_payload(&reason);
        self.phase = Phase::Ended(reason);
        self.wake = true;
    }

    fn fail_payload(&mut self, reason: &CloseReason) {
        let closed = || Err(OpError::Closed(reason.clone()));
        for stream in std::mem::take(&mut self.streams) {
            self.complete(stream.op, OpMemory::Payload(stream.payload), closed());
        }
        for (_, land) in std::mem::take(&mut self.lands) {
            self.complete(land.op, OpMemory::Room(land.room), closed());
        }
    }

    fn deliver(&mut self, events: &mut Vec<LinkEvent>) {
        let count = self.inbox.len().min(EVENTS_A_POLL);
        for frame in self.inbox.drain(..count) {
            self.inbox_bytes -= frame.len();
            events.push(LinkEvent::Received(frame));
        }
    }

    fn report(&mut self, events: &mut Vec<LinkEvent>) {
        let count = self.completions.len().min(EVENTS_A_POLL);
        events.extend(self.completions.drain(..count).map(LinkEvent::Completed));
        if !self.inbox.is_empty() || !self.completions.is_empty() {
            return;
        }
        if let Phase::Ended(reason) = &self.phase {
            let reason = reason.clone();
            self.phase = Phase::Reported(reason.clone());
            events.push(LinkEvent::Closed(reason));
        }
    }
}
