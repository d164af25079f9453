//! The protocol between two sides, as a pure state machine: no sockets, no clock, no threads.
//!
//! Events go in ([`Session::handle_event`], [`Session::handle_time`] and the calls of the user), actions
//! for the link come out ([`Session::poll_action`]), and so do notices for the user
//! ([`Session::poll_notice`]).
//!
//! ```text
//!   sender                                   receiver
//!   HELLO  ───────────────────────────────>  <── HELLO        versions, identity, geometry
//!   offer()   RTS {manifest}  ────────────>  Notice::Offered
//!                                            accept(): blocks reserved, Land posted (push)
//!             <──────────── RTR {tag, from}            or Get started (pull, tag 0)
//!   Stream ═══════ payload ═══════════════>  or Get ═══════ payload
//!             ATP {digest} ───────────────>  digests agree: Notice::Landed
//!             <──────────────────────── ATS  commit()
//!
//!   a sequence that is still computed: its RTS says how long it is, and in which pieces it comes
//!   offer_stream() RTS {pieces}  ────────>  accept(): all blocks reserved, a Land posted for each piece
//!             <──────────── RTR {first tag, from}
//!   push()    Stream, Stream, ... ════════>  what has arrived is nobody's yet; by layers, where the cut says so
//!   finish_offer()  ATP {digest of all, closing} ─>  digests agree: Notice::Landed
//!
//!   adopted blocks stay here                 and are read there, in place
//!             RECALL (pools run short) ───>  copy them home
//!             <──────────────────── RELEASE  the last reader is gone
//! ```
//! A finished sequence that is pushed is one piece, and goes the same way.
//!
//! The receiver ends every offer with exactly one `ATS` or `DECLINE`. The sender may `WITHDRAW` at any
//! time before; the blocks of a pulled payload stay with the offer until the receiver's last word or
//! the end of the link, since only then nobody reads them. Where the link lingers, those of a pushed one
//! stay until the commit, or else until the peer has answered a ping that followed the payload. Blocks
//! that the receiver adopted stay under their lease until it releases them. The lease is revoked when the
//! link ends, or when blocks that were recalled do not come back in time.

mod bounds;
mod error;
mod identity;
mod incoming;
mod outgoing;
mod pieces;
mod source;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

pub use error::{DeclineCode, LandError, OfferError, SessionEnd, SessionViolation};
pub use identity::{Identity, Mismatch, PoolAccess, SESSION_VERSIONS};
pub use incoming::{Landed, Manifest};
pub use outgoing::Committed;
pub use pieces::PieceCut;
pub use source::{OfferPayload, OfferStream};

use crate::pool::{Lease, PeerMemory, PeerPool};
use crate::transport::{
    Capabilities, Completion, LinkEvent, Op, OpError, OpId, OpMemory, Refused, RegionKey, Violation,
};
use crate::wire::{BodyError, Header, Kind, body, decode_body, encode_frame, split_frame};
use bounds::{Answers, keep, said};
use incoming::Incoming;
use outgoing::{Lent, Outgoing};

/// A handoff on a connection: the request, and which try of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandoffKey {
    /// The request.
    pub request: Uuid,
    /// Grows with every retry.
    pub epoch: u32,
}

/// How long a session waits for its peer.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Longest wait for the peer's hello.
    pub hello_timeout: Duration,
    /// Silence after which a ping is sent.
    pub ping_interval: Duration,
    /// Silence after which the peer counts as gone.
    pub silence_max: Duration,
    /// Longest wait for blocks that were recalled; then their lease is revoked.
    pub recall_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            hello_timeout: Duration::from_secs(5),
            ping_interval: Duration::from_secs(5),
            silence_max: Duration::from_secs(20),
            recall_max: Duration::from_secs(20),
        }
    }
}

/// What an operation was submitted for; goes back into the session with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purpose(PurposeKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PurposeKind {
    Control,
    /// A frame that the peer asked for.
    Answer,
    /// A piece of an offer of this side's.
    Send(HandoffKey, usize),
    /// A piece of an offer of the peer's.
    Receive(HandoffKey, usize),
}

/// What the session wants done to its link.
#[derive(Debug)]
pub enum Action {
    /// Submit, then call [`Session::accepted`] or [`Session::refused`].
    Submit(Op, Purpose),
    /// Look up a region of the peer's, then call [`Session::mapped`].
    Map(RegionKey),
    /// Cancel.
    Cancel(OpId),
    /// Close the link in order.
    Close,
}

/// A message of the layer above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMessage {
    /// The request that it belongs to.
    pub request: Uuid,
    /// Generation of the request.
    pub epoch: u32,
    /// Kind, as the layer above numbers them.
    pub kind: u32,
    /// Content.
    pub body: Bytes,
}

/// What the user of a session should know.
#[derive(Debug)]
pub enum Notice {
    /// The hellos fit: the session is open.
    Ready(Identity),
    /// The peer offers a handoff.
    Offered(HandoffKey, Manifest),
    /// An accepted payload is here, whole and checked. Nothing is committed yet.
    Landed(HandoffKey, Landed),
    /// An offer of the peer is over before its commit.
    LandFailed(HandoffKey, LandError),
    /// An offer of this side is over.
    OfferEnded(HandoffKey, Result<Committed, OfferError>),
    /// A message arrived.
    Message(PeerMessage),
    /// The session is over; nothing follows.
    Ended(SessionEnd),
}

/// Counters of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Frames of handoffs that are over, dropped.
    pub late_frames: u64,
    /// Offers that are withdrawn but whose blocks a peer may still read.
    pub offers_in_quarantine: u64,
    /// Blocks that the peer reads in place.
    pub blocks_lent: u64,
    /// Leases that were revoked because recalled blocks did not come back.
    pub leases_revoked: u64,
}

/// One side of a connection.
#[derive(Debug)]
pub struct Session {
    identity: Identity,
    /// Who the link proved the peer to be.
    authenticated: Option<Uuid>,
    capabilities: Capabilities,
    access: Option<PoolAccess>,
    peer_access: Option<PoolAccess>,
    peer_pool: Option<Arc<PeerPool>>,
    timing: Timing,
    phase: Phase,
    outgoing: BTreeMap<HandoffKey, Outgoing>,
    incoming: BTreeMap<HandoffKey, Incoming>,
    /// What the peer adopted, oldest first.
    lent: Vec<Lent>,
    /// What this side adopted.
    adopted: BTreeMap<HandoffKey, Weak<Lease>>,
    /// What the link has of payloads. Nobody goes through it, so its order is none.
    moving: HashMap<OpId, Purpose>,
    last_tag: u64,
    last_fence: u64,
    answers: Answers,
    actions: VecDeque<Action>,
    notices: VecDeque<Notice>,
    counters: SessionCounters,
    heard: Instant,
    pinged: bool,
}

#[derive(Debug)]
enum Phase {
    AwaitHello { until: Instant },
    Open,
    Ended(SessionEnd),
}

impl Session {
    /// Opens a session over a fresh link; the first action sends the hello.
    ///
    /// `access` says how the peer reaches this side's pool, where it can.
    pub fn new(
        identity: Identity,
        capabilities: Capabilities,
        access: Option<PoolAccess>,
        timing: Timing,
        now: Instant,
    ) -> Self {
        let hello = identity.to_hello(access.as_ref());
        let mut session = Self {
            identity,
            authenticated: None,
            capabilities,
            access,
            peer_access: None,
            peer_pool: None,
            timing,
            phase: Phase::AwaitHello { until: now + timing.hello_timeout },
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            lent: Vec::new(),
            adopted: BTreeMap::new(),
            moving: HashMap::new(),
            last_tag: 0,
            last_fence: 0,
            answers: Answers::default(),
            actions: VecDeque::new(),
            notices: VecDeque::new(),
            counters: SessionCounters::default(),
            heard: now,
            pinged: false,
        };
        session.send_own(Kind::Hello, &hello);
        session
    }

    /// Takes only a hello of this instance, where the link proved one.
    #[must_use]
    pub fn with_authenticated(self, instance: Option<Uuid>) -> Self {
        Self { authenticated: instance, ..self }
    }

    /// The next thing to do to the link.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing that the user should know.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Counters, now.
    pub fn counters(&self) -> SessionCounters {
        let withdrawn = self.outgoing.values().filter(|offer| offer.is_withdrawn()).count();
        let lent = self.lent.iter().map(|lent| lent.grant.blocks() as u64).sum();
        SessionCounters {
            offers_in_quarantine: withdrawn as u64,
            blocks_lent: lent,
            ..self.counters
        }
    }

    /// Why the session is over, if it is.
    pub fn end(&self) -> Option<&SessionEnd> {
        if let Phase::Ended(end) = &self.phase { Some(end) } else { None }
    }

    /// Whether any memory is still with the link or promised to the peer.
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty() && self.lent.is_empty()
    }

    /// The answer to an [`Action::Map`].
    pub fn mapped(&mut self, memory: Option<Arc<dyn PeerMemory>>) {
        let shape = self.peer_access.as_ref().map(|access| access.shape.clone());
        let pool = memory.zip(shape).and_then(|(memory, shape)| PeerPool::new(memory, shape));
        self.peer_pool = pool.map(Arc::new);
    }

    /// The link took the operation of an [`Action::Submit`].
    pub fn accepted(&mut self, op: OpId, purpose: Purpose) {
        match purpose.0 {
            PurposeKind::Control => {}
            PurposeKind::Answer => self.answers.accepted(op),
            PurposeKind::Send(key, index) => {
                self.moving.insert(op, purpose);
                self.send_accepted(key, index, op);
            }
            PurposeKind::Receive(key, index) => {
                self.moving.insert(op, purpose);
                self.receive_accepted(key, index, op);
            }
        }
    }

    /// The link refused the operation of an [`Action::Submit`].
    pub fn refused(&mut self, refused: Refused, purpose: Purpose) {
        match purpose.0 {
            // A closed link reports its end by itself.
            PurposeKind::Control | PurposeKind::Answer => {}
            PurposeKind::Send(..) | PurposeKind::Receive(..) => {
                drop(refused.op);
                self.moved(purpose, OpMemory::None, Err(refused.error));
            }
        }
    }

    /// Something happened on the link.
    pub fn handle_event(&mut self, event: LinkEvent, now: Instant) {
        match event {
            LinkEvent::Received(frame) => {
                (self.heard, self.pinged) = (now, false);
                if let Err(violation) = self.handle_frame(frame).and_then(|()| self.answers.check())
                {
                    self.finish(SessionEnd::Violated(violation));
                }
            }
            LinkEvent::Completed(completion) => self.handle_completion(completion),
            LinkEvent::Closed(reason) => self.finish(SessionEnd::Link(reason)),
        }
    }

    /// Payload moved on the link: the peer lives, though its frames may wait behind the payload.
    pub fn handle_traffic(&mut self, now: Instant) {
        (self.heard, self.pinged) = (now, false);
    }

    /// Time passed.
    pub fn handle_time(&mut self, now: Instant) {
        self.revoke_overdue(now);
        match &self.phase {
            Phase::AwaitHello { until } if now >= *until => self.finish(SessionEnd::NoHello),
            Phase::Open
                if now >= self.heard + self.timing.silence_max
                    || self.fence_due().is_some_and(|due| now >= due) =>
            {
                self.finish(SessionEnd::Silent);
            }
            Phase::Open if !self.pinged && now >= self.heard + self.timing.ping_interval => {
                self.pinged = true;
                self.send_own(Kind::Ping, &body::Ping::default());
            }
            _ => {}
        }
    }

    /// When [`handle_time`](Self::handle_time) should be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let peer = match &self.phase {
            Phase::AwaitHello { until } => Some(*until),
            Phase::Open if self.pinged => Some(self.heard + self.timing.silence_max),
            Phase::Open => Some(self.heard + self.timing.ping_interval),
            Phase::Ended(_) => None,
        };
        let due = self.lent.iter().filter_map(|lent| lent.due).chain(self.fence_due());
        peer.map(|peer| due.fold(peer, Instant::min))
    }

    /// Sends a message of the layer above.
    ///
    /// # Errors
    /// [`BodyError::TooLong`]; nothing is sent.
    pub fn send_message(&mut self, message: PeerMessage) -> Result<(), BodyError> {
        let header = Header::control(Kind::Message, message.request, message.epoch);
        let body = body::AppMessage { kind: message.kind, body: message.body };
        self.send(encode_frame(header, &body)?);
        Ok(())
    }

    /// Ends the session in order: everything open fails on both sides, the peer reads a goodbye.
    pub fn close(&mut self, reason: &str) {
        if self.end().is_some() {
            return;
        }
        self.send_own(Kind::Goodbye, &body::Goodbye { reason: reason.to_owned() });
        self.finish(SessionEnd::Local);
    }

    fn handle_frame(&mut self, frame: Bytes) -> Result<(), SessionViolation> {
        let (header, body) = split_frame(&frame).map_err(Violation::from)?;
        match (&self.phase, header.kind) {
            (Phase::Ended(_), _) => return Ok(()),
            (Phase::AwaitHello { .. }, Kind::Hello) => {
                let mut hello: body::Hello = decode_body(&header, body)?;
                hello.fingerprint = keep(hello.fingerprint, header.body_len);
                hello.role = keep(hello.role, header.body_len);
                return self.handle_hello(hello);
            }
            (_, Kind::Refuse) => {
                let refuse: body::Refuse = decode_body(&header, body)?;
                self.finish(SessionEnd::RefusedByPeer(said(&refuse.reason)));
                return Ok(());
            }
            (Phase::AwaitHello { .. }, kind) => return Err(SessionViolation::OutOfPlace(kind)),
            (Phase::Open, _) => {}
        }
        let key = HandoffKey { request: header.request, epoch: header.epoch };
        match header.kind {
            Kind::Rts => {
                let mut rts: body::Rts = decode_body(&header, body)?;
                rts.meta = keep(rts.meta, header.body_len);
                self.handle_rts(key, rts)?;
            }
            Kind::Rtr => self.handle_rtr(key, &decode_body(&header, body)?)?,
            Kind::Atp => {
                let mut atp: body::Atp = decode_body(&header, body)?;
                atp.closing = keep(atp.closing, header.body_len);
                self.handle_atp(key, atp)?;
            }
            Kind::Ats => self.handle_ats(key)?,
            Kind::Decline => self.handle_decline(key, decode_body(&header, body)?),
            Kind::Withdraw => self.handle_withdraw(key),
            Kind::Release => self.handle_release(key),
            Kind::Recall => self.handle_recall(key),
            Kind::Message => {
                let body::AppMessage { kind, body } = decode_body(&header, body)?;
                let (request, epoch) = (header.request, header.epoch);
                let body = keep(body, header.body_len);
                self.notices.push_back(Notice::Message(PeerMessage { request, epoch, kind, body }));
            }
            Kind::Ping => {
                let ping: body::Ping = decode_body(&header, body)?;
                let key = HandoffKey { request: Uuid::nil(), epoch: 0 };
                self.send_answer(key, Kind::Pong, &ping);
            }
            Kind::Pong => self.handle_pong(&decode_body(&header, body)?),
            Kind::Goodbye => {
                let goodbye: body::Goodbye = decode_body(&header, body)?;
                self.finish(SessionEnd::Goodbye(said(&goodbye.reason)));
            }
            kind @ (Kind::Hello | Kind::Refuse | Kind::Payload | Kind::Credit) => {
                return Err(SessionViolation::OutOfPlace(kind));
            }
            // A striped link keeps its own frames to itself; other links have none.
            kind @ (Kind::Plan
            | Kind::Replan
            | Kind::Over
            | Kind::Unplanned
            | Kind::Lost
            | Kind::Finish
            | Kind::Ack
            | Kind::Resume
            | Kind::Fence
            | Kind::Fenced
            | Kind::Join
            | Kind::Joined) => return Err(SessionViolation::OutOfPlace(kind)),
        }
        Ok(())
    }

    fn handle_hello(&mut self, hello: body::Hello) -> Result<(), SessionViolation> {
        match identity::check_hello(&self.identity, self.authenticated, hello) {
            Ok((peer, access)) => {
                self.phase = Phase::Open;
                if let Some(access) = &access
                    && self.capabilities.adopt
                {
                    self.actions.push_back(Action::Map(access.region));
                }
                self.peer_access = access;
                self.notices.push_back(Notice::Ready(peer));
            }
            Err(mismatch) => {
                // The peer reads it from its own point of view.
                let reason = format!("{}: {mismatch}", self.identity.name);
                let code = mismatch.code().into();
                self.send_own(Kind::Refuse, &body::Refuse { code, reason });
                self.finish(SessionEnd::Refused(mismatch));
            }
        }
        Ok(())
    }

    fn handle_completion(&mut self, completion: Completion) {
        let Completion { op, memory, outcome } = completion;
        if self.answers.left(op) {
            return;
        }
        if let Some(purpose) = self.moving.remove(&op) {
            self.moved(purpose, memory, outcome);
        }
    }

    /// A piece is through, or will not be.
    fn moved(&mut self, purpose: Purpose, memory: OpMemory, outcome: Result<u64, OpError>) {
        match purpose.0 {
            PurposeKind::Control | PurposeKind::Answer => {}
            PurposeKind::Send(key, index) => self.send_done(key, index, memory, outcome),
            PurposeKind::Receive(key, index) => self.receive_done(key, index, memory, outcome),
        }
    }

    /// Ends the session: fails everything that is open, then closes the link.
    fn finish(&mut self, end: SessionEnd) {
        if self.end().is_some() {
            // Operations that were still with the link have completed by now.
            self.outgoing.clear();
            self.incoming.clear();
            self.lent.clear();
            return;
        }
        let link_is_gone = matches!(end, SessionEnd::Link(_));
        self.phase = Phase::Ended(end.clone());
        self.fail_outgoing(&end, link_is_gone);
        self.fail_incoming(&end, link_is_gone);
        if link_is_gone {
            self.lent.clear();
        }
        self.notices.push_back(Notice::Ended(end));
        self.actions.push_back(Action::Close);
    }

    fn send(&mut self, frame: Bytes) {
        if self.end().is_none() {
            self.actions
                .push_back(Action::Submit(Op::Control(frame), Purpose(PurposeKind::Control)));
        }
    }

    fn send_for(&mut self, key: HandoffKey, kind: Kind, body: &impl prost::Message) {
        let header = Header::control(kind, key.request, key.epoch);
        // The bodies sent this way have a few numbers and a short reason.
        let frame = encode_frame(header, body).expect("a small body fits a frame");
        self.send(frame);
    }

    /// Sends what the peer asked for.
    fn send_answer(&mut self, key: HandoffKey, kind: Kind, body: &impl prost::Message) {
        if self.end().is_none() {
            let header = Header::control(kind, key.request, key.epoch);
            let frame = encode_frame(header, body).expect("a small body fits a frame");
            let purpose = Purpose(PurposeKind::Answer);
            self.actions.push_back(Action::Submit(Op::Control(frame), purpose));
            self.answers.asked();
        }
    }

    fn send_own(&mut self, kind: Kind, body: &impl prost::Message) {
        debug_assert!(body.encoded_len() < crate::wire::BODY_LEN_MAX);
        self.send_for(HandoffKey { request: Uuid::nil(), epoch: 0 }, kind, body);
    }

    fn next_tag(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }
}
