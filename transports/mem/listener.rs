//! Names, and the links that wait behind them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use blockwire::transport::{Address, ConnectError, Link, Listener};

use super::SCHEME;
use super::link::{MemLink, named_pair};

/// Links dialled and not accepted yet; more are refused, as a full backlog of a socket does.
const BACKLOG_MAX: usize = 128;

/// The names of one transport.
#[derive(Debug, Default)]
pub(crate) struct Names {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    bound: HashMap<String, Backlog>,
    unnamed: u64,
}

/// What was dialled under a name and not accepted yet.
#[derive(Debug, Default)]
struct Backlog {
    links: VecDeque<MemLink>,
    waker: Option<Waker>,
}

impl Names {
    /// Binds a name; an empty one stands for a fresh one. None when it is in use.
    pub(crate) fn bind(self: &Arc<Self>, name: &str) -> Option<MemListener> {
        let mut table = self.lock();
        let name = if name.is_empty() { table.fresh_name() } else { name.to_owned() };
        if table.bound.contains_key(&name) {
            return None;
        }
        table.bound.insert(name.clone(), Backlog::default());
        Some(MemListener { names: Arc::clone(self), name })
    }

    /// A link to whoever listens; none when nobody does, or when too many wait already.
    pub(crate) fn dial(&self, address: &Address) -> Option<MemLink> {
        let mut table = self.lock();
        let backlog = table.bound.get_mut(address.target())?;
        if backlog.links.len() >= BACKLOG_MAX {
            return None;
        }
        let (near, far) = named_pair(&address.to_string(), &format!("{address}, a dialler"));
        backlog.links.push_back(far);
        let waker = backlog.waker.take();
        drop(table);
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(near)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Consistent between statements, so a panic elsewhere does not spoil it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn fresh_name(&mut self) -> String {
        loop {
            self.unnamed += 1;
            let name = format!("unnamed-{}", self.unnamed);
            if !self.bound.contains_key(&name) {
                return name;
            }
        }
    }
}

/// A bound name. Dropping it frees the name; links not accepted yet die.
#[derive(Debug)]
pub struct MemListener {
    names: Arc<Names>,
    name: String,
}

impl Listener for MemListener {
    fn local_address(&self) -> Address {
        Address::new(SCHEME, &self.name)
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        let mut table = self.names.lock();
        let Some(backlog) = table.bound.get_mut(&self.name) else { return Poll::Pending };
        match backlog.links.pop_front() {
            Some(link) => Poll::Ready(Ok(Box::new(link))),
            None => {
                backlog.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for MemListener {
    fn drop(&mut self) {
        // Taken out of the lock first: the links that die wake their peers.
        let unaccepted = self.names.lock().bound.remove(&self.name);
        drop(unaccepted);
    }
}
