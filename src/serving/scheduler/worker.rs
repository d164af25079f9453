//! The loop: takes commands, admits, steps. It is the same on a thread of its own and as a task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use blockwire::clock;
use blockwire::pool::BlockPool;
use blockwire_runtime::model::Model;
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use super::admission::Place;
use super::handle::SchedulerOptions;
use super::job::{Job, stopped};
use super::stats::{Counters, count};
use crate::backend::GenerateError;

#[derive(Debug)]
pub(super) enum Command {
    Submit(Box<Job>),
    /// Something changed that the loop should look at: a caller went away, blocks were granted.
    Wake,
    Stop {
        /// Without waiting for the requests to end.
        at_once: bool,
    },
}

pub(super) struct Worker {
    pub(super) model: Box<dyn Model>,
    pub(super) pool: BlockPool,
    pub(super) options: SchedulerOptions,
    pub(super) counters: Arc<Counters>,
    /// Hold blocks; oldest first.
    pub(super) running: Vec<Job>,
    /// Hold none; oldest first.
    pub(super) waiting: VecDeque<Job>,
    /// The first of them in the pool's queue.
    pub(super) place: Option<Place>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    inbox: mpsc::UnboundedReceiver<Command>,
    stopping: bool,
    stopping_at_once: bool,
}

impl Worker {
    pub(super) fn new(
        model: Box<dyn Model>,
        pool: &BlockPool,
        options: &SchedulerOptions,
        counters: Arc<Counters>,
        (commands, inbox): (mpsc::UnboundedSender<Command>, mpsc::UnboundedReceiver<Command>),
    ) -> Self {
        Self {
            model,
            pool: pool.clone(),
            options: options.clone(),
            counters,
            running: Vec::new(),
            waiting: VecDeque::new(),
            place: None,
            commands,
            inbox,
            stopping: false,
            stopping_at_once: false,
        }
    }

    /// Runs until it is told to stop. `rest` is awaited after every step.
    pub(super) async fn run(mut self, rest: impl AsyncFnMut()) {
        self.serve(rest).await;
        self.end().await;
    }

    async fn serve(&mut self, mut rest: impl AsyncFnMut()) {
        loop {
            while let Ok(command) = self.inbox.try_recv() {
                self.take(command);
            }
            if self.stopping_at_once {
                return;
            }
            self.sweep(clock::now());
            self.bring_home();
            self.admit();
            self.publish();
            if !self.running.is_empty() {
                self.step();
                rest().await;
            } else if self.waiting.is_empty() && self.stopping {
                return;
            } else {
                self.sleep().await;
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            // A sequence that has blocks joins at once: waiting would only keep them from others.
            Command::Submit(job) if job.sequence.is_some() => {
                self.counters.waiting.fetch_sub(1, Relaxed);
                self.insert_running(*job);
            }
            Command::Submit(job) => self.insert_waiting(*job),
            Command::Wake => {}
            Command::Stop { at_once } => {
                self.stopping = true;
                self.stopping_at_once |= at_once;
            }
        }
    }

    pub(super) fn insert_running(&mut self, job: Job) {
        let at = self.running.partition_point(|other| other.ticket < job.ticket);
        self.running.insert(at, job);
    }

    pub(super) fn insert_waiting(&mut self, job: Job) {
        let at = self.waiting.partition_point(|other| other.ticket < job.ticket);
        self.waiting.insert(at, job);
    }

    /// Waits for a command, at most until the next deadline.
    async fn sleep(&mut self) {
        let deadline = self.waiting.iter().filter_map(|job| job.request.deadline).min();
        let command = match deadline {
            None => self.inbox.recv().await,
            Some(deadline) => timeout_at(deadline.into(), self.inbox.recv()).await.ok().flatten(),
        };
        if let Some(command) = command {
            self.take(command);
        }
    }

    /// Ends what nobody waits for and what has no time left; their blocks are free at once.
    fn sweep(&mut self, now: Instant) {
        for job in std::mem::take(&mut self.running) {
            if let Some(job) = self.alive(job, now) {
                self.running.push(job);
            }
        }
        for job in std::mem::take(&mut self.waiting) {
            match self.alive(job, now) {
                Some(job) => self.waiting.push_back(job),
                None => drop(self.counters.waiting.fetch_sub(1, Relaxed)),
            }
        }
    }

    fn alive(&self, job: Job, now: Instant) -> Option<Job> {
        if job.cancelled() {
            tracing::debug!(request = %job.request.id, generated = job.output().len(), "cancelled");
            count(&self.counters.cancelled);
            return None;
        }
        if job.expired(now) {
            self.fail(job, GenerateError::Deadline);
            return None;
        }
        Some(job)
    }

    pub(super) fn fail(&self, job: Job, error: GenerateError) {
        tracing::warn!(request = %job.request.id, %error, "request failed");
        count(&self.counters.failed);
        job.fail(error);
    }

    /// Fails what is left, and what is being sent in this very moment: a queue that is merely dropped may
    /// keep a request and its blocks for as long as there is a handle, and its caller would wait.
    async fn end(mut self) {
        self.inbox.close();
        while let Some(command) = self.inbox.recv().await {
            self.take(command);
        }
        self.place = None;
        let jobs: Vec<Job> = self.running.drain(..).chain(self.waiting.drain(..)).collect();
        jobs.into_iter().for_each(|job| self.fail(job, stopped()));
        self.counters.waiting.store(0, Relaxed);
        self.publish();
    }

    fn publish(&self) {
        self.counters.running.store(self.running.len(), Relaxed);
        let unfinished = self.running.iter().filter(|job| job.pending() > 1);
        let mut progress = self.counters.progress();
        progress.clear();
        progress.extend(unfinished.map(Job::progress));
    }
}
