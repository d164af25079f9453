//! The sender's side of a handoff.

use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};

use super::bounds::said;
use super::error::{OfferError, SessionEnd, SessionViolation};
use super::{Action, HandoffKey, Notice, Purpose, PurposeKind, Session};
use crate::pool::{Cursor, Digest, GatherList, Grant, SealedRun};
use crate::transport::{Op, OpError, OpId, StreamTag};
use crate::wire::{Header, Kind, body, encode_frame};

/// Bytes digested a step for a receiver that pulls, so that other traffic is never held up for long.
const DIGEST_STEP: usize = 2 << 20;

/// What is offered.
#[derive(Debug)]
pub struct OfferPayload {
    /// The sequence.
    pub run: SealedRun,
    /// What the receiver's user should know before it decides.
    pub meta: Bytes,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    run: SealedRun,
    state: State,
    /// The user let go: the blocks stay only for as long as somebody may read them.
    withdrawn: bool,
    /// The receiver said its last word.
    answered: bool,
    /// The receiver can reach the blocks by itself, and may do so until its last word.
    reachable: bool,
    /// Under which the receiver may keep blocks.
    grant: Option<Grant>,
    /// How many of the first blocks the receiver keeps, if it commits.
    adopted: usize,
    /// Whether the system still reads the blocks for the receiver.
    lingering: Lingering,
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
    /// The link has the payload.
    Streaming(Option<OpId>),
    /// The receiver pulls; this side digests what it should get.
    Digesting(Box<Digesting>),
    /// ATP is out.
    Sent,
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
    pub(super) fn is_withdrawn(&self) -> bool {
        self.withdrawn
    }

    fn is_over(&self) -> bool {
        let with_link = matches!(self.state, State::Streaming(_));
        let readable = self.reachable && !self.answered;
        self.withdrawn && !with_link && !readable && self.lingering == Lingering::No
    }
}

impl Session {
    /// Offers the blocks of a finished sequence.
    ///
    /// # Errors
    /// [`OfferError`] when nothing was sent.
    pub fn offer(&mut self, key: HandoffKey, payload: OfferPayload) -> Result<(), OfferError> {
        if let Some(end) = self.end() {
            return Err(OfferError::Ended(end.clone()));
        }
        if self.outgoing.contains_key(&key) || self.lent.iter().any(|lent| lent.key == key) {
            return Err(OfferError::Duplicate);
        }
        let OfferPayload { run, meta } = payload;
        let reachable = self.capabilities.get.is_some() && self.access.is_some();
        let lends = reachable && self.capabilities.adopt;
        let grant = lends.then(|| run.pool().grant()).flatten();
        let offer = Outgoing {
            run,
            state: State::Offered,
            withdrawn: false,
            answered: false,
            reachable,
            grant,
            adopted: 0,
            lingering: Lingering::No,
        };
        let mut rts = body::Rts {
            tokens: offer.run.tokens() as u64,
            block_tokens: offer.run.order().block_tokens,
            meta,
            ..body::Rts::default()
        };
        if reachable {
            let mut ids = BytesMut::with_capacity(offer.run.blocks().len() * size_of::<u32>());
            offer.run.blocks().for_each(|block| ids.put_u32_le(block.id()));
            rts.blocks = ids.freeze();
            rts.lease = offer.grant.as_ref().map(|grant| {
                let id = grant.id();
                body::Lease { slot: id.slot, generation: id.generation }
            });
        }
        let header = Header::control(Kind::Rts, key.request, key.epoch);
        self.send(encode_frame(header, &rts)?);
        self.outgoing.insert(key, offer);
        Ok(())
    }

    /// Takes an offer back. No notice follows; the blocks are let go as soon as nobody can read them.
    pub fn withdraw(&mut self, key: HandoffKey) {
        let Some(offer) = self.outgoing.get_mut(&key) else { return };
        if !std::mem::replace(&mut offer.withdrawn, true) {
            self.send_for(key, Kind::Withdraw, &body::Withdraw {});
        }
        self.let_go(key);
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
        let from = rtr.needed_from as usize;
        if rtr.adopts {
            let block_tokens = offer.run.order().block_tokens as usize;
            let whole = from > 0 && from <= offer.run.tokens() && from.is_multiple_of(block_tokens);
            if offer.grant.is_none() || rtr.tag != 0 || !whole {
                return Err(SessionViolation::BadRange);
            }
            offer.adopted = from / block_tokens;
        }
        if from == offer.run.tokens() {
            self.all_sent(key, Digest::default().value());
            return Ok(());
        }
        let list = offer.run.gather_from(from).map_err(|_| SessionViolation::BadRange)?;
        if rtr.tag == 0 {
            if !offer.reachable {
                return Err(SessionViolation::OutOfPlace(Kind::Rtr));
            }
            offer.state = State::Digesting(Box::new(Digesting {
                list,
                cursor: Cursor::default(),
                digest: Digest::default(),
            }));
        } else {
            // From here on only the link reads the blocks.
            offer.reachable = false;
            offer.state = State::Streaming(None);
            let op = Op::Stream { tag: StreamTag(rtr.tag), payload: list };
            self.actions.push_back(Action::Submit(op, Purpose(PurposeKind::Send(key))));
        }
        Ok(())
    }

    pub(super) fn handle_ats(&mut self, key: HandoffKey) -> Result<(), SessionViolation> {
        match self.outgoing.get(&key) {
            None => self.counters.late_frames += 1,
            Some(Outgoing { state: State::Sent, withdrawn, .. }) => {
                if !withdrawn {
                    self.notices.push_back(Notice::OfferEnded(key, Ok(())));
                }
                self.lend(key);
            }
            Some(_) => return Err(SessionViolation::OutOfPlace(Kind::Ats)),
        }
        Ok(())
    }

    /// The handoff is over; what the receiver adopted stays under its lease.
    fn lend(&mut self, key: HandoffKey) {
        let Some(Outgoing { run, grant, adopted, .. }) = self.outgoing.remove(&key) else {
            return;
        };
        if let Some(mut grant) = grant.filter(|_| adopted > 0) {
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
        if !std::mem::replace(&mut offer.withdrawn, true) {
            let error = OfferError::Declined { code, reason: said(&decline.reason) };
            self.notices.push_back(Notice::OfferEnded(key, Err(error)));
        }
        self.let_go(key);
    }

    pub(super) fn send_accepted(&mut self, key: HandoffKey, id: OpId) {
        let Some(offer) = self.outgoing.get_mut(&key) else { return };
        if let State::Streaming(op) = &mut offer.state {
            *op = Some(id);
        }
        if self.capabilities.lingers {
            offer.lingering = Lingering::UnderWay;
        }
        if offer.withdrawn {
            self.actions.push_back(Action::Cancel(id));
        }
    }

    pub(super) fn send_done(&mut self, key: HandoffKey, outcome: Result<u64, OpError>) {
        let Some(offer) = self.outgoing.get_mut(&key) else { return };
        match outcome {
            Ok(digest) => self.all_sent(key, digest),
            Err(error) => {
                offer.state = State::Sent;
                if !std::mem::replace(&mut offer.withdrawn, true) {
                    self.send_for(key, Kind::Withdraw, &body::Withdraw {});
                    self.notices.push_back(Notice::OfferEnded(key, Err(error.into())));
                }
                self.let_go(key);
            }
        }
    }

    pub(super) fn outgoing_of(&self, id: OpId) -> Option<HandoffKey> {
        let streams =
            |offer: &Outgoing| matches!(offer.state, State::Streaming(Some(op)) if op == id);
        self.outgoing.iter().find(|(_, offer)| streams(offer)).map(|(key, _)| *key)
    }

    /// The session ends: tells the user, and keeps what a peer may still read until the link is gone.
    pub(super) fn fail_outgoing(&mut self, end: &SessionEnd, link_is_gone: bool) {
        for (key, offer) in &mut self.outgoing {
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
            self.send_for(key, Kind::Atp, &body::Atp { digest });
        }
    }

    /// Drops a withdrawn offer, or asks its link to be done with it, or the peer whether it has what the
    /// link was given.
    fn let_go(&mut self, key: HandoffKey) {
        let due = self.heard + 2 * self.timing.silence_max;
        let Some(offer) = self.outgoing.get_mut(&key) else { return };
        match offer.state {
            _ if offer.is_over() => {
                self.outgoing.remove(&key);
            }
            State::Streaming(op) => self.actions.extend(op.map(Action::Cancel)),
            _ if offer.lingering == Lingering::UnderWay && offer.withdrawn => {
                let nonce = self.last_fence + 1;
                offer.lingering = Lingering::Fenced { nonce, due };
                self.last_fence = nonce;
                self.send_own(Kind::Ping, &body::Ping { nonce });
            }
            _ => {}
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
