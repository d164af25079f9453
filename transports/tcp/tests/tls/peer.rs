//! The other end of a session, written from the manual alone: it does what a test tells it to.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::common::*;

/// Takes whatever key it is shown, and whatever was signed with it.
#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        unreachable!("only TLS 1.3 is spoken")
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A session as client.
pub(crate) async fn dial(to: &str) -> io::Result<client::TlsStream<TcpStream>> {
    let config = ClientConfig::builder_with_provider(rustls_graviola::default_provider().into())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_no_client_auth();
    let stream = TcpStream::connect(to.split('?').next().unwrap()).await?;
    let name = ServerName::from(stream.peer_addr()?.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// A session as server, with a key that is nobody's.
pub(crate) async fn accept(stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
    let provider = rustls_graviola::default_provider();
    let prefix = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
    let der = PrivatePkcs8KeyDer::from([&prefix[..], &[0x42; 32]].concat());
    let key = provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(der)).unwrap();
    let shown = CertificateDer::from(key.public_key().unwrap().as_ref().to_vec());
    let key = Arc::new(CertifiedKey::new(vec![shown], key));
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    TlsAcceptor::from(Arc::new(config)).accept(stream).await
}

/// The exporter of a session.
macro_rules! exporter {
    ($stream:expr) => {
        $stream
            .get_ref()
            .1
            .export_keying_material([0; 32], b"EXPORTER-blockwire-2026-11-tcp", None)
            .unwrap()
    };
}
pub(crate) use exporter;

/// Dials, greets, and proves that it has the key, in this very session if `bound`. Whether it was taken.
pub(crate) async fn stranger(to: &str, bound: bool) -> io::Result<client::TlsStream<TcpStream>> {
    let mut stream = dial(to).await?;
    let (ours, mut theirs) = (greeting(true), [0; GREETING_LEN]);
    stream.write_all(&ours).await?;
    stream.read_exact(&mut theirs).await?;
    let mut transcript = [ours, theirs].concat();
    if bound {
        transcript.extend(exporter!(stream));
    }
    stream.write_all(&proof(KEY, DIALLER, &transcript)).await?;
    let mut answer = [0; PROOF_LEN];
    stream.read_exact(&mut answer).await?;
    assert_eq!(answer, proof(KEY, ACCEPTOR, &transcript));
    Ok(stream)
}
