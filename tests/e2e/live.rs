//! The live page and its numbers, as a person and a program see them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::client::{Caller, ask, get};
use crate::cluster::{Carrier, Cluster, Setup, start_decode};
use crate::models::{Model, completion, streamed};
use crate::node::wait_until;
use crate::watchdog::run;

fn stats(cluster: &Cluster) -> Value {
    let (status, text) = get(&format!("{}/stats", cluster.http()));
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The states of the nodes, prefill first.
fn states(stats: &Value) -> Vec<&str> {
    stats["nodes"].as_array().unwrap().iter().map(|node| node["state"].as_str().unwrap()).collect()
}

#[test]
fn the_numbers_are_those_of_the_nodes() {
    let mut cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm));
    let answer = ask(cluster.http(), &completion(&Model::Llama.prompt(40, 1), 8)).unwrap();
    assert_eq!(answer.tokens.len(), 8);
    // The last report may come after the last token.
    let sent = cluster.prefill[0].metric("handoffs_sent_total");
    wait_until("every handoff is counted", || stats(&cluster)["handoffs"]["count"] == json!(sent));
    let told = stats(&cluster);
    assert_eq!(
        (&told["role"], &told["ready"], &told["in_flight"]),
        (&json!("router"), &json!(true), &json!(0))
    );
    assert_eq!(told["handoffs"]["bytes"], cluster.prefill[0].metric("handoff_sent_bytes_total"));
    assert_eq!(told["tokens"]["generated"], cluster.router.metric("generation_tokens_total"));
    assert_eq!(states(&told), ["up", "up"]);
    let link = &told["links"][0];
    let names = |index: usize| &told["nodes"][index]["name"];
    assert_eq!((&link["from"], &link["to"]), (names(0), names(1)));
    assert!(link["bytes_per_second"].as_f64().unwrap() > 0.0, "{link}");
    // Also of those whose answers were complete before their handoffs were told of.
    assert_eq!(link["handoffs"], told["handoffs"]["count"]);

    // Requests in flight are told one by one, without what they ask.
    let mut long = completion(&Model::Llama.prompt(20, 2), 480);
    long["n"] = json!(16);
    let mut seen = Value::Null;
    wait_until("requests are in flight", || {
        let mut stream = Caller::ask(cluster.http(), &streamed(long.clone()));
        stream.wait_for_event();
        seen = stats(&cluster);
        stream.leave();
        seen["in_flight"].as_u64().unwrap() > 0
    });
    let request = &seen["requests"][0];
    assert_eq!((&request["prompt_tokens"], &request["max_tokens"]), (&json!(20), &json!(480)));
    assert!(request["prompt"].is_null() && request.as_object().unwrap().len() == 9, "{request}");
    cluster.settle();

    let (address, setup) = (cluster.decode.serving().to_owned(), cluster.setup.clone());
    let dir = cluster.dir.path().to_owned();
    cluster.decode.crash();
    wait_until("the page says who is gone", || {
        let told = stats(&cluster);
        let gone = matches!(states(&told)[..], ["up", "lost" | "unreachable"]);
        gone && told["not_ready"] == "no decode node is connected"
    });
    cluster.decode = start_decode(&setup, &dir, &address);
    wait_until("and who came back", || states(&stats(&cluster)) == ["up", "up"]);
    cluster.wait_until_serving();
    cluster.restart_accounts();
    cluster.finish();
}

/// Whoever looks for a caller's id in the router's log finds what became of his request, and the name under which
/// the nodes know it.
#[test]
fn a_callers_id_is_in_every_line_about_his_request() {
    let cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm));
    let url = format!("{}/v1/completions", cluster.http());
    let asked = ureq::post(&url).header("x-request-id", "case-4711");
    // Long enough for the report of its handoff to come before its end.
    let answer = asked.send_json(completion(&Model::Llama.prompt(40, 1), 300)).unwrap();
    assert_eq!(answer.headers()["x-request-id"], "case-4711");
    drop(answer);
    let lines = || -> Vec<String> {
        let log = cluster.router.log();
        log.lines().filter(|line| line.contains("case-4711")).map(str::to_owned).collect()
    };
    wait_until("its handoff is told", || lines().iter().any(|line| line.contains("handed over")));
    let lines = lines();
    let word = |line: &str, key: &str| {
        line.split_whitespace().find_map(|word| word.strip_prefix(key)).map(str::to_owned)
    };
    let sent = lines.iter().find(|line| line.contains("sent to its nodes")).unwrap();
    let own = word(sent, "request=").expect("the nodes' name of it");
    assert!(lines.iter().all(|line| word(line, "request=").as_ref() == Some(&own)), "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("decode shm:decode")), "{lines:?}");
    cluster.settle();
    cluster.finish();
}

/// What is wrong with a request is told with its id and with whoever took part, on each of its nodes; a node that took
/// any port that was free is called by the one that it got.
#[test]
fn nodes_name_each_other_in_lines_about_a_request() {
    let mut setup = Setup::new(Model::Llama, Carrier::Tcp4);
    setup.decode_flags.push("--max-model-len=200");
    let cluster = Cluster::start(setup);
    let names = [&cluster.prefill[0], &cluster.decode].map(|node| {
        assert!(!node.serving().ends_with(":0"), "{}", node.serving());
        format!("{} {}", node.role, node.serving())
    });
    let told = stats(&cluster);
    assert_eq!(
        [0, 1].map(|at| told["nodes"][at]["name"].as_str().unwrap()),
        [&*names[0], &*names[1]]
    );

    let prompt = Model::Llama.prompt(300, 3);
    ask(cluster.http(), &completion(&prompt, 8)).expect_err("more than the decode node takes");
    let [prefill, decode] = &names;
    for (node, line, others) in [
        (&cluster.decode, "decode failed", [("router", "router"), ("prefill", prefill)]),
        (&cluster.prefill[0], "prefill failed", [("router", "router"), ("decode", decode)]),
    ] {
        let mut log = String::new();
        wait_until("both nodes tell of it", || {
            log = node.log();
            log.contains(line)
        });
        let line = log.lines().find(|told| told.contains(line)).unwrap();
        assert!(line.contains("request="), "{line}");
        for (role, name) in others {
            assert!(line.contains(&format!("{role}=\"{name}\"")), "{role} {name} in {line}");
        }
    }
    cluster.settle();
    cluster.finish();
}

/// The page's script in a real browser: what it made of the numbers.
#[test]
fn a_browser_shows_the_page() {
    let Some(browser) = browser() else {
        println!("SKIPPED: no chromium is installed");
        return;
    };
    let cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Tcp4));
    ask(cluster.http(), &completion(&Model::Llama.prompt(40, 1), 8)).unwrap();
    let profile = cluster.dir.path().join("browser");
    let dump = |url: &str| {
        let mut command = Command::new(&browser);
        command
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server"])
            .args(["--virtual-time-budget=4000", "--dump-dom"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(url)
            .stderr(Stdio::null());
        String::from_utf8_lossy(&run(&mut command).stdout).into_owned()
    };
    let dom = dump(cluster.http());
    for shown in [
        "<span class=\"state\">ready</span>",
        &format!("<span class=\"soft\">{}</span>", cluster.decode.serving()),
        "idle</span>",
        "/s</span>",
        "none in flight",
    ] {
        assert!(dom.contains(shown), "{shown} is not in\n{dom}");
    }
    assert!(dom.contains("role=\"status\" hidden"), "it has lost nobody:\n{dom}");
    cluster.settle();
    cluster.finish();
}

/// A Chromium, where one is installed.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut found =
        std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    found.find(|program| program.is_file())
}
