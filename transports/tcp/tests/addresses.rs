//! What can be dialled and listened on, and what is said about the rest.

mod common;

use blockwire::transport::{ConnectError, ListenError, Transport};
use blockwire_tcp::TcpTransport;
use common::*;

#[test]
fn port_zero_becomes_the_real_port() {
    run(async {
        let transport = TcpTransport::default();
        for at in ["tcp://127.0.0.1:0", "tcp://[::1]:0", "tcp://localhost:0", "tcp://0.0.0.0:0"] {
            let listener = listen(&transport, at).await;
            let port = listener.local_address().target().rsplit_once(':').unwrap().1.to_owned();
            assert_ne!(port, "0");
            let host = at.strip_suffix(":0").unwrap().replace("0.0.0.0", "127.0.0.1");
            transport.connect(&format!("{host}:{port}").parse().unwrap()).await.unwrap();
        }
    });
}

#[test]
fn a_second_listener_is_told_that_the_port_is_taken() {
    run(async {
        let transport = TcpTransport::default();
        let first = listen(&transport, "tcp://127.0.0.1:0").await;
        let address = first.local_address();
        assert!(matches!(transport.listen(&address).await, Err(ListenError::InUse { .. })));
        let _link = transport.connect(&address).await.unwrap();
        drop(first);
        transport.listen(&address).await.unwrap();
    });
}

#[test]
fn bad_addresses_are_refused_before_any_socket() {
    run(async {
        let transport = TcpTransport::default();
        for bad in ["tcp://::1", "tcp://host", "tcp://[::1]", "tcp://[::1]:65536", "mem:x"] {
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
