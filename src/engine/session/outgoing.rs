//! The sender's side of a handoff.
//!
//! A payload that is pushed leaves in pieces (see `pieces`), each as soon as its layers of its blocks are there; that of
//! a finished sequence is one piece, and knows no other difference. The link holds a piece's blocks: what left does not
//! depend on what becomes of the sequence.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};

use super::bounds::{CLOSING_LEN_MAX, said};
use super::error::{OfferError, SessionEnd, SessionViolation};
use super::source::{Growing, OfferPayload, OfferStream, Source};
use super::{Action, HandoffKey, Notice, Purpose, PurposeKind, Session};
use crate::pool::{Cursor, Digest, FillingBlock, GatherList, Grant, SealedBlock, Span};
use crate::transport::{Op, OpError, OpId, OpMemory, StreamTag};
use crate::wire::{BodyError, Header, Kind, body, encode_frame};

/// Bytes digested a step for a receiver that pulls, so that other traffic is never held up for long.
const DIGEST_STEP: usize = 2 << 20;

/// What became of an offer that the receiver committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Payload bytes that the link was done with before the sequence was finished.
    pub ahead_len: u64,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    /// Under which the receiver may keep blocks. Dropped before them: whoever reads them under it must be able to
    /// tell before somebody else can write to them.
    grant: Option<Grant>,
    source: Source,
    state: State,
    /// What the last word to the receiver's user is, once every token is there.
    closing: Option<Bytes>,
    /// What the link was done with before that.
    ahead_len: u64,
    /// The user let go: the blocks stay only for as long as somebody may read them.
    withdrawn: bool,
    /// The receiver said its last word.
    answered: bool,
    /// The receiver can reach the blocks by itself, and may do so until its last word.
    reachable: bool,
    /// How many of the first blocks the receiver keeps, if it commits.
    adopted: usize,
    /// Whether the system still reads the blocks for the receiver.
    lingering: Lingering,
    /// The blocks of which it may.
    kept: Vec<GatherList>,
}

/// What is known of bytes that a lingering link was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lingering {
    /// None were given, or the receiver has them.
    No,
    /// The link may leave some under way when it is done.
    UnderWay,
    /// A ping follows them: they are there when it is answered. A peer that goes on talking and does
    /// not answer has until `due`.
    Fenced { nonce: u64, due: Instant },
}

/// Blocks that the peer adopted.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) key: HandoffKey,
    pub(super) grant: Grant,
    /// When they must be back, once they were recalled.
    pub(super) due: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Offered,
    /// The payload is pushed.
    Pushing(Pushing),
    /// The receiver pulls; this side digests what it should get.
    Digesting(Box<Digesting>),
    /// ATP is out.
    Sent,
}

/// A payload on its way to the receiver, piece by piece.
#[derive(Debug)]
struct Pushing {
    /// Of the first piece.
    tag: u64,
    /// Pieces that were not submitted, by their numbers.
    todo: VecDeque<(usize, Span)>,
    /// All of them, in the order of their tags.
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug)]
enum Piece {
    /// Not all of it is there.
    Waiting,
    /// On its way to the link, with so many bytes.
    Submitted(u64),
    /// The link has it.
    With(OpId, u64),
    /// The link is done with it; this is its digest.
    Done(u64),
    /// The link did not send it.
    Failed,
}

impl Pushing {
    fn new(tag: u64, pieces: Vec<Span>) -> Self {
        let waiting = vec![Piece::Waiting; pieces.len()];
        Self { tag, todo: pieces.into_iter().enumerate().collect(), pieces: waiting }
    }

    /// The next piece all of whose bytes are there. Of a range of tokens the later layers wait for the earlier ones;
    /// the ranges do not wait for each other.
    fn take_ready(&mut self, source: &Source) -> Option<(usize, GatherList)> {
        let came = source.came();
        let here = self.todo.iter().take_while(|(_, piece)| piece.tokens.end <= came);
        let mut ready = here.enumerate();
        let (at, index, payload) =
            ready.find_map(|(at, (index, piece))| Some((at, *index, source.gather(piece)?)))?;
        self.todo.remove(at);
        self.pieces[index] = Piece::Submitted(payload.len());
        Some((index, payload))
    }

    /// Whether the link has a piece, or is about to.
    fn is_open(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Submitted(_) | Piece::With(..)))
    }

    /// The digest of the payload, once all of it is out.
    fn digest(&self) -> Option<u64> {
        if !self.todo.is_empty() {
            return None;
        }
        let digest =
            |piece: &Piece| if let Piece::Done(digest) = piece { Some(*digest) } else { None };
        let digests: Option<Vec<u64>> = self.pieces.iter().map(digest).collect();
        Some(Digest::of_parts(&digests?))
    }
}

#[derive(Debug)]
struct Digesting {
    list: GatherList,
    cursor: Cursor,
    digest: Digest,
}

impl Digesting {
    /// Digests some more; false when all is done.
    fn step(&mut self) -> bool {
        let mut bytes = 0;
        for slice in self.list.slices(&self.cursor, DIGEST_STEP) {
            self.digest.update(slice);
            bytes += slice.len();
        }
        self.cursor.advance(self.list.extents(), bytes);
        bytes > 0
    }
}

impl Outgoing {
    fn new(source: Source, reachable: bool, grant: Option<Grant>, closing: Option<Bytes>) -> Self {
        Self {
            grant,
            source,
            state: State::Offered,
            closing,
            ahead_len: 0,
            withdrawn: false,
            answered: false,
            reachable,
            adopted: 0,
            lingering: Lingering::No,
            kept: Vec::new(),
        }
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.withdrawn
    }

    /// Whether the link has some of the payload.
    fn is_with_link(&self) -> bool {
        matches!(&self.state, State::Pushing(pushing) if pushing.is_open())
    }

    fn is_over(&self) -> bool {
        let readable = self.reachable && !self.answered;
        self.withdrawn && !self.is_with_link() && !readable && self.lingering == Lingering::No
    }
}

/// Whether the receiver takes so many bytes with the digest.
fn check_closing(closing: &Bytes) -> Result<(), OfferError> {
    let found = closing.len();
    if found > CLOSING_LEN_MAX { Err(BodyError::TooLong { found }.into()) } else { Ok(()) }
}

impl Session {
    /// Offers the blocks of a finished sequence.
    ///
    /// # Errors
    /// [`OfferError`] when nothing was sent.
    pub fn offer(&mut self, key: HandoffKey, payload: OfferPayload) -> Result<(), OfferError> {
        let OfferPayload { run, meta, closing } = payload;
        check_closing(&closing)?;
        let reachable = self.capabilities.get.is_some() && self.access.is_some();
        let lends = reachable && self.capabilities.adopt;
        let grant = lends.then(|| run.pool().grant()).flatten();
        let mut rts = body::Rts { meta, ..body::Rts::default() };
        if reachable {
            let mut ids = BytesMut::with_capacity(run.blocks().len() * size_of::<u32>());
            run.blocks().for_each(|block| ids.put_u32_le(block.id()));
            rts.blocks = ids.freeze();
            rts.lease = grant.as_ref().map(|grant| {
                let id = grant.id();
                body::Lease { slot: id.slot, generation: id.generation }
            });
        }
        let offer = Outgoing::new(Source::Whole(run), reachable, grant, Some(closing));
        self.open(key, offer, rts)
    }

    /// Offers a sequence while it is computed. [`push`](Self::push) brings its blocks, and
    /// [`finish_offer`](Self::finish_offer) what there is to say at the end; the payload is pushed on every link.
    ///
    /// # Errors
    /// [`OfferError`] when nothing was sent.
    pub fn offer_stream(&mut self, key: HandoffKey, stream: OfferStream) -> Result<(), OfferError> {
        let OfferStream { pool, tokens, cut, meta } = stream;
        let growing = Growing::new(&pool, tokens, cut).ok_or(OfferError::Pieces)?;
        let rts = body::Rts {
            meta,
            piece_tokens: cut.tokens,
            piece_layers: cut.layers,
            layered_from: cut.layered_from as u64,
            ..body::Rts::default()
        };
        self.open(key, Outgoing::new(Source::Growing(growing), false, None, None), rts)
    }

    fn open(&mut self, key: HandoffKey, offer: Outgoing, rts: body::Rts) -> Result<(), OfferError> {
        if let Some(end) = self.end() {
            return Err(OfferError::Ended(end.clone()));
        }
        if self.outgoing.contains_key(&key) || self.lent.iter().any(|lent| lent.key == key) {
            return Err(OfferError::Duplicate);
        }
        let (tokens, order) = (offer.source.tokens() as u64, offer.source.order());
        let rts = body::Rts { tokens, block_tokens: order.block_tokens, ..rts };
        let header = Header::control(Kind::Rts, key.request, key.epoch);
        self.send(encode_frame(header, &rts)?);
        self.outgoing.insert(key, offer);
        Ok(())
    }

    /// Adds blocks to an offer that is computed meanwhile: those that follow the ones before. What of these and
    /// of earlier ones is final, and the receiver waits for, leaves. Of an offer that is over, they are let go.
    pub fn push(&mut self, key: HandoffKey, blocks: Vec<FillingBlock>) {
        let Some(offer) = self.outgoing.get_mut(&key).filter(|offer| !offer.withdrawn) else {
            return;
        };
        let Source::Growing(growing) = &mut offer.source else { return };
        match growing.push(blocks) {
            Ok(()) => self.pump(key),
            Err(error) => self.fail_offer(key, error.into()),
        }
    }

    /// Adds the last blocks of an offer, and what its receiver's user should know with the whole.
    pub fn finish_offer(&mut self, key: HandoffKey, last: Vec<SealedBlock>, closing: Bytes) {
        let Some(offer) = self.outgoing.get_mut(&key).filter(|offer| !offer.withdrawn) else {
            return;
        };
        let Source::Growing(growing) = &mut offer.source else { return };
        let last = last.into_iter().map(FillingBlock::from).collect();
        let whole = growing.push(last).and_then(|()| growing.check_whole());
        match whole.map_err(OfferError::from).and_then(|()| check_closing(&closing)) {
            Ok(()) => {
                offer.closing = Some(closing);
                self.pump(key);
            }
            Err(error) => self.fail_offer(key, error),
        }
    }

    /// Takes an offer back. No notice follows; the blocks are let go as soon as nobody can read them.
    pub fn withdraw(&mut self, key: HandoffKey) {
        if self.stop(key) {
            self.send_for(key, Kind::Withdraw, &body::Withdraw {});
        }
        self.let_go(key);
    }

    /// Ends an offer for a reason of this side's.
    fn fail_offer(&mut self, key: HandoffKey, error: OfferError) {
        if self.stop(key) {
            self.send_for(key, Kind::Withdraw, &body::Withdraw {});
            self.notices.push_back(Notice::OfferEnded(key, Err(error)));
        }
        self.let_go(key);
    }

    /// Pushes no more of an offer; false if that is so already, or it is over.
    fn stop(&mut self, key: HandoffKey) -> bool {
        let Some(offer) = self.outgoing.get_mut(&key) else { return false };
        if std::mem::replace(&mut offer.withdrawn, true) {
            return false;
        }
        offer.source.forget();
        if let State::Pushing(pushing) = &offer.state {
            for piece in &pushing.pieces {
                if let Piece::With(op, _) = piece {
                    self.actions.push_back(Action::Cancel(*op));
                }
            }
        }
        true
    }

    /// Digests some of the payloads that receivers pull. Bounded work; true when there is more to do.
    pub fn work(&mut self) -> bool {
        let mut done = Vec::new();
        let mut more = false;
        for (key, offer) in &mut self.outgoing {
            let State::Digesting(digesting) = &mut offer.state else { continue };
            if !offer.withdrawn && digesting.step() {
                more = true;
            } else {
                done.push((*key, digesting.digest.value()));
            }
        }
        for (key, digest) in done {
            self.all_sent(key, digest);
        }
        more
    }

    pub(super) fn handle_rtr(
        &mut self,
        key: HandoffKey,
        rtr: &body::Rtr,
    ) -> Result<(), SessionViolation> {
        let Some(offer) = self.outgoing.get_mut(&key).filter(|offer| !offer.withdrawn) else {
            self.counters.late_frames += 1;
            return Ok(());
        };
        if !matches!(offer.state, State::Offered) {
            return Err(SessionViolation::OutOfPlace(Kind::Rtr));
        }
        let (from, tokens) = (rtr.needed_from as usize, offer.source.tokens());
        let block_tokens = offer.source.order().block_tokens as usize;
        if from > tokens || (from < tokens && !from.is_multiple_of(block_tokens)) {
            return Err(SessionViolation::BadRange);
        }
        if rtr.adopts {
            if offer.grant.is_none()
                || rtr.tag != 0
                || from == 0
                || !from.is_multiple_of(block_tokens)
            {
                return Err(SessionViolation::BadRange);
            }
            offer.adopted = from / block_tokens;
        }
        let todo = offer.source.pieces(from);
        if rtr.tag == 0 && !todo.is_empty() {
            let (Source::Whole(run), true) = (&offer.source, offer.reachable) else {
                return Err(SessionViolation::OutOfPlace(Kind::Rtr));
            };
            let list = run.gather_from(from).map_err(|_| SessionViolation::BadRange)?;
            offer.state = State::Digesting(Box::new(Digesting {
                list,
                cursor: Cursor::default(),
                digest: Digest::default(),
            }));
            return Ok(());
        }
        if rtr.tag.checked_add(todo.len() as u64).is_none() {
            return Err(SessionViolation::BadRange);
        }
        // What is pushed, only the link reads from here on; what is adopted, the receiver.
        offer.reachable &= rtr.tag == 0;
        offer.source.forget_before(from);
        offer.state = State::Pushing(Pushing::new(rtr.tag, todo));
        self.pump(key);
        Ok(())
    }

    /// Gives the link the pieces whose blocks are there, and tells the receiver when it has had all.
    fn pump(&mut self, key: HandoffKey) {
        let Some(offer) = self.outgoing.get_mut(&key).filter(|offer| !offer.withdrawn) else {
            return;
        };
        let State::Pushing(pushing) = &mut offer.state else { return };
        while let Some((index, payload)) = pushing.take_ready(&offer.source) {
            let op = Op::Stream { tag: StreamTag(pushing.tag + index as u64), payload };
            self.actions.push_back(Action::Submit(op, Purpose(PurposeKind::Send(key, index))));
        }
        let next = pushing.todo.front().map_or(usize::MAX, |(_, piece)| piece.tokens.start);
        offer.source.forget_before(next);
        if let Some(digest) = offer.closing.as_ref().and_then(|_| pushing.digest()) {
            self.all_sent(key, digest);
        }
    }

    pub(super) fn handle_ats(&mut self, key: HandoffKey) -> Result<(), SessionViolation> {
        match self.outgoing.get(&key) {
            None => self.counters.late_frames += 1,
            Some(Outgoing { state: State::Sent, withdrawn, ahead_len, .. }) => {
                if !withdrawn {
                    let committed = Committed { ahead_len: *ahead_len };
                    self.notices.push_back(Notice::OfferEnded(key, Ok(committed)));
                }
                self.lend(key);
            }
            Some(_) => return Err(SessionViolation::OutOfPlace(Kind::Ats)),
        }
        Ok(())
    }

    /// The handoff is over; what the receiver adopted stays under its lease.
    fn lend(&mut self, key: HandoffKey) {
        let Some(Outgoing { source, grant, adopted, .. }) = self.outgoing.remove(&key) else {
            return;
        };
        if let (Source::Whole(run), Some(mut grant)) = (source, grant.filter(|_| adopted > 0)) {
            grant.lend(run.into_first(adopted));
            self.lent.push(Lent { key, grant, due: None });
        }
    }

    pub(super) fn handle_release(&mut self, key: HandoffKey) {
        match self.lent.iter().position(|lent| lent.key == key) {
            Some(index) => drop(self.lent.remove(index)),
            // Of an older life of the lease: it was over already.
            None => self.counters.late_frames += 1,
        }
    }

    /// Asks the peer for the blocks that it has adopted longest ago, of those that it was not asked
    /// for yet. False when there are none.
    pub fn recall_oldest(&mut self, now: Instant) -> bool {
        let due = now + self.timing.recall_max;
        let Some(oldest) = self.lent.iter_mut().find(|lent| lent.due.is_none()) else {
            return false;
        };
        oldest.grant.recall();
        oldest.due = Some(due);
        let key = oldest.key;
        self.send_for(key, Kind::Recall, &body::Recall {});
        true
    }

    /// Whether blocks are lent that were not asked for yet.
    pub fn can_recall(&self) -> bool {
        self.end().is_none() && self.lent.iter().any(|lent| lent.due.is_none())
    }

    /// Takes blocks back that the peer keeps for too long: it can tell, and must not trust what it read.
    pub(super) fn revoke_overdue(&mut self, now: Instant) {
        let before = self.lent.len();
        self.lent.retain(|lent| lent.due.is_none_or(|due| now < due));
        let revoked = before - self.lent.len();
        if revoked > 0 {
            tracing::warn!(leases = revoked, "recalled blocks did not come back: taken back");
        }
        self.counters.leases_revoked += revoked as u64;
    }

    pub(super) fn handle_decline(&mut self, key: HandoffKey, decline: body::Decline) {
        let code = decline.code();
        let Some(offer) = self.outgoing.get_mut(&key) else {
            self.counters.late_frames += 1;
            return;
        };
        offer.answered = true;
        if self.stop(key) {
            let error = OfferError::Declined { code, reason: said(&decline.reason) };
            self.notices.push_back(Notice::OfferEnded(key, Err(error)));
        }
        self.let_go(key);
    }

    pub(super) fn send_accepted(&mut self, key: HandoffKey, index: usize, id: OpId) {
        let Some(offer) = self.outgoing.get_mut(&key) else { return };
        let State::Pushing(pushing) = &mut offer.state else { return };
        if let Piece::Submitted(len) = pushing.pieces[index] {
            pushing.pieces[index] = Piece::With(id, len);
        }
        if self.capabilities.lingers {
            offer.lingering = Lingering::UnderWay;
        }
        if offer.withdrawn {
            self.actions.push_back(Action::Cancel(id));
        }
    }

    pub(super) fn send_done(
        &mut self,
        key: HandoffKey,
        index: usize,
        memory: OpMemory,
        outcome: Result<u64, OpError>,
    ) {
        let Some(offer) = self.outgoing.get_mut(&key) else { return };
        let State::Pushing(pushing) = &mut offer.state else { return };
        if let (OpMemory::Payload(list), true) = (memory, offer.lingering != Lingering::No) {
            offer.kept.push(list);
        }
        let before = std::mem::replace(&mut pushing.pieces[index], Piece::Failed);
        match outcome {
            Ok(digest) => {
                pushing.pieces[index] = Piece::Done(digest);
                if let (Piece::With(_, len), None) = (before, &offer.closing) {
                    offer.ahead_len += len;
                }
                if offer.withdrawn { self.let_go(key) } else { self.pump(key) }
            }
            Err(error) => self.fail_offer(key, error.into()),
        }
    }

    /// The session ends: tells the user, and keeps what a peer may still read until the link is gone.
    pub(super) fn fail_outgoing(&mut self, end: &SessionEnd, link_is_gone: bool) {
        for (key, offer) in &mut self.outgoing {
            offer.source.forget();
            if !std::mem::replace(&mut offer.withdrawn, true) {
                let error = OfferError::Ended(end.clone());
                self.notices.push_back(Notice::OfferEnded(*key, Err(error)));
            }
        }
        if link_is_gone {
            self.outgoing.clear();
        }
    }

    /// All payload is out: the digest follows it.
    fn all_sent(&mut self, key: HandoffKey, digest: u64) {
        let Some(offer) = self.outgoing.get_mut(&key) else { return };
        offer.state = State::Sent;
        if offer.withdrawn {
            self.let_go(key);
        } else {
            let closing = offer.closing.clone().unwrap_or_default();
            self.send_for(key, Kind::Atp, &body::Atp { digest, closing });
        }
    }

    /// Drops a withdrawn offer that nobody reads, or asks the peer whether it has what the link was given.
    fn let_go(&mut self, key: HandoffKey) {
        let due = self.heard + 2 * self.timing.silence_max;
        let Some(offer) = self.outgoing.get_mut(&key) else { return };
        if offer.is_over() {
            self.outgoing.remove(&key);
        } else if offer.lingering == Lingering::UnderWay && offer.withdrawn && !offer.is_with_link()
        {
            let nonce = self.last_fence + 1;
            offer.lingering = Lingering::Fenced { nonce, due };
            self.last_fence = nonce;
            self.send_own(Kind::Ping, &body::Ping { nonce });
        }
    }

    /// The peer has all that was sent before a ping.
    pub(super) fn handle_pong(&mut self, pong: &body::Ping) {
        let fenced = |offer: &Outgoing| matches!(offer.lingering, Lingering::Fenced { nonce, .. } if nonce == pong.nonce);
        let found = self.outgoing.iter().find(|(_, offer)| fenced(offer)).map(|(key, _)| *key);
        if let Some(key) = found
            && let Some(offer) = self.outgoing.get_mut(&key)
        {
            offer.lingering = Lingering::No;
            self.let_go(key);
        }
    }

    /// When the peer must have answered for blocks that linger.
    pub(super) fn fence_due(&self) -> Option<Instant> {
        let due = |offer: &Outgoing| match offer.lingering {
            Lingering::Fenced { due, .. } => Some(due),
            _ => None,
        };
        self.outgoing.values().filter_map(due).min()
    }
}
