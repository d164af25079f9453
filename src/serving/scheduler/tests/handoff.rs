//! Prefill in one scheduler, decode in another: with a real model, the tokens are a single node's.

use std::path::Path;

use blockwire::pool::{
    AdoptedBlocks, Cursor, Digest, GatherList, Grant, KvSequence, Lease, PayloadOrder, PeerPool,
    ScatterList, SealedBlock, TransferStats, copy_payload,
};
use blockwire_runtime::cpu::{CpuModel, CpuOptions};
use blockwire_runtime::files::ModelFiles;

use super::*;

pub(super) fn llama() -> CpuModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/fixtures/llama");
    CpuModel::load(&ModelFiles::open(path).unwrap(), CpuOptions::new()).unwrap()
}

pub(super) fn llama_pool(block_tokens: u32, blocks: usize) -> BlockPool {
    BlockPool::new(PoolOptions::new(llama().kv_spec(block_tokens), blocks)).unwrap()
}

pub(super) fn node(pool: &BlockPool, rows: usize) -> BatchScheduler {
    node_with(pool, rows, |_| {})
}

pub(super) fn node_with(
    pool: &BlockPool,
    rows: usize,
    change: impl FnOnce(&mut SchedulerOptions),
) -> BatchScheduler {
    let mut options =
        SchedulerOptions { eos: vec![2], prefill_rows_max: rows, ..Default::default() };
    change(&mut options);
    BatchScheduler::start(Box::new(llama()), pool.clone(), options).unwrap()
}

/// The sequence's bytes in blocks of another pool, the tail writable.
pub(super) fn moved(sequence: &KvSequence, pool: &BlockPool) -> KvSequence {
    let len = sequence.len();
    let order = PayloadOrder { block_tokens: sequence.pool().spec().block_tokens };
    let from = GatherList::new(sequence.pool(), sequence.sealed(), order, 0..len).unwrap();
    let blocks = pool.try_reserve(pool.spec().blocks_for(len)).unwrap();
    let mut to = ScatterList::new(pool, blocks, order, 0..len).unwrap();
    let start = Cursor::default();
    let bytes: Vec<u8> = from.slices(&start, usize::MAX).flatten().copied().collect();
    let mut at = 0;
    for piece in to.slices(&start, usize::MAX) {
        let from = &bytes[at..at + piece.len()];
        copy_payload(from, piece, &mut Digest::default(), &TransferStats::default());
        at += piece.len();
    }
    KvSequence::from_blocks(pool, vec![], to.into_blocks(), len).unwrap()
}

fn llama_requests() -> Vec<GenerateRequest> {
    let lengths = [1, 7, 8, 9, 31, 40];
    let requests = lengths.iter().zip(0..).map(|(len, seed)| {
        let mut request = request(prompt(seed, *len), 24);
        request.sampling.temperature = if seed % 2 == 0 { 0.0 } else { 1.0 };
        request.sampling.seed = u64::from(seed);
        request
    });
    requests.collect()
}

/// One request after the other, on a node of its own.
async fn single(requests: &[GenerateRequest]) -> Vec<Vec<u32>> {
    one_by_one(&node(&llama_pool(16, 40), 512), requests).await
}

#[tokio::test]
async fn a_real_model_gives_the_same_tokens_batched_chunked_and_preempted() {
    let requests = llama_requests();
    let expected = single(&requests).await;
    for (blocks, rows) in [(60, 512), (60, 3), (9, 512), (9, 5)] {
        let pool = llama_pool(8, blocks);
        let node = node(&pool, rows);
        let tokens = all_at_once(&node, &requests).await;
        assert_eq!(tokens, expected, "{blocks} blocks, {rows} rows");
        assert_eq!(node.stats().preemptions > 0, blocks < 60);
        assert_eq!(pool.accounting().available(), blocks);
    }
}

#[tokio::test]
async fn handed_over_tokens_equal_a_single_nodes() {
    let requests = llama_requests();
    let expected = single(&requests).await;
    // Different block lengths, chunks and a decode pool that is large, or so small that it preempts.
    for (prefill_block, decode_block, decode_blocks) in [(8, 8, 60), (8, 16, 40), (8, 8, 15)] {
        let (prefill_pool, decode_pool) =
            (llama_pool(prefill_block, 40), llama_pool(decode_block, decode_blocks));
        let (prefill, decode) = (node(&prefill_pool, 10), node(&decode_pool, 512));
        let (mut running, mut arrived) = (Vec::new(), Vec::new());
        for request in &requests {
            let done = prefill.prefill_for_handoff(request.clone()).unwrap().done().await.unwrap();
            assert_eq!(done.finish, None);
            assert_eq!(done.sequence.len(), request.prompt.len());
            arrived.push((moved(&done.sequence, &decode_pool), done.first_token));
        }
        for (request, (sequence, first)) in requests.iter().zip(arrived) {
            let generation = decode.decode_from(request.clone(), sequence, &[first]).unwrap();
            running.push((first, tokio::spawn(collect(generation))));
        }
        for ((first, running), expected) in running.into_iter().zip(&expected) {
            let (rest, end) = running.await.unwrap();
            let tokens: Vec<u32> = [first].into_iter().chain(rest).collect();
            assert_eq!(tokens, *expected);
            let (reason, usage) = end.unwrap();
            assert_eq!((reason, usage.completion_tokens), (FinishReason::Length, 24));
        }
        let (p, d) = (prefill.stats(), decode.stats());
        assert_eq!((p.generated_tokens, d.prefill_tokens), (6, 0), "fault B21, fault B22");
        assert_eq!(p.prefill_tokens, 96);
        assert_eq!(d.cached_tokens, 96);
        assert_eq!(d.handoff_recomputes > 0, decode_blocks == 15, "{d:?}");
        assert_eq!(prefill_pool.accounting().available(), 40);
        assert_eq!(decode_pool.accounting().available(), decode_blocks);
    }
}

#[tokio::test]
async fn two_nodes_over_one_pool_hand_over_without_moving_a_byte() {
    let requests = llama_requests();
    let expected = single(&requests).await;
    let pool = llama_pool(8, 60);
    let (prefill, decode) = (node(&pool, 512), node(&pool, 512));
    for (request, expected) in requests.iter().zip(&expected) {
        let done = prefill.prefill_for_handoff(request.clone()).unwrap().done().await.unwrap();
        // Someone else keeps reading the tail: decode must not write into it.
        let kept: Vec<SealedBlock> = done.sequence.sealed().to_vec();
        let bytes = |blocks: &[SealedBlock]| -> Vec<u8> {
            let (order, len) = (PayloadOrder { block_tokens: 8 }, request.prompt.len());
            let list = GatherList::new(&pool, blocks, order, 0..len).unwrap();
            list.slices(&Cursor::default(), usize::MAX).flatten().copied().collect()
        };
        let before = bytes(&kept);
        let first = done.first_token;
        let generation = decode.decode_from(request.clone(), done.sequence, &[first]).unwrap();
        let (rest, _) = collect(generation).await;
        assert_eq!([&[first], &rest[..]].concat(), *expected);
        assert_eq!(bytes(&kept), before);
    }
    assert_eq!(decode.stats().prefill_tokens, 0);
    assert_eq!(pool.accounting().available(), 60);
}

/// A sequence of whole blocks, left where it is and lent to another pool's scheduler, with its grant.
fn lent(
    sequence: &KvSequence,
    pool: &BlockPool,
) -> (KvSequence, Arc<Lease>, Arc<Mutex<Option<Grant>>>) {
    let lender = sequence.pool();
    let peer = PeerPool::new(lender.region().clone(), lender.shape().clone()).unwrap();
    let mut grant = lender.grant().unwrap();
    let lease = Arc::new(Lease::new(Arc::new(peer), grant.id()).unwrap());
    grant.lend(sequence.sealed().into());
    let grant = Arc::new(Mutex::new(Some(grant)));
    let released = grant.clone();
    let adopted = AdoptedBlocks::new(lease.clone(), sequence.block_table().to_vec()).unwrap();
    let adopted = adopted.on_release(move || drop(released.lock().unwrap().take()));
    (KvSequence::from_adopted(pool, adopted, vec![], sequence.len()).unwrap(), lease, grant)
}

/// A lender asks for its blocks, or takes them without asking, while they are read.
#[tokio::test]
async fn tokens_do_not_depend_on_what_a_lender_does() {
    let request = request(prompt(3, 40), 400);
    let expected = single(std::slice::from_ref(&request)).await.remove(0);
    for takes in [false, true] {
        let (lender, pool) = (llama_pool(8, 8), llama_pool(8, 80));
        let (prefill, decode) = (node(&lender, 512), node(&pool, 512));
        let done = prefill.prefill_for_handoff(request.clone()).unwrap().done().await.unwrap();
        let (sequence, lease, grant) = lent(&done.sequence, &pool);
        let first = done.first_token;
        drop(done);
        assert_eq!(lender.lent_blocks(), 5);
        let mut generation = decode.decode_from(request.clone(), sequence, &[first]).unwrap();
        first_token(&mut generation).await;
        if takes {
            drop(grant.lock().unwrap().take());
            let mut free = lender.try_reserve(8).unwrap();
            free.iter_mut().for_each(|block| block.fill(0xee));
        } else {
            lease.set_recalled();
            until(|| lender.accounting().available() == 8).await;
        }
        let rest = collect(generation).await.0;
        assert_eq!(rest[..], expected[expected.len() - rest.len()..], "takes {takes}");
        assert_eq!(decode.stats().handoff_recomputes, u64::from(takes));
        assert_eq!((lender.accounting().available(), pool.accounting().available()), (8, 80));
    }
}

#[tokio::test]
async fn chunks_can_be_sent_ahead() {
    let rig = Rig::new(40, SchedulerOptions { prefill_rows_max: 24, ..options() });
    let mut prefill = rig.scheduler.prefill_for_handoff(request(prompt(1, 100), 5)).unwrap();
    let (mut seen, mut ahead) = (Vec::new(), Vec::new());
    let done = loop {
        match prefill.next().await.unwrap() {
            PrefillEvent::Layers { .. } => {}
            PrefillEvent::Progress { done, total, first_block, blocks } => {
                assert_eq!((first_block, total), (ahead.len(), 100));
                seen.push(done);
                ahead.extend(blocks);
                assert_eq!(ahead.len(), done / 16);
            }
            PrefillEvent::Done(done) => break done,
            PrefillEvent::Failed(error) => panic!("{error}"),
        }
    };
    assert_eq!(seen, [24, 48, 72, 96]);
    let ids = |blocks: &[SealedBlock]| blocks.iter().map(SealedBlock::id).collect::<Vec<_>>();
    assert_eq!(ids(&ahead), ids(&done.sequence.sealed()[..6]));
    assert_eq!(done.first_token, reference(&request(prompt(1, 100), 1))[0]);
    drop((ahead, done));
    rig.idle().await;
}

#[tokio::test]
async fn prefill_says_when_there_is_nothing_to_hand_over() {
    let rig = Rig::new(40, options());
    let prefill = rig.scheduler.prefill_for_handoff(request(prompt(1, 10), 1)).unwrap();
    assert_eq!(prefill.done().await.unwrap().finish, Some(FinishReason::Length));
    let rig = Rig::with_state(40, options(), true);
    let refused = rig.scheduler.prefill_for_handoff(request(prompt(1, 10), 5)).unwrap_err();
    assert!(matches!(&refused, GenerateError::Unsupported(why) if why.contains("fake")));
    assert_eq!(
        collect(rig.scheduler.generate(request(prompt(1, 10), 5)).unwrap()).await.0.len(),
        5
    );
}

#[tokio::test]
async fn what_does_not_fit_together_comes_back() {
    let rig = Rig::new(40, options());
    let other = Rig::new(40, options());
    let prefill = |rig: &Rig| {
        let prefill = rig.scheduler.prefill_for_handoff(request(prompt(1, 20), 5)).unwrap();
        prefill.done()
    };
    let mut done = prefill(&rig).await.unwrap();
    for (budget, generated) in [(5, vec![]), (1, vec![4]), (5, vec![64])] {
        let request = request(prompt(1, 20), budget);
        let refused = rig.scheduler.decode_from(request, done.sequence, &generated).unwrap_err();
        assert!(refused.error.is_callers(), "{refused}");
        done.sequence = *refused.sequence;
    }
    let shorter = request(prompt(1, 10), 5);
    let refused = rig.scheduler.decode_from(shorter, done.sequence, &[4]).unwrap_err();
    let foreign = prefill(&other).await.unwrap().sequence;
    let refused_too =
        rig.scheduler.decode_from(request(prompt(1, 20), 5), foreign, &[4]).unwrap_err();
    drop((refused, refused_too));
    rig.idle().await;
    other.idle().await;
}
