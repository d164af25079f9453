//! The whole front, from a request's bytes to an answer's, over a backend that plays a script.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use blockwire_runtime::chat::ChatTemplate;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt;

use super::*;
use crate::backend::{
    FinishReason, GenerateFuture, GenerateRequest, Generation, Readiness, SamplingParams, Started,
    TokenEvent, TokenLogprobs, Usage,
};

use crate::status::BackendStatus;

mod answers;
mod bytewise;
mod disconnects;
mod live;
mod refusals;
mod streams;
mod typed;

use bytewise::Bytewise;

/// Ends a text, and has none itself.
const EOS: u32 = 256;
const CONTEXT: usize = 64;

/// Answers every prompt with `text` and then [`EOS`], as far as the budget goes.
struct Scripted {
    text: String,
    /// What it says first, and takes back.
    void: &'static str,
    /// What to do instead, or after so many tokens.
    refuse: Option<GenerateError>,
    fail_after: Option<(usize, GenerateError)>,
    /// Generate until cancelled.
    endless: bool,
    readiness: Readiness,
    seen: Mutex<Vec<GenerateRequest>>,
    live: Arc<AtomicUsize>,
}

impl Scripted {
    fn saying(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            void: "",
            refuse: None,
            fail_after: None,
            endless: false,
            readiness: Readiness::Ready,
            seen: Mutex::default(),
            live: Arc::default(),
        }
    }

    fn requests(&self) -> Vec<GenerateRequest> {
        self.seen.lock().unwrap().clone()
    }

    fn events(&self, request: &GenerateRequest) -> Vec<TokenEvent> {
        let started = Started {
            cached_tokens: 2,
            notes: vec![("route", "single".to_owned())],
            ..Started::default()
        };
        let mut events = vec![TokenEvent::Started(started)];
        if !self.void.is_empty() {
            let void = self.void.bytes().map(u32::from);
            events.extend(void.map(|id| TokenEvent::Token { id, logprob: None }));
            events.push(TokenEvent::Started(Started { anew: true, ..Started::default() }));
        }
        let ids = self.text.bytes().map(u32::from).chain([EOS]);
        let ids: Vec<u32> = ids.take(request.max_tokens as usize).collect();
        for (index, id) in ids.iter().enumerate() {
            if let Some((_, error)) = self.fail_after.as_ref().filter(|(at, _)| *at == index) {
                events.push(TokenEvent::Failed(error.clone()));
                return events;
            }
            let top = |n: u8| (0..u32::from(n)).map(|i| (i + 97, -(i as f32))).collect();
            let logprob = request.logprobs.map(|n| TokenLogprobs { logprob: -0.5, top: top(n) });
            events.push(TokenEvent::Token { id: *id, logprob });
        }
        let reason = match ids.last() {
            Some(&EOS) => FinishReason::Stop,
            _ => FinishReason::Length,
        };
        let usage = Usage {
            prompt_tokens: request.prompt.len() as u32,
            completion_tokens: ids.len() as u32,
            cached_tokens: 2,
        };
        events.push(TokenEvent::Finished { reason, usage });
        events
    }
}

impl Backend for Scripted {
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
        self.readiness.clone()
    }

    fn status(&self) -> BackendStatus {
        BackendStatus::default()
    }

    fn generate(&self, request: GenerateRequest) -> GenerateFuture<'_> {
        Box::pin(async move {
            self.seen.lock().unwrap().push(request.clone());
            if let Some(error) = &self.refuse {
                return Err(error.clone());
            }
            let (sender, receiver) = mpsc::unbounded_channel();
            self.live.fetch_add(1, SeqCst);
            let (live, events, endless) = (self.live.clone(), self.events(&request), self.endless);
            tokio::spawn(async move {
                if endless {
                    while sender.send(TokenEvent::Token { id: 97, logprob: None }).is_ok() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                } else {
                    events.into_iter().for_each(|event| drop(sender.send(event)));
                    sender.closed().await;
                }
                live.fetch_sub(1, SeqCst);
            });
            Ok(Generation::new(receiver))
        })
    }
}

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}\
                        {% if add_generation_prompt %}a:{% endif %}";

struct Front {
    backend: Arc<Scripted>,
    state: FrontState,
    app: Router,
}

impl Front {
    fn new(backend: Scripted) -> Self {
        Self::with_options(backend, FrontOptions::default())
    }

    fn with_options(backend: Scripted, options: FrontOptions) -> Self {
        let backend = Arc::new(backend);
        let template = ChatTemplate::new(TEMPLATE, "", "").unwrap();
        let text = Arc::new(Bytewise);
        let metrics = Metrics::new();
        let state = FrontState::new(backend.clone(), text, Some(template), metrics, options);
        Self { backend, app: app(state.clone()), state }
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 20);
        let bytes = tokio::time::timeout(Duration::from_secs(20), bytes).await.unwrap().unwrap();
        (parts.status, parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Posts JSON text.
    async fn post_text(&self, path: &str, body: &str) -> (StatusCode, Value) {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        let (status, _, text) = self.send(request.body(body.to_owned().into()).unwrap()).await;
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}")))
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.post_text(path, &body.to_string()).await
    }

    async fn complete(&self, body: Value) -> Value {
        let (status, answer) = self.post("/v1/completions", &body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    async fn chat(&self, mut body: Value) -> Value {
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
        let (status, answer) = self.post("/v1/chat/completions", &body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    /// The data of all events of a stream but the final `[DONE]`.
    async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        let (status, headers, text) =
            self.send(request.body(body.to_string().into()).unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        assert_eq!(headers[header::CONTENT_TYPE], "text/event-stream");
        let mut events: Vec<&str> =
            text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{text}");
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Waits until no generation is alive.
    async fn idle(&self) {
        let idle = async {
            while self.backend.live.load(SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), idle).await.expect("a generation leaked");
    }
}
