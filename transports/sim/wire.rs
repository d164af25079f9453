//! Both ends of a wire, and how what one sends becomes what the other gets.
//!
//! An end's poll lets its own things leave and takes what has arrived; time alone moves the rest. W3:
//! whatever an end has to do because of its peer sets `wake`; the peer takes the waker and wakes it after
//! it has left the lock.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use blockwire::pool::{Region, TransferStats};
use blockwire::transport::{
    Capabilities, CloseReason, LinkEvent, Op, OpError, OpId, OpMemory, Refused, RegionKey,
};
use blockwire::wire::describe;
use bytes::{Bytes, BytesMut};
use fastrand::Rng;

use super::conditions::Conditions;
use super::end::{End, Phase};
use super::lane::{Parcel, Piece};
use super::path::Path;
use super::record::Record;
use super::trace::Trace;

/// Frames delivered by one poll.
const FRAMES_A_POLL: usize = 256;
/// Payload bytes moved by one poll in one direction.
const PAYLOAD_A_POLL: usize = 2 << 20;
/// Longest time from the first fault of a broken link to its reset.
const DOOM_MAX: Duration = Duration::from_millis(50);

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

/// Both ends.
#[derive(Debug)]
pub(crate) struct Wire {
    near: End,
    far: End,
    path: Arc<Path>,
    capabilities: Capabilities,
    random: Rng,
    /// When a broken link is reset.
    doom: Option<Instant>,
    names: [String; 2],
    trace: Trace,
    record: Record,
}

impl Wire {
    pub(crate) fn new(
        path: Arc<Path>,
        capabilities: Capabilities,
        random: Rng,
        names: [String; 2],
        trace: Trace,
        record: Record,
    ) -> Self {
        let (near, far) = (End::default(), End::default());
        Self { near, far, path, capabilities, random, doom: None, names, trace, record }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    pub(crate) fn stats(&self, side: Side) -> &Arc<TransferStats> {
        match side {
            Side::Near => &self.near.stats,
            Side::Far => &self.far.stats,
        }
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.path
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

    /// Both ends have something to look at.
    pub(crate) fn wake_both(&mut self) -> [Option<Waker>; 2] {
        (self.near.wake, self.far.wake) = (true, true);
        [self.take_wake(Side::Near), self.take_wake(Side::Far)]
    }

    pub(crate) fn register(&mut self, side: Side, region: &Arc<Region>) -> RegionKey {
        let (end, _) = self.split(side);
        end.regions.push(Arc::clone(region));
        RegionKey(end.regions.len() as u32)
    }

    pub(crate) fn peer_region(&mut self, side: Side, key: RegionKey) -> Option<Arc<Region>> {
        self.split(side).1.region(key).cloned()
    }

    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    pub(crate) fn submit(&mut self, side: Side, op: Op, now: Instant) -> Result<OpId, Refused> {
        let (conditions, capabilities) = (self.path.conditions(), self.capabilities);
        let op = self.split(side).0.check(op, &capabilities)?;
        let is_payload = !matches!(op, Op::Control(_));
        if is_payload && conditions.refuse.strikes(&mut self.random) {
            self.fault(side, now, "operation refused", || "refuses an operation".to_owned());
            return Err(Refused { op, error: OpError::Unsupported("luck") });
        }
        let due = now + conditions.travel(&mut self.random);
        let id = self.split(side).0.next_id();
        if let Op::Get { region, .. } = &op {
            let corrupt = conditions.corrupt_payload.strikes(&mut self.random);
            let (end, peer) = self.split(side);
            let region = peer.region(*region).cloned();
            end.post_get(id, op, region.as_ref(), due);
            if let Some(get) = end.gets.back_mut().filter(|get| get.op == id) {
                get.corrupt = corrupt;
            }
            if corrupt {
                self.record.count("payload corrupted");
            }
        } else {
            self.split(side).0.post(id, op);
        }
        Ok(id)
    }

    pub(crate) fn cancel(&mut self, side: Side, op: OpId, now: Instant) {
        let lingers = self.capabilities.lingers;
        self.split(side).0.cancel(op, lingers, now);
    }

    pub(crate) fn close(&mut self, side: Side, now: Instant) {
        let (end, _) = self.split(side);
        if matches!(end.phase, Phase::Open) {
            end.phase = Phase::Closing;
            end.fail_payload(&CloseReason::Local, now);
        }
    }

    /// The end is gone without a word. What it held is handed out, to be dropped outside the lock.
    pub(crate) fn die(&mut self, side: Side, now: Instant) -> impl Sized + use<> {
        let conditions = self.path.conditions();
        let was_over = self.split(side).0.is_over();
        if !was_over {
            self.note(side, now, || "dies".to_owned());
        }
        let (mut random, record) = (self.random.fork(), self.record.clone());
        let (end, peer) = self.split(side);
        end.streams.iter().for_each(|stream| stream.source.stop());
        let abandoned = std::mem::replace(end, End::gone());
        if !was_over && conditions.lose_tail.strikes(&mut random) {
            record.count("tail lost");
            peer.inbound.lose_tail(&mut random);
        }
        peer.inbound.send_end(now, &conditions, &mut random);
        peer.wake = true;
        abandoned
    }

    /// Both ends lose the other at once; what has not arrived is lost.
    pub(crate) fn reset(&mut self, now: Instant) {
        self.fault(Side::Near, now, "link reset", || "is reset".to_owned());
        for end in [&mut self.near, &mut self.far] {
            if !end.is_over() {
                end.inbound.cut_off(now);
                let error = io::Error::from(io::ErrorKind::ConnectionReset);
                end.end(CloseReason::Lost(Arc::new(error)), now);
            }
        }
    }

    /// Bounded work for both ends; reports to `side`. Gives the time of the next work, if any.
    pub(crate) fn progress(
        &mut self,
        side: Side,
        now: Instant,
        events: &mut Vec<LinkEvent>,
    ) -> Option<Instant> {
        if self.doom.is_some_and(|doom| doom <= now) {
            self.doom = None;
            self.reset(now);
        }
        let conditions = self.path.conditions();
        self.send(side, now, &conditions);
        self.deliver(side, now, &conditions, events);
        // Room was made.
        self.send(side.peer(), now, &conditions);
        self.pull(side, now, &conditions);
        self.finish_closing(side, now, &conditions);
        let cut = self.path.is_cut();
        let (end, _) = self.split(side);
        end.report(now, events);
        end.wake = false;
        let next = end.next_due(cut);
        let doom = self.doom.filter(|_| !self.split(side).0.is_over());
        next.into_iter().chain(doom).min()
    }

    /// Lets control leave, then payload, as far as there is room under way.
    fn send(&mut self, side: Side, now: Instant, conditions: &Conditions) {
        self.send_control(side, now, conditions);
        self.send_payload(side, now, conditions);
    }

    fn send_control(&mut self, side: Side, now: Instant, conditions: &Conditions) {
        loop {
            let (end, peer) = self.split(side);
            let room = end.outbox.front();
            if !room.is_some_and(|(_, frame)| peer.inbound.has_room_for_control(frame.len())) {
                return;
            }
            let Some((op, frame)) = end.outbox.pop_front() else { return };
            let report = now + conditions.completion(&mut self.random);
            self.split(side).0.complete(op, OpMemory::None, Ok(0), report);
            for frame in self.as_sent(side, frame, now, conditions) {
                self.put_control(side, frame, now, conditions);
            }
        }
    }

    /// What becomes of a frame: usually itself.
    fn as_sent(
        &mut self,
        side: Side,
        frame: Bytes,
        now: Instant,
        conditions: &Conditions,
    ) -> Vec<Bytes> {
        if self.doom.is_none() && conditions.doom.strikes(&mut self.random) {
            let micros = self.random.u64(0..=DOOM_MAX.as_micros() as u64);
            self.doom = Some(now + Duration::from_micros(micros));
            self.fault(side, now, "link broken", || "breaks".to_owned());
            let (end, peer) = self.split(side);
            (end.wake, peer.wake) = (true, true);
        }
        if self.doom.is_some() {
            match self.random.u8(0..3) {
                0 => {
                    self.fault(side, now, "frame lost", || format!("loses {}", describe(&frame)));
                    return vec![];
                }
                1 => {
                    self.fault(side, now, "frame doubled", || {
                        format!("doubles {}", describe(&frame))
                    });
                    return vec![frame.clone(), frame];
                }
                _ => {}
            }
        }
        if conditions.corrupt_control.strikes(&mut self.random) && !frame.is_empty() {
            self.fault(side, now, "frame corrupted", || format!("corrupts {}", describe(&frame)));
            let mut changed = BytesMut::from(&frame[..]);
            let at = self.random.usize(0..changed.len());
            changed[at] ^= 1 << self.random.u8(0..8);
            return vec![changed.freeze()];
        }
        vec![frame]
    }

    fn put_control(&mut self, side: Side, frame: Bytes, now: Instant, conditions: &Conditions) {
        let behind = self.capabilities.lingers;
        let mut random = self.random.fork();
        let (_, peer) = self.split(side);
        if peer.is_over() {
            return;
        }
        peer.inbound.send_control(frame, now, conditions, behind, &mut random);
        peer.wake = true;
    }

    fn send_payload(&mut self, side: Side, now: Instant, conditions: &Conditions) {
        let lingers = self.capabilities.lingers;
        let (mut random, record) = (self.random.fork(), self.record.clone());
        let (end, peer) = self.split(side);
        while peer.inbound.has_room_for_payload() {
            // Those that are out wait in the queue too, and lose their turn.
            let Some(at) = end.streams.iter().position(|stream| !stream.is_out()) else { return };
            let Some(mut stream) = end.streams.remove(at) else { return };
            let offset = stream.position();
            let len = stream.leave(conditions.piece_len(&mut random));
            end.stats.add_sent(len as u64);
            let corrupt = offset == 0 && conditions.corrupt_payload.strikes(&mut random);
            if corrupt {
                record.count("payload corrupted");
            }
            let (tag, source, last) = (stream.tag, stream.source.clone(), stream.is_out());
            let digest = stream.digest();
            let piece = Piece { tag, source, offset, len, last, digest, corrupt };
            // Where nobody is there any more, the sender hears of it in time.
            if !peer.is_over() {
                peer.inbound.send_piece(piece, now, conditions, &mut random);
                peer.wake = true;
            }
            if last && lingers {
                end.stream_done(stream, now + conditions.completion(&mut random));
            } else {
                end.streams.push_back(stream);
            }
        }
    }

    /// Takes what has arrived.
    fn deliver(
        &mut self,
        side: Side,
        now: Instant,
        conditions: &Conditions,
        events: &mut Vec<LinkEvent>,
    ) {
        let (mut frames, mut bytes) = (0, 0);
        while frames < FRAMES_A_POLL && bytes < PAYLOAD_A_POLL && !self.path.is_cut() {
            let (end, _) = self.split(side);
            if end.is_over() {
                return;
            }
            match end.inbound.pop(now) {
                None => return,
                Some(Parcel::Control(frame)) => {
                    frames += 1;
                    self.note(side.peer(), now, || describe(&frame));
                    events.push(LinkEvent::Received(frame));
                    // The peer may have frames that wait for the room.
                    let (_, peer) = self.split(side);
                    peer.wake |= !peer.outbox.is_empty();
                }
                Some(Parcel::Piece(piece)) => {
                    bytes += piece.len;
                    self.deliver_piece(side, &piece, now, conditions);
                }
                Some(Parcel::End) => {
                    self.note(side.peer(), now, || "is gone".to_owned());
                    self.split(side).0.end(CloseReason::PeerGone, now);
                }
            }
        }
    }

    fn deliver_piece(&mut self, side: Side, piece: &Piece, now: Instant, conditions: &Conditions) {
        let reports = [(); 2].map(|()| now + conditions.completion(&mut self.random));
        let (end, peer) = self.split(side);
        peer.wake |= !peer.streams.is_empty();
        if piece.source.is_stopped() {
            return;
        }
        match end.take_piece(piece, reports[0]) {
            Ok(same) => {
                if piece.last {
                    peer.stream_arrived(&piece.source, reports[1]);
                }
                // Of an end that is over nobody can be asked to keep its memory.
                if !same && !peer.is_over() {
                    let what = format!("payload of tag {} changed while it was read", piece.tag.0);
                    self.find(side.peer(), now, what);
                }
            }
            Err(violation) => {
                let mut random = self.random.fork();
                let (end, peer) = self.split(side);
                end.end(CloseReason::Violated(violation.clone()), now);
                peer.inbound.send_end(now, conditions, &mut random);
                peer.wake = true;
                self.note(side, now, || format!("ends: {violation}"));
            }
        }
    }

    /// Pulls what is due, by turns.
    fn pull(&mut self, side: Side, now: Instant, conditions: &Conditions) {
        let mut left = PAYLOAD_A_POLL;
        while left > 0 {
            let len = conditions.piece_len(&mut self.random);
            let took = conditions.occupancy(len);
            let report = now + conditions.completion(&mut self.random);
            let (end, peer) = self.split(side);
            let Some(at) = end.gets.iter().position(|get| get.due <= now) else { return };
            let Some(mut get) = end.gets.remove(at) else { return };
            let pulled = get.copy(len, &end.stats);
            peer.stats.add_sent(pulled.len as u64);
            left = left.saturating_sub(pulled.len.max(1));
            get.due = now + took;
            // An end that is over keeps nothing for its peer.
            let finding = (pulled.changed && !peer.is_over())
                .then(|| format!("memory of {:?} changed while it was pulled", get.op));
            if get.is_complete() {
                let op = get.op;
                let (room, digest) = get.into_room();
                end.complete(op, OpMemory::Room(room), Ok(digest), report);
            } else {
                end.gets.push_back(get);
            }
            if let Some(what) = finding {
                self.find(side, now, what);
            }
        }
    }

    fn finish_closing(&mut self, side: Side, now: Instant, conditions: &Conditions) {
        let mut random = self.random.fork();
        let (end, peer) = self.split(side);
        if matches!(end.phase, Phase::Closing) && end.outbox.is_empty() {
            end.end(CloseReason::Local, now);
            peer.inbound.send_end(now, conditions, &mut random);
            peer.wake = true;
        }
    }

    /// Writes down and keeps what must not be.
    fn find(&self, side: Side, now: Instant, what: String) {
        self.note(side, now, || what.clone());
        self.record.find(what);
    }

    /// Writes down and counts a fault of `side`'s end.
    fn fault(&self, side: Side, now: Instant, kind: &'static str, what: impl FnOnce() -> String) {
        self.record.count(kind);
        self.note(side, now, what);
    }

    /// Writes down what the end of `side` does.
    fn note(&self, side: Side, now: Instant, what: impl FnOnce() -> String) {
        let from = match side {
            Side::Near => 0,
            Side::Far => 1,
        };
        self.trace
            .note(now, || format!("{} > {}: {}", self.names[from], self.names[1 - from], what()));
    }

    fn split(&mut self, side: Side) -> (&mut End, &mut End) {
        match side {
            Side::Near => (&mut self.near, &mut self.far),
            Side::Far => (&mut self.far, &mut self.near),
        }
    }
}
