//! Merges what two nodes send into one stream: the first token, then the continuation.
//!
//! The first token waits until the decode node has the cache, or until nothing follows it: most of what fails does
//! so before its client has anything. It costs the time of the handoff: a millisecond on one host.
//!
//! A failure is noted here, and told by [`report`](StreamBridge::report) only, since the request may be tried
//! again. Every node draws the same tokens, as the seed is always set. So a later try computes what the client has
//! once more, is compared with it, and goes on behind it. Where it differs, because a runtime is not the same
//! to the last bit in another batch, the stream ends with the failure: an answer is never sewn together from two.
//! An answer that its client gets as a whole begins anew there instead, with all tokens of the later try.

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
    /// Whether the client gets nothing before the end.
    retractable: bool,
    /// This try drew other tokens than the client has.
    diverges: bool,
    /// Times that the answer began anew.
    restarts: u64,
    /// Tokens of this try that were compared: those with which the answer would begin anew.
    compared: Vec<TokenEvent>,
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
    /// A stream without tokens yet; `notes` say how the request is served, `retractable` whether nobody uses
    /// the tokens before the end.
    pub fn new(
        events: mpsc::UnboundedSender<TokenEvent>,
        notes: Vec<(&'static str, String)>,
        retractable: bool,
    ) -> Self {
        Self {
            events,
            notes,
            retractable,
            restarts: 0,
            compared: Vec::new(),
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

    /// Whether the prompt is computed.
    pub fn has_first_token(&self) -> bool {
        self.first_seen
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
            let started = Started { cached_tokens, notes, ..Started::default() };
            self.first.push((None, TokenEvent::Started(started)));
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

    /// Replaces the failure, where more is known than how the last try failed.
    pub(super) fn condemn(&mut self, error: GenerateError) {
        self.failure = Some(error);
    }

    /// Whether no other try can go on where the client is.
    pub fn diverges(&self) -> bool {
        self.diverges
    }

    /// Tokens that went to the client.
    pub fn sent_len(&self) -> usize {
        self.sent.len()
    }

    /// Times that the answer began anew.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Whether nobody wants the stream any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Forgets a try, but for what the client has of it.
    pub fn begin_again(&mut self, notes: Vec<(&'static str, String)>) {
        let new = Self::new(self.events.clone(), notes, self.retractable);
        let Self { failure, sent, restarts, .. } = std::mem::replace(self, new);
        (self.failed_before, self.sent, self.restarts) = (failure, sent, restarts);
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
            (TokenEvent::Token { id, .. }, Some(sent)) if id == sent => {
                if self.retractable {
                    self.compared.push(event);
                }
                false
            }
            (TokenEvent::Token { .. } | TokenEvent::Finished { .. }, Some(_)) => {
                if self.retractable { self.begin_anew(event) } else { self.diverge() }
            }
            (TokenEvent::Token { id, .. }, None) => {
                self.sent.push(*id);
                self.emit(event)
            }
            _ => self.emit(event),
        }
    }

    /// Takes back what was sent, for what this try says instead, up to `event`.
    fn begin_anew(&mut self, event: TokenEvent) -> bool {
        self.restarts += 1;
        self.sent.clear();
        let cached_tokens = self.cached_tokens;
        let anew = Started { cached_tokens, anew: true, ..Started::default() };
        let mut again = vec![TokenEvent::Started(anew)];
        again.append(&mut self.compared);
        again.push(event);
        again.into_iter().any(|event| {
            if let TokenEvent::Token { id, .. } = event {
                self.sent.push(id);
            }
            self.emit(event)
        })
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
mod tests;
