//! How far the end of a link has come: of one connection, or of several.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use blockwire::transport::{CloseReason, Op, OpError};
use blockwire::wire::{BODY_LEN_MAX, HEADER_LEN, Header, Kind};
use tokio::time::{Sleep, sleep};

#[derive(Debug)]
pub(crate) enum Stage {
    Open,
    /// Sending what was accepted.
    Flushing(Option<Pin<Box<Sleep>>>),
    /// All is sent, and the peer was told that nothing follows; it ends when it has read it. Closing now,
    /// with bytes of the peer unread, would reset the connection and could destroy what is still under way.
    Lingering(Pin<Box<Sleep>>),
    Closed(CloseReason),
}

impl Stage {
    /// Why an operation is not taken.
    pub(crate) fn refusal(&self, op: &Op) -> Option<OpError> {
        match (self, op) {
            (Self::Closed(reason), _) => Some(OpError::Closed(reason.clone())),
            (Self::Flushing(_) | Self::Lingering(_), _) => {
                Some(OpError::Closed(CloseReason::Local))
            }
            (Self::Open, Op::Control(frame)) => control_refusal(frame),
            (Self::Open, Op::Get { .. }) => Some(OpError::Unsupported("get")),
            (Self::Open, Op::Stream { .. } | Op::Land { .. }) => None,
        }
    }

    /// Why a link ended that ends for `reason` now: what happens during an orderly end changes nothing,
    /// unless it is a violation.
    pub(crate) fn end(&self, reason: CloseReason) -> CloseReason {
        match (self, reason) {
            (_, violated @ CloseReason::Violated(_)) => violated,
            (Self::Open, reason) => reason,
            _ => CloseReason::Local,
        }
    }

    /// All is sent.
    pub(crate) fn linger(&mut self, timeout: Duration) {
        *self = Self::Lingering(Box::pin(sleep(timeout)));
    }

    /// Ready when an orderly end has taken long enough. Flushing has `flush_timeout`, from its first poll.
    pub(crate) fn poll_overdue(
        &mut self,
        cx: &mut Context<'_>,
        flush_timeout: Duration,
    ) -> Poll<()> {
        match self {
            Self::Flushing(deadline) => {
                let deadline = deadline.get_or_insert_with(|| Box::pin(sleep(flush_timeout)));
                deadline.as_mut().poll(cx)
            }
            Self::Lingering(deadline) => deadline.as_mut().poll(cx),
            Self::Open | Self::Closed(_) => Poll::Pending,
        }
    }
}

/// The peer finds the end of a control frame by its header alone.
fn control_refusal(frame: &[u8]) -> Option<OpError> {
    if frame.len() > HEADER_LEN + BODY_LEN_MAX {
        return Some(OpError::ControlTooLong(frame.len()));
    }
    let header = frame.first_chunk().and_then(|head| Header::parse(head).ok());
    let delimited = header.is_some_and(|header| {
        !matches!(header.kind, Kind::Payload | Kind::Credit)
            && HEADER_LEN + header.body_len as usize == frame.len()
    });
    (!delimited).then_some(OpError::Unsupported("control without a header of its own length"))
}
