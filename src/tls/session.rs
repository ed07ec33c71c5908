//! One connection's TLS, without input and output: bytes in, bytes out. The only view of rustls's
//! connection. RFC 8446, RFC 5246.
//!
//! ```text
//!   Handshake --finished--> Established --failed, or closed both ways--> Over
//!   (rustls)                 receiving: our opener, always in userspace
//!                            sending:   Userspace --installed--> Kernel --+
//!                                           +-------- close_notify -------+--> Closed
//! ```
//!
//! rustls is left as soon as the handshake is complete: it is given one record at a time, so that no
//! byte of application data ever reaches it. Its own record layer would copy what is received into a
//! vector per record and what is sent twice, and would keep more memory per idle connection.

use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CipherSuite, ConnectionTrafficSecrets, HandshakeKind, ProtocolVersion};

use super::control::{self, ALERT, APPLICATION_DATA, Alert, Failure, HANDSHAKE, Heard, Patience, Request};
use super::kernel::{self, CryptoInfo};
use super::records::{CONTENT_MAX, Cipher, HEADER, OVERHEAD_MAX, Opener, Sealer, Secrets, Version};
use super::{Endpoint, resolver};

/// How much a client may send before its handshake is complete. A hello is 2 KiB with post-quantum
/// key exchange; nothing else a client without certificate sends is of any size.
pub const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// The TLS of one connection.
pub struct Session {
    state: State,
}

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

/// What came of received bytes, beside the plaintext.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// The handshake is complete, just now.
    pub established: Option<Established>,
    /// The peer said that it will send no more; whatever follows is ignored.
    pub closed: bool,
    /// The peer wants new keys, and the kernel that sends cannot change them: finish the response,
    /// then close.
    pub end_soon: bool,
}

/// The key has protected as many records as it may, and there cannot be another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exhausted;

/// What the kernel needs to take over sending. Either given back with [`Session::kernel_sends`] or
/// dropped, and then nothing has changed.
pub struct HandOver {
    /// For `Ring::install_tls`.
    pub info: CryptoInfo,
    sequence: u64,
}

enum State {
    Handshake(Box<Handshake>),
    Established(Box<Records>),
    Over,
}

struct Handshake {
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

/// Who protects what is sent. Ciphertext can only be made in `Userspace`, so that it never goes into
/// a socket whose kernel encrypts, and `Kernel` is only entered by the one who installed the keys.
enum Sending {
    Userspace(Sealer),
    Kernel { cipher: Cipher, records: u64 },
    Closed,
}

struct Records {
    sending: Sending,
    opener: Opener,
    /// The part of a record that has come; empty, and without memory, between requests.
    partial: Vec<u8>,
    /// Makes new keys; TLS 1.3 only.
    keys: Option<KernelConnection<ServerConnectionData>>,
    patience: Patience,
    closed: bool,
    end_soon: bool,
    kernel_may: bool,
    unsent_alert: Option<Alert>,
    records_max: u64,
}

impl Session {
    /// A session that waits for a client's hello.
    pub fn new(endpoint: &Endpoint) -> Self {
        let connection = UnbufferedServerConnection::new(endpoint.server().clone());
        Self {
            state: State::Handshake(Box::new(Handshake {
                connection: connection.expect("the configuration was accepted when it was built"),
                input: Vec::new(),
                shown: 0,
                total: 0,
                server_name: None,
                kernel: endpoint.kernel_tls(),
            })),
        }
    }

    /// Whether nothing can be sent yet.
    pub fn is_handshaking(&self) -> bool {
        matches!(self.state, State::Handshake(_))
    }

    /// Takes bytes from the wire. Appends what they contain to `plain`, and what has to be sent
    /// before anything else to `out`: handshake messages, tickets, alerts, key updates.
    ///
    /// # Errors
    /// When the session cannot go on. `out` holds what the peer is still to be told, unless the
    /// kernel sends: then [`Session::unsent_alert`] does.
    pub fn receive(
        &mut self,
        wire: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Received, Failure> {
        let result = match &mut self.state {
            State::Established(records) => records.receive(wire, plain, out),
            State::Handshake(_) => self.shake_hands(wire, plain, out),
            State::Over => Ok(Received::default()),
        };
        if let (Err(failure), State::Established(records)) = (&result, &mut self.state) {
            if let Failure::Refused(alert) = failure {
                records.last_alert(*alert, out);
            }
            // The sender stays as it is only to be asked for an unsent alert.
            records.sending = Sending::Closed;
        }
        result
    }

    /// Appends records with the application data `first`, `second` to `out`. May only be called once
    /// established, and while nothing else protects what is sent.
    ///
    /// # Errors
    /// When the key is used up: TLS 1.2 after 2^24 records. Close the connection.
    pub fn seal(&mut self, first: &[u8], second: &[u8], out: &mut Vec<u8>) -> Result<(), Exhausted> {
        let at = out.len();
        self.seal_at(first, second, out, at)
    }

    /// The same, but replaces what is in `out`. For buffers that go round: encryption needs memory
    /// that has been written to before, and here it has. A tenth faster with large bodies.
    ///
    /// # Errors
    /// As [`Session::seal`].
    pub fn seal_over(&mut self, first: &[u8], second: &[u8], out: &mut Vec<u8>) -> Result<(), Exhausted> {
        self.seal_at(first, second, out, 0)
    }

    fn seal_at(
        &mut self,
        mut first: &[u8],
        mut second: &[u8],
        out: &mut Vec<u8>,
        mut at: usize,
    ) -> Result<(), Exhausted> {
        let State::Established(records) = &mut self.state else {
            panic!("application data before the handshake is complete, or after the end");
        };
        let length = sealed_length(first.len() + second.len());
        out.reserve((at + length).saturating_sub(out.len()));
        while !first.is_empty() || !second.is_empty() {
            let (a, first_rest) = first.split_at(first.len().min(CONTENT_MAX));
            let (b, second_rest) = second.split_at(second.len().min(CONTENT_MAX - a.len()));
            at = records.seal(a, b, out, at)?;
            (first, second) = (first_rest, second_rest);
        }
        out.truncate(at);
        Ok(())
    }

    /// Gives up memory that is cheap to have back: for connections that wait for a request. The
    /// next record received and the next one sent cost 200 ns more each.
    pub fn rest(&mut self) {
        if let State::Established(records) = &mut self.state {
            records.opener.rest();
            if let Sending::Userspace(sealer) = &mut records.sending {
                sealer.rest();
            }
        }
    }

    /// Says that nothing more will be sent. In userspace the alert is appended to `out`; when the
    /// kernel sends it is returned, for `Ring::send_record` with content type [`ALERT`]. Nothing
    /// happens before the handshake is complete or the second time.
    #[must_use]
    pub fn close_notify(&mut self, out: &mut Vec<u8>) -> Option<[u8; 2]> {
        let State::Established(records) = &mut self.state else {
            return None;
        };
        records.last_alert(Alert::CLOSE_NOTIFY, out);
        records.unsent_alert.take().map(Alert::encode)
    }

    /// The alert that could not be put into `out` because the kernel sends; for `Ring::send_record`.
    pub fn unsent_alert(&mut self) -> Option<[u8; 2]> {
        match &mut self.state {
            State::Established(records) => records.unsent_alert.take().map(Alert::encode),
            _ => None,
        }
    }

    /// What the kernel needs to take over sending; `None` where it should not: no kernel TLS, another
    /// cipher, or the connection will end soon anyway. Everything sealed so far must have been
    /// accepted by the socket, and nothing may be in flight on it.
    #[must_use]
    pub fn hand_over(&self) -> Option<HandOver> {
        let State::Established(records) = &self.state else {
            return None;
        };
        match &records.sending {
            Sending::Userspace(sealer) if records.kernel_may && !records.end_soon => {
                let info = kernel::crypto_info(sealer.secrets())?;
                Some(HandOver { info, sequence: sealer.secrets().sequence })
            }
            _ => None,
        }
    }

    /// The kernel took over: from now on plaintext goes into the socket.
    pub fn kernel_sends(&mut self, taken: HandOver) {
        let State::Established(records) = &mut self.state else {
            panic!("a hand-over of a session that is not established");
        };
        let Sending::Userspace(sealer) = &records.sending else {
            panic!("a hand-over of what the session does not hold");
        };
        let secrets = sealer.secrets();
        assert_eq!(secrets.sequence, taken.sequence, "a record was sealed during the hand-over");
        records.sending = Sending::Kernel { cipher: secrets.cipher, records: secrets.sequence };
    }

    /// The kernel refused: it is not asked again for this connection.
    pub fn kernel_refused(&mut self) {
        if let State::Established(records) = &mut self.state {
            records.kernel_may = false;
        }
    }

    /// Whether the kernel protects what is sent.
    pub fn is_sent_by_kernel(&self) -> bool {
        matches!(&self.state, State::Established(records) if matches!(records.sending, Sending::Kernel { .. }))
    }

    /// Counts what one call had the kernel send.
    ///
    /// # Errors
    /// When the key is used up: after 256 GiB. Close the connection.
    pub fn count_sent(&mut self, bytes: usize) -> Result<(), Exhausted> {
        if let State::Established(records) = &mut self.state
            && let Sending::Kernel { cipher, records } = &mut records.sending
        {
            *records += (bytes / CONTENT_MAX + 1) as u64;
            if *records >= cipher.records_max() {
                return Err(Exhausted);
            }
        }
        Ok(())
    }

    /// Has new keys made after that many records instead of as many as the cipher allows; TLS 1.3 in
    /// userspace. At least 3: a key must protect its own replacement.
    pub fn update_key_after(&mut self, records_max: u64) {
        if let State::Established(records) = &mut self.state {
            records.records_max = records_max.clamp(3, records.records_max);
        }
    }

    fn shake_hands(
        &mut self,
        wire: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Received, Failure> {
        let State::Handshake(handshake) = &mut self.state else {
            unreachable!("only called in this state");
        };
        match handshake.advance(wire, out) {
            Ok(false) => return Ok(Received::default()),
            Ok(true) => {}
            Err(failure) => {
                self.state = State::Over;
                return Err(failure);
            }
        }
        let State::Handshake(handshake) = std::mem::replace(&mut self.state, State::Over) else {
            unreachable!("it was, a moment ago");
        };
        let (records, established, rest) = handshake.finish()?;
        self.state = State::Established(Box::new(records));
        let mut received = self.receive(&rest, plain, out)?;
        received.established = Some(established);
        Ok(received)
    }
}

/// How long records with that much content are at most, all together.
pub fn sealed_length(content: usize) -> usize {
    content + content.div_ceil(CONTENT_MAX) * OVERHEAD_MAX
}

impl Handshake {
    /// Drives rustls as far as the received bytes go. Says whether the handshake is complete.
    fn advance(&mut self, wire: &[u8], out: &mut Vec<u8>) -> Result<bool, Failure> {
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
    fn finish(self) -> Result<(Records, Established, Vec<u8>), Failure> {
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
        let sealing = secrets(version, extracted.tx).ok_or(UNUSABLE)?;
        let records = Records {
            records_max: sealing.cipher.records_max(),
            sending: Sending::Userspace(Sealer::new(sealing)),
            opener: Opener::new(secrets(version, extracted.rx).ok_or(UNUSABLE)?),
            partial: Vec::new(),
            keys: tls13.then_some(keys),
            patience: Patience::default(),
            closed: false,
            end_soon: false,
            kernel_may: kernel,
            unsent_alert: None,
        };
        Ok((records, established, input))
    }
}

enum Step {
    Again,
    Wait,
    Finished,
    Failed(Failure),
}

impl Records {
    fn receive(&mut self, wire: &[u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<Received, Failure> {
        let mut wire = wire;
        while !wire.is_empty() && !self.closed {
            if self.partial.is_empty() {
                wire = self.receive_whole(wire, plain, out)?;
                if !self.closed {
                    self.partial.extend_from_slice(wire);
                }
                break;
            }
            wire = self.complete_partial(wire, plain, out)?;
        }
        Ok(Received { established: None, closed: self.closed, end_soon: self.end_soon })
    }

    /// Opens the whole records at the front, and gives back the rest.
    fn receive_whole<'w>(
        &mut self,
        mut wire: &'w [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<&'w [u8], Failure> {
        while !self.closed
            && let Some(header) = self.opener.header(wire)?
            && let Some((body, rest)) = wire[HEADER..].split_at_checked(header.length())
        {
            let start = plain.len();
            let content_type = self.opener.open(header, body, plain)?;
            self.take(content_type, plain, start, out)?;
            wire = rest;
        }
        Ok(wire)
    }

    /// Adds to the record that has come in part, and opens it when it is all there.
    fn complete_partial<'w>(
        &mut self,
        wire: &'w [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<&'w [u8], Failure> {
        let wanted = match self.opener.header(&self.partial)? {
            None => HEADER,
            Some(header) => HEADER + header.length(),
        };
        // The two ways to get here: the header is not all there, or the body is not.
        let missing = wanted.saturating_sub(self.partial.len());
        let (taken, rest) = wire.split_at(missing.min(wire.len()));
        self.partial.reserve_exact(missing);
        self.partial.extend_from_slice(taken);
        if let Some(header) = self.opener.header(&self.partial)?
            && self.partial.len() == HEADER + header.length()
        {
            let record = std::mem::take(&mut self.partial);
            let start = plain.len();
            let content_type = self.opener.open(header, &record[HEADER..], plain)?;
            self.take(content_type, plain, start, out)?;
        }
        Ok(rest)
    }

    /// Judges one opened record; what is not application data is taken off `plain` again.
    fn take(
        &mut self,
        content_type: u8,
        plain: &mut Vec<u8>,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let tls13 = self.opener.version() == Version::Tls13;
        let content = &plain[start..];
        if content_type == APPLICATION_DATA {
            let judged = self.patience.application_data(content.len());
            if judged.is_err() {
                plain.truncate(start);
            }
            return judged;
        }
        let judged = match content_type {
            ALERT => self.patience.alert(content, tls13).map(|heard| match heard {
                Heard::Closed => {
                    self.closed = true;
                    None
                }
                Heard::Ignored => None,
            }),
            HANDSHAKE => self.patience.handshake(content, tls13).map(Some),
            _ => Err(Failure::Refused(Alert::UNEXPECTED_MESSAGE)),
        };
        plain.truncate(start);
        match judged? {
            None | Some(Request::Incomplete) => Ok(()),
            Some(Request::KeyUpdate { reply }) => self.peer_updates_key(reply, out),
            Some(Request::Renegotiate) => self.refuse_renegotiation(out),
        }
    }

    /// Warns a client that there will be no second handshake; ends the session instead where the record
    /// would be one of those kept back, of which the last alert needs one.
    fn refuse_renegotiation(&mut self, out: &mut Vec<u8>) -> Result<(), Failure> {
        if self.is_key_used_up() {
            return Err(Failure::Refused(Alert::INTERNAL_ERROR));
        }
        if let Sending::Userspace(sealer) = &mut self.sending {
            sealer.seal(ALERT, &Alert::NO_RENEGOTIATION.encode(), &[], out, out.len());
        }
        Ok(())
    }

    fn peer_updates_key(&mut self, reply: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
        const INTERNAL: Failure = Failure::Refused(Alert::INTERNAL_ERROR);
        let keys = self.keys.as_mut().ok_or(INTERNAL)?;
        let extracted = keys.update_rx_secret().map_err(|_| INTERNAL)?;
        self.opener = Opener::new(secrets(Version::Tls13, extracted).ok_or(INTERNAL)?);
        if reply {
            match self.sending {
                Sending::Userspace(_) => {
                    self.update_key(out, out.len()).map_err(|Exhausted| INTERNAL)?;
                }
                // Kernels learnt to change keys in 6.14. An answer under the old key is not
                // wrong yet, a second one would be.
                Sending::Kernel { .. } => self.end_soon = true,
                Sending::Closed => {}
            }
        }
        Ok(())
    }

    /// Changes the key under which we send, and tells the peer under the old one. Writes into `out`
    /// from `at` on, and says to where.
    fn update_key(&mut self, out: &mut Vec<u8>, at: usize) -> Result<usize, Exhausted> {
        let keys = self.keys.as_mut().ok_or(Exhausted)?;
        let Sending::Userspace(sealer) = &mut self.sending else {
            return Err(Exhausted);
        };
        let extracted = keys.update_tx_secret().map_err(|_| Exhausted)?;
        let end = sealer.seal(HANDSHAKE, &control::KEY_UPDATE, &[], out, at);
        self.sending = Sending::Userspace(Sealer::new(secrets(Version::Tls13, extracted).ok_or(Exhausted)?));
        Ok(end)
    }

    /// One record of application data, written into `out` from `at` on. Says where it ends.
    fn seal(
        &mut self,
        first: &[u8],
        second: &[u8],
        out: &mut Vec<u8>,
        mut at: usize,
    ) -> Result<usize, Exhausted> {
        if self.is_key_used_up() {
            at = self.update_key(out, at)?;
        }
        match &mut self.sending {
            Sending::Userspace(sealer) => Ok(sealer.seal(APPLICATION_DATA, first, second, out, at)),
            Sending::Kernel { .. } => panic!("ciphertext for a socket whose kernel encrypts"),
            Sending::Closed => panic!("application data after close_notify"),
        }
    }

    /// Whether the key has protected all but two records, which are kept back for a key update or an alert.
    fn is_key_used_up(&self) -> bool {
        matches!(&self.sending, Sending::Userspace(sealer) if sealer.secrets().sequence + 2 >= self.records_max)
    }

    /// Sends an alert, after which nothing can be sent.
    fn last_alert(&mut self, alert: Alert, out: &mut Vec<u8>) {
        match std::mem::replace(&mut self.sending, Sending::Closed) {
            Sending::Userspace(mut sealer) => {
                sealer.seal(ALERT, &alert.encode(), &[], out, out.len());
            }
            Sending::Kernel { .. } => self.unsent_alert = Some(alert),
            Sending::Closed => {}
        }
    }
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

fn secrets(version: Version, (sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Option<Secrets> {
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

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
