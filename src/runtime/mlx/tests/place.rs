//! The pool stays where it is, and blocks of other pools are read where they are.

use blockwire::pool::{BlockPool, Dtype, KvSequence, Layout, Part, PoolOptions, TransferStats};
use mlx_rs::Array;

use super::{FAMILIES, model, pool, prompt, spoiled};
use crate::{
    cpu::{CpuModel, CpuOptions},
    files::ModelFiles,
    mlx::{MlxModel, pool::Pool},
    model::{Batch, ForwardError, Model},
    testing::{
        fixture,
        sequences::{bits, cache_bytes, lend, likeliest, prefill, sequences},
    },
};

/// Numbers that look random, and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// Every layer's array begins where the pool's layer does.
fn assert_in_place(model: &MlxModel, pool: &BlockPool) {
    let addresses = model.pool.as_ref().unwrap().layers().addresses();
    for (layer, address) in addresses.into_iter().enumerate() {
        let plane = pool.plane(layer, Part::Key).unwrap();
        assert_eq!(address, pool.base().addr().get() + plane.offset, "layer {layer}");
    }
}

/// A sequence of 20 to 50 tokens, whose first 16 lie in another pool if `adopts`.
fn start(
    model: &mut MlxModel,
    pool: &BlockPool,
    lender: &KvSequence,
    dice: &mut Dice,
) -> KvSequence {
    let blocks = pool.try_reserve(4).unwrap();
    let mut sequence = match dice.below(2) {
        0 => KvSequence::from_blocks(pool, Vec::new(), blocks, 0).unwrap(),
        _ => KvSequence::from_adopted(pool, lend(lender), blocks, 16).unwrap(),
    };
    let tokens = prompt(dice.below(9) as u32)[..4 + dice.below(30)].to_vec();
    prefill(model, &mut sequence, &tokens, 1 + dice.below(40));
    sequence
}

#[test]
fn a_thousand_steps_with_readers_cancels_and_handoffs_leave_the_pool_in_place() {
    let mut model = model("llama", Dtype::F16);
    let [home, elsewhere] = [48, 2].map(|blocks| pool(&model, 16, blocks));
    let mut lender = sequences(&elsewhere, &[16]).remove(0);
    prefill(&mut model, &mut lender, &prompt(3)[..16], usize::MAX);
    lender.seal_full();
    let (mut running, mut dice) = (Vec::new(), Dice(7));
    for _ in 0..1_000 {
        match dice.below(8) {
            0 if running.len() < 6 => running.push(start(&mut model, &home, &lender, &mut dice)),
            // Cancelled.
            1 if !running.is_empty() => drop(running.swap_remove(dice.below(running.len()))),
            // Handed over: read by others while the rest goes on.
            2 if !running.is_empty() => {
                let at = dice.below(running.len());
                running[at].seal_full();
                let blocks = home.try_reserve(usize::from(running[at].adopted().is_some()));
                running[at].bring_home(blocks.unwrap(), &TransferStats::default()).unwrap();
            }
            _ => {
                running.retain(|sequence: &KvSequence| sequence.len() < sequence.capacity());
                let mut batch = Batch::new(&mut running);
                for index in 0..batch.sequences.len() {
                    let position = batch.sequences[index].len();
                    batch.push(index, position, &[dice.below(512) as u32], index % 2 == 0);
                }
                model.forward(&mut batch, &mut ()).unwrap();
            }
        }
        if model.pool.as_ref().is_some_and(|known| known.is(&home)) {
            assert_in_place(&model, &home);
        }
    }
    assert!(model.pool.as_ref().unwrap().is(&home));
    drop(running);
    assert_eq!(home.accounting().free, 48);
}

#[test]
fn a_write_that_would_copy_the_pool_is_an_error_and_the_next_one_is_in_place() {
    let mut model = model("llama", Dtype::F32);
    let pool = pool(&model, 16, 2);
    let sequence = &mut sequences(&pool, &[32]).remove(0);
    prefill(&mut model, sequence, &prompt(0)[..4], usize::MAX);
    let before = cache_bytes(sequence);
    let second_owner: Array = model.pool.as_ref().unwrap().layers().array(2).clone();
    let mut batch = Batch::new([&mut *sequence]);
    batch.push(0, 4, &[1], true);
    let refused = model.forward(&mut batch, &mut ());
    assert_eq!(refused, Err(ForwardError::PoolCopied { layer: 2 }));
    assert_eq!((sequence.len(), cache_bytes(sequence)), (4, before));
    drop(second_owner);
    prefill(&mut model, sequence, &prompt(0)[4..9], usize::MAX);
    assert_in_place(&model, &pool);
}

#[test]
fn an_array_keeps_the_pages_below_it() {
    let model = model("llama", Dtype::F32);
    let pool = pool(&model, 16, 2);
    let region = std::sync::Arc::downgrade(pool.region());
    let arrays = Pool::new(&pool).unwrap();
    drop(pool);
    assert!(region.upgrade().is_some());
    drop(arrays);
    assert!(region.upgrade().is_none());
}

#[test]
fn it_does_not_matter_in_whose_pool_a_prefix_lies() {
    for family in FAMILIES {
        let mut model = model(family, Dtype::F16);
        let pools = [12, 9].map(|blocks| pool(&model, 16, blocks));
        let mut whole = sequences(&pools[0], &[83]).remove(0);
        prefill(&mut model, &mut whole, &prompt(0)[..64], usize::MAX);
        whole.seal_full();
        let expected = prefill(&mut model, &mut whole, &prompt(0)[64..], 7);
        whole.set_len(64);
        for home in [0, 1, 4] {
            let own = pools[1].try_reserve(2).unwrap();
            let mut sequence = KvSequence::from_adopted(&pools[1], lend(&whole), own, 64).unwrap();
            let blocks = pools[1].try_reserve(home).unwrap();
            sequence.bring_home(blocks, &TransferStats::default()).unwrap();
            let rest = prefill(&mut model, &mut sequence, &prompt(0)[64..], 7);
            assert_eq!(bits(&rest), bits(&expected), "{family}, {home} blocks at home");
            assert!(sequence.is_intact());
        }
    }
}

#[test]
fn what_the_cpu_backend_computed_goes_on_here() {
    for family in FAMILIES {
        let files = ModelFiles::open(fixture(family)).unwrap();
        let mut cpu = CpuModel::load(&files, CpuOptions::new()).unwrap();
        let mut mlx = model(family, Dtype::F16);
        let theirs = spoiled(PoolOptions {
            layout: Layout::BlockMajor,
            ..PoolOptions::new(cpu.kv_spec(16), 8)
        });
        let ours = pool(&mlx, 16, 4);
        let mut whole = sequences(&theirs, &[100]).remove(0);
        prefill(&mut cpu, &mut whole, &prompt(0)[..64], usize::MAX);
        whole.seal_full();
        let own = ours.try_reserve(2).unwrap();
        let mut sequence = KvSequence::from_adopted(&ours, lend(&whole), own, 64).unwrap();
        let expected = prefill(&mut cpu, &mut whole, &prompt(0)[64..], usize::MAX);
        let found = prefill(&mut mlx, &mut sequence, &prompt(0)[64..], usize::MAX);
        let tokens =
            |logits: &[Vec<f32>]| -> Vec<_> { logits.iter().map(|row| likeliest(row)).collect() };
        assert_eq!(tokens(&found), tokens(&expected), "{family}");
    }
}
