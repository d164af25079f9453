//! Something between two ends of TCP connections: it carries bytes until it is told to stop.
//!
//! Connections are told apart by what the dialler's greeting says: the number of the stripe.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;

use blockwire::transport::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::common::GREETING_LEN;

/// Bytes that the system keeps for the proxy; it makes a multiple of that.
const BUFFER_LEN: u32 = 64 << 10;

/// What happens to a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is carried.
    Lives,
    /// Both of its connections are closed.
    Cut,
    /// Nothing is carried any more, and nobody is told.
    Hole,
}

/// A place to dial, and what is done to the stripes that come there.
pub(crate) struct Proxy {
    pub(crate) target: String,
    stripes: Rc<RefCell<HashMap<u16, watch::Sender<Fate>>>>,
    carried: Rc<RefCell<HashMap<u16, u64>>>,
    /// What becomes of a stripe after so many bytes of both directions.
    limits: Rc<RefCell<HashMap<u16, (u64, Fate)>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Proxy {
    /// Carries whoever comes to `to`. Its buffers are small, so that a hole is soon full.
    pub(crate) fn start(to: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(BUFFER_LEN).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(64).unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let (stripes, carried, limits) = Default::default();
        let carrier = Carrier {
            to: to.to_owned(),
            stripes: Rc::clone(&stripes),
            carried: Rc::clone(&carried),
            limits: Rc::clone(&limits),
        };
        let task = tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::task::spawn_local(carrier.clone().carry(stream));
            }
        });
        Self { target, stripes, carried, limits, tasks: vec![task] }
    }

    /// Lets a listener take stripes for a link that it has.
    pub(crate) fn keep(&mut self, mut listener: Box<dyn Listener>) {
        self.tasks.push(tokio::task::spawn_local(async move {
            loop {
                // A stripe may be cut before it has greeted.
                let came = poll_fn(|cx| listener.poll_accept(cx)).await;
                assert!(came.is_err(), "a link that nobody asked for");
            }
        }));
    }

    /// Does something to a stripe now.
    pub(crate) fn set(&self, stripe: u16, fate: Fate) {
        self.stripes.borrow()[&stripe].send_replace(fate);
    }

    /// Does something to a stripe after so many more bytes of it.
    pub(crate) fn set_after(&self, stripe: u16, bytes: u64, fate: Fate) {
        let at = self.carried(stripe) + bytes;
        self.limits.borrow_mut().insert(stripe, (at, fate));
    }

    /// The stripes that came so far, in the order of their numbers.
    pub(crate) fn stripes(&self) -> Vec<u16> {
        let mut stripes: Vec<_> = self.stripes.borrow().keys().copied().collect();
        stripes.sort_unstable();
        stripes
    }

    /// Bytes of a stripe so far, of both directions.
    pub(crate) fn carried(&self, stripe: u16) -> u64 {
        self.carried.borrow().get(&stripe).copied().unwrap_or(0)
    }
}

#[derive(Clone)]
struct Carrier {
    to: String,
    stripes: Rc<RefCell<HashMap<u16, watch::Sender<Fate>>>>,
    carried: Rc<RefCell<HashMap<u16, u64>>>,
    limits: Rc<RefCell<HashMap<u16, (u64, Fate)>>>,
}

impl Carrier {
    async fn carry(self, mut near: TcpStream) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(BUFFER_LEN).unwrap();
        let mut far = socket.connect(self.to.parse().unwrap()).await.unwrap();
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let mut greeting = [0; GREETING_LEN];
        if near.read_exact(&mut greeting).await.is_err() {
            return;
        }
        let stripe = u16::from_le_bytes([greeting[12], greeting[13]]);
        far.write_all(&greeting).await.unwrap();
        let (fate, watching) = watch::channel(Fate::Lives);
        self.stripes.borrow_mut().insert(stripe, fate);
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        let there = self.direction(stripe, near_in, far_out, watching.clone());
        let back = self.direction(stripe, far_in, near_out, watching);
        // The half that ends first waits for the other, so that a cut closes both at once.
        let _halves = tokio::join!(there, back);
    }

    async fn direction(
        &self,
        stripe: u16,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        mut fate: watch::Receiver<Fate>,
    ) -> (OwnedReadHalf, OwnedWriteHalf) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let now = *fate.borrow_and_update();
            match now {
                Fate::Cut => return (from, to),
                Fate::Hole => {
                    if fate.changed().await.is_err() {
                        return (from, to);
                    }
                    continue;
                }
                Fate::Lives => {}
            }
            let left = self.left(stripe).min(bytes.len() as u64) as usize;
            let carrying = async {
                let len = from.read(&mut bytes[..left]).await?;
                to.write_all(&bytes[..len]).await?;
                Ok::<_, std::io::Error>(len)
            };
            tokio::select! {
                biased;
                _ = fate.changed() => {}
                carried = carrying => match carried {
                    Ok(len) if len > 0 => self.count(stripe, len),
                    _ => {
                        let _ = to.shutdown().await;
                        return (from, to);
                    }
                }
            }
        }
    }

    fn left(&self, stripe: u16) -> u64 {
        let at = self.limits.borrow().get(&stripe).map_or(u64::MAX, |(at, _)| *at);
        let carried = self.carried.borrow().get(&stripe).copied().unwrap_or(0);
        at.saturating_sub(carried).max(1)
    }

    fn count(&self, stripe: u16, len: usize) {
        let mut carried = self.carried.borrow_mut();
        let carried = carried.entry(stripe).or_insert(0);
        *carried += len as u64;
        if let Some((at, fate)) = self.limits.borrow().get(&stripe).copied()
            && *carried >= at
        {
            self.stripes.borrow()[&stripe].send_replace(fate);
        }
    }
}
