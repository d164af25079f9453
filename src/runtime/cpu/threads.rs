//! Worker threads that spin briefly, then park.
//!
//! [`Threads::run`] hands one job to all threads, the caller among them, and returns when all are
//! done. Between jobs of one forward pass the gap is microseconds, so a waiting thread spins first;
//! but the cores are shared with other processes, so it never spins for long.
//!
//! ```text
//! caller    write job, epoch += 1 ──> unpark workers ──> own part ──> wait for `running` = 0
//! worker    wait for epoch ──────────────────────────> own part ──> running -= 1, unpark caller
//! ```
//! Invariant 1: `job` is written only by the owner of the `&mut Threads`, and only while `running` is
//! 0; workers read it only between a new epoch and their decrement of `running`.

use std::{
    any::Any,
    cell::UnsafeCell,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle, Thread},
};

/// Looks at the other side this often, some tens of microseconds in all, before parking.
const SPINS: usize = 2_000;

/// The epoch that ends the workers.
const STOP: usize = usize::MAX;

/// A fixed set of threads; the calling one is number 0.
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    epoch: AtomicUsize,
    running: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not `Sync` by itself; invariant 1 orders its accesses: the
// writer publishes with a release store of `epoch`, readers hand it back with a release decrement of
// `running`, which the writer acquires.
unsafe impl Sync for Shared {}
// SAFETY: the job's pointer is to a `Sync` closure, which may be called on any thread.
unsafe impl Send for Shared {}

/// Work of one epoch, and whom to wake when it is done.
#[derive(Clone)]
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    caller: Thread,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Threads {
    /// `count` threads, the caller's included.
    ///
    /// # Errors
    /// What the system says when it has no more threads to give.
    pub(crate) fn new(count: NonZeroUsize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let mut threads = Self { shared, workers: Vec::new() };
        for number in 1..count.get() {
            let shared = Arc::clone(&threads.shared);
            let name = format!("cpu-model-{number}");
            let worker = thread::Builder::new().name(name).spawn(move || shared.serve(number))?;
            threads.workers.push(worker);
        }
        Ok(threads)
    }

    /// Threads, the caller's included.
    pub(crate) fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work` with every thread's number, each on its thread.
    ///
    /// # Panics
    /// When `work` does, on any thread, but not before all have finished.
    pub(crate) fn run(&mut self, work: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return work(0);
        }
        // SAFETY: this erases the lifetime of a reference that workers use only until they decrement
        // `running`; this function does not return, nor unwind, before `running` is 0.
        let work_pointer = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(work)
        };
        let job = Job { work: work_pointer, caller: thread::current() };
        // SAFETY: invariant 1: `&mut self`, and `running` is 0 since the last call returned.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.running.store(self.workers.len(), Ordering::Relaxed);
        // Release: pairs with the acquire in `next_epoch`; publishes the job and `running`.
        self.shared.epoch.fetch_add(1, Ordering::Release);
        self.workers.iter().for_each(|worker| worker.thread().unpark());
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        // Acquire: pairs with the release in `serve`; what workers wrote is visible from here on.
        wait_until(|| self.shared.running.load(Ordering::Acquire) == 0);
        let mut panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = own.err().or(panic.take()) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.epoch.store(STOP, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its jobs, and has none of its own.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn serve(&self, number: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen);
            if seen == STOP {
                return;
            }
            // SAFETY: invariant 1: a new epoch was seen, and `running` is not yet decremented.
            let job = unsafe { (*self.job.get()).clone() };
            let Some(Job { work, caller }) = job else { return };
            // SAFETY: `run` keeps the closure alive until `running` is 0.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(number) }));
            if let Err(panic) = outcome {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            // Release: pairs with the acquire in `run`.
            if self.running.fetch_sub(1, Ordering::Release) == 1 {
                caller.unpark();
            }
        }
    }

    fn next_epoch(&self, seen: usize) -> usize {
        // Acquire: pairs with the release in `run` and in `drop`.
        wait_until(|| self.epoch.load(Ordering::Acquire) != seen);
        self.epoch.load(Ordering::Acquire)
    }
}

/// Spins, then parks until someone unparks this thread with the condition true.
fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if condition() {
            return;
        }
        std::hint::spin_loop();
    }
    while !condition() {
        thread::park();
    }
}

/// The `part`th of `parts` nearly equal ranges of `0..len`.
pub(crate) fn share(len: usize, part: usize, parts: usize) -> std::ops::Range<usize> {
    len * part / parts..len * (part + 1) / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(count: usize) -> Threads {
        Threads::new(NonZeroUsize::new(count).unwrap()).unwrap()
    }

    #[test]
    fn every_thread_runs_every_job_once() {
        for count in [1, 2, 5] {
            let mut threads = threads(count);
            let runs: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..500 {
                threads.run(&|number| {
                    runs[number].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 500));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_threads_live_on() {
        for culprit in [0, 2] {
            let mut threads = threads(3);
            let work = |number| assert_ne!(number, culprit, "as told");
            let outcome = catch_unwind(AssertUnwindSafe(|| threads.run(&work)));
            assert!(outcome.is_err());
            threads.run(&|_| ());
        }
    }

    #[test]
    fn parked_workers_wake_up_and_end() {
        let mut threads = threads(3);
        thread::sleep(std::time::Duration::from_millis(20));
        threads.run(&|_| thread::sleep(std::time::Duration::from_millis(5)));
    }

    #[test]
    fn shares_cover_everything_once() {
        let shares: Vec<_> = (0..4).flat_map(|part| share(10, part, 4)).collect();
        assert_eq!(shares, (0..10).collect::<Vec<_>>());
    }
}
