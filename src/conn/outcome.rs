//! How a connection ended, for logs and counters.

use crate::sys::Errno;
use crate::tls::Failure;

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Everything asked for was answered.
    Complete,
    /// The peer closed between exchanges.
    PeerClosed,
    /// The peer closed in the middle of a request.
    PeerAborted,
    /// Nothing came between exchanges for the idle time.
    Idle,
    /// A request head or body did not come in time.
    RequestTimeout,
    /// The TLS handshake did not end in time.
    HandshakeTimeout,
    /// The peer took no bytes for the send time.
    SendStalled,
    /// The request was refused and the connection with it.
    Refused,
    /// The file became shorter or was rewritten while it was sent.
    FileChanged,
    /// The file could not be read.
    FileUnreadable,
    /// A program failed in the middle of its answer.
    ProgramFailed,
    /// The PROXY protocol header was malformed.
    ProxyHeader,
    /// TLS failed.
    TlsFailed(Failure),
    /// A key has protected as many records as it may, and TLS 1.2 has no way to another.
    KeyUsedUp,
    /// The socket failed.
    SocketFailed(Errno),
    /// The worker stopped first.
    Stopped,
}

impl Outcome {
    /// Whether a deadline ended it, other than the idle one.
    pub fn is_timeout(self) -> bool {
        matches!(self, Self::RequestTimeout | Self::HandshakeTimeout | Self::SendStalled)
    }

    /// Whether bytes promised to the peer were not delivered, so that nothing may be sent that
    /// would make the response look complete.
    pub fn is_truncation(self) -> bool {
        matches!(
            self,
            Self::SendStalled
                | Self::FileChanged
                | Self::FileUnreadable
                | Self::ProgramFailed
                | Self::SocketFailed(_)
                | Self::TlsFailed(_)
                | Self::KeyUsedUp
        )
    }
}
