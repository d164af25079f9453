//! Events that the user has not taken yet. When there are too many, the driver stops reading from that
//! one peer until some are taken: backpressure instead of memory.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Most events of a connection that wait for its user.
const EVENTS_MAX: usize = 4096;
/// Most bytes that they may take; the last one may go beyond.
const BYTES_MAX: usize = 64 << 20;

/// A shared count with a waiting place for the driver.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    events: AtomicUsize,
    bytes: AtomicUsize,
    driver: Mutex<Option<Waker>>,
}

impl Backlog {
    pub(super) fn added(&self, bytes: usize) {
        self.0.events.fetch_add(1, SeqCst);
        self.0.bytes.fetch_add(bytes, SeqCst);
    }

    pub(super) fn taken(&self, bytes: usize) {
        self.0.events.fetch_sub(1, SeqCst);
        self.0.bytes.fetch_sub(bytes, SeqCst);
        let waiting = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(driver) = waiting {
            driver.wake();
        }
    }

    /// Ready while there is room; else the driver is woken when something was taken.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        *self.0.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        // Taken between the two looks: nobody would wake us.
        if self.has_room() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn has_room(&self) -> bool {
        self.0.events.load(SeqCst) < EVENTS_MAX && self.0.bytes.load(SeqCst) < BYTES_MAX
    }
}
