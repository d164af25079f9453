//! Addresses, listeners and the way to a link.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use blockwire::transport::{
    Address, ConnectError, Link, ListenError, Listener, LocalFuture, Transport,
};

use crate::Harness;
use crate::drive::{Drive, Pair, STALL, until};
use crate::frames::{control, expect_frames, frame};
use crate::node::Node;
use crate::rig::{Rig, connect, listen, skip};

/// Nobody listens: an error, no link.
pub fn a_refused_connection_is_an_error<H: Harness>() {
    Rig::<H>::once(async |rig| {
        let transport = rig.transport();
        let listener = listen(&*transport, &rig.harness().address()).await;
        let address = listener.local_address();
        drop(listener);
        let dialled = tokio::time::timeout(STALL, transport.connect(&address)).await;
        let error = dialled.expect("stuck in connect").err().expect("nobody listens");
        assert!(matches!(error, ConnectError::System { .. }), "{error}");
    });
}

/// Another transport's address is refused by name.
pub fn a_foreign_address_is_an_error<H: Harness>() {
    Rig::<H>::once(async |rig| {
        let transport = rig.transport();
        assert_eq!(transport.scheme(), rig.harness().address().scheme());
        let foreign = Address::new("elsewhere", "somewhere:1");
        let error = transport.connect(&foreign).await.err().expect("not its scheme");
        assert!(matches!(error, ConnectError::Address { .. }), "{error}");
        let error = transport.listen(&foreign).await.err().expect("not its scheme");
        assert!(matches!(error, ListenError::Address { .. }), "{error}");
    });
}

/// One listener an address; the address is free again after the listener is dropped.
pub fn an_address_has_one_listener<H: Harness>() {
    Rig::<H>::once(async |rig| {
        let (transport, other) = (rig.transport(), rig.transport());
        let mut listener = listen(&*transport, &rig.harness().address()).await;
        let address = listener.local_address();
        for transport in [&transport, &other] {
            let error = transport.listen(&address).await.err().expect("it is in use");
            assert!(
                matches!(&error, ListenError::InUse { address: a } if *a == address),
                "{error}"
            );
        }
        // The one that was there first still listens.
        greet(connect(&*other, &mut *listener).await).await;
        drop(listener);
        let mut listener = listen(&*other, &address).await;
        assert_eq!(listener.local_address(), address);
        greet(connect(&*transport, &mut *listener).await).await;
    });
}

/// Many links through one listener do not get each other's frames, and outlive it.
pub fn links_of_one_listener_are_apart<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let transport = rig.transport();
        let mut listener = listen(&*transport, &rig.harness().address()).await;
        let mut pairs = Vec::new();
        for _ in 0..20 {
            pairs.push(rig.pair_of(&*transport, &mut *listener).await);
        }
        drop(listener);
        for (number, pair) in (0..).zip(&mut pairs) {
            pair.near.submit(control(number, 9));
            pair.far.submit(control(number + 100, 9));
        }
        for (number, pair) in (0..).zip(&mut pairs) {
            until(pair, "a frame arrives each way", |p| {
                p.near.received().len() == 1 && p.far.received().len() == 1
            })
            .await;
            assert!(pair.far.received().pop_front() == Some(frame(number, 9)));
            assert!(pair.near.received().pop_front() == Some(frame(number + 100, 9)));
        }
    });
}

/// Clients that are no peers fail alone: the listener goes on, and so does who dials properly.
pub fn a_listener_survives_garbage<H: Harness>() {
    Rig::<H>::once(async |rig| {
        let transport = rig.transport();
        let listener = listen(&*transport, &rig.harness().address()).await;
        let mut crowd = Crowd::new(listener);
        let long = vec![0xa5; 100_000];
        let inputs: [&[u8]; 5] = [b"", b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &[0xff; 7], &long];
        let mut held = Vec::new();
        for hold in [true, false] {
            for bytes in inputs {
                let address = crowd.listener.local_address();
                let Some(garbage) = rig.harness().send_garbage(&address, bytes) else {
                    return skip("nothing but a peer can dial");
                };
                held.extend(hold.then_some(garbage));
                crowd.a_proper_peer_is_served(&*transport).await;
            }
        }
    });
}

/// A dropped `connect` leaves a listener that goes on.
pub fn a_dropped_connect_leaves_nothing_behind<H: Harness>() {
    Rig::<H>::once(async |rig| {
        let transport = rig.transport();
        let listener = listen(&*transport, &rig.harness().address()).await;
        let mut crowd = Crowd::new(listener);
        for polls in [0, 1, 2, 3, 10] {
            let mut dialling = transport.connect(&crowd.listener.local_address());
            for _ in 0..polls {
                if poll_fn(|cx| Poll::Ready(dialling.as_mut().poll(cx).is_ready())).await {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(dialling);
            crowd.a_proper_peer_is_served(&*transport).await;
        }
    });
}

/// A frame each way.
async fn greet((near, far): (Box<dyn Link>, Box<dyn Link>)) {
    let mut pair = Pair::new(Node::new("near", near), Node::new("far", far));
    pair.near.submit(control(0, 3));
    pair.far.submit(control(0, 3));
    until(&mut pair, "a frame arrives each way", |p| {
        p.near.received().len() == 1 && p.far.received().len() == 1
    })
    .await;
    expect_frames(&mut pair.near, [3]);
    expect_frames(&mut pair.far, [3]);
}

/// A listener, whoever came to it, and one who dials.
struct Crowd {
    listener: Box<dyn Listener>,
    accepted: Vec<Node>,
    dialling: Option<LocalFuture<Result<Box<dyn Link>, ConnectError>>>,
    dialled: Option<Node>,
    served: u32,
}

impl Crowd {
    fn new(listener: Box<dyn Listener>) -> Self {
        Self { listener, accepted: Vec::new(), dialling: None, dialled: None, served: 0 }
    }

    async fn a_proper_peer_is_served(&mut self, transport: &dyn Transport) {
        self.served += 1;
        let number = self.served;
        self.dialling = Some(transport.connect(&self.listener.local_address()));
        until(self, "a proper peer gets a link", |c| c.dialled.is_some()).await;
        self.dialled.as_mut().unwrap().submit(control(number, 9));
        until(self, "its frame arrives", |c| {
            c.accepted.iter_mut().any(|n| !n.received().is_empty())
        })
        .await;
        let frames = self.accepted.iter_mut().flat_map(|node| node.received().drain(..));
        let frames: Vec<_> = frames.collect();
        assert!(frames == [frame(number, 9)], "other frames than the peer sent");
        self.dialled = None;
    }
}

impl Drive for Crowd {
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let mut turned = false;
        if let Some(dialling) = &mut self.dialling
            && let Poll::Ready(link) = dialling.as_mut().poll(cx)
        {
            let link = link.unwrap_or_else(|error| panic!("a proper peer is refused: {error}"));
            (self.dialling, self.dialled) = (None, Some(Node::new("dialled", link)));
            turned = true;
        }
        if let Poll::Ready(link) = self.listener.poll_accept(cx) {
            self.accepted.extend(link.ok().map(|link| Node::new("accepted", link)));
            turned = true;
        }
        for node in self.dialled.iter_mut().chain(&mut self.accepted) {
            turned |= node.turn(cx);
        }
        turned
    }

    fn progress(&self) -> u64 {
        let nodes = self.dialled.iter().chain(&self.accepted);
        nodes.map(Node::progress).sum::<u64>() + self.accepted.len() as u64
    }
}

impl fmt::Debug for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crowd")
            .field("address", &self.listener.local_address())
            .field("accepted", &self.accepted)
            .field("dialled", &self.dialled)
            .finish_non_exhaustive()
    }
}
