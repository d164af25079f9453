//! One session against a peer and a link whose every move the bytes say: frames that are almost right, in
//! any order, operations that end in any way, users that do anything that they may, and time that jumps.
//!
//! ```text
//! script ──> frames, completions, time ──> Session <── its user's calls <── script
//! ```
//! [`play`] says what must hold.

mod peer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwire::clock;
use blockwire::pool::{
    AdoptedBlocks, BlockPool, Dtype, KvSpec, Layout, PeerMemory, PoolOptions, PoolShape,
    ReservedBlock, SealedRun,
};
use blockwire::session::{
    Action, DeclineCode, HandoffKey, Identity, Manifest, Notice, OfferPayload, OfferStream,
    PeerMessage, PieceCut, PoolAccess, Purpose, Session, Timing,
};
use blockwire::transport::{
    Capabilities, CloseReason, Completion, LinkEvent, Op, OpError, OpId, OpMemory, Refused,
    RegionKey,
};
use blockwire::wire::{Kind, body, split_frame};
use blockwire_conformance::script::Script;
use bytes::Bytes;
use uuid::Uuid;

/// Blocks of each pool.
const BLOCKS: usize = 12;
const STEPS_MAX: usize = 2000;
const BLOCK_TOKENS: u64 = 4;

/// Plays a script, and checks what must hold whatever the peer says: nothing panics; every offer of either
/// side ends exactly once; what is pulled lies inside the pool that the peer showed; tags rise; a deadline
/// that was kept is over; and once the link is gone, so is the session, and every block is free.
///
/// # Panics
/// When something of that does not hold.
pub(crate) fn play(bytes: &[u8]) -> Reached {
    let mut world = World::new(Script::new(bytes));
    for _ in 0..STEPS_MAX {
        if world.script.is_over() {
            break;
        }
        world.step();
        world.settle();
    }
    world.end()
}

/// How often a script came how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// Offers of the peer's that were committed, and those among them that are read in place.
    pub(crate) taken: u32,
    pub(crate) adopted: u32,
    /// Offers to the peer that it committed.
    pub(crate) given: u32,
    /// Times at which blocks were asked back.
    pub(crate) recalled: u32,
}

/// What the user knows of an offer of the peer's.
enum Incoming {
    Offered(Manifest),
    /// Blocks that were given.
    Accepted(usize),
    Landed(Vec<ReservedBlock>, Option<AdoptedBlocks>),
}

struct World<'a> {
    script: Script<'a>,
    session: Session,
    pool: BlockPool,
    /// What the peer shows of its memory.
    shown: BlockPool,
    /// What the peer said of it, once it is believed.
    shape: Option<PoolShape>,
    said: Option<(Layout, usize)>,
    now: Instant,
    ops: Vec<(OpId, Op)>,
    last_op: u64,
    last_tag: u64,
    outgoing: HashSet<HandoffKey>,
    incoming: HashMap<HandoffKey, Incoming>,
    adopted: Vec<(HandoffKey, AdoptedBlocks)>,
    reached: Reached,
    is_ready: bool,
    is_over: bool,
    is_closed: bool,
}

fn spec() -> KvSpec {
    KvSpec::uniform(BLOCK_TOKENS as u32, 2, 1, 8, Dtype::F16)
}

fn pool() -> BlockPool {
    BlockPool::new(PoolOptions::new(spec(), BLOCKS)).expect("a small pool")
}

impl<'a> World<'a> {
    fn new(mut script: Script<'a>) -> Self {
        let (how, pool, now) = (script.byte(), pool(), clock::now());
        let flag = |bit: u8| how >> bit & 1 == 0;
        let capabilities = Capabilities {
            stream: flag(0).then_some(1),
            get: flag(1).then_some(1),
            adopt: flag(1) && flag(2),
            same_host: true,
            lingers: !flag(3),
        };
        let geometry = (flag(4) || flag(5)).then(spec);
        let shape = pool.shape().clone();
        let access = flag(6).then_some(PoolAccess { region: RegionKey(0), shape });
        let identity = Identity { instance: Uuid::nil(), geometry, ..Identity::new("honest") };
        let session = Session::new(identity, capabilities, access, Timing::default(), now)
            .with_authenticated((!flag(7)).then(|| Uuid::from_u128(1)));
        Self {
            script,
            session,
            pool,
            shown: self::pool(),
            shape: None,
            said: None,
            now,
            ops: Vec::new(),
            last_op: 0,
            last_tag: 0,
            outgoing: HashSet::new(),
            incoming: HashMap::new(),
            adopted: Vec::new(),
            reached: Reached::default(),
            is_ready: false,
            is_over: false,
            is_closed: false,
        }
    }

    /// Few keys, so that they meet; two epochs of each request.
    fn key(&mut self) -> HandoffKey {
        let byte = self.script.byte();
        HandoffKey {
            request: Uuid::from_u128(u128::from(byte / 2 % 3)),
            epoch: 1 + u32::from(byte % 2),
        }
    }

    fn step(&mut self) {
        // Without a hello nothing else is heard.
        let what = if self.is_ready { self.script.byte() % 44 } else { 0 };
        match what {
            0 => self.hello(),
            1..=4 => self.rts(),
            5..=7 => self.rtr(),
            8 | 9 => {
                let digest = self.digest();
                self.say(Kind::Atp, &body::Atp { digest, closing: Bytes::new() });
            }
            10 | 11 => self.say(Kind::Ats, &body::Ats {}),
            12 => self.say(Kind::Withdraw, &body::Withdraw {}),
            13 => self.say(Kind::Release, &body::Release {}),
            14 => self.say(Kind::Recall, &body::Recall {}),
            15 => {
                let code = i32::from(self.script.byte() % 12);
                self.say(Kind::Decline, &body::Decline { code, reason: "no\n".into() });
            }
            16 => {
                let nonce = self.script.number(&[1, 2, 3]);
                let kind = if self.script.rarely(2) { Kind::Ping } else { Kind::Pong };
                self.say(kind, &body::Ping { nonce });
            }
            17 => self.say_anything(),
            18..=21 => self.offer(),
            22..=26 => self.take(),
            27 | 28 => self.commit(),
            29 => self.let_go(),
            30 => {
                let key = self.key();
                if self.outgoing.remove(&key) {
                    self.session.withdraw(key);
                }
            }
            31 => self.release(),
            32 => self.reached.recalled += u32::from(self.session.recall_oldest(self.now)),
            33 => self.wait(),
            34 if self.script.rarely(8) => self.session.close("enough"),
            35 => self.message(),
            40 => self.rts_in_pieces(),
            41 => self.offer_stream(),
            42 => self.push(),
            43 => {
                let key = self.key();
                self.session.finish_offer(key, vec![], Bytes::new());
            }
            _ => self.complete(),
        }
    }

    fn offer(&mut self) {
        let (key, tokens) = (self.key(), 1 + usize::from(self.script.byte() % 8));
        let needed = self.pool.spec().blocks_for(tokens);
        let Ok(blocks) = self.pool.try_reserve(needed) else { return };
        let blocks = blocks.into_iter().map(ReservedBlock::seal).collect();
        let run = SealedRun::new(&self.pool, blocks, tokens).expect("blocks for the tokens");
        let payload = OfferPayload { run, meta: Bytes::new(), closing: Bytes::new() };
        if self.session.offer(key, payload).is_ok() {
            self.outgoing.insert(key);
        }
    }

    /// Offers a sequence of which nothing is there.
    fn offer_stream(&mut self) {
        let (key, shape) = (self.key(), self.script.byte());
        let (tokens, layers) = (1 + usize::from(shape % 12), u32::from(shape / 12 % 3));
        let cut =
            PieceCut { tokens: BLOCK_TOKENS as u32, layered_from: BLOCK_TOKENS as usize, layers };
        let stream = OfferStream { pool: self.pool.clone(), tokens, cut, meta: Bytes::new() };
        if self.session.offer_stream(key, stream).is_ok() {
            self.outgoing.insert(key);
        }
    }

    /// Adds a block to an offer, where it may be one too many, or of another pool.
    fn push(&mut self) {
        let (key, foreign) = (self.key(), self.script.rarely(16));
        let pool = if foreign { &self.shown } else { &self.pool };
        if let Ok(blocks) = pool.try_reserve(1) {
            let blocks = blocks.into_iter().map(|block| block.seal().into()).collect();
            self.session.push(key, blocks);
        }
    }

    /// Accepts, adopts or declines an offer, mostly as one should.
    fn take(&mut self) {
        let (key, how) = (self.key(), self.script.byte());
        let Some(Incoming::Offered(manifest)) = self.incoming.get(&key) else { return };
        let (tokens, adoptable) = (manifest.tokens, manifest.adoptable);
        let free = self.pool.accounting().free;
        let spec = self.pool.spec();
        let (from, needed) = match how % 8 {
            0 => (4.min(tokens), usize::from(how / 8) % BLOCKS),
            1 => (tokens, 0),
            2..=4 if adoptable > 0 => (adoptable, spec.blocks_for(tokens - adoptable)),
            _ => (0, spec.blocks_for(tokens)),
        };
        if needed > free {
            self.incoming.remove(&key);
            return self.session.decline(key, DeclineCode::DeclineNoRoom, "no room");
        }
        let blocks = self.pool.try_reserve(needed).expect("so many are free");
        self.incoming.insert(key, Incoming::Accepted(needed));
        match how % 8 {
            2..=4 if adoptable > 0 => self.session.adopt(key, &self.pool, blocks),
            _ => self.session.accept(key, &self.pool, blocks, from),
        }
    }

    fn commit(&mut self) {
        let key = self.key();
        match self.incoming.remove(&key) {
            Some(Incoming::Landed(_, adopted)) => {
                assert!(self.session.commit(key), "nobody said that it is too late");
                self.reached.taken += 1;
                self.reached.adopted += u32::from(adopted.is_some());
                self.adopted.extend(adopted.map(|adopted| (key, adopted)));
            }
            Some(other) => {
                self.incoming.insert(key, other);
                assert!(!self.session.commit(key), "nothing has landed");
            }
            None => assert!(!self.session.commit(key), "nothing was offered"),
        }
    }

    /// The user loses interest in an offer.
    fn let_go(&mut self) {
        let key = self.key();
        match self.incoming.remove(&key) {
            Some(Incoming::Offered(_)) => {
                self.session.decline(key, DeclineCode::DeclineBusy, "busy");
            }
            Some(_) => self.session.abandon(key),
            None => {}
        }
    }

    fn release(&mut self) {
        if let Some((key, adopted)) = self.adopted.pop() {
            drop(adopted);
            self.session.release(key);
        }
    }

    fn message(&mut self) {
        let request = self.key().request;
        let body = Bytes::copy_from_slice(self.script.take(5));
        let message = PeerMessage { request, epoch: 1, kind: 1, body };
        self.session.send_message(message).expect("a short message");
    }

    fn wait(&mut self) {
        let step = match self.script.byte() % 8 {
            0 => Duration::from_secs(20),
            1 => Duration::from_secs(5),
            _ => Duration::from_millis(1),
        };
        self.now += step;
        self.session.handle_time(self.now);
        if let Some(deadline) = self.session.next_deadline() {
            assert!(deadline > self.now, "a deadline is over and still there");
        }
    }

    /// Ends one of the operations that the link has.
    fn complete(&mut self) {
        if self.ops.is_empty() {
            return;
        }
        let index = usize::from(self.script.byte()) % self.ops.len();
        let outcome = match self.script.byte() % 8 {
            0 => Err(OpError::Cancelled),
            1 => Err(OpError::Closed(CloseReason::PeerGone)),
            _ => Ok(self.digest()),
        };
        let (op, with) = self.ops.swap_remove(index);
        self.completed(op, with, outcome);
    }

    fn completed(&mut self, op: OpId, with: Op, outcome: Result<u64, OpError>) {
        let memory = match with {
            Op::Control(_) => OpMemory::None,
            Op::Stream { payload, .. } => OpMemory::Payload(payload),
            Op::Land { room, .. } | Op::Get { room, .. } => OpMemory::Room(room),
        };
        let completion = Completion { op, memory, outcome };
        self.session.handle_event(LinkEvent::Completed(completion), self.now);
    }

    /// Does what the session wants, and hears what it says.
    fn settle(&mut self) {
        while self.session.work() {}
        while let Some(action) = self.session.poll_action() {
            match action {
                Action::Submit(op, purpose) => self.submit(op, purpose),
                Action::Map(_) => {
                    let memory: Arc<dyn PeerMemory> = self.shown.region().clone();
                    let mapped = (!self.script.rarely(8)).then_some(memory);
                    self.session.mapped(mapped);
                }
                // A cancelled operation ends like any other, and this link is slow.
                Action::Cancel(_) => {}
                Action::Close => assert!(self.session.end().is_some()),
            }
        }
        while let Some(notice) = self.session.poll_notice() {
            self.notice(notice);
        }
    }

    fn submit(&mut self, op: Op, purpose: Purpose) {
        match &op {
            Op::Control(frame) => assert!(split_frame(frame).is_ok(), "it sends what is no frame"),
            Op::Land { tag, .. } => {
                assert!(tag.0 > self.last_tag, "tags rise");
                self.last_tag = tag.0;
            }
            Op::Get { extents, room, .. } => {
                let shape = self.shape.as_ref().expect("a peer that shows its pool");
                let end = shape.region_len();
                let inside = |e: &blockwire::pool::Extent| e.offset + e.len <= end;
                assert!(extents.iter().all(inside), "it reads past what the peer showed");
                let pulled: usize = extents.iter().map(|extent| extent.len).sum();
                let room: usize = room.extents().iter().map(|extent| extent.len).sum();
                assert_eq!(pulled, room);
            }
            Op::Stream { .. } => {}
        }
        if self.is_closed || self.script.rarely(32) {
            let error = OpError::Closed(CloseReason::PeerGone);
            return self.session.refused(Refused { op, error }, purpose);
        }
        self.last_op += 1;
        self.session.accepted(OpId(self.last_op), purpose);
        self.ops.push((OpId(self.last_op), op));
    }

    fn notice(&mut self, notice: Notice) {
        assert!(!self.is_over, "after the end: {notice:?}");
        match notice {
            Notice::Ready(peer) => {
                self.is_ready = true;
                let shape = peer.geometry.zip(self.said);
                self.shape = shape
                    .and_then(|(spec, (layout, blocks))| PoolShape::new(spec, layout, blocks).ok());
            }
            Notice::Offered(key, manifest) => {
                assert!(manifest.tokens > 0 && manifest.adoptable <= manifest.tokens);
                let before = self.incoming.insert(key, Incoming::Offered(manifest));
                assert!(before.is_none(), "offered twice");
            }
            Notice::Landed(key, landed) => {
                let shape = self.shape.as_ref();
                if let Some(adopted) = &landed.adopted {
                    let shape = shape.expect("a peer that shows its pool");
                    assert!(adopted.ids().iter().all(|id| (*id as usize) < shape.blocks()));
                    assert!(shape.region_len() <= self.shown.region().len());
                }
                let now = Incoming::Landed(landed.blocks, landed.adopted);
                let Incoming::Landed(blocks, _) = &now else { unreachable!() };
                let count = blocks.len();
                let before = self.incoming.insert(key, now);
                assert!(matches!(before, Some(Incoming::Accepted(given)) if given == count));
            }
            Notice::LandFailed(key, _) => {
                assert!(self.incoming.remove(&key).is_some(), "it failed twice");
            }
            Notice::OfferEnded(key, outcome) => {
                assert!(self.outgoing.remove(&key), "it ended twice");
                self.reached.given += u32::from(outcome.is_ok());
            }
            Notice::Message(_) => {}
            Notice::Ended(_) => {
                self.is_over = true;
                assert!(self.outgoing.is_empty(), "offers without an end");
                assert!(self.incoming.is_empty(), "landings without an end");
            }
        }
    }

    /// The link dies: every operation ends, then the session hears of it.
    fn end(mut self) -> Reached {
        self.is_closed = true;
        for (op, with) in std::mem::take(&mut self.ops) {
            self.completed(op, with, Err(OpError::Closed(CloseReason::PeerGone)));
            self.settle();
        }
        self.session.handle_event(LinkEvent::Closed(CloseReason::PeerGone), self.now);
        self.settle();
        assert!(self.is_over && self.session.is_idle(), "{:?}", self.session);
        self.adopted.clear();
        assert_eq!(self.pool.accounting().free, BLOCKS, "{:?}", self.pool.accounting());
        self.reached
    }
}
