//! Reading a peer's region where it lies.

use std::sync::Arc;

use blockwire::pool::{
    AdoptedBlocks, BlockPool, Dtype, Grant, KvSequence, KvSpec, Lease, LeaseLost, PeerMemory,
    PeerPool, PoolOptions, ReservedBlock, TransferStats,
};
use blockwire::transport::RegionKey;

use crate::Harness;
use crate::drive::{Pair, until};
use crate::rig::{Rig, skip};

const BLOCKS: usize = 4;

fn pool<H: Harness>(rig: &Rig<H>) -> BlockPool {
    rig.pool(PoolOptions::new(KvSpec::uniform(4, 2, 1, 8, Dtype::F16), 2 * BLOCKS))
}

/// Some blocks that a pool lends, filled with `byte`.
fn lend(pool: &BlockPool, byte: u8) -> (Grant, Vec<u32>) {
    let mut blocks = pool.try_reserve(BLOCKS).unwrap();
    blocks.iter_mut().for_each(|block| block.fill(byte));
    let ids = blocks.iter().map(ReservedBlock::id).collect();
    let mut grant = pool.grant().unwrap();
    grant.lend(blocks.into_iter().map(ReservedBlock::seal).collect());
    (grant, ids)
}

/// Registers a pool at the near end; gives its memory as the far end sees it.
async fn reach(pair: &mut Pair, pool: &BlockPool) -> (RegionKey, Arc<dyn PeerMemory>) {
    let key = pair.near.link().register(pool.region()).unwrap();
    let offer = pair.near.submit(crate::frames::control(0, 0));
    until(pair, "the offer arrives", |pair| {
        pair.near.is_done(offer) && pair.far.received().pop_front().is_some()
    })
    .await;
    (key, pair.far.link().peer_memory(key).expect("a key that was told"))
}

fn adopt(
    memory: &Arc<dyn PeerMemory>,
    lender: &BlockPool,
    grant: &Grant,
    ids: &[u32],
) -> AdoptedBlocks {
    let peer = PeerPool::new(memory.clone(), lender.shape().clone()).expect("a whole pool");
    let lease = Lease::new(Arc::new(peer), grant.id()).expect("a slot of the pool");
    AdoptedBlocks::new(Arc::new(lease), ids.to_vec()).expect("blocks of the pool")
}

/// Copies adopted blocks, and checks every byte.
fn read(borrower: &BlockPool, adopted: AdoptedBlocks, byte: u8) -> Result<(), LeaseLost> {
    let tokens = BLOCKS * 4;
    let mut sequence = KvSequence::from_adopted(borrower, adopted, vec![], tokens).unwrap();
    let home = borrower.try_reserve(BLOCKS).unwrap();
    sequence.bring_home(home, &TransferStats::default())?;
    for block in sequence.finish() {
        let bytes = (0..4).flat_map(|token| block.token_bytes(token)).flatten();
        assert!(bytes.flatten().all(|read| *read == byte), "another byte than was lent");
    }
    Ok(())
}

/// A peer sees what was written, sees the end of a lease, and keeps its view when the link is gone.
pub fn a_peers_memory_is_read_in_place<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        if !pair.near.capabilities().adopt {
            return skip("the link has no peer memory");
        }
        let (lender, borrower) = (pool(rig), pool(rig));
        let (key, memory) = reach(&mut pair, &lender).await;
        let (grant, ids) = lend(&lender, 7);
        assert_eq!(read(&borrower, adopt(&memory, &lender, &grant, &ids), 7), Ok(()));
        let late = adopt(&memory, &lender, &grant, &ids);
        drop(grant);
        // The same word and the same blocks, for somebody else.
        let (again, same) = lend(&lender, 9);
        assert_eq!(read(&borrower, late, 9), Err(LeaseLost));
        assert!(pair.far.link().peer_memory(RegionKey(key.0.wrapping_add(1))).is_none());
        drop(pair);
        assert_eq!(read(&borrower, adopt(&memory, &lender, &again, &same), 9), Ok(()));
        drop(again);
        for pool in [lender, borrower] {
            assert_eq!(pool.accounting().free, 2 * BLOCKS);
        }
    });
}
