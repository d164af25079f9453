//! Handoffs whose payload stays where it is, over shared memory.

use std::time::Duration;

use blockwire::handoff::send_handoff_payload;
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{KvSequence, Layout, Part, SealedBlock, TransferStats};
use blockwire::session::OfferError;
use bytes::Bytes;

use crate::pair::{Pair, all_free, assert_written, key, next_handoff, options, pair, run, written};

const ADOPTING: IngestOptions<'static> =
    IngestOptions { tokens_max: 1000, growth: 20, adopt: true, keys: &[] };

/// Runs a test over the transports that can leave payload where it is.
fn run_adopting<F: Future<Output = ()>>(test: impl Fn(Pair) -> F) {
    run(async |wire| {
        let (prefill, decode) = (options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16));
        let pair = pair(&wire, prefill, decode).await;
        if pair.to_decode.capabilities().adopt {
            test(pair).await;
        }
    });
}

/// Hands `tokens` tokens over, and gives what the decode side has of them.
async fn hand_over(pair: &mut Pair, tokens: usize) -> KvSequence {
    let handoff = written(&pair.prefill.pool, tokens);
    let send = send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::new());
    let receive = async {
        let incoming = next_handoff(&mut pair.from_prefill).await;
        ingest_sequence_handoff(incoming, &pair.decode.pool, ADOPTING).await.unwrap().sequence
    };
    let (sent, sequence) = tokio::join!(send, receive);
    sent.unwrap();
    sequence
}

/// The first byte of each adopted token, where it lies.
fn adopted_bytes(sequence: &KvSequence) -> Vec<u8> {
    let adopted = sequence.adopted().unwrap();
    let peer = adopted.peer();
    let plane = peer.shape().plane(2, Part::Value).unwrap();
    let tokens = adopted.ids().len() * 16;
    let byte = |token: usize| {
        let block = adopted.ids()[token / 16] as usize;
        let offset = plane.offset + block * plane.block_stride + token % 16 * plane.token_stride;
        // SAFETY: the byte lies in a block of the peer's pool, which is mapped.
        unsafe { peer.base().as_ptr().add(offset).read() }
    };
    (0..tokens).map(byte).collect()
}

async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Copies home what the peer asked for.
async fn bring_home(sequence: &mut KvSequence) {
    until(|| sequence.recalled_blocks() > 0).await;
    let blocks = sequence.pool().try_reserve(sequence.recalled_blocks()).unwrap();
    sequence.bring_home(blocks, &TransferStats::default()).unwrap();
}

#[test]
fn whole_blocks_stay_and_only_the_tail_is_copied() {
    run_adopting(|mut pair| async move {
        for tokens in [16, 17, 32, 47, 100] {
            let before = pair.payload_copied();
            let sequence = hand_over(&mut pair, tokens).await;
            let (whole, tail) = (tokens / 16, tokens % 16);
            let token_bytes = pair.prefill.pool.spec().token_bytes();
            assert_eq!(pair.payload_copied() - before, (tail * token_bytes) as u64);
            assert_eq!(sequence.adopted().unwrap().ids().len(), whole);
            assert_eq!((sequence.len(), sequence.writable_from()), (tokens, whole * 16));
            assert!(sequence.capacity() >= tokens + 20 && sequence.is_intact());
            let expected: Vec<u8> = (0..whole * 16).map(|token| token as u8 ^ 0x5a).collect();
            assert_eq!(adopted_bytes(&sequence), expected);
            assert_eq!(pair.prefill.pool.accounting().sealed, whole, "the tail is free already");
            assert_eq!(pair.to_decode.stats().blocks_lent, whole as u64);
            drop(sequence);
            all_free(&pair.prefill.pool).await;
            all_free(&pair.decode.pool).await;
        }
        // Less than a block is copied.
        let sequence = hand_over(&mut pair, 15).await;
        assert!(sequence.adopted().is_none());
        assert_written(sequence, 15);
    });
}

#[test]
fn a_lender_that_runs_short_gets_its_blocks_back() {
    run_adopting(|mut pair| async move {
        let mut sequences = vec![];
        for tokens in [512, 256] {
            sequences.push(hand_over(&mut pair, tokens).await);
        }
        assert_eq!(pair.prefill.pool.accounting().sealed, 48);
        assert_eq!(sequences.iter().filter(|s| s.recalled_blocks() > 0).count(), 0);
        // 16 of 64 are free. Whoever wants 20 waits for the oldest lease only, which leaves 28.
        let waiting = pair.prefill.pool.reserve(20);
        bring_home(&mut sequences[0]).await;
        assert_eq!(waiting.await.unwrap().len(), 20);
        assert_eq!(sequences[1].recalled_blocks(), 0);
        assert_written(sequences.remove(0), 512);
        drop(sequences);
        all_free(&pair.prefill.pool).await;
        all_free(&pair.decode.pool).await;
    });
}

/// The block table names the adopted blocks, then those of this pool.
fn assert_table(sequence: &KvSequence) {
    let adopted = sequence.adopted().map_or(&[][..], |adopted| adopted.ids());
    let sealed = sequence.sealed().iter().map(SealedBlock::id);
    let expected: Vec<u32> = adopted.iter().copied().chain(sealed).collect();
    assert_eq!(sequence.block_table()[..expected.len()], expected);
}

#[test]
fn blocks_come_home_a_few_at_a_time() {
    run_adopting(|mut pair| async move {
        let mut sequence = hand_over(&mut pair, 100).await;
        pair.to_decode.recall_all();
        until(|| sequence.recalled_blocks() == 6).await;
        for left in (0..6).rev() {
            let block = pair.decode.pool.try_reserve(1).unwrap();
            sequence.bring_home(block, &TransferStats::default()).unwrap();
            assert_eq!(sequence.adopted().map_or(0, |a| a.ids().len()), left);
            assert_eq!(sequence.writable_from(), 96);
            assert_table(&sequence);
        }
        until(|| pair.prefill.pool.accounting().sealed == 0).await;
        assert_written(sequence, 100);
    });
}

#[test]
fn a_lease_ends_with_its_connection_and_the_reader_can_tell() {
    run_adopting(|mut pair| async move {
        let mut sequence = hand_over(&mut pair, 100).await;
        assert!(sequence.is_intact());
        pair.to_decode.close("for the test");
        until(|| !sequence.is_intact()).await;
        all_free(&pair.prefill.pool).await;
        let block = pair.decode.pool.try_reserve(1).unwrap();
        assert!(sequence.bring_home(block, &TransferStats::default()).is_err());
        drop(sequence);
        all_free(&pair.decode.pool).await;
    });
}

#[test]
fn memory_of_a_lender_that_is_gone_can_still_be_read() {
    run_adopting(|mut pair| async move {
        let sequence = hand_over(&mut pair, 64).await;
        let Pair { prefill, .. } = pair;
        drop(prefill.pool);
        prefill.endpoint.shut_down();
        // Nobody writes there any more, but the lease is over: the reader must not trust it.
        assert_eq!(adopted_bytes(&sequence).len(), 64);
        assert!(!sequence.is_intact());
    });
}

#[test]
fn what_is_not_committed_is_not_lent() {
    run_adopting(|mut pair| async move {
        // All of it, not only the parts that are named below.
        let pair = &mut pair;
        for late in [false, true] {
            let handoff = written(&pair.prefill.pool, 40);
            let send = send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::new());
            let (sent, ()) = tokio::join!(send, async {
                let incoming = next_handoff(&mut pair.from_prefill).await;
                let tail = pair.decode.pool.try_reserve(1).unwrap();
                let landed = incoming.adopt(&pair.decode.pool, tail).await.unwrap();
                if late {
                    // Polled once: the commit may be on its way.
                    tokio::select! {
                        biased;
                        committed = landed.commit() => drop(committed),
                        () = async {} => {}
                    }
                }
            });
            assert!(late || matches!(sent, Err(OfferError::Declined { .. })), "{sent:?}");
            all_free(&pair.prefill.pool).await;
            all_free(&pair.decode.pool).await;
        }
    });
}

#[test]
fn blocks_of_another_length_are_copied() {
    run(async |wire| {
        let (prefill, decode) = (options(Layout::BlockMajor, 16), options(Layout::LayerMajor, 8));
        let mut pair = pair(&wire, prefill, decode).await;
        let sequence = hand_over(&mut pair, 100).await;
        assert_written(sequence, 100);
    });
}
