//! The in-process transport: the reference that the other transports are compared with.
//!
//! Read it first. It has every rule of [`blockwire::transport`] and nothing else: no system call, no
//! framing, no unsafe code. Two [`MemLink`]s share one wire: a mutex around the state of both
//! ends. Whichever end is polled makes the progress that it finds, for itself and for its peer, and
//! wakes the peer when there is something to report.
//!
//! ```text
//!  end 0                     wire (one mutex)                      end 1
//!  submit(Control) ──> outbox ──────────────> inbox (bounded) ──> Received
//!  submit(Stream)  ──> streams ══ one copy ══> lands         <── submit(Land)
//!                   completions <── who polls ──> completions
//! ```
//! A payload byte is copied once, from pool block to pool block. There is no `get`: reading a peer's
//! region without holding its blocks cannot be done in safe code, and this crate forbids unsafe code.
//!
//! ```
//! use blockwire::transport::{Link, LinkEvent, Op};
//! use std::task::{Context, Waker};
//!
//! let (mut near, mut far) = blockwire_mem::pair();
//! near.submit(Op::Control("hello".into())).unwrap();
//! let (mut cx, mut events) = (Context::from_waker(Waker::noop()), vec![]);
//! let _ = near.poll_progress(&mut cx, &mut vec![]);
//! let _ = far.poll_progress(&mut cx, &mut events);
//! assert!(matches!(&events[..], [LinkEvent::Received(frame)] if frame == "hello"));
//! ```
#![forbid(unsafe_code)]

mod link;
mod listener;
mod payload;
mod wire;

use std::io;
use std::sync::Arc;

use blockwire::transport::{
    Address, ConnectError, Link, ListenError, Listener, LocalFuture, Transport,
};

pub use link::{MemLink, pair};
pub use listener::MemListener;

use listener::Names;

/// The scheme of this transport's addresses.
const SCHEME: &str = "mem";

/// Links between threads of one process, dialled by name: `mem:NAME`.
///
/// Every default-made transport is a namespace of its own; clones share theirs. `mem:` without a name
/// listens under a fresh one.
#[derive(Clone, Debug, Default)]
pub struct MemTransport {
    names: Arc<Names>,
}

impl Transport for MemTransport {
    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        let (names, address) = (Arc::clone(&self.names), address.clone());
        Box::pin(async move {
            if address.scheme() != SCHEME {
                let reason = "the scheme is not mem".into();
                return Err(ConnectError::Address { address, reason });
            }
            match names.dial(&address) {
                Some(link) => Ok(Box::new(link) as Box<dyn Link>),
                None => {
                    let source = io::ErrorKind::ConnectionRefused.into();
                    Err(ConnectError::System { address, source })
                }
            }
        })
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let (names, address) = (Arc::clone(&self.names), address.clone());
        Box::pin(async move {
            if address.scheme() != SCHEME {
                let reason = "the scheme is not mem".into();
                return Err(ListenError::Address { address, reason });
            }
            match names.bind(address.target()) {
                Some(listener) => Ok(Box::new(listener) as Box<dyn Listener>),
                None => Err(ListenError::InUse { address }),
            }
        })
    }
}
