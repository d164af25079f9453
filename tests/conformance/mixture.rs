//! Many things at once over one link.

use crate::Harness;
use crate::drive::{Pair, steps, until};
use crate::frames::{control, expect_frames};
use crate::moves::{Lane, Move, Stores, ways};
use crate::rig::{Rig, skip};
use crate::store::Random;

/// Payloads of the mixture, in each direction.
const PAYLOADS: usize = 24;
/// Blocks of a pool in it.
const BLOCKS: usize = 256;

/// Payloads of all sizes in both directions, with control between them: all is whole and in place.
pub fn payloads_and_control_do_not_mix_up<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        for way in ways(pair.near.capabilities()) {
            let mut there = Stores::small(rig, BLOCKS);
            let mut back = Stores::large(rig, BLOCKS / 4);
            let mut lane = Lane::open(way, &mut pair, &there.from).await;
            let mut lane_back = Lane::open_back(way, &mut pair, &back.from).await;
            let mut random = Random::new(6);
            let (mut tables, mut tables_back) =
                (tables(&mut random, BLOCKS), tables(&mut random, BLOCKS / 4));
            let (mut going, mut coming) = (Vec::new(), Vec::new());
            let mut lens = Vec::new();
            while let (Some(table), Some(table_back)) = (tables.pop(), tables_back.pop()) {
                let (payload, room) = there.lists(&table);
                let moving = lane.start(&mut pair.near, &mut pair.far, payload, room);
                going.push((moving, table));
                for _ in 0..random.below(3) {
                    let len = random.below(2000);
                    pair.near.submit(control(lens.len() as u32, len));
                    pair.far.submit(control(lens.len() as u32, len));
                    lens.push(len);
                }
                let (payload, room) = back.lists(&table_back);
                let moving = lane_back.start(&mut pair.far, &mut pair.near, payload, room);
                coming.push((moving, table_back));
                steps(&mut pair, random.below(4)).await;
            }
            until(&mut pair, "all operations complete", |p| {
                p.near.outstanding() + p.far.outstanding() == 0
                    && p.near.received().len().min(p.far.received().len()) >= lens.len()
            })
            .await;
            expect_frames(&mut pair.near, lens.iter().copied());
            expect_frames(&mut pair.far, lens.iter().copied());
            for (moving, table) in going {
                there.finish(moving, &mut pair, &table);
            }
            for (moving, table) in coming {
                finish_back(&mut back, moving, &mut pair, &table);
            }
            there.check();
            back.check();
            pair.near.take_all();
            pair.far.take_all();
        }
    });
}

/// A small frame behind a large payload arrives before the payload is through.
pub fn control_overtakes_a_large_payload<H: Harness>() {
    if !H::INTERLEAVES {
        return skip("the link does not interleave");
    }
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        for way in ways(pair.near.capabilities()) {
            let mut stores = Stores::large(rig, 512);
            let mut lane = Lane::open(way, &mut pair, &stores.from).await;
            let table: Vec<_> = (0..512).collect();
            let (payload, room) = stores.lists(&table);
            let moving = lane.start(&mut pair.near, &mut pair.far, payload, room);
            pair.near.submit(control(0, 100));
            pair.far.submit(control(0, 100));
            until(&mut pair, "a frame arrives each way", |p| {
                p.near.received().len() == 1 && p.far.received().len() == 1
            })
            .await;
            assert!(!pair.far.is_done(moving.landed), "64 MiB arrived before 164 bytes");
            expect_frames(&mut pair.near, [100]);
            expect_frames(&mut pair.far, [100]);
            until(&mut pair, "the payload arrives", |p| moving.is_done(&p.near, &p.far)).await;
            stores.finish(moving, &mut pair, &table);
            stores.check();
        }
    });
}

/// Disjoint tables of random length that use most blocks.
fn tables(random: &mut Random, blocks: usize) -> Vec<Vec<u32>> {
    let mut ids: Vec<u32> = (0..blocks as u32).collect();
    random.shuffle(&mut ids);
    let mut tables = Vec::new();
    while tables.len() < PAYLOADS && ids.len() > 1 {
        let len = 1 + random.below((2 * blocks / PAYLOADS).min(ids.len()));
        tables.push(ids.split_off(ids.len() - len));
    }
    tables
}

fn finish_back(stores: &mut Stores, moving: Move, pair: &mut Pair, table: &[u32]) {
    let (order, tokens) = (stores.order(), stores.tokens(table.len()));
    let bytes = stores.from.bytes(table, order, tokens.clone());
    stores.to.expect(table, order, tokens, &bytes);
    let digest = stores.digest(&bytes);
    let (from, to) = (&mut pair.far, &mut pair.near);
    moving.finish((from, &mut stores.from), (to, &mut stores.to), digest);
}
