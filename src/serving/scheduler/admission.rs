//! Who gets blocks, and who gives them back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};

use blockwire::pool::{KvSequence, ReserveError, ReserveRoom, ReservedBlock, Room, TransferStats};
use tokio::sync::mpsc;

use super::job::Job;
use super::stats::count;
use super::tail;
use super::worker::{Command, Worker};
use crate::backend::GenerateError;

/// Bytes copied home in one step: a few milliseconds.
const HOME_BYTES: usize = 32 << 20;

/// A place in the pool's queue.
pub(super) struct Place {
    ticket: u64,
    blocks: usize,
    reserve: Pin<Box<ReserveRoom>>,
}

impl Worker {
    /// Admits the waiting requests that fit, in order. What is cached of one needs no room.
    ///
    /// While others run, a request is admitted only if afterwards each of them could still take a
    /// block: what is admitted only to be preempted has cost its prefill. When none runs, the first
    /// one queues in the pool, behind whoever else waits for blocks there.
    pub(super) fn admit(&mut self) {
        while self.running.len() < self.options.running_max {
            let room = if self.running.is_empty() { self.queue() } else { self.squeeze_in() };
            let Some(room) = room else { break };
            let Some(mut job) = self.waiting.pop_front() else { break };
            self.counters.waiting.fetch_sub(1, Relaxed);
            match room.map(|room| self.furnish(&mut job, room)) {
                Ok(Ok(())) => self.insert_running(job),
                Ok(Err(error)) => self.fail(job, GenerateError::NodeFailed(error.to_string())),
                Err(error) => self.fail(job, GenerateError::NodeFailed(error.to_string())),
            }
        }
        if self.waiting.is_empty() {
            self.place = None;
        }
    }

    /// The blocks for the first waiting request, if those that run can go on beside it.
    fn squeeze_in(&mut self) -> Option<Result<Room, ReserveError>> {
        // Nobody who holds blocks may have to wait behind our own place in the queue.
        self.place = None;
        let first = self.waiting.front_mut()?;
        let blocks = self.pool.spec().blocks_for(first.tokens.len());
        let room = self.pool.try_reserve_behind(first.shareable(), blocks, self.running.len());
        room.ok().map(Ok)
    }

    /// The blocks for the first waiting request, when its turn in the pool has come.
    fn queue(&mut self) -> Option<Result<Room, ReserveError>> {
        let first = self.waiting.front_mut()?;
        let (ticket, blocks) = (first.ticket, self.pool.spec().blocks_for(first.tokens.len()));
        let place = match self.place.take() {
            Some(place) if place.ticket == ticket && place.blocks == blocks => place,
            _ => {
                let reserve = self.pool.reserve_behind(first.shareable().into(), blocks);
                Place { ticket, blocks, reserve: Box::pin(reserve) }
            }
        };
        let place = self.place.insert(place);
        let waker = Waker::from(Arc::new(WakeLoop(self.commands.clone())));
        match place.reserve.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => None,
            Poll::Ready(granted) => {
                self.place = None;
                Some(granted)
            }
        }
    }

    /// Makes room for `rows` more tokens of the running job at `index`; preempts younger ones while
    /// blocks lack, and at last the job itself. Says whether there is room.
    pub(super) fn grow(&mut self, index: usize, rows: usize) -> bool {
        loop {
            let job = &mut self.running[index];
            let Some(sequence) = &mut job.sequence else { return false };
            let copies = usize::from(tail::is_sealed(sequence));
            let needed = copies + sequence.missing_blocks(sequence.len() + rows);
            if needed == 0 {
                return true;
            }
            if let Ok(blocks) = self.pool.try_reserve_growth(needed) {
                let grown = job.sequence.take().and_then(|old| extended(old, blocks, copies > 0));
                job.sequence = grown;
                if job.sequence.is_some() {
                    return true;
                }
                let job = self.running.remove(index);
                self.fail(job, GenerateError::NodeFailed("blocks of two pools".to_owned()));
                return false;
            }
            let youngest = self.running.len() - 1;
            self.preempt(youngest);
            if youngest == index {
                return false;
            }
        }
    }

    /// Takes the blocks of a running job; it is computed again from its tokens, and gets the same.
    fn preempt(&mut self, index: usize) {
        let job = self.running.remove(index);
        count(&self.counters.preemptions);
        tracing::info!(request = %job.request.id, tokens = job.cached(), "preempted: the pool is full");
        self.start_over(job);
    }

    /// Lets a job wait until it is computed again from its tokens, of which it gets the same.
    pub(super) fn start_over(&mut self, mut job: Job) {
        if std::mem::take(&mut job.handed_over) {
            count(&self.counters.handoff_recomputes);
        }
        job.sequence = None;
        job.blocks_told = 0;
        self.counters.waiting.fetch_add(1, Relaxed);
        self.insert_waiting(job);
    }

    /// Copies blocks that peers ask for into this pool, as far as it has room: so much a step that
    /// the others hardly notice. What does not fit now waits until somebody is done.
    pub(super) fn bring_home(&mut self) {
        let mut left = (HOME_BYTES / self.pool.spec().block_bytes()).max(1);
        for job in &mut self.running {
            let Some(sequence) = &mut job.sequence else { continue };
            let recalled = sequence.recalled_blocks();
            if recalled == 0 {
                continue;
            }
            let available = self.pool.accounting().available();
            let Ok(blocks) = self.pool.try_reserve_growth(recalled.min(left).min(available)) else {
                continue;
            };
            left -= blocks.len();
            // A lease that was lost is noticed after the step, like any other.
            let _ = sequence.bring_home(blocks, TransferStats::of_process());
        }
    }
}

/// `sequence` with room in `blocks`; with `copy_tail`, the first of them replaces its sealed tail.
fn extended(
    mut sequence: KvSequence,
    mut blocks: Vec<ReservedBlock>,
    copy_tail: bool,
) -> Option<KvSequence> {
    if copy_tail {
        let rest = blocks.split_off(1);
        sequence = tail::copy(sequence, blocks.pop()?)?;
        blocks = rest;
    }
    sequence.push(blocks).ok()?;
    Some(sequence)
}

/// Wakes the scheduler's loop.
struct WakeLoop(mpsc::UnboundedSender<Command>);

impl Wake for WakeLoop {
    fn wake(self: Arc<Self>) {
        // A loop that is gone needs no waking.
        let _ = self.0.send(Command::Wake);
    }
}
