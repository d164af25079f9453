//! Checkpoints that MLX quantised, made here of the fixtures by MLX itself.

use std::{collections::BTreeMap, fs, path::Path};

use blockwire::{
    handoff::{ProbeError, ProbeTarget, probe_block_geometry},
    pool::{Dtype, KvSequence, SegmentSpec},
};
use half::bf16;
use mlx_rs::{Array, ops};
use safetensors::{Dtype as Stored, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use super::{FAMILIES, pool, prompt};
use crate::{
    cpu::{CpuLoadError, CpuModel, CpuOptions},
    files::{LoadError, ModelFiles},
    mlx::{MlxModel, MlxOptions},
    model::{Batch, ForwardError, Model},
    testing::{
        fixture,
        sequences::{prefill, sequences},
    },
};

/// A stored tensor.
type Part = (Stored, Vec<usize>, Vec<u8>);

fn floats(array: &Array) -> Part {
    let array = array.as_dtype(mlx_rs::Dtype::Bfloat16).unwrap();
    let bytes = array.as_slice::<bf16>().iter().flat_map(|number| number.to_le_bytes());
    (Stored::BF16, shape(&array), bytes.collect())
}

fn shape(array: &Array) -> Vec<usize> {
    array.shape().iter().map(|len| *len as usize).collect()
}

fn write(folder: &Path, config: &Value, parts: &BTreeMap<String, Part>) {
    let views = parts.iter().map(|(name, (ty, shape, bytes))| {
        (name, TensorView::new(*ty, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// A fixture in groups, and the same numbers plain.
fn quantised(family: &str, group_len: i32, bits: i32) -> [tempfile::TempDir; 2] {
    let bytes = fs::read(fixture(family).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (mut grouped, mut plain) = (BTreeMap::new(), BTreeMap::new());
    for (name, tensor) in tensors.iter() {
        assert_eq!(tensor.dtype(), Stored::BF16);
        let shape: Vec<_> = tensor.shape().iter().map(|len| *len as i32).collect();
        let numbers: Vec<_> =
            tensor.data().as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect();
        let array = Array::from_slice(&numbers, &shape);
        if shape.len() != 2 {
            grouped.insert(name.to_owned(), floats(&array));
            plain.insert(name.to_owned(), floats(&array));
            continue;
        }
        let (words, scales, biases) = ops::quantize(&array, group_len, bits).unwrap();
        let stem = name.strip_suffix("weight").unwrap();
        let packed = words.as_slice::<u32>().iter().flat_map(|word| word.to_le_bytes()).collect();
        grouped.insert(name.to_owned(), (Stored::U32, self::shape(&words), packed));
        grouped.insert(format!("{stem}scales"), floats(&scales));
        grouped.insert(format!("{stem}biases"), floats(&biases));
        let [scales, biases] =
            [scales, biases].map(|array| array.as_dtype(mlx_rs::Dtype::Float32).unwrap());
        let back = ops::dequantize(&words, &scales, &biases, group_len, bits).unwrap();
        let numbers = back.as_slice::<f32>().iter().flat_map(|number| number.to_le_bytes());
        plain.insert(name.to_owned(), (Stored::F32, self::shape(&back), numbers.collect()));
    }
    let config = fs::read(fixture(family).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    write(folders[1].path(), &config, &plain);
    config["quantization"] = json!({"group_size": group_len, "bits": bits});
    write(folders[0].path(), &config, &grouped);
    folders
}

fn open(folder: &tempfile::TempDir) -> ModelFiles {
    ModelFiles::open(folder.path()).unwrap()
}

#[test]
fn groups_are_the_numbers_that_they_stand_for() {
    for (family, group_len, bits) in
        FAMILIES.into_iter().flat_map(|family| [(family, 64, 4), (family, 32, 8), (family, 128, 6)])
    {
        let logits = quantised(family, group_len, bits).map(|folder| {
            let options = MlxOptions { kv_dtype: Dtype::F32, ..MlxOptions::new() };
            let mut model = MlxModel::load(&open(&folder), options).unwrap();
            let pool = pool(&model, 16, 8);
            let sequence = &mut sequences(&pool, &[100]).remove(0);
            prefill(&mut model, sequence, &prompt(0), usize::MAX).concat()
        });
        let pairs = logits[0].iter().zip(&logits[1]);
        let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference < 1e-3, "{family}, {bits} bits of {group_len}: {difference}");
    }
}

#[test]
fn other_runtimes_and_other_groups_are_refused_by_name() {
    let [grouped, plain] = quantised("llama", 64, 4);
    assert_ne!(open(&grouped).fingerprint(), open(&plain).fingerprint());
    let refused = CpuModel::load(&open(&grouped), CpuOptions::new()).unwrap_err();
    let CpuLoadError::Files(refused) = refused else { panic!("{refused}") };
    assert!(matches!(refused, LoadError::UnsupportedTensorType { .. }));
    assert!(refused.to_string().contains("--runtime mlx"), "{refused}");
    let path = grouped.path().join("config.json");
    let right: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (wrong, told) in [
        (json!({"group_size": 64, "bits": 4, "mode": "mxfp4"}), "mxfp4"),
        (json!({"group_size": 64, "bits": 7}), "quantization"),
        (json!({"group_size": 64, "bits": 4, "lm_head": {"bits": 8}}), "lm_head"),
        (json!({"group_size": 32, "bits": 4}), "expected shape [512, 8]"),
        (Value::Null, "U32"),
    ] {
        let mut config = right.clone();
        config["quantization"] = wrong;
        fs::write(&path, config.to_string()).unwrap();
        let refused = ModelFiles::open(grouped.path()).unwrap_err().to_string();
        assert!(refused.contains(told), "{refused}");
    }
}

/// Says what the model says; the probe sees what was written.
struct Probed(MlxModel);

impl ProbeTarget for Probed {
    type Error = ForwardError;

    fn run_probe_token(
        &mut self,
        sequence: &mut KvSequence,
    ) -> Result<Vec<Vec<SegmentSpec>>, ForwardError> {
        let mut batch = Batch::new([sequence]);
        batch.push(0, 0, &[7], false);
        self.0.forward(&mut batch, &mut ())?;
        Ok(self.0.kv_spec(16).layers.into_iter().map(|layer| layer.segments).collect())
    }
}

#[test]
fn a_probe_finds_a_cache_of_16_bits_under_a_checkpoint_of_4() {
    let [grouped, _] = quantised("llama", 64, 4);
    let load = |kv_dtype| {
        let options =
            MlxOptions { kv_dtype, compute_dtype: Some(Dtype::Bf16), ..MlxOptions::new() };
        Probed(MlxModel::load(&open(&grouped), options).unwrap())
    };
    let mut model = load(Dtype::Bf16);
    let its_own = pool(&model.0, 16, 2);
    let geometry = probe_block_geometry(&its_own, &mut model).unwrap();
    let segments = geometry.spec().layers.iter().flat_map(|layer| &layer.segments);
    assert!(segments.clone().count() == 8 && segments.clone().all(|s| s.dtype == Dtype::Bf16));
    let refused = probe_block_geometry(&its_own, &mut load(Dtype::F16)).unwrap_err();
    assert!(matches!(&refused, ProbeError::Run(why) if why.contains("2x16 f16")), "{refused}");
}
