//! Links of several connections, so that one payload uses several cores of the kernel, several TCP
//! windows, or several interfaces, and outlives the loss of all of them but one.
//!
//! A [`StripedLink`] is a layer above plain links, its *stripes*. It splits payload, keeps control in one
//! order, and knows no socket: whatever a stripe runs over, it is used like any link.
//!
//! ```text
//!              receiver                                       sender
//! Land{tag} ─> split the room; a Land for each part
//!              on a stripe            ──── PLAN{tag} ────>    (then whatever tells the tag)
//!                                                             Stream{tag}: a Stream for each part
//!              stripe 0  <═══════════ part 0 ════════════
//!              stripe 1  <═══════ part 1 ══ x  lost
//!              part 1 posted again    ── REPLAN{1, 2} ──>     Stream part 1 again, from its beginning
//!              stripe 2  <═══════════ part 1 ════════════
//! done      <─ all parts landed       ──── OVER{tag} ────>    done: the memory is free
//! ```
//! - Read in this order: `frame` (what both ends say), `split` (parts and their digest), `land` and `stream`
//!   (the two halves of a payload), `order` (control over changing stripes), `stripes` (the connections),
//!   `events` (what they report, and whom it concerns), `gather` (how a listener finds those of one link),
//!   `growth` (how lost ones are replaced), `redial` and `door` (the dialler's part in that, and the acceptor's).
//! - Control goes over the lowest stripe that lives. Frames are kept until the peer acknowledged them, and go
//!   again over the next stripe (`order`). While two others live, that stripe carries nothing else: then a
//!   control frame never waits behind payload that the system holds, whatever the buffers have grown to.
//! - A stripe that ends by anything but a violation is *lost*. Both ends are told (LOST), so that neither waits
//!   for what the other has given up. A link that lost some is slower until its dialler has dialled others in
//!   their place; one that lost all is dialled again as a whole, like any link. A violation on any ends the
//!   link.
//! - An orderly end is FINISH, the last numbered frame: whoever reads it ends at once, so that stripes which
//!   then end one after the other are not taken for lost ones.

mod dial;
mod door;
mod events;
mod frame;
mod gather;
mod growth;
mod land;
mod order;
mod redial;
mod split;
mod stream;
mod stripes;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use blockwire::pool::{Digest, PeerMemory, Region, TransferStats};
use blockwire::transport::{
    Capabilities, CloseReason, Completion, Link, LinkEvent, Op, OpError, OpId, OpMemory, Refused,
    RegionKey, RegisterError,
};
use uuid::Uuid;

pub(crate) use dial::{Connection, assemble, connect};
pub(crate) use door::Doors;
pub(crate) use gather::Gather;

use self::dial::StripeMaker;
use self::events::Stop;
use self::frame::Frame;
use self::growth::{Grown, Growth};
use self::land::Lands;
use self::order::{Inbox, Outbox};
use self::stream::Streams;
use self::stripes::{Stripes, Use};
use crate::link::TcpLink;
use crate::options::TcpOptions;
use crate::send::control_done;
use crate::stage::Stage;

/// Payload bytes after which a poll leaves the other stripes to the next one: what one stripe moves in a
/// poll. So a link of many keeps the driver from other links for hardly longer than a plain one does.
const POLL_LEN_MAX: u64 = 512 << 10;

/// The mechanism to one peer over several connections.
#[derive(Debug)]
pub(crate) struct StripedLink {
    stripes: Stripes,
    maker: StripeMaker,
    growth: Growth,
    /// The stripe for control.
    control: usize,
    outbox: Outbox,
    inbox: Inbox,
    /// An acknowledgement that the control stripe did not write yet.
    acknowledging: bool,
    lands: Lands,
    streams: Streams,
    stage: Stage,
    /// Stripes that ended since the last look.
    losses: Vec<(usize, CloseReason)>,
    /// What happened outside of a poll.
    pending: Vec<LinkEvent>,
    next_op: u64,
    /// The stripe that is polled first.
    turn: usize,
    capabilities: Capabilities,
    peer: String,
    authenticated: Option<Uuid>,
    stats: Arc<TransferStats>,
    flush_timeout: Duration,
    linger_timeout: Duration,
}

impl StripedLink {
    /// Takes the connections of a link, in the order of their numbers, as the maker made them.
    fn new(links: Vec<TcpLink>, maker: StripeMaker, growth: Growth, options: &TcpOptions) -> Self {
        let first = links.first().expect("a link has a connection");
        let capabilities = Capabilities { lingers: false, ..first.capabilities() };
        let authenticated = first.authenticated_instance();
        maker.stats.set_stripes(links.len() as u64);
        Self {
            peer: format!("{} ({} stripes)", first.peer(), links.len()),
            stripes: Stripes::new(links),
            stats: Arc::clone(&maker.stats),
            maker,
            growth,
            control: 0,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            acknowledging: false,
            lands: Lands::default(),
            streams: Streams::new(options.digest),
            stage: Stage::Open,
            losses: Vec::new(),
            pending: Vec::new(),
            next_op: 0,
            turn: 0,
            capabilities,
            authenticated,
            flush_timeout: options.flush_timeout,
            linger_timeout: options.linger_timeout,
        }
    }

    fn refusal(&self, op: &Op) -> Option<OpError> {
        let reused = |op: &Op| match op {
            Op::Land { tag, .. } if !self.lands.rises(*tag) => Some(OpError::TagReused(*tag)),
            _ => None,
        };
        self.stage.refusal(op).or_else(|| reused(op))
    }

    /// Says something to the other end, in order. After FINISH nothing is said.
    fn say(&mut self, frame: &Frame) {
        if matches!(self.stage, Stage::Open) {
            self.outbox.push(None, frame.encode());
        }
    }

    /// Gives the control stripe what it may have.
    fn pump(&mut self) {
        while self.stripes.lives(self.control)
            && let Some((number, frame)) = self.outbox.hand()
        {
            self.stripes.send(self.control, frame, Use::Numbered(number));
        }
        if let Some(frames) = self.inbox.due().filter(|_| !self.acknowledging) {
            self.inbox.acknowledged(frames);
            let frame = Frame::Ack { frames }.encode();
            self.acknowledging = self.stripes.send(self.control, frame, Use::Ack);
        }
    }

    /// Polls the stripes, that for control first and the others by turns, until enough moved; whether more
    /// can be done at once.
    fn poll_stripes(
        &mut self,
        cx: &mut Context<'_>,
        events: &mut Vec<LinkEvent>,
    ) -> Result<bool, Stop> {
        let moved = |stats: &TransferStats| stats.sent() + stats.landed();
        let before = moved(&self.stats);
        let turns = self.stripes.places_from(self.turn);
        let control = self.stripes.places_from(self.control).take(1);
        let mut more = false;
        for (turn, place) in control.chain(turns).enumerate() {
            let number = self.stripes.at(place).number;
            if turn > 0 && number == self.control {
                continue;
            }
            if moved(&self.stats) - before >= POLL_LEN_MAX {
                self.turn = number;
                return Ok(true);
            }
            let mut came = Vec::new();
            more |= self.stripes.at(place).link.poll_progress(cx, &mut came).is_ready();
            self.take(number, came, events)?;
        }
        self.turn = (self.turn + 1) % self.stripes.reached();
        Ok(more)
    }

    /// Gets stripes in place of lost ones.
    fn grow(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) {
        while matches!(self.stage, Stage::Open)
            && let Poll::Ready(grown) = self.growth.poll(cx)
        {
            match grown {
                Grown::Stripe { number, connection, says } => match self.maker.make(*connection) {
                    Ok(link) => self.add(number, link, &says),
                    Err(error) => {
                        tracing::warn!(%error, "a socket is no good as a stripe");
                        self.growth.lost(number);
                        // A dialler has told nobody of it.
                        if let Frame::Joined { .. } = says {
                            self.say(&Frame::Lost { stripe: number });
                        }
                    }
                },
                Grown::Late { number } => {
                    let came = self.stripes.abort(number, CloseReason::PeerGone);
                    // Only memory is in it: nothing was read.
                    let _ = self.take(number, came, events);
                }
            }
        }
    }

    fn add(&mut self, number: usize, link: TcpLink, says: &Frame) {
        self.stripes.add(number, link);
        self.say(says);
        if let Frame::Joined { .. } = says {
            self.joined(number);
        }
    }

    /// Both sides have a stripe in place of a lost one.
    fn joined(&mut self, stripe: usize) {
        self.stripes.join(stripe);
        let living = self.stripes.living();
        self.stats.set_stripes(living as u64);
        tracing::info!(peer = %self.peer, stripe, living, "a stripe is back");
    }

    /// Whether no stripe is lost.
    fn is_whole(&self) -> bool {
        let lost = |number| self.losses.iter().any(|(lost, _)| *lost == number);
        self.stripes.numbers().filter(|number| !lost(*number)).count() >= self.stripes.width()
    }

    /// Goes on without the stripes that ended.
    ///
    /// # Errors
    /// None is left; why the last one ended.
    fn bury(&mut self, events: &mut Vec<LinkEvent>) -> Result<(), CloseReason> {
        let losses = std::mem::take(&mut self.losses);
        let Some((_, last)) = losses.last().cloned() else { return Ok(()) };
        let lost: Vec<_> =
            losses.into_iter().filter(|(stripe, _)| self.stripes.remove(*stripe)).collect();
        let Some(lowest) = self.stripes.lowest() else { return Err(last) };
        if !self.stripes.lives(self.control) {
            self.control = lowest;
            self.acknowledging = false;
            self.inbox.forget_acknowledgement();
            let number = self.outbox.resume();
            self.stripes.send(lowest, Frame::Resume { number }.encode(), Use::Other);
        }
        let left = self.stripes.living();
        self.stats.set_stripes(left as u64);
        for (stripe, reason) in lost {
            self.growth.lost(stripe);
            if matches!(self.stage, Stage::Open) {
                tracing::warn!(peer = %self.peer, stripe, %reason, left, "a stripe is lost");
            }
            self.say(&Frame::Lost { stripe });
        }
        for replan in self.lands.repost(&mut self.stripes) {
            self.say(&replan);
        }
        self.streams.settle_all(&mut self.stripes, events);
        Ok(())
    }

    /// Ends the link: every operation completes, then `Closed`.
    fn end(&mut self, reason: CloseReason, events: &mut Vec<LinkEvent>) {
        let reason = self.stage.end(reason);
        let error = OpError::Closed(reason.clone());
        self.lands.end_all(&error, &mut self.stripes);
        for stripe in self.stripes.numbers().collect::<Vec<_>>() {
            let came = self.stripes.abort(stripe, reason.clone());
            // Only memory is in it: nothing was read.
            let _ = self.take(stripe, came, events);
            self.stripes.remove(stripe);
        }
        self.lands.abort(&error, events);
        self.streams.abort(&error, events);
        let failed = self.outbox.abort().into_iter();
        events.extend(failed.map(|op| control_done(op, Err(error.clone()))));
        self.growth.end();
        self.stats.set_stripes(0);
        self.stage = Stage::Closed(reason.clone());
        events.push(LinkEvent::Closed(reason));
    }

    /// Goes on with an orderly end; ready when it has come.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.stage, Stage::Flushing(_)) && self.outbox.is_written() {
            self.stage.linger(self.linger_timeout);
        }
        self.stage.poll_overdue(cx, self.flush_timeout)
    }

    /// Makes progress; whether more can be done at once.
    ///
    /// # Errors
    /// Why the link ends.
    fn progress(
        &mut self,
        cx: &mut Context<'_>,
        events: &mut Vec<LinkEvent>,
    ) -> Result<bool, CloseReason> {
        self.pump();
        self.stripes.take_touched();
        let more = self.poll_stripes(cx, events).map_err(|stop| match stop {
            Stop::Finished => CloseReason::PeerGone,
            Stop::Violated(violation) => violation.into(),
        })?;
        self.grow(cx, events);
        self.bury(events)?;
        let digesting = self.streams.work(&mut self.stripes, events);
        self.pump();
        if self.poll_close(cx).is_ready() {
            return Err(CloseReason::Local);
        }
        Ok(more | digesting | self.stripes.take_touched())
    }
}

impl Link for StripedLink {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn stats(&self) -> &Arc<TransferStats> {
        &self.stats
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn authenticated_instance(&self) -> Option<Uuid> {
        self.authenticated
    }

    fn register(&mut self, _region: &Arc<Region>) -> Result<RegionKey, RegisterError> {
        Err(RegisterError::Unsupported)
    }

    fn peer_memory(&mut self, _key: RegionKey) -> Option<Arc<dyn PeerMemory>> {
        None
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Refused> {
        if let Some(error) = self.refusal(&op) {
            return Err(Refused { op, error });
        }
        let id = OpId(self.next_op);
        match op {
            Op::Control(frame) => self.outbox.push(Some(id), frame),
            Op::Stream { tag, payload } => {
                let (stripes, pending) = (&mut self.stripes, &mut self.pending);
                if let Some(unplanned) = self.streams.submit(id, tag, payload, stripes, pending) {
                    self.say(&unplanned);
                }
            }
            Op::Land { room, .. } if room.is_empty() => {
                let (memory, outcome) = (OpMemory::Room(room), Ok(Digest::default().value()));
                let completion = Completion { op: id, memory, outcome };
                self.pending.push(LinkEvent::Completed(completion));
            }
            Op::Land { tag, room } => {
                let plan = self.lands.post(id, tag, room, &mut self.stripes);
                self.say(&plan);
            }
            Op::Get { .. } => return Err(Refused { op, error: OpError::Unsupported("get") }),
        }
        self.next_op += 1;
        Ok(id)
    }

    fn cancel(&mut self, op: OpId) {
        if self.outbox.cancel(op) {
            self.pending.push(control_done(op, Err(OpError::Cancelled)));
        }
        self.streams.cancel(op, &mut self.stripes, &mut self.pending);
        self.lands.cancel(op, &mut self.stripes);
    }

    fn close(&mut self) {
        if matches!(self.stage, Stage::Open) {
            self.say(&Frame::Finish);
            self.stage = Stage::Flushing(None);
            let error = OpError::Closed(CloseReason::Local);
            self.streams.end_all(&error, &mut self.stripes, &mut self.pending);
            self.lands.end_all(&error, &mut self.stripes);
        }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        let before = events.len();
        events.append(&mut self.pending);
        let mut more = false;
        if !matches!(self.stage, Stage::Closed(_)) {
            match self.progress(cx, events) {
                Ok(again) => more = again,
                Err(reason) => self.end(reason, events),
            }
        }
        if more || events.len() > before { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Frames and a digest that the manual writes down.
#[cfg(test)]
pub(crate) fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let frames = frame::examples().map(|(name, frame)| (name, frame.encode().to_vec()));
    let digest = ("digest of parts with the digests 1 and 2", Digest::of_parts(&[1, 2]));
    frames.into_iter().chain([(digest.0, digest.1.to_le_bytes().to_vec())]).collect()
}
