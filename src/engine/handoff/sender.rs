//! Sends a sequence to a peer, ahead of its end where that gains anything.
//!
//! Where the payload is pushed, its bytes can leave while the prompt is computed: those of a step of the model with the
//! next step, and those of the last ones layer by layer, so that little more than the last layer's are waited for. Where the peer reaches the blocks by itself, there is nothing to
//! gain: they are adopted or copied from where they lie, once they are all there. Which of the two it is, the
//! link's [`Capabilities`](crate::transport::Capabilities) say; whoever computes does the same for both.

use std::time::Duration;

use bytes::Bytes;

use super::SequenceHandoff;
use crate::clock;
use crate::endpoint::{Connection, OutgoingHandoff};
use crate::pool::{BlockPool, FillingBlock};
use crate::session::{HandoffKey, OfferError, OfferPayload, OfferStream, PieceCut};

/// Tokens that are computed at a time, where nobody says.
const STEP_TOKENS: usize = 512;

/// What a committed handoff took.
#[derive(Clone, Copy, Debug)]
pub struct SendReport {
    /// Bytes of the whole payload, whether sent or already held by the receiver.
    pub payload_len: u64,
    /// Those among them that had left when the sequence was finished.
    pub ahead_len: u64,
    /// From the finished sequence to the commit: what the receiver waits for, whatever left before.
    pub exposed: Duration,
}

/// A sequence on its way to a peer while it is computed. Dropping it withdraws what was offered.
#[derive(Debug)]
pub struct HandoffSender {
    connection: Connection,
    key: HandoffKey,
    pool: BlockPool,
    tokens: usize,
    cut: PieceCut,
    meta: Bytes,
    /// Once something was sent ahead.
    offer: Option<OutgoingHandoff>,
    /// Blocks that were.
    pushed: usize,
}

impl HandoffSender {
    /// Will send a sequence of `tokens` tokens in blocks of `pool`; nothing is said to the peer yet. `meta` is
    /// what its user reads before it decides.
    pub fn new(
        connection: Connection,
        key: HandoffKey,
        pool: &BlockPool,
        tokens: usize,
        meta: Bytes,
    ) -> Self {
        let cut = PieceCut::suiting(pool.spec(), tokens, STEP_TOKENS);
        let pool = pool.clone();
        Self { connection, key, pool, tokens, cut, meta, offer: None, pushed: 0 }
    }

    /// The same of a sequence of which at most so many tokens are computed at a time.
    #[must_use]
    pub fn in_steps_of(self, step_tokens: usize) -> Self {
        let cut = PieceCut::suiting(self.pool.spec(), self.tokens, step_tokens);
        Self { cut, ..self }
    }

    /// The same in such pieces.
    #[must_use]
    pub fn in_pieces(self, cut: PieceCut) -> Self {
        Self { cut, ..self }
    }

    /// Sends ahead what is final of blocks: of those from the sequence's block number `first` on, and of those that
    /// were pushed before. The first call with blocks makes the offer. Where nothing is gained by it, nothing
    /// happens; what comes a second time, as after a preemption, is the same bytes, and stays here.
    pub fn push<B: Clone + Into<FillingBlock>>(&mut self, first: usize, blocks: &[B]) {
        let can = self.connection.capabilities();
        if can.get.is_some() || can.stream.is_none() {
            return;
        }
        let new = self.pushed.checked_sub(first).and_then(|known| blocks.get(known..));
        let new = new.unwrap_or_default();
        if new.is_empty() && self.offer.is_none() {
            return;
        }
        let offer = self.offer.get_or_insert_with(|| {
            let (pool, meta) = (self.pool.clone(), self.meta.clone());
            let (tokens, cut) = (self.tokens, self.cut);
            let stream = OfferStream { pool, tokens, cut, meta };
            self.connection.offer_stream(self.key, stream)
        });
        offer.push(new.iter().cloned());
        self.pushed += new.len();
    }

    /// Waits until what was offered ahead is over, which it is only because the peer will not have it. For
    /// ever while nothing was offered.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn failed(&mut self) -> OfferError {
        let Some(offer) = &mut self.offer else { return std::future::pending().await };
        match offer.ended().await {
            Err(error) => error,
            // A commit follows the digest, and that the end of the sequence.
            Ok(_) => std::future::pending().await,
        }
    }

    /// Sends what did not leave yet, and waits until the peer owns a good copy. `closing` is what its user
    /// reads with it.
    ///
    /// # Errors
    /// [`OfferError`]: the peer has no copy, and will not get one from this offer.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the offer. The blocks stay until nobody can read them any more.
    pub async fn finish(
        self,
        handoff: SequenceHandoff,
        closing: Bytes,
    ) -> Result<SendReport, OfferError> {
        let start = clock::now();
        let SequenceHandoff(run) = handoff;
        let payload_len = run.payload_len();
        let offer = match self.offer {
            Some(offer) => {
                offer.finish(run.blocks().skip(self.pushed).cloned().collect(), closing);
                // From here on the link has what it needs of the sequence.
                drop(run);
                offer
            }
            None => {
                let payload = OfferPayload { run, meta: self.meta, closing };
                self.connection.offer(self.key, payload)
            }
        };
        let ahead_len = offer.committed().await?.ahead_len;
        Ok(SendReport { payload_len, ahead_len, exposed: clock::now() - start })
    }
}

/// Offers a finished sequence to a peer and waits until the peer owns a good copy.
///
/// `meta` is what the receiver's user reads before it decides.
///
/// # Errors
/// [`OfferError`]: the peer has no copy, and will not get one from this offer.
///
/// # Cancel safety
/// Dropping the future withdraws the offer. The blocks stay until nobody can read them any more.
pub async fn send_handoff_payload(
    connection: &Connection,
    key: HandoffKey,
    handoff: SequenceHandoff,
    meta: Bytes,
) -> Result<SendReport, OfferError> {
    let (pool, tokens) = (handoff.0.pool().clone(), handoff.0.tokens());
    let sender = HandoffSender::new(connection.clone(), key, &pool, tokens, meta);
    sender.finish(handoff, Bytes::new()).await
}
