//! What can be set, and the values that suit most.

use std::time::Duration;

use uuid::Uuid;

use crate::key::ClusterKey;

/// How payload leaves its blocks. With TLS, encrypting copies it whatever is said here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendWay {
    /// Whichever of the two was measured to be faster on this very link, measured again now and then.
    #[default]
    Measured,
    /// The system copies (`writev`): the blocks are free as soon as the operation completed.
    Copies,
    /// The system takes references to the pages (`vmsplice`, `splice`) and copies nothing; the blocks
    /// linger until the peer has read them. Linux only, elsewhere like `Copies`.
    Pages,
}

/// How bytes pass between sockets and memory. With TLS it is always `Readiness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketPath {
    /// What was measured to be best: `Readiness`.
    #[default]
    Auto,
    /// The process waits until a socket is ready, then reads or writes.
    Readiness,
    /// The kernel is given whole transfers (`io_uring`, with the feature `uring`); falls back to
    /// `Readiness` where it does not allow that. Payload is copied by the system, whatever
    /// [`TcpOptions::send_way`] says.
    Uring,
}

/// Settings of all links of a [`TcpTransport`](crate::TcpTransport).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpOptions {
    /// This process, as its session's `Identity::instance` names it: with a cluster key, a peer takes no
    /// hello of another instance than the one that its greeting proved.
    pub instance: Uuid,
    /// What every peer has to have. Without a key anybody who reaches the port is a peer.
    pub cluster_key: Option<ClusterKey>,
    /// Dial and bind addresses of the loopback only, whatever a name resolves to.
    pub loopback_only: bool,
    /// Most payload bytes of one frame: what a control frame may have to wait for. At least 1, at most
    /// [`PAYLOAD_LEN_MAX`](blockwire::wire::PAYLOAD_LEN_MAX).
    pub payload_len_max: u64,
    /// How bytes pass between sockets and memory.
    pub path: SocketPath,
    /// How payload leaves its blocks.
    pub send_way: SendWay,
    /// Whether payload is digested. Without, damaged bytes are not noticed. Both ends have to agree:
    /// one alone declines whatever the other sends.
    pub digest: bool,
    /// Bytes of the kernel's send buffer; `None` leaves it to the kernel, which grows it as needed.
    pub send_buffer_len: Option<u32>,
    /// Bytes of the kernel's receive buffer; `None` leaves it to the kernel.
    pub receive_buffer_len: Option<u32>,
    /// How long one address of a name is tried.
    pub connect_timeout: Duration,
    /// How long a connect takes at most, with the look-up of the name and all its addresses.
    pub connect_deadline: Duration,
    /// How long a connection may take to greet, and all connections of one link to come.
    pub greeting_timeout: Duration,
    /// How long a link of several connections leaves one that it lost before it dials it again. Doubles with
    /// every failure, up to half a minute.
    pub redial_pause: Duration,
    /// How long a link may be silent before the kernel asks whether the peer still lives.
    pub keepalive_idle: Duration,
    /// How long it waits between two such questions; three without an answer end the link.
    pub keepalive_interval: Duration,
    /// How long sent bytes may stay unacknowledged before the kernel ends the link, where it can be told
    /// (Linux). Also how long a peer may keep its receive window shut. One of several connections of a
    /// link has a quarter of it.
    pub unacknowledged_max: Duration,
    /// Most bytes that the kernel takes before it has sent what it took, where it can be told (Linux): a
    /// control frame waits behind them. `None` leaves it to the kernel, which grows to megabytes, and so
    /// does [`SocketPath::Uring`]: there, a transfer that waits for less to be unsent was seen to wait for
    /// ever.
    pub unsent_len_max: Option<u32>,
    /// How long a closing link tries to send what it accepted.
    pub flush_timeout: Duration,
    /// How long a closing link that sent everything waits for the peer to end too.
    pub linger_timeout: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            instance: Uuid::new_v4(),
            cluster_key: None,
            loopback_only: false,
            payload_len_max: 512 << 10,
            path: SocketPath::default(),
            send_way: SendWay::default(),
            digest: true,
            send_buffer_len: None,
            receive_buffer_len: None,
            connect_timeout: Duration::from_secs(4),
            connect_deadline: Duration::from_secs(10),
            greeting_timeout: Duration::from_secs(4),
            redial_pause: Duration::from_millis(200),
            keepalive_idle: Duration::from_secs(15),
            keepalive_interval: Duration::from_secs(5),
            unacknowledged_max: Duration::from_secs(20),
            unsent_len_max: Some(256 << 10),
            flush_timeout: Duration::from_secs(5),
            linger_timeout: Duration::from_secs(1),
        }
    }
}
