//! Somebody on the way between two sides, who sees every packet and may change it.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// What becomes of one direction, given the number of its first byte and the bytes.
pub(crate) type Meddle = Box<dyn FnMut(usize, &mut Vec<u8>) -> Fate + Send>;

/// Whether a direction goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Forward,
    /// What is left is sent, then the end of the stream.
    Cut,
}

/// A way from a dialler to a listener.
pub(crate) struct Tap {
    /// What to dial.
    pub(crate) address: String,
    /// All bytes that went through, of the dialler's first.
    seen: [Arc<Mutex<Vec<u8>>>; 2],
}

impl Tap {
    /// Stands before a listener, for one connection.
    pub(crate) async fn before(target: &str, of_dialler: Meddle, of_acceptor: Meddle) -> Self {
        let (to, query) = target.split_once('?').unwrap_or((target, ""));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("tcp://{}?{query}", listener.local_addr().unwrap());
        let address = address.trim_end_matches('?').to_owned();
        let seen: [Arc<Mutex<Vec<u8>>>; 2] = Default::default();
        let (to, [there, back]) = (to.to_owned(), seen.clone());
        tokio::spawn(async move {
            let (near, far) = (listener.accept().await.unwrap().0, TcpStream::connect(to).await);
            let ((from_near, to_near), (from_far, to_far)) =
                (near.into_split(), far.unwrap().into_split());
            tokio::join!(
                forward(from_near, to_far, of_dialler, there),
                forward(from_far, to_near, of_acceptor, back)
            )
        });
        Self { address, seen }
    }

    /// Whether bytes were to be seen, in either direction.
    pub(crate) fn saw(&self, bytes: &[u8]) -> bool {
        self.seen
            .iter()
            .any(|seen| seen.lock().unwrap().windows(bytes.len()).any(|window| window == bytes))
    }

    /// How many bytes went through.
    pub(crate) fn len(&self) -> usize {
        self.seen.iter().map(|seen| seen.lock().unwrap().len()).sum()
    }
}

/// Changes nothing.
pub(crate) fn honest() -> Meddle {
    Box::new(|_, _| Fate::Forward)
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut meddle: Meddle,
    seen: Arc<Mutex<Vec<u8>>>,
) {
    let (mut buffer, mut first) = (vec![0; 16 << 10], 0);
    while let Ok(len) = from.read(&mut buffer).await
        && len > 0
    {
        let mut bytes = buffer[..len].to_vec();
        let fate = meddle(first, &mut bytes);
        first += len;
        seen.lock().unwrap().extend_from_slice(&bytes);
        if to.write_all(&bytes).await.is_err() || fate == Fate::Cut {
            break;
        }
    }
    let _ = to.shutdown().await;
}
