//! How a link that lost stripes gets others.
//!
//! ```text
//! dialler                                          acceptor
//! dials stripe 4, greets    ══ new connection ══>  it waits at the door
//! has stripe 4              ──── JOIN{4, nonce} ─> takes the connection with that nonce
//! uses it too               <─── JOINED{4} ──────  has stripe 4, and may use it at once
//! ```
//! - JOIN and JOINED are numbered frames, so each side knows what the other knew when it said what came
//!   before: nobody names a stripe that the other does not have.
//! - A stripe that comes in place of a lost one has a number above all before, so that the rules of `order`
//!   hold: whoever changes goes up. What a lost stripe was called means nothing any more.
//! - One joins at a time. It is lost like any other before it joined, and then LOST takes its JOIN back.

use std::task::{Context, Poll, ready};

use blockwire::transport::Violation;

use super::dial::Connection;
use super::door::Door;
use super::frame::Frame;
use super::redial::{Redial, Redialled};
use crate::greeting::Nonce;

/// Where new stripes come from.
#[derive(Debug)]
pub(super) enum Growth {
    Dialler(Redial<Connection>),
    Acceptor {
        door: Door<Connection>,
        /// Which connection the peer wants to be taken.
        announced: Option<(usize, Nonce)>,
    },
    /// The link is over.
    Ended,
}

/// What a link has to do to grow.
#[derive(Debug)]
pub(super) enum Grown {
    /// Has a stripe more, and says so: JOIN, or JOINED.
    Stripe { number: usize, connection: Box<Connection>, says: Frame },
    /// Gives up a stripe that the peer did not take.
    Late { number: usize },
}

impl Growth {
    pub(super) fn dialler(redial: Redial<Connection>) -> Self {
        Self::Dialler(redial)
    }

    pub(super) fn acceptor(door: Door<Connection>) -> Self {
        Self::Acceptor { door, announced: None }
    }

    /// Dials nobody any more, and lets nobody wait.
    pub(super) fn end(&mut self) {
        *self = Self::Ended;
    }

    /// The next stripe, or the end of one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Grown> {
        match self {
            Self::Dialler(redial) => Poll::Ready(match ready!(redial.poll(cx)) {
                Redialled::Connected { number, connection } => {
                    let says = Frame::Join { stripe: number, nonce: connection.1.nonce };
                    Grown::Stripe { number, connection: Box::new(connection), says }
                }
                Redialled::Late { number } => Grown::Late { number },
            }),
            Self::Acceptor { door, announced } => {
                let Some((number, nonce)) = *announced else { return Poll::Pending };
                let connection = ready!(door.poll_take(cx, number, &nonce));
                door.raise(number + 1);
                *announced = None;
                let says = Frame::Joined { stripe: number };
                Poll::Ready(Grown::Stripe { number, connection: Box::new(connection), says })
            }
            Self::Ended => Poll::Pending,
        }
    }

    /// The peer says which connection it dialled.
    ///
    /// # Errors
    /// It is not its turn.
    pub(super) fn join(&mut self, number: usize, nonce: Nonce) -> Result<(), Violation> {
        match self {
            Self::Dialler(_) | Self::Ended => {
                Err(Violation::Stripes("a stripe that this side did not dial"))
            }
            Self::Acceptor { announced: Some(_), .. } => {
                Err(Violation::Stripes("a stripe joins while another does"))
            }
            Self::Acceptor { door, announced } => {
                door.raise(number);
                *announced = Some((number, nonce));
                Ok(())
            }
        }
    }

    /// The peer took a stripe; false where it was not asked to, or not any more.
    ///
    /// # Errors
    /// It takes none.
    pub(super) fn joined(&mut self, number: usize) -> Result<bool, Violation> {
        match self {
            Self::Dialler(redial) => Ok(redial.joined(number)),
            Self::Acceptor { .. } | Self::Ended => {
                Err(Violation::Stripes("this side dialled no stripe"))
            }
        }
    }

    /// A stripe is lost, whether or not it had joined.
    pub(super) fn lost(&mut self, number: usize) {
        match self {
            Self::Dialler(redial) => redial.lost(number),
            Self::Acceptor { door, announced } => {
                if announced.is_some_and(|(joining, _)| joining == number) {
                    door.raise(number + 1);
                    *announced = None;
                }
            }
            Self::Ended => {}
        }
    }
}
