//! Merges what two nodes send into one stream: the first token, then the continuation.

use tokio::sync::mpsc;

use crate::backend::{GenerateError, Started, TokenEvent};
use crate::protocol::ResultFrame;

/// Most events of a continuation that wait for a first token that does not come.
const HELD_MAX: usize = 65_536;

/// The two nodes' results race; a client must see them in order.
#[derive(Debug)]
pub struct StreamBridge {
    events: mpsc::UnboundedSender<TokenEvent>,
    notes: Vec<(&'static str, String)>,
    first_seen: bool,
    handed_over: bool,
    failed: bool,
    held: Vec<TokenEvent>,
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
            handed_over: false,
            failed: false,
            held: Vec::new(),
        }
    }

    /// Whether the decode node has the request: the prefill node is needed no more.
    pub fn is_handed_over(&self) -> bool {
        self.handed_over && self.first_seen
    }

    /// Whether the stream ended with an error.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Takes a result of the prefill node. True when nothing follows.
    pub fn submit_first_token(&mut self, frame: ResultFrame) -> bool {
        if !self.first_seen && (frame.cached_tokens.is_some() || !frame.tokens.is_empty()) {
            let cached_tokens = frame.cached_tokens.unwrap_or_default();
            let notes = std::mem::take(&mut self.notes);
            self.emit(TokenEvent::Started(Started { cached_tokens, notes }));
        }
        for event in frame.into_events() {
            self.first_seen |= matches!(event, TokenEvent::Token { .. });
            if self.emit(event) {
                return true;
            }
        }
        self.first_seen && self.release()
    }

    /// Takes a result of the decode node. True when nothing follows.
    pub fn submit_decode_token(&mut self, frame: ResultFrame) -> bool {
        self.handed_over = true;
        self.held.extend(frame.into_events());
        if self.held.len() > HELD_MAX {
            let reason = "the continuation came without a first token".to_owned();
            return self.emit(TokenEvent::Failed(GenerateError::NodeFailed(reason)));
        }
        self.first_seen && self.release()
    }

    /// Ends the stream with an error.
    pub fn fail(&mut self, error: GenerateError) {
        self.emit(TokenEvent::Failed(error));
    }

    fn release(&mut self) -> bool {
        for event in std::mem::take(&mut self.held) {
            if self.emit(event) {
                return true;
            }
        }
        false
    }

    /// Sends an event; true when it was the last one.
    fn emit(&mut self, event: TokenEvent) -> bool {
        let last = matches!(event, TokenEvent::Finished { .. } | TokenEvent::Failed(_));
        self.failed |= matches!(event, TokenEvent::Failed(_));
        // A client that left cancels by other means.
        let _ = self.events.send(event);
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{FinishReason, Usage};
    use crate::protocol::Phase;

    fn token(phase: Phase, id: u32) -> ResultFrame {
        ResultFrame::carrying(phase, TokenEvent::Token { id, logprob: None })
    }

    fn finish(phase: Phase) -> ResultFrame {
        let usage = Usage { prompt_tokens: 1, completion_tokens: 2, cached_tokens: 0 };
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
        assert!(!bridge.submit_decode_token(finish(Phase::Continuation)));
        assert!(events.try_recv().is_err());
        assert!(bridge.submit_first_token(token(Phase::FirstToken, 1)));
        assert!(
            matches!(events.try_recv(), Ok(TokenEvent::Started(started)) if !started.notes.is_empty())
        );
        assert_eq!(ids(&mut events), [1, 2]);
    }

    #[test]
    fn a_request_of_one_token_ends_at_the_prefill_node() {
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut bridge = StreamBridge::new(sender, vec![]);
        assert!(!bridge.submit_first_token(token(Phase::FirstToken, 1)));
        assert!(bridge.submit_first_token(finish(Phase::FirstToken)));
        assert_eq!(ids(&mut events), [1]);
        assert!(!bridge.is_handed_over());
    }
}
