//! Requests that make no sense: an OpenAI error each, no place taken, and the next one is served.

use serde_json::{Value, json};

use crate::client::{ask, post};
use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::{Model, completion, streamed};

/// Checks that `answer` is an error of this status as OpenAI's clients expect it.
fn assert_refused(what: &str, (status, body): &(u16, Value), expected: u16) {
    assert_eq!(*status, expected, "{what}: {body}");
    let error = &body["error"];
    for field in ["message", "type", "code"] {
        assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{what}: {body}");
    }
    assert!(error.as_object().unwrap().contains_key("param"), "{what}: {body}");
}

#[test]
fn fault_b10_senseless_requests_take_no_place() {
    let cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm));
    let work = |cluster: &Cluster| {
        let computed = |node: &crate::node::Node| {
            (node.metric("prefill_tokens_computed_total"), node.metric("sampled_tokens_total"))
        };
        (computed(&cluster.prefill[0]), computed(&cluster.decode))
    };
    let before = work(&cluster);
    let with = |field: &str, value: Value| {
        let mut body = completion(&[5, 6, 7], 4);
        body[field] = value;
        body
    };
    let prompt = |tokens: usize| with("prompt", json!(Model::Llama.prompt(tokens, 0)));
    let bodies = [
        ("empty list", with("prompt", json!([])), 400),
        ("empty text", with("prompt", json!("")), 400),
        ("empty batch", with("prompt", json!([[]])), 400),
        ("text without tokenizer", with("prompt", json!("hello")), 400),
        ("prompt as long as the context", prompt(512), 413),
        ("longer prompt", prompt(5000), 413),
        ("prompt and budget too long", with("max_tokens", json!(510)), 400),
        ("no budget", with("max_tokens", json!(0)), 400),
        ("negative budget", with("max_tokens", json!(-3)), 400),
        ("budget of the wrong type", with("max_tokens", json!("many")), 400),
        ("unknown model", with("model", json!("gpt-9")), 404),
        ("token id out of range", with("prompt", json!([5, 512])), 400),
        ("negative token id", with("prompt", json!([5, -1])), 400),
        ("prompt of the wrong type", with("prompt", json!({"a": 1})), 400),
        ("temperature out of range", with("temperature", json!(-1)), 400),
        ("temperature of the wrong type", with("temperature", json!("hot")), 400),
        ("top_p out of range", with("top_p", json!(1.5)), 400),
        ("n out of range", with("n", json!(0)), 400),
        ("n far out of range", with("n", json!(1_000_000)), 400),
        ("too many stop strings", with("stop", json!(["a", "b", "c", "d", "e"])), 400),
        ("tools", with("tools", json!([{"type": "function"}])), 400),
        ("logprobs out of range", with("logprobs", json!(99)), 400),
    ];
    let url = format!("{}/v1/completions", cluster.http());
    for (what, body, status) in &bodies {
        for body in [body.clone(), streamed(body.clone())] {
            let text = body.to_string();
            assert_refused(what, &post(&url, "application/json", text.as_bytes()), *status);
        }
    }
    let json = "application/json";
    let chat = format!("{}/v1/chat/completions", cluster.http());
    let large = vec![b' '; 9 << 20];
    let raw: [(&str, &str, &str, &[u8], u16); 7] = [
        ("broken JSON", &url, json, b"{\"prompt\": [1, 2", 400),
        ("no JSON", &url, json, b"\xff\xfe", 400),
        ("nothing", &url, json, b"", 400),
        ("a list", &url, json, b"[1]", 400),
        ("another type", &url, "text/plain", b"{\"prompt\": [1, 2]}", 415),
        ("body over the limit", &url, json, &large, 413),
        ("chat without template", &chat, json, b"{\"messages\": []}", 400),
    ];
    for (what, url, kind, body, status) in raw {
        assert_refused(what, &post(url, kind, body), status);
    }
    let unknown = post(&format!("{}/v1/nothing", cluster.http()), json, b"{}");
    assert_refused("unknown path", &unknown, 404);
    cluster.settle();
    assert_eq!(work(&cluster), before, "a refused request was computed");
    let answer = ask(cluster.http(), &completion(&[5, 6, 7], 4)).unwrap();
    assert_eq!(answer.tokens.len(), 4);
    cluster.finish();
}

#[test]
fn fault_b24_refused_requests_close_no_breaker() {
    let cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Tcp4));
    let long = completion(&Model::Llama.prompt(600, 1), 4);
    for _ in 0..50 {
        assert_eq!(ask(cluster.http(), &long).unwrap_err().status, 413);
    }
    assert!(ask(cluster.http(), &completion(&[5, 6, 7], 4)).is_ok());
    cluster.finish();
}

#[test]
fn fault_b18_answers_have_as_many_tokens_as_asked_for() {
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        let cluster = Cluster::start(Setup::new(Model::Llama, carrier));
        for length in [1, 16, 40] {
            let prompt = Model::Llama.prompt(length, length);
            let long = ask(cluster.http(), &completion(&prompt, 8)).unwrap().tokens;
            for max in [1, 2, 3] {
                let body = completion(&prompt, max);
                for body in [body.clone(), streamed(body)] {
                    let answer = ask(cluster.http(), &body).unwrap();
                    assert_eq!(answer.tokens, long[..max as usize], "{body}");
                    assert_eq!(answer.completion_tokens, u64::from(max), "{body}");
                    assert_eq!(answer.prompt_tokens, length as u64, "{body}");
                    assert_eq!(answer.finish, "length", "{body}");
                }
            }
        }
        cluster.finish();
    }
}
