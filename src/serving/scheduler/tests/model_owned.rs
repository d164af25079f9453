//! A family that keeps state beside the pool: one node serves it like any other, and never hands it over.

use std::path::Path;

use blockwire::pool::KvSequence;
use blockwire_runtime::cpu::{CpuModel, CpuOptions};
use blockwire_runtime::files::ModelFiles;

use super::*;

fn lfm2() -> CpuModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/fixtures/lfm2");
    CpuModel::load(&ModelFiles::open(path).unwrap(), CpuOptions::new()).unwrap()
}

fn node(blocks: usize, rows: usize) -> (BatchScheduler, BlockPool) {
    let pool = BlockPool::new(PoolOptions::new(lfm2().kv_spec(8), blocks)).unwrap();
    let options = SchedulerOptions { prefill_rows_max: rows, ..Default::default() };
    let scheduler = BatchScheduler::start(Box::new(lfm2()), pool.clone(), options).unwrap();
    (scheduler, pool)
}

fn requests() -> Vec<GenerateRequest> {
    let lengths = [1, 2, 3, 9, 31, 40];
    lengths.iter().zip(0..).map(|(len, seed)| request(prompt(seed, *len), 24)).collect()
}

/// One request after the other.
async fn single(requests: &[GenerateRequest]) -> Vec<Vec<u32>> {
    let (node, _) = node(40, 512);
    let mut all = Vec::new();
    for request in requests {
        all.push(collect(node.generate(request.clone()).unwrap()).await.0);
    }
    all
}

#[tokio::test]
async fn its_tokens_do_not_depend_on_batches_chunks_and_preemptions() {
    let requests = requests();
    let expected = single(&requests).await;
    for (blocks, rows) in [(60, 512), (60, 3), (9, 512), (9, 5)] {
        let (node, pool) = node(blocks, rows);
        let running: Vec<_> = requests
            .iter()
            .map(|request| tokio::spawn(collect(node.generate(request.clone()).unwrap())))
            .collect();
        for (running, expected) in running.into_iter().zip(&expected) {
            assert_eq!(running.await.unwrap().0, *expected, "{blocks} blocks, {rows} rows");
        }
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

/// Third criterion of the fault B30, below the wire: refused by the family's name before a block is taken.
#[tokio::test]
async fn fault_b30_a_prefill_for_a_handoff_is_refused_and_the_node_serves_on() {
    let (node, pool) = node(40, 512);
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
