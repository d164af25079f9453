//! The requests of a node, one task each.

use std::collections::HashMap;
use std::future::Future;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use uuid::Uuid;

/// Running requests: by request to cancel them, by owner when a router is lost.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: JoinSet<()>,
    by_request: HashMap<Uuid, Entry>,
    by_task: HashMap<Id, Uuid>,
}

#[derive(Debug)]
struct Entry {
    owner: Option<Uuid>,
    abort: AbortHandle,
}

impl Tasks {
    /// Runs a request's task. A second task of the same request replaces the first.
    pub(super) fn spawn(
        &mut self,
        request: Uuid,
        owner: Option<Uuid>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let abort = self.running.spawn(task);
        self.by_task.insert(abort.id(), request);
        if let Some(old) = self.by_request.insert(request, Entry { owner, abort }) {
            old.abort.abort();
        }
    }

    /// Ends a request's task; whatever it held is given back. Unknown requests are ignored.
    pub(super) fn cancel(&mut self, request: Uuid) {
        if let Some(entry) = self.by_request.remove(&request) {
            entry.abort.abort();
        }
    }

    /// Ends every task of an owner.
    pub(super) fn cancel_owner(&mut self, owner: Uuid) {
        self.by_request.retain(|_, entry| {
            let lost = entry.owner == Some(owner);
            if lost {
                entry.abort.abort();
            }
            !lost
        });
    }

    /// The next task's end; waits for ever while none runs. Gives the request and why it panicked.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next_end(&mut self) -> (Uuid, Option<JoinError>) {
        let Some(ended) = self.running.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let (task, error) = match ended {
            Ok((task, ())) => (task, None),
            Err(error) => (error.id(), Some(error).filter(JoinError::is_panic)),
        };
        let request = self.by_task.remove(&task).unwrap_or_default();
        if self.by_request.get(&request).is_some_and(|entry| entry.abort.id() == task) {
            self.by_request.remove(&request);
        }
        (request, error)
    }

    /// Whether no request is running.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }
}
