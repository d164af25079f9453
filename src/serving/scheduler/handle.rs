//! The handle that callers hold.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use blockwire::handoff::ExtractError;
use blockwire::pool::{BlockPool, KvSequence, KvSpec, PrefixChain, PrefixKey};
use blockwire_runtime::files::ModelFingerprint;
use blockwire_runtime::model::{Model, SequenceStateLayout, StateReader};
use tokio::sync::mpsc;

use super::job::{DecodeRefused, Job, Prefill, Sink, stopped};
use super::prefix;
use super::stats::{Counters, PrefillProgress, SchedulerStats, StatsCollector};
use super::worker::{Command, Worker};
use crate::backend::{GenerateError, GenerateRequest, Generation};
use crate::metrics::Metrics;

/// Limits of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Names the thread and labels metrics.
    pub name: String,
    /// Rows of prompts in one step. Fewer let decoding sequences wait less, more prefill faster.
    pub prefill_rows_max: usize,
    /// Requests that run at once.
    pub running_max: usize,
    /// Requests that wait; more are refused as busy.
    pub waiting_max: usize,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Longest context, when it shall be shorter than the model's.
    pub context_len_max: Option<usize>,
    /// Whether prompts that begin alike share the blocks of what is alike. Of no effect where the pool does
    /// not hold the whole state of a sequence.
    pub prefix_cache: bool,
    /// Whether what the model keeps of a sequence outside the pool may be handed over beside its blocks.
    pub state_handoff: bool,
}

impl Default for SchedulerOptions {
    /// 512 rows, 64 running, 1024 waiting, no token that ends a text, with the prefix cache.
    fn default() -> Self {
        Self {
            name: "scheduler".to_owned(),
            prefill_rows_max: 512,
            running_max: 64,
            waiting_max: 1024,
            eos: vec![],
            context_len_max: None,
            prefix_cache: true,
            state_handoff: true,
        }
    }
}

/// Why a scheduler could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The pool holds another geometry than the model's.
    #[error("the model's cache is [{model}], the pool's [{pool}]")]
    Geometry {
        /// What the model needs, in the pool's blocks.
        model: Box<KvSpec>,
        /// What the pool holds.
        pool: Box<KvSpec>,
    },
    /// A limit that would let nothing run.
    #[error("`{0}` must be at least 1")]
    Limit(&'static str),
    /// The system gave no thread.
    #[error("no thread for the model: {0}")]
    Thread(#[source] io::Error),
}

/// What is known of the model once the scheduler has it.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Name of the family.
    pub family: String,
    /// Identity of the files.
    pub fingerprint: ModelFingerprint,
    /// Where the state of a sequence lives.
    pub state_layout: SequenceStateLayout,
    /// Makes again what the model keeps of a sequence outside the pool.
    pub state_reader: Option<Arc<dyn StateReader>>,
    /// Token ids are below this.
    pub vocab: usize,
    /// Tokens of prompt and completion together: what model, options and pool allow.
    pub context_len: usize,
}

/// Runs a model for many requests. Cloning gives another handle; dropping the last one stops the
/// model, and fails what still runs.
#[derive(Clone, Debug)]
pub struct BatchScheduler(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    commands: mpsc::UnboundedSender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counters: Arc<Counters>,
    pool: BlockPool,
    facts: ModelFacts,
    options: SchedulerOptions,
    tickets: AtomicU64,
    draining: AtomicBool,
}

impl BatchScheduler {
    /// Starts a thread that runs `model` over `pool`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        model: Box<dyn Model>,
        pool: BlockPool,
        options: SchedulerOptions,
    ) -> Result<Self, StartError> {
        let (scheduler, worker) = Self::prepare(model, pool, options)?;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().map_err(StartError::Thread)?;
        let thread = std::thread::Builder::new().name(scheduler.0.options.name.clone());
        let body = move || runtime.block_on(worker.run(async || {}));
        let thread = thread.spawn(body).map_err(StartError::Thread)?;
        *scheduler.0.thread() = Some(thread);
        Ok(scheduler)
    }

    /// A scheduler, and the future that runs `model` over `pool`. The future wants a tokio runtime with
    /// time; it ends when the last handle is dropped. `rest` is awaited after every step: it lets others
    /// run, and says how long the step took where the model itself takes no time.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn local(
        model: Box<dyn Model>,
        pool: BlockPool,
        options: SchedulerOptions,
        rest: impl AsyncFnMut(),
    ) -> Result<(Self, impl Future<Output = ()>), StartError> {
        let (scheduler, worker) = Self::prepare(model, pool, options)?;
        Ok((scheduler, worker.run(rest)))
    }

    fn prepare(
        model: Box<dyn Model>,
        pool: BlockPool,
        options: SchedulerOptions,
    ) -> Result<(Self, Worker), StartError> {
        let needed = model.kv_spec(pool.spec().block_tokens);
        if needed != *pool.spec() {
            let (model, pool) = (Box::new(needed), Box::new(pool.spec().clone()));
            return Err(StartError::Geometry { model, pool });
        }
        let limits = [
            ("prefill_rows_max", options.prefill_rows_max),
            ("running_max", options.running_max),
            ("waiting_max", options.waiting_max),
        ];
        if let Some((name, _)) = limits.into_iter().find(|(_, limit)| *limit == 0) {
            return Err(StartError::Limit(name));
        }
        let pool_tokens = pool.options().blocks * pool.spec().block_tokens as usize;
        let asked = options.context_len_max.unwrap_or(usize::MAX);
        let facts = ModelFacts {
            family: model.family().to_owned(),
            fingerprint: model.fingerprint(),
            state_layout: model.sequence_state_layout(),
            state_reader: model.state_reader().filter(|_| options.state_handoff),
            vocab: model.vocab(),
            context_len: model.context().min(asked).min(pool_tokens),
        };
        let (commands, inbox) = mpsc::unbounded_channel();
        let counters = Arc::<Counters>::default();
        let queue = (commands.clone(), inbox);
        let worker = Worker::new(model, &pool, &options, counters.clone(), queue);
        let scheduler = Self(Arc::new(Inner {
            commands,
            thread: Mutex::default(),
            counters,
            pool,
            facts,
            options,
            tickets: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        }));
        Ok((scheduler, worker))
    }

    /// Generates from a prompt.
    ///
    /// # Errors
    /// What is refused, before anything is allocated for it: an empty prompt, no budget, more tokens
    /// than fit, a queue that is full, a scheduler that drains.
    pub fn generate(&self, request: GenerateRequest) -> Result<Generation, GenerateError> {
        self.check(&request)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let job = self.job(request, Sink::Tokens(sender));
        self.submit(job)?;
        Ok(Generation::new(receiver).with_cancel(self.waker()))
    }

    /// Computes a prompt's cache and its first token, and gives both away. `max_tokens` is the whole
    /// request's budget: it decides only whether the first token is the last one.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), and for a family whose state the pool does not hold, nor can travel beside
    /// it.
    pub fn prefill_for_handoff(&self, request: GenerateRequest) -> Result<Prefill, GenerateError> {
        if let SequenceStateLayout::ModelOwned { family } = &self.0.facts.state_layout
            && self.0.facts.state_reader.is_none()
        {
            let refused = ExtractError::ModelOwned { family: family.clone() };
            return Err(GenerateError::Unsupported(refused.to_string()));
        }
        self.check_prompt(&request)?;
        self.check_fit(request.prompt.len())?;
        let (sender, events) = mpsc::unbounded_channel();
        let job = self.job(request, Sink::Prefill(sender));
        self.submit(job)?;
        Ok(Prefill { events, cancel: Some(Box::new(self.waker())) })
    }

    /// Goes on with a sequence whose prompt was computed elsewhere. `generated` are the tokens drawn
    /// so far, one or more; the last one is not in the cache. Their events are not repeated, but they
    /// count in the budget and in the final usage. What of the prompt is missing in the cache is
    /// computed here. Blocks that `sequence` has beyond its tokens serve its growth.
    ///
    /// A joining sequence never waits behind requests without blocks.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), and when cache and tokens do not fit together.
    pub fn decode_from(
        &self,
        request: GenerateRequest,
        sequence: KvSequence,
        generated: &[u32],
    ) -> Result<Generation, DecodeRefused> {
        if let Err(error) = self.check_continuation(&request, &sequence, generated) {
            return Err(DecodeRefused { error, sequence: Box::new(sequence) });
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let cached = sequence.len().min(request.prompt.len()) as u64;
        let job = self.job(request, Sink::Tokens(sender)).continuing(sequence, generated);
        self.0.counters.cached_tokens.fetch_add(cached, Ordering::Relaxed);
        self.0.counters.waiting.fetch_add(1, Ordering::Relaxed);
        // A loop that is gone drops the job, which the receiver shows as a failed node.
        let _ = self.0.commands.send(Command::Submit(Box::new(job)));
        Ok(Generation::new(receiver).with_cancel(self.waker()))
    }

    /// What the full blocks of a prompt are called in the pool; nothing without the prefix cache.
    pub fn prefix_keys(&self, request: &GenerateRequest) -> Vec<PrefixKey> {
        let chain = self.chain(request);
        chain.map_or_else(Vec::new, |mut chain| chain.keys(&request.prompt).to_vec())
    }

    /// The pool.
    pub fn pool(&self) -> &BlockPool {
        &self.0.pool
    }

    /// The model.
    pub fn facts(&self) -> &ModelFacts {
        &self.0.facts
    }

    /// Tokens of prompts that are computed at a time, at most.
    pub fn prefill_rows_max(&self) -> usize {
        self.0.options.prefill_rows_max
    }

    /// Counts.
    pub fn stats(&self) -> SchedulerStats {
        Self::stats_of(&self.0)
    }

    pub(super) fn stats_of(inner: &Inner) -> SchedulerStats {
        inner.counters.read()
    }

    /// How far the prompts are that take more than one step.
    pub fn prefill_progress(&self) -> Vec<PrefillProgress> {
        self.0.counters.progress().clone()
    }

    /// Shows counts and pool under the options' name.
    pub fn register_metrics(&self, metrics: &Metrics) {
        let name = self.0.options.name.clone();
        metrics.register_pool(&name, self.0.pool.clone());
        metrics.register_collector(StatsCollector { name, scheduler: Arc::downgrade(&self.0) });
    }

    /// Refuses requests from now on; those accepted go on.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// Whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    /// Whether the model runs.
    pub fn is_alive(&self) -> bool {
        !self.0.commands.is_closed()
    }

    /// Drains, and waits until every request has ended and the thread is gone, where there is one. Blocks
    /// the calling thread: call it from a blocking task.
    pub fn stop(&self) {
        self.drain();
        let _ = self.0.commands.send(Command::Stop { at_once: false });
        self.0.join();
    }

    fn waker(&self) -> impl FnOnce() + Send + 'static {
        let commands = self.0.commands.clone();
        move || drop(commands.send(Command::Wake))
    }

    fn job(&self, request: GenerateRequest, sink: Sink) -> Job {
        let ticket = self.0.tickets.fetch_add(1, Ordering::Relaxed);
        let chain = self.chain(&request);
        Job::new(ticket, request, sink, &self.0.options.eos).sharing(chain)
    }

    fn chain(&self, request: &GenerateRequest) -> Option<PrefixChain> {
        let Inner { facts, options, pool, .. } = &*self.0;
        let shares = options.prefix_cache && facts.state_layout == SequenceStateLayout::PoolBacked;
        shares.then(|| prefix::chain(facts, request, pool.spec().block_tokens))
    }

    fn submit(&self, job: Job) -> Result<(), GenerateError> {
        let max = self.0.options.waiting_max;
        let one_more = |waiting| (waiting < max).then_some(waiting + 1);
        let waiting = &self.0.counters.waiting;
        waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .map_err(|waiting| GenerateError::Busy { waiting })?;
        self.0.commands.send(Command::Submit(Box::new(job))).map_err(|_| {
            waiting.fetch_sub(1, Ordering::Relaxed);
            stopped()
        })
    }

    fn check(&self, request: &GenerateRequest) -> Result<(), GenerateError> {
        self.check_prompt(request)?;
        self.check_fit(request.prompt.len() + request.max_tokens as usize)
    }

    fn check_prompt(&self, request: &GenerateRequest) -> Result<(), GenerateError> {
        if self.is_draining() {
            return Err(stopped());
        }
        let refuse = |reason: String| Err(GenerateError::BadRequest(reason));
        if request.prompt.is_empty() {
            return refuse("the prompt has no tokens".to_owned());
        }
        if request.max_tokens == 0 {
            return refuse("`max_tokens` is 0; ask for 1 or more".to_owned());
        }
        let vocab = self.0.facts.vocab;
        if let Some(id) = request.prompt.iter().find(|id| **id as usize >= vocab) {
            return refuse(format!("the prompt has the token id {id}; ids are below {vocab}"));
        }
        request.sampling.validate().or_else(|error| refuse(error.to_string()))
    }

    fn check_fit(&self, tokens: usize) -> Result<(), GenerateError> {
        let limit = self.0.facts.context_len;
        if tokens > limit { Err(GenerateError::TooLong { tokens, limit }) } else { Ok(()) }
    }

    fn check_continuation(
        &self,
        request: &GenerateRequest,
        sequence: &KvSequence,
        generated: &[u32],
    ) -> Result<(), GenerateError> {
        self.check(request)?;
        let refuse = |reason: String| Err(GenerateError::BadRequest(reason));
        let (tokens, cached) = (request.prompt.len() + generated.len(), sequence.len());
        if !sequence.pool().same_pool(&self.0.pool) {
            return refuse("the sequence lies in another pool than the scheduler's".to_owned());
        }
        if generated.is_empty() || generated.len() >= request.max_tokens as usize {
            let (got, max) = (generated.len(), request.max_tokens);
            return refuse(format!("{got} tokens generated of {max}: nothing to go on with"));
        }
        if cached == 0 || cached >= tokens {
            return refuse(format!("{cached} tokens in the cache of a sequence of {tokens}"));
        }
        let vocab = self.0.facts.vocab;
        match generated.iter().find(|id| **id as usize >= vocab) {
            Some(id) => refuse(format!("a generated token has the id {id} of {vocab}")),
            None => Ok(()),
        }
    }
}

impl Inner {
    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self) {
        let thread = self.thread().take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            tracing::error!(name = self.options.name, "the scheduler's thread panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop { at_once: true });
        self.join();
    }
}
