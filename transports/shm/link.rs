//! The link: one poll moves a bounded amount of everything, and sleeps only when nothing is left.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use blockwire::pool::{Extent, GatherList, PeerMemory, Pull, Region, ScatterList, TransferStats};
use blockwire::transport::{
    Capabilities, CloseReason, Completion, Link, LinkEvent, Op, OpError, OpId, OpMemory, Refused,
    RegionKey, RegisterError, StreamTag, Violation,
};
use bytes::Bytes;

use crate::control::{FRAME_LEN_MAX, Receiver, Sender, completed};
use crate::half::MapError;
use crate::land::Lands;
use crate::lifeline::{Announced, Incoming, Lifeline, LifelineError};
use crate::remote::RemoteRegion;
use crate::spin::{LOOKS, Spin};
use crate::stream::Streams;

/// Payload bytes copied by one poll: half a millisecond, so that control never waits for a gigabyte.
const GET_BYTES: usize = 4 << 20;
/// Most regions that a peer may announce on one link: pools, not requests. The same memory announced again
/// and again costs its owner nothing and this side a thread and page tables each time.
const REGIONS_MAX: usize = 16;
/// A link that moves or spins looks at its socket once in so many polls, before it sleeps always.
const LIFELINE_POLLS: u32 = 256;
/// More than a full socket holds, so that a peer which rings without end does not hold a poll.
const LIFELINE_READS_MAX: usize = 4096;

/// What a shared-memory link can do: leave payload where it is, pull from a pool that is shared, or copy in
/// and out of a ring.
const CAPABILITIES: Capabilities =
    Capabilities { stream: Some(2), get: Some(1), adopt: true, same_host: true, lingers: false };

#[derive(Debug)]
enum State {
    Open,
    /// Closed by this side: accepted control frames still go into the ring.
    Closing,
    /// The peer is gone: so many bytes of its ring are still to be read.
    Draining(usize),
    /// `Closed` was reported.
    Ended(CloseReason),
}

pub(crate) struct ShmLink {
    state: State,
    lifeline: Lifeline,
    sender: Sender,
    receiver: Receiver,
    streams: Streams,
    lands: Lands,
    gets: VecDeque<(OpId, Pull)>,
    /// The peer's regions.
    remote: HashMap<RegionKey, Arc<RemoteRegion>>,
    /// This side's regions; a key is an index.
    registered: Vec<Weak<Region>>,
    /// What happened outside of a poll.
    pending: Vec<LinkEvent>,
    /// The end, where it was noticed outside of a poll.
    failed: Option<CloseReason>,
    next_op: u64,
    polls: u32,
    /// The last poll ended with frames, before payload.
    payload_waits: bool,
    spin: Spin,
    stats: Arc<TransferStats>,
    peer: String,
}

/// What a link is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) lifeline: Lifeline,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) streams: Streams,
    pub(crate) lands: Lands,
    pub(crate) spin: Spin,
    pub(crate) stats: Arc<TransferStats>,
    pub(crate) peer: String,
}

impl ShmLink {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { lifeline, sender, receiver, streams, lands, spin, stats, peer } = parts;
        Self {
            state: State::Open,
            lifeline,
            sender,
            receiver,
            streams,
            lands,
            gets: VecDeque::new(),
            remote: HashMap::new(),
            registered: Vec::new(),
            pending: Vec::new(),
            failed: None,
            next_op: 0,
            polls: 0,
            payload_waits: false,
            spin,
            stats,
            peer,
        }
    }

    /// Why operations are refused now, if they are.
    fn closed(&self) -> Option<CloseReason> {
        match &self.state {
            State::Open => self.failed.clone(),
            State::Closing => Some(CloseReason::Local),
            State::Draining(_) => Some(CloseReason::PeerGone),
            State::Ended(reason) => Some(reason.clone()),
        }
    }

    fn take_op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    fn submit_control(&mut self, frame: Bytes) -> Result<OpId, Refused> {
        if frame.len() > FRAME_LEN_MAX {
            let error = OpError::ControlTooLong(frame.len());
            return Err(Refused { op: Op::Control(frame), error });
        }
        let op = self.take_op();
        self.sender.push(op, frame);
        Ok(op)
    }

    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    fn submit_land(&mut self, tag: StreamTag, room: ScatterList) -> Result<OpId, Refused> {
        if !self.lands.rises(tag) {
            return Err(Refused { op: Op::Land { tag, room }, error: OpError::TagReused(tag) });
        }
        let op = self.take_op();
        self.lands.post(op, tag, room, &mut self.pending);
        Ok(op)
    }

    fn submit_stream(&mut self, tag: StreamTag, payload: GatherList) -> OpId {
        let op = self.take_op();
        self.streams.push(op, tag, payload, &mut self.pending);
        op
    }

    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    fn submit_get(
        &mut self,
        key: RegionKey,
        extents: Vec<Extent>,
        room: ScatterList,
    ) -> Result<OpId, Refused> {
        let refused =
            |extents, room, error| Refused { op: Op::Get { region: key, extents, room }, error };
        let Some(region) = self.remote_region(key) else {
            return Err(refused(extents, room, OpError::UnknownRegion(key)));
        };
        let pull = Pull::new(region, extents, room)
            .map_err(|(extents, room)| refused(extents, room, OpError::BadExtents))?;
        let op = self.take_op();
        self.gets.push_back((op, pull));
        Ok(op)
    }

    /// A region of the peer. Its announcement came before the frame that named it, so it is in the
    /// socket at the latest.
    fn remote_region(&mut self, key: RegionKey) -> Option<Arc<RemoteRegion>> {
        if !self.remote.contains_key(&key)
            && let Err(reason) = self.read_lifeline()
        {
            self.failed.get_or_insert(reason);
        }
        self.remote.get(&key).cloned()
    }

    /// Reads what is in the socket. True when there was anything.
    fn read_lifeline(&mut self) -> Result<bool, CloseReason> {
        let mut any = false;
        for _ in 0..LIFELINE_READS_MAX {
            let mut announced = Vec::new();
            let incoming = self.lifeline.receive(&mut announced).map_err(reason)?;
            any |= incoming != Incoming::Empty;
            if !self.take_incoming(&incoming, announced)? {
                break;
            }
        }
        Ok(any)
    }

    /// Takes what was read. True when there may be more.
    fn take_incoming(
        &mut self,
        incoming: &Incoming,
        announced: Vec<Announced>,
    ) -> Result<bool, CloseReason> {
        for Announced { key, len, descriptor } in announced {
            if self.remote.len() >= REGIONS_MAX {
                return Err(Violation::SharedMemory("too many regions").into());
            }
            let region = RemoteRegion::map(descriptor, len).map_err(|error| match error {
                MapError::Violation(violation) => violation.into(),
                MapError::System(error) => CloseReason::Lost(Arc::new(error)),
            })?;
            if self.remote.insert(key, Arc::new(region)).is_some() {
                return Err(Violation::SharedMemory("a region key was used twice").into());
            }
        }
        if *incoming == Incoming::End && !matches!(self.state, State::Draining(_)) {
            self.state = State::Draining(self.receiver.remaining()?);
        }
        Ok(*incoming == Incoming::Some)
    }

    /// A bounded amount of work. True when something moved.
    fn work(&mut self, events: &mut Vec<LinkEvent>) -> Result<bool, CloseReason> {
        self.sender.wake();
        self.receiver.wake();
        self.streams.wake();
        self.lands.wake();
        if let Some(reason) = self.failed.take() {
            return Err(reason);
        }
        if matches!(self.state, State::Draining(_)) {
            return self.receive(events);
        }
        // First what was asked for since the last poll: an answer, more often than not.
        let mut moved = self.send(events)?;
        let received = self.receive(events)?;
        moved |= received;
        // A frame goes to its owner before payload is copied, which has its turn in the next poll.
        self.payload_waits = received && !self.payload_waits;
        if self.payload_waits {
            return Ok(moved);
        }
        if matches!(self.state, State::Open) {
            moved |= self.pass_payload(events)?;
        }
        moved |= self.copy(events);
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LIFELINE_POLLS) {
            moved |= self.read_lifeline()?;
        }
        Ok(moved)
    }

    fn receive(&mut self, events: &mut Vec<LinkEvent>) -> Result<bool, CloseReason> {
        let limit = if let State::Draining(left) = self.state { left } else { usize::MAX };
        let (taken, must_ring) = self.receiver.receive(limit, events)?;
        if let State::Draining(left) = &mut self.state {
            *left = left.saturating_sub(taken);
            // Less than asked for and less than promised: the peer's words changed after its end.
            if *left == 0 || taken == 0 {
                return Err(CloseReason::PeerGone);
            }
        }
        if must_ring {
            self.lifeline.ring();
        }
        Ok(taken > 0)
    }

    fn send(&mut self, events: &mut Vec<LinkEvent>) -> Result<bool, CloseReason> {
        let before = events.len();
        // A frame may name a region: it stays back until the region's announcement has left.
        if self.lifeline.is_flushed() && self.sender.send(events)? {
            self.lifeline.ring();
        }
        if matches!(self.state, State::Closing) && self.sender.is_empty() {
            return Err(CloseReason::Local);
        }
        Ok(events.len() > before)
    }

    fn pass_payload(&mut self, events: &mut Vec<LinkEvent>) -> Result<bool, CloseReason> {
        let (taken, ring_for_space) = self.lands.receive(events)?;
        let (sent, ring_for_bytes) = self.streams.send(events)?;
        if ring_for_space || ring_for_bytes {
            self.lifeline.ring();
        }
        Ok(taken + sent > 0)
    }

    fn copy(&mut self, events: &mut Vec<LinkEvent>) -> bool {
        let mut budget = GET_BYTES;
        while let Some((_, pull)) = self.gets.front_mut().filter(|_| budget > 0) {
            budget -= pull.copy(budget, &self.stats);
            if pull.is_complete()
                && let Some((op, pull)) = self.gets.pop_front()
            {
                let digest = pull.digest();
                events.push(ended(op, pull, Ok(digest)));
            }
        }
        budget < GET_BYTES
    }

    /// Looks at the shared words for a moment. True when there is something to do.
    fn look(&mut self) -> Result<bool, CloseReason> {
        for _ in 0..LOOKS {
            if self.receiver.look()?
                || (self.lifeline.is_flushed() && self.sender.look()?)
                || self.lands.look()?
                || self.streams.look()?
            {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    fn progress(
        &mut self,
        cx: &mut Context<'_>,
        events: &mut Vec<LinkEvent>,
    ) -> Result<Poll<()>, CloseReason> {
        let before = events.len();
        events.append(&mut self.pending);
        let mut moved = self.work(events)?;
        if !moved && events.len() == before && self.spin.is_hot() {
            if self.look()? {
                moved = self.work(events)?;
            } else if self.spin.goes_on() {
                // Behind the runtime's other tasks; what they ask of this link comes first then.
                cx.waker().wake_by_ref();
                return Ok(Poll::Pending);
            }
        }
        if moved || events.len() > before {
            self.spin.heat();
            return Ok(Poll::Ready(()));
        }
        self.sleep(cx)
    }

    /// Prepares for sleep: raises the flags, looks again, and waits for the socket.
    ///
    /// Whatever the socket held was rung for, so it means another poll: a doorbell that was read and
    /// not acted upon would be a lost wake-up.
    fn sleep(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, CloseReason> {
        if matches!(self.state, State::Draining(_)) {
            return Ok(Poll::Ready(()));
        }
        if self.receiver.sleep()? || (self.lifeline.is_flushed() && self.sender.sleep()?) {
            return Ok(Poll::Ready(()));
        }
        let open = matches!(self.state, State::Open);
        if open && (self.lands.sleep()? || self.streams.sleep()?) {
            return Ok(Poll::Ready(()));
        }
        if self.lifeline.poll_flush(cx) {
            return Ok(Poll::Ready(()));
        }
        let mut announced = Vec::new();
        match self.lifeline.poll_receive(cx, &mut announced) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(incoming) => {
                self.take_incoming(&incoming.map_err(reason)?, announced)?;
                Ok(Poll::Ready(()))
            }
        }
    }

    /// Reports the end: every operation first, `Closed` last.
    fn end(&mut self, reason: CloseReason, events: &mut Vec<LinkEvent>) {
        tracing::debug!(peer = %self.peer, %reason, "shm link closed");
        self.lifeline.shut_down();
        self.sender.abandon(&reason, events);
        self.abandon_payload(&reason, events);
        self.remote.values().for_each(|region| region.stop_faulting_in());
        self.remote.clear();
        events.push(LinkEvent::Closed(reason.clone()));
        self.state = State::Ended(reason);
    }

    fn abandon_payload(&mut self, reason: &CloseReason, events: &mut Vec<LinkEvent>) {
        self.streams.abandon(reason, events);
        self.lands.abandon(reason, events);
        for (op, pull) in self.gets.drain(..) {
            events.push(ended(op, pull, Err(OpError::Closed(reason.clone()))));
        }
    }
}

impl Link for ShmLink {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn stats(&self) -> &Arc<TransferStats> {
        &self.stats
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<RegionKey, RegisterError> {
        if region.shared_file().is_none() {
            return Err(RegisterError::PrivatePages);
        }
        if self.closed().is_some() {
            let gone = io::Error::from(io::ErrorKind::NotConnected);
            return Err(RegisterError::System(Arc::new(gone)));
        }
        let known = |known: &Weak<Region>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(region));
        if let Some(index) = self.registered.iter().position(known) {
            return Ok(RegionKey(index as u32));
        }
        if self.registered.len() >= REGIONS_MAX {
            let full = io::Error::from(io::ErrorKind::QuotaExceeded);
            return Err(RegisterError::System(Arc::new(full)));
        }
        let key = RegionKey(self.registered.len() as u32);
        self.registered.push(Arc::downgrade(region));
        self.lifeline.announce(key, region);
        Ok(key)
    }

    fn peer_memory(&mut self, key: RegionKey) -> Option<Arc<dyn PeerMemory>> {
        self.remote_region(key).map(|region| region as Arc<dyn PeerMemory>)
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Refused> {
        if let Some(reason) = self.closed() {
            return Err(Refused { op, error: OpError::Closed(reason) });
        }
        match op {
            Op::Control(frame) => self.submit_control(frame),
            Op::Get { region, extents, room } => self.submit_get(region, extents, room),
            Op::Stream { tag, payload } => Ok(self.submit_stream(tag, payload)),
            Op::Land { tag, room } => self.submit_land(tag, room),
        }
    }

    fn cancel(&mut self, op: OpId) {
        if self.sender.cancel(op) {
            self.pending.push(completed(op, Err(OpError::Cancelled)));
        }
        self.streams.cancel(op, &mut self.pending);
        self.lands.cancel(op, &mut self.pending);
        let found = self.gets.iter().position(|(get, _)| *get == op);
        if let Some((op, pull)) = found.and_then(|index| self.gets.remove(index)) {
            self.pending.push(ended(op, pull, Err(OpError::Cancelled)));
        }
    }

    fn close(&mut self) {
        if matches!(self.state, State::Open) {
            self.state = State::Closing;
            let mut events = std::mem::take(&mut self.pending);
            self.abandon_payload(&CloseReason::Local, &mut events);
            self.pending = events;
        }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        if matches!(self.state, State::Ended(_)) {
            return Poll::Pending;
        }
        self.progress(cx, events).unwrap_or_else(|reason| {
            self.end(reason, events);
            Poll::Ready(())
        })
    }
}

impl fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmLink")
            .field("peer", &self.peer)
            .field("state", &self.state)
            .field("gets", &self.gets.len())
            .finish_non_exhaustive()
    }
}

/// The end of a pull, with its room.
fn ended(op: OpId, pull: Pull, outcome: Result<u64, OpError>) -> LinkEvent {
    let memory = OpMemory::Room(pull.into_room());
    LinkEvent::Completed(Completion { op, memory, outcome })
}

fn reason(error: LifelineError) -> CloseReason {
    match error {
        LifelineError::Violation(violation) => violation.into(),
        LifelineError::System(error) => CloseReason::Lost(Arc::new(error)),
    }
}
