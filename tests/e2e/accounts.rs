//! What nodes hold while they are idle, which must be the same once their work is done.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::node::{Node, Resources, wait_until};

/// The accounts of some nodes, by process.
#[derive(Debug, Default)]
pub(crate) struct Accounts(HashMap<u32, Account>);

/// What one node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Account {
    /// Blocks of its pool that can be had; a router has none.
    available: Option<u64>,
    resources: Resources,
}

impl Accounts {
    /// Waits until the nodes are idle, and takes their accounts.
    pub(crate) fn take<'a>(nodes: impl Iterator<Item = &'a Node>) -> Self {
        let account = |node| {
            wait_until_idle(node);
            (Node::pid(node), Account::of(node))
        };
        Self(nodes.map(account).collect())
    }

    /// Sets how many threads each node may have at most.
    pub(crate) fn set_threads(&mut self, threads: impl IntoIterator<Item = (u32, usize)>) {
        for (pid, threads) in threads {
            self.0.get_mut(&pid).expect("an account of the node").resources.threads = threads;
        }
    }

    /// Allows every node some descriptors more.
    pub(crate) fn allow_descriptors(&mut self, more: usize) {
        self.0.values_mut().for_each(|account| account.resources.descriptors += more);
    }

    /// A process takes the place of another, and may not hold more than that one did.
    pub(crate) fn pass_on(&mut self, from: u32, to: u32) {
        if let Some(account) = self.0.remove(&from) {
            self.0.insert(to, account);
        }
    }

    /// Waits until no node has a request, a block, a descriptor or a thread more than in its account.
    pub(crate) fn settle<'a>(&self, nodes: impl Iterator<Item = &'a Node>) {
        for node in nodes {
            wait_until_idle(node);
            let start = self.0[&node.pid()];
            let mut now = Account::of(node);
            let what = format!("{} has {now:?}, at the start {start:?}", node.role);
            wait_until(&what, || {
                now = Account::of(node);
                now.available == start.available
                    && now.resources.descriptors <= start.resources.descriptors
                    && now.resources.threads <= start.resources.threads
            });
        }
    }
}

impl Account {
    fn of(node: &Node) -> Self {
        let available = || node.metric("pool_blocks_free") + node.metric("pool_blocks_cached");
        let available = (node.role != "router").then(available);
        Self { available, resources: node.resources() }
    }
}

/// Waits until a node has no request, and no block in use.
fn wait_until_idle(node: &Node) {
    // The scrape is no request of the API.
    let names: &[&str] = match node.role.as_str() {
        "router" => &["http_requests_in_flight"],
        _ => &[
            "num_requests_running",
            "num_requests_waiting",
            "pool_blocks_reserved",
            "pool_blocks_loaned",
            "pool_blocks_quarantined",
            "pool_blocks_sealed",
        ],
    };
    let what = format!("{} is idle", node.role);
    wait_until(&what, || names.iter().all(|name| node.metric(name) == 0));
}

/// Stops nodes in this order, and checks that nothing is left of them.
pub(crate) fn stop_all(nodes: impl IntoIterator<Item = Node>, dir: &Path) {
    for node in nodes {
        let pid = node.pid();
        let role = node.role.clone();
        node.stop();
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap(), "{role} still runs");
    }
    assert_no_sockets(dir);
}

/// No socket and no lock is left in a runtime directory.
pub(crate) fn assert_no_sockets(dir: &Path) {
    let Ok(left) = fs::read_dir(dir.join("blockwire")) else { return };
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "left over: {left:?}");
}
