//! A run that spins never lets virtual time pass: no timer of its own would end it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time that one run may take on the wall's clock.
const HANG: Duration = Duration::from_secs(120);

/// Ends the process when a run does not come back.
#[derive(Debug)]
pub struct Watchdog {
    begun: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Default for Watchdog {
    fn default() -> Self {
        let (begun, runs) = channel();
        let thread = std::thread::spawn(move || watch(&runs));
        Self { begun: Some(begun), thread: Some(thread) }
    }
}

impl Watchdog {
    /// A run begins; `replay` says how to see it again.
    pub fn begin(&self, replay: String) {
        if let Some(begun) = &self.begun {
            let _ = begun.send(replay);
        }
    }
}

fn watch(runs: &Receiver<String>) {
    let mut current = "nothing".to_owned();
    loop {
        match runs.recv_timeout(HANG) {
            Ok(next) => current = next,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                eprintln!("a run hangs: {current}");
                std::process::abort();
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.begun.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
