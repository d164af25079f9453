//! Where the corpus comes from: what nodes and clients really say.

use std::time::Duration;

use blockwire::clock;
use blockwire::handoff::StateSegment;
use blockwire_serving::backend::{
    FinishReason, GenerateError, GenerateRequest, SamplingParams, TokenEvent, TokenLogprobs, Usage,
};
use blockwire_serving::protocol::{
    DecodeMetaFrame, FirstTokenFrame, Phase, PrefillRequestFrame, ResultFrame,
};
use prost::Message;
use serde_json::json;
use uuid::Uuid;

type Seeds = Vec<(&'static str, Vec<u8>)>;

pub(crate) fn frames() -> Seeds {
    let state = StateSegment { family: "lfm2".into(), bytes: vec![1, 2, 3].into() };
    let request = GenerateRequest {
        id: Uuid::from_u128(1),
        prompt: vec![1, 2, 300_000],
        max_tokens: 7,
        min_tokens: 2,
        sampling: SamplingParams {
            temperature: 0.7,
            seed: u64::MAX,
            logit_bias: [(5, -1.5)].into(),
            ..SamplingParams::default()
        },
        ignore_eos: true,
        logprobs: Some(3),
        // Over, so that what is left is the same number each time: none.
        deadline: Some(clock::now() - Duration::from_secs(1)),
        cache_salt: None,
        retractable: false,
    };
    let (decode, router) = (Uuid::from_u128(2), Uuid::from_u128(3));
    let logprob = Some(TokenLogprobs { logprob: -0.5, top: vec![(5, -0.5), (6, -2.0)] });
    let result = |event| ResultFrame::carrying(Phase::Continuation, event).encode_to_vec();
    let usage = Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: 1 };
    let too_long = GenerateError::TooLong { tokens: 9, limit: 8 };
    vec![
        ("prefill", PrefillRequestFrame::new(&request, decode, router).encode_to_vec()),
        ("decode", DecodeMetaFrame::new(&request, router, None).encode_to_vec()),
        ("first_token", FirstTokenFrame::new(5).encode_to_vec()),
        ("model_state", DecodeMetaFrame::new(&request, router, Some(state)).encode_to_vec()),
        ("token", result(TokenEvent::Token { id: 5, logprob })),
        ("finished", result(TokenEvent::Finished { reason: FinishReason::Stop, usage })),
        ("failed", result(TokenEvent::Failed(too_long))),
        ("role", b"prefill".to_vec()),
    ]
}

pub(crate) fn bodies() -> Seeds {
    let named = [
        ("completion", json!({"model": "tiny", "prompt": "Hi \u{1F600}", "max_tokens": 5})),
        ("tokens", json!({"prompt": [72, 105], "max_tokens": 5, "echo": false, "logprobs": 2})),
        ("batch", json!({"prompt": [[72], [105, 256]], "n": 2, "best_of": 2, "seed": 7})),
        ("texts", json!({"prompt": ["a", "b"], "max_tokens": 3, "stream": true})),
        (
            "chat",
            json!({
                "model": "default", "stream": true, "stream_options": {"include_usage": true},
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                ],
            }),
        ),
        (
            "everything",
            json!({
                "prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}],
                "max_completion_tokens": 4, "min_tokens": 1, "temperature": 0.7, "top_p": 0.9,
                "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1, "frequency_penalty": -2.0,
                "presence_penalty": 2.0, "logit_bias": {"65": -100, "66": 1.5}, "seed": -1,
                "n": 3, "stop": ["\n", "User:"], "ignore_eos": true, "return_token_ids": true,
                "top_logprobs": 3, "chat_template_kwargs": {"enable_thinking": false},
                "add_generation_prompt": true, "tool_choice": "none", "tools": [],
                "response_format": {"type": "text"}, "modalities": ["text"], "user": "somebody",
            }),
        ),
        ("tools", json!({"messages": [], "tools": [{"type": "function"}]})),
        ("array", json!([{"prompt": "Hi"}])),
    ];
    named.into_iter().map(|(name, body)| (name, body.to_string().into_bytes())).collect()
}
