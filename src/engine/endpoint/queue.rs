//! What handles ask of the task that drives them, in order, and how they learn that it is gone.
//!
//! A tokio queue whose receiver is dropped is emptied once. A request that is sent in that very moment may
//! stay behind, with all that it owns (blocks, a reply channel), until the last sender goes, which may be
//! the very handle that waits for the reply. So a task ends its queue in order ([`Requests::end`]: nothing stays
//! behind), and whoever waits looks at the queue's end too ([`Asker::answer`]), for tasks that are dropped.

use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

/// A queue from handles to their task.
pub(super) fn queue<T>() -> (Asker<T>, Requests<T>) {
    let (asker, requests) = mpsc::unbounded_channel();
    (Asker(asker), Requests(requests))
}

/// The handles' end.
#[derive(Debug)]
pub(super) struct Asker<T>(mpsc::UnboundedSender<T>);

impl<T> Asker<T> {
    /// Asks for something. When the task is gone, what is asked for is dropped, and its reply channel with it.
    pub(super) fn ask(&self, request: T) {
        let _ = self.0.send(request);
    }

    /// What the task replies; none when it is gone without a reply.
    pub(super) async fn answer<R>(&self, reply: &mut oneshot::Receiver<R>) -> Option<R> {
        tokio::select! {
            biased;
            answer = &mut *reply => answer.ok(),
            () = self.0.closed() => reply.try_recv().ok(),
        }
    }
}

/// The task's end.
#[derive(Debug)]
pub(super) struct Requests<T>(mpsc::UnboundedReceiver<T>);

impl<T> Requests<T> {
    /// The next request; none when all handles are gone.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }

    /// The same.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Option<T> {
        self.0.recv().await
    }

    /// Takes no more requests, and drops every one that was not read, also those that are just being sent.
    pub(super) async fn end(mut self) {
        self.0.close();
        while self.0.recv().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_request_that_stays_behind_is_answered() {
        let (asker, mut requests) = queue();
        let (reply, mut answer) = oneshot::channel::<()>();
        asker.ask(reply);
        let mut answer = pin!(asker.answer(&mut answer));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(answer.as_mut().poll(&mut cx).is_pending());
        // The task reads no more, and the request is still in the queue.
        requests.0.close();
        assert_eq!(answer.as_mut().poll(&mut cx), Poll::Ready(None));
    }

    #[test]
    fn a_reply_counts_more_than_the_end() {
        let (asker, requests) = queue::<()>();
        let (reply, mut answer) = oneshot::channel();
        reply.send(7).unwrap();
        drop(requests);
        let answer = pin!(asker.answer(&mut answer));
        assert_eq!(answer.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Some(7)));
    }

    /// Threads ask on and on while the task ends. With the receiver merely dropped, requests stay behind in
    /// every fourth round or so.
    #[test]
    fn an_end_leaves_nothing_behind() {
        let rounds = if cfg!(miri) { 2 } else { 100 };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..rounds {
            let (asker, mut requests) = queue::<Arc<()>>();
            let (asker, block) = (Arc::new(asker), Arc::new(()));
            let over = Arc::new(AtomicBool::new(false));
            let ask = || {
                let (asker, block, over) = (asker.clone(), block.clone(), over.clone());
                std::thread::spawn(move || {
                    while !over.load(Relaxed) {
                        asker.ask(block.clone());
                    }
                })
            };
            let threads = [ask(), ask()];
            runtime.block_on(async {
                requests.next().await;
                requests.end().await;
            });
            over.store(true, Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            // A handle is still there, as when its user waits for an answer.
            assert_eq!(Arc::strong_count(&block), 1);
            drop(asker);
        }
    }
}
