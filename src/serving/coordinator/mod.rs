//! The roles of a disaggregated deployment.
//!
//! ```text
//!             run_prefill_role                          run_decode_role
//! PrefillRoleRequest ──> compute ──offer, blocks───────> DecodeRoleHandoff ──> reserve, land
//!        │               first token ──digest──────────>         commit, join the batch
//!        │                                                                      │
//!        └─ ResultFrame FirstToken ──> ResultSink <── ResultFrame Continuation ─┘
//! ```
//! A decode node that is asked to computes a prompt itself (`local`).
//!
//! A role is a loop over work items (`prefill`, `decode`); its networked form (`network`) feeds the
//! same loop from connections. Every request is a task of its own: what goes wrong ends that task and
//! is told to whoever asked; the loop goes on. Dropping a task gives everything back: blocks, the
//! place in the batch, the offer.

mod decode;
mod local;
mod metrics;
mod network;
pub(crate) mod peers;
mod persistence;
mod prefill;
mod tasks;

use std::sync::Arc;

use blockwire::endpoint::{Connection, Endpoint};
use blockwire::session::{HandoffKey, PieceCut};
use tokio::sync::mpsc;

pub use decode::DecodeRoleHandoff;
pub use metrics::HandoffMetrics;
pub use prefill::PrefillRoleRequest;

use crate::backend::GenerateRequest;
use crate::protocol::{ResultFrame, kind};
use crate::scheduler::BatchScheduler;

/// A node of one role: its endpoint, its scheduler, its requests.
#[derive(Clone, Debug)]
pub struct ServingCoordinator {
    endpoint: Arc<Endpoint>,
    scheduler: BatchScheduler,
    metrics: HandoffMetrics,
    adopt: bool,
    cut: Option<PieceCut>,
}

impl ServingCoordinator {
    /// A node that computes with `scheduler` and talks through `endpoint`, whose pool is the
    /// scheduler's.
    pub fn new(
        endpoint: Arc<Endpoint>,
        scheduler: BatchScheduler,
        metrics: HandoffMetrics,
    ) -> Self {
        Self { endpoint, scheduler, metrics, adopt: true, cut: None }
    }

    /// Copies every cache into the own pool, also where the peer's blocks could be read in place.
    #[must_use]
    pub fn without_adoption(self) -> Self {
        Self { adopt: false, ..self }
    }

    /// Sends caches ahead in such pieces instead of those that suit the prompt.
    #[must_use]
    pub fn in_pieces(self, cut: PieceCut) -> Self {
        Self { cut: Some(cut), ..self }
    }

    /// First tokens of a prompt that later ones find here, once it is computed.
    fn kept_of(&self, request: &GenerateRequest) -> usize {
        self.scheduler.prefix_keys(request).len()
            * self.scheduler.pool().spec().block_tokens as usize
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &BatchScheduler {
        &self.scheduler
    }
}

/// Where the results of a request go.
#[derive(Clone, Debug)]
pub enum ResultSink {
    /// To whoever holds the other end, in this process.
    Channel(mpsc::UnboundedSender<ResultFrame>),
    /// To the router that asked, on its own connection.
    Peer {
        /// The router.
        connection: Connection,
        /// The request, and which attempt at it.
        key: HandoffKey,
    },
}

impl ResultSink {
    /// Who gets the results, for log lines.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Channel(_) => "this process",
            Self::Peer { connection, .. } => &connection.peer().name,
        }
    }

    /// Sends a result.
    ///
    /// # Errors
    /// [`SinkClosed`]: nobody waits for results any more.
    pub async fn send(&self, frame: ResultFrame) -> Result<(), SinkClosed> {
        match self {
            Self::Channel(channel) => channel.send(frame).map_err(|_| SinkClosed),
            Self::Peer { connection, key } => {
                let body = prost::Message::encode_to_vec(&frame).into();
                connection
                    .send(key.request, key.epoch, kind::RESULT, body)
                    .await
                    .map_err(|_| SinkClosed)
            }
        }
    }
}

/// Nobody waits for the results of this request any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody waits for the results any more")]
pub struct SinkClosed;
