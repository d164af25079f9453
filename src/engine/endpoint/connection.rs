//! One peer, as its user sees it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::backlog::Backlog;
use super::handles::{IncomingHandoff, OutgoingHandoff};
use super::latch::Latch;
use super::queue::Asker;
use crate::pool::{FillingBlock, SealedBlock, TransferStats};
use crate::session::{
    Committed, HandoffKey, Identity, OfferError, OfferPayload, OfferStream, PeerMessage,
    SessionCounters, SessionEnd,
};
use crate::transport::Capabilities;
use crate::wire::BodyError;

/// A handle on a connection; clones share it. The connection closes with its last handle.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) peer: Identity,
    pub(super) peer_address: String,
    pub(super) capabilities: Capabilities,
    pub(super) traffic: Arc<TransferStats>,
    pub(super) counters: Mutex<SessionCounters>,
    /// Offers so far.
    pub(super) offers: AtomicU64,
    pub(super) requests: Asker<Request>,
    pub(super) end: Latch<SessionEnd>,
}

/// What a handle asks of its connection's task.
#[derive(Debug)]
pub(super) enum Request {
    Offer(OfferId, Offered, oneshot::Sender<Result<Committed, OfferError>>),
    Push(OfferId, Vec<FillingBlock>),
    Finish(OfferId, Vec<SealedBlock>, Bytes),
    Withdraw(OfferId),
    Accept(HandoffKey, super::handles::Acceptance),
    Decline(HandoffKey, crate::session::DeclineCode, String),
    Abandon(HandoffKey),
    Commit(HandoffKey, oneshot::Sender<bool>),
    Release(HandoffKey),
    RecallAll,
    Message(PeerMessage, oneshot::Sender<Result<(), BodyError>>),
    Close(String),
}

/// Which offer is meant: one that is refused since its key is in use must not touch the one that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfferId {
    pub(super) key: HandoffKey,
    /// Of the connection's offers, by counting.
    pub(super) number: u64,
}

/// What is on offer.
#[derive(Debug)]
pub(super) enum Offered {
    Payload(OfferPayload),
    Stream(OfferStream),
}

/// What a connection did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Payload bytes sent, or taken by the peer where it pulls.
    pub payload_sent: u64,
    /// Payload bytes that arrived in this side's blocks.
    pub payload_landed: u64,
    /// Payload bytes copied in user space by this side.
    pub payload_copied: u64,
    /// Connections that a link of several has now: fewer than it was asked for while some are lost. 0 of
    /// every other link.
    pub stripes: u64,
    /// Frames of finished handoffs, dropped.
    pub late_frames: u64,
    /// Withdrawn offers whose blocks a peer may still read.
    pub offers_in_quarantine: u64,
    /// Blocks of this side's pool that the peer reads in place.
    pub blocks_lent: u64,
    /// Leases that this side ended because recalled blocks did not come back.
    pub leases_revoked: u64,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Who the peer is.
    pub fn peer(&self) -> &Identity {
        &self.0.peer
    }

    /// Where the peer is, for people.
    pub fn peer_address(&self) -> &str {
        &self.0.peer_address
    }

    /// Whether both are handles on one connection, and not on two to the same peer.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What the link can do.
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    /// What the connection did so far.
    pub fn stats(&self) -> ConnectionStats {
        let counters = *self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        ConnectionStats {
            payload_sent: self.0.traffic.sent(),
            payload_landed: self.0.traffic.landed(),
            payload_copied: self.0.traffic.copied(),
            stripes: self.0.traffic.stripes(),
            late_frames: counters.late_frames,
            offers_in_quarantine: counters.offers_in_quarantine,
            blocks_lent: counters.blocks_lent,
            leases_revoked: counters.leases_revoked,
        }
    }

    /// Offers a payload; the returned handle tells how it ended. Dropping it withdraws the offer.
    pub fn offer(&self, key: HandoffKey, payload: OfferPayload) -> OutgoingHandoff {
        self.put_on_offer(key, Offered::Payload(payload))
    }

    /// Offers a sequence while it is computed; the returned handle takes its blocks, and tells how the offer
    /// ended. Dropping it withdraws the offer.
    pub fn offer_stream(&self, key: HandoffKey, stream: OfferStream) -> OutgoingHandoff {
        self.put_on_offer(key, Offered::Stream(stream))
    }

    fn put_on_offer(&self, key: HandoffKey, offered: Offered) -> OutgoingHandoff {
        let (reply, ended) = oneshot::channel();
        let id = OfferId { key, number: self.0.offers.fetch_add(1, Relaxed) };
        self.request(Request::Offer(id, offered, reply));
        OutgoingHandoff::new(self.clone(), id, ended)
    }

    /// Sends a message, in order with every other one.
    ///
    /// # Errors
    /// [`MessageError`].
    ///
    /// # Cancel safety
    /// The message is sent even when the future is dropped after its first poll.
    pub async fn send(
        &self,
        request: Uuid,
        epoch: u32,
        kind: u32,
        body: Bytes,
    ) -> Result<(), MessageError> {
        let (reply, mut sent) = oneshot::channel();
        self.request(Request::Message(PeerMessage { request, epoch, kind, body }, reply));
        match self.answer(&mut sent).await {
            Some(outcome) => Ok(outcome?),
            None => Err(MessageError::Ended(self.end())),
        }
    }

    /// Sends a message like [`send`](Self::send), without waiting: one that is too long, or that comes
    /// after the end, is lost.
    pub fn post(&self, request: Uuid, epoch: u32, kind: u32, body: Bytes) {
        let (reply, _) = oneshot::channel();
        self.request(Request::Message(PeerMessage { request, epoch, kind, body }, reply));
    }

    /// Asks the peer for all blocks that it reads in place: it copies them, and lets go.
    pub fn recall_all(&self) {
        self.request(Request::RecallAll);
    }

    /// Closes in order: the peer reads `reason`.
    pub fn close(&self, reason: &str) {
        self.request(Request::Close(reason.to_owned()));
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        self.0.end.is_over()
    }

    /// Waits for the end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn closed(&self) -> SessionEnd {
        self.0.end.over().await;
        self.end()
    }

    pub(super) fn end(&self) -> SessionEnd {
        // A task that is gone without a word was ended with its endpoint.
        self.0.end.value().cloned().unwrap_or(SessionEnd::Local)
    }

    pub(super) fn request(&self, request: Request) {
        self.0.requests.ask(request);
    }

    /// What the driver replies to a request; none when the connection is over.
    pub(super) async fn answer<T>(&self, reply: &mut oneshot::Receiver<T>) -> Option<T> {
        self.0.requests.answer(reply).await
    }
}

/// Why a message was not sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Longer than a frame.
    #[error(transparent)]
    TooLong(#[from] BodyError),
    /// The connection ended.
    #[error("connection ended: {0}")]
    Ended(SessionEnd),
}

/// What a peer sends.
#[derive(Debug)]
pub enum Event {
    /// It offers a payload.
    Handoff(IncomingHandoff),
    /// It sends a message.
    Message(PeerMessage),
}

impl Event {
    /// Bytes that it takes in memory, about.
    pub(super) fn memory_len(&self) -> usize {
        match self {
            Self::Handoff(incoming) => incoming.manifest().memory_len(),
            Self::Message(message) => message.body.len(),
        }
    }
}

/// What a peer sends, in order. Taken slowly, it slows the peer down.
#[derive(Debug)]
pub struct Events {
    pub(super) queue: mpsc::UnboundedReceiver<Event>,
    pub(super) backlog: Backlog,
}

impl Events {
    /// The next event; none once the connection is over.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.queue.recv().await?;
        self.backlog.taken(event.memory_len());
        Some(event)
    }
}
