//! What is refused, with which status and which words, and that no slot was taken.

use super::*;

async fn refused(front: &Front, path: &str, body: &str) -> (u16, Value) {
    let (status, answer) = front.post_text(path, body).await;
    let error = answer["error"].clone();
    let fields: Vec<&String> = error.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["code", "message", "param", "type"], "{answer}");
    assert!(!error["message"].as_str().unwrap().is_empty());
    (status.as_u16(), error)
}

#[tokio::test]
async fn bodies_that_make_no_sense() {
    let front = Front::new(Scripted::saying("x"));
    let long = format!("{{\"prompt\": \"{}\"}}", "x".repeat(CONTEXT));
    for (body, status, param) in [
        ("{\"prompt\": ", 400, None),
        ("[]", 400, None),
        ("", 400, None),
        ("{}", 400, Some("prompt")),
        (r#"{"prompt": ""}"#, 400, Some("prompt")),
        (r#"{"prompt": []}"#, 400, Some("prompt")),
        (r#"{"prompt": [[]]}"#, 400, Some("prompt")),
        (r#"{"prompt": ["a", ""]}"#, 400, Some("prompt")),
        (r#"{"prompt": [1, "a"]}"#, 400, Some("prompt")),
        (r#"{"prompt": [257]}"#, 400, Some("prompt")),
        (r#"{"prompt": [-1]}"#, 400, Some("prompt")),
        (r#"{"prompt": 5}"#, 400, Some("prompt")),
        (r#"{"prompt": "p", "max_tokens": 0}"#, 400, Some("max_tokens")),
        (r#"{"prompt": "p", "max_tokens": -3}"#, 400, Some("max_tokens")),
        (r#"{"prompt": "p", "max_tokens": "3"}"#, 400, Some("max_tokens")),
        (r#"{"prompt": "p", "max_tokens": 64}"#, 400, Some("max_tokens")),
        (r#"{"prompt": "p", "max_tokens": 1e30}"#, 400, Some("max_tokens")),
        (r#"{"prompt": "p", "max_tokens": 3, "min_tokens": 4}"#, 400, Some("min_tokens")),
        (r#"{"prompt": "p", "temperature": -1}"#, 400, Some("temperature")),
        (r#"{"prompt": "p", "temperature": "hot"}"#, 400, Some("temperature")),
        (r#"{"prompt": "p", "top_p": 0}"#, 400, Some("top_p")),
        (r#"{"prompt": "p", "top_k": -2}"#, 400, Some("top_k")),
        (r#"{"prompt": "p", "min_p": 2}"#, 400, Some("min_p")),
        (r#"{"prompt": "p", "n": 0}"#, 400, Some("n")),
        (r#"{"prompt": ["p", "q"], "n": 65}"#, 400, Some("n")),
        (r#"{"prompt": "p", "stop": ["1", "2", "3", "4", "5"]}"#, 400, Some("stop")),
        (r#"{"prompt": "p", "stop": ""}"#, 400, Some("stop")),
        (r#"{"prompt": "p", "stop": 5}"#, 400, Some("stop")),
        (r#"{"prompt": "p", "stream": "yes"}"#, 400, Some("stream")),
        (r#"{"prompt": "p", "stream_options": {}}"#, 400, Some("stream_options")),
        (r#"{"prompt": "p", "logprobs": 21}"#, 400, Some("logprobs")),
        (r#"{"prompt": "p", "cache_salt": ""}"#, 400, Some("cache_salt")),
        (r#"{"prompt": "p", "cache_salt": 5}"#, 400, Some("cache_salt")),
        (r#"{"prompt": "p", "echo": true, "logprobs": 0}"#, 400, Some("echo")),
        (r#"{"prompt": "p", "suffix": "s"}"#, 400, Some("suffix")),
        (r#"{"prompt": "p", "best_of": 3}"#, 400, Some("best_of")),
        (r#"{"prompt": "p", "logit_bias": {"x": 1}}"#, 400, Some("logit_bias")),
        (r#"{"prompt": "p", "guided_json": {"type": "object"}}"#, 400, Some("guided_json")),
        (r#"{"prompt": "p", "model": "other"}"#, 404, Some("model")),
        (&long, 413, None),
    ] {
        let (got, error) = refused(&front, "/v1/completions", body).await;
        assert_eq!((got, error["param"].as_str()), (status, param), "{body}: {error}");
    }
    assert!(front.backend.requests().is_empty(), "a refused request reached the backend");
}

#[tokio::test]
async fn chats_that_make_no_sense() {
    let front = Front::new(Scripted::saying("x"));
    let user = r#""messages": [{"role": "user", "content": "hi"}]"#;
    for (body, param) in [
        ("{}".to_owned(), "messages"),
        (r#"{"messages": []}"#.to_owned(), "messages"),
        (r#"{"messages": [{"content": "hi"}]}"#.to_owned(), "messages[0].role"),
        (r#"{"messages": [{"role": "user", "content": 5}]}"#.to_owned(), "messages[0].content"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#.to_owned(),
            "messages[0].content[0]",
        ),
        (format!(r#"{{{user}, "tools": [{{}}]}}"#), "tools"),
        (format!(r#"{{{user}, "tool_choice": "required"}}"#), "tool_choice"),
        (format!(r#"{{{user}, "response_format": {{"type": "json_object"}}}}"#), "response_format"),
        (format!(r#"{{{user}, "top_logprobs": 2}}"#), "top_logprobs"),
        (format!(r#"{{{user}, "logprobs": true, "top_logprobs": 21}}"#), "top_logprobs"),
        (format!(r#"{{{user}, "max_completion_tokens": 0}}"#), "max_completion_tokens"),
        (format!(r#"{{{user}, "modalities": ["audio"]}}"#), "modalities"),
        (format!(r#"{{{user}, "echo": true}}"#), "echo"),
    ] {
        let (status, error) = refused(&front, "/v1/chat/completions", &body).await;
        let got = error["param"].as_str().unwrap_or("");
        assert_eq!((status, got), (400, param), "{body}: {error}");
    }
    assert!(front.backend.requests().is_empty(), "a refused request reached the backend");
}

#[tokio::test]
async fn a_template_that_refuses_is_the_callers_error() {
    let template = ChatTemplate::new("{{ raise_exception('no system') }}", "", "").unwrap();
    let backend = Arc::new(Scripted::saying(""));
    let options = FrontOptions::default();
    for (template, code) in [(Some(template), "invalid_value"), (None, "no_chat_template")] {
        let (text, metrics) = (Arc::new(Bytewise), Metrics::new());
        let state = FrontState::new(backend.clone(), text, template, metrics, options.clone());
        let front = Front { backend: backend.clone(), app: app(state.clone()), state };
        let body = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
        let (status, error) = refused(&front, "/v1/chat/completions", body).await;
        assert_eq!((status, error["code"].as_str()), (400, Some(code)), "{error}");
    }
}

#[tokio::test]
async fn every_error_of_a_backend_has_its_status() {
    let text = String::from;
    for (error, status, code) in [
        (GenerateError::BadRequest(text("no")), 400, "invalid_value"),
        (GenerateError::Unsupported(text("gemma3 owns its state")), 400, "unsupported_model"),
        (GenerateError::UnknownModel(text("m")), 404, "model_not_found"),
        (GenerateError::TooLong { tokens: 9, limit: 8 }, 413, "context_length_exceeded"),
        (GenerateError::Busy { waiting: 3 }, 429, "busy"),
        (GenerateError::NodeFailed(text("gone")), 502, "node_failed"),
        (GenerateError::NodeLost(text("gone")), 502, "node_failed"),
        (GenerateError::NodesLost { nodes: [text("a"), text("b")] }, 502, "nodes_lost"),
        (GenerateError::NoNode(text("none")), 503, "no_node"),
        (GenerateError::Deadline, 504, "deadline_exceeded"),
    ] {
        let front = Front::new(Scripted { refuse: Some(error), ..Scripted::saying("") });
        for body in [r#"{"prompt": "p"}"#, r#"{"prompt": "p", "stream": true}"#] {
            let (got, error) = refused(&front, "/v1/completions", body).await;
            assert_eq!((got, error["code"].as_str()), (status, Some(code)), "{error}");
        }
    }
}

#[tokio::test]
async fn wrong_paths_methods_types_and_sizes() {
    let options = FrontOptions { body_len_max: 100, ..FrontOptions::default() };
    let front = Front::with_options(Scripted::saying(""), options);
    let json = ("content-type", "application/json");
    for (method, path, header, len, status) in [
        ("GET", "/v1/nothing", json, 0, 404),
        ("GET", "/v1/completions", json, 0, 405),
        ("DELETE", "/v1/chat/completions", json, 0, 405),
        ("POST", "/health", json, 0, 405),
        ("POST", "/v1/completions", ("content-type", "text/plain"), 10, 415),
        ("POST", "/v1/completions", ("accept", "*/*"), 10, 415),
        ("POST", "/v1/completions", json, 101, 413),
    ] {
        let request = Request::builder().method(method).uri(path).header(header.0, header.1);
        let body = Body::from(" ".repeat(len));
        let (got, headers, text) = front.send(request.body(body).unwrap()).await;
        assert_eq!(got.as_u16(), status, "{method} {path}: {text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(answer["error"]["message"].is_string(), "{text}");
        assert!(headers.contains_key("x-request-id"));
    }
}

#[tokio::test]
async fn keys_are_asked_for_where_set() {
    let options = FrontOptions { api_keys: vec!["k1".into(), "k2".into()], ..Default::default() };
    let front = Front::with_options(Scripted::saying("x"), options);
    for (key, status) in [
        (None, 401),
        (Some("Bearer k"), 401),
        (Some("Bearer k3"), 401),
        (Some("k1"), 401),
        (Some("Bearer k2"), 200),
    ] {
        let request = Request::post("/v1/completions").header("content-type", "application/json");
        let request = key.into_iter().fold(request, |r, key| r.header("authorization", key));
        let body = Body::from(r#"{"prompt": "p"}"#);
        let (got, _, text) = front.send(request.body(body).unwrap()).await;
        assert_eq!(got.as_u16(), status, "{key:?}: {text}");
    }
    let health = Request::get("/health").body(Body::empty()).unwrap();
    assert_eq!(front.send(health).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_deadline_ends_what_does_not_end() {
    let options = FrontOptions {
        request_timeout: Some(Duration::from_millis(50)),
        ..FrontOptions::default()
    };
    let script = Scripted { endless: true, ..Scripted::saying("") };
    let front = Front::with_options(script, options);
    let (status, error) = refused(&front, "/v1/completions", r#"{"prompt": "p"}"#).await;
    assert_eq!((status, error["code"].as_str()), (504, Some("deadline_exceeded")));
    front.idle().await;
}
