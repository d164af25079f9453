//! Sockets, with the options that a link needs. Tokio opens them non-blocking and close-on-exec.

#[cfg(target_os = "linux")]
#[path = "linux/congestion.rs"]
mod congestion;

#[cfg(target_os = "macos")]
#[path = "macos/congestion.rs"]
mod congestion;

#[cfg(target_os = "linux")]
#[path = "linux/limits.rs"]
mod limits;

#[cfg(target_os = "macos")]
#[path = "macos/limits.rs"]
mod limits;

use std::io;
use std::net::SocketAddr;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::address::Source;
use crate::options::{SocketPath, TcpOptions};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Questions without an answer that end a silent connection.
const KEEPALIVE_RETRIES: u32 = 3;

/// Dials one address, from `source` if one is wished for.
pub(crate) async fn connect(
    to: SocketAddr,
    source: Option<&Source>,
    options: &TcpOptions,
) -> io::Result<TcpStream> {
    let socket = open(to, options)?;
    if let Some(source) = source {
        source.bind(&socket, to)?;
    }
    let stream = socket.connect(to).await?;
    // A dialled port that nobody listens on may be the very one that the system picked for this end:
    // TCP then connects the socket to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// Binds one address. A port of a listener that ended may be bound again at once, one that is
/// listened on may not.
pub(crate) fn listen(at: SocketAddr, options: &TcpOptions) -> io::Result<TcpListener> {
    let socket = open(at, options)?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

/// Sets what a connected socket needs. Nothing of it is needed for a link to work, so failures are
/// only told.
pub(crate) fn tune(stream: &TcpStream, same_host: bool, options: &TcpOptions) {
    let socket = SockRef::from(stream);
    let unsent_len_max = options.unsent_len_max.filter(|_| options.path != SocketPath::Uring);
    let keepalive = TcpKeepalive::new()
        .with_time(options.keepalive_idle)
        .with_interval(options.keepalive_interval)
        .with_retries(KEEPALIVE_RETRIES);
    let set = [
        stream.set_nodelay(true),
        socket.set_tcp_keepalive(&keepalive),
        limits::unacknowledged_max(&socket, options.unacknowledged_max),
        unsent_len_max.map_or(Ok(()), |len| limits::unsent_len_max(&socket, len)),
    ];
    for error in set.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "a socket option was refused");
    }
    if same_host {
        let used = congestion::prefer_local(&socket);
        tracing::debug!(congestion = used, "the peer is on this host");
    }
}

/// Buffer lengths must be set before the handshake: it negotiates the window's scale.
fn open(address: SocketAddr, options: &TcpOptions) -> io::Result<TcpSocket> {
    if options.loopback_only && !address.ip().to_canonical().is_loopback() {
        let why = format!("{address} is no loopback address, and others are not allowed");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(len) = options.send_buffer_len {
        socket.set_send_buffer_size(len)?;
    }
    if let Some(len) = options.receive_buffer_len {
        socket.set_recv_buffer_size(len)?;
    }
    Ok(socket)
}
