//! Good requests among rubbish: what one peer or caller does wrong harms nobody else.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

use blockwire::endpoint::{Endpoint, EndpointOptions, Event};
use blockwire::session::Identity;
use blockwire::transport::Address;
use blockwire_runtime::files::ModelFiles;
use blockwire_serving::protocol::{ResultFrame, kind};
use blockwire_tcp::TcpTransport;
use bytes::Bytes;
use serde_json::json;
use uuid::Uuid;

use crate::client::{Completion, ask, post};
use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::{Model, completion, sampled, streamed};
use crate::node::Node;

/// Good requests.
const REQUESTS: usize = 50;

fn body(number: usize) -> serde_json::Value {
    let body = completion(&Model::Llama.prompt(1 + number * 7 % 200, number), 24);
    let body = if number.is_multiple_of(3) { sampled(body, number as u64) } else { body };
    if number.is_multiple_of(2) { streamed(body) } else { body }
}

#[test]
fn good_requests_are_served_among_rubbish() {
    let mut setup = Setup::new(Model::Llama, Carrier::Tcp4);
    setup.prefill_nodes = 2;
    let mut cluster = Cluster::start(setup);
    let pids: Vec<u32> = cluster.nodes().map(Node::pid).collect();
    let expected: Vec<Completion> =
        (0..REQUESTS).map(|number| ask(cluster.http(), &body(number)).unwrap()).collect();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let (cluster, expected) = (&cluster, &expected);
                scope.spawn(move || {
                    for number in (caller..REQUESTS).step_by(4) {
                        let answer = ask(cluster.http(), &body(number)).unwrap();
                        assert_eq!(answer, expected[number], "request {number}");
                    }
                })
            })
            .collect();
        for round in 0..5 {
            for node in [&cluster.decode, &cluster.prefill[0], &cluster.prefill[1]] {
                send_garbage(node.serving(), round);
                send_malformed(node.serving(), node.role == "prefill");
            }
            send_bad_requests(cluster.http());
        }
        for caller in callers {
            caller.join().unwrap();
        }
    });
    let computed = |node: &Node| node.metric("prefill_tokens_computed_total");
    assert!(cluster.prefill.iter().all(|node| computed(node) > 0), "one prefill node is idle");
    assert_eq!(ask(cluster.http(), &body(1)).unwrap(), expected[1]);
    assert_eq!(cluster.nodes().map(Node::pid).collect::<Vec<_>>(), pids);
    let nodes = [&mut cluster.router, &mut cluster.decode].into_iter().chain(&mut cluster.prefill);
    for node in nodes {
        assert!(node.is_running(), "{} ended", node.role);
        assert!(!node.log().contains("panicked"), "{}", node.log());
    }
    cluster.finish();
}

/// Bytes that are no hello, and a connection that says nothing at all.
fn send_garbage(serving: &str, round: u8) {
    let address = serving.strip_prefix("tcp://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let garbage: Vec<u8> = (0..4096_u32).map(|n| (n * 31) as u8 ^ round).collect();
    // The node may close before all of it is written.
    let _ = stream.write_all(&garbage);
    let _ = TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n");
    drop(TcpStream::connect(address).unwrap());
}

/// Requests of the API that are refused.
fn send_bad_requests(http: &str) {
    let mut tools = completion(&[5, 6], 4);
    tools["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    assert_eq!(ask(http, &tools).unwrap_err().status, 400);
    let mut many = completion(&[5, 6], 4);
    many["n"] = json!(1000);
    assert_eq!(ask(http, &many).unwrap_err().status, 400);
    assert_eq!(ask(http, &completion(&Model::Llama.prompt(3000, 0), 4)).unwrap_err().status, 413);
    let large = vec![b' '; (8 << 20) + 1];
    assert_eq!(post(&format!("{http}/v1/completions"), "application/json", &large).0, 413);
}

/// A peer that says the right hello, and then messages that make no sense.
fn send_malformed(serving: &str, prefill: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address: Address = serving.parse().unwrap();
    let files = ModelFiles::open(Model::Llama.path()).unwrap();
    let identity = Identity {
        model: files.id().to_owned(),
        fingerprint: Bytes::copy_from_slice(files.fingerprint().as_bytes()),
        role: Bytes::from_static(b"router"),
        ..Identity::new("a peer that sends rubbish")
    };
    let options = EndpointOptions::new(identity, None, vec![Arc::new(TcpTransport::default())]);
    let endpoint = Endpoint::start(options).unwrap();
    runtime.block_on(async {
        let (connection, mut events) = endpoint.connect(&address).await.unwrap();
        let rubbish = Bytes::from_static(b"\xff\xff\xff\xff rubbish");
        let unreadable = Uuid::new_v4();
        for kind in [u32::MAX, 0, kind::RESULT, kind::CANCEL] {
            connection.send(Uuid::new_v4(), 7, kind, rubbish.clone()).await.unwrap();
        }
        let sent = connection.send(unreadable, 0, kind::PREFILL_REQUEST, rubbish.clone());
        sent.await.unwrap();
        connection.send(Uuid::new_v4(), 0, kind::PREFILL_REQUEST, Bytes::new()).await.unwrap();
        if prefill {
            // What cannot be read fails its request, and its sender is told.
            let Some(Event::Message(told)) = events.next().await else { panic!("no answer") };
            assert_eq!((told.request, told.kind), (unreadable, kind::RESULT));
            assert!(ResultFrame::read(told.body).unwrap().failure.is_some());
        }
        connection.close("done");
    });
    endpoint.shut_down();
}
