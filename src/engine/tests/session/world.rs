//! Two sessions, their pools, and the link between them that steps play.
//!
//! Control frames wait in two queues, operations wait until a step completes them, users offer, accept,
//! withdraw, abandon, commit, recall and release at any moment, and the link may die. After every step
//! all free blocks of the sender are overwritten, so that a block which is freed while a peer may still
//! read it shows.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use blockwire::clock;
use blockwire::pool::{
    BlockPool, Cursor, Digest, Dtype, Extent, FillingBlock, GatherList, KvSequence, KvSpec,
    PeerMemory, PoolOptions, ReservedBlock, ScatterList, SealedRun, TransferStats,
};
use blockwire::session::{
    Action, DeclineCode, HandoffKey, Identity, Landed, Notice, OfferPayload, OfferStream, PieceCut,
    PoolAccess, Session, Timing,
};
use blockwire::transport::{
    Capabilities, CloseReason, Completion, LinkEvent, Op, OpError, OpId, OpMemory, Refused,
    RegionKey, StreamTag,
};
use bytes::Bytes;
use uuid::Uuid;

pub const SENDER: usize = 0;
pub const RECEIVER: usize = 1;
const BLOCK: usize = 4;
const TOKENS: usize = 7;
/// Of a sequence that is offered while it is computed: three pieces.
const STREAMED_TOKENS: usize = 11;
/// Of a sequence that is adopted as a whole.
const WHOLE_TOKENS: usize = 8;
const OVERWRITTEN: u8 = 0xee;
/// Until then everything must have come to its end.
const ROUNDS_MAX: usize = 200;

/// Recalls are due long before silence counts.
pub fn timing() -> Timing {
    Timing { recall_max: Duration::from_secs(1), ..Timing::default() }
}

fn pool() -> BlockPool {
    BlockPool::new(PoolOptions::new(KvSpec::uniform(4, 2, 1, 8, Dtype::F16), 12)).unwrap()
}

/// How a sequence that is still computed goes on.
#[derive(Debug)]
pub enum Step {
    Block(FillingBlock),
    /// Of all blocks, also those that come later.
    Layer(Arc<KvSequence>, usize),
}

impl Step {
    /// Of a sequence that is gone after the last one.
    fn by_layers(pool: &BlockPool, blocks: Vec<ReservedBlock>, tokens: usize) -> VecDeque<Self> {
        let mut sequence = KvSequence::new(pool);
        sequence.push(blocks).unwrap();
        let mut steps: VecDeque<_> =
            sequence.share_layers(tokens).into_iter().map(Self::Block).collect();
        let sequence = Arc::new(sequence);
        steps.insert(1, Self::Layer(sequence.clone(), 0));
        steps.push_back(Self::Layer(sequence, 1));
        steps
    }
}

/// How the payload comes to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Where the number is odd, while it is computed.
    Push,
    /// Pushed, and read from the sender's blocks when it arrives.
    Lingering,
    Pull,
    /// Pulled where the number is odd, else adopted; nothing moves of every second one of these.
    Adopt,
}

/// What a user knows of a handoff.
#[derive(Debug, Default)]
pub struct Known {
    pub offered: bool,
    /// Blocks that were computed and not pushed.
    pub unsent: VecDeque<Step>,
    /// Whether there is something to push, or the end of it to be told.
    pub streams: bool,
    pub sender_ended: u32,
    pub receiver_ended: u32,
    pub at_receiver: bool,
    pub accepted: bool,
    pub landed: Option<Landed>,
    /// What was committed and is read in place.
    pub adopted: Option<KvSequence>,
    pub committed: bool,
}

/// What is on its way to a side.
pub enum Wire {
    Frame(Bytes),
    /// Payload that still lies in the sender's blocks, whole or broken off.
    Payload(StreamTag, Vec<Extent>, bool),
}

pub struct World {
    pub way: Way,
    pub pools: [BlockPool; 2],
    pub sessions: [Session; 2],
    pub wires: [VecDeque<Wire>; 2],
    pub ops: [Vec<(OpId, Op, bool)>; 2],
    pub next_op: u64,
    pub dead: bool,
    pub known: BTreeMap<u32, Known>,
}

impl World {
    pub fn new(way: Way) -> Self {
        let pools = [pool(), pool()];
        let pushes = matches!(way, Way::Push | Way::Lingering);
        let capabilities = Capabilities {
            stream: pushes.then_some(1),
            get: (!pushes).then_some(1),
            adopt: way == Way::Adopt,
            same_host: true,
            lingers: way == Way::Lingering,
        };
        let session = |pool: &BlockPool| {
            let identity =
                Identity { geometry: Some(pool.spec().clone()), ..Identity::new("side") };
            let shape = pool.shape().clone();
            let access = (!pushes).then_some(PoolAccess { region: RegionKey(0), shape });
            Session::new(identity, capabilities, access, timing(), clock::now())
        };
        let sessions = [session(&pools[0]), session(&pools[1])];
        let (wires, ops) = (Default::default(), Default::default());
        let known = BTreeMap::new();
        let mut world = Self { way, pools, sessions, wires, ops, next_op: 0, dead: false, known };
        world.settle();
        world.deliver(SENDER);
        world.deliver(RECEIVER);
        world
    }

    pub fn key(epoch: u32) -> HandoffKey {
        // A request for each: an epoch of one request would replace its elders.
        HandoffKey { request: Uuid::from_u128(u128::from(epoch)), epoch: 1 }
    }

    /// The byte that every token of an offer has.
    fn pattern(number: u32) -> u8 {
        (number % 200) as u8
    }

    fn streams(&self, number: u32) -> bool {
        matches!(self.way, Way::Push | Way::Lingering) && !number.is_multiple_of(2)
    }

    fn tokens(&self, number: u32) -> usize {
        match number % 4 {
            _ if self.streams(number) => STREAMED_TOKENS,
            0 if self.way == Way::Adopt => WHOLE_TOKENS,
            _ => TOKENS,
        }
    }

    /// First token that the receiver asks for.
    fn from(&self, number: u32) -> usize {
        if self.streams(number) && number % 4 == 3 { BLOCK } else { 0 }
    }

    /// Every second stream is cut by layers too, behind its first tokens.
    fn cut(number: u32) -> PieceCut {
        let layers = u32::from(matches!(number % 8, 3 | 5));
        PieceCut { tokens: BLOCK as u32, layered_from: BLOCK, layers }
    }

    pub fn offer(&mut self, number: u32) {
        let (tokens, streams) = (self.tokens(number), self.streams(number));
        // All at once, as a scheduler does it that computes a prompt.
        let pool = self.pools[SENDER].clone();
        let Ok(mut blocks) = pool.try_reserve(tokens.div_ceil(BLOCK)) else { return };
        blocks.iter_mut().for_each(|block| block.fill(Self::pattern(number)));
        let (session, key, meta) = (&mut self.sessions[SENDER], Self::key(number), Bytes::new());
        let mut unsent = VecDeque::new();
        let offered = if streams {
            unsent = match Self::cut(number).layers {
                0 => blocks.into_iter().map(|block| Step::Block(block.seal().into())).collect(),
                _ => Step::by_layers(&pool, blocks, tokens),
            };
            let stream = OfferStream { pool, tokens, cut: Self::cut(number), meta };
            session.offer_stream(key, stream)
        } else {
            let blocks = blocks.into_iter().map(ReservedBlock::seal).collect();
            let run = SealedRun::new(&pool, blocks, tokens).unwrap();
            session.offer(key, OfferPayload { run, meta, closing: closing(number) })
        };
        if offered.is_ok() {
            let known = self.known.entry(number).or_default();
            (known.offered, known.unsent, known.streams) = (true, unsent, streams);
        }
    }

    /// One more block is computed, or one more layer. Nothing but the session holds it from here on.
    pub fn push(&mut self, number: u32) {
        let known = self.known.get_mut(&number).unwrap();
        let new = match known.unsent.pop_front() {
            Some(Step::Block(block)) => vec![block],
            Some(Step::Layer(sequence, layer)) => {
                sequence.layer_written(layer);
                vec![]
            }
            None => return,
        };
        self.sessions[SENDER].push(Self::key(number), new);
    }

    /// All of it was computed, if so.
    pub fn finish_offer(&mut self, number: u32) {
        let known = self.known.get_mut(&number).unwrap();
        if known.unsent.is_empty() && std::mem::take(&mut known.streams) {
            self.sessions[SENDER].finish_offer(Self::key(number), vec![], closing(number));
        }
    }

    pub fn accept(&mut self, number: u32) {
        let (tokens, from) = (self.tokens(number), self.from(number));
        let known = self.known.get_mut(&number).unwrap();
        if !known.at_receiver || known.accepted || known.receiver_ended > 0 {
            return;
        }
        let (pool, session) = (&self.pools[RECEIVER], &mut self.sessions[RECEIVER]);
        let adopts = self.way == Way::Adopt && number.is_multiple_of(2);
        let moved = if adopts { tokens % BLOCK } else { tokens - from };
        let needed = moved.div_ceil(BLOCK);
        if let Ok(blocks) = pool.try_reserve(needed) {
            known.accepted = true;
            match adopts {
                true => session.adopt(Self::key(number), pool, blocks),
                false => session.accept(Self::key(number), pool, blocks, from),
            }
        }
    }

    /// An offer that was accepted, while nothing of its payload has moved.
    pub fn begin(&mut self, number: u32) {
        self.offer(number);
        self.settle();
        self.deliver(RECEIVER);
        self.settle();
        self.accept(number);
        self.settle();
    }

    pub fn withdraw(&mut self, number: u32) {
        let known = self.known.get_mut(&number).unwrap();
        if known.sender_ended == 0 {
            known.sender_ended += 1;
            known.unsent.clear();
            self.sessions[SENDER].withdraw(Self::key(number));
        }
    }

    fn abandon(&mut self, number: u32) {
        let known = self.known.get_mut(&number).unwrap();
        if known.at_receiver && known.receiver_ended == 0 && !known.committed {
            known.receiver_ended += 1;
            known.landed = None;
            match known.accepted {
                true => self.sessions[RECEIVER].abandon(Self::key(number)),
                false => {
                    let code = DeclineCode::DeclineBusy;
                    self.sessions[RECEIVER].decline(Self::key(number), code, "");
                }
            }
        }
    }

    pub fn commit(&mut self, number: u32) {
        let tokens = self.tokens(number);
        let len = tokens - self.from(number);
        let known = self.known.get_mut(&number).unwrap();
        let Some(Landed { adopted, blocks, .. }) = known.landed.take() else { return };
        if self.sessions[RECEIVER].commit(Self::key(number)) {
            known.committed = true;
            known.receiver_ended += 1;
            let pool = &self.pools[RECEIVER];
            match adopted {
                Some(adopted) => {
                    let sequence = KvSequence::from_adopted(pool, adopted, blocks, tokens).unwrap();
                    known.adopted = Some(sequence);
                }
                None => check(
                    KvSequence::from_blocks(pool, vec![], blocks, len).unwrap(),
                    Self::pattern(number),
                ),
            }
        }
    }

    /// The receiver copies what it was asked for.
    fn bring_home(&mut self, number: u32) {
        let known = self.known.get_mut(&number).unwrap();
        let Some(mut sequence) = known.adopted.take() else { return };
        let recalled = sequence.recalled_blocks();
        if recalled == 0 {
            known.adopted = Some(sequence);
        } else if let Ok(blocks) = self.pools[RECEIVER].try_reserve(recalled) {
            if sequence.bring_home(blocks, &TransferStats::default()).is_ok() {
                check(sequence, Self::pattern(number));
            }
            self.sessions[RECEIVER].release(Self::key(number));
        }
    }

    /// The receiver needs an adopted sequence no more.
    pub fn release(&mut self, number: u32) {
        if self.known.get_mut(&number).unwrap().adopted.take().is_some() {
            self.sessions[RECEIVER].release(Self::key(number));
        }
    }

    /// Delivers what is next to a side.
    pub fn deliver(&mut self, side: usize) {
        match self.wires[side].pop_front() {
            Some(Wire::Frame(frame)) => {
                self.sessions[side].handle_event(LinkEvent::Received(frame), clock::now());
                assert!(self.sessions[side].end().is_none(), "{:?}", self.sessions[side].end());
            }
            Some(Wire::Payload(tag, extents, whole)) => {
                let (bytes, digest) = read_extents(&self.pools[SENDER], &extents);
                if whole {
                    self.land(tag, &bytes, digest);
                }
            }
            None => {}
        }
    }

    /// Completes one waiting operation; `as_cancelled` is what becomes of a cancelled one.
    pub fn complete(&mut self, side: usize, index: usize, as_cancelled: bool) {
        if self.ops[side].is_empty() {
            return;
        }
        let index = index % self.ops[side].len();
        let cancelled = self.ops[side][index].2;
        match &self.ops[side][index].1 {
            // A landing completes with its stream, or when it is cancelled.
            Op::Land { .. } if !cancelled => return,
            _ => {}
        }
        let (id, op, _) = self.ops[side].remove(index);
        if let (Way::Lingering, Op::Stream { tag, payload }) = (self.way, &op) {
            let whole = !(cancelled && as_cancelled);
            let wire = Wire::Payload(*tag, payload.extents().to_vec(), whole);
            self.wires[RECEIVER].push_back(wire);
        }
        if cancelled && as_cancelled {
            return self.completed(side, id, memory_of(op), Err(OpError::Cancelled));
        }
        match op {
            Op::Stream { tag, payload } => self.stream(id, tag, payload),
            Op::Get { room, extents, .. } => {
                let (bytes, digest) = read_extents(&self.pools[SENDER], &extents);
                let room = write(room, &bytes);
                self.completed(side, id, OpMemory::Room(room), Ok(digest));
            }
            op => self.completed(side, id, memory_of(op), Err(OpError::Cancelled)),
        }
    }

    fn stream(&mut self, id: OpId, tag: StreamTag, payload: GatherList) {
        let bytes: Vec<u8> =
            payload.slices(&Cursor::default(), usize::MAX).flatten().copied().collect();
        let mut digest = Digest::default();
        digest.update(&bytes);
        self.completed(SENDER, id, OpMemory::Payload(payload), Ok(digest.value()));
        if self.way == Way::Push {
            self.land(tag, &bytes, digest.value());
        }
    }

    fn land(&mut self, tag: StreamTag, bytes: &[u8], digest: u64) {
        let lands =
            |(_, op, _): &(OpId, Op, bool)| matches!(op, Op::Land { tag: t, .. } if *t == tag);
        if let Some(index) = self.ops[RECEIVER].iter().position(lands) {
            let (id, op, _) = self.ops[RECEIVER].remove(index);
            let Op::Land { room, .. } = op else { unreachable!() };
            let room = write(room, bytes);
            self.completed(RECEIVER, id, OpMemory::Room(room), Ok(digest));
        }
    }

    pub fn completed(
        &mut self,
        side: usize,
        op: OpId,
        memory: OpMemory,
        outcome: Result<u64, OpError>,
    ) {
        let event = LinkEvent::Completed(Completion { op, memory, outcome });
        self.sessions[side].handle_event(event, clock::now());
    }

    /// The link dies: every operation completes, then both sides hear of the end.
    pub fn die(&mut self) {
        self.dead = true;
        self.wires = Default::default();
        for side in [SENDER, RECEIVER] {
            for (id, op, _) in std::mem::take(&mut self.ops[side]) {
                let error = OpError::Closed(CloseReason::PeerGone);
                self.completed(side, id, memory_of(op), Err(error));
            }
            let closed = LinkEvent::Closed(CloseReason::PeerGone);
            self.sessions[side].handle_event(closed, clock::now());
        }
    }

    /// Does what the sessions want, hears what they say, overwrites what the sender has freed.
    pub fn settle(&mut self) {
        for side in [SENDER, RECEIVER] {
            while self.sessions[side].work() {}
            while let Some(action) = self.sessions[side].poll_action() {
                self.act(side, action);
            }
            while let Some(notice) = self.sessions[side].poll_notice() {
                self.hear(notice);
            }
        }
        let free = self.pools[SENDER].accounting().free;
        for mut block in self.pools[SENDER].try_reserve(free).unwrap() {
            block.fill(OVERWRITTEN);
        }
        for (number, known) in &self.known {
            if let Some(sequence) = &known.adopted {
                let bytes = read_adopted(sequence);
                let good = bytes.iter().all(|byte| *byte == Self::pattern(*number));
                assert!(good || !sequence.is_intact(), "a lent block was freed in silence");
                assert_eq!(sequence.is_intact(), !self.dead, "a lease ends with its link");
            }
        }
        let pulled = self.ops[RECEIVER].iter().filter_map(|(_, op, _)| match op {
            Op::Get { extents, .. } => Some(extents),
            _ => None,
        });
        let lingering = self.wires[RECEIVER].iter().filter_map(|wire| match wire {
            Wire::Payload(_, extents, _) => Some(extents),
            Wire::Frame(_) => None,
        });
        for extents in pulled.chain(lingering) {
            let (bytes, _) = read_extents(&self.pools[SENDER], extents);
            assert!(!bytes.contains(&OVERWRITTEN), "a block was freed under its reader");
        }
    }

    fn act(&mut self, side: usize, action: Action) {
        match action {
            Action::Submit(op, purpose) if self.dead => {
                let error = OpError::Closed(CloseReason::PeerGone);
                self.sessions[side].refused(Refused { op, error }, purpose);
            }
            Action::Submit(op, purpose) => {
                self.next_op += 1;
                let id = OpId(self.next_op);
                self.sessions[side].accepted(id, purpose);
                match op {
                    Op::Control(frame) => self.wires[1 - side].push_back(Wire::Frame(frame)),
                    op => self.ops[side].push((id, op, false)),
                }
            }
            Action::Map(_) => {
                let memory: Arc<dyn PeerMemory> = self.pools[1 - side].region().clone();
                self.sessions[side].mapped(Some(memory));
            }
            Action::Cancel(id) => {
                self.ops[side].iter_mut().filter(|op| op.0 == id).for_each(|op| op.2 = true);
            }
            Action::Close => assert!(self.dead, "a session closed a healthy link"),
        }
    }

    fn hear(&mut self, notice: Notice) {
        let number = |key: HandoffKey| key.request.as_u128() as u32;
        match notice {
            Notice::Offered(key, manifest) => {
                assert_eq!(manifest.tokens, self.tokens(number(key)));
                self.known.get_mut(&number(key)).unwrap().at_receiver = true;
            }
            Notice::Landed(key, landed) => {
                let known = self.known.get_mut(&number(key)).unwrap();
                assert_eq!(known.receiver_ended, 0, "landed after its end");
                assert_eq!(landed.closing, closing(number(key)));
                assert!(known.unsent.is_empty() && !known.streams, "landed before it was finished");
                known.landed = Some(landed);
            }
            Notice::LandFailed(key, _) => {
                let known = self.known.get_mut(&number(key)).unwrap();
                known.receiver_ended += 1;
                known.landed = None;
            }
            Notice::OfferEnded(key, outcome) => {
                let known = self.known.get_mut(&number(key)).unwrap();
                known.sender_ended += 1;
                known.unsent.clear();
                assert!(outcome.is_err() || known.committed, "a commit that never was");
            }
            Notice::Ready(_) | Notice::Message(_) => {}
            Notice::Ended(_) => assert!(self.dead),
        }
    }

    /// Lets everything that was begun come to its end.
    pub fn finish(&mut self) {
        for round in 0..ROUNDS_MAX {
            self.settle();
            if self.is_at_rest() {
                return;
            }
            for side in [SENDER, RECEIVER] {
                self.deliver(side);
                self.settle();
                self.complete(side, round, true);
                self.settle();
            }
            let numbers: Vec<u32> = self.known.keys().copied().collect();
            for number in numbers {
                self.push(number);
                self.finish_offer(number);
                self.settle();
                self.accept(number);
                self.settle();
                self.commit(number);
                self.settle();
                self.release(number);
                self.settle();
            }
        }
    }

    /// Whether nothing is under way, and nobody holds anything.
    fn is_at_rest(&self) -> bool {
        let holds = |known: &Known| known.adopted.is_some() || known.landed.is_some();
        self.wires.iter().all(VecDeque::is_empty)
            && self.ops.iter().all(Vec::is_empty)
            && self.sessions.iter().all(Session::is_idle)
            && !self.known.values().any(holds)
    }

    pub fn check_end(&self) {
        for (number, known) in &self.known {
            assert_eq!(known.sender_ended, 1, "offer {number}: {known:?}");
            assert!(known.receiver_ended <= 1, "offer {number}: {known:?}");
        }
        for (side, pool) in self.pools.iter().enumerate() {
            assert_eq!(pool.accounting().free, 12, "side {side} leaks: {:?}", pool.accounting());
        }
        assert!(self.sessions.iter().all(Session::is_idle), "{:?}", self.way);
    }
}

/// What is said of an offer at its end.
fn closing(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// Every byte of a committed sequence is what was offered.
fn check(mut sequence: KvSequence, pattern: u8) {
    assert!(sequence.adopted().is_none());
    let len = sequence.len();
    for (token, block) in
        sequence.finish().iter().flat_map(|b| (0..4).map(move |t| (t, b))).take(len)
    {
        let bytes = block.token_bytes(token);
        let wrong = bytes.iter().flatten().flat_map(|b| b.iter()).any(|b| *b != pattern);
        assert!(!wrong, "committed bytes are not what was offered");
    }
}

/// The bytes of the adopted blocks, where they lie.
fn read_adopted(sequence: &KvSequence) -> Vec<u8> {
    let adopted = sequence.adopted().unwrap();
    let (base, shape) = (adopted.peer().base(), adopted.peer().shape());
    let plane = shape.plane(0, blockwire::pool::Part::Key).unwrap();
    let len = shape.spec().block_bytes();
    let block = |id: &u32| {
        // SAFETY: a block-major block of the peer's is one run of bytes inside its mapped memory; this
        // test has one thread, so that nobody writes meanwhile.
        unsafe {
            let start = base.as_ptr().add(*id as usize * plane.block_stride);
            std::slice::from_raw_parts(start, len)
        }
    };
    adopted.ids().iter().flat_map(block).copied().collect()
}

fn memory_of(op: Op) -> OpMemory {
    match op {
        Op::Control(_) => OpMemory::None,
        Op::Stream { payload, .. } => OpMemory::Payload(payload),
        Op::Land { room, .. } | Op::Get { room, .. } => OpMemory::Room(room),
    }
}

pub fn write(mut room: ScatterList, mut bytes: &[u8]) -> ScatterList {
    for slice in room.slices(&Cursor::default(), usize::MAX) {
        let (now, later) = bytes.split_at(slice.len());
        slice.copy_from_slice(now);
        bytes = later;
    }
    room
}

fn read_extents(pool: &BlockPool, extents: &[Extent]) -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    for extent in extents {
        assert!(extent.offset + extent.len <= pool.region().len());
        // SAFETY: inside the region (checked), which lives as long as the pool; this test has one
        // thread, so that nobody writes meanwhile.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(pool.base().as_ptr().add(extent.offset), extent.len)
        });
    }
    let mut digest = Digest::default();
    digest.update(&bytes);
    (bytes, digest.value())
}

/// One step; `number` and `index` choose among what there is.
pub fn step(world: &mut World, kind: u8, number: u32, index: usize) {
    let offered = !world.known.is_empty();
    let number = if offered { number % world.known.len() as u32 } else { 0 };
    match kind {
        0 if !world.dead => {
            let next = world.known.len() as u32;
            world.offer(next);
        }
        1 | 2 => world.deliver(SENDER),
        3 | 4 => world.deliver(RECEIVER),
        5 => world.complete(SENDER, index, index.is_multiple_of(2)),
        6 => world.complete(RECEIVER, index, index.is_multiple_of(2)),
        7 if offered => world.accept(number),
        8 if offered => world.withdraw(number),
        9 if offered => world.abandon(number),
        10 if offered => world.commit(number),
        11 if index.is_multiple_of(16) && !world.dead => world.die(),
        12 if offered => world.release(number),
        13 => drop(world.sessions[SENDER].recall_oldest(clock::now())),
        14 if offered => world.bring_home(number),
        15 if offered => world.push(number),
        16 if offered => world.finish_offer(number),
        _ => {}
    }
    world.settle();
}
