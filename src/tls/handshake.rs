//! The handshake: rustls is driven as far as the received bytes go, and left when both sides have finished.
//! The only view of rustls's connection. RFC 8446 section 4, RFC 5246 section 7.
//!
//! It is shown one record at a time, so that no byte of application data ever reaches it.

use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CipherSuite, ConnectionTrafficSecrets, HandshakeKind, ProtocolVersion};

use super::control::{Alert, Failure};
use super::records::{CONTENT_MAX, Cipher, HEADER, Secrets, Version};
use super::{Endpoint, resolver};

/// How much a client may send before its handshake is complete. A hello is 2 KiB with post-quantum
/// key exchange; nothing else a client without certificate sends is of any size.
pub const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// What a completed handshake agreed on, for logs and for the Host check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Established {
    /// "TLSv1.3" or "TLSv1.2".
    pub version: &'static str,
    /// The cipher suite's registered name.
    pub cipher: &'static str,
    /// Whether HTTP/1.1 was agreed on by name; otherwise the client said nothing.
    pub alpn: bool,
    /// Whether a ticket saved the client the signature.
    pub resumed: bool,
    /// The host the client asked for, as it wrote it.
    pub server_name: Option<Box<str>>,
}

/// rustls, until both sides have finished.
pub(super) struct Handshake {
    connection: UnbufferedServerConnection,
    /// Received and not yet used up.
    input: Vec<u8>,
    /// How much of `input` rustls has been shown: whole records.
    shown: usize,
    /// How much was received in all.
    total: usize,
    server_name: Option<Box<str>>,
    kernel: bool,
}

/// What is left of rustls.
pub(super) struct Finished {
    pub(super) established: Established,
    pub(super) keys: Keys,
    /// Whether the kernel may take over sending.
    pub(super) kernel: bool,
    /// Received bytes behind the handshake.
    pub(super) rest: Vec<u8>,
}

/// The keys of a session.
pub(super) struct Keys {
    pub(super) sending: Secrets,
    pub(super) receiving: Secrets,
    /// Makes new ones; TLS 1.3 only.
    pub(super) next: Option<KernelConnection<ServerConnectionData>>,
}

impl Handshake {
    pub(super) fn new(endpoint: &Endpoint) -> Self {
        let connection = UnbufferedServerConnection::new(endpoint.server().clone());
        Self {
            connection: connection.expect("the configuration was accepted when it was built"),
            input: Vec::new(),
            shown: 0,
            total: 0,
            server_name: None,
            kernel: endpoint.kernel_tls(),
        }
    }

    /// Drives rustls as far as the received bytes go. Says whether the handshake is complete.
    pub(super) fn advance(&mut self, wire: &[u8], out: &mut Vec<u8>) -> Result<bool, Failure> {
        self.total += wire.len();
        self.input.extend_from_slice(wire);
        if self.is_plain_http() {
            return Err(Failure::PlainHttp);
        }
        // At first nothing may have been shown; rustls then only says that it waits.
        loop {
            let UnbufferedStatus { discard, state } =
                self.connection.process_tls_records(&mut self.input[..self.shown]);
            let step = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(out, |into| data.encode(into));
                    Step::Again
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    Step::Again
                }
                Ok(ConnectionState::BlockedHandshake) => Step::Wait,
                Ok(ConnectionState::WriteTraffic(_)) => Step::Finished,
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    Step::Failed(Failure::PeerAlert(Alert::CLOSE_NOTIFY))
                }
                // Early data is off, and application data is never shown.
                Ok(_) => Step::Failed(Failure::Handshake("application data in the handshake")),
                Err(error) => Step::Failed(classify(&error)),
            };
            if let Some(name) = resolver::take_asked() {
                self.server_name = Some(name);
            }
            self.input.drain(..discard);
            self.shown -= discard;
            match step {
                Step::Again => {}
                Step::Finished if !self.connection.is_handshaking() => return Ok(true),
                Step::Finished | Step::Wait => {
                    let Some(length) = next_record(&self.input[self.shown..]) else {
                        break;
                    };
                    self.shown += length;
                }
                Step::Failed(failure) => {
                    if !matches!(failure, Failure::PeerAlert(_)) {
                        self.last_words(out);
                    }
                    return Err(failure);
                }
            }
        }
        if self.total > HANDSHAKE_BYTES_MAX { Err(Failure::TooMuchInput) } else { Ok(false) }
    }

    /// Fetches what rustls still had to say when it failed, the alert last: before that a server hello,
    /// where it found out only afterwards that there is nothing in common. Beyond that it must not
    /// be asked: it would go on reading the input, and asserts that it never sends a second fatal alert.
    fn last_words(&mut self, out: &mut Vec<u8>) {
        while self.connection.wants_write() {
            let status = self.connection.process_tls_records(&mut self.input[..self.shown]);
            let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state else { return };
            append(out, |into| data.encode(into));
        }
    }

    fn is_plain_http(&self) -> bool {
        const METHODS: [&[u8]; 6] = [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"CONNECT "];
        self.total == self.input.len()
            && METHODS.iter().any(|method| self.input.starts_with(&method[..method.len().min(5)]))
    }

    /// Leaves rustls: takes the secrets, the agreed facts and the received bytes not yet used.
    pub(super) fn finish(self) -> Result<Finished, Failure> {
        const UNUSABLE: Failure = Failure::Handshake("no usable secrets");
        let Self { connection, mut input, shown, server_name, kernel, .. } = self;
        if shown != 0 {
            // Part of a handshake message in the record that also completed the handshake: the
            // keys change there, so nothing may follow (RFC 8446 section 5.1).
            return Err(Failure::Refused(Alert::UNEXPECTED_MESSAGE));
        }
        input.shrink_to_fit();
        let established = Established {
            version: match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
                _ => "TLSv1.2",
            },
            cipher: connection.negotiated_cipher_suite().map_or("", |suite| cipher_name(suite.suite())),
            alpn: connection.alpn_protocol().is_some(),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            server_name,
        };
        let tls13 = connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let version = if tls13 { Version::Tls13 } else { Version::Tls12 };
        let (extracted, keys) = connection.dangerous_into_kernel_connection().map_err(|_| UNUSABLE)?;
        let keys = Keys {
            sending: secrets(version, extracted.tx).ok_or(UNUSABLE)?,
            receiving: secrets(version, extracted.rx).ok_or(UNUSABLE)?,
            next: tls13.then_some(keys),
        };
        Ok(Finished { established, keys, kernel, rest: input })
    }
}

enum Step {
    Again,
    Wait,
    Finished,
    Failed(Failure),
}

/// Has rustls write into `out`, which is made as much longer as it takes.
fn append(out: &mut Vec<u8>, mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) {
    let start = out.len();
    // rustls says how much room it needs before it writes anything.
    if let Err(EncodeError::InsufficientSize(size)) = encode(&mut []) {
        out.resize(start + size.required_size, 0);
        let written = encode(&mut out[start..]).expect("there is as much room as was asked for");
        out.truncate(start + written);
    }
}

/// The length of the record at the front, when it is all there. What cannot be a record is all
/// shown to rustls, which knows what to say to it.
fn next_record(wire: &[u8]) -> Option<usize> {
    let header = wire.first_chunk::<HEADER>()?;
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    let possible = (20..=23).contains(&header[0]) && header[1] == 3 && length <= CONTENT_MAX + 2048;
    let whole = if possible { HEADER + length } else { wire.len() };
    (wire.len() >= whole).then_some(whole)
}

/// The secrets of one direction; `None` for a cipher that nobody offers.
pub(super) fn secrets(
    version: Version,
    (sequence, secrets): (u64, ConnectionTrafficSecrets),
) -> Option<Secrets> {
    let (cipher, key, iv) = match &secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Cipher::Chacha20Poly1305, key, iv),
        _ => return None,
    };
    Secrets::new(version, cipher, key.as_ref(), iv.as_ref(), sequence)
}

fn cipher_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        other => other.as_str().unwrap_or(""),
    }
}

fn classify(error: &rustls::Error) -> Failure {
    use rustls::Error as E;
    match error {
        E::AlertReceived(alert) => Failure::PeerAlert(Alert(u8::from(*alert))),
        E::PeerIncompatible(_) => Failure::Handshake("nothing in common with the client"),
        E::NoApplicationProtocol => Failure::Handshake("the client speaks none of our protocols"),
        E::PeerMisbehaved(_) => Failure::Handshake("the client broke the protocol"),
        E::InvalidMessage(_) => Failure::Handshake("a message that cannot be parsed"),
        E::InappropriateMessage { .. } | E::InappropriateHandshakeMessage { .. } => {
            Failure::Handshake("a message that does not belong there")
        }
        E::DecryptError => Failure::Handshake("a record that cannot be decrypted"),
        E::PeerSentOversizedRecord => Failure::Handshake("a record that is too long"),
        E::NoCertificatesPresented => Failure::Handshake("no certificate for the client"),
        _ => Failure::Handshake("an error of the TLS library"),
    }
}
