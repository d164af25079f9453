//! Answers as streams of events.

use super::*;

fn chat_body(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// All text of one choice.
pub(super) fn content(chunks: &[Value], index: usize) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let choices = choices.filter(|choice| choice["index"] == index);
    let text = |choice: &Value| {
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        text.unwrap_or_default().to_owned()
    };
    choices.map(text).collect()
}

#[tokio::test]
async fn a_chat_begins_with_the_role_and_ends_with_usage() {
    let front = Front::new(Scripted::saying("yes"));
    let body = chat_body(json!({"stream_options": {"include_usage": true}}));
    let chunks = front.stream("/v1/chat/completions", &body).await;
    let delta = json!({"role": "assistant", "content": ""});
    assert_eq!(chunks[0]["choices"][0]["delta"], delta);
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    assert_eq!(content(&chunks, 0), "yes");
    let (last, rest) = chunks.split_last().unwrap();
    assert!(rest.iter().all(|chunk| chunk["usage"].is_null()));
    let reasons = rest.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]);
    let reasons: Vec<&Value> = reasons.filter(|reason| !reason.is_null()).collect();
    assert_eq!(reasons, ["stop"]);
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 4);
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
    let plain = front.stream("/v1/chat/completions", &chat_body(json!({}))).await;
    assert!(plain.iter().all(|chunk| chunk.get("usage").is_none()));
    front.idle().await;
}

#[tokio::test]
async fn fault_b18_streams_keep_the_budget() {
    let front = Front::new(Scripted::saying("abc"));
    for budget in 1..=3 {
        let body = json!({
            "prompt": "p", "max_tokens": budget, "stream": true, "return_token_ids": true,
            "stream_options": {"include_usage": true},
        });
        let mut chunks = front.stream("/v1/completions", &body).await;
        assert_eq!(chunks.pop().unwrap()["usage"]["completion_tokens"], budget);
        assert_eq!(content(&chunks, 0), "abc"[..budget]);
        let ids = chunks.iter().flat_map(|c| c["choices"][0]["token_ids"].as_array().unwrap());
        assert_eq!(ids.count(), budget);
        assert_eq!(chunks[0]["choices"][0]["prompt_token_ids"], json!([112]));
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn characters_come_whole_and_stop_strings_never() {
    let text = "g\u{fc}\u{20ac}\u{1f980} END";
    let front = Front::new(Scripted::saying(text));
    let chunks = front.stream("/v1/chat/completions", &chat_body(json!({}))).await;
    assert_eq!(content(&chunks, 0), text);
    let contents = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str());
    assert!(contents.clone().all(|c| c.chars().count() <= 1 && !c.contains('\u{fffd}')));
    let chunks = front.stream("/v1/chat/completions", &chat_body(json!({"stop": " END"}))).await;
    assert_eq!(content(&chunks, 0), "g\u{fc}\u{20ac}\u{1f980}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    let chunks = front.stream("/v1/chat/completions", &chat_body(json!({"stop": "END!"}))).await;
    assert_eq!(content(&chunks, 0), text, "what was held back comes with the end");
    front.idle().await;
}

#[tokio::test]
async fn choices_of_a_stream_mix_but_each_is_whole() {
    let front = Front::new(Scripted::saying("hello"));
    let body = json!({"prompt": ["a", "b"], "n": 2, "stream": true, "logprobs": 0});
    let chunks = front.stream("/v1/completions", &body).await;
    for index in 0..4 {
        assert_eq!(content(&chunks, index), "hello");
        let own = chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == index);
        let offsets = own.filter_map(|c| c["logprobs"]["text_offset"][0].as_u64());
        assert_eq!(offsets.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}

#[tokio::test]
async fn what_fails_before_the_first_token_has_a_status() {
    for (fail_after, status) in [(0, StatusCode::BAD_GATEWAY), (1, StatusCode::OK)] {
        let error = GenerateError::NodeFailed("the decode node went away".to_owned());
        let script = Scripted { fail_after: Some((fail_after, error)), ..Scripted::saying("abc") };
        let front = Front::new(script);
        let request = Request::post("/v1/completions").header("content-type", "application/json");
        let body = Body::from(r#"{"prompt": "p", "stream": true}"#);
        let (got, _, text) = front.send(request.body(body).unwrap()).await;
        assert_eq!(got, status);
        assert!(text.contains("the decode node went away"), "{text}");
        assert_eq!(text.ends_with("data: [DONE]\n\n"), status == StatusCode::OK, "{text}");
        front.idle().await;
    }
}
