//! Nodes that belong together, and the accounts that must balance when their work is done.

use std::iter;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

use crate::accounts::{Accounts, stop_all};
use crate::client::{self, Completion, Failure};
use crate::models::{Model, completion};
use crate::node::{Node, wait_until};
use crate::watchdog::Watchdog;

/// What carries the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Shm,
    Tcp4,
    Tcp6,
    /// Needs a cluster key: `keyed::tls`.
    Tls,
    /// Links of four connections.
    Stripes,
    /// The kernel makes the transfers, on both sides.
    Uring,
}

impl Carrier {
    /// An address for a node to listen on.
    pub(crate) fn bind(self, name: &str) -> String {
        match self {
            Self::Shm => format!("shm:{name}"),
            Self::Tcp4 | Self::Stripes => "tcp://127.0.0.1:0".to_owned(),
            Self::Tcp6 => "tcp://[::1]:0".to_owned(),
            Self::Tls => "tcp://127.0.0.1:0?tls=key".to_owned(),
            Self::Uring => "tcp://127.0.0.1:0?io=uring".to_owned(),
        }
    }

    /// How peers dial a node that listens on `address`.
    fn dial(self, address: &str) -> String {
        match self {
            Self::Stripes => format!("{address}?stripes={STRIPES}"),
            Self::Uring => format!("{address}?io=uring"),
            Self::Shm | Self::Tcp4 | Self::Tcp6 | Self::Tls => address.to_owned(),
        }
    }

    /// Connections of a link.
    fn connections(self) -> usize {
        if self == Self::Stripes { STRIPES } else { 1 }
    }

    /// User-space copies of a payload byte that the carrier declares.
    pub(crate) fn declared_copies(self) -> u64 {
        match self {
            Self::Shm => 1,
            Self::Tcp4 | Self::Tcp6 | Self::Stripes | Self::Uring => 0,
            Self::Tls => 3,
        }
    }
}

const STRIPES: usize = 4;

/// A deployment to start.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) model: Model,
    pub(crate) carrier: Carrier,
    pub(crate) prefill_nodes: usize,
    /// Flags of every node.
    pub(crate) flags: Vec<&'static str>,
    /// Flags of the prefill nodes, besides.
    pub(crate) prefill_flags: Vec<&'static str>,
    /// Flags of the decode node, besides.
    pub(crate) decode_flags: Vec<&'static str>,
}

impl Setup {
    pub(crate) fn new(model: Model, carrier: Carrier) -> Self {
        let memory = if model == Model::SmolLm2 { "--kv-memory=384" } else { "--kv-memory=16" };
        let (prefill_flags, decode_flags) = (vec![], vec![]);
        Self { model, carrier, prefill_nodes: 1, flags: vec![memory], prefill_flags, decode_flags }
    }

    /// The same with every prompt computed, and every cache moved, as a whole.
    #[must_use]
    pub(crate) fn without_prefix_cache(mut self) -> Self {
        self.flags.push("--no-prefix-cache");
        self
    }

    /// All flags of a node.
    pub(crate) fn node_flags(&self, own: &[&str]) -> Vec<String> {
        let model = self.model.path().display().to_string();
        let base = ["--model", &model, "--http", "127.0.0.1:0", "--threads", "1"];
        base.iter().chain(&self.flags).chain(own).map(|flag| (*flag).to_owned()).collect()
    }
}

/// Router, prefill nodes, decode node.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) router: Node,
    pub(crate) prefill: Vec<Node>,
    pub(crate) decode: Node,
    pub(crate) setup: Setup,
    pub(crate) dir: TempDir,
    start: Accounts,
    _alone: Option<MutexGuard<'static, ()>>,
    _watchdog: Watchdog,
}

impl Cluster {
    /// Starts the nodes, and waits until one request has gone through them.
    pub(crate) fn start(setup: Setup) -> Self {
        let alone = alone(setup.model);
        let watchdog = Watchdog::start();
        let dir = runtime_dir();
        let decode = start_decode(&setup, dir.path(), &setup.carrier.bind("decode"));
        let prefill: Vec<Node> = (0..setup.prefill_nodes)
            .map(|number| {
                let bind = setup.carrier.bind(&format!("prefill-{number}"));
                start_prefill(&setup, dir.path(), &bind, decode.serving())
            })
            .collect();
        let addresses: Vec<&str> = prefill.iter().map(Node::serving).collect();
        let router = start_router(&setup, dir.path(), &addresses, decode.serving());
        let mut cluster = Self {
            router,
            prefill,
            decode,
            setup,
            dir,
            start: Accounts::default(),
            _alone: alone,
            _watchdog: watchdog,
        };
        let threads = cluster.nodes().map(|node| (node.pid(), node.resources().threads));
        let threads: Vec<_> = threads.collect();
        cluster.wait_until_serving();
        let handed_over = |node: &Node| node.metric("handoffs_sent_total") > 0;
        wait_until("every prefill node has handed over", || {
            // Small payloads take turns between the connections of a link.
            let count = 2 * cluster.prefill.len() * cluster.setup.carrier.connections();
            let bodies = vec![cluster.warm_up(); count];
            client::ask_all(cluster.http(), &bodies, bodies.len());
            cluster.prefill.iter().all(handed_over)
        });
        cluster.restart_accounts();
        // A request may not leave a thread behind, not even the first one.
        cluster.start.set_threads(threads);
        cluster
    }

    pub(crate) fn http(&self) -> &str {
        self.router.http()
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        [&self.router, &self.decode].into_iter().chain(&self.prefill)
    }

    /// Asks for a short completion until it comes. Only 503 is a reason to try again.
    pub(crate) fn wait_until_serving(&self) -> Completion {
        let body = self.warm_up();
        let mut served = None;
        wait_until("a request is served", || match client::ask(self.http(), &body) {
            Ok(completion) => served.insert(completion).tokens.len() == 3,
            Err(Failure { status: 503, .. }) => false,
            Err(failure) => panic!("{failure:?}"),
        });
        served.unwrap()
    }

    /// A request after which a link holds all that it will ever hold: over tcp its pipe comes with the
    /// first 64 KiB of payload.
    fn warm_up(&self) -> Value {
        let tokens = match (self.setup.carrier, self.setup.model) {
            (Carrier::Shm, _) => 40,
            // Few of its layers have a cache.
            (_, Model::Lfm2) => 400,
            _ => 160,
        };
        completion(&self.setup.model.prompt(tokens, 9), 3)
    }

    /// Waits until no node has a request, a block, a descriptor or a thread more than at the start.
    pub(crate) fn settle(&self) {
        self.start.settle(self.nodes());
    }

    /// Waits as [`settle`](Self::settle) does for one of the nodes, when another one is dead.
    pub(crate) fn settle_one(&self, node: &Node) {
        self.start.settle(iter::once(node));
    }

    /// Takes the accounts anew, after a node was replaced.
    pub(crate) fn restart_accounts(&mut self) {
        self.start = Accounts::take(self.nodes());
    }

    /// Starts a prefill node in the place of the first one, which is dead.
    pub(crate) fn restart_prefill(&mut self) {
        let dead = self.prefill.remove(0);
        self.start_prefill_at(dead.serving());
    }

    /// Tells the first prefill node to stop, and starts another in its place.
    pub(crate) fn replace_prefill(&mut self) {
        let address = self.prefill[0].serving().to_owned();
        self.prefill.remove(0).stop();
        self.start_prefill_at(&address);
    }

    fn start_prefill_at(&mut self, address: &str) {
        let started = start_prefill(&self.setup, self.dir.path(), address, self.decode.serving());
        self.prefill.insert(0, started);
        self.wait_until_serving();
    }

    /// Payload bytes that landed in blocks, and that were copied in user space, over all nodes.
    pub(crate) fn payload(&self) -> (u64, u64) {
        let nodes = || self.prefill.iter().chain([&self.decode]);
        let sum = |name| nodes().map(|node| node.metric(name)).sum();
        (sum("payload_landed_bytes_total"), sum("payload_copied_bytes_total"))
    }

    /// Checks the accounts, stops the nodes, and checks that nothing is left of them.
    pub(crate) fn finish(self) {
        self.settle();
        self.check_copies();
        let Self { router, prefill, decode, dir, .. } = self;
        stop_all([router].into_iter().chain(prefill).chain([decode]), dir.path());
    }

    /// The same where the decode node was told to stop: it ends by itself, the others stay as they
    /// were.
    pub(crate) fn finish_without_decode(self) {
        let Self { router, prefill, decode, dir, start, .. } = self;
        decode.end();
        start.settle([&router].into_iter().chain(&prefill));
        stop_all([router].into_iter().chain(prefill), dir.path());
    }

    /// Measured copies are those that the carrier declares, of what was moved.
    fn check_copies(&self) {
        let (landed, copied) = self.payload();
        let adopted = self.decode.metric("handoff_adopted_bytes_total");
        assert!(landed + adopted > 0, "nothing was handed over");
        let adopts = self.setup.carrier == Carrier::Shm
            && self.setup.prefill_flags.is_empty()
            && self.setup.decode_flags.is_empty();
        assert!(!adopts || adopted > 0, "nothing was adopted");
        assert_eq!(copied, landed * self.setup.carrier.declared_copies(), "of {landed} bytes");
    }
}

pub(crate) fn start_decode(setup: &Setup, dir: &Path, bind: &str) -> Node {
    let flags = [&["--serving-bind", bind], &setup.decode_flags[..]].concat();
    Node::start(dir, "decode", &setup.node_flags(&flags))
}

pub(crate) fn start_prefill(setup: &Setup, dir: &Path, bind: &str, decode: &str) -> Node {
    let own = ["--serving-bind", bind, "--decode-peers", &setup.carrier.dial(decode)];
    let flags = [&own, &setup.prefill_flags[..]].concat();
    Node::start(dir, "prefill", &setup.node_flags(&flags))
}

pub(crate) fn start_router(setup: &Setup, dir: &Path, prefill: &[&str], decode: &str) -> Node {
    let prefill: Vec<_> = prefill.iter().map(|address| setup.carrier.dial(address)).collect();
    let decode = setup.carrier.dial(decode);
    let own = ["--prefill-peers", &prefill.join(","), "--decode-peers", &decode];
    Node::start(dir, "router", &setup.node_flags(&own))
}

/// The right to run a large model: several at once would only be slower.
pub(crate) fn alone(model: Model) -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let large = matches!(model, Model::SmolLm2 | Model::Wide);
    large.then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A runtime directory of the test's own; its path is short enough for sockets.
pub(crate) fn runtime_dir() -> TempDir {
    tempfile::Builder::new().prefix("bw-").tempdir_in("/tmp").unwrap()
}
