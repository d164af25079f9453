//! Prompts that begin alike: the same tokens with the cache and without, and every cached token counted.

use blockwire::pool::KvSequence;

use super::handoff::{llama_pool, node, node_with};
use super::*;

/// Lengths of a common beginning around the ends of blocks.
const COMMON: [usize; 9] = [0, 1, 7, 8, 9, 15, 16, 17, 24];

fn begun(common: usize, own: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| if (at as usize) < common { 3 + at % 50 } else { 50 + own }).collect()
}

fn usable(common: usize, len: usize, block: usize) -> u32 {
    (common.min(len - 1) / block * block) as u32
}

#[tokio::test]
async fn a_real_model_gives_the_same_tokens_from_a_cached_prefix() {
    for rows in [512, 5] {
        let (with, without) = (llama_pool(8, 100), llama_pool(8, 100));
        let cached = node(&with, rows);
        let uncached = node_with(&without, rows, |options| options.prefix_cache = false);
        // The first one computes what the others begin with.
        let first = request(begun(40, 0, 40), 4);
        assert_eq!(
            collect(cached.generate(first.clone()).unwrap()).await.0,
            collect(uncached.generate(first).unwrap()).await.0
        );
        for (own, common) in (1..).zip(COMMON) {
            for len in [common.max(1), common + 1, common + 13] {
                let request = request(begun(common, own, len), 6);
                let (tokens, end) = collect(cached.generate(request.clone()).unwrap()).await;
                let (expected, plain) = collect(uncached.generate(request).unwrap()).await;
                assert_eq!(tokens, expected, "{common} common tokens of {len}, {rows} rows");
                let usage = end.unwrap().1;
                assert!(
                    usage.cached_tokens >= usable(common, len, 8),
                    "{common} of {len}: {usage:?}"
                );
                assert!((usage.cached_tokens as usize) < len, "{common} of {len}: {usage:?}");
                assert_eq!(plain.unwrap().1.cached_tokens, 0);
            }
        }
        assert!(cached.stats().prefill_tokens < uncached.stats().prefill_tokens);
        assert_eq!(uncached.stats().prefix_queries, 0);
        assert_eq!(without.accounting().free, 100);
        assert_eq!(with.accounting().available(), 100);
    }
}

#[tokio::test]
async fn cached_tokens_are_those_that_were_not_computed() {
    let rig = Rig::new(200, options());
    let mut computed = 0;
    let mut found = 0;
    // Each begins as the one before, and is longer.
    for (len, expected) in
        [(16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (33, 32), (80, 32), (80, 64)]
    {
        let request = request(prompt(3, len), 2);
        let (tokens, end) = collect(rig.scheduler.generate(request.clone()).unwrap()).await;
        assert_eq!(tokens, reference(&request));
        assert_eq!(end.unwrap().1.cached_tokens, expected, "a prompt of {len}");
        computed += len as u64 - u64::from(expected);
        found += u64::from(expected);
        let stats = rig.scheduler.stats();
        assert_eq!((stats.prefill_tokens, stats.prefix_hits), (computed, found));
        assert_eq!(stats.prefix_queries, computed + found);
    }
    rig.idle().await;
}

#[tokio::test]
async fn the_answer_is_found_by_a_prompt_that_repeats_it() {
    let rig = Rig::new(200, options());
    let first = request(prompt(4, 20), 30);
    let mut conversation = first.prompt.clone();
    conversation.extend(collect(rig.scheduler.generate(first).unwrap()).await.0);
    conversation.extend([9, 8, 7]);
    let next = request(conversation, 5);
    let (tokens, end) = collect(rig.scheduler.generate(next.clone()).unwrap()).await;
    assert_eq!(tokens, reference(&next));
    // 49 tokens were in the cache: the last one drawn never was.
    assert_eq!(end.unwrap().1.cached_tokens, 48);
}

#[tokio::test]
async fn salts_share_nothing() {
    let rig = Rig::new(200, options());
    let salted = |salt: Option<&str>| GenerateRequest {
        cache_salt: salt.map(str::to_owned),
        ..request(prompt(5, 40), 2)
    };
    for (salt, expected) in
        [(None, 0), (Some("a"), 0), (Some("b"), 0), (Some("a"), 32), (None, 32), (Some("b"), 32)]
    {
        let (_, end) = collect(rig.scheduler.generate(salted(salt)).unwrap()).await;
        assert_eq!(end.unwrap().1.cached_tokens, expected, "{salt:?}");
    }
}

#[tokio::test]
async fn a_running_request_shares_what_it_has_computed() {
    let rig = Rig::new(200, SchedulerOptions { prefill_rows_max: 16, ..options() });
    rig.gate.allow(3);
    let first = request(prompt(6, 90), 3);
    let running = rig.scheduler.generate(first.clone()).unwrap();
    until(|| rig.pool.accounting().sealed >= 2).await;
    let second = request([&prompt(6, 32)[..], &[1, 2, 3]].concat(), 3);
    let other = rig.scheduler.generate(second.clone()).unwrap();
    rig.gate.open();
    let (tokens, end) = collect(other).await;
    assert_eq!(tokens, reference(&second));
    assert_eq!(end.unwrap().1.cached_tokens, 32);
    assert_eq!(collect(running).await.0, reference(&first));
    rig.idle().await;
}

/// A pool that is much too small: what is cached goes when it must, and tokens are right all the time.
#[tokio::test]
async fn many_with_common_beginnings_in_a_small_pool_get_their_tokens() {
    for blocks in [8, 11, 30] {
        let rig = Rig::new(blocks, SchedulerOptions { prefill_rows_max: 24, ..options() });
        let requests: Vec<_> = (0..40)
            .map(|own| {
                let common = [0, 15, 16, 17, 32, 48][own as usize % 6];
                let mut tokens = prompt(7, common);
                tokens.extend(prompt(100 + own, 5 + own as usize % 30));
                request(tokens, 5 + own % 37)
            })
            .collect();
        let running: Vec<_> = requests
            .iter()
            .map(|request| tokio::spawn(collect(rig.scheduler.generate(request.clone()).unwrap())))
            .collect();
        for (running, request) in running.into_iter().zip(&requests) {
            let (tokens, end) = running.await.unwrap();
            assert_eq!(tokens, reference(request), "{blocks} blocks: {end:?}");
        }
        assert!(rig.scheduler.stats().prefix_hits > 0);
        rig.idle().await;
    }
}

#[tokio::test]
async fn a_prefill_for_a_handoff_begins_with_what_is_cached() {
    let rig = Rig::new(40, SchedulerOptions { prefill_rows_max: 24, ..options() });
    let first = rig.scheduler.prefill_for_handoff(request(prompt(8, 70), 5)).unwrap();
    let first = first.done().await.unwrap();
    let tokens = [&prompt(8, 48)[..], &[5; 40]].concat();
    let mut prefill = rig.scheduler.prefill_for_handoff(request(tokens.clone(), 5)).unwrap();
    let mut told = Vec::new();
    let done = loop {
        match prefill.next().await.unwrap() {
            PrefillEvent::Layers { .. } => {}
            PrefillEvent::Progress { first_block, blocks, .. } => {
                assert_eq!(first_block, told.len());
                told.extend(blocks.iter().map(|block| block.id()));
            }
            PrefillEvent::Done(done) => break done,
            PrefillEvent::Failed(error) => panic!("{error}"),
        }
    };
    assert_eq!(done.cached_tokens, 48);
    assert_eq!(done.first_token, reference(&request(tokens, 1))[0]);
    let table = |sequence: &KvSequence| sequence.block_table().to_vec();
    assert_eq!(table(&first.sequence)[..3], table(&done.sequence)[..3]);
    assert_eq!(told[..3], table(&done.sequence)[..3], "also what was cached is sent ahead");
    // What a handoff in flight holds is not evicted.
    let rest = rig.pool.accounting().available();
    let taken = rig.pool.try_reserve(rest).unwrap();
    assert_eq!(done.sequence.len(), 88);
    assert!(rig.pool.try_reserve(1).is_err());
    drop((first, done, taken));
    rig.idle().await;
}

#[tokio::test]
async fn a_family_with_state_of_its_own_computes_every_prompt() {
    let rig = Rig::with_state(40, options(), true);
    for _ in 0..2 {
        let (_, end) = collect(rig.scheduler.generate(request(prompt(9, 40), 2)).unwrap()).await;
        assert_eq!(end.unwrap().1.cached_tokens, 0);
    }
    rig.idle().await;
    assert_eq!(rig.pool.accounting().free, 40);
}
