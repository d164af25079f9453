//! Clients that go away, over real sockets.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::*;

async fn connect(front: &Front) -> (TcpStream, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let shutdown = async {
        let _ = stopped.await;
    };
    tokio::spawn(serve(listener, front.app.clone(), shutdown));
    (TcpStream::connect(address).await.unwrap(), stop)
}

async fn post(client: &mut TcpStream, body: &str) {
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
}

async fn until_live(front: &Front) {
    while front.backend.live.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_every_choice() {
    for stream in [false, true] {
        let front = Front::new(Scripted { endless: true, ..Scripted::saying("") });
        let (mut client, _stop) = connect(&front).await;
        post(&mut client, &format!(r#"{{"prompt": "p", "n": 3, "stream": {stream}}}"#)).await;
        until_live(&front).await;
        if stream {
            let mut some = [0; 64];
            client.read_exact(&mut some).await.unwrap();
            assert!(some.starts_with(b"HTTP/1.1 200"));
        }
        drop(client);
        front.idle().await;
    }
}

#[tokio::test]
async fn a_shutdown_completes_the_answers_begun() {
    let front = Front::new(Scripted { endless: true, ..Scripted::saying("") });
    let (mut client, stop) = connect(&front).await;
    post(&mut client, r#"{"prompt": "p", "stop": "aaaaaaaaaaaaaaaaaaaa", "stream": true}"#).await;
    until_live(&front).await;
    stop.send(()).unwrap();
    let mut answer = String::new();
    let read = client.read_to_string(&mut answer);
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap().unwrap();
    assert!(answer.contains("data: [DONE]"), "{answer}");
    front.idle().await;
}
