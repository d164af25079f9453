//! The receiver's side of a handoff.
//!
//! A payload that is pushed comes in pieces (see `pieces`), each into a part of one room, for which all blocks were
//! given before the first of them. What has come of it is nobody's before the sender's last word: then the digest
//! of all pieces agrees, or all of it goes.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::bounds::CLOSING_LEN_MAX;
use super::error::{DeclineCode, LandError, SessionEnd, SessionViolation};
use super::identity::PoolAccess;
use super::pieces::{PieceCut, Pieces};
use super::{Action, HandoffKey, Notice, Purpose, PurposeKind, Session};
use crate::pool::{
    AdoptedBlocks, BlockPool, Digest, Lease, LeaseId, Loan, PayloadOrder, ReservedBlock,
    ScatterList, Span,
};
use crate::transport::{Op, OpError, OpId, OpMemory, StreamTag};
use crate::wire::{Kind, body};

/// Most offers of one peer that may be open at a time.
const OFFERS_MAX: usize = 1024;
/// Most bytes that the manifests of one peer's open offers may take here.
const MANIFESTS_LEN_MAX: usize = 128 << 20;
/// What is said of offers that nobody wants any more.
const GIVEN_UP: &str = "given up";
/// Most tokens of one sequence.
const TOKENS_MAX: u64 = 1 << 31;

/// What the peer offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Tokens of the sequence.
    pub tokens: usize,
    /// Order of the payload's bytes.
    pub order: PayloadOrder,
    /// What the peer's user said of it.
    pub meta: Bytes,
    /// Leading tokens that can be read where they lie; 0 when they must be moved.
    pub adoptable: usize,
    /// The sequence's blocks, where this side can reach them itself.
    blocks: Option<Arc<[u32]>>,
    lease: Option<LeaseId>,
    pieces: Pieces,
}

/// A payload that is here.
#[derive(Debug)]
pub struct Landed {
    /// The first blocks, left where they are.
    pub adopted: Option<AdoptedBlocks>,
    /// The blocks that were given for what follows.
    pub blocks: Vec<ReservedBlock>,
    /// What the peer's user said at the end.
    pub closing: Bytes,
}

impl Manifest {
    /// Bytes that the manifest takes in memory, about.
    pub(crate) fn memory_len(&self) -> usize {
        self.meta.len() + self.blocks.as_ref().map_or(0, |blocks| size_of_val::<[u32]>(blocks))
    }
}

#[derive(Debug)]
pub(super) struct Incoming {
    manifest: Manifest,
    state: State,
}

#[derive(Debug)]
enum State {
    Offered,
    Landing(Landing),
    /// The user has the blocks, and the lease of those that it adopts.
    Landed(Option<Weak<Lease>>),
}

/// Two things must come before a payload has landed: its bytes and the sender's last word.
#[derive(Debug)]
struct Landing {
    pulls: bool,
    adopted: Option<AdoptedBlocks>,
    /// Of the blocks that the pieces share; none where nothing moves.
    loan: Option<Loan>,
    /// In the order of their bytes.
    pieces: Vec<Piece>,
    sent: Option<(u64, Bytes)>,
    abandoned: Abandoned,
}

#[derive(Debug)]
enum Piece {
    /// Its operation is on its way to the link.
    Submitted,
    /// The link fills its room.
    With(OpId),
    /// All of it is here; this is its digest.
    Arrived(u64, ScatterList),
    /// The link did not bring it.
    Failed,
}

impl Landing {
    /// Whether the link has room of it, or is about to.
    fn is_open(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Submitted | Piece::With(_)))
    }

    /// The digest of what is here, and its blocks, if that is all.
    fn take_arrived(&mut self) -> Option<(u64, Vec<ReservedBlock>)> {
        if !self.pieces.iter().all(|piece| matches!(piece, Piece::Arrived(..))) {
            return None;
        }
        let (mut digests, mut blocks) = (Vec::new(), Vec::new());
        for piece in self.pieces.drain(..) {
            let Piece::Arrived(digest, room) = piece else { continue };
            digests.push(digest);
            // The last part of a room gives all of its blocks.
            blocks.extend(room.into_blocks());
        }
        Some((Digest::of_parts(&digests), blocks))
    }
}

/// Whether somebody gave up, and whether the sender still waits for the last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Abandoned {
    No,
    Owing(DeclineCode),
    Answered,
}

impl Session {
    /// Accepts an offer into `blocks`, which hold the tokens from `from` on; what lies before, the user
    /// has already. Ends with [`Notice::Landed`] or [`Notice::LandFailed`].
    pub fn accept(
        &mut self,
        key: HandoffKey,
        pool: &BlockPool,
        blocks: Vec<ReservedBlock>,
        from: usize,
    ) {
        self.land(key, pool, blocks, from, false);
    }

    /// Accepts an offer whose first [adoptable](Manifest::adoptable) tokens stay where they are; `blocks`
    /// take those that follow. Ends like [`accept`](Self::accept).
    pub fn adopt(&mut self, key: HandoffKey, pool: &BlockPool, blocks: Vec<ReservedBlock>) {
        let from = self.incoming.get(&key).map_or(0, |incoming| incoming.manifest.adoptable);
        self.land(key, pool, blocks, from, from > 0);
    }

    fn land(
        &mut self,
        key: HandoffKey,
        pool: &BlockPool,
        blocks: Vec<ReservedBlock>,
        from: usize,
        adopts: bool,
    ) {
        let Some(Incoming { manifest, state: State::Offered }) = self.incoming.get(&key) else {
            let error = match self.end() {
                Some(end) => LandError::Ended(end.clone()),
                None => LandError::Withdrawn,
            };
            self.notices.push_back(Notice::LandFailed(key, error));
            return;
        };
        let adopted = adopts.then(|| self.adopted_blocks(manifest)).flatten();
        if adopts && adopted.is_none() {
            return self.fail_landing(key, LandError::NoPath);
        }
        let manifest = manifest.clone();
        let mut landing = Landing {
            pulls: true,
            adopted,
            loan: None,
            pieces: Vec::new(),
            sent: None,
            abandoned: Abandoned::No,
        };
        let mut tag = 0;
        if from < manifest.tokens || !blocks.is_empty() {
            let ops = match self.ways(&manifest, from, pool, blocks) {
                Ok(ops) => ops,
                Err(error) => return self.fail_landing(key, error),
            };
            landing.loan = match ops.first() {
                Some(Op::Land { room, .. } | Op::Get { room, .. }) => Some(room.loan()),
                _ => None,
            };
            if let Some(Op::Land { tag: first, .. }) = ops.first() {
                (tag, landing.pulls) = (first.0, false);
            }
            for (index, op) in ops.into_iter().enumerate() {
                landing.pieces.push(Piece::Submitted);
                let purpose = Purpose(PurposeKind::Receive(key, index));
                self.actions.push_back(Action::Submit(op, purpose));
            }
        }
        if let Some(incoming) = self.incoming.get_mut(&key) {
            incoming.state = State::Landing(landing);
        }
        self.send_for(key, Kind::Rtr, &body::Rtr { tag, needed_from: from as u64, adopts });
    }

    /// What brings the bytes of the tokens from `from` on into blocks: one pull, or a landing for each piece.
    fn ways(
        &mut self,
        manifest: &Manifest,
        from: usize,
        pool: &BlockPool,
        blocks: Vec<ReservedBlock>,
    ) -> Result<Vec<Op>, LandError> {
        let (order, tokens) = (manifest.order, from..manifest.tokens);
        let no_room = |(error, _blocks)| LandError::Room(error);
        let reach = manifest.blocks.as_ref().zip(self.peer_access.as_ref());
        if let Some((theirs, access)) = reach.filter(|_| self.capabilities.get.is_some()) {
            let PoolAccess { region, shape } = access;
            let span = Span::whole(shape.spec(), tokens.clone());
            let room = ScatterList::new(pool, blocks, order, tokens).map_err(no_room)?;
            let mut extents = Vec::new();
            order.extents(shape, theirs, 0, &span, &mut extents);
            return Ok(vec![Op::Get { region: *region, extents, room }]);
        }
        if self.capabilities.stream.is_none() {
            return Err(LandError::NoPath);
        }
        let pieces: Vec<Span> = manifest.pieces.from(from).collect();
        let rooms = ScatterList::in_spans(pool, blocks, order, tokens, &pieces).map_err(no_room)?;
        let land = |room| Op::Land { tag: StreamTag(self.next_tag()), room };
        Ok(rooms.into_iter().map(land).collect())
    }

    /// Declines an offer that was not accepted yet.
    pub fn decline(&mut self, key: HandoffKey, code: DeclineCode, reason: &str) {
        if let Some(Incoming { state: State::Offered, .. }) = self.incoming.get(&key) {
            self.incoming.remove(&key);
            self.send_decline(key, code, reason);
        }
    }

    /// Gives up on an offer in any state before its commit. No notice follows.
    pub fn abandon(&mut self, key: HandoffKey) {
        // It may have been committed meanwhile, with nobody left to hear of it.
        self.release(key);
        self.give_up(key, DeclineCode::DeclineDropped, GIVEN_UP);
    }

    /// Takes a landed payload for good and frees the sender's copy. False when it is too late: the
    /// sender withdrew, or the session ended.
    pub fn commit(&mut self, key: HandoffKey) -> bool {
        let Some(Incoming { state: State::Landed(lease), .. }) = self.incoming.get(&key) else {
            return false;
        };
        if let Some(lease) = lease {
            self.adopted.insert(key, lease.clone());
        }
        self.incoming.remove(&key);
        self.send_for(key, Kind::Ats, &body::Ats {});
        true
    }

    /// Tells the peer that blocks which were adopted with this handoff are read no more.
    pub fn release(&mut self, key: HandoffKey) {
        if self.adopted.remove(&key).is_some() {
            self.send_for(key, Kind::Release, &body::Release {});
        }
    }

    /// The peer wants its blocks. It may be too late for that: then they are on their way.
    pub(super) fn handle_recall(&mut self, key: HandoffKey) {
        match self.adopted.get(&key).and_then(Weak::upgrade) {
            Some(lease) => lease.set_recalled(),
            None => self.counters.late_frames += 1,
        }
    }

    pub(super) fn handle_rts(
        &mut self,
        key: HandoffKey,
        rts: body::Rts,
    ) -> Result<(), SessionViolation> {
        if self.incoming.contains_key(&key) {
            return Err(SessionViolation::DuplicateOffer);
        }
        let epochs = self.incoming.keys().filter(|other| other.request == key.request);
        let others: Vec<HandoffKey> = epochs.copied().collect();
        if others.iter().any(|other| other.epoch > key.epoch) {
            self.counters.late_frames += 1;
            self.send_decline(key, DeclineCode::DeclineStale, "a newer epoch is known");
            return Ok(());
        }
        for older in others {
            self.handle_withdraw(older);
        }
        let manifests: usize = self.incoming.values().map(|i| i.manifest.memory_len()).sum();
        if self.incoming.len() >= OFFERS_MAX || manifests > MANIFESTS_LEN_MAX {
            self.send_decline(key, DeclineCode::DeclineBusy, "too many offers are open");
            return Ok(());
        }
        match self.read_manifest(rts) {
            Ok(manifest) => {
                self.notices.push_back(Notice::Offered(key, manifest.clone()));
                self.incoming.insert(key, Incoming { manifest, state: State::Offered });
            }
            Err(reason) => self.send_decline(key, DeclineCode::DeclineManifest, reason),
        }
        Ok(())
    }

    pub(super) fn handle_atp(
        &mut self,
        key: HandoffKey,
        atp: body::Atp,
    ) -> Result<(), SessionViolation> {
        match self.incoming.get_mut(&key).map(|incoming| &mut incoming.state) {
            None => self.counters.late_frames += 1,
            Some(State::Landing(landing)) if landing.sent.is_none() => {
                if atp.closing.len() > CLOSING_LEN_MAX {
                    return Err(SessionViolation::ClosingLen(atp.closing.len()));
                }
                landing.sent = Some((atp.digest, atp.closing));
                self.try_land(key);
            }
            Some(_) => return Err(SessionViolation::OutOfPlace(Kind::Atp)),
        }
        Ok(())
    }

    pub(super) fn handle_withdraw(&mut self, key: HandoffKey) {
        match self.incoming.get(&key).map(|incoming| &incoming.state) {
            None => self.counters.late_frames += 1,
            Some(State::Landing(landing)) if landing.abandoned != Abandoned::No => {}
            Some(_) => {
                self.notices.push_back(Notice::LandFailed(key, LandError::Withdrawn));
                self.give_up(key, DeclineCode::DeclineWithdrawn, GIVEN_UP);
            }
        }
    }

    pub(super) fn receive_accepted(&mut self, key: HandoffKey, index: usize, id: OpId) {
        let Some(State::Landing(landing)) = self.state_of(key) else { return };
        landing.pieces[index] = Piece::With(id);
        if landing.abandoned != Abandoned::No {
            self.actions.push_back(Action::Cancel(id));
        }
    }

    pub(super) fn receive_done(
        &mut self,
        key: HandoffKey,
        index: usize,
        memory: OpMemory,
        outcome: Result<u64, OpError>,
    ) {
        let Some(State::Landing(landing)) = self.state_of(key) else { return };
        landing.pieces[index] = Piece::Failed;
        if landing.abandoned != Abandoned::No {
            drop(memory);
            return self.settle(key);
        }
        match (outcome, memory) {
            (Ok(digest), OpMemory::Room(room)) => {
                landing.pieces[index] = Piece::Arrived(digest, room);
                self.try_land(key);
            }
            (Ok(_), _) => self.fail_landing(key, OpError::Unsupported("this memory").into()),
            (Err(error), _) => self.fail_landing(key, error.into()),
        }
    }

    /// The session ends: tells the user; memory that the link holds comes back with its completion.
    pub(super) fn fail_incoming(&mut self, end: &SessionEnd, link_is_gone: bool) {
        let keys: Vec<HandoffKey> = self.incoming.keys().copied().collect();
        for key in keys {
            let given_up = matches!(self.state_of(key),
                Some(State::Landing(landing)) if landing.abandoned != Abandoned::No);
            if !given_up {
                let error = LandError::Ended(end.clone());
                self.notices.push_back(Notice::LandFailed(key, error));
                self.give_up(key, DeclineCode::DeclineTransport, GIVEN_UP);
            }
        }
        if link_is_gone {
            self.incoming.clear();
        }
    }

    fn state_of(&mut self, key: HandoffKey) -> Option<&mut State> {
        self.incoming.get_mut(&key).map(|incoming| &mut incoming.state)
    }

    fn read_manifest(&self, rts: body::Rts) -> Result<Manifest, &'static str> {
        let Some(spec) = &self.identity.geometry else { return Err("this side has no pool") };
        if rts.tokens == 0 || rts.tokens > TOKENS_MAX || rts.block_tokens == 0 {
            return Err("no tokens, or too many");
        }
        let (tokens, order) =
            (rts.tokens as usize, PayloadOrder { block_tokens: rts.block_tokens });
        let pieces = match rts.piece_tokens {
            0 => Some(Pieces::whole(spec, tokens)),
            piece_tokens => {
                let layered_from = usize::try_from(rts.layered_from).unwrap_or(usize::MAX);
                let cut = PieceCut { tokens: piece_tokens, layered_from, layers: rts.piece_layers };
                Pieces::new(spec, tokens, cut, rts.block_tokens)
            }
        };
        let pieces = pieces.ok_or("no pieces of whole blocks, or too many")?;
        let (meta, adoptable, blocks, lease) = (rts.meta, 0, None, None);
        let mut manifest = Manifest { tokens, order, meta, adoptable, blocks, lease, pieces };
        let Some(access) = self.peer_access.as_ref().filter(|_| !rts.blocks.is_empty()) else {
            return Ok(manifest);
        };
        if rts.piece_tokens > 0 {
            return Err("blocks that are not computed yet");
        }
        let theirs = access.shape.spec();
        let ids = || rts.blocks.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id));
        if rts.block_tokens != theirs.block_tokens
            || rts.blocks.len() != theirs.blocks_for(tokens) * size_of::<u32>()
            || ids().any(|id| id as usize >= access.shape.blocks())
        {
            return Err("the blocks are not those of the tokens");
        }
        manifest.blocks = Some(ids().collect());
        manifest.lease =
            rts.lease.map(|lease| LeaseId { slot: lease.slot, generation: lease.generation });
        let same_len = spec.block_tokens == theirs.block_tokens;
        if manifest.lease.is_some() && self.peer_pool.is_some() && same_len {
            manifest.adoptable = tokens - tokens % spec.block_tokens as usize;
        }
        Ok(manifest)
    }

    /// The blocks of a manifest that can be read in place.
    fn adopted_blocks(&self, manifest: &Manifest) -> Option<AdoptedBlocks> {
        let lease = Lease::new(self.peer_pool.clone()?, manifest.lease?)?;
        let count = manifest.adoptable / manifest.order.block_tokens as usize;
        AdoptedBlocks::new(Arc::new(lease), manifest.blocks.as_ref()?[..count].to_vec())
    }

    /// Lands once the bytes and the last word are here and agree.
    fn try_land(&mut self, key: HandoffKey) {
        let Some(State::Landing(landing)) = self.state_of(key) else { return };
        if landing.sent.is_none() {
            return;
        }
        let Some((arrived, blocks)) = landing.take_arrived() else { return };
        let Some((sent, closing)) = landing.sent.take() else { return };
        if arrived != sent {
            drop(blocks);
            return self.fail_landing(key, LandError::Digest { arrived, sent });
        }
        let adopted = landing.adopted.take();
        let lease = adopted.as_ref().map(|adopted| Arc::downgrade(adopted.lease()));
        if let Some(state) = self.state_of(key) {
            *state = State::Landed(lease);
        }
        self.notices.push_back(Notice::Landed(key, Landed { adopted, blocks, closing }));
    }

    /// Ends an offer for a reason of this side's.
    fn fail_landing(&mut self, key: HandoffKey, error: LandError) {
        let code = match &error {
            LandError::Digest { .. } => DeclineCode::DeclineDigest,
            LandError::NoPath => DeclineCode::DeclineNoPath,
            LandError::Room(_) => DeclineCode::DeclineNoRoom,
            _ => DeclineCode::DeclineTransport,
        };
        if self.incoming.contains_key(&key) {
            self.give_up(key, code, &error.to_string());
            self.notices.push_back(Notice::LandFailed(key, error));
        }
    }

    /// Leaves an offer. The last word waits for a pull to stop: until then the sender must keep its
    /// blocks. A push is declined at once, so that the sender stops.
    fn give_up(&mut self, key: HandoffKey, code: DeclineCode, reason: &str) {
        match self.state_of(key) {
            Some(State::Landing(landing)) if landing.is_open() => {
                if landing.abandoned != Abandoned::No {
                    return;
                }
                if let Some(loan) = &landing.loan {
                    loan.quarantine();
                }
                let mut ops = Vec::new();
                for piece in &mut landing.pieces {
                    match piece {
                        Piece::With(op) => ops.push(Action::Cancel(*op)),
                        Piece::Arrived(..) => *piece = Piece::Failed,
                        Piece::Submitted | Piece::Failed => {}
                    }
                }
                landing.abandoned =
                    if landing.pulls { Abandoned::Owing(code) } else { Abandoned::Answered };
                let answers = !landing.pulls;
                self.actions.extend(ops);
                if answers {
                    self.send_decline(key, code, reason);
                }
            }
            Some(_) => {
                self.incoming.remove(&key);
                self.send_decline(key, code, reason);
            }
            None => {}
        }
    }

    /// Ends an abandoned landing with which the link is done, with the last word if it is still owed.
    fn settle(&mut self, key: HandoffKey) {
        let Some(State::Landing(landing)) = self.state_of(key) else { return };
        if landing.is_open() {
            return;
        }
        let abandoned = landing.abandoned;
        self.incoming.remove(&key);
        if let Abandoned::Owing(code) = abandoned {
            self.send_decline(key, code, GIVEN_UP);
        }
    }

    fn send_decline(&mut self, key: HandoffKey, code: DeclineCode, reason: &str) {
        let decline = body::Decline { code: code.into(), reason: reason.to_owned() };
        self.send_answer(key, Kind::Decline, &decline);
    }
}
