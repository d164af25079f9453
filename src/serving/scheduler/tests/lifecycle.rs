//! Refusals, cancellations, failures, ends: none of them keeps a block.

use blockwire::clock;

use super::*;
use crate::backend::{Backend, Readiness};

#[tokio::test]
async fn what_cannot_be_served_is_refused_before_anything_is_taken() {
    let rig = Rig::new(4, options());
    let long = GenerateError::TooLong { tokens: 65, limit: 64 };
    for (request, expected) in [
        (request(vec![], 5), None),
        (request(prompt(1, 5), 0), None),
        (request(vec![VOCAB as u32], 5), None),
        (request(prompt(1, 60), 5), Some(long)),
    ] {
        let refused = rig.scheduler.generate(request.clone()).unwrap_err();
        assert!(refused.is_callers(), "{refused}");
        assert!(expected.is_none_or(|expected| refused == expected), "{refused}");
    }
    let refused = rig.scheduler.prefill_for_handoff(request(vec![], 5)).unwrap_err();
    assert!(matches!(refused, GenerateError::BadRequest(_)));
    assert_eq!(rig.scheduler.stats(), SchedulerStats::default());
    assert!(rig.rows.lock().unwrap().is_empty());
    let (tokens, _) = collect(rig.scheduler.generate(request(prompt(1, 60), 4)).unwrap()).await;
    assert_eq!(tokens.len(), 4, "exactly the whole pool");
}

#[tokio::test]
async fn a_full_queue_is_busy() {
    let options = SchedulerOptions { waiting_max: 2, running_max: 1, ..options() };
    let rig = Rig::new(8, options);
    rig.gate.close();
    let running = rig.scheduler.generate(request(prompt(1, 5), 100)).unwrap();
    until(|| rig.scheduler.stats().running == 1).await;
    let waiting = [1, 2].map(|seed| rig.scheduler.generate(request(prompt(seed, 5), 1)).unwrap());
    let refused = rig.scheduler.generate(request(prompt(1, 5), 1)).unwrap_err();
    assert_eq!(refused, GenerateError::Busy { waiting: 2 });
    drop((running, waiting));
    rig.gate.open();
    rig.idle().await;
}

#[tokio::test]
async fn cancellation_in_every_state_returns_every_block() {
    let options = SchedulerOptions { prefill_rows_max: 4, ..options() };
    let rig = Rig::new(20, options);
    // While it waits, behind one that takes the whole pool.
    rig.gate.close();
    let first = rig.scheduler.generate(request(prompt(1, 300), 20)).unwrap();
    let waiting = rig.scheduler.generate(request(prompt(2, 100), 20)).unwrap();
    rig.gate.allow(3);
    until(|| rig.scheduler.prefill_progress().iter().any(|p| p.done == 12)).await;
    assert_eq!((rig.scheduler.stats().running, rig.scheduler.stats().waiting), (1, 1));
    drop(waiting);
    rig.gate.allow(1);
    until(|| rig.scheduler.stats().waiting == 0).await;
    // In the middle of its prefill.
    let progress = rig.scheduler.prefill_progress()[0];
    assert!(progress.done < progress.total && progress.total == 300);
    drop(first);
    rig.gate.open();
    rig.idle().await;
    // While it decodes.
    rig.gate.allow(2);
    let mut decoding = rig.scheduler.generate(request(prompt(1, 3), 300)).unwrap();
    first_token(&mut decoding).await;
    drop(decoding);
    rig.gate.open();
    rig.idle().await;
    // In a prefill for a handoff, and behind its end.
    rig.gate.allow(3);
    let prefill = rig.scheduler.prefill_for_handoff(request(prompt(1, 300), 20)).unwrap();
    until(|| !rig.scheduler.prefill_progress().is_empty()).await;
    drop(prefill);
    rig.gate.open();
    rig.idle().await;
    let prefill = rig.scheduler.prefill_for_handoff(request(prompt(1, 30), 20)).unwrap();
    until(|| rig.pool.accounting().sealed == 2).await;
    drop(prefill);
    rig.idle().await;
    assert_eq!(rig.scheduler.stats().cancelled, 4);
    // With blocks that it brought, before and after it joined. They are full: the fake's shadow
    // memory does not see a tail copied.
    for joined in [false, true] {
        let prefill = rig.scheduler.prefill_for_handoff(request(prompt(1, 32), 20)).unwrap();
        let done = prefill.done().await.unwrap();
        let request = request(prompt(1, 32), 200);
        rig.gate.allow(if joined { 2 } else { 0 });
        let mut decoding =
            rig.scheduler.decode_from(request, done.sequence, &[done.first_token]).unwrap();
        if joined {
            first_token(&mut decoding).await;
        }
        drop(decoding);
        rig.gate.open();
        rig.idle().await;
    }
}

#[tokio::test]
async fn a_request_waits_for_blocks_that_others_hold_and_is_woken() {
    let rig = Rig::new(4, options());
    let held = rig.pool.try_reserve(3).unwrap();
    let waiting = rig.scheduler.generate(request(prompt(1, 40), 4)).unwrap();
    let cancelled = rig.scheduler.generate(request(prompt(1, 40), 4)).unwrap();
    until(|| rig.scheduler.stats().waiting == 2).await;
    drop(cancelled);
    until(|| rig.scheduler.stats().waiting == 1).await;
    drop(held);
    assert_eq!(collect(waiting).await.0.len(), 4);
    rig.idle().await;
}

#[tokio::test]
async fn who_waits_in_the_pools_queue_is_served_though_a_sequence_grows() {
    let rig = Rig::new(10, options());
    let expected = request(prompt(1, 30), 120);
    rig.gate.allow(1);
    let generation = tokio::spawn(collect(rig.scheduler.generate(expected.clone()).unwrap()));
    until(|| rig.scheduler.stats().running == 1).await;
    let others = rig.pool.reserve(9);
    rig.gate.open();
    let others = tokio::time::timeout(Duration::from_secs(60), others).await;
    drop(others.expect("stuck").unwrap());
    assert_eq!(generation.await.unwrap().0, reference(&expected));
    rig.idle().await;
}

#[tokio::test]
async fn errors_belong_to_requests() {
    let rig = Rig::new(40, options());
    rig.gate.close();
    let good = request(prompt(5, 20), 30);
    let one = rig.scheduler.generate(good.clone()).unwrap();
    let two = rig.scheduler.generate(request(vec![1, REFUSED, 3], 5)).unwrap();
    let three = rig.scheduler.generate(good.clone()).unwrap();
    rig.gate.open();
    let (one, two, three) = (tokio::spawn(collect(one)), collect(two).await, collect(three).await);
    assert!(matches!(two.1, Err(GenerateError::NodeFailed(_))), "{two:?}");
    assert_eq!((one.await.unwrap().0, three.0), (reference(&good), reference(&good)));
    rig.idle().await;
    // A panic takes its batch along, and no more.
    let (_, end) = collect(rig.scheduler.generate(request(vec![PANICS], 5)).unwrap()).await;
    let Err(GenerateError::NodeFailed(reason)) = end else { panic!("{end:?}") };
    assert!(reason.contains("told to"), "{reason}");
    rig.idle().await;
    let (tokens, _) = collect(rig.scheduler.generate(good.clone()).unwrap()).await;
    assert_eq!(tokens, reference(&good));
    assert_eq!(rig.scheduler.stats().failed, 2);
    rig.idle().await;
}

#[tokio::test]
async fn deadlines_end_waiting_and_running_requests() {
    let rig = Rig::new(4, options());
    let held = rig.pool.try_reserve(4).unwrap();
    let soon = clock::now() + Duration::from_millis(30);
    let late = GenerateRequest { deadline: Some(soon), ..request(prompt(1, 4), 4) };
    let (_, end) = collect(rig.scheduler.generate(late).unwrap()).await;
    assert_eq!(end.unwrap_err(), GenerateError::Deadline);
    drop(held);
    rig.idle().await;
}

#[tokio::test]
async fn a_stop_lets_requests_end_and_a_drop_does_not() {
    let rig = Rig::new(40, options());
    let expected = request(prompt(1, 20), 200);
    let generation = rig.scheduler.generate(expected.clone()).unwrap();
    let scheduler = rig.scheduler.clone();
    tokio::task::spawn_blocking(move || scheduler.stop()).await.unwrap();
    assert_eq!(collect(generation).await.0, reference(&expected));
    assert!(!rig.scheduler.is_alive());
    let refused = rig.scheduler.generate(expected).unwrap_err();
    assert!(matches!(refused, GenerateError::NoNode(_)), "{refused}");
    assert_eq!(rig.pool.accounting().available(), 40);

    let rig = Rig::new(256, options());
    let (scheduler, pool) = (rig.scheduler.clone(), rig.pool.clone());
    let endless = scheduler.generate(request(prompt(1, 20), 4000)).unwrap();
    until(|| scheduler.stats().running == 1).await;
    drop((scheduler, rig));
    let (_, end) = collect(endless).await;
    assert!(matches!(end, Err(GenerateError::NoNode(_))), "{end:?}");
    assert_eq!(pool.accounting().available(), 256);
}

#[tokio::test]
async fn a_pool_of_another_geometry_is_refused() {
    let spec = KvSpec::uniform(BLOCK, 2, 1, 1, Dtype::F32);
    let pool = BlockPool::new(PoolOptions::new(spec, 4)).unwrap();
    let (memory, gate, rows) = <(Arc<_>, Arc<_>, Arc<_>)>::default();
    let fake = Fake { memory, gate, rows, owns_state: false };
    let refused = BatchScheduler::start(Box::new(fake), pool, options()).unwrap_err();
    assert!(matches!(refused, StartError::Geometry { .. }), "{refused}");
}

#[tokio::test]
async fn the_local_backend_says_what_it_serves() {
    let rig = Rig::new(4, options());
    let backend = LocalBackend::new(rig.scheduler.clone(), "fake", vec!["alias".to_owned()]);
    let card = backend.models().remove(0);
    assert_eq!((card.context_len, card.vocab), (64, VOCAB), "the pool is the limit");
    assert_eq!(backend.readiness(), Readiness::Ready);
    let (tokens, _) = collect(backend.generate(request(prompt(1, 4), 3)).await.unwrap()).await;
    assert_eq!(tokens.len(), 3);
    let metrics = crate::metrics::Metrics::new();
    rig.scheduler.register_metrics(&metrics);
    let text = metrics.render();
    assert!(text.contains("blockwire:sampled_tokens_total 3\n"), "{text}");
    assert!(text.contains("blockwire:pool_blocks_free{pool=\"scheduler\"} 4\n"), "{text}");
    rig.scheduler.drain();
    assert!(matches!(backend.readiness(), Readiness::NotReady { .. }));
}
