//! The scheduler with a model whose answers can be foretold, and with a real one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blockwire::pool::{BlockPool, Dtype, KvSpec, PoolOptions};
use blockwire_runtime::files::ModelFingerprint;
use blockwire_runtime::model::{
    Batch, ForwardError, LayerHook, Logits, Model, SequenceStateLayout,
};
use blockwire_runtime::sampling::{History, SamplingParams, sample};
use uuid::Uuid;

use super::*;
use crate::backend::{FinishReason, GenerateError, GenerateRequest, Generation, TokenEvent, Usage};

mod handoff;
mod landed;
mod lifecycle;
mod model_owned;
mod prefix;
mod tokens;

const VOCAB: usize = 64;
const BLOCK: u32 = 16;
const CONTEXT: usize = 4096;
const EOS: u32 = 0;
/// A prompt with this token is refused by the model.
const REFUSED: u32 = 62;
/// With this one, the model panics.
const PANICS: u32 = 63;

/// Position and token in each (block, slot).
type Memory = HashMap<(u32, usize), (usize, u32)>;

/// A model whose logits are a hash of all tokens up to the row. It keeps a shadow of the pool's
/// memory, by block and slot, so that a wrong block table or a block in two hands shows.
struct Fake {
    memory: Arc<Mutex<Memory>>,
    gate: Arc<Gate>,
    /// Rows of every forward pass.
    rows: Arc<Mutex<Vec<usize>>>,
    owns_state: bool,
}

/// Lets forward passes through: all of them, or so many.
struct Gate(AtomicUsize);

impl Default for Gate {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Gate {
    fn close(&self) {
        self.0.store(0, SeqCst);
    }

    fn open(&self) {
        self.0.store(usize::MAX, SeqCst);
    }

    fn allow(&self, passes: usize) {
        self.0.store(passes, SeqCst);
    }

    fn pass(&self) {
        let one_less = |left| match left {
            0 => None,
            usize::MAX => Some(usize::MAX),
            left => Some(left - 1),
        };
        while self.0.fetch_update(SeqCst, SeqCst, one_less).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn hashed_logits(tokens: impl Iterator<Item = u32>) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u64;
    for token in tokens {
        state = (state ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 21) as f32
    };
    (0..VOCAB).map(|id| if id as u32 >= REFUSED { f32::NEG_INFINITY } else { next() }).collect()
}

impl Model for Fake {
    fn family(&self) -> &str {
        "fake"
    }

    fn kv_spec(&self, block_tokens: u32) -> KvSpec {
        KvSpec::uniform(block_tokens, 1, 1, 1, Dtype::F32)
    }

    fn sequence_state_layout(&self) -> SequenceStateLayout {
        match self.owns_state {
            false => SequenceStateLayout::PoolBacked,
            true => SequenceStateLayout::ModelOwned { family: "fake".to_owned() },
        }
    }

    fn vocab(&self) -> usize {
        VOCAB
    }

    fn context(&self) -> usize {
        CONTEXT
    }

    fn fingerprint(&self) -> ModelFingerprint {
        ModelFingerprint::from_bytes([7; 32])
    }

    fn forward(
        &mut self,
        batch: &mut Batch<'_>,
        hook: &mut dyn LayerHook,
    ) -> Result<Logits, ForwardError> {
        self.gate.pass();
        self.rows.lock().unwrap().push(batch.rows.len());
        if let Some(row) = batch.rows.iter().position(|row| row.token == REFUSED) {
            return Err(ForwardError::NoSuchToken { row, token: REFUSED, vocab: VOCAB });
        }
        assert!(batch.rows.iter().all(|row| row.token != PANICS), "told to");
        let mut memory = self.memory.lock().unwrap();
        let mut logits = Vec::new();
        for row in &batch.rows {
            let sequence = &mut *batch.sequences[row.sequence];
            assert_eq!(row.position, sequence.len(), "a gap, or a token written twice");
            assert!(row.position < sequence.capacity() && row.position >= sequence.writable_from());
            let table = sequence.block_table().to_vec();
            let slot = |at: usize| (table[at / BLOCK as usize], at % BLOCK as usize);
            memory.insert(slot(row.position), (row.position, row.token));
            sequence.set_len(row.position + 1);
            if row.wants_logits {
                let tokens = (0..=row.position).map(|at| {
                    let (position, token) = memory[&slot(at)];
                    assert_eq!(position, at, "another sequence wrote into the block");
                    token
                });
                logits.extend(hashed_logits(tokens));
            }
        }
        drop(memory);
        hook.layer_written(0);
        Ok(Logits::new(VOCAB, logits))
    }
}

/// A scheduler over a fake, and what a test looks at.
struct Rig {
    scheduler: BatchScheduler,
    pool: BlockPool,
    gate: Arc<Gate>,
    rows: Arc<Mutex<Vec<usize>>>,
}

impl Rig {
    fn new(blocks: usize, options: SchedulerOptions) -> Self {
        Self::with_state(blocks, options, false)
    }

    fn with_state(blocks: usize, options: SchedulerOptions, owns_state: bool) -> Self {
        let (memory, gate, rows) = <(Arc<_>, Arc<_>, Arc<_>)>::default();
        let fake = Fake { memory, gate: Arc::clone(&gate), rows: Arc::clone(&rows), owns_state };
        let pool = BlockPool::new(PoolOptions::new(fake.kv_spec(BLOCK), blocks)).unwrap();
        let scheduler = BatchScheduler::start(Box::new(fake), pool.clone(), options).unwrap();
        Self { scheduler, pool, gate, rows }
    }

    /// Waits until nothing runs or waits and every block can be had.
    async fn idle(&self) {
        until(|| {
            let stats = self.scheduler.stats();
            stats.running + stats.waiting == 0
                && self.pool.accounting().available() == self.pool_len()
        })
        .await;
    }

    fn pool_len(&self) -> usize {
        self.pool.accounting().total
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The scheduler's thread ends only when the model lets it.
        self.gate.open();
    }
}

/// Waits for a token.
async fn first_token(generation: &mut Generation) {
    loop {
        match generation.next().await {
            Some(TokenEvent::Token { .. }) => return,
            Some(TokenEvent::Started(_)) => {}
            other => panic!("{other:?} instead of a token"),
        }
    }
}

fn options() -> SchedulerOptions {
    SchedulerOptions { eos: vec![EOS], ..SchedulerOptions::default() }
}

/// Waits for `condition`, with a watchdog.
async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it never came");
}

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (i * 7 + seed * 13 + i * i * seed) % 60).collect()
}

fn request(prompt: Vec<u32>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        id: Uuid::new_v4(),
        prompt,
        max_tokens,
        min_tokens: 0,
        sampling: SamplingParams::default(),
        ignore_eos: true,
        logprobs: None,
        deadline: None,
        cache_salt: None,
        retractable: false,
    }
}

/// The tokens that a node gives to each request, one after the other.
async fn one_by_one(node: &BatchScheduler, requests: &[GenerateRequest]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for request in requests {
        all.push(collect(node.generate(request.clone()).unwrap()).await.0);
    }
    all
}

/// The tokens that a node gives to requests that are there at the same time.
async fn all_at_once(node: &BatchScheduler, requests: &[GenerateRequest]) -> Vec<Vec<u32>> {
    let ask =
        |request: &GenerateRequest| tokio::spawn(collect(node.generate(request.clone()).unwrap()));
    let running: Vec<_> = requests.iter().map(ask).collect();
    let mut all = Vec::new();
    for running in running {
        all.push(running.await.unwrap().0);
    }
    all
}

/// The tokens of a generation and how it ended.
async fn collect(
    mut generation: Generation,
) -> (Vec<u32>, Result<(FinishReason, Usage), GenerateError>) {
    let mut tokens = Vec::new();
    let events = async {
        loop {
            match generation.next().await.expect("no end") {
                TokenEvent::Started(_) => assert!(tokens.is_empty()),
                TokenEvent::Token { id, .. } => tokens.push(id),
                TokenEvent::Finished { reason, usage } => return Ok((reason, usage)),
                TokenEvent::Failed(error) => return Err(error),
            }
        }
    };
    let end = tokio::time::timeout(Duration::from_secs(60), events).await.expect("it hangs");
    (tokens, end)
}

/// What `request` must give, computed one token at a time without a scheduler.
fn reference(request: &GenerateRequest) -> Vec<u32> {
    let mut tokens = request.prompt.clone();
    loop {
        let logits = hashed_logits(tokens.iter().copied());
        let (prompt, output) = tokens.split_at(request.prompt.len());
        let mut sampling = request.sampling.clone();
        if output.len() < request.min_tokens as usize {
            sampling.logit_bias.insert(EOS, f32::NEG_INFINITY);
        }
        let history = History { prompt, output };
        let next = sample(&logits, &sampling, history, tokens.len() as u64).unwrap().id;
        tokens.push(next);
        let generated = tokens.len() - request.prompt.len();
        if (next == EOS && !request.ignore_eos) || generated == request.max_tokens as usize {
            return tokens.split_off(request.prompt.len());
        }
    }
}
