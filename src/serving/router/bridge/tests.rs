use super::*;
use crate::backend::{FinishReason, Usage};
use crate::protocol::Phase;

fn token(phase: Phase, id: u32) -> ResultFrame {
    ResultFrame::carrying(phase, TokenEvent::Token { id, logprob: None })
}

/// The decode node has the cache.
fn accepted() -> ResultFrame {
    ResultFrame::carrying(Phase::Continuation, TokenEvent::Started(Started::default()))
}

fn failed(phase: Phase) -> ResultFrame {
    let error = GenerateError::NodeFailed("it did".to_owned());
    ResultFrame::carrying(phase, TokenEvent::Failed(error))
}

fn finish(phase: Phase, completion_tokens: u32) -> ResultFrame {
    let usage = Usage { prompt_tokens: 1, completion_tokens, cached_tokens: 0 };
    ResultFrame::carrying(phase, TokenEvent::Finished { reason: FinishReason::Length, usage })
}

fn ids(events: &mut mpsc::UnboundedReceiver<TokenEvent>) -> Vec<u32> {
    std::iter::from_fn(|| events.try_recv().ok())
        .filter_map(|e| if let TokenEvent::Token { id, .. } = e { Some(id) } else { None })
        .collect()
}

#[test]
fn a_continuation_that_overtakes_the_first_token_waits_for_it() {
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut bridge = StreamBridge::new(sender, vec![("decode", "d".into())], false);
    assert!(!bridge.submit_decode_token(token(Phase::Continuation, 2)));
    assert!(!bridge.submit_decode_token(finish(Phase::Continuation, 2)));
    assert!(events.try_recv().is_err());
    assert!(bridge.submit_first_token(token(Phase::FirstToken, 1)));
    assert!(
        matches!(events.try_recv(), Ok(TokenEvent::Started(started)) if !started.notes.is_empty())
    );
    assert_eq!(ids(&mut events), [1, 2]);
}

#[test]
fn a_first_token_waits_until_the_decode_node_has_the_cache() {
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut bridge = StreamBridge::new(sender, vec![], false);
    assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
    assert!(events.try_recv().is_err());
    assert!(!bridge.submit_decode_token(accepted()));
    assert_eq!(ids(&mut events), [1]);
    assert!(bridge.is_handed_over());
}

#[test]
fn a_client_has_nothing_of_a_request_whose_handoff_fails() {
    for phase in [Phase::FirstToken, Phase::Continuation] {
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut bridge = StreamBridge::new(sender, vec![], false);
        assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
        let failed = failed(phase);
        assert!(match phase {
            Phase::FirstToken => bridge.submit_first_token(failed),
            _ => bridge.submit_decode_token(failed),
        });
        assert!(events.try_recv().is_err() && bridge.failure().is_some(), "{phase:?}");
        bridge.begin_again(vec![]);
        assert!(!bridge.submit_first_token(token(Phase::FirstToken, 2).at(0)));
        assert!(!bridge.submit_decode_token(accepted()));
        assert_eq!(ids(&mut events), [2]);
        bridge.fail(GenerateError::Deadline);
        bridge.report();
        assert!(matches!(events.try_recv(), Ok(TokenEvent::Failed(GenerateError::Deadline))));
    }
}

/// A stream, or an answer that comes as a whole, whose decode node fails after the tokens 1 and 2.
fn broken_off(retractable: bool) -> (StreamBridge, mpsc::UnboundedReceiver<TokenEvent>) {
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut bridge = StreamBridge::new(sender, vec![], retractable);
    assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
    assert!(!bridge.submit_decode_token(token(Phase::Continuation, 2).at(1)));
    assert_eq!(ids(&mut events), [1, 2]);
    assert!(bridge.submit_decode_token(failed(Phase::Continuation)));
    assert!(events.try_recv().is_err(), "a failure is not told before there is no other try");
    bridge.begin_again(vec![]);
    (bridge, events)
}

#[test]
fn another_try_goes_on_where_the_client_is() {
    for retractable in [false, true] {
        let (mut bridge, mut events) = broken_off(retractable);
        assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
        assert!(!bridge.submit_decode_token(token(Phase::Continuation, 2).at(1)));
        assert!(!bridge.submit_decode_token(token(Phase::Continuation, 3).at(2)));
        assert!(bridge.submit_decode_token(finish(Phase::Continuation, 3)));
        assert_eq!(ids(&mut events), [3]);
        assert!(bridge.failure().is_none() && bridge.restarts() == 0);
    }
}

/// What a client makes of the events: what came before a beginning anew is void.
fn answer(events: &mut mpsc::UnboundedReceiver<TokenEvent>) -> Vec<u32> {
    let mut tokens = vec![1, 2];
    while let Ok(event) = events.try_recv() {
        match event {
            TokenEvent::Started(started) if started.anew => tokens.clear(),
            TokenEvent::Token { id, .. } => tokens.push(id),
            _ => {}
        }
    }
    tokens
}

#[test]
fn an_answer_that_nobody_has_yet_begins_anew_where_another_try_differs() {
    // At its second token, and as an answer of one token.
    let differing = [
        (vec![token(Phase::Continuation, 9).at(1), token(Phase::Continuation, 8).at(2)], 3),
        (vec![], 1),
    ];
    for (frames, len) in differing {
        let (mut bridge, mut events) = broken_off(true);
        assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
        assert!(!bridge.submit_decode_token(accepted()));
        for frame in frames {
            assert!(!bridge.submit_decode_token(frame));
        }
        assert!(bridge.submit_decode_token(finish(Phase::Continuation, len)));
        assert_eq!(answer(&mut events), [1, 9, 8][..len as usize]);
        assert!(bridge.failure().is_none() && !bridge.diverges());
        assert_eq!(bridge.restarts(), 1);
    }
}

#[test]
fn an_answer_that_began_anew_goes_on_at_a_third_try() {
    let (mut bridge, mut events) = broken_off(true);
    assert!(!bridge.submit_first_token(token(Phase::FirstToken, 7).at(0)));
    assert!(!bridge.submit_decode_token(token(Phase::Continuation, 8).at(1)));
    assert!(bridge.submit_decode_token(failed(Phase::Continuation)));
    bridge.begin_again(vec![]);
    for (id, position) in [(7, 0), (8, 1), (9, 2)] {
        let frame = token(Phase::Continuation, id).at(position);
        let over = match position {
            0 => bridge.submit_first_token(frame),
            _ => bridge.submit_decode_token(frame),
        };
        assert!(!over);
    }
    assert!(bridge.submit_decode_token(finish(Phase::Continuation, 3)));
    assert_eq!((answer(&mut events), bridge.restarts()), (vec![7, 8, 9], 1));
}

#[test]
fn another_try_that_differs_is_the_end() {
    let differing = [token(Phase::Continuation, 9).at(1), finish(Phase::Continuation, 1)];
    for frame in differing {
        let (mut bridge, mut events) = broken_off(false);
        assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
        assert!(bridge.submit_decode_token(frame));
        assert!(bridge.diverges());
        assert_eq!(bridge.failure(), Some(&GenerateError::NodeFailed("it did".to_owned())));
        assert!(ids(&mut events).is_empty());
    }
}

#[test]
fn the_end_tells_what_the_prefill_node_had() {
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut bridge = StreamBridge::new(sender, vec![], false);
    let mut first = token(Phase::FirstToken, 1);
    first.cached_tokens = Some(48);
    assert!(!bridge.submit_first_token(first));
    assert!(!bridge.submit_decode_token(token(Phase::Continuation, 2)));
    assert!(bridge.submit_decode_token(finish(Phase::Continuation, 2)));
    let told: Vec<u32> = std::iter::from_fn(|| events.try_recv().ok())
        .filter_map(|event| match event {
            TokenEvent::Started(started) => Some(started.cached_tokens),
            TokenEvent::Finished { usage, .. } => Some(usage.cached_tokens),
            _ => None,
        })
        .collect();
    assert_eq!(told, [48, 48]);
}

#[test]
fn a_request_of_one_token_ends_at_the_prefill_node() {
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut bridge = StreamBridge::new(sender, vec![], false);
    assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1)));
    assert!(bridge.submit_first_token(finish(Phase::FirstToken, 1)));
    assert_eq!(ids(&mut events), [1]);
    assert!(!bridge.is_handed_over());
}

#[test]
fn a_token_that_is_lost_or_doubled_on_the_way_is_an_error() {
    let continuation = |id, position| token(Phase::Continuation, id).at(position);
    let over = [
        (vec![continuation(2, 1), continuation(4, 3)], vec![1, 2]),
        (vec![continuation(2, 1), continuation(2, 1)], vec![1, 2]),
        (vec![continuation(2, 1), finish(Phase::Continuation, 3)], vec![1, 2]),
        (vec![token(Phase::Continuation, 2), finish(Phase::Continuation, 9)], vec![1, 2]),
    ];
    for (frames, sent) in over {
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut bridge = StreamBridge::new(sender, vec![], false);
        assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
        assert!(!bridge.submit_decode_token(accepted()));
        let ends: Vec<bool> =
            frames.into_iter().map(|frame| bridge.submit_decode_token(frame)).collect();
        assert_eq!(ends, [false, true]);
        assert!(bridge.failure().is_some());
        assert_eq!(ids(&mut events), sent);
    }
}
