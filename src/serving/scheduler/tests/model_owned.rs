//! A family that keeps state beside the pool: it is served like any other, and goes along with a handoff.

use std::path::Path;

use blockwire::handoff::{StateSegment, extract_sequence_handoff, extract_with_state};
use blockwire::pool::KvSequence;
use blockwire_runtime::cpu::{CpuModel, CpuOptions};
use blockwire_runtime::files::ModelFiles;

use super::handoff::moved;
use super::*;

fn lfm2() -> CpuModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/fixtures/lfm2");
    CpuModel::load(&ModelFiles::open(path).unwrap(), CpuOptions::new()).unwrap()
}

fn node(blocks: usize, rows: usize) -> (BatchScheduler, BlockPool) {
    node_with(blocks, SchedulerOptions { prefill_rows_max: rows, ..Default::default() })
}

fn node_with(blocks: usize, options: SchedulerOptions) -> (BatchScheduler, BlockPool) {
    let pool = BlockPool::new(PoolOptions::new(lfm2().kv_spec(8), blocks)).unwrap();
    let scheduler = BatchScheduler::start(Box::new(lfm2()), pool.clone(), options).unwrap();
    (scheduler, pool)
}

fn requests() -> Vec<GenerateRequest> {
    let lengths = [1, 2, 3, 9, 31, 40];
    lengths.iter().zip(0..).map(|(len, seed)| request(prompt(seed, *len), 24)).collect()
}

/// One request after the other.
async fn single(requests: &[GenerateRequest]) -> Vec<Vec<u32>> {
    one_by_one(&node(40, 512).0, requests).await
}

#[tokio::test]
async fn its_tokens_do_not_depend_on_batches_chunks_and_preemptions() {
    let requests = requests();
    let expected = single(&requests).await;
    for (blocks, rows) in [(60, 512), (60, 3), (9, 512), (9, 5)] {
        let (node, pool) = node(blocks, rows);
        let tokens = all_at_once(&node, &requests).await;
        assert_eq!(tokens, expected, "{blocks} blocks, {rows} rows");
        assert_eq!(node.stats().preemptions > 0, blocks < 60);
        assert_eq!(pool.accounting().free, blocks, "nothing is kept for other prompts");
    }
}

/// Blocks that another prompt filled are not the whole of what stands at their end.
#[tokio::test]
async fn its_prompts_share_nothing() {
    let (node, _) = node(40, 512);
    let request = request(prompt(4, 31), 4);
    for _ in 0..2 {
        let (_, end) = collect(node.generate(request.clone()).unwrap()).await;
        assert_eq!(end.unwrap().1.cached_tokens, 0);
    }
    assert!(node.prefix_keys(&request).is_empty());
}

/// Third criterion of the fault B30, below the wire: where the state cannot go along, the request is refused by the
/// family's name before a block is taken.
#[tokio::test]
async fn fault_b30_a_prefill_for_a_handoff_is_refused_and_the_node_serves_on() {
    let options = SchedulerOptions { state_handoff: false, ..Default::default() };
    let (node, pool) = node_with(40, options);
    let expected = single(&requests()).await;
    for (request, expected) in requests().into_iter().zip(expected) {
        let before = (pool.accounting(), node.stats().steps);
        let refused = node.prefill_for_handoff(request.clone()).unwrap_err();
        let named = matches!(&refused, GenerateError::Unsupported(why) if why.contains("lfm2"));
        assert!(named && refused.is_callers(), "{refused:?}");
        assert_eq!((pool.accounting(), node.stats().steps), before);
        assert_eq!(collect(node.generate(request).unwrap()).await.0, expected);
    }
}

#[tokio::test]
async fn handed_over_tokens_equal_a_single_nodes() {
    let requests = requests();
    let expected = single(&requests).await;
    // A decode pool that is large, or so small that it preempts.
    for decode_blocks in [60, 15] {
        let ((prefill, _), (decode, decode_pool)) = (node(40, 10), node(decode_blocks, 512));
        let mut arrived = Vec::new();
        for request in &requests {
            let done = prefill.prefill_for_handoff(request.clone()).unwrap().done().await.unwrap();
            let mut sequence = done.sequence;
            assert!(extract_sequence_handoff(&mut sequence).is_err(), "not without its state");
            let (_, state) = extract_with_state(&mut sequence).unwrap();
            let mut there = moved(&sequence, &decode_pool);
            decode.restore_state(&mut there, state.as_ref()).unwrap();
            arrived.push((there, done.first_token));
        }
        let mut running = Vec::new();
        for (request, (sequence, first)) in requests.iter().zip(arrived) {
            let rest = decode.decode_from(request.clone(), sequence, &[first]).unwrap();
            running.push((first, tokio::spawn(collect(rest))));
        }
        for ((first, rest), expected) in running.into_iter().zip(&expected) {
            let rest = rest.await.unwrap().0;
            assert_eq!([&[first], &rest[..]].concat(), *expected, "{decode_blocks} blocks");
        }
        assert_eq!(decode.stats().preemptions > 0, decode_blocks < 60);
    }
}

#[tokio::test]
async fn a_state_that_does_not_fit_is_refused() {
    let (node, pool) = node(40, 512);
    let mut sequence = KvSequence::new(&pool);
    let segment =
        |family: &str, len| StateSegment { family: family.to_owned(), bytes: vec![0; len].into() };
    let len = 4 * 2 * 128 * 4;
    for state in [None, Some(segment("rwkv", len)), Some(segment("lfm2", len - 4))] {
        let refused = node.restore_state(&mut sequence, state.as_ref()).unwrap_err();
        assert!(matches!(refused, GenerateError::NodeFailed(_)), "{refused:?}");
        assert!(sequence.model_state().is_none());
    }
    node.restore_state(&mut sequence, Some(&segment("lfm2", len))).unwrap();
    assert_eq!(sequence.model_state().unwrap().family(), "lfm2");
    let options = SchedulerOptions { state_handoff: false, ..options() };
    let (closed, pool) = node_with(8, options.clone());
    let mut sequence = KvSequence::new(&pool);
    assert!(closed.restore_state(&mut sequence, Some(&segment("lfm2", len))).is_err());
    let rig = Rig::new(8, options);
    let mut sequence = KvSequence::new(&rig.pool);
    rig.scheduler.restore_state(&mut sequence, None).unwrap();
    assert!(rig.scheduler.restore_state(&mut sequence, Some(&segment("lfm2", len))).is_err());
}

#[tokio::test]
async fn a_cache_that_came_without_its_state_fails_its_request_alone() {
    let (node, pool) = node(40, 512);
    let bystander = request(prompt(5, 40), 24);
    let expected = single(std::slice::from_ref(&bystander)).await.remove(0);
    let bystander = tokio::spawn(collect(node.generate(bystander).unwrap()));
    let blocks = pool.try_reserve(3).unwrap();
    let sequence = KvSequence::from_blocks(&pool, vec![], blocks, 20).unwrap();
    let generation = node.decode_from(request(prompt(1, 20), 8), sequence, &[5]).unwrap();
    let (tokens, end) = collect(generation).await;
    let failed = end.unwrap_err();
    let told = matches!(&failed, GenerateError::NodeFailed(why) if why.contains("own state"));
    assert!(tokens.is_empty() && told, "{failed:?}");
    assert_eq!(bystander.await.unwrap().0, expected);
    until(|| pool.accounting().free == 40).await;
}
