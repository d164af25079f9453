//! The processes that serve.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// What carries the caches; with none, one process does everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    None,
    Shm,
    Tcp,
}

/// A front with what is behind it. Dropping it ends the processes.
#[derive(Debug)]
pub(crate) struct Deployment {
    front: Node,
    _nodes: Vec<Node>,
    _dir: TempDir,
}

impl Deployment {
    /// Starts it, and waits until it has answered once. `handoff` says when a router hands over.
    pub(crate) fn start(model: &Path, wire: Wire, threads: usize, handoff: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("bw-").tempdir_in("/tmp").expect("a folder");
        let start =
            |role: &str, flags: &[&str]| Node::start(dir.path(), model, threads, role, flags);
        let bind = |role: &str| match wire {
            Wire::Tcp => "tcp://127.0.0.1:0".to_owned(),
            Wire::Shm | Wire::None => format!("shm:{role}"),
        };
        let (front, nodes) = if wire == Wire::None {
            (start("single", &[]), vec![])
        } else {
            let decode = start("decode", &["--serving-bind", &bind("decode")]);
            let to_decode = decode.field("serving=").to_owned();
            let flags = ["--serving-bind", &bind("prefill"), "--decode-peers", &to_decode];
            let prefill = start("prefill", &flags);
            let peers =
                ["--prefill-peers", prefill.field("serving="), "--decode-peers", &to_decode];
            let flags = [&peers[..], &["--handoff", handoff]].concat();
            (start("router", &flags), vec![prefill, decode])
        };
        let deployment = Self { front, _nodes: nodes, _dir: dir };
        let ready = format!("{}/ready", deployment.http());
        while ureq::get(&ready).call().is_err() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        deployment
    }

    pub(crate) fn http(&self) -> &str {
        self.front.field("http=")
    }
}

#[derive(Debug)]
struct Node {
    child: Child,
    ready: String,
}

impl Node {
    fn start(dir: &Path, model: &Path, threads: usize, role: &str, flags: &[&str]) -> Self {
        let threads = threads.to_string();
        let log = dir.join(role).with_extension("log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_blockwire"))
            .args(["serve", "--node-role", role, "--http", "127.0.0.1:0", "--kv-memory=384"])
            .args(["--threads", &threads, "--model"])
            .arg(model)
            .args(flags)
            .env("XDG_RUNTIME_DIR", dir)
            .env("BLOCKWIRE_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a file"))
            .spawn()
            .expect("blockwire starts");
        let mut ready = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut ready).expect("a line");
        if !ready.contains(" ready") {
            panic!("{role} did not start: {}", fs::read_to_string(&log).unwrap_or_default());
        }
        Self { child, ready }
    }

    /// A field of the line that said that the node is up.
    fn field(&self, name: &str) -> &str {
        let mut words = self.ready.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)).expect("a field of the line")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
