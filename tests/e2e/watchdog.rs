//! Ends a test that hangs: its processes are killed, so that whatever waits for them fails.

use std::collections::HashMap;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Longest that a test may take, on a machine that does much else besides.
const LIMIT: Duration = Duration::from_secs(600);
/// From the death of a test's processes to its own end.
const GRACE: Duration = Duration::from_secs(60);

/// Running processes, and the test that each belongs to.
static RUNNING: LazyLock<Mutex<HashMap<u32, String>>> = LazyLock::new(Mutex::default);

/// Watches the current test until it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts to watch the test that calls.
    pub(crate) fn start() -> Self {
        Self::start_for(Duration::ZERO)
    }

    /// The same for a test that goes on for so long by intent.
    pub(crate) fn start_for(intended: Duration) -> Self {
        let (alive, ended) = channel::<()>();
        let test = current_test();
        let limit = LIMIT + intended;
        thread::spawn(move || {
            if ended.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            eprintln!("{test} hangs: no end after {limit:?}; killing its processes");
            running_of(&test).into_iter().for_each(kill);
            if ended.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs even without its processes");
                std::process::exit(101);
            }
        });
        Self { _alive: alive }
    }
}

/// The name of the test that runs on this thread.
pub(crate) fn current_test() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}

/// Notes a process of the current test.
pub(crate) fn note_started(pid: u32) {
    running().insert(pid, current_test());
}

/// Forgets a process that has ended.
pub(crate) fn note_ended(pid: u32) {
    running().remove(&pid);
}

/// Runs a command to its end, as a process of the current test.
pub(crate) fn run(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    note_started(pid);
    let output = child.wait_with_output().unwrap();
    note_ended(pid);
    output
}

/// Kills a process as the system does when memory runs out.
pub(crate) fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Sends a signal to a process that may be gone.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, signal);
}

fn running_of(test: &str) -> Vec<u32> {
    running().iter().filter(|(_, owner)| *owner == test).map(|(pid, _)| *pid).collect()
}

fn running() -> std::sync::MutexGuard<'static, HashMap<u32, String>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
