//! Payload: every byte in its place, and no other byte touched.

use blockwire::pool::{
    Dtype, KvSpec, LayerSpec, Layout, Part, PayloadOrder, PoolOptions, SegmentSpec,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::Harness;
use crate::drive::{Pair, until};
use crate::moves::{Lane, Stores, Way, ways};
use crate::rig::Rig;
use crate::store::{Random, Store};

/// Payloads of one run.
const CASES: u32 = 48;

/// Any two layouts and block lengths, any blocks, any ranges, any partial tail: the same bytes arrive,
/// nothing else changes, both digests are that of the bytes.
pub fn payload_arrives_in_any_shape<H: Harness>() {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&shape(), |shape| {
            let rig = Rig::<H>::new(shape.seed % 2 == 1);
            rig.block_on(transfer(&rig, &shape));
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// As many user-space copies as the capabilities say, and as many bytes sent and landed as there are.
pub fn copies_are_as_many_as_declared<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        assert_eq!(pair.near.capabilities(), pair.far.capabilities());
        for way in ways(pair.near.capabilities()) {
            let mut stores = Stores::large(rig, 24);
            let mut lane = Lane::open(way, &mut pair, &stores.from).await;
            let before = traffic(&pair);
            let table: Vec<_> = (0..24).collect();
            stores.transfer(&mut lane, &mut pair, &table).await;
            let after = traffic(&pair);
            let len = 24 * stores.from.pool().spec().block_bytes() as u64;
            let copies = u64::from(way.copies(pair.near.capabilities()).unwrap());
            assert_eq!(after.0 - before.0, copies * len, "bytes copied, {way:?}");
            assert_eq!(after.1 - before.1, len, "bytes landed, {way:?}");
            if way == Way::Push {
                assert_eq!(after.2 - before.2, len, "bytes sent, {way:?}");
            }
            stores.check();
        }
    });
}

/// One payload after the other over one link, from blocks that are used again.
pub fn blocks_are_reused_for_the_next_payload<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        for way in ways(pair.near.capabilities()) {
            let mut stores = Stores::small(rig, 8);
            let mut lane = Lane::open(way, &mut pair, &stores.from).await;
            let mut random = Random::new(5);
            for _ in 0..200 {
                let mut table: Vec<u32> = (0..8).collect();
                random.shuffle(&mut table);
                table.truncate(1 + random.below(8));
                stores.transfer(&mut lane, &mut pair, &table).await;
            }
            stores.check();
        }
    });
}

fn traffic(pair: &Pair) -> (u64, u64, u64) {
    let (near, far) = (pair.near.stats(), pair.far.stats());
    (near.copied() + far.copied(), far.landed(), near.sent())
}

/// One random transfer.
#[derive(Clone, Debug)]
struct Shape {
    layers: Vec<LayerSpec>,
    from: (Layout, u32),
    to: (Layout, u32),
    /// Wire blocks skipped, then wire blocks sent; the last is short by `tail` tokens.
    run: (usize, usize),
    wire: u32,
    tail: usize,
    /// The room starts at this multiple of both block lengths.
    start: usize,
    seed: u64,
}

fn shape() -> impl Strategy<Value = Shape> {
    let segment = |part| {
        let dtype = prop_oneof![Just(Dtype::F16), Just(Dtype::Bf16), Just(Dtype::F32)];
        (1u32..4, 1u32..40, dtype).prop_map(move |(heads, head_dim, dtype)| SegmentSpec {
            part,
            heads,
            head_dim,
            dtype,
        })
    };
    let layer = (segment(Part::Key), segment(Part::Value))
        .prop_map(|(key, value)| LayerSpec { segments: vec![key, value] });
    let pool = || (prop_oneof![Just(Layout::BlockMajor), Just(Layout::LayerMajor)], 1u32..17);
    (
        prop::collection::vec(layer, 1..5),
        (pool(), pool()),
        (0usize..4, 1usize..7),
        (1u32..17, any::<bool>()),
        (0usize..16, 0usize..3),
        any::<u64>(),
    )
        .prop_map(|(layers, (from, to), run, (wire, own), (tail, start), seed)| {
            let wire = if own { from.1 } else { wire };
            Shape { layers, from, to, run, wire, tail: tail % wire as usize, start, seed }
        })
}

impl Shape {
    /// Tokens at the sender.
    fn tokens(&self) -> std::ops::Range<usize> {
        let (wire, (skipped, sent)) = (self.wire as usize, self.run);
        skipped * wire..(skipped + sent) * wire - self.tail
    }

    fn store<H: Harness>(
        &self,
        rig: &Rig<H>,
        (layout, block_tokens): (Layout, u32),
        tokens: usize,
        seed: u64,
    ) -> (Store, Vec<u32>) {
        let spec = KvSpec { block_tokens, layers: self.layers.clone() };
        let (used, spare) = (spec.blocks_for(tokens), 3);
        let options = PoolOptions { layout, ..PoolOptions::new(spec, used + spare) };
        let mut table: Vec<u32> = (0..(used + spare) as u32).collect();
        // Half of the tables have neighbours that join to long extents.
        if seed % 4 < 2 {
            Random::new(seed).shuffle(&mut table);
        }
        table.truncate(used);
        (Store::new(rig.pool(options), seed), table)
    }
}

async fn transfer<H: Harness>(rig: &Rig<H>, shape: &Shape) {
    let mut pair = rig.pair().await;
    for way in ways(pair.near.capabilities()) {
        let order = PayloadOrder { block_tokens: shape.wire };
        let tokens = shape.tokens();
        let total = tokens.len();
        let (mut from, sent) = shape.store(rig, shape.from, tokens.end, shape.seed);
        let (mut to, room) = shape.store(rig, shape.to, total, shape.seed.rotate_left(7));
        let start = shape.start * (shape.wire * shape.to.1) as usize;
        let bytes = from.bytes(&sent, order, tokens.clone());
        let mut lane = Lane::open(way, &mut pair, &from).await;
        let payload = from.payload(&sent, order, tokens);
        let space = to.room(&room, order, start..start + total);
        let moving = lane.start(&mut pair.near, &mut pair.far, payload, space);
        until(&mut pair, "the payload arrives", |p| moving.is_done(&p.near, &p.far)).await;
        to.expect(&room, order, start..start + total, &bytes);
        moving.finish((&mut pair.near, &mut from), (&mut pair.far, &mut to), H::digest(&bytes));
        from.check();
        to.check();
    }
}
