//! HTTP as a caller sees it: one connection a request, so that none is left over in the end.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::watchdog;

/// A generation as the API told it.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) finish: String,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) cached_tokens: u64,
}

impl PartialEq for Completion {
    /// Whether both say the same. What of it was cached depends on what was asked before.
    fn eq(&self, other: &Self) -> bool {
        let said = |one: &Self| {
            let counts = (one.prompt_tokens, one.completion_tokens);
            (one.tokens.clone(), one.text.clone(), one.finish.clone(), counts)
        };
        said(self) == said(other)
    }
}

/// An answer that is no success: its status, and the body or the error event of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_idle_connections(0)
        .timeout_connect(Some(Duration::from_secs(30)))
        .build();
    config.into()
}

/// Status and body of a GET.
pub(crate) fn get(url: &str) -> (u16, String) {
    let mut response = agent().get(url).call().unwrap_or_else(|error| panic!("{url}: {error}"));
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

/// Status and body of a POST of anything.
pub(crate) fn post(url: &str, content_type: &str, body: &[u8]) -> (u16, Value) {
    let sent = agent().post(url).header("content-type", content_type).send(body);
    let mut response = sent.unwrap_or_else(|error| panic!("{url}: {error}"));
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Asks for a completion of token ids or text, or of a chat where `body` has messages.
pub(crate) fn ask(http: &str, body: &Value) -> Result<Completion, Failure> {
    let chat = body.get("messages").is_some();
    let path = if chat { "chat/completions" } else { "completions" };
    let mut body = body.clone();
    body["return_token_ids"] = json!(true);
    let streams = body["stream"] == json!(true);
    if streams {
        body["stream_options"] = json!({"include_usage": true});
    }
    let url = format!("{http}/v1/{path}");
    let mut response = match agent().post(&url).send_json(&body) {
        Ok(response) => response,
        // The node died before it answered.
        Err(error) => return Err(Failure { status: 0, body: json!(error.to_string()) }),
    };
    let status = response.status().as_u16();
    if streams && status == 200 {
        return gather(BufReader::new(response.body_mut().as_reader()));
    }
    let text = response.body_mut().read_to_string().unwrap();
    let body: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    if status != 200 {
        return Err(Failure { status, body });
    }
    let mut whole = Gathering::default();
    whole.add(&body);
    Ok(whole.done())
}

/// Reads a stream of events up to its end.
fn gather(events: impl BufRead) -> Result<Completion, Failure> {
    let mut whole = Gathering::default();
    for line in events.lines() {
        let Ok(line) = line else { break };
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return Ok(whole.done());
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        if chunk.get("error").is_some() {
            return Err(Failure { status: 200, body: chunk });
        }
        whole.add(&chunk);
    }
    Err(Failure { status: 200, body: json!("the stream broke off") })
}

#[derive(Debug, Default)]
struct Gathering {
    tokens: Vec<u32>,
    text: String,
    finish: String,
    usage: Value,
}

impl Gathering {
    fn add(&mut self, body: &Value) {
        if body["usage"].is_object() {
            self.usage = body["usage"].clone();
        }
        let choice = &body["choices"][0];
        let ids = choice["token_ids"].as_array().into_iter().flatten();
        self.tokens.extend(ids.map(|id| id.as_u64().unwrap() as u32));
        for text in [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]] {
            self.text += text.as_str().unwrap_or_default();
        }
        self.finish += choice["finish_reason"].as_str().unwrap_or_default();
    }

    fn done(self) -> Completion {
        let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{:?}", self.usage));
        Completion {
            prompt_tokens: count(&self.usage["prompt_tokens"]),
            completion_tokens: count(&self.usage["completion_tokens"]),
            cached_tokens: count(&self.usage["prompt_tokens_details"]["cached_tokens"]),
            tokens: self.tokens,
            text: self.text,
            finish: self.finish,
        }
    }
}

/// Asks many requests, `at_once` at a time; the answers come in the order of the bodies.
pub(crate) fn ask_all(
    http: &str,
    bodies: &[Value],
    at_once: usize,
) -> Vec<Result<Completion, Failure>> {
    let queue = Mutex::new(bodies.iter().enumerate());
    let answers = Mutex::new(vec![None; bodies.len()]);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some((index, body)) = queue.lock().unwrap().next() else { return };
                    let answer = ask(http, body);
                    answers.lock().unwrap()[index] = Some(answer);
                }
            });
        }
    });
    answers.into_inner().unwrap().into_iter().map(Option::unwrap).collect()
}

/// A request whose caller can go away at any time.
#[derive(Debug)]
pub(crate) struct Caller(TcpStream);

impl Caller {
    /// Sends a completion request and does not wait for its answer.
    pub(crate) fn ask(http: &str, body: &Value) -> Self {
        let host = http.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        Self(stream)
    }

    /// Waits for the first event of a stream.
    pub(crate) fn wait_for_event(&mut self) {
        let mut lines = BufReader::new(self.0.try_clone().unwrap()).lines();
        let first = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data: ")));
        assert!(first.is_some(), "{}: no event", watchdog::current_test());
    }

    /// Everything that comes up to the end.
    pub(crate) fn rest(self) -> String {
        let lines = BufReader::new(self.0).lines();
        lines.map_while(Result::ok).collect::<Vec<_>>().join("\n")
    }

    /// Goes away.
    pub(crate) fn leave(self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
