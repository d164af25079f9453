//! A complete llama GGUF of some KB, written from a description that tests may change.

/// Settings and tensors, in file order.
#[derive(Clone)]
pub(crate) struct TinyGguf {
    settings: Vec<(String, u32, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Default for TinyGguf {
    /// One layer, hidden 8, two heads of 4, one KV head, ffn 16, and 8 tokens of byte-level BPE.
    fn default() -> Self {
        let mut tiny = Self { settings: Vec::new(), tensors: Vec::new() };
        tiny.set_text("general.architecture", "llama");
        tiny.set_text("general.name", "Tiny");
        for (key, value) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 8),
            ("feed_forward_length", 16),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
        ] {
            tiny.set_u32(&format!("llama.{key}"), value);
        }
        tiny.set("llama.attention.layer_norm_rms_epsilon", 6, 1e-5f32.to_le_bytes().to_vec());
        tiny.set_text("tokenizer.ggml.model", "gpt2");
        tiny.set_text("tokenizer.ggml.pre", "gpt-2");
        tiny.set_texts("tokenizer.ggml.tokens", &["<|a|>", "<|b|>", "h", "i", "hi", "Ġ", "Ã", "©"]);
        tiny.set_types(&[3, 3, 1, 1, 1, 1, 1, 1]);
        tiny.set_texts("tokenizer.ggml.merges", &["h i"]);
        tiny.set_u32("tokenizer.ggml.bos_token_id", 0);
        tiny.set_u32("tokenizer.ggml.eos_token_id", 1);
        for (name, shape) in [
            ("token_embd", &[8, 8][..]),
            ("output_norm", &[8]),
            ("blk.0.attn_norm", &[8]),
            ("blk.0.attn_q", &[8, 8]),
            ("blk.0.attn_k", &[8, 4]),
            ("blk.0.attn_v", &[8, 4]),
            ("blk.0.attn_output", &[8, 8]),
            ("blk.0.ffn_norm", &[8]),
            ("blk.0.ffn_gate", &[8, 16]),
            ("blk.0.ffn_up", &[8, 16]),
            ("blk.0.ffn_down", &[16, 8]),
        ] {
            let numbers = shape.iter().product::<u64>();
            let bytes = (0..numbers).flat_map(|i| (i as f32 / 64.0).to_le_bytes()).collect();
            tiny.add_tensor(&format!("{name}.weight"), shape, 0, bytes);
        }
        tiny
    }
}

impl TinyGguf {
    /// Without settings and tensors.
    pub(crate) fn empty() -> Self {
        Self { settings: Vec::new(), tensors: Vec::new() }
    }

    /// Sets an f32.
    pub(crate) fn set_f32(&mut self, key: &str, value: f32) {
        self.set(key, 6, value.to_le_bytes().to_vec());
    }

    /// Sets a value given by its type number and bytes, in place of an earlier one.
    pub(crate) fn set(&mut self, key: &str, ty: u32, bytes: Vec<u8>) {
        match self.settings.iter_mut().find(|(k, ..)| k == key) {
            Some(setting) => *setting = (key.to_owned(), ty, bytes),
            None => self.settings.push((key.to_owned(), ty, bytes)),
        }
    }

    /// Sets a text.
    pub(crate) fn set_text(&mut self, key: &str, text: &str) {
        self.set(key, 8, string(text));
    }

    /// Sets a u32.
    pub(crate) fn set_u32(&mut self, key: &str, value: u32) {
        self.set(key, 4, value.to_le_bytes().to_vec());
    }

    /// Sets a yes or no.
    pub(crate) fn set_flag(&mut self, key: &str, value: bool) {
        self.set(key, 7, vec![value.into()]);
    }

    /// Sets an array of texts.
    pub(crate) fn set_texts(&mut self, key: &str, texts: &[&str]) {
        self.set(key, 9, array(8, texts.len(), texts.iter().flat_map(|text| string(text))));
    }

    /// Sets the tokens' types.
    pub(crate) fn set_types(&mut self, types: &[i32]) {
        let bytes = types.iter().flat_map(|ty| ty.to_le_bytes());
        self.set("tokenizer.ggml.token_type", 9, array(5, types.len(), bytes));
    }

    /// Sets the tokens' scores.
    pub(crate) fn set_scores(&mut self, scores: &[f32]) {
        let bytes = scores.iter().flat_map(|score| score.to_le_bytes());
        self.set("tokenizer.ggml.scores", 9, array(6, scores.len(), bytes));
    }

    /// Removes a setting.
    pub(crate) fn unset(&mut self, key: &str) {
        self.settings.retain(|(k, ..)| k != key);
    }

    /// Adds a tensor; `shape` is innermost first, as in the file.
    pub(crate) fn add_tensor(&mut self, name: &str, shape: &[u64], ty: u32, bytes: Vec<u8>) {
        self.tensors.push((name.to_owned(), shape.to_vec(), ty, bytes));
    }

    /// Removes a tensor.
    pub(crate) fn remove_tensor(&mut self, name: &str) {
        self.tensors.retain(|(n, ..)| n != name);
    }

    /// A tensor's bytes.
    pub(crate) fn tensor_bytes(&self, name: &str) -> &[u8] {
        &self.tensors.iter().find(|(n, ..)| n == name).unwrap().3
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.settings.len() as u64).to_le_bytes());
        for (key, ty, bytes) in &self.settings {
            file.extend(string(key));
            file.extend(ty.to_le_bytes());
            file.extend(bytes);
        }
        let mut data = Vec::new();
        for (name, shape, ty, bytes) in &self.tensors {
            data.resize(data.len().next_multiple_of(32), 0);
            file.extend(string(name));
            file.extend((shape.len() as u32).to_le_bytes());
            file.extend(shape.iter().flat_map(|d| d.to_le_bytes()));
            file.extend(ty.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
        }
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data);
        file
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn array(ty: u32, count: usize, elements: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut bytes = ty.to_le_bytes().to_vec();
    bytes.extend((count as u64).to_le_bytes());
    bytes.extend(elements);
    bytes
}
