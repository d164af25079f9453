//! Arbitrary bytes as the body of a request to the OpenAI API, from the router of paths to the answer, over
//! a backend that repeats the prompt.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use blockwire_runtime::chat::ChatTemplate;
use blockwire_serving::backend::{
    Backend, FinishReason, GenerateFuture, GenerateRequest, Generation, ModelCard, Readiness,
    TokenEvent, TokenLogprobs, Usage,
};
use blockwire_serving::http::{FrontOptions, FrontState, TextCodec, TextDecoder, TextError, app};
use blockwire_serving::metrics::Metrics;
use blockwire_serving::status::BackendStatus;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tower::ServiceExt;

#[path = "../../http/tests/bytewise.rs"]
mod bytewise;

use bytewise::Bytewise;

const CONTEXT: usize = 64;
/// Longest answer: every choice of the most that may be asked for, with log probabilities.
const ANSWER_LEN_MAX: usize = 64 << 20;
const WATCHDOG: Duration = Duration::from_secs(30);
const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}\
                        {% if add_generation_prompt %}a:{% endif %}";

/// Posts the bytes to both endpoints.
///
/// # Panics
/// When an answer is neither tokens nor an error in OpenAI's form, and when it says that the server is at
/// fault.
pub(crate) fn play(bytes: &[u8]) {
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let (status, text) = runtime().block_on(async {
            let answer = tokio::time::timeout(WATCHDOG, post(path, bytes));
            answer.await.expect("the answer hangs")
        });
        if text.starts_with("data: ") {
            assert!(text.ends_with("data: [DONE]\n\n"), "a stream without an end: {text}");
            continue;
        }
        let answer: Value = serde_json::from_str(&text).expect("an answer is JSON");
        match status {
            StatusCode::OK => assert!(answer["choices"][0].is_object(), "{answer}"),
            _ if status.is_client_error() => {
                assert!(answer["error"]["message"].is_string(), "{answer}");
            }
            _ => panic!("{status}: {answer}"),
        }
    }
}

async fn post(path: &str, body: &[u8]) -> (StatusCode, String) {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.to_vec())).expect("a request");
    let response = front().oneshot(request).await.expect("the front answers");
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, ANSWER_LEN_MAX).await.expect("a whole answer");
    (parts.status, String::from_utf8(bytes.to_vec()).expect("text"))
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    })
}

fn front() -> Router {
    static FRONT: OnceLock<Router> = OnceLock::new();
    let made = FRONT.get_or_init(|| {
        let template = ChatTemplate::new(TEMPLATE, "", "").expect("a template");
        let options = FrontOptions { body_len_max: 1 << 20, ..FrontOptions::default() };
        let (backend, text) = (Arc::new(Echo), Arc::new(Bytewise));
        app(FrontState::new(backend, text, Some(template), Metrics::new(), options))
    });
    made.clone()
}

/// Repeats the prompt, as far as the budget goes, and checks what the front promises.
struct Echo;

impl Backend for Echo {
    fn models(&self) -> Vec<ModelCard> {
        vec![ModelCard {
            id: "tiny".to_owned(),
            aliases: vec!["default".to_owned()],
            context_len: CONTEXT,
            vocab: 257,
            created: 1,
        }]
    }

    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    fn status(&self) -> BackendStatus {
        BackendStatus::default()
    }

    fn generate(&self, request: GenerateRequest) -> GenerateFuture<'_> {
        check(&request);
        let (sender, receiver) = mpsc::unbounded_channel();
        let ids: Vec<u32> = request.prompt.iter().copied().cycle().take(8).collect();
        let ids = &ids[..ids.len().min(request.max_tokens as usize)];
        for id in ids {
            let top = |n: u8| (0..u32::from(n)).map(|i| (i + 97, f32::NEG_INFINITY)).collect();
            let logprob = request.logprobs.map(|n| TokenLogprobs { logprob: -0.5, top: top(n) });
            sender.send(TokenEvent::Token { id: *id, logprob }).expect("somebody listens");
        }
        let usage = Usage {
            prompt_tokens: request.prompt.len() as u32,
            completion_tokens: ids.len() as u32,
            cached_tokens: 0,
        };
        let finished = TokenEvent::Finished { reason: FinishReason::Length, usage };
        sender.send(finished).expect("somebody listens");
        Box::pin(async { Ok(Generation::new(receiver)) })
    }
}

/// What a backend may count on.
fn check(request: &GenerateRequest) {
    let GenerateRequest { prompt, max_tokens, min_tokens, sampling, .. } = request;
    assert!(!prompt.is_empty() && prompt.iter().all(|id| *id < 257), "{request:?}");
    assert!(*max_tokens >= 1 && prompt.len() + *max_tokens as usize <= CONTEXT, "{request:?}");
    assert!(min_tokens <= max_tokens, "{request:?}");
    let numbers = [
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    ];
    let bias = sampling.logit_bias.values();
    assert!(numbers.iter().chain(bias).all(|number| number.is_finite()), "{request:?}");
    assert!(sampling.temperature >= 0.0 && sampling.top_p > 0.0, "{request:?}");
    assert!(sampling.repetition_penalty > 0.0, "{request:?}");
}
