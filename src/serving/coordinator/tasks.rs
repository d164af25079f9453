//! The requests of a node, one task each.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;

use blockwire::endpoint::Connection;
use blockwire::session::HandoffKey;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

/// Runs what comes in until the queue closes, then finishes what runs. Many at a time.
pub(super) async fn serve<T>(mut queue: mpsc::Receiver<T>, mut spawn: impl FnMut(&mut Tasks, T)) {
    let mut tasks = Tasks::default();
    loop {
        tokio::select! {
            // A fixed order, for simulations. No more tasks end than items came.
            biased;
            () = tasks.next_end() => {}
            item = queue.recv() => match item {
                Some(item) => spawn(&mut tasks, item),
                None if tasks.is_empty() => return,
                None => tasks.next_end().await,
            },
        }
    }
}

/// Running requests: by request and attempt to cancel them, by owner when a router is lost.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: JoinSet<()>,
    /// In a fixed order, for simulations: whoever loses his owner ends in this order.
    by_request: BTreeMap<HandoffKey, Entry>,
    by_task: HashMap<Id, HandoffKey>,
}

#[derive(Debug)]
struct Entry {
    owner: Option<Connection>,
    abort: AbortHandle,
}

impl Tasks {
    /// Runs a request's task. A second task of the same attempt replaces the first.
    pub(super) fn spawn(
        &mut self,
        request: HandoffKey,
        owner: Option<Connection>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let abort = self.running.spawn(task);
        self.by_task.insert(abort.id(), request);
        if let Some(old) = self.by_request.insert(request, Entry { owner, abort }) {
            old.abort.abort();
        }
    }

    /// Ends a request's task; whatever it held is given back. Unknown requests are ignored.
    pub(super) fn cancel(&mut self, request: HandoffKey) {
        if let Some(entry) = self.by_request.remove(&request) {
            entry.abort.abort();
        }
    }

    /// Ends every task of an owner: the connection on which its results go.
    pub(super) fn cancel_owner(&mut self, owner: &Connection) {
        self.by_request.retain(|_, entry| {
            let lost = entry.owner.as_ref().is_some_and(|it| it.is_same(owner));
            if lost {
                entry.abort.abort();
            }
            !lost
        });
    }

    /// The next task's end; waits for ever while none runs. A panic is a fault of this program, but it
    /// ended one request only.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next_end(&mut self) {
        let Some(ended) = self.running.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let (task, error) = match ended {
            Ok((task, ())) => (task, None),
            Err(error) => (error.id(), Some(error).filter(JoinError::is_panic)),
        };
        let Some(key) = self.by_task.remove(&task) else { return };
        let is_its = |entry: &Entry| entry.abort.id() == task;
        let entry = if self.by_request.get(&key).is_some_and(is_its) {
            self.by_request.remove(&key)
        } else {
            None
        };
        if let Some(error) = error {
            let owner = entry.and_then(|entry| entry.owner);
            let router = owner.as_ref().map_or("", |owner| &owner.peer().name);
            tracing::error!(request = %key.request, router, %error, "a request's task panicked");
        }
    }

    /// Whether no request is running.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }
}
