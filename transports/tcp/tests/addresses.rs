//! What can be dialled and listened on, and what is said about the rest.

mod common;

use blockwire::transport::{ConnectError, ListenError, Transport};
use blockwire_tcp::TcpTransport;
use common::*;

#[test]
fn port_zero_becomes_the_real_port() {
    run(async {
        let transport = TcpTransport::default();
        for at in ["tcp://127.0.0.1:0", "tcp://[::1]:0", "tcp://localhost:0"] {
            let mut listener = listen(&transport, at).await;
            let port = listener.local_address().target().rsplit_once(':').unwrap().1.to_owned();
            assert_ne!(port, "0");
            let host = at.strip_suffix(":0").unwrap();
            let address = format!("{host}:{port}").parse().unwrap();
            let (dialled, _) = tokio::join!(transport.connect(&address), accept(&mut listener));
            dialled.unwrap();
        }
    });
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_that_is_not_built_is_refused_on_both_sides() {
    run(async {
        let transport = TcpTransport::new(keyed(KEY));
        let listened = transport.listen(&"tcp://127.0.0.1:0?tls=key".parse().unwrap()).await;
        let dialled = transport.connect(&"tcp://127.0.0.1:9?tls=key".parse().unwrap()).await;
        for said in [listened.err().unwrap().to_string(), dialled.err().unwrap().to_string()] {
            assert!(said.contains("needs the feature `tls`"), "{said}");
        }
    });
}

#[test]
fn fault_b38_every_interface_is_told_as_an_address_that_can_be_dialled() {
    run(async {
        let transport = TcpTransport::default();
        for at in ["tcp://0.0.0.0:0", "tcp://[::]:0"] {
            let mut listener = listen(&transport, at).await;
            let told = listener.local_address();
            assert!(!told.target().starts_with("0.0.0.0") && !told.target().starts_with("[::]"));
            let (mut dialled, mut accepted) = meet(&transport, &mut listener).await;
            dialled.control(&message(b"hello"));
            until(&mut [&mut dialled, &mut accepted], |sides| !sides[1].received().is_empty())
                .await;
        }
    });
}

#[test]
fn a_link_starts_where_it_is_told_to() {
    run(async {
        let transport = TcpTransport::default();
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        let told = listener.local_address();
        let mut from = async |bind: &str| {
            let address = format!("{told}?bind={bind}").parse().unwrap();
            let dialling =
                async { transport.connect(&address).await.map_err(|error| error.to_string()) };
            let accepting = async { Ok(accept(&mut listener).await.link.peer()) };
            let (_dialled, peer) = tokio::try_join!(dialling, accepting)?;
            Ok(peer.rsplit_once(':').unwrap().0.to_owned())
        };
        assert_eq!(from("127.0.0.1").await, Ok("tcp://127.0.0.1".into()));
        if cfg!(target_os = "linux") {
            assert_eq!(from("127.0.0.77").await, Ok("tcp://127.0.0.77".into()));
            assert_eq!(from("lo").await, Ok("tcp://127.0.0.1".into()));
        }
        let error: Result<String, String> = from("nowhere7").await;
        assert!(error.unwrap_err().contains("no interface `nowhere7`"));
        let error: Result<String, String> = from("::1").await;
        assert!(error.unwrap_err().contains("family"));
    });
}

#[test]
fn a_second_listener_is_told_that_the_port_is_taken() {
    run(async {
        let transport = TcpTransport::default();
        let mut first = listen(&transport, "tcp://127.0.0.1:0").await;
        let address = first.local_address();
        assert!(matches!(transport.listen(&address).await, Err(ListenError::InUse { .. })));
        let _links = meet(&transport, &mut first).await;
        drop(first);
        transport.listen(&address).await.unwrap();
    });
}

#[test]
fn bad_addresses_are_refused_before_any_socket() {
    run(async {
        let transport = TcpTransport::default();
        for bad in [
            "tcp://::1",
            "tcp://host",
            "tcp://[::1]",
            "tcp://[::1]:65536",
            "tcp://h:1?x=1",
            "mem:x",
        ] {
            let address = bad.parse().unwrap();
            let refused = transport.connect(&address).await.err().unwrap();
            assert!(matches!(refused, ConnectError::Address { .. }), "{refused}");
            let refused = transport.listen(&address).await.err().unwrap();
            assert!(matches!(refused, ListenError::Address { .. }), "{refused}");
        }
    });
}

#[test]
fn nobody_there_is_a_system_error_with_the_address() {
    run(async {
        let transport = TcpTransport::default();
        let address = listen(&transport, "tcp://127.0.0.1:0").await.local_address();
        // Often enough that the system would once have chosen the dialled port for the dialler.
        for _ in 0..200 {
            let refused = transport.connect(&address).await.err().unwrap();
            assert!(matches!(refused, ConnectError::System { .. }));
            assert!(refused.to_string().starts_with(&address.to_string()), "{refused}");
        }
    });
}

#[test]
fn both_ends_know_that_they_share_a_host() {
    run(async {
        let (a, b) = pair().await;
        assert!(a.link.capabilities().same_host && b.link.capabilities().same_host);
        assert!(a.link.peer().starts_with("tcp://127.0.0.1:"));
    });
}
