//! One connection's TLS, without input and output: bytes in, bytes out. RFC 8446, RFC 5246.
//!
//! ```text
//!   Handshake --finished--> Established --failed, or closed both ways--> Over
//!   (rustls)                 receiving: our opener, always in userspace
//!                            sending:   Userspace --installed--> Kernel --+
//!                                           +-------- close_notify -------+--> Closed
//! ```
//!
//! rustls is left as soon as the handshake is complete: its own record layer would copy what is received
//! into a vector per record and what is sent twice, and would keep more memory per idle connection.

use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

use super::Endpoint;
use super::control::{self, ALERT, APPLICATION_DATA, Alert, Failure, HANDSHAKE, Heard, Patience, Request};
use super::handshake::{Established, Handshake, Keys, secrets};
use super::kernel::{self, CryptoInfo};
use super::records::{CONTENT_MAX, Cipher, HEADER, OVERHEAD_MAX, Opener, Sealer, Version};

/// The TLS of one connection.
pub struct Session {
    state: State,
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
        Self { state: State::Handshake(Box::new(Handshake::new(endpoint))) }
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
        let finished = handshake.finish()?;
        let (rest, established) = (finished.rest, finished.established);
        self.state = State::Established(Box::new(Records::new(finished.keys, finished.kernel)));
        let mut received = self.receive(&rest, plain, out)?;
        received.established = Some(established);
        Ok(received)
    }
}

/// How long records with that much content are at most, all together.
pub fn sealed_length(content: usize) -> usize {
    content + content.div_ceil(CONTENT_MAX) * OVERHEAD_MAX
}

impl Records {
    fn new(keys: Keys, kernel_may: bool) -> Self {
        Self {
            records_max: keys.sending.cipher.records_max(),
            sending: Sending::Userspace(Sealer::new(keys.sending)),
            opener: Opener::new(keys.receiving),
            partial: Vec::new(),
            keys: keys.next,
            patience: Patience::default(),
            closed: false,
            end_soon: false,
            kernel_may,
            unsent_alert: None,
        }
    }

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

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
