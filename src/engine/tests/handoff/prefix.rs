//! Handoffs of which the receiver has a part already, over every transport.

use blockwire::handoff::send_handoff_payload;
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{
    BlockPool, KvSequence, Layout, PoolOptions, PrefixChain, PrefixKey, PrefixRoot,
};
use bytes::Bytes;

use crate::pair::{Pair, key, next_handoff, options, pair, run, written};

/// What the blocks consist of that the receiver has, so that they show.
const HERE: u8 = 0xa7;

fn keys(pool: &BlockPool, tokens: usize) -> Vec<PrefixKey> {
    let tokens: Vec<u32> = (0..tokens as u32).collect();
    let root = PrefixRoot::new(b"tiny", "", "");
    PrefixChain::new(root, pool.spec().block_tokens).keys(&tokens).to_vec()
}

/// Leaves the full blocks of the first `tokens` tokens in a pool's cache.
fn cache(pool: &BlockPool, tokens: usize) {
    let room = pool.try_reserve(pool.spec().blocks_for(tokens)).unwrap();
    let mut sequence = KvSequence::from_blocks(pool, vec![], room, 0).unwrap();
    (0..tokens).for_each(|position| sequence.fill_token(position, HERE));
    sequence.set_len(tokens);
    sequence.cache_full(&keys(pool, tokens));
}

/// Forgets what is cached.
fn forget(pool: &BlockPool) {
    drop(pool.try_reserve(pool.accounting().available()).unwrap());
}

async fn hand_over(pair: &mut Pair, tokens: usize, adopt: bool) -> KvSequence {
    let handoff = written(&pair.prefill.pool, tokens);
    let send = send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::new());
    let receive = async {
        let incoming = next_handoff(&mut pair.from_prefill).await;
        let keys = keys(&pair.decode.pool, tokens);
        let options = IngestOptions { tokens_max: 1000, growth: 20, adopt, keys: &keys };
        ingest_sequence_handoff(incoming, &pair.decode.pool, options).await.unwrap().sequence
    };
    let (sent, received) = tokio::join!(send, receive);
    sent.unwrap();
    received
}

/// The first `here` tokens are those that were here, the others those that were sent.
fn check(sequence: &KvSequence, tokens: usize, here: usize) {
    assert_eq!(sequence.len(), tokens);
    for position in 0..tokens {
        let expected = if position < here { HERE } else { position as u8 ^ 0x5a };
        let mut bytes = Vec::new();
        sequence.read_token(position, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == expected), "token {position}, {here} of {tokens}");
    }
}

async fn over(wire: &crate::pair::Wire, from: PoolOptions, to: PoolOptions, alike: bool) {
    let mut pair = pair(wire, from, to).await;
    let block = pair.decode.pool.spec().block_tokens as usize;
    for tokens in [15, 16, 17, 32, 47, 100] {
        for cached in [0, 15, 16, 17, 31, 32, 48, 100, 130] {
            cache(&pair.decode.pool, cached);
            let sequence = hand_over(&mut pair, tokens, false).await;
            let here = if alike { cached.min(tokens) / block * block } else { 0 };
            check(&sequence, tokens, here);
            assert_eq!(sequence.indexed_blocks(), here / block);
            assert!(sequence.capacity() >= tokens + 20);
            drop(sequence);
            forget(&pair.decode.pool);
            let count = pair.decode.pool.accounting();
            assert_eq!(count.free, count.total);
        }
    }
}

#[test]
fn only_the_missing_blocks_move() {
    run(|wire| async move {
        let pool = |block_tokens| options(Layout::BlockMajor, block_tokens);
        over(&wire, pool(16), pool(16), true).await;
        // A sender's block may be a part of the receiver's, but not reach over its end.
        over(&wire, pool(8), pool(16), true).await;
        over(&wire, pool(16), pool(8), false).await;
    });
}

#[test]
fn what_can_be_read_in_place_is_where_more_of_it_can_than_is_here() {
    run(|wire| async move {
        let options = options(Layout::BlockMajor, 16);
        let mut pair = pair(&wire, options.clone(), options).await;
        for (cached, here) in [(0, 0), (47, 0), (63, 0), (64, 64), (80, 64)] {
            cache(&pair.decode.pool, cached);
            let sequence = hand_over(&mut pair, 70, true).await;
            if let Some(adopted) = sequence.adopted() {
                assert_eq!((adopted.ids().len(), here), (4, 0));
                check(&sequence, 70, 0);
            } else {
                // Where nothing can be, all that is missing is moved.
                check(&sequence, 70, if here == 0 { cached / 16 * 16 } else { here });
                assert!(here > 0 || wire.1.scheme() != "shm", "{cached} cached");
            }
            drop(sequence);
            forget(&pair.decode.pool);
        }
    });
}
