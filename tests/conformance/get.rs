//! Pulling from a peer's region: what a peer may ask for, and what it may not.

use blockwire::pool::{Extent, ScatterList};
use blockwire::transport::{Op, OpError, RegionKey};

use crate::Harness;
use crate::drive::{Pair, until};
use crate::moves::{Lane, Stores, Way};
use crate::refusal::take_op;
use crate::rig::{Rig, skip};
use crate::store::Store;

/// A key that the peer never gave out is an error with a type; the link goes on.
pub fn a_bad_region_key_is_an_error<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let Some((mut pair, mut stores, mut lane)) = prepare(rig).await else { return };
        let own = lane.key().map_or(0, |key| key.0);
        for key in [own ^ 1, own.wrapping_add(1), own.wrapping_sub(1), 0x7fff_ffff, u32::MAX] {
            let (extents, room) = lists(&mut stores);
            let get = Op::Get { region: RegionKey(key), extents, room };
            let error = fails(&mut pair, &mut stores.to, get).await;
            assert!(
                matches!(error, OpError::UnknownRegion(RegionKey(k)) if k == key),
                "key {key}: {error}"
            );
        }
        stores.transfer(&mut lane, &mut pair, &[3, 1]).await;
        stores.check();
    });
}

/// Extents past the region, or of another length than the room, are an error with a type.
pub fn bad_extents_are_an_error<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let Some((mut pair, mut stores, mut lane)) = prepare(rig).await else { return };
        let region_len = stores.from.pool().region().len();
        let block = stores.from.pool().spec().block_bytes();
        let cases = [
            vec![Extent { offset: region_len - block + 1, len: block }],
            vec![Extent { offset: region_len, len: block }],
            vec![Extent { offset: usize::MAX, len: block }],
            vec![Extent { offset: usize::MAX - block + 1, len: block }],
            vec![Extent { offset: 0, len: usize::MAX }],
            vec![Extent { offset: 0, len: block - 1 }],
            vec![Extent { offset: 0, len: block + 1 }],
            vec![Extent { offset: 0, len: block }, Extent { offset: block, len: block }],
            vec![Extent { offset: 0, len: usize::MAX }, Extent { offset: 0, len: block + 1 }],
            vec![Extent { offset: 0, len: block - 1 }, Extent { offset: region_len, len: 1 }],
            vec![],
        ];
        for extents in cases {
            let (_, room) = lists(&mut stores);
            let region = lane.key().expect("a pull lane has a key");
            let text = format!("{extents:?}");
            let error = fails(&mut pair, &mut stores.to, Op::Get { region, extents, room }).await;
            assert!(matches!(error, OpError::BadExtents), "{text}: {error}");
        }
        stores.transfer(&mut lane, &mut pair, &[3, 1]).await;
        stores.check();
    });
}

/// Every region has a key of its own, also one that is registered while another is pulled from.
pub fn regions_are_told_apart<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let Some((mut pair, mut first, mut lane)) = prepare(rig).await else { return };
        let mut more: Vec<_> = (0..6).map(|_| Stores::small(rig, 4)).collect();
        let mut lanes = Vec::new();
        for stores in &more {
            lanes.push(Lane::open(Way::Pull, &mut pair, &stores.from).await);
        }
        for (stores, lane) in more.iter_mut().zip(&mut lanes).rev() {
            stores.transfer(lane, &mut pair, &[2, 0]).await;
        }
        first.transfer(&mut lane, &mut pair, &[1, 3]).await;
        more.into_iter().chain([first]).for_each(Stores::check);
    });
}

async fn prepare<H: Harness>(rig: &Rig<H>) -> Option<(Pair, Stores, Lane)> {
    let mut pair = rig.pair().await;
    if pair.near.capabilities().get.is_none() {
        skip("the link has no get");
        return None;
    }
    let stores = Stores::small(rig, 4);
    let lane = Lane::open(Way::Pull, &mut pair, &stores.from).await;
    Some((pair, stores, lane))
}

fn lists(stores: &mut Stores) -> (Vec<Extent>, ScatterList) {
    let (payload, room) = stores.lists(&[0]);
    (payload.extents().to_vec(), room)
}

/// Submits what has to fail, at once or later, and takes its memory back untouched.
async fn fails(pair: &mut Pair, store: &mut Store, get: Op) -> OpError {
    match pair.far.try_submit(get) {
        Err(refused) => {
            take_op(store, refused.op);
            refused.error
        }
        Ok(op) => {
            until(pair, "a bad get fails", |p| p.far.is_done(op)).await;
            let completion = pair.far.take(op);
            store.take_back(completion.memory);
            completion.outcome.expect_err("it is bad")
        }
    }
}
