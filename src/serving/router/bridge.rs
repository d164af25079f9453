//! Merges what two nodes send into one stream: the first token, then the continuation.
//!
//! The first token waits until the decode node has the cache, or until nothing follows it: most of what fails does
//! so before its client has anything. It costs the time of the handoff: a millisecond on one host.
//!
//! A failure is noted here, and told by [`report`](StreamBridge::report) only, since the request may be tried
//! again. Every node draws the same tokens, as the seed is always set. So a later try computes what the client has
//! once more, is compared with it, and goes on behind it. Where it differs, because a runtime is not the same
//! to the last bit in another batch, the stream ends with the failure: an answer is never sewn together from two.

use tokio::sync::mpsc;

use crate::backend::{GenerateError, Started, TokenEvent};
use crate::protocol::ResultFrame;

/// Most events of one node that wait for the other one.
const HELD_MAX: usize = 65_536;

/// The two nodes' results race; a client must see them in order.
#[derive(Debug)]
pub struct StreamBridge {
    events: mpsc::UnboundedSender<TokenEvent>,
    notes: Vec<(&'static str, String)>,
    /// The prefill node gave a token.
    first_seen: bool,
    /// Nothing comes from the decode node: the first token is the last.
    ends_first: bool,
    /// The decode node has the cache.
    handed_over: bool,
    failure: Option<GenerateError>,
    /// Why the try before this one failed.
    failed_before: Option<GenerateError>,
    /// This try drew other tokens than the client has.
    diverges: bool,
    /// Prompt tokens that the prefill node had: the decode node does not know.
    cached_tokens: u32,
    /// Tokens of this try that were compared or sent.
    drawn: u32,
    /// Tokens that the client has.
    sent: Vec<u32>,
    /// What waits for the decode node, each token with its position, where its node tells it.
    first: Vec<(Option<u32>, TokenEvent)>,
    /// What waits for the first token.
    held: Vec<(Option<u32>, TokenEvent)>,
}

impl StreamBridge {
    /// A stream without tokens yet; `notes` say how the request is served.
    pub fn new(
        events: mpsc::UnboundedSender<TokenEvent>,
        notes: Vec<(&'static str, String)>,
    ) -> Self {
        Self {
            events,
            notes,
            first_seen: false,
            ends_first: false,
            handed_over: false,
            failure: None,
            failed_before: None,
            diverges: false,
            cached_tokens: 0,
            drawn: 0,
            sent: Vec::new(),
            first: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Whether the decode node has the request: the prefill node is needed no more.
    pub fn is_handed_over(&self) -> bool {
        self.handed_over && self.first_seen
    }

    /// The error that the stream ended with.
    pub fn failure(&self) -> Option<&GenerateError> {
        self.failure.as_ref()
    }

    /// Takes a result of the prefill node. True when nothing follows.
    pub fn submit_first_token(&mut self, frame: ResultFrame) -> bool {
        if !self.first_seen && (frame.cached_tokens.is_some() || !frame.tokens.is_empty()) {
            let cached_tokens = frame.cached_tokens.unwrap_or_default();
            self.cached_tokens = cached_tokens;
            let notes = std::mem::take(&mut self.notes);
            self.first.push((None, TokenEvent::Started(Started { cached_tokens, notes })));
        }
        for (position, event) in placed(frame) {
            match event {
                TokenEvent::Failed(_) => return self.emit(event),
                TokenEvent::Token { .. } => self.first_seen = true,
                TokenEvent::Finished { .. } => self.ends_first = true,
                TokenEvent::Started(_) => {}
            }
            self.first.push((position, event));
        }
        self.release()
    }

    /// Takes a result of the decode node. True when nothing follows.
    pub fn submit_decode_token(&mut self, frame: ResultFrame) -> bool {
        self.handed_over |= frame.failure.is_none();
        for (position, event) in placed(frame) {
            if matches!(event, TokenEvent::Failed(_)) && !self.is_handed_over() {
                return self.emit(event);
            }
            self.held.push((position, event));
        }
        self.release()
    }

    /// Notes that the nodes failed.
    pub fn fail(&mut self, error: GenerateError) {
        self.failure.get_or_insert(error);
    }

    /// Whether no other try can go on where the client is.
    pub fn diverges(&self) -> bool {
        self.diverges
    }

    /// Whether nobody wants the stream any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Forgets a try, but for what the client has of it.
    pub fn begin_again(&mut self, notes: Vec<(&'static str, String)>) {
        let new = Self::new(self.events.clone(), notes);
        let Self { failure, sent, .. } = std::mem::replace(self, new);
        (self.failed_before, self.sent) = (failure, sent);
    }

    /// Ends the stream with its failure.
    pub fn report(self) {
        if let Some(error) = self.failure {
            let _ = self.events.send(TokenEvent::Failed(error));
        }
    }

    /// Sends what waited, once nothing is in its way; true when the last event was among it.
    fn release(&mut self) -> bool {
        if self.first.len().max(self.held.len()) > HELD_MAX {
            let reason = "one node answers, and the other does not".to_owned();
            return self.emit(TokenEvent::Failed(GenerateError::NodeFailed(reason)));
        }
        if !(self.first_seen && (self.handed_over || self.ends_first)) {
            return false;
        }
        let first = std::mem::take(&mut self.first);
        let held = std::mem::take(&mut self.held);
        first.into_iter().chain(held).any(|(position, event)| self.follow(position, event))
    }

    /// Sends what follows on what was sent; what does not is the end. A link that is about to break may
    /// lose frames and double others: the client must not take what is left for the answer.
    fn follow(&mut self, position: Option<u32>, mut event: TokenEvent) -> bool {
        let due = self.drawn;
        let found = match &mut event {
            TokenEvent::Token { .. } => {
                self.drawn += 1;
                position.unwrap_or(due)
            }
            TokenEvent::Finished { usage, .. } => {
                usage.cached_tokens = self.cached_tokens;
                usage.completion_tokens
            }
            _ => due,
        };
        if found != due {
            let reason = format!("token {due} of the answer was due, and {found} came");
            return self.emit(TokenEvent::Failed(GenerateError::NodeFailed(reason)));
        }
        match (&event, self.sent.get(due as usize)) {
            (TokenEvent::Token { id, .. }, Some(sent)) if id == sent => false,
            (TokenEvent::Token { .. } | TokenEvent::Finished { .. }, Some(_)) => self.diverge(),
            (TokenEvent::Token { id, .. }, None) => {
                self.sent.push(*id);
                self.emit(event)
            }
            _ => self.emit(event),
        }
    }

    /// Ends a try that does not say what the client has: what failed is the one before it.
    fn diverge(&mut self) -> bool {
        self.diverges = true;
        let reason = || GenerateError::NodeFailed("another node draws other tokens".to_owned());
        let error = self.failed_before.take().unwrap_or_else(reason);
        self.emit(TokenEvent::Failed(error))
    }

    /// Sends an event, but for a failure, which is noted; true when it is the last one.
    fn emit(&mut self, event: TokenEvent) -> bool {
        if let TokenEvent::Failed(error) = event {
            self.fail(error);
            return true;
        }
        let last = matches!(event, TokenEvent::Finished { .. });
        // A client that left cancels by other means.
        let _ = self.events.send(event);
        last
    }
}

/// The events of a frame, each token with its position.
fn placed(frame: ResultFrame) -> impl Iterator<Item = (Option<u32>, TokenEvent)> {
    let first = frame.position;
    let place = move |(index, event)| (first.map(|first| first.saturating_add(index)), event);
    (0u32..).zip(frame.into_events()).map(place)
}

#[cfg(test)]
mod tests {
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
        let mut bridge = StreamBridge::new(sender, vec![("decode", "d".into())]);
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
        let mut bridge = StreamBridge::new(sender, vec![]);
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
            let mut bridge = StreamBridge::new(sender, vec![]);
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

    /// A stream whose decode node fails after the tokens 1 and 2.
    fn broken_off() -> (StreamBridge, mpsc::UnboundedReceiver<TokenEvent>) {
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut bridge = StreamBridge::new(sender, vec![]);
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
        let (mut bridge, mut events) = broken_off();
        assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
        assert!(!bridge.submit_decode_token(token(Phase::Continuation, 2).at(1)));
        assert!(!bridge.submit_decode_token(token(Phase::Continuation, 3).at(2)));
        assert!(bridge.submit_decode_token(finish(Phase::Continuation, 3)));
        assert_eq!(ids(&mut events), [3]);
        assert!(bridge.failure().is_none());
    }

    #[test]
    fn another_try_that_differs_is_the_end() {
        let differing = [token(Phase::Continuation, 9).at(1), finish(Phase::Continuation, 1)];
        for frame in differing {
            let (mut bridge, mut events) = broken_off();
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
        let mut bridge = StreamBridge::new(sender, vec![]);
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
        let mut bridge = StreamBridge::new(sender, vec![]);
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
            let mut bridge = StreamBridge::new(sender, vec![]);
            assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
            assert!(!bridge.submit_decode_token(accepted()));
            let ends: Vec<bool> =
                frames.into_iter().map(|frame| bridge.submit_decode_token(frame)).collect();
            assert_eq!(ends, [false, true]);
            assert!(bridge.failure().is_some());
            assert_eq!(ids(&mut events), sent);
        }
    }
}
