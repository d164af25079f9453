//! Answers as a typed client reads them: the types that `async-openai` generates from OpenAI's own description of
//! the API. A field that it needs and does not find, or finds as something else, is an error.

use async_openai::error::ApiError as TypedError;
use async_openai::types::chat::{
    CreateChatCompletionResponse, CreateChatCompletionStreamResponse, FinishReason as TypedReason,
    Role,
};
use async_openai::types::completions::CreateCompletionResponse;
use async_openai::types::models::{ListModelResponse, Model};
use serde::de::DeserializeOwned;

use super::*;

fn typed<T: DeserializeOwned>(body: &Value) -> T {
    T::deserialize(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[tokio::test]
async fn a_typed_client_reads_chats() {
    let front = Front::new(Scripted::saying("hello"));
    let body = json!({"n": 2, "logprobs": true, "top_logprobs": 2, "max_tokens": 9});
    let chat: CreateChatCompletionResponse = typed(&front.chat(body).await);
    assert_eq!((chat.choices.len(), &*chat.model), (2, "tiny"));
    let choice = &chat.choices[1];
    assert_eq!(
        (choice.message.role, choice.message.content.as_deref()),
        (Role::Assistant, Some("hello"))
    );
    assert_eq!(choice.finish_reason, Some(TypedReason::Stop));
    let logprobs = choice.logprobs.as_ref().unwrap().content.as_ref().unwrap();
    assert_eq!((logprobs.len(), logprobs[0].top_logprobs.len()), (6, 2));
    let usage = chat.usage.unwrap();
    assert_eq!((usage.completion_tokens, usage.total_tokens), (12, usage.prompt_tokens + 12));
    assert_eq!(usage.prompt_tokens_details.unwrap().cached_tokens, Some(2));
}

#[tokio::test]
async fn a_typed_client_reads_streams_of_chats() {
    let front = Front::new(Scripted::saying("hello"));
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "stream": true, "logprobs": true,
        "stream_options": {"include_usage": true},
    });
    let chunks = front.stream("/v1/chat/completions", &body).await;
    let chunks: Vec<CreateChatCompletionStreamResponse> = chunks.iter().map(typed).collect();
    let choices = || chunks.iter().flat_map(|chunk| &chunk.choices);
    let text: String = choices().filter_map(|choice| choice.delta.content.as_deref()).collect();
    assert_eq!(text, "hello");
    assert_eq!(
        choices().filter_map(|choice| choice.finish_reason).collect::<Vec<_>>(),
        [TypedReason::Stop]
    );
    assert_eq!(choices().next().unwrap().delta.role, Some(Role::Assistant));
    let usages: Vec<_> = chunks.iter().filter_map(|chunk| chunk.usage.as_ref()).collect();
    assert_eq!((usages.len(), usages[0].completion_tokens), (1, 6));
}

#[tokio::test]
async fn a_typed_client_reads_completions() {
    let front = Front::new(Scripted::saying("hello"));
    let body = json!({"prompt": ["a", "b"], "logprobs": 1, "max_tokens": 3});
    let whole: CreateCompletionResponse = typed(&front.complete(body.clone()).await);
    assert_eq!(
        whole.choices.iter().map(|choice| &*choice.text).collect::<Vec<_>>(),
        ["hel", "hel"]
    );
    let logprobs = whole.choices[0].logprobs.as_ref().unwrap();
    assert_eq!((logprobs.tokens.len(), &logprobs.text_offset[..]), (3, &[0, 1, 2][..]));
    let mut body = body;
    body["stream"] = json!(true);
    let chunks = front.stream("/v1/completions", &body).await;
    let chunks: Vec<CreateCompletionResponse> = chunks.iter().map(typed).collect();
    let choices = chunks.iter().flat_map(|chunk| &chunk.choices);
    let text: String =
        choices.filter(|choice| choice.index == 1).map(|choice| &*choice.text).collect();
    assert_eq!(text, "hel");
}

#[tokio::test]
async fn a_typed_client_reads_models_and_errors() {
    let front = Front::new(Scripted::saying(""));
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        serde_json::from_str::<Value>(&front.send(request).await.2).unwrap()
    };
    let models: ListModelResponse = typed(&get("/v1/models").await);
    assert_eq!((models.data.len(), &*models.data[0].id), (1, "tiny"));
    let model: Model = typed(&get("/v1/models/tiny").await);
    assert_eq!(model.owned_by, "blockwire");
    for (body, param, code) in [
        (json!({"prompt": "p", "n": 0}), Some("n"), "invalid_value"),
        (json!({"prompt": "p", "model": "other"}), Some("model"), "model_not_found"),
        (
            json!({"prompt": "p", "echo": true, "logprobs": 1}),
            Some("echo"),
            "unsupported_parameter",
        ),
    ] {
        let (_, refusal) = front.post("/v1/completions", &body).await;
        let error: TypedError = typed(&refusal["error"]);
        assert_eq!((error.param.as_deref(), error.code.as_deref()), (param, Some(code)));
    }
}
