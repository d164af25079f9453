//! The live page and its numbers.

use super::*;

async fn get(front: &Front, path: &str) -> (StatusCode, HeaderMap, String) {
    front.send(Request::get(path).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn the_page_and_its_numbers_are_there_and_tell_no_secret() {
    let options = FrontOptions { api_keys: vec!["sesame".to_owned()], ..FrontOptions::default() };
    let front = Front::with_options(Scripted::saying("pearls"), options);
    let (status, headers, page) = get(&front, "/").await;
    assert_eq!(
        (status, headers[header::CONTENT_TYPE].to_str().unwrap()),
        (StatusCode::OK, "text/html; charset=utf-8")
    );
    let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(!page.contains("://"), "something from elsewhere");

    let body = json!({"prompt": "oysters", "max_tokens": 4});
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, "Bearer sesame");
    let asked = front.send(request.body(body.to_string().into()).unwrap()).await;
    assert_eq!(asked.0, StatusCode::OK);
    let _refused = front.post("/v1/completions", &body).await;
    let (status, headers, text) = get(&front, "/stats").await;
    assert_eq!(
        (status, headers[header::CACHE_CONTROL].to_str().unwrap()),
        (StatusCode::OK, "no-store")
    );
    for secret in ["sesame", "pearls", "oysters"] {
        assert!(!text.contains(secret), "{text}");
    }
    let stats: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&stats["ready"], &stats["model"]), (&json!(true), &json!("tiny")));
    assert_eq!((&stats["finished"], &stats["failed"]), (&json!(1), &json!(1)));
    assert_eq!(stats["tokens"]["generated"], 4);
    assert_eq!(stats["tokens"]["prompt"], 7);
    assert_eq!(stats["tokens"]["by_second"].as_array().unwrap().len(), 60);
}

#[tokio::test]
async fn the_numbers_say_why_nothing_would_be_served() {
    let readiness = Readiness::NotReady { reason: "no decode node is connected".to_owned() };
    let front = Front::new(Scripted { readiness, ..Scripted::saying("") });
    let stats: Value = serde_json::from_str(&get(&front, "/stats").await.2).unwrap();
    assert_eq!(stats["ready"], false);
    assert_eq!(stats["not_ready"], "no decode node is connected");
}

#[tokio::test]
async fn numbers_ask_for_a_key_where_they_are_to_and_health_never_does() {
    let options = |keyed_metrics| {
        let api_keys = vec!["sesame".to_owned()];
        FrontOptions { api_keys, keyed_metrics, ..FrontOptions::default() }
    };
    let open = Front::with_options(Scripted::saying(""), options(false));
    let keyed = Front::with_options(Scripted::saying(""), options(true));
    for (path, when_keyed) in
        [("/stats", 401), ("/metrics", 401), ("/", 200), ("/health", 200), ("/ready", 200)]
    {
        assert_eq!(get(&open, path).await.0, StatusCode::OK, "{path}");
        assert_eq!(get(&keyed, path).await.0.as_u16(), when_keyed, "{path}");
        let request = Request::get(path).header(header::AUTHORIZATION, "Bearer sesame");
        let answer = keyed.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.0, StatusCode::OK, "{path} with the key");
    }
}
