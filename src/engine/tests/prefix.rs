//! Replays the vectors of `manual/prefix.md`, which another program wrote.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use blockwire::pool::{PrefixChain, PrefixRoot};

const MANUAL: &str = include_str!("../manual/prefix.md");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn fault_b27_names_of_blocks_are_those_of_the_manual() {
    let vectors = MANUAL.split("```vectors\n").nth(1).and_then(|rest| rest.split("```").next());
    let model: Vec<u8> = (0..32).collect();
    let mut computed = String::new();
    for (name, adapter, salt) in
        [("plain", "", ""), ("salted", "", "tenant"), ("adapted", "lora", "tenant")]
    {
        let root = PrefixRoot::new(&model, adapter, salt);
        writeln!(computed, "{name} root: {}", hex(root.as_bytes())).unwrap();
        let runs: [(u32, Vec<u32>); 2] = [(4, (0..9).collect()), (1, vec![0, u32::MAX])];
        for (block_tokens, tokens) in runs {
            let mut chain = PrefixChain::new(root, block_tokens);
            for (index, key) in chain.keys(&tokens).iter().enumerate() {
                let key = hex(key.as_bytes());
                writeln!(computed, "{name} {block_tokens} {index}: {key}").unwrap();
            }
        }
    }
    assert_eq!(vectors.unwrap(), computed, "blocks have other names: say so in the changelog");
}
