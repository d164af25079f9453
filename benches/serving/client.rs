//! One streamed completion, and when its tokens came.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use blockwire::clock;
use serde_json::{Value, json};

/// What a caller saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) first_token: Duration,
    /// Between each token and the one before it.
    pub(crate) between: Vec<Duration>,
}

/// Asks, and reads to the end.
///
/// # Panics
/// When the answer is not whole.
pub(crate) fn ask(http: &str, prompt: &[u32], answer: u32) -> Seen {
    let body = json!({
        "prompt": prompt, "max_tokens": answer, "ignore_eos": true, "temperature": 0,
        "stream": true, "return_token_ids": true,
    });
    let begin = clock::now();
    let mut response =
        ureq::post(format!("{http}/v1/completions")).send_json(&body).expect("an answer");
    let mut came = Vec::new();
    for line in BufReader::new(response.body_mut().as_reader()).lines() {
        let line = line.expect("a whole answer");
        let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
            continue;
        };
        let event: Value = serde_json::from_str(data).expect("JSON");
        assert!(event.get("error").is_none(), "{event}");
        let tokens = event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
        came.extend(std::iter::repeat_n(clock::now() - begin, tokens));
    }
    assert_eq!(came.len(), answer as usize, "tokens of the answer");
    Seen { first_token: came[0], between: came.windows(2).map(|two| two[1] - two[0]).collect() }
}
