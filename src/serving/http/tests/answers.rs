//! Answers in one body.

use super::streams::content;
use super::*;

#[tokio::test]
async fn a_completion_has_the_form_of_openai() {
    let front = Front::new(Scripted::saying("yes"));
    let answer = front.complete(json!({"model": "tiny", "prompt": "ok?"})).await;
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "tiny");
    let choice = json!({"index": 0, "text": "yes", "logprobs": null, "finish_reason": "stop"});
    assert_eq!(answer["choices"], json!([choice]));
    let usage = json!({
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    });
    assert_eq!(answer["usage"], usage);
    front.idle().await;
}

#[tokio::test]
async fn a_chat_has_the_form_of_openai() {
    let front = Front::new(Scripted::saying("yes"));
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let messages = json!([{"role": "system", "content": "x"}, {"role": "user", "content": parts}]);
    let body = json!({"model": "default", "messages": messages, "user": "me", "unknown": [1]});
    let (status, answer) = front.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["object"], "chat.completion");
    let message = json!({"role": "assistant", "content": "yes"});
    let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(answer["choices"], json!([choice]));
    let request = front.backend.requests().remove(0);
    assert_eq!(request.prompt, "s:x;u:ab;a:".bytes().map(u32::from).collect::<Vec<_>>());
    assert_eq!(request.max_tokens as usize, CONTEXT - request.prompt.len());
    assert_eq!((request.sampling.temperature, request.sampling.top_p), (1.0, 1.0));
}

#[tokio::test]
async fn fault_b18_the_budget_is_exact() {
    let front = Front::new(Scripted::saying("abc"));
    for (budget, text, reason) in
        [(1, "a", "length"), (2, "ab", "length"), (3, "abc", "length"), (4, "abc", "stop")]
    {
        let answer = front.complete(json!({"prompt": "p", "max_tokens": budget})).await;
        assert_eq!(answer["choices"][0]["text"], text);
        assert_eq!(answer["choices"][0]["finish_reason"], reason);
        assert_eq!(answer["usage"]["completion_tokens"], budget);
        let answer = front.chat(json!({"max_completion_tokens": budget, "max_tokens": 9})).await;
        assert_eq!(answer["choices"][0]["message"]["content"], text);
        assert_eq!(answer["usage"]["completion_tokens"], budget);
    }
}

#[tokio::test]
async fn stop_strings_cut_the_text_before_them_and_cancel() {
    let front = Front::new(Scripted::saying("one\n\ntwo"));
    let stops = [json!("\n\n"), json!(["xx", "\n\nt"]), json!("one\n\ntwo")];
    for (stop, (text, tokens)) in stops.iter().zip([("one", 5), ("one", 6), ("", 8)]) {
        let answer = front.complete(json!({"prompt": "p", "stop": stop})).await;
        assert_eq!(answer["choices"][0]["text"], text);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["usage"]["completion_tokens"], tokens);
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
    }
    let body = json!({"prompt": "p", "stop": "two!", "max_tokens": 8});
    let answer = front.complete(body).await;
    assert_eq!(answer["choices"][0]["text"], "one\n\ntwo");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let answer = front.complete(json!({"prompt": "p", "stop": "n", "min_tokens": 3})).await;
    assert_eq!(answer["choices"][0]["text"], "one\n\ntwo");
    front.idle().await;
}

#[tokio::test]
async fn a_cache_salt_goes_with_every_choice() {
    let front = Front::new(Scripted::saying("z"));
    front.complete(json!({"prompt": ["a", "b"], "n": 2, "cache_salt": "tenant"})).await;
    front.complete(json!({"prompt": "a"})).await;
    let salts: Vec<_> = front.backend.requests().into_iter().map(|r| r.cache_salt).collect();
    let salted = Some("tenant".to_owned());
    assert_eq!(salts, [salted.clone(), salted.clone(), salted.clone(), salted, None]);
}

#[tokio::test]
async fn a_stop_string_ends_a_generation_that_would_not_end() {
    let front = Front::new(Scripted { endless: true, ..Scripted::saying("") });
    let answer = front.complete(json!({"prompt": "p", "stop": "aaaaa"})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    front.idle().await;
}

#[tokio::test]
async fn prompts_come_in_four_forms_and_each_has_n_choices() {
    let front = Front::new(Scripted::saying("z"));
    for (prompt, count) in [
        (json!("ab"), 1),
        (json!(["ab", "c"]), 2),
        (json!([97, 98]), 1),
        (json!([[97, 98], [99]]), 2),
    ] {
        let body = json!({"prompt": prompt, "n": 2, "seed": 7, "return_token_ids": true});
        let answer = front.complete(body).await;
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), count * 2);
        let last = choices.last().unwrap();
        assert_eq!(last["index"], count * 2 - 1);
        assert_eq!(last["token_ids"], json!([122, 256]));
        let expected = if count == 2 { json!([99]) } else { json!([97, 98]) };
        assert_eq!(last["prompt_token_ids"], expected);
        assert_eq!(answer["usage"]["prompt_tokens"], if count == 2 { 3 } else { 2 });
        assert_eq!(answer["usage"]["completion_tokens"], count * 4);
    }
    let seeds: Vec<u64> = front.backend.requests().iter().map(|r| r.sampling.seed).collect();
    assert_eq!(seeds[..6], [7, 8, 7, 8, 7, 8]);
}

#[tokio::test]
async fn an_echoed_prompt_stands_before_each_answer() {
    let front = Front::new(Scripted::saying("yes"));
    for (prompt, texts) in [
        (json!("ok? "), vec!["ok? yes"; 2]),
        (json!(["a: ", "b: "]), vec!["a: yes", "a: yes", "b: yes", "b: yes"]),
        (json!([111, 107]), vec!["okyes"; 2]),
        (json!([[97], [98]]), vec!["ayes", "ayes", "byes", "byes"]),
    ] {
        let mut body = json!({"prompt": prompt, "n": 2, "echo": true});
        let answer = front.complete(body.clone()).await;
        let got: Vec<_> =
            answer["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
        assert_eq!(got, texts, "{prompt}");
        assert_eq!(answer["usage"]["completion_tokens"], 4 * texts.len());
        body["stream"] = json!(true);
        let chunks = front.stream("/v1/completions", &body).await;
        for (index, text) in texts.iter().enumerate() {
            assert_eq!(content(&chunks, index), *text, "{prompt} as a stream");
        }
    }
    // A stop string is looked for in the answer only.
    let answer = front.complete(json!({"prompt": "yes? ", "echo": true, "stop": "s?"})).await;
    assert_eq!(answer["choices"][0]["text"], "yes? yes");
    front.idle().await;
}

#[tokio::test]
async fn fields_reach_the_backend() {
    let front = Front::new(Scripted::saying("z"));
    let body = json!({
        "prompt": "p", "max_tokens": 9, "min_tokens": 8, "temperature": 0, "top_p": 0.5,
        "top_k": 3, "min_p": 0.25, "seed": -1, "ignore_eos": true, "frequency_penalty": 0.5,
        "presence_penalty": -0.5, "repetition_penalty": 1.5, "logit_bias": {"5": -100},
        "logprobs": 2, "tools": [], "response_format": {"type": "text"}, "echo": false,
        "best_of": 1, "suffix": null, "stop": null,
    });
    front.complete(body).await;
    let request = front.backend.requests().remove(0);
    assert_eq!((request.max_tokens, request.min_tokens), (9, 8));
    assert!(request.ignore_eos);
    assert_eq!(request.logprobs, Some(2));
    let expected = SamplingParams {
        temperature: 0.0,
        top_p: 0.5,
        top_k: 3,
        min_p: 0.25,
        seed: u64::MAX,
        repetition_penalty: 1.5,
        frequency_penalty: 0.5,
        presence_penalty: -0.5,
        logit_bias: [(5, -100.0)].into(),
    };
    assert_eq!(request.sampling, expected);
    front.complete(json!({"prompt": "p", "top_k": -1})).await;
    front.complete(json!({"prompt": "p"})).await;
    let requests = front.backend.requests();
    assert_eq!((requests[1].sampling.top_k, requests[1].max_tokens), (0, 16));
    assert_ne!(requests[1].sampling.seed, requests[2].sampling.seed);
}

#[tokio::test]
async fn log_probabilities_have_two_forms() {
    let front = Front::new(Scripted::saying("\u{e4}"));
    let answer = front.complete(json!({"prompt": "p", "logprobs": 1, "max_tokens": 2})).await;
    let expected = json!({
        "tokens": ["bytes:\\xc3", "bytes:\\xa4"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"bytes:\\xc3": -0.5, "a": 0.0}, {"bytes:\\xa4": -0.5, "a": 0.0}],
        "text_offset": [0, 0],
    });
    assert_eq!(answer["choices"][0]["logprobs"], expected);
    assert_eq!(answer["choices"][0]["text"], "\u{e4}");
    let body = json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 1});
    let answer = front.chat(body).await;
    let expected = json!({"content": [{
        "token": "\u{fffd}", "logprob": -0.5, "bytes": [0xc3],
        "top_logprobs": [{"token": "a", "logprob": 0.0, "bytes": [97]}],
    }]});
    assert_eq!(answer["choices"][0]["logprobs"], expected);
    // Half a character: the caller sees that something was there.
    assert_eq!(answer["choices"][0]["message"]["content"], "\u{fffd}");
}

#[tokio::test]
async fn models_health_and_readiness() {
    let front = Front::new(Scripted::saying(""));
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let (status, _, models) = front.send(get("/v1/models")).await;
    assert_eq!(status, StatusCode::OK);
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][0]["max_model_len"], CONTEXT);
    assert_eq!(front.send(get("/v1/models/default")).await.0, StatusCode::OK);
    assert_eq!(front.send(get("/v1/models/a/b")).await.0, StatusCode::NOT_FOUND);
    assert_eq!(front.send(get("/health")).await.0, StatusCode::OK);
    assert_eq!(front.send(get("/ready")).await.0, StatusCode::OK);
    let readiness = Readiness::NotReady { reason: "no decode node".to_owned() };
    let front = Front::new(Scripted { readiness, ..Scripted::saying("") });
    assert_eq!(front.send(get("/health")).await.0, StatusCode::OK);
    let (status, _, body) = front.send(get("/ready")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("no decode node"), "{body}");
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let front = Front::new(Scripted::saying("abc"));
    front.complete(json!({"prompt": "pq", "max_tokens": 2})).await;
    front.post("/v1/completions", &json!({"prompt": ""})).await;
    let (_, headers, text) =
        front.send(Request::get("/metrics").body(Body::empty()).unwrap()).await;
    assert!(headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("application/openmetrics"));
    for line in [
        "blockwire:prompt_tokens_total 2",
        "blockwire:generation_tokens_total 2",
        "blockwire:request_success_total{finished_reason=\"length\"} 1",
        "blockwire:request_errors_total{code=\"invalid_value\"} 1",
        "blockwire:time_to_first_token_seconds_count 1",
        "blockwire:inter_token_latency_seconds_count 1",
        "blockwire:http_requests_in_flight 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} is not in\n{text}");
    }
    assert!(front.state.metrics().render().ends_with("# EOF\n"));
}

#[tokio::test]
async fn answers_carry_ids_and_the_route() {
    let front = Front::new(Scripted::saying("a"));
    let request = |id: Option<&str>| {
        let request = Request::post("/v1/completions").header("content-type", "application/json");
        let request = match id {
            Some(id) => request.header("x-request-id", id),
            None => request,
        };
        request.body(Body::from(r#"{"prompt": "p"}"#)).unwrap()
    };
    let (_, headers, _) = front.send(request(Some("abc-1"))).await;
    assert_eq!(headers["x-request-id"], "abc-1");
    assert_eq!(headers["x-blockwire-route"], "single");
    let (_, headers, _) = front.send(request(None)).await;
    assert_eq!(headers["x-request-id"].len(), 36);
    let many = Request::post("/v1/completions").header("content-type", "application/json");
    let many = many.body(Body::from(r#"{"prompt": "p", "n": 16, "temperature": 1}"#)).unwrap();
    let (_, headers, _) = front.send(many).await;
    assert_eq!(headers.get_all("x-blockwire-route").iter().count(), 1, "once for all choices");
    let (_, headers, _) = front.send(request(Some("a b"))).await;
    assert_eq!(headers["x-request-id"].len(), 36);
}

#[tokio::test]
async fn an_answer_that_began_anew_has_nothing_of_what_came_before() {
    // In the void: a character that is not whole, and the beginning of the stop string.
    let front = Front::new(Scripted { void: "no \u{20ac}\u{fc} EN", ..Scripted::saying("yes") });
    let body = json!({"prompt": "p", "logprobs": 0, "return_token_ids": true, "stop": " END"});
    let answer = front.complete(body).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "yes");
    assert_eq!(choice["token_ids"], json!([121, 101, 115, EOS]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    let asked = front.backend.requests();
    assert!(asked[0].retractable, "nobody reads along");
    front.stream("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    assert!(!front.backend.requests()[1].retractable, "what was sent was sent");
}
