//! Stands for `tls` where that is not built: without the feature, or on a processor that the cryptography
//! is not written for. Nothing of it can exist.

use std::borrow::Cow;

use tokio::net::TcpStream;

use crate::greeting::{BINDING_LEN, GreetError};
use crate::mover::Mover;
use crate::options::TcpOptions;

const WHY: &str = "`tls=key` needs the feature `tls` of blockwire-tcp, on x86_64 or aarch64: build with \
                   it, or leave `tls=key` out on both sides";

/// One end of TLS sessions.
#[derive(Clone, Debug)]
pub(crate) enum Tls {}

impl Tls {
    /// The end that dials.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn dialler(_options: &TcpOptions) -> Result<Self, Cow<'static, str>> {
        Err(WHY.into())
    }

    /// The end that listens.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn acceptor(_options: &TcpOptions) -> Result<Self, Cow<'static, str>> {
        Err(WHY.into())
    }

    pub(crate) async fn handshake(&self, _stream: TcpStream) -> Result<Session, GreetError> {
        match *self {}
    }
}

/// An encrypted connection.
#[derive(Debug)]
pub(crate) enum Session {}

impl Session {
    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        match *self {}
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        match *self {}
    }

    pub(crate) fn binding(&self) -> Result<[u8; BINDING_LEN], GreetError> {
        match *self {}
    }

    pub(crate) fn into_mover(self) -> Box<dyn Mover> {
        match self {}
    }
}
