//! The receiver's side of a handoff.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::error::{DeclineCode, LandError, SessionEnd, SessionViolation};
use super::identity::PoolAccess;
use super::{Action, HandoffKey, Notice, Purpose, PurposeKind, Session};
use crate::pool::{
    AdoptedBlocks, BlockPool, Digest, Lease, LeaseId, Loan, PayloadOrder, ReservedBlock,
    ScatterList,
};
use crate::transport::{Op, OpError, OpId, OpMemory, StreamTag};
use crate::wire::{Kind, body};

/// Most offers of one peer that may be open at a time.
const OFFERS_MAX: usize = 1024;
/// Most bytes that the manifests of one peer's open offers may take here.
const MANIFESTS_LEN_MAX: usize = 128 << 20;
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
}

/// A payload that is here.
#[derive(Debug)]
pub struct Landed {
    /// The first blocks, left where they are.
    pub adopted: Option<AdoptedBlocks>,
    /// The blocks that were given for what follows.
    pub blocks: Vec<ReservedBlock>,
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

/// Two things must come before a payload has landed: its bytes and the sender's digest.
#[derive(Debug)]
struct Landing {
    op: Option<OpId>,
    pulls: bool,
    adopted: Option<AdoptedBlocks>,
    loan: Option<Loan>,
    arrived: Option<(u64, Vec<ReservedBlock>)>,
    sent: Option<u64>,
    abandoned: Abandoned,
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
        let (tokens, order) = (manifest.tokens, manifest.order);
        let adopted = adopts.then(|| self.adopted_blocks(manifest)).flatten();
        if adopts && adopted.is_none() {
            return self.fail_landing(key, LandError::NoPath);
        }
        let mut landing = Landing {
            op: None,
            pulls: true,
            adopted,
            loan: None,
            arrived: None,
            sent: None,
            abandoned: Abandoned::No,
        };
        let mut tag = 0;
        if from == tokens && blocks.is_empty() {
            landing.arrived = Some((Digest::default().value(), blocks));
        } else {
            let room = match ScatterList::new(pool, blocks, order, from..tokens) {
                Ok(room) => room,
                Err((error, _blocks)) => return self.fail_landing(key, LandError::Room(error)),
            };
            landing.loan = Some(room.loan());
            let reach = manifest.blocks.as_ref().zip(self.peer_access.as_ref());
            let op =
                if let Some((blocks, access)) = reach.filter(|_| self.capabilities.get.is_some()) {
                    let PoolAccess { region, shape } = access;
                    let mut extents = Vec::new();
                    order.extents(shape, blocks, 0, from..tokens, &mut extents);
                    Op::Get { region: *region, extents, room }
                } else if self.capabilities.stream.is_some() {
                    tag = self.next_tag();
                    landing.pulls = false;
                    Op::Land { tag: StreamTag(tag), room }
                } else {
                    drop(room);
                    return self.fail_landing(key, LandError::NoPath);
                };
            self.actions.push_back(Action::Submit(op, Purpose(PurposeKind::Receive(key))));
        }
        if let Some(incoming) = self.incoming.get_mut(&key) {
            incoming.state = State::Landing(landing);
        }
        self.send_for(key, Kind::Rtr, &body::Rtr { tag, needed_from: from as u64, adopts });
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
        self.give_up(key, DeclineCode::DeclineDropped);
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
        atp: &body::Atp,
    ) -> Result<(), SessionViolation> {
        match self.incoming.get_mut(&key).map(|incoming| &mut incoming.state) {
            None => self.counters.late_frames += 1,
            Some(State::Landing(landing)) if landing.sent.is_none() => {
                landing.sent = Some(atp.digest);
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
                self.give_up(key, DeclineCode::DeclineWithdrawn);
            }
        }
    }

    pub(super) fn receive_accepted(&mut self, key: HandoffKey, id: OpId) {
        let Some(State::Landing(landing)) = self.state_of(key) else { return };
        landing.op = Some(id);
        if landing.abandoned != Abandoned::No {
            self.actions.push_back(Action::Cancel(id));
        }
    }

    pub(super) fn receive_done(
        &mut self,
        key: HandoffKey,
        memory: OpMemory,
        outcome: Result<u64, OpError>,
    ) {
        let Some(State::Landing(landing)) = self.state_of(key) else { return };
        landing.op = None;
        if landing.abandoned != Abandoned::No {
            drop(memory);
            return self.settle(key);
        }
        match (outcome, memory) {
            (Ok(digest), OpMemory::Room(room)) => {
                landing.arrived = Some((digest, room.into_blocks()));
                self.try_land(key);
            }
            (Ok(_), _) => self.receive_failed(key, OpError::Unsupported("this memory")),
            (Err(error), _) => self.receive_failed(key, error),
        }
    }

    fn receive_failed(&mut self, key: HandoffKey, error: OpError) {
        self.fail_landing(key, error.into());
    }

    pub(super) fn incoming_of(&self, id: OpId) -> Option<HandoffKey> {
        let lands = |incoming: &Incoming| matches!(&incoming.state, State::Landing(landing) if landing.op == Some(id));
        self.incoming.iter().find(|(_, incoming)| lands(incoming)).map(|(key, _)| *key)
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
                self.give_up(key, DeclineCode::DeclineTransport);
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
        let mut manifest =
            Manifest { tokens, order, meta: rts.meta, adoptable: 0, blocks: None, lease: None };
        let Some(access) = self.peer_access.as_ref().filter(|_| !rts.blocks.is_empty()) else {
            return Ok(manifest);
        };
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

    /// Lands once bytes and digest are here and agree.
    fn try_land(&mut self, key: HandoffKey) {
        let Some(State::Landing(landing)) = self.state_of(key) else { return };
        let Some(sent) = landing.sent else { return };
        let Some((arrived, blocks)) = landing.arrived.take() else { return };
        if arrived != sent {
            drop(blocks);
            return self.fail_landing(key, LandError::Digest { arrived, sent });
        }
        let adopted = landing.adopted.take();
        let lease = adopted.as_ref().map(|adopted| Arc::downgrade(adopted.lease()));
        if let Some(state) = self.state_of(key) {
            *state = State::Landed(lease);
        }
        self.notices.push_back(Notice::Landed(key, Landed { adopted, blocks }));
    }

    /// Ends an offer for a reason of this side's.
    fn fail_landing(&mut self, key: HandoffKey, error: LandError) {
        let code = match &error {
            LandError::Digest { .. } => DeclineCode::DeclineDigest,
            LandError::NoPath => DeclineCode::DeclineNoPath,
            LandError::Room(_) => DeclineCode::DeclineNoRoom,
            _ => DeclineCode::DeclineTransport,
        };
        if self.incoming.remove(&key).is_some() {
            self.send_decline(key, code, &error.to_string());
            self.notices.push_back(Notice::LandFailed(key, error));
        }
    }

    /// Leaves an offer. The last word waits for a pull to stop: until then the sender must keep its
    /// blocks. A push is declined at once, so that the sender stops.
    fn give_up(&mut self, key: HandoffKey, code: DeclineCode) {
        let Some(state) = self.state_of(key) else { return };
        match state {
            State::Landing(landing) if landing.arrived.is_none() => {
                if landing.abandoned != Abandoned::No {
                    return;
                }
                landing.abandoned = Abandoned::Owing(code);
                if let Some(loan) = &landing.loan {
                    loan.quarantine();
                }
                let (op, pulls) = (landing.op, landing.pulls);
                if let Some(op) = op {
                    self.actions.push_back(Action::Cancel(op));
                }
                if !pulls {
                    self.answer(key);
                }
            }
            _ => {
                self.incoming.remove(&key);
                self.send_decline(key, code, "given up");
            }
        }
    }

    /// Says the last word of an abandoned landing, if it is still owed.
    fn answer(&mut self, key: HandoffKey) {
        let Some(State::Landing(landing)) = self.state_of(key) else { return };
        if let Abandoned::Owing(code) =
            std::mem::replace(&mut landing.abandoned, Abandoned::Answered)
        {
            self.send_decline(key, code, "given up");
        }
    }

    /// The link is done with an abandoned landing.
    fn settle(&mut self, key: HandoffKey) {
        self.answer(key);
        self.incoming.remove(&key);
    }

    fn send_decline(&mut self, key: HandoffKey, code: DeclineCode, reason: &str) {
        let decline = body::Decline { code: code.into(), reason: reason.to_owned() };
        self.send_answer(key, Kind::Decline, &decline);
    }
}
