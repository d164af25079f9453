//! TLS 1.3 below everything that a connection says: `?tls=key`.
//!
//! ```text
//! dialler                                         acceptor
//! ClientHello  ────────────────────────────────>
//!              <────────────────────────────────  ServerHello, a raw public key, Finished
//! Finished     ────────────────────────────────>
//! ┌ records ────────────────────────────────────────────────────────────────────────────┐
//! │ greeting, proof over both greetings and the session's exporter, frames without tags │
//! └─────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! There are no certificates to hand out. A listener shows a raw public key (RFC 7250) that it made when it
//! was bound, a dialler shows none and takes any key: at this point nobody knows who is there. The
//! greeting tells, inside the session, and its proofs cover the session's exporter (RFC 8446, section 7.5;
//! a *channel binding* as in RFC 9266). Whoever stands in the middle and ends TLS on both sides has two
//! sessions with two exporters, so the proof that he hands on is wrong. That is why `?tls=key` needs a
//! cluster key.
//!
//! What it adds to the cluster key alone: nobody on the way reads the caches, and whoever learns the key
//! later cannot read what was recorded before, because the secrets of a session come from a key exchange
//! of its own. The tags behind the frames (`seal`) are left out: each record has one.
//!
//! Nothing is resumed and no tickets are sent: links are made rarely, and a session that is always new
//! has an exporter that is always new.
//!
//! The handshake is part of the greeting for every limit. Until it is done a stranger costs a socket, a
//! key exchange, and 64 KiB at most, filled as bytes come: longer handshake messages are refused.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;

use blockwire::transport::{KeyMismatch, Violation};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, Connection, DigitallySignedStruct, Error, InvalidMessage, ServerConfig,
    SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::greeting::{BINDING_LEN, GreetError};
use crate::mover::{Mover, Records};
use crate::options::TcpOptions;

/// Label of the exporter. It is used for nothing else.
const EXPORTER: &[u8] = b"EXPORTER-blockwire-2026-11-tcp";

/// An Ed25519 private key in PKCS #8 (RFC 8410, section 7), without its 32 bytes.
const PKCS8_OF_ED25519: [u8; 16] =
    *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// One end of TLS sessions.
#[derive(Clone)]
pub(crate) enum Tls {
    Dialler(TlsConnector),
    Acceptor(TlsAcceptor),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dialler(_) => "Tls(dialler)",
            Self::Acceptor(_) => "Tls(acceptor)",
        })
    }
}

impl Tls {
    /// The end that dials.
    ///
    /// # Errors
    /// Why there is no TLS, for people.
    pub(crate) fn dialler(options: &TcpOptions) -> Result<Self, Cow<'static, str>> {
        check(options)?;
        let provider = Arc::new(rustls_graviola::default_provider());
        let verifier = Arc::new(AnyKey(provider.signature_verification_algorithms));
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(Self::Dialler(Arc::new(config).into()))
    }

    /// The end that listens, with a new key.
    ///
    /// # Errors
    /// Why there is no TLS, for people.
    pub(crate) fn acceptor(options: &TcpOptions) -> Result<Self, Cow<'static, str>> {
        check(options)?;
        let provider = Arc::new(rustls_graviola::default_provider());
        let key = throw_away_key(&provider).map_err(|error| error.to_string())?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self::Acceptor(Arc::new(config).into()))
    }

    /// Makes a fresh connection a session.
    ///
    /// # Cancel safety
    /// None: the connection is dropped.
    pub(crate) async fn handshake(&self, stream: TcpStream) -> Result<Session, GreetError> {
        let made: io::Result<TlsStream<_>> = match self {
            Self::Dialler(connector) => {
                // No name is sent: the peer is known by its proof.
                let name = ServerName::from(stream.peer_addr()?.ip());
                connector.connect(name, stream).await.map(TlsStream::from)
            }
            Self::Acceptor(acceptor) => acceptor.accept(stream).await.map(TlsStream::from),
        };
        Ok(Session { stream: made.map_err(refusal)? })
    }
}

/// What TLS needs of this process.
fn check(options: &TcpOptions) -> Result<(), Cow<'static, str>> {
    if options.cluster_key.is_none() {
        return Err(
            "`tls=key` proves with the cluster key who is at the other end, and this side has \
                    none: give both sides the same key, or leave `tls=key` out on both"
                .into(),
        );
    }
    match processor::lacks() {
        Some(what) => Err(format!(
            "this processor lacks `{what}`, which TLS needs here: leave `tls=key` out on both sides"
        )
        .into()),
        None => Ok(()),
    }
}

fn throw_away_key(provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, Error> {
    let mut der = [0; PKCS8_OF_ED25519.len() + 32];
    let (prefix, secret) = der.split_at_mut(PKCS8_OF_ED25519.len());
    prefix.copy_from_slice(&PKCS8_OF_ED25519);
    provider.secure_random.fill(secret)?;
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der.to_vec()));
    let key = provider.key_provider.load_private_key(der)?;
    let public = key.public_key().ok_or_else(|| Error::General("a key without a half".into()))?;
    let shown = CertificateDer::from(public.as_ref().to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![shown], key)))
}

/// Takes any raw public key. That the peer has its other half is checked, like everything else of TLS.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyKey {
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
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// An encrypted connection to whoever it is.
#[derive(Debug)]
pub(crate) struct Session {
    stream: TlsStream<TcpStream>,
}

impl Session {
    /// What is said inside.
    pub(crate) fn stream(&mut self) -> &mut TlsStream<TcpStream> {
        &mut self.stream
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.get_ref().0
    }

    /// Bytes that both ends of this session have, and no other session has.
    pub(crate) fn binding(&self) -> Result<[u8; BINDING_LEN], GreetError> {
        let bytes = [0; BINDING_LEN];
        let exported = match &self.stream {
            TlsStream::Client(stream) => {
                stream.get_ref().1.export_keying_material(bytes, EXPORTER, None)
            }
            TlsStream::Server(stream) => {
                stream.get_ref().1.export_keying_material(bytes, EXPORTER, None)
            }
        };
        exported.map_err(|error| io::Error::other(error).into())
    }

    /// What moves frames through the session.
    pub(crate) fn into_mover(self) -> Box<dyn Mover> {
        let (socket, session) = match self.stream {
            TlsStream::Client(stream) => {
                let (socket, session) = stream.into_inner();
                (socket, Connection::from(session))
            }
            TlsStream::Server(stream) => {
                let (socket, session) = stream.into_inner();
                (socket, Connection::from(session))
            }
        };
        Box::new(Records::new(socket, session))
    }
}

/// Why a handshake failed.
fn refusal(error: io::Error) -> GreetError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        // The very first byte is none of TLS.
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            KeyMismatch::TlsOnlyHere.into()
        }
        Some(Error::AlertReceived(_)) | None => error.into(),
        Some(broken) => violation(broken).into(),
    }
}

/// What a peer did that TLS does not allow.
pub(crate) fn violation(error: &Error) -> Violation {
    tracing::debug!(%error, "a TLS session is broken");
    Violation::Tls(match error {
        Error::DecryptError => "a record that is not the peer's: changed, replayed or out of order",
        Error::PeerSentOversizedRecord => "a record that is too long",
        Error::PeerIncompatible(_) => "the peer's TLS has nothing in common with this side's",
        _ => "a message that TLS does not allow here",
    })
}
