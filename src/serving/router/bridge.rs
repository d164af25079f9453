//! Merges what two nodes send into one stream: the first token, then the continuation.
//!
//! The first token waits until the decode node has the cache, or until nothing follows it. So a request
//! whose handoff fails has not begun for its client, and can be tried on other nodes; a client that
//! has a first token gets the rest of the answer, unless a node dies. It costs the time of the
//! handoff: a millisecond on one host. For the same reason a failure is noted here, and told by
//! [`report`](StreamBridge::report) only.

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
    begun: bool,
    /// Prompt tokens that the prefill node had: the decode node does not know.
    cached_tokens: u32,
    /// Tokens that the client has.
    tokens: u32,
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
            begun: false,
            cached_tokens: 0,
            tokens: 0,
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

    /// Whether the client has anything.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether nobody wants the stream any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Forgets a try of which the client has nothing.
    pub fn begin_again(&mut self, notes: Vec<(&'static str, String)>) {
        debug_assert!(!self.begun, "the client would get two answers");
        *self = Self::new(self.events.clone(), notes);
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
        let due = self.tokens;
        let found = match &mut event {
            TokenEvent::Token { .. } => {
                self.tokens += 1;
                position.unwrap_or(due)
            }
            TokenEvent::Finished { usage, .. } => {
                usage.cached_tokens = self.cached_tokens;
                usage.completion_tokens
            }
            _ => due,
        };
        if found == due {
            return self.emit(event);
        }
        let reason = format!("token {due} of the answer was due, and {found} came");
        self.emit(TokenEvent::Failed(GenerateError::NodeFailed(reason)))
    }

    /// Sends an event, but for a failure, which is noted; true when it is the last one.
    fn emit(&mut self, event: TokenEvent) -> bool {
        if let TokenEvent::Failed(error) = event {
            self.fail(error);
            return true;
        }
        let last = matches!(event, TokenEvent::Finished { .. });
        self.begun = true;
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
    fn a_request_whose_handoff_fails_has_not_begun_for_its_client() {
        for phase in [Phase::FirstToken, Phase::Continuation] {
            let (sender, mut events) = mpsc::unbounded_channel();
            let mut bridge = StreamBridge::new(sender, vec![]);
            assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1).at(0)));
            let failed = failed(phase);
            assert!(match phase {
                Phase::FirstToken => bridge.submit_first_token(failed),
                _ => bridge.submit_decode_token(failed),
            });
            assert!(!bridge.has_begun() && bridge.failure().is_some(), "{phase:?}");
            bridge.begin_again(vec![]);
            assert!(!bridge.submit_first_token(token(Phase::FirstToken, 2).at(0)));
            assert!(!bridge.submit_decode_token(accepted()));
            assert_eq!(ids(&mut events), [2]);
            bridge.fail(GenerateError::Deadline);
            bridge.report();
            assert!(matches!(events.try_recv(), Ok(TokenEvent::Failed(GenerateError::Deadline))));
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
