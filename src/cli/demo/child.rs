//! A node as a child process: started, waited for, stopped.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blockwire::clock;

/// Longest wait for a node that was told to stop.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Between two looks at a node.
const LOOK: Duration = Duration::from_millis(20);

/// A running `blockwire serve`. Dropping it kills the process.
pub(super) struct Node {
    role: String,
    child: Child,
    ready: String,
}

impl Node {
    /// Starts a node and waits for the line in which it says where it listens.
    pub(super) fn start(role: &str, flags: &[String]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(flags)
            .env("BLOCKWIRE_LOG", std::env::var("BLOCKWIRE_LOG").unwrap_or("warn".into()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting the {role} node"))?;
        let stdout = child.stdout.take().context("no pipe from the node")?;
        let mut node = Self { role: role.to_owned(), child, ready: String::new() };
        BufReader::new(stdout).read_line(&mut node.ready)?;
        if !node.ready.contains(" ready") {
            let status = node.child.wait()?;
            bail!("the {role} node did not start: {status}");
        }
        Ok(node)
    }

    pub(super) fn role(&self) -> &str {
        &self.role
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Base of its HTTP addresses.
    pub(super) fn http(&self) -> Result<&str> {
        self.field("http=")
    }

    /// Where its peers reach it.
    pub(super) fn serving(&self) -> Result<&str> {
        self.field("serving=")
    }

    fn field(&self, name: &str) -> Result<&str> {
        let found = self.ready.split_whitespace().find_map(|word| word.strip_prefix(name));
        found.with_context(|| format!("the {} node has no {name}", self.role))
    }

    /// Waits until its `/ready` says yes.
    pub(super) fn wait_until_ready(&self, longest: Duration) -> Result<()> {
        let url = format!("{}/ready", self.http()?);
        let start = clock::now();
        while ureq::get(&url).call().is_err() {
            if clock::now() - start > longest {
                bail!("the {} node is not ready after {longest:?}", self.role);
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Asks the node to stop, and waits.
    pub(super) fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let start = clock::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("the {} node ended with {status}", self.role);
            }
            if clock::now() - start > STOP_MAX {
                bail!("the {} node did not stop within {STOP_MAX:?}", self.role);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
