//! A peer that lies, by a script of arbitrary bytes, against a real endpoint.
//!
//! ```text
//! script ──> Liar (socket, memfds, no engine code)  <──shm──>  Endpoint, pool, a user of both
//! ```
//! Everything runs on one thread, so that a script plays nearly the same way each time. After the script
//! the connection ends, and then everything must be as it was: see [`play`].
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses its part")]

mod host;
mod memory;
mod peer;
mod watched;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// Whatever hangs, hangs no longer than this.
const WATCHDOG: Duration = Duration::from_secs(30);
/// Turns of the runtime within which an endpoint with a silent peer falls asleep.
const SETTLE_TURNS: usize = 20_000;
/// Turns without a poll of any link that count as sleep.
const QUIET_TURNS: usize = 40;

/// Panics of this process, also those that a driver catches.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Plays a script, and checks what must hold however the peer lied: nothing panics, nothing hangs, an
/// endpoint with nothing to do sleeps, every block of the pool is free once the connection is over, a good
/// peer is served by the same listener, and descriptors, mappings and threads are back at the end.
///
/// # Panics
/// When something of that does not hold.
pub fn play(script: &[u8]) {
    /// Descriptors are counted for the whole process.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    prepare();
    let (panics, before) = (PANICS.load(SeqCst), Held::now());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let playing = tokio::time::timeout(WATCHDOG, host::play(script));
        playing.await.expect("the endpoint hangs");
    });
    drop((tasks, runtime));
    assert_eq!(PANICS.load(SeqCst), panics, "a task panicked");
    // Threads end a moment after they were joined.
    let back = (0..1000).any(|_| {
        let back = Held::now() == before;
        if !back {
            std::thread::sleep(Duration::from_millis(1));
        }
        back
    });
    assert!(back, "held before {before:?}, after {:?}", Held::now());
}

/// Counts panics, and opens what the first runtime of a process opens for all later ones.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        drop(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, SeqCst);
            before(panic);
        }));
    });
}

/// What this process holds.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    mappings: usize,
    page_threads: usize,
}

impl Held {
    fn now() -> Self {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mappings = maps.lines().filter(|line| line.contains("/memfd:")).count();
        let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
            // A thread may end between the two looks.
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        });
        let page_threads = names.filter(|name| name.starts_with("blockwire-pages")).count();
        Self { descriptors, mappings, page_threads }
    }
}
