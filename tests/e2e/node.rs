//! One `blockwire serve` process, and what can be seen of it from outside.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use blockwire::clock;
use rustix::process::Signal;

use crate::client;
use crate::watchdog::{kill, note_ended, note_started, signal};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for something that must come. Only a fault makes it this long.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running node. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) role: String,
    child: Child,
    ready: String,
    log: PathBuf,
    _stdout: BufReader<ChildStdout>,
}

/// How a node that did not start ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) log: String,
}

/// What a node holds of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

impl Node {
    /// Starts a node whose runtime directory is `dir`, and waits for the line that says it is up.
    pub(crate) fn start(dir: &Path, role: &str, flags: &[String]) -> Self {
        match Self::try_start(dir, role, flags) {
            Ok(node) => node,
            Err(ended) => panic!("{role} did not start: {}\n{}", ended.status, ended.log),
        }
    }

    /// The same, where the node may also end by itself.
    pub(crate) fn try_start(dir: &Path, role: &str, flags: &[String]) -> Result<Self, Ended> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = dir.join(format!("{role}-{number}.log"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_blockwire"))
            .args(["serve", "--node-role", role])
            .args(flags)
            .env("XDG_RUNTIME_DIR", dir)
            .env_remove("BLOCKWIRE_MODEL")
            .env_remove("BLOCKWIRE_API_KEY")
            .env_remove("BLOCKWIRE_CLUSTER_KEY")
            .env_remove("BLOCKWIRE_THREADS")
            .env_remove("BLOCKWIRE_HANDOFF")
            .env("BLOCKWIRE_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        note_started(child.id());
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        let mut node = Self { role: role.to_owned(), child, ready, log, _stdout: stdout };
        if node.ready.contains(" ready") {
            return Ok(node);
        }
        let status = node.child.wait().unwrap();
        Err(Ended { status, log: node.log() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Base of its HTTP addresses.
    pub(crate) fn http(&self) -> &str {
        self.field("http=").unwrap_or_else(|| panic!("{} has no http", self.role))
    }

    /// Where peers reach it.
    pub(crate) fn serving(&self) -> &str {
        self.field("serving=").unwrap_or_else(|| panic!("{} serves no peers", self.role))
    }

    /// A field of the line that said that the node is up.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.ready.split_whitespace().find_map(|word| word.strip_prefix(name))
    }

    /// What it wrote to stderr so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The value of a metric, summed over its labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let full = format!("blockwire:{name}");
        let text = client::get(&format!("{}/metrics", self.http())).1;
        let values: Vec<f64> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&full))
            .filter(|rest| rest.starts_with([' ', '{']))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse().ok())
            .collect();
        assert!(!values.is_empty(), "{} has no metric {full} in\n{text}", self.role);
        values.iter().sum::<f64>() as u64
    }

    /// Open descriptors and threads.
    pub(crate) fn resources(&self) -> Resources {
        let count =
            |what: &str| fs::read_dir(format!("/proc/{}/{what}", self.pid())).unwrap().count();
        Resources { descriptors: count("fd"), threads: count("task") }
    }

    /// Whether a descriptor of the node is of this kind, as `/proc` names it.
    pub(crate) fn has_open(&self, kind: &str) -> bool {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let mut links = descriptors.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        links.any(|link| link.as_os_str() == kind)
    }

    /// Whether the process runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks the node to stop, and checks how it ends.
    pub(crate) fn stop(self) {
        signal(self.pid(), Signal::TERM);
        self.end();
    }

    /// Waits for the end of a node that was asked to stop: in order, with all its blocks free.
    pub(crate) fn end(mut self) {
        let role = self.role.clone();
        wait_until(&format!("{role} stops"), || !self.is_running());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{role} ended with {status}");
        let log = self.log();
        let has_pool = role != "router";
        assert!(!has_pool || log.contains("all blocks are free"), "{role} kept blocks:\n{log}");
    }

    /// Ends the node as a crash does, and waits until it is gone.
    pub(crate) fn crash(&mut self) {
        kill(self.pid());
        self.child.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_running() {
            kill(self.pid());
            let _ = self.child.wait();
        }
        note_ended(self.pid());
        if thread::panicking() {
            eprintln!("--- {} ({})\n{}", self.role, self.ready.trim(), tail(&self.log()));
        }
    }
}

/// The end of a log, where the reason stands.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Waits for something that must come; `what` says what, when it does not.
pub(crate) fn wait_until(what: &str, mut come: impl FnMut() -> bool) {
    let start = clock::now();
    while !come() {
        assert!(clock::now() - start < PATIENCE, "never: {what}");
        thread::sleep(LOOK);
    }
}
