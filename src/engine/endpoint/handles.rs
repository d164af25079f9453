//! A handoff in progress, as its user holds it. Dropping a handle gives the handoff up.

use bytes::Bytes;
use tokio::sync::oneshot;

use super::connection::{Connection, OfferId, Request};
use crate::pool::{BlockPool, FillingBlock, ReservedBlock, SealedBlock};
use crate::session::{Committed, DeclineCode, HandoffKey, LandError, Landed, Manifest, OfferError};

/// An offer of this side's. Dropping it withdraws the offer.
#[derive(Debug)]
pub struct OutgoingHandoff {
    connection: Connection,
    id: OfferId,
    ended: Option<oneshot::Receiver<Result<Committed, OfferError>>>,
}

impl OutgoingHandoff {
    pub(super) fn new(
        connection: Connection,
        id: OfferId,
        ended: oneshot::Receiver<Result<Committed, OfferError>>,
    ) -> Self {
        Self { connection, id, ended: Some(ended) }
    }

    /// Adds blocks to an offer [that is computed meanwhile](Connection::offer_stream): those that follow the
    /// ones before. What is final of these and earlier ones leaves as soon as the receiver has room; what is wrong
    /// with them ends the offer.
    pub fn push(&self, blocks: impl IntoIterator<Item = impl Into<FillingBlock>>) {
        let blocks = blocks.into_iter().map(Into::into).collect();
        self.connection.request(Request::Push(self.id, blocks));
    }

    /// Adds the last blocks, and what the receiver's user should know with the whole.
    pub fn finish(&self, last: Vec<SealedBlock>, closing: Bytes) {
        self.connection.request(Request::Finish(self.id, last, closing));
    }

    /// Waits until the offer is over, in whatever way: [`committed`](Self::committed) for those who go on with
    /// something else meanwhile. For ever, once it has returned.
    ///
    /// # Errors
    /// As [`committed`](Self::committed).
    ///
    /// # Cancel safety
    /// Nothing is lost, and the offer stays.
    pub async fn ended(&mut self) -> Result<Committed, OfferError> {
        let Some(ended) = &mut self.ended else { return std::future::pending().await };
        let outcome = self.connection.answer(ended).await;
        self.ended = None;
        outcome.unwrap_or_else(|| Err(OfferError::Ended(self.connection.end())))
    }

    /// Waits until the receiver owns a good copy.
    ///
    /// # Errors
    /// [`OfferError`]: it does not, and will not.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the offer; the blocks are freed as soon as nobody reads them.
    pub async fn committed(mut self) -> Result<Committed, OfferError> {
        self.ended().await
    }
}

impl Drop for OutgoingHandoff {
    fn drop(&mut self) {
        if self.ended.is_some() {
            self.connection.request(Request::Withdraw(self.id));
        }
    }
}

/// What an accepted offer needs.
#[derive(Debug)]
pub(super) struct Acceptance {
    pub(super) pool: BlockPool,
    pub(super) blocks: Vec<ReservedBlock>,
    pub(super) how: How,
    pub(super) landed: oneshot::Sender<Result<Landed, LandError>>,
}

/// How a payload is taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// The tokens from this one on are moved.
    From(usize),
    /// What can be stays where it is.
    Adopting,
}

/// Gives an offer up unless it is disarmed.
#[derive(Debug)]
struct Guard {
    connection: Connection,
    key: HandoffKey,
    armed: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.armed {
            self.connection.request(Request::Abandon(self.key));
        }
    }
}

/// An offer of the peer's. Dropping it declines.
#[derive(Debug)]
pub struct IncomingHandoff {
    guard: Guard,
    manifest: Manifest,
}

impl IncomingHandoff {
    pub(super) fn new(connection: Connection, key: HandoffKey, manifest: Manifest) -> Self {
        Self { guard: Guard { connection, key, armed: true }, manifest }
    }

    /// Which request, and which try of it.
    pub fn key(&self) -> HandoffKey {
        self.guard.key
    }

    /// What is offered.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The connection that the offer came on.
    pub fn connection(&self) -> &Connection {
        &self.guard.connection
    }

    /// Declines, with a reason for people.
    pub fn decline(mut self, code: DeclineCode, reason: &str) {
        self.guard.armed = false;
        self.guard.connection.request(Request::Decline(self.guard.key, code, reason.to_owned()));
    }

    /// Lands the payload of the tokens from `from` on in `blocks`, and checks its digest.
    ///
    /// `from` is a multiple of both sides' block lengths; what lies before, the caller has already.
    ///
    /// # Errors
    /// [`LandError`]; the blocks are back in their pool, or will be as soon as the link is done.
    ///
    /// # Cancel safety
    /// Dropping the future declines. The blocks stay in quarantine until the link is done with them.
    pub async fn accept(
        self,
        pool: &BlockPool,
        blocks: Vec<ReservedBlock>,
        from: usize,
    ) -> Result<LandedPayload, LandError> {
        self.take(pool, blocks, How::From(from)).await
    }

    /// Leaves the first [adoptable](Manifest::adoptable) tokens where they are, lands those that follow in
    /// `blocks`, and checks the digest of these.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    ///
    /// # Cancel safety
    /// As [`accept`](Self::accept).
    pub async fn adopt(
        self,
        pool: &BlockPool,
        blocks: Vec<ReservedBlock>,
    ) -> Result<LandedPayload, LandError> {
        self.take(pool, blocks, How::Adopting).await
    }

    async fn take(
        self,
        pool: &BlockPool,
        blocks: Vec<ReservedBlock>,
        how: How,
    ) -> Result<LandedPayload, LandError> {
        let Self { mut guard, manifest } = self;
        let (landed, mut outcome) = oneshot::channel();
        let acceptance = Acceptance { pool: pool.clone(), blocks, how, landed };
        guard.connection.request(Request::Accept(guard.key, acceptance));
        match guard.connection.answer(&mut outcome).await {
            Some(Ok(landed)) => Ok(LandedPayload { guard, manifest, landed }),
            Some(Err(error)) => {
                guard.armed = false;
                Err(error)
            }
            None => Err(LandError::Ended(guard.connection.end())),
        }
    }
}

/// A payload that is here and whole, or stays with the peer, and is not yet committed. Dropping it
/// declines and frees the blocks.
#[derive(Debug)]
pub struct LandedPayload {
    guard: Guard,
    manifest: Manifest,
    landed: Landed,
}

impl LandedPayload {
    /// What was offered.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What the peer's user said when the sequence was finished.
    pub fn closing(&self) -> &Bytes {
        &self.landed.closing
    }

    /// Takes the payload for good; the sender may free its copy, but for the adopted blocks.
    ///
    /// # Errors
    /// [`LandError::Withdrawn`] or [`LandError::Ended`]: too late, the blocks are freed.
    ///
    /// # Cancel safety
    /// Dropping the future may commit or decline; the blocks are freed either way.
    pub async fn commit(mut self) -> Result<Landed, LandError> {
        let (reply, mut done) = oneshot::channel();
        self.guard.connection.request(Request::Commit(self.guard.key, reply));
        match self.guard.connection.answer(&mut done).await {
            Some(true) => {
                self.guard.armed = false;
                let Guard { connection, key, .. } = &self.guard;
                let (connection, key) = (connection.clone(), *key);
                // The handle keeps the connection open for as long as blocks of the peer's are read.
                let tell = move || connection.request(Request::Release(key));
                let Landed { adopted, blocks, closing } = self.landed;
                let adopted = adopted.map(|adopted| adopted.on_release(tell));
                Ok(Landed { adopted, blocks, closing })
            }
            Some(false) if !self.guard.connection.is_closed() => Err(LandError::Withdrawn),
            _ => Err(LandError::Ended(self.guard.connection.end())),
        }
    }
}
