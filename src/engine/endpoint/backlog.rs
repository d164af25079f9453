//! Events that the user has not taken yet. When there are too many, the driver stops reading from that
//! one peer until some are taken: backpressure instead of memory.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Most events of a connection that wait for its user.
const BACKLOG_MAX: usize = 4096;

/// A shared count with a waiting place for the driver.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    events: AtomicUsize,
    driver: Mutex<Option<Waker>>,
}

impl Backlog {
    pub(super) fn added(&self) {
        self.0.events.fetch_add(1, SeqCst);
    }

    pub(super) fn taken(&self) {
        self.0.events.fetch_sub(1, SeqCst);
        let waiting = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(driver) = waiting {
            driver.wake();
        }
    }

    /// Ready while there is room; else the driver is woken when something was taken.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.events.load(SeqCst) < BACKLOG_MAX {
            return Poll::Ready(());
        }
        *self.0.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        // Taken between the two looks: nobody would wake us.
        if self.0.events.load(SeqCst) < BACKLOG_MAX { Poll::Ready(()) } else { Poll::Pending }
    }
}
