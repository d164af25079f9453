//! The index against a plain model, and what must hold of each step.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::super::{
    Accounting, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions, ReserveError, SealedRun,
};
use super::*;

const BLOCK: usize = 4;

fn pool(blocks: usize) -> BlockPool {
    BlockPool::new(PoolOptions::new(KvSpec::uniform(BLOCK as u32, 1, 1, 8, Dtype::F16), blocks))
        .unwrap()
}

fn keys(tokens: &[u32]) -> Vec<PrefixKey> {
    let root = PrefixRoot::new(b"model", "", "");
    PrefixChain::new(root, BLOCK as u32).keys(tokens).to_vec()
}

/// As a model would: the state of a token depends on all tokens up to it.
fn state(tokens: &[u32]) -> u8 {
    tokens.iter().fold(7, |state: u8, token| state.rotate_left(3) ^ *token as u8)
}

/// Computes what is not cached; says how many tokens were.
fn compute(pool: &BlockPool, tokens: &[u32]) -> Result<(KvSequence, usize), ReserveError> {
    let keys = keys(tokens);
    let usable = &keys[..(tokens.len() - 1) / BLOCK];
    let room = pool.try_reserve_behind(usable, tokens.len().div_ceil(BLOCK), 0)?;
    let cached = room.cached.len() * BLOCK;
    let mut sequence = KvSequence::from_blocks(pool, room.cached, room.reserved, cached).unwrap();
    for at in cached..tokens.len() {
        sequence.fill_token(at, state(&tokens[..=at]));
    }
    sequence.set_len(tokens.len());
    sequence.cache_full(&keys);
    Ok((sequence, cached))
}

fn check(sequence: &KvSequence, tokens: &[u32]) {
    for at in 0..tokens.len() {
        let mut bytes = Vec::new();
        sequence.read_token(at, &mut bytes);
        assert!(
            bytes.iter().all(|byte| *byte == state(&tokens[..=at])),
            "token {at} of {tokens:?}"
        );
    }
}

fn tokens(first: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| first * 100 + at).collect()
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_prompt_finds_the_full_blocks_of_its_prefix_and_computes_a_token_at_least() {
    let pool = pool(16);
    drop(compute(&pool, &tokens(1, 12)).unwrap());
    assert_eq!(
        pool.accounting(),
        Accounting { total: 16, free: 13, cached: 3, ..Default::default() }
    );
    for (len, found) in [(4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12), (20, 12)] {
        let (sequence, cached) = compute(&pool, &tokens(1, len)).unwrap();
        assert_eq!(cached, found, "a prompt of {len}");
        check(&sequence, &tokens(1, len));
    }
    assert_eq!(compute(&pool, &tokens(2, 12)).unwrap().1, 0);
}

#[test]
fn a_reservation_evicts_what_was_used_longest_ago_from_its_end() {
    let pool = pool(8);
    drop(compute(&pool, &tokens(1, 12)).unwrap());
    drop(compute(&pool, &tokens(2, 12)).unwrap());
    drop(compute(&pool, &tokens(1, 8)).unwrap());
    let taken = pool.try_reserve(3).unwrap();
    assert_eq!(pool.accounting().cached, 5);
    drop(taken);
    // The last block of the first chain was used longest ago.
    assert_eq!(compute(&pool, &tokens(1, 13)).unwrap().1, 8);
    assert_eq!(compute(&pool, &tokens(2, 13)).unwrap().1, 12);
    let all = pool.try_reserve(8).unwrap();
    assert_eq!((all.len(), pool.accounting().free), (8, 0), "all of it can be had");
}

#[test]
fn the_end_of_a_sequence_goes_before_its_beginning() {
    let pool = pool(6);
    drop(compute(&pool, &tokens(1, 24)).unwrap());
    for left in (0..6).rev() {
        let taken = pool.try_reserve(6 - left).unwrap();
        assert_eq!(pool.accounting().cached, left);
        drop(taken);
        let run = pool.state().prefix.run(&keys(&tokens(1, 24)));
        assert_eq!(run, left);
    }
}

#[test]
fn what_somebody_holds_is_not_evicted() {
    let pool = pool(6);
    let (held, _) = compute(&pool, &tokens(1, 12)).unwrap();
    drop(compute(&pool, &tokens(1, 20)).unwrap());
    assert_eq!(pool.accounting().cached, 2);
    let refused = pool.try_reserve(4).unwrap_err();
    assert_eq!(refused, ReserveError::Busy { asked: 4, available: 3, waiting: 0 });
    let taken = pool.try_reserve(3).unwrap();
    check(&held, &tokens(1, 12));
    drop(taken);
    assert_eq!(compute(&pool, &tokens(1, 13)).unwrap().1, 12);
}

#[test]
fn two_who_compute_the_same_share_it_from_then_on() {
    let pool = pool(8);
    let prompt = tokens(1, 10);
    let rooms: Vec<_> = (0..2).map(|_| pool.try_reserve(3).unwrap()).collect();
    let sequences: Vec<KvSequence> = rooms
        .into_iter()
        .map(|room| {
            let mut sequence = KvSequence::from_blocks(&pool, vec![], room, 0).unwrap();
            (0..10).for_each(|at| sequence.fill_token(at, state(&prompt[..=at])));
            sequence.set_len(10);
            sequence.cache_full(&keys(&prompt));
            sequence
        })
        .collect();
    assert_eq!(sequences[0].block_table()[..2], sequences[1].block_table()[..2]);
    assert_ne!(sequences[0].block_table()[2], sequences[1].block_table()[2], "the tails are own");
    sequences.iter().for_each(|sequence| check(sequence, &prompt));
    assert_eq!((pool.accounting().sealed, pool.accounting().reserved), (2, 2));
    drop(sequences);
    assert_eq!((pool.accounting().cached, pool.accounting().free), (2, 6));
}

#[test]
fn cached_blocks_can_be_had_while_a_link_reads_only_those_behind_them() {
    let pool = pool(6);
    let prompt = tokens(1, 24);
    let (sequence, _) = compute(&pool, &prompt).unwrap();
    let run = SealedRun::new(&pool, sequence.sealed().to_vec(), 24).unwrap();
    let list = run.gather_from(16).unwrap();
    drop(run);
    drop(sequence);
    assert_eq!((pool.accounting().cached, pool.accounting().sealed), (4, 2));
    let taken = pool.try_reserve(4).unwrap();
    assert_eq!(pool.accounting().reserved, 4);
    drop((taken, list));
    assert_eq!(pool.accounting().free, 6, "what hung below them was forgotten with them");
}

#[test]
fn whoever_waits_holds_nothing_and_gets_what_is_cached_by_then() {
    let pool = pool(6);
    let prompt = tokens(1, 21);
    let (other, _) = compute(&pool, &tokens(2, 8)).unwrap();
    drop(compute(&pool, &tokens(1, 12)).unwrap());
    let usable: Arc<[PrefixKey]> = keys(&prompt).into();
    let mut waiting = pool.reserve_behind(usable, 6);
    assert!(poll(&mut waiting).is_pending());
    assert_eq!(pool.accounting().cached, 3, "they are not held yet");
    assert!(pool.try_reserve(1).is_err(), "nobody overtakes");
    assert_eq!(pool.try_reserve_growth(2).map(|grown| grown.len()), Ok(2), "but may need them");
    drop(other);
    let Poll::Ready(Ok(room)) = poll(&mut waiting) else { panic!("not granted") };
    assert_eq!(room.cached.len() + room.reserved.len(), 6);
    assert_eq!(room.cached.len(), 2, "one was evicted meanwhile");
}

#[test]
fn a_request_is_granted_as_soon_as_another_has_computed_its_prefix() {
    let pool = pool(6);
    let prompt = tokens(1, 12);
    let room = pool.try_reserve(3).unwrap();
    let _rest = pool.try_reserve(2).unwrap();
    let mut waiting = pool.reserve_behind(keys(&prompt)[..2].into(), 3);
    assert!(poll(&mut waiting).is_pending(), "one block of three is left");
    let mut sequence = KvSequence::from_blocks(&pool, vec![], room, 0).unwrap();
    (0..12).for_each(|at| sequence.fill_token(at, state(&prompt[..=at])));
    sequence.set_len(12);
    sequence.cache_full(&keys(&prompt));
    let Poll::Ready(Ok(room)) = poll(&mut waiting) else { panic!("not granted") };
    assert_eq!((room.cached.len(), room.reserved.len()), (2, 1));
}

#[test]
fn room_to_spare_is_left() {
    let pool = pool(6);
    drop(compute(&pool, &tokens(1, 12)).unwrap());
    let keys = keys(&tokens(1, 12));
    assert!(pool.try_reserve_behind(&keys, 4, 3).is_err());
    let room = pool.try_reserve_behind(&keys, 4, 2).unwrap();
    assert_eq!((room.cached.len(), room.reserved.len()), (3, 1));
    assert_eq!(pool.accounting().available(), 2);
}

/// What a step of the random test does.
#[derive(Clone, Debug)]
enum Step {
    /// Computes a prompt: how much of it is common to all, and how it goes on.
    Compute {
        common: usize,
        own: u32,
        len: usize,
    },
    /// One of the sequences ends.
    End(usize),
    /// Of one, only the last blocks stay, as with a link that still reads them.
    KeepTail(usize, usize),
    /// Blocks that hold no known tokens.
    Reserve(usize),
    Free,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..20, 1u32..5, 1usize..24)
            .prop_map(|(common, own, len)| Step::Compute { common, own, len }),
        3 => any::<usize>().prop_map(Step::End),
        1 => (any::<usize>(), 1usize..4).prop_map(|(which, kept)| Step::KeepTail(which, kept)),
        1 => (1usize..6).prop_map(Step::Reserve),
        1 => Just(Step::Free),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// Random sequences, most of which begin alike. A block whose bytes were ever written for other tokens,
    /// or while somebody held it, shows when its tokens are read.
    #[test]
    #[cfg_attr(miri, ignore = "a case takes it minutes; the tests above take every step once")]
    fn every_sequence_reads_its_own_tokens_and_the_books_add_up(steps in steps()) {
        let pool = pool(16);
        let mut running: Vec<(KvSequence, Vec<u32>)> = vec![];
        let (mut tails, mut taken) = (vec![], vec![]);
        let mut ever = HashSet::new();
        for step in steps {
            let before = pool.accounting();
            match step {
                Step::Compute { common, own, len } => {
                    let prompt: Vec<u32> =
                        (0..len).map(|at| if at < common { 9 } else { own }).collect();
                    let blocks = len.div_ceil(BLOCK);
                    let most = ever_run(&ever, &prompt);
                    match compute(&pool, &prompt) {
                        Ok((sequence, cached)) => {
                            prop_assert!(cached <= most, "{cached} of {most}");
                            ever.extend(keys(&prompt));
                            running.push((sequence, prompt));
                        }
                        Err(_) => prop_assert!(before.available() < blocks, "{before:?}"),
                    }
                }
                Step::End(which) if !running.is_empty() => {
                    running.swap_remove(which % running.len());
                }
                Step::KeepTail(which, kept) if !running.is_empty() => {
                    let (sequence, _) = running.swap_remove(which % running.len());
                    let from = sequence.sealed().len().saturating_sub(kept);
                    tails.push(sequence.sealed()[from..].to_vec());
                }
                Step::Reserve(count) => match pool.try_reserve(count) {
                    Ok(mut blocks) => {
                        blocks.iter_mut().for_each(|block| block.fill(0xee));
                        taken.push(blocks);
                    }
                    Err(_) => prop_assert!(before.available() < count, "{before:?}"),
                },
                Step::Free => {
                    taken.pop();
                    tails.pop();
                }
                _ => {}
            }
            let now = pool.accounting();
            prop_assert_eq!(now.free + now.reserved + now.sealed + now.cached, 16);
            running.iter().for_each(|(sequence, prompt)| check(sequence, prompt));
        }
        drop((running, tails, taken));
        prop_assert_eq!(pool.accounting().available(), 16);
        prop_assert_eq!(pool.try_reserve(16).unwrap().len(), 16);
    }
}

/// Tokens of the longest prefix whose blocks were all computed at some time, less than the prompt.
fn ever_run(ever: &HashSet<PrefixKey>, prompt: &[u32]) -> usize {
    let known = keys(prompt).iter().take_while(|key| ever.contains(key)).count();
    known.min((prompt.len() - 1) / BLOCK) * BLOCK
}
