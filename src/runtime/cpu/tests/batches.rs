//! Nothing about how work is arranged may change a bit; bad rows are refused.

use blockwire::pool::{BlockPool, Dtype, KvSequence, Layout, PoolOptions, TransferStats};

use super::Setup;
use crate::{
    cpu::{CpuModel, KernelLevel},
    model::{Batch, ForwardError, LayerHook, Model, Row, SequenceStateLayout, StateError},
    testing::sequences::{bits, cache_bytes, lend, prefill, sequences},
};

const FAMILIES: [&str; 4] = ["llama", "qwen3", "gemma3", "lfm2"];

/// Longer than one range of the attention kernel.
fn prompt(seed: u32) -> Vec<u32> {
    (0..83).map(|i| (i * i * 31 + i * 7 + seed * 101) % 512).collect()
}

/// Bits of all logits, and the cache.
fn outcome(setup: Setup, chunk: usize) -> (Vec<u32>, Vec<u8>) {
    let mut model = setup.model();
    let pool = setup.pool(&model, 40);
    let sequence = &mut sequences(&pool, &[83]).remove(0);
    let logits = prefill(&mut model, sequence, &prompt(0), chunk);
    (bits(&logits), cache_bytes(sequence))
}

#[test]
fn chunks_of_a_prompt_do_not_matter() {
    for family in FAMILIES {
        for kv_dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let setup = Setup { kv_dtype, ..Setup::new(family) };
            let whole = outcome(setup, usize::MAX);
            for chunk in [1, 7, 16] {
                assert_eq!(outcome(setup, chunk), whole, "{setup:?}, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn kernels_threads_and_pool_shape_do_not_matter() {
    for family in FAMILIES {
        for kv_dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let plain = Setup { kv_dtype, ..Setup::new(family) };
            let scalar = Setup { kernels: Some(KernelLevel::Scalar), ..plain };
            let expected = outcome(scalar, usize::MAX);
            let by_level =
                KernelLevel::available().map(|level| Setup { kernels: Some(level), ..plain });
            let others = [
                Setup { threads: 2, ..plain },
                Setup { threads: 3, ..plain },
                Setup { layout: Layout::LayerMajor, ..plain },
                Setup { block_tokens: 5, ..plain },
                Setup { block_tokens: 64, layout: Layout::LayerMajor, threads: 2, ..plain },
            ];
            for setup in by_level.chain(others) {
                assert_eq!(outcome(setup, 16), expected, "{setup:?}");
            }
        }
    }
}

#[test]
fn company_in_a_batch_does_not_matter() {
    for family in FAMILIES {
        for threads in [1, 2] {
            let setup = Setup { kv_dtype: Dtype::F16, threads, ..Setup::new(family) };
            let mut model = setup.model();
            let alone: Vec<_> = (0..3).map(|seed| alone(setup, &mut model, seed)).collect();
            assert_eq!(together(setup, &mut model), alone, "{setup:?}");
        }
    }
}

/// A prompt of its own length, then four tokens.
fn alone(setup: Setup, model: &mut CpuModel, seed: u32) -> (Vec<u32>, Vec<u8>) {
    let pool = setup.pool(model, 8);
    let sequence = &mut sequences(&pool, &[90]).remove(0);
    let tokens = &prompt(seed)[..40 + 10 * seed as usize];
    let (start, rest) = tokens.split_at(tokens.len() - 4);
    let mut logits = vec![prefill(model, sequence, start, usize::MAX).pop().unwrap()];
    logits.extend(prefill(model, sequence, rest, 1));
    (bits(&logits), cache_bytes(sequence))
}

/// The same for three sequences at once, the third joining while the others decode.
fn together(setup: Setup, model: &mut CpuModel) -> Vec<(Vec<u32>, Vec<u8>)> {
    let pool = setup.pool(model, 20);
    let mut sequences = sequences(&pool, &[90, 90, 90]);
    let prompts: Vec<_> =
        (0..3).map(|seed| prompt(seed as u32)[..40 + 10 * seed].to_vec()).collect();
    let mut logits = vec![Vec::new(); 3];
    for step in 0..7 {
        let mut batch = Batch::new(&mut sequences);
        let mut order = Vec::new();
        for (index, prompt) in prompts.iter().enumerate() {
            let start = prompt.len() - 4;
            let late = if index == 2 { 2 } else { 0 };
            let range = match step {
                step if step == late => 0..start,
                step if step > late && step <= late + 4 => {
                    start + step - late - 1..start + step - late
                }
                _ => continue,
            };
            batch.push(index, range.start, &prompt[range.clone()], true);
            order.push(index);
        }
        let result = model.forward(&mut batch, &mut ()).unwrap();
        for (row, index) in order.into_iter().enumerate() {
            logits[index].push(result.row(row).to_vec());
        }
    }
    logits
        .iter()
        .zip(&sequences)
        .map(|(logits, sequence)| (bits(logits), cache_bytes(sequence)))
        .collect()
}

#[test]
fn a_rewritten_token_ends_the_sequence() {
    let setup = Setup::new("llama");
    let mut model = setup.model();
    let pool = setup.pool(&model, 8);
    let sequence = &mut sequences(&pool, &[90]).remove(0);
    let first = prefill(&mut model, sequence, &prompt(0), usize::MAX);
    sequence_of_one_row(&mut model, sequence, 40, prompt(0)[40]);
    assert_eq!(sequence.len(), 41);
    let rest = prefill(&mut model, sequence, &prompt(0)[41..], usize::MAX);
    assert_eq!(bits(&rest), bits(&first[41..]));
}

fn sequence_of_one_row(
    model: &mut CpuModel,
    sequence: &mut KvSequence,
    position: usize,
    token: u32,
) {
    let mut batch = Batch::new([sequence]);
    batch.push(0, position, &[token], false);
    assert_eq!(model.forward(&mut batch, &mut ()).unwrap().rows(), 0);
}

/// What a window has left behind may be anything.
#[test]
fn a_layer_with_a_window_reads_nothing_before_it() {
    for setup in [Setup::new("gemma3"), Setup { block_tokens: 5, ..Setup::new("gemma3") }] {
        let mut model = setup.model();
        let pool = setup.pool(&model, 24);
        let sequence = &mut sequences(&pool, &[110]).remove(0);
        let expected = prefill(&mut model, sequence, &prompt(0), usize::MAX);
        sequence.set_len(60);
        let again = prefill(&mut model, sequence, &prompt(0)[60..], 9);
        assert_eq!(bits(&again), bits(&expected[60..]));
        sequence.set_len(60);
        let windows = (0..7).filter(|layer| *layer != 5);
        windows.for_each(|layer| spoil(sequence, layer, 60 - 15));
        let spoiled = prefill(&mut model, sequence, &prompt(0)[60..], 9);
        assert_eq!(bits(&spoiled), bits(&expected[60..]), "{setup:?}");
        // The other layer does read it.
        sequence.set_len(60);
        spoil(sequence, 5, 1);
        let spoiled = prefill(&mut model, sequence, &prompt(0)[60..], 9);
        assert!(spoiled.iter().flatten().all(|logit| logit.is_nan()));
    }
}

/// Fills the first `tokens` tokens of a layer with NaN.
fn spoil(sequence: &KvSequence, layer: usize, tokens: usize) {
    let pool = sequence.pool();
    let block_tokens = pool.spec().block_tokens as usize;
    for segment in &pool.spec().layers[layer].segments {
        let plane = pool.plane(layer, segment.part).unwrap();
        for token in 0..tokens {
            let block = sequence.block_table()[token / block_tokens] as usize;
            let within = token % block_tokens * plane.token_stride;
            let offset = plane.offset + block * plane.block_stride + within;
            // SAFETY: the token lies inside the region, and no forward pass is running.
            unsafe { pool.base().as_ptr().add(offset).write_bytes(0xff, plane.token_stride) };
        }
    }
}

#[test]
fn a_state_of_the_models_own_goes_on_or_starts_again_and_nothing_else() {
    let setup = Setup::new("lfm2");
    let mut model = setup.model();
    let layout = SequenceStateLayout::ModelOwned { family: "lfm2".to_owned() };
    assert_eq!(model.sequence_state_layout(), layout);
    let pool = setup.pool(&model, 12);
    let [mut one, mut other] = sequences(&pool, &[90, 90]).try_into().unwrap();
    let expected = prefill(&mut model, &mut one, &prompt(0), usize::MAX);
    assert_eq!(one.model_state().unwrap().family(), "lfm2");
    for position in [1, 40, 82] {
        let mut batch = Batch::new([&mut one]);
        batch.push(0, position, &[7], true);
        let refused = model.forward(&mut batch, &mut ());
        assert_eq!(refused, Err(ForwardError::StateElsewhere { row: 0, position, state: 83 }));
    }
    assert_eq!(one.len(), 83);
    // A cache without the state: what a handoff would have brought.
    prefill(&mut model, &mut other, &prompt(0)[..50], usize::MAX);
    *other.model_state_mut() = None;
    let mut batch = Batch::new([&mut other]);
    batch.push(0, 50, &[7], true);
    let refused = model.forward(&mut batch, &mut ());
    assert_eq!(refused, Err(ForwardError::StateElsewhere { row: 0, position: 50, state: 0 }));
    // A state that came as bytes.
    other.set_len(0);
    prefill(&mut model, &mut other, &prompt(0)[..50], 11);
    let (reader, bytes) = (model.state_reader().unwrap(), other.model_state().unwrap().to_bytes());
    let bytes = bytes.unwrap();
    assert_eq!(bytes.len(), 4 * 2 * 128 * 4, "four layers, two inputs, 128 numbers");
    let short = reader.read(50, &bytes[1..]).unwrap_err();
    assert_eq!(short, StateError::Len { expected: 4096, found: 4095 });
    *other.model_state_mut() = Some(reader.read(50, &bytes).unwrap());
    let rest = prefill(&mut model, &mut other, &prompt(0)[50..], usize::MAX);
    assert_eq!(bits(&rest), bits(&expected[50..]));
    sequence_of_one_row(&mut model, &mut one, 0, prompt(0)[0]);
    let again = prefill(&mut model, &mut one, &prompt(0)[1..], 5);
    assert_eq!(bits(&again), bits(&expected[1..]));
    assert_eq!(model.forward(&mut Batch::new([&mut one]), &mut ()).unwrap().rows(), 0);
    assert_eq!(bits(&prefill(&mut model, &mut one, &[9], 1)).len(), 512);
}

#[test]
fn a_sealed_prefix_is_read_but_never_written() {
    let setup = Setup::new("llama");
    let mut model = setup.model();
    let pool = setup.pool(&model, 12);
    let mut both = sequences(&pool, &[83, 30]);
    let expected = prefill(&mut model, &mut both[0], &prompt(0), usize::MAX);
    both[0].set_len(64);
    both[0].seal_full();
    let sealed = both[0].sealed().to_vec();
    let mut shared =
        KvSequence::from_blocks(&pool, sealed, pool.try_reserve(2).unwrap(), 64).unwrap();
    let mut batch = Batch::new([&mut shared]);
    batch.push(0, 63, &[1], true);
    let (row, position, writable_from) = (0, 63, 64);
    let refused = model.forward(&mut batch, &mut ());
    assert_eq!(refused, Err(ForwardError::Sealed { row, position, writable_from }));
    let rest = prefill(&mut model, &mut shared, &prompt(0)[64..], 7);
    assert_eq!(bits(&rest), bits(&expected[64..]));
}

#[test]
fn it_does_not_matter_in_whose_pool_a_prefix_lies() {
    for (kv_dtype, lender, borrower) in [
        (Dtype::F16, Layout::BlockMajor, Layout::BlockMajor),
        (Dtype::Bf16, Layout::LayerMajor, Layout::LayerMajor),
        (Dtype::F32, Layout::LayerMajor, Layout::BlockMajor),
    ] {
        let setup = Setup { kv_dtype, layout: lender, threads: 2, ..Setup::new("qwen3") };
        let mut model = setup.model();
        let pools = [setup.pool(&model, 12), Setup { layout: borrower, ..setup }.pool(&model, 9)];
        let mut whole = sequences(&pools[0], &[83]).remove(0);
        let expected = prefill(&mut model, &mut whole, &prompt(0), usize::MAX);
        whole.set_len(64);
        whole.seal_full();
        for home in [0, 1, 4] {
            let own = pools[1].try_reserve(2).unwrap();
            let mut sequence = KvSequence::from_adopted(&pools[1], lend(&whole), own, 64).unwrap();
            let blocks = pools[1].try_reserve(home).unwrap();
            sequence.bring_home(blocks, &TransferStats::default()).unwrap();
            let rest = prefill(&mut model, &mut sequence, &prompt(0)[64..], 7);
            assert_eq!(bits(&rest), bits(&expected[64..]), "{setup:?}, {home} blocks at home");
            assert!(sequence.is_intact());
        }
        assert_eq!(pools[1].accounting().free, 9);
    }
}

#[test]
fn bad_rows_are_refused_and_nothing_is_written() {
    let setup = Setup::new("llama");
    let mut model = setup.model();
    let pool = setup.pool(&model, 8);
    let sequence = &mut sequences(&pool, &[32]).remove(0);
    prefill(&mut model, sequence, &[1, 2, 3], 3);
    let before = cache_bytes(sequence);
    let good = Row { sequence: 0, position: 3, token: 1, wants_logits: true };
    let cases = [
        (
            Row { sequence: 1, ..good },
            ForwardError::NoSuchSequence { row: 1, sequence: 1, sequences: 1 },
        ),
        (Row { token: 512, ..good }, ForwardError::NoSuchToken { row: 1, token: 512, vocab: 512 }),
        (Row { position: 5, ..good }, ForwardError::Gap { row: 1, position: 5, expected: 4 }),
        (Row { position: 3, ..good }, ForwardError::Gap { row: 1, position: 3, expected: 4 }),
        (
            Row { position: 32, ..good },
            ForwardError::BeyondCapacity { row: 1, position: 32, capacity: 32 },
        ),
    ];
    for (bad, error) in cases {
        let mut batch = Batch::new([&mut *sequence]);
        batch.rows = vec![good, bad];
        assert_eq!(model.forward(&mut batch, &mut ()), Err(error));
        assert_eq!(sequence.len(), 3);
        assert_eq!(cache_bytes(sequence), before);
    }
}

#[test]
fn foreign_pools_are_refused() {
    let setup = Setup::new("llama");
    let mut model = setup.model();
    let pools = [setup.pool(&model, 2), setup.pool(&model, 2)];
    let mut several: Vec<_> = pools.iter().map(|pool| sequences(pool, &[16]).remove(0)).collect();
    let refused = model.forward(&mut Batch::new(&mut several), &mut ());
    assert_eq!(refused, Err(ForwardError::SeveralPools { sequence: 1 }));
    let spec = Setup::new("qwen3").model().kv_spec(16);
    let pool = BlockPool::new(PoolOptions::new(spec, 2)).unwrap();
    let refused = model.forward(&mut Batch::new(&mut sequences(&pool, &[16])), &mut ());
    assert!(matches!(refused, Err(ForwardError::Geometry { .. })), "{refused:?}");
}

#[test]
fn an_empty_batch_is_no_work() {
    let mut model = Setup::new("llama").model();
    let logits = model.forward(&mut Batch::default(), &mut ()).unwrap();
    assert_eq!(logits.rows(), 0);
}

/// Looks at the cache from inside the pass.
struct Watch {
    pool: BlockPool,
    layers: Vec<usize>,
}

impl LayerHook for Watch {
    fn layer_written(&mut self, layer: usize) {
        for segment in &self.pool.spec().layers[layer].segments {
            let plane = self.pool.plane(layer, segment.part).unwrap();
            // SAFETY: token 0 of block 0 lies inside the region, and the pass waits for the hook.
            let token = unsafe {
                let start = self.pool.base().as_ptr().add(plane.offset);
                std::slice::from_raw_parts(start, plane.token_stride)
            };
            assert!(token.iter().any(|byte| *byte != 0xff), "layer {layer}");
        }
        self.layers.push(layer);
    }
}

#[test]
fn the_hook_sees_every_layer_written() {
    let setup = Setup::new("qwen3");
    let mut model = setup.model();
    let pool = setup.pool(&model, 1);
    let sequence = &mut sequences(&pool, &[16]).remove(0);
    let mut batch = Batch::new([sequence]);
    batch.push(0, 0, &[1, 2, 3], false);
    let mut watch = Watch { pool, layers: Vec::new() };
    model.forward(&mut batch, &mut watch).unwrap();
    assert_eq!(watch.layers, [0, 1, 2, 3]);
}
