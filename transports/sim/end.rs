//! One end of a wire: its operations, and what it has to report.
//!
//! Invariants:
//! - E1: an accepted operation is in exactly one of `outbox`, `streams`, `lands`, `gets`, or has its one
//!   entry in `completions`, or was reported.
//! - E2: an end whose phase is `Ended` or `Reported` owns no operation, and nothing of its memory is read
//!   any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use blockwire::pool::{Region, TransferStats};
use blockwire::transport::{
    Capabilities, CloseReason, Completion, LinkEvent, Op, OpError, OpId, OpMemory, Refused,
    RegionKey, StreamTag, Violation,
};
use bytes::Bytes;

use super::get::GetOp;
use super::lane::{Lane, Piece};
use super::payload::{LandOp, Source, StreamOp};

/// Events reported by one poll.
const EVENTS_A_POLL: usize = 256;

/// How far an end is on its way from open to closed.
#[derive(Debug, Default)]
pub(crate) enum Phase {
    #[default]
    Open,
    /// Its owner asked for the end; the outbox still empties.
    Closing,
    /// No operation is left; what waits to be reported still is.
    Ended(CloseReason),
    /// `Closed` was reported.
    Reported(CloseReason),
}

/// One end.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) phase: Phase,
    pub(crate) stats: Arc<TransferStats>,
    pub(crate) waker: Option<Waker>,
    pub(crate) wake: bool,
    /// What is under way to this end.
    pub(crate) inbound: Lane,
    pub(crate) outbox: VecDeque<(OpId, Bytes)>,
    /// Those that have bytes left to send take turns; the others wait until all has arrived.
    pub(crate) streams: VecDeque<StreamOp>,
    lands: BTreeMap<StreamTag, LandOp>,
    pub(crate) gets: VecDeque<GetOp>,
    pub(crate) regions: Vec<Arc<Region>>,
    /// Tags that were posted and cancelled and whose payload has not come.
    unwanted: BTreeSet<StreamTag>,
    last_tag: Option<StreamTag>,
    ops: u64,
    /// By the time of their report.
    completions: BTreeMap<(Instant, u64), Completion>,
    completed: u64,
}

impl End {
    /// Of an owner that is gone.
    pub(crate) fn gone() -> Self {
        Self { phase: Phase::Reported(CloseReason::Local), ..Self::default() }
    }

    /// Whether nothing is done for this end any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended(_) | Phase::Reported(_))
    }

    /// The region behind a key.
    pub(crate) fn region(&self, key: RegionKey) -> Option<&Arc<Region>> {
        self.regions.get((key.0 as usize).checked_sub(1)?)
    }

    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    pub(crate) fn check(&self, op: Op, capabilities: &Capabilities) -> Result<Op, Refused> {
        let closed = |reason: &CloseReason| Some(OpError::Closed(reason.clone()));
        let error = match (&self.phase, &op) {
            (Phase::Closing, _) => closed(&CloseReason::Local),
            (Phase::Ended(reason) | Phase::Reported(reason), _) => closed(reason),
            (_, Op::Stream { .. } | Op::Land { .. }) if capabilities.stream.is_none() => {
                Some(OpError::Unsupported("stream"))
            }
            (_, Op::Get { .. }) if capabilities.get.is_none() => Some(OpError::Unsupported("get")),
            (_, Op::Land { tag, .. }) if self.last_tag.is_some_and(|last| *tag <= last) => {
                Some(OpError::TagReused(*tag))
            }
            _ => None,
        };
        match error {
            Some(error) => Err(Refused { op, error }),
            None => Ok(op),
        }
    }

    pub(crate) fn next_id(&mut self) -> OpId {
        self.ops += 1;
        OpId(self.ops - 1)
    }

    pub(crate) fn post(&mut self, id: OpId, op: Op) {
        match op {
            Op::Control(frame) => self.outbox.push_back((id, frame)),
            Op::Stream { tag, payload } => {
                self.streams.push_back(StreamOp::new(id, tag, payload));
            }
            Op::Land { tag, room } => {
                self.last_tag = Some(tag);
                self.lands.insert(tag, LandOp::new(id, room));
            }
            Op::Get { .. } => unreachable!("a get is begun with the peer's region"),
        }
    }

    /// Begins a pull from the peer's region, or fails it.
    pub(crate) fn post_get(&mut self, id: OpId, op: Op, from: Option<&Arc<Region>>, due: Instant) {
        let Op::Get { region, extents, room } = op else { return };
        let Some(memory) = from else {
            let error = Err(OpError::UnknownRegion(region));
            return self.complete(id, OpMemory::Room(room), error, due);
        };
        match GetOp::new(id, memory, extents, room, due) {
            Ok(get) => self.gets.push_back(get),
            Err(room) => {
                self.complete(id, OpMemory::Room(room), Err(OpError::BadExtents), due);
            }
        }
    }

    pub(crate) fn cancel(&mut self, op: OpId, lingers: bool, now: Instant) {
        let cancelled = || Err(OpError::Cancelled);
        if let Some(at) = self.outbox.iter().position(|(id, _)| *id == op) {
            self.outbox.remove(at);
            self.complete(op, OpMemory::None, cancelled(), now);
        } else if let Some(at) = self.streams.iter().position(|stream| stream.op == op) {
            if let Some(stream) = self.streams.remove(at) {
                if !lingers {
                    stream.source.stop();
                }
                self.complete(op, OpMemory::Payload(stream.payload), cancelled(), now);
            }
        } else if let Some(at) = self.gets.iter().position(|get| get.op == op) {
            if let Some(get) = self.gets.remove(at) {
                self.complete(op, OpMemory::Room(get.into_room().0), cancelled(), now);
            }
        } else if let Some(tag) = self.lands.iter().find(|(_, land)| land.op == op).map(|l| *l.0)
            && let Some(land) = self.lands.remove(&tag)
        {
            self.unwanted.insert(tag);
            self.complete(op, OpMemory::Room(land.into_room().0), cancelled(), now);
        }
    }

    /// Takes a piece of the peer's payload; whether its bytes are still those that left, or nobody wants
    /// them.
    pub(crate) fn take_piece(&mut self, piece: &Piece, report: Instant) -> Result<bool, Violation> {
        let tag = piece.tag;
        let Some(land) = self.lands.get_mut(&tag) else {
            let open = matches!(self.phase, Phase::Open);
            if open && !self.unwanted.contains(&tag) {
                return Err(Violation::UnknownTag(tag));
            }
            if piece.last {
                self.unwanted.remove(&tag);
            }
            return Ok(true);
        };
        let (full, digest) = land.take(piece, &self.stats)?;
        let same = digest == piece.digest;
        if let Some(land) = full.then(|| self.lands.remove(&tag)).flatten() {
            let op = land.op;
            let (room, digest) = land.into_room();
            self.complete(op, OpMemory::Room(room), Ok(digest), report);
        }
        Ok(same)
    }

    /// All of a stream's payload has arrived.
    pub(crate) fn stream_arrived(&mut self, source: &Source, report: Instant) {
        let is_it = |stream: &StreamOp| stream.source.is(source);
        if let Some(at) = self.streams.iter().position(is_it)
            && let Some(stream) = self.streams.remove(at)
        {
            self.stream_done(stream, report);
        }
    }

    pub(crate) fn stream_done(&mut self, stream: StreamOp, report: Instant) {
        let digest = stream.digest();
        self.complete(stream.op, OpMemory::Payload(stream.payload), Ok(digest), report);
    }

    pub(crate) fn complete(
        &mut self,
        op: OpId,
        memory: OpMemory,
        outcome: Result<u64, OpError>,
        report: Instant,
    ) {
        self.completed += 1;
        self.completions.insert((report, self.completed), Completion { op, memory, outcome });
        self.wake = true;
    }

    /// Fails every operation (E2). What arrived before is still delivered.
    pub(crate) fn end(&mut self, reason: CloseReason, now: Instant) {
        if self.is_over() {
            return;
        }
        for (op, _) in std::mem::take(&mut self.outbox) {
            self.complete(op, OpMemory::None, Err(OpError::Closed(reason.clone())), now);
        }
        self.fail_payload(&reason, now);
        self.phase = Phase::Ended(reason);
        self.wake = true;
    }

    pub(crate) fn fail_payload(&mut self, reason: &CloseReason, now: Instant) {
        let closed = || Err(OpError::Closed(reason.clone()));
        for stream in std::mem::take(&mut self.streams) {
            stream.source.stop();
            self.complete(stream.op, OpMemory::Payload(stream.payload), closed(), now);
        }
        for (_, land) in std::mem::take(&mut self.lands) {
            self.complete(land.op, OpMemory::Room(land.into_room().0), closed(), now);
        }
        for get in std::mem::take(&mut self.gets) {
            self.complete(get.op, OpMemory::Room(get.into_room().0), closed(), now);
        }
    }

    /// Reports what is due, and the end after everything else.
    pub(crate) fn report(&mut self, now: Instant, events: &mut Vec<LinkEvent>) {
        for _ in 0..EVENTS_A_POLL {
            let due = self.completions.first_key_value().is_some_and(|((due, _), _)| *due <= now);
            let Some((_, completion)) = due.then(|| self.completions.pop_first()).flatten() else {
                break;
            };
            events.push(LinkEvent::Completed(completion));
        }
        if !self.completions.is_empty() {
            return;
        }
        if let Phase::Ended(reason) = &self.phase {
            let reason = reason.clone();
            self.phase = Phase::Reported(reason.clone());
            events.push(LinkEvent::Closed(reason));
        }
    }

    /// When something of this end's is due.
    pub(crate) fn next_due(&self, cut: bool) -> Option<Instant> {
        if matches!(self.phase, Phase::Reported(_)) {
            return None;
        }
        let completion = self.completions.first_key_value().map(|((due, _), _)| *due);
        let get = self.gets.iter().map(|get| get.due).min();
        let arrival = self.inbound.next_due().filter(|_| !cut && !self.is_over());
        completion.into_iter().chain(get).chain(arrival).min()
    }
}
