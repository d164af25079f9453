//! Equal work gives equal bits; company in a batch changes no token; bad rows are refused.

use blockwire::pool::{Dtype, Layout, PoolOptions};

use super::{FAMILIES, model, pool, prompt, spoiled};
use crate::{
    model::{Batch, ForwardError, LayerHook, Model},
    testing::sequences::{bits, cache_bytes, greedy, likeliest, prefill, sequences},
};

/// Bits of all logits of a prompt and some tokens, and the cache.
fn outcome(family: &str, kv_dtype: Dtype, block_tokens: u32) -> (Vec<u32>, Vec<u8>) {
    let mut model = model(family, kv_dtype);
    let pool = pool(&model, block_tokens, 40);
    let sequence = &mut sequences(&pool, &[100]).remove(0);
    let mut logits = prefill(&mut model, sequence, &prompt(0), 32);
    logits.extend(prefill(&mut model, sequence, &prompt(1)[..5], 1));
    (bits(&logits), cache_bytes(sequence))
}

#[test]
fn repeats_and_block_lengths_give_the_same_bits() {
    for family in FAMILIES {
        for kv_dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let expected = outcome(family, kv_dtype, 16);
            for block_tokens in [16, 5, 64] {
                let again = outcome(family, kv_dtype, block_tokens);
                assert!(again == expected, "{family}, {kv_dtype}, blocks of {block_tokens}");
            }
        }
    }
}

#[test]
fn company_in_a_batch_changes_no_token() {
    for family in FAMILIES {
        let mut model = model(family, Dtype::F16);
        let pool = pool(&model, 16, 40);
        let mut alone = Vec::new();
        for (seed, sequence) in sequences(&pool, &[100; 3]).iter_mut().enumerate() {
            let logits = prefill(&mut model, sequence, &prompt(seed as u32), usize::MAX);
            alone.push(greedy(&mut model, sequence, likeliest(logits.last().unwrap()), 6));
        }
        let mut together = sequences(&pool, &[100; 3]);
        let mut tokens: Vec<Vec<u32>> = vec![Vec::new(); 3];
        for step in 0..6 {
            let mut batch = Batch::new(&mut together);
            for (index, tokens) in tokens.iter().enumerate() {
                match tokens.last() {
                    None => batch.push(index, 0, &prompt(index as u32), true),
                    Some(last) => batch.push(index, 82 + step, &[*last], true),
                }
            }
            let logits = model.forward(&mut batch, &mut ()).unwrap();
            let rows = tokens.iter_mut().enumerate();
            rows.for_each(|(row, tokens)| tokens.push(likeliest(logits.row(row))));
        }
        assert_eq!(tokens, alone, "{family}");
    }
}

#[test]
fn a_model_moves_between_threads() {
    let mut model = model("qwen3", Dtype::F32);
    let pool = pool(&model, 16, 12);
    let mut both = sequences(&pool, &[90, 90]);
    let (one, other) = both.split_at_mut(1);
    let here = prefill(&mut model, &mut one[0], &prompt(0), 40);
    let there = std::thread::scope(|scope| {
        let run = || prefill(&mut model, &mut other[0], &prompt(0), 40);
        scope.spawn(run).join().unwrap()
    });
    assert_eq!(bits(&here), bits(&there));
}

#[test]
fn what_cannot_be_run_is_refused() {
    let mut model = model("llama", Dtype::F32);
    let pool = pool(&model, 16, 4);
    let sequence = &mut sequences(&pool, &[16]).remove(0);
    let mut batch = Batch::new([&mut *sequence]);
    batch.push(0, 1, &[7], true);
    let refused = model.forward(&mut batch, &mut ());
    assert_eq!(refused, Err(ForwardError::Gap { row: 0, position: 1, expected: 0 }));
    assert_eq!(model.forward(&mut Batch::default(), &mut ()).unwrap().rows(), 0);
    let options = PoolOptions::new(model.kv_spec(16), 4);
    let by_block = spoiled(PoolOptions { layout: Layout::BlockMajor, ..options });
    let mut batch = Batch::default();
    let mut elsewhere = sequences(&by_block, &[16]).remove(0);
    batch.sequences.push(&mut elsewhere);
    batch.push(0, 0, &[7], true);
    let refused = model.forward(&mut batch, &mut ());
    assert!(matches!(refused, Err(ForwardError::Pool { .. })), "{refused:?}");
}

/// Looks at the cache from inside the pass.
struct Watch<'a> {
    pool: &'a blockwire::pool::BlockPool,
    layers: Vec<usize>,
}

impl LayerHook for Watch<'_> {
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
    let mut model = model("qwen3", Dtype::F32);
    let pool = pool(&model, 16, 1);
    let sequence = &mut sequences(&pool, &[16]).remove(0);
    let mut batch = Batch::new([sequence]);
    batch.push(0, 0, &[1, 2, 3], false);
    let mut watch = Watch { pool: &pool, layers: Vec::new() };
    assert_eq!(model.forward(&mut batch, &mut watch).unwrap().rows(), 0);
    assert_eq!(watch.layers, [0, 1, 2, 3]);
}
