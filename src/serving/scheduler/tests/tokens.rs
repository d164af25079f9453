//! Tokens do not depend on batches, chunks and preemptions.

use super::*;

/// Requests of many lengths around block borders (fault B10), greedy and seeded, with penalties.
fn mixed_requests() -> Vec<GenerateRequest> {
    let lengths = [1, 15, 16, 17, 31, 32, 33, 100, 2, 64];
    let requests = lengths.iter().zip(0..).map(|(len, seed)| {
        let mut request = request(prompt(seed, *len), 20 + seed * 5);
        if seed % 2 == 1 {
            request.sampling.temperature = 0.9;
            request.sampling.seed = u64::from(seed);
            request.sampling.top_p = 0.95;
        }
        if seed % 3 == 2 {
            request.sampling.frequency_penalty = 0.5;
            request.sampling.repetition_penalty = 1.2;
        }
        request.ignore_eos = seed % 4 != 0;
        request.min_tokens = seed;
        request
    });
    requests.collect()
}

#[tokio::test]
async fn every_batch_and_chunk_size_gives_the_reference() {
    // 9 blocks are just enough for the longest request alone: most are preempted.
    for (blocks, rows, running) in
        [(100, 512, 64), (100, 1, 64), (100, 7, 3), (10, 512, 64), (10, 5, 64), (10, 32, 1)]
    {
        let options =
            SchedulerOptions { prefill_rows_max: rows, running_max: running, ..options() };
        let rig = Rig::new(blocks, options);
        let requests = mixed_requests();
        let running: Vec<_> = requests
            .iter()
            .map(|request| tokio::spawn(collect(rig.scheduler.generate(request.clone()).unwrap())))
            .collect();
        for (request, running) in requests.iter().zip(running) {
            let (tokens, end) = running.await.unwrap();
            let (_, usage) = end.unwrap();
            assert_eq!(tokens, reference(request), "{blocks} blocks, {rows} rows: {request:?}");
            assert_eq!(usage.prompt_tokens as usize, request.prompt.len());
            assert_eq!(usage.completion_tokens as usize, tokens.len());
        }
        rig.idle().await;
        let stats = rig.scheduler.stats();
        let prompts: usize = requests.iter().map(|request| request.prompt.len()).sum();
        assert_eq!(stats.prefill_tokens, prompts as u64, "each prompt token counts once");
        assert_eq!(stats.finished, requests.len() as u64);
        if blocks > 10 {
            assert_eq!((stats.preemptions, stats.recomputed_tokens), (0, 0));
        }
    }
}

#[tokio::test]
async fn fault_b16_two_that_grow_beyond_the_pool_both_finish() {
    // Each takes 60 % of the pool in the end, and both fit in the beginning.
    let rig = Rig::new(10, options());
    rig.gate.close();
    let requests = [request(prompt(1, 30), 66), request(prompt(2, 30), 66)];
    let generations: Vec<_> =
        requests.iter().map(|r| rig.scheduler.generate(r.clone()).unwrap()).collect();
    rig.gate.open();
    let ends: Vec<_> = generations.into_iter().map(|g| tokio::spawn(collect(g))).collect();
    for (request, end) in requests.iter().zip(ends) {
        assert_eq!(end.await.unwrap().0, reference(request));
    }
    rig.idle().await;
    let stats = rig.scheduler.stats();
    assert!(stats.preemptions > 0 && stats.recomputed_tokens > 0, "{stats:?}");
}

#[tokio::test]
async fn eight_requests_share_a_pool_for_one_and_a_half() {
    let rig = Rig::new(48, options());
    let requests: Vec<_> = (0..8).map(|seed| request(prompt(seed, 12), 500)).collect();
    let ends: Vec<_> = requests
        .iter()
        .map(|request| tokio::spawn(collect(rig.scheduler.generate(request.clone()).unwrap())))
        .collect();
    for (request, end) in requests.iter().zip(ends) {
        assert_eq!(end.await.unwrap().0, reference(request));
    }
    rig.idle().await;
}

#[tokio::test]
async fn fault_b18_the_budget_and_the_end_are_exact() {
    let rig = Rig::new(8, options());
    for budget in 1..=3 {
        let (tokens, end) =
            collect(rig.scheduler.generate(request(prompt(3, 5), budget)).unwrap()).await;
        assert_eq!(tokens.len() as u32, budget);
        assert_eq!(end.unwrap().0, FinishReason::Length);
    }
    // A prompt after which the model ends the text early.
    let ended = (0..400).map(|seed| GenerateRequest {
        ignore_eos: false,
        ..request(prompt(seed, 5 + seed as usize % 9), 50)
    });
    let early = ended.clone().find(|r| (2..20).contains(&reference(r).len())).unwrap();
    let expected = reference(&early);
    let (tokens, end) = collect(rig.scheduler.generate(early.clone()).unwrap()).await;
    assert_eq!((tokens.last(), &tokens), (Some(&EOS), &expected));
    let (reason, usage) = end.unwrap();
    assert_eq!((reason, usage.completion_tokens), (FinishReason::Stop, expected.len() as u32));
    // The end at the last token of the budget is an end, not a cut.
    let exact = GenerateRequest { max_tokens: expected.len() as u32, ..early.clone() };
    let (_, end) = collect(rig.scheduler.generate(exact).unwrap()).await;
    assert_eq!(end.unwrap().0, FinishReason::Stop);
    let longer = GenerateRequest { min_tokens: 30, ..early.clone() };
    let (tokens, _) = collect(rig.scheduler.generate(longer.clone()).unwrap()).await;
    assert_eq!(tokens, reference(&longer));
    assert!(tokens.len() >= 30 && !tokens[..30].contains(&EOS));
    let (tokens, _) =
        collect(rig.scheduler.generate(GenerateRequest { ignore_eos: true, ..early }).unwrap())
            .await;
    assert_eq!(tokens.len(), 50);
}

#[tokio::test]
async fn log_probabilities_come_where_asked_for() {
    let rig = Rig::new(8, options());
    let request = GenerateRequest { logprobs: Some(3), ..request(prompt(4, 5), 4) };
    let mut generation = rig.scheduler.generate(request).unwrap();
    let mut seen = 0;
    while let Some(event) = generation.next().await {
        if let TokenEvent::Token { id, logprob } = event {
            let logprob = logprob.unwrap();
            assert_eq!((logprob.top.len(), logprob.top[0]), (3, (id, logprob.logprob)));
            seen += 1;
        }
    }
    assert_eq!(seen, 4);
}

#[tokio::test]
async fn decoding_goes_on_while_a_long_prompt_is_computed() {
    let options = SchedulerOptions { prefill_rows_max: 16, ..options() };
    let rig = Rig::new(200, options);
    rig.gate.allow(1);
    let mut short = rig.scheduler.generate(request(prompt(1, 3), 1000)).unwrap();
    first_token(&mut short).await;
    let long = rig.scheduler.generate(request(prompt(2, 1600), 1)).unwrap();
    rig.gate.open();
    let (tokens, _) = collect(long).await;
    assert_eq!(tokens.len(), 1);
    let rows = rig.rows.lock().unwrap().clone();
    assert!(rows.iter().all(|rows| *rows <= 17), "a step has one row and one chunk at most");
    assert!(rows.iter().filter(|rows| **rows == 17).count() >= 99, "{rows:?}");
    drop(short);
    rig.idle().await;
}

/// What a node says of its speed is about the tokens that it computed, not about those that it had.
#[tokio::test]
async fn a_first_token_tells_what_was_computed() {
    let rig = Rig::new(40, options());
    let mut told = Vec::new();
    for _ in 0..2 {
        let mut generation = rig.scheduler.generate(request(prompt(1, 40), 3)).unwrap();
        match generation.next().await {
            Some(TokenEvent::Started(started)) => {
                told.push((started.cached_tokens, started.computed.tokens));
            }
            other => panic!("{other:?} instead of a start"),
        }
        collect(generation).await.1.unwrap();
    }
    assert_eq!(told, [(0, 40), (32, 8)]);
    let prefill = rig.scheduler.prefill_for_handoff(request(prompt(1, 48), 3)).unwrap();
    let done = prefill.done().await.unwrap();
    assert_eq!((done.cached_tokens, done.computed.tokens), (32, 16));
    drop(done);
    rig.idle().await;
}
