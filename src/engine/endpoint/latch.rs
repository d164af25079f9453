//! A value that is set once, for whoever waits for it.
//!
//! Those who wait are woken in the order in which they began to: a simulation with the same seed then
//! runs the same way. (`tokio::sync::watch` draws lots.)

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// A latch, and the right to set it. Dropping that right ends the waiting too.
pub(super) fn latch<T>() -> (Setter<T>, Latch<T>) {
    let inner = Arc::new(Inner { value: OnceLock::new(), set: Notify::new() });
    (Setter(Arc::clone(&inner)), Latch(inner))
}

#[derive(Debug)]
struct Inner<T> {
    /// None inside: it never will be set.
    value: OnceLock<Option<T>>,
    set: Notify,
}

/// The right to set a latch.
#[derive(Debug)]
pub(super) struct Setter<T>(Arc<Inner<T>>);

/// What waits.
#[derive(Debug)]
pub(super) struct Latch<T>(Arc<Inner<T>>);

impl<T> Setter<T> {
    /// Sets the value; a second one is dropped.
    pub(super) fn set(&self, value: T) {
        self.end(Some(value));
    }

    /// For one more who waits.
    pub(super) fn latch(&self) -> Latch<T> {
        Latch(Arc::clone(&self.0))
    }

    fn end(&self, value: Option<T>) {
        if self.0.value.set(value).is_ok() {
            self.0.set.notify_waiters();
        }
    }
}

impl<T> Drop for Setter<T> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl<T> Latch<T> {
    /// Whether there is nothing to wait for any more.
    pub(super) fn is_over(&self) -> bool {
        self.0.value.get().is_some()
    }

    /// The value, once it is set.
    pub(super) fn value(&self) -> Option<&T> {
        self.0.value.get().and_then(Option::as_ref)
    }

    /// Waits until the latch is set, or never will be.
    pub(super) async fn over(&self) {
        // Made before the look: what happens in between wakes it.
        let set = self.0.set.notified();
        if !self.is_over() {
            set.await;
        }
    }
}

impl<T> Clone for Latch<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Wake, Waker};

    use super::*;

    /// Writes its number down when it is woken.
    struct Numbered(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Numbered {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn those_who_wait_are_woken_in_their_order() {
        let (setter, latch) = latch();
        let woken = Arc::<Mutex<Vec<usize>>>::default();
        let mut waiting: Vec<_> = (0..20).map(|_| Box::pin(latch.over())).collect();
        for (number, waiting) in waiting.iter_mut().enumerate() {
            let waker = Waker::from(Arc::new(Numbered(number, woken.clone())));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        setter.set(7);
        setter.set(8);
        assert_eq!(*woken.lock().unwrap(), (0..20).collect::<Vec<_>>());
        assert_eq!((latch.is_over(), latch.value()), (true, Some(&7)));
    }

    #[test]
    fn nobody_waits_for_who_is_gone() {
        let (setter, latch) = latch::<u32>();
        let mut waiting = pin!(latch.over());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        drop(setter);
        assert!(waiting.as_mut().poll(&mut cx).is_ready());
        assert_eq!((latch.is_over(), latch.value()), (true, None));
    }
}
