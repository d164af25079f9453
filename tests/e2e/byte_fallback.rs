//! A tokenizer that writes what it has no piece for as bytes, one token each: characters that come out in pieces,
//! the first of them from another node than the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::client::Completion;
use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::{Model, sampled, written_once};
use crate::parity::{all, assert_parity, single_node};
use crate::start_up::copy_llama;

/// The token of byte 0.
const BYTES: u32 = 3;
const VOCAB: u32 = 512;

/// The folder of a tiny llama with such a tokenizer and a chat template, written once.
pub(crate) fn path() -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    written_once(&FOLDER, write)
}

fn write(folder: &Path) {
    copy_llama(folder);
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    let config = json!({"add_bos_token": false, "chat_template": template});
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
}

/// As SentencePiece models of the llama family are in this form: a space is "▁", one stands before each text.
fn tokenizer() -> Value {
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    // Letters, of which those after the ASCII ones take two bytes.
    let letters = ('!'..='~').chain('\u{400}'..).map(String::from);
    let pieces = special.iter().cloned().chain(bytes).chain(["▁".to_owned()]).chain(letters);
    let vocab: Map<String, Value> = pieces.zip((0..VOCAB).map(Value::from)).collect();
    assert_eq!(vocab.len(), VOCAB as usize);
    let added: Vec<Value> = (0u32..).zip(special).map(|(id, content)| json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })).collect();
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, spaces,
    ]});
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": normalizer, "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "vocab": vocab, "merges": [],
        },
    })
}

/// Texts with characters that have no piece, as completions and as chats, greedy, drawn, and drawn from nothing
/// but the first bytes of characters and those that follow them.
fn requests() -> Vec<Value> {
    let texts = ["Hi", "日本語 and 🤖", "Ωμέγα, naïve", "a\tb\n\n\u{301}c"];
    let leads = [0xce, 0xd0, 0xe2].into_iter();
    let bias: Map<String, Value> =
        leads.chain(0x90..=0x97).map(|byte| ((BYTES + byte).to_string(), json!(100))).collect();
    let bodies = texts.iter().zip(1..).flat_map(|(text, seed)| {
        let base = json!({"max_tokens": 48, "ignore_eos": true, "temperature": 0});
        let [mut completion, mut chat] = [base.clone(), base];
        completion["prompt"] = json!(text);
        chat["messages"] = json!([{"role": "user", "content": text}]);
        let mut split = sampled(completion.clone(), seed);
        split["logit_bias"] = Value::Object(bias.clone());
        let drawn = [sampled(completion.clone(), seed), sampled(chat.clone(), seed)];
        let more = (1..4).map(|more| sampled(split.clone(), seed + 10 * more));
        let more: Vec<Value> = more.collect();
        [completion, chat, split].into_iter().chain(drawn).chain(more)
    });
    bodies.collect()
}

/// Whether the first token begins a character that the second goes on with.
fn is_split(answer: &Completion) -> bool {
    let byte = |at: usize| answer.tokens[at].checked_sub(BYTES).filter(|byte| *byte < 256);
    matches!((byte(0), byte(1)), (Some(0xc2..), Some(0x80..0xc0)))
}

fn completions_match(carrier: Carrier) {
    let setup = Setup::new(Model::ByteFallback, carrier).without_prefix_cache();
    let expected = single_node(&setup, &[], &requests());
    assert!(expected.iter().any(is_split), "no character is split between the nodes");
    let whole = |answer: &Completion| is_split(answer) && !answer.text.starts_with('\u{fffd}');
    assert!(expected.iter().any(whole), "no split character comes out whole");
    assert!(expected.iter().all(|answer| answer.completion_tokens == 48));
    let cluster = Cluster::start(setup);
    assert_parity(&cluster, &requests(), &expected, all);
    cluster.finish();
}

/// Fourth criterion of the fault B30, and its third: what a family whose caches the pool holds answers.
#[test]
fn fault_b30_disaggregated_router_completions_match_single_node_byte_fallback_over_shm() {
    completions_match(Carrier::Shm);
}

#[test]
fn fault_b30_disaggregated_router_completions_match_single_node_byte_fallback_over_tcp() {
    completions_match(Carrier::Tcp4);
}
