//! One payload from a sender's blocks to a receiver's, by whichever way a link has.

use blockwire::pool::{
    Dtype, GatherList, KvSpec, PayloadOrder, PoolOptions, ScatterList, TokenRange,
};
use blockwire::transport::{Capabilities, Op, OpId, RegionKey, StreamTag};

use crate::Harness;
use crate::drive::{Pair, until};
use crate::node::Node;
use crate::rig::Rig;
use crate::store::Store;

/// How payload gets across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `Land` at the receiver, `Stream` at the sender.
    Push,
    /// `register` at the sender, `Get` at the receiver.
    Pull,
}

impl Way {
    /// Copies that a payload byte makes this way.
    pub fn copies(self, capabilities: Capabilities) -> Option<u8> {
        match self {
            Self::Push => capabilities.stream,
            Self::Pull => capabilities.get,
        }
    }
}

/// The ways that a link has.
///
/// # Panics
/// When it has none.
pub fn ways(capabilities: Capabilities) -> Vec<Way> {
    let push = capabilities.stream.map(|_| Way::Push);
    let pull = capabilities.get.map(|_| Way::Pull);
    let ways: Vec<_> = push.into_iter().chain(pull).collect();
    assert!(!ways.is_empty(), "the link moves no payload at all");
    ways
}

/// A way from one node to its peer, ready for payload.
#[derive(Debug)]
pub struct Lane {
    key: Option<RegionKey>,
    tag: u64,
}

/// A payload under way.
#[derive(Debug)]
pub struct Move {
    /// The sender's operation, where it has one.
    pub sent: Option<OpId>,
    /// The receiver's operation.
    pub landed: OpId,
    /// What the sender has to hold until the receiver is done, where no operation does.
    held: Option<GatherList>,
}

impl Lane {
    /// Prepares a lane from near to far.
    pub async fn open(way: Way, pair: &mut Pair, sender: &Store) -> Self {
        Self::between(way, pair, sender, |pair| (&mut pair.near, &mut pair.far)).await
    }

    /// Prepares a lane from far to near.
    pub async fn open_back(way: Way, pair: &mut Pair, sender: &Store) -> Self {
        Self::between(way, pair, sender, |pair| (&mut pair.far, &mut pair.near)).await
    }

    async fn between(
        way: Way,
        pair: &mut Pair,
        sender: &Store,
        ends: fn(&mut Pair) -> (&mut Node, &mut Node),
    ) -> Self {
        let mut key = None;
        if way == Way::Pull {
            let (from, _) = ends(pair);
            key = Some(from.link().register(sender.pool().region()).unwrap());
            // The peer learns a key from a control frame, never sooner.
            let offer = from.submit(crate::frames::control(0, 0));
            until(pair, "the offer arrives", |pair| {
                let (from, to) = ends(pair);
                from.is_done(offer) && to.received().pop_front().is_some()
            })
            .await;
            ends(pair).0.take(offer);
        }
        Self { key, tag: 0 }
    }

    /// Starts a payload.
    pub fn start(
        &mut self,
        from: &mut Node,
        to: &mut Node,
        payload: GatherList,
        room: ScatterList,
    ) -> Move {
        if let Some(region) = self.key {
            let extents = payload.extents().to_vec();
            let landed = to.submit(Op::Get { region, extents, room });
            return Move { sent: None, landed, held: Some(payload) };
        }
        let tag = self.next_tag();
        let landed = to.submit(Op::Land { tag, room });
        let sent = from.submit(Op::Stream { tag, payload });
        Move { sent: Some(sent), landed, held: None }
    }

    /// A tag that was not used on this lane.
    pub fn next_tag(&mut self) -> StreamTag {
        self.tag += 1;
        StreamTag(self.tag)
    }

    /// Leaves tags out, so that the next one is larger than `tag`.
    pub fn skip_tags(&mut self, tag: u64) {
        self.tag = self.tag.max(tag);
    }

    /// The key of the sender's region, where the receiver pulls.
    pub fn key(&self) -> Option<RegionKey> {
        self.key
    }
}

impl Move {
    /// Whether both sides are done.
    pub fn is_done(&self, from: &Node, to: &Node) -> bool {
        self.sent.is_none_or(|sent| from.is_done(sent)) && to.is_done(self.landed)
    }

    /// Checks that both sides succeeded with this digest, and takes the memory back.
    ///
    /// # Panics
    /// When one did not.
    pub fn finish(self, from: (&mut Node, &mut Store), to: (&mut Node, &mut Store), digest: u64) {
        if let Some(sent) = self.sent {
            let found = from.1.take_success(from.0.take(sent));
            assert_eq!(found, digest, "digest at the sender");
        }
        let found = to.1.take_success(to.0.take(self.landed));
        assert_eq!(found, digest, "digest at the receiver");
        drop(self.held);
    }
}

/// The two stores of a test, and tokens that lie in both.
#[derive(Debug)]
pub struct Stores {
    /// Sends.
    pub from: Store,
    /// Receives.
    pub to: Store,
    digest: fn(&[u8]) -> u64,
}

impl Stores {
    /// Two pools of `blocks` blocks of 128 KiB.
    pub fn large<H: Harness>(rig: &Rig<H>, blocks: usize) -> Self {
        Self::of(rig, KvSpec::uniform(16, 4, 8, 64, Dtype::F16), blocks)
    }

    /// Two pools of `blocks` blocks of 512 bytes.
    pub fn small<H: Harness>(rig: &Rig<H>, blocks: usize) -> Self {
        Self::of(rig, KvSpec::uniform(4, 2, 2, 8, Dtype::F16), blocks)
    }

    fn of<H: Harness>(rig: &Rig<H>, spec: KvSpec, blocks: usize) -> Self {
        let pool = || rig.pool(PoolOptions::new(spec.clone(), blocks));
        Self { from: Store::new(pool(), 1), to: Store::new(pool(), 2), digest: H::digest }
    }

    /// The sender's block length.
    pub fn order(&self) -> PayloadOrder {
        PayloadOrder { block_tokens: self.from.pool().spec().block_tokens }
    }

    /// All tokens that `blocks` blocks hold.
    pub fn tokens(&self, blocks: usize) -> TokenRange {
        0..blocks * self.from.pool().spec().block_tokens as usize
    }

    /// Moves whole blocks `table`, which have the same ids on both sides, and checks them.
    pub async fn transfer(&mut self, lane: &mut Lane, pair: &mut Pair, table: &[u32]) {
        let (payload, room) = self.lists(table);
        let moving = lane.start(&mut pair.near, &mut pair.far, payload, room);
        until(pair, "a payload arrives", |p| moving.is_done(&p.near, &p.far)).await;
        self.finish(moving, pair, table);
    }

    /// Payload and room of whole blocks `table`.
    pub fn lists(&mut self, table: &[u32]) -> (GatherList, ScatterList) {
        let (order, tokens) = (self.order(), self.tokens(table.len()));
        let payload = self.from.payload(table, order, tokens.clone());
        (payload, self.to.room(table, order, tokens))
    }

    /// Checks a finished transfer of whole blocks `table`.
    pub fn finish(&mut self, moving: Move, pair: &mut Pair, table: &[u32]) {
        let digest = self.arrived(table);
        moving.finish((&mut pair.near, &mut self.from), (&mut pair.far, &mut self.to), digest);
    }

    /// Says that the payload of `table` was received; its digest.
    pub fn arrived(&mut self, table: &[u32]) -> u64 {
        let (order, tokens) = (self.order(), self.tokens(table.len()));
        let bytes = self.from.bytes(table, order, tokens.clone());
        self.to.expect(table, order, tokens, &bytes);
        self.digest(&bytes)
    }

    /// What both ends should say of these bytes.
    pub fn digest(&self, bytes: &[u8]) -> u64 {
        (self.digest)(bytes)
    }

    /// Says that the payload of `table` may have been received in part.
    pub fn broken_off(&mut self, table: &[u32]) {
        let (order, tokens) = (self.order(), self.tokens(table.len()));
        self.to.expect_anything(table, order, tokens);
    }

    /// Compares every byte of both pools.
    pub fn check(self) {
        self.from.check();
        self.to.check();
    }
}
