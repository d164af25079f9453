//! A model's identity: two runtimes may share KV blocks only when theirs are equal.

use std::{collections::BTreeMap, fmt};

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    config::ModelConfig,
    weight::{Entry, WeightType},
};

/// 32 bytes that name a model by its content: configuration, tokenizer, and every tensor's name,
/// type, shape and bytes. File names and folders play no part, and neither does sharding.
///
/// The tensor bytes are condensed by XXH3-128, which catches every accident but is no defence
/// against a forger; the rest, and the tensors' digests, go through SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelFingerprint([u8; 32]);

impl ModelFingerprint {
    /// The fingerprint with these bytes, as received from a peer.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, to be sent to a peer.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Computes the fingerprint; `bytes_of` yields an entry's bytes.
    pub(super) fn compute<'a>(
        config: &ModelConfig,
        tokenizer: &[u8],
        entries: &BTreeMap<String, Entry>,
        bytes_of: impl Fn(&Entry) -> &'a [u8],
    ) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"blockwire model 1\0");
        add_config(&mut hash, config);
        hash.update(xxh3_128(tokenizer).to_le_bytes());
        for (name, entry) in entries {
            add_text(&mut hash, name);
            match &entry.ty {
                Ok(ty) => hash.update([type_code(*ty)]),
                Err(name) => add_text(&mut hash, name),
            }
            add_numbers(&mut hash, entry.shape.iter().map(|d| *d as u64));
            hash.update(xxh3_128(bytes_of(entry)).to_le_bytes());
        }
        Self(hash.finalize().into())
    }
}

impl fmt::Display for ModelFingerprint {
    /// The first eight bytes as hexadecimal digits: enough for people and logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ModelFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelFingerprint({self})")
    }
}

/// Every field in a fixed order; a pattern without `..`, so that a new field cannot be forgotten.
fn add_config(hash: &mut Sha256, config: &ModelConfig) {
    let ModelConfig {
        family,
        hidden,
        layers,
        window,
        convolution_taps,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        norm_eps,
        norm_offset,
        embedding_scale,
        attention_scale,
        activation,
        rope_inverse_frequencies,
        rope_local_inverse_frequencies,
        rope_interleaved,
        tied_head,
        context,
        bos,
        add_bos,
        eos,
    } = config;
    for name in [format!("{family:?}"), format!("{layers:?}"), format!("{activation:?}")] {
        add_text(hash, &name);
    }
    let sizes = [hidden, heads, kv_heads, head_dim, ffn, vocab, context, window, convolution_taps];
    add_numbers(hash, sizes.into_iter().map(|n| *n as u64));
    for factor in [norm_eps, norm_offset, embedding_scale, attention_scale] {
        hash.update(factor.to_le_bytes());
    }
    for frequencies in [rope_inverse_frequencies, rope_local_inverse_frequencies] {
        add_numbers(hash, frequencies.iter().map(|frequency| u64::from(frequency.to_bits())));
    }
    hash.update([*rope_interleaved, *tied_head, *add_bos].map(u8::from));
    add_numbers(hash, bos.iter().map(|id| u64::from(*id)));
    add_numbers(hash, eos.iter().map(|id| u64::from(*id)));
}

/// A byte for each type that stays the same when types are added.
fn type_code(ty: WeightType) -> u8 {
    match ty {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        WeightType::Bf16 => 2,
        WeightType::Q4_0 => 3,
        WeightType::Q4_1 => 4,
        WeightType::Q5_0 => 5,
        WeightType::Q8_0 => 6,
        WeightType::Q4K => 7,
        WeightType::Q5K => 8,
        WeightType::Q6K => 9,
    }
}

fn add_text(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

fn add_numbers(hash: &mut Sha256, numbers: impl ExactSizeIterator<Item = u64>) {
    hash.update((numbers.len() as u64).to_le_bytes());
    numbers.for_each(|n| hash.update(n.to_le_bytes()));
}
