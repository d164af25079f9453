//! The demo as an HTTP client: a streamed chat, and what the nodes' metrics say.

use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blockwire::clock;
use serde_json::{Value, json};

use crate::args::DemoArgs;

/// What came back.
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    pub(super) first_token: Duration,
    pub(super) total: Duration,
}

impl Answer {
    /// Asks over the OpenAI API and prints the text as it comes.
    pub(super) fn ask(http: &str, model: &str, args: &DemoArgs) -> Result<Self> {
        let body = json!({
            "model": model,
            "messages": [{"role": "user", "content": args.prompt}],
            "max_tokens": args.max_tokens,
            "temperature": 0,
            "stream": true,
            "return_token_ids": true,
        });
        let start = clock::now();
        let response = ureq::post(format!("{http}/v1/chat/completions")).send_json(body)?;
        let mut tokens = Vec::new();
        let mut first_token = None;
        print!("assistant  ");
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line?;
            let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
                continue;
            };
            let chunk: Value = serde_json::from_str(data)?;
            if let Some(error) = chunk.get("error") {
                bail!("the router answered: {error}");
            }
            let choice = &chunk["choices"][0];
            let ids = choice["token_ids"].as_array().into_iter().flatten();
            tokens.extend(ids.filter_map(Value::as_u64).map(|id| id as u32));
            if !tokens.is_empty() {
                first_token.get_or_insert_with(|| clock::now() - start);
            }
            print!("{}", choice["delta"]["content"].as_str().unwrap_or_default());
            std::io::stdout().flush()?;
        }
        println!();
        let first_token = first_token.context("the answer has no tokens")?;
        Ok(Self { tokens, first_token, total: clock::now() - start })
    }
}

/// The value of an unlabelled metric of a node.
pub(super) fn metric(http: &str, name: &str) -> Result<f64> {
    let text = ureq::get(format!("{http}/metrics")).call()?.into_body().read_to_string()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.with_context(|| format!("{http}/metrics has no {name}"))
}
