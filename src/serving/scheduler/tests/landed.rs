//! What lands at a decode node is what the forward pass leaves behind, however long that pauses between layers.

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event, Events, Listening};
use blockwire::handoff::{HandoffSender, extract_sequence_handoff};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{
    Cursor, Digest, FillingBlock, GatherList, PayloadOrder, PrefixKey, SealedBlock, Span,
};
use blockwire::session::{HandoffKey, Identity, PieceCut};
use blockwire_mem::MemTransport;
use blockwire_runtime::cpu::CpuModel;
use bytes::Bytes;
use fastrand::Rng;

use super::handoff::{llama, llama_pool};
use super::*;

/// Tokens a block, and rows a step: blocks are filled across steps.
const BLOCK_TOKENS: u32 = 8;
const ROWS: usize = 13;
/// Prompts, of which so many are there at a time.
const PROMPTS: u32 = 200;
const AT_ONCE: u32 = 8;

/// A model that falls asleep at random between its layers.
struct Drowsy(CpuModel, Rng);

struct Naps<'a>(&'a mut Rng, &'a mut dyn LayerHook);

impl LayerHook for Naps<'_> {
    fn layer_written(&mut self, layer: usize) {
        self.1.layer_written(layer);
        if self.0.u8(..4) == 0 {
            std::thread::sleep(Duration::from_micros(self.0.u64(..400)));
        }
    }
}

impl Model for Drowsy {
    fn family(&self) -> &str {
        self.0.family()
    }

    fn kv_spec(&self, block_tokens: u32) -> KvSpec {
        self.0.kv_spec(block_tokens)
    }

    fn sequence_state_layout(&self) -> SequenceStateLayout {
        self.0.sequence_state_layout()
    }

    fn vocab(&self) -> usize {
        self.0.vocab()
    }

    fn context(&self) -> usize {
        self.0.context()
    }

    fn fingerprint(&self) -> ModelFingerprint {
        self.0.fingerprint()
    }

    fn forward(
        &mut self,
        batch: &mut Batch<'_>,
        hook: &mut dyn LayerHook,
    ) -> Result<Logits, ForwardError> {
        self.0.forward(batch, &mut Naps(&mut self.1, hook))
    }
}

/// Of each layer of a block that is final, one digest.
fn layers_of(block: &FillingBlock) -> Vec<u64> {
    let digest = |layer| {
        let order = PayloadOrder { block_tokens: BLOCK_TOKENS };
        let span = Span { tokens: 0..BLOCK_TOKENS as usize, layers: layer..layer + 1 };
        let list = GatherList::filling(std::slice::from_ref(block), order, &span).unwrap();
        let mut digest = Digest::default();
        list.slices(&Cursor::default(), usize::MAX).for_each(|slice| digest.update(slice));
        digest.value()
    };
    (0..block.layers()).map(digest).collect()
}

fn digests(blocks: &[SealedBlock]) -> Vec<Vec<u64>> {
    blocks.iter().map(|block| layers_of(&block.clone().into())).collect()
}

/// Full blocks that were told of, and what their layers were as soon as they were final.
#[derive(Default)]
struct Told {
    full: usize,
    blocks: Vec<(FillingBlock, Vec<u64>)>,
    /// How often some layers of a block were read while others were computed.
    amid_a_step: usize,
}

impl Told {
    fn read(&mut self, first: usize, blocks: impl IntoIterator<Item = FillingBlock>) {
        let known = self.blocks.len().checked_sub(first).expect("no gap");
        let new = blocks.into_iter().skip(known).map(|block| (block, Vec::new()));
        self.blocks.extend(new);
        self.blocks.truncate(self.full);
        for (block, early) in &mut self.blocks {
            let (layers, known) = (block.pool().spec().layers.len(), early.len());
            early.extend(layers_of(block).split_off(known));
            self.amid_a_step += usize::from((1..layers).contains(&early.len()));
        }
    }
}

/// Two pools and the connection between them.
struct Nodes {
    prefill: BlockPool,
    decode: BlockPool,
    to_decode: Connection,
    from_prefill: Events,
    _held: (Endpoint, Endpoint, Listening, Events, Connection),
}

async fn nodes() -> Nodes {
    let (prefill, decode) = (llama_pool(BLOCK_TOKENS, 160), llama_pool(BLOCK_TOKENS, 320));
    let wire = Arc::new(MemTransport::default());
    let endpoint = |name: &str, pool: &BlockPool| {
        let options =
            EndpointOptions::new(Identity::new(name), Some(pool.clone()), vec![wire.clone()]);
        Endpoint::start(options).unwrap()
    };
    let (from, to) = (endpoint("prefill", &prefill), endpoint("decode", &decode));
    let address = "mem:landed".parse().unwrap();
    let mut listening = to.listen(&address).await.unwrap();
    let (to_decode, events) = from.connect(&address).await.unwrap();
    let (to_prefill, from_prefill) = listening.accept().await.unwrap();
    let _held = (from, to, listening, events, to_prefill);
    Nodes { prefill, decode, to_decode, from_prefill, _held }
}

/// Computes a prompt and hands it over, as a prefill node does. What was read of its full blocks when they were told
/// of, and their digests after the last step.
async fn hand_over(
    node: BatchScheduler,
    to: Connection,
    request: GenerateRequest,
) -> (Told, Vec<Vec<u64>>) {
    let pool = node.pool().clone();
    let key = HandoffKey { request: request.id, epoch: 1 };
    let sender = HandoffSender::new(to, key, &pool, request.prompt.len(), Bytes::new());
    let mut sender =
        sender.in_pieces(PieceCut { tokens: BLOCK_TOKENS, layered_from: 24, layers: 1 });
    let full = request.prompt.len() / BLOCK_TOKENS as usize;
    let mut prefill = node.prefill_for_handoff(request).unwrap();
    let mut told = Told { full, ..Told::default() };
    loop {
        match prefill.next().await.unwrap() {
            PrefillEvent::Layers { first_block, blocks } => {
                sender.push(first_block, &blocks);
                told.read(first_block.min(full), blocks);
            }
            PrefillEvent::Progress { first_block, blocks, .. } => {
                sender.push(first_block, &blocks);
                told.read(first_block, blocks.into_iter().map(FillingBlock::from));
            }
            PrefillEvent::Done(mut done) => {
                let computed = digests(&done.sequence.sealed()[..full]);
                let handoff = extract_sequence_handoff(&mut done.sequence).unwrap();
                sender.finish(handoff, Bytes::new()).await.unwrap();
                return (told, computed);
            }
            PrefillEvent::Failed(error) => panic!("{error}"),
        }
    }
}

/// Takes the next caches over and leaves them for later ones to find. The digests of their full blocks.
async fn take_over(
    events: &mut Events,
    pool: &BlockPool,
    keys: &HashMap<Uuid, Vec<PrefixKey>>,
) -> HashMap<Uuid, Vec<Vec<u64>>> {
    let mut landings = Vec::new();
    while landings.len() < keys.len() {
        let Some(Event::Handoff(incoming)) = events.next().await else { panic!("no handoff") };
        let (pool, id) = (pool.clone(), incoming.key().request);
        let keys = keys[&id].clone();
        landings.push(tokio::spawn(async move {
            let options = IngestOptions { tokens_max: 512, growth: 0, adopt: false, keys: &keys };
            let ingested = ingest_sequence_handoff(incoming, &pool, options).await.unwrap();
            let mut sequence = ingested.sequence;
            sequence.cache_full(&keys);
            let full = sequence.len() / BLOCK_TOKENS as usize;
            (id, digests(&sequence.finish()[..full]))
        }));
    }
    let mut landed = HashMap::new();
    for landing in landings {
        let (id, digests) = landing.await.unwrap();
        landed.insert(id, digests);
    }
    landed
}

/// What is sent ahead is read at the worst of times: in a forward pass that computes others with the same beginning,
/// and sleeps between two layers.
#[tokio::test]
async fn fault_b04_what_lands_is_what_the_forward_pass_left() {
    let Nodes { prefill, decode, to_decode, mut from_prefill, _held } = nodes().await;
    let options =
        SchedulerOptions { eos: vec![2], prefill_rows_max: ROWS, ..SchedulerOptions::default() };
    let model = Box::new(Drowsy(llama(), Rng::with_seed(4)));
    let node = BatchScheduler::start(model, prefill.clone(), options).unwrap();
    let beginnings: Vec<_> = (0..3).map(|number| prompt(number, 24)).collect();
    let (mut ahead, mut amid_a_step, mut compared) = (0, 0, 0);
    for first in (0..PROMPTS).step_by(AT_ONCE as usize) {
        let requests = (first..first + AT_ONCE).map(|number| {
            let own = prompt(100 + number, 30 + (number % AT_ONCE) as usize);
            request([&beginnings[number as usize % 3][..], &own].concat(), 5)
        });
        let requests: Vec<_> = requests.collect();
        let keys = requests.iter().map(|request| (request.id, node.prefix_keys(request))).collect();
        let sent = requests.into_iter().map(|request| {
            let id = request.id;
            (id, tokio::spawn(hand_over(node.clone(), to_decode.clone(), request)))
        });
        let sent: Vec<_> = sent.collect();
        let landed = take_over(&mut from_prefill, &decode, &keys);
        let landed = tokio::time::timeout(Duration::from_secs(60), landed).await.expect("it hangs");
        for (id, sent) in sent {
            let (told, computed) = sent.await.unwrap();
            for ((_, early), computed) in told.blocks.iter().zip(&computed) {
                let found = &computed[..early.len()];
                assert_eq!(early, found, "a layer changed after it was told of");
            }
            assert_eq!(landed[&id], computed, "other bytes landed than were computed");
            (ahead, amid_a_step) = (ahead + told.blocks.len(), amid_a_step + told.amid_a_step);
            compared += computed.len();
        }
    }
    assert!(ahead > 200 && compared > 6 * PROMPTS as usize, "{ahead} ahead of {compared}");
    assert!(amid_a_step > 200, "{amid_a_step} times a block was read while it was filled");
    drop(node);
    assert_eq!(prefill.accounting().available(), 160);
}
