//! Plain TCP or TLS: what stands between the bytes of HTTP and the bytes of the socket.
//!
//! A session protects what is sent until the kernel takes over. [`Transport::protect`] is the only
//! way from a response to a send; it seals exactly when the session still holds the key.

use super::action::Action;
use super::buffers::{Buffers, SMALL};
use super::outcome::Outcome;
use super::sending::Sending;
use super::{Connection, Ending, Scope, Stage};
use crate::gateway::messages::Why;
use crate::observe::names::Counter;
use crate::sys::Errno;
use crate::sys::bytes::Slice;
use crate::tls::{ALERT, Established, Exhausted, Failure, HandOver, Session, sealed_length};

/// A piece of a body sealed at once, so that its records fit a large buffer.
const SEALED_PIECE_MAX: usize = 64 * 1024;

/// Plain TCP or TLS.
pub(super) enum Transport {
    /// Nothing in between.
    Plain,
    /// TLS.
    Tls(Box<Tls>),
}

/// The TLS of a connection.
pub(super) struct Tls {
    session: Session,
    /// Records to be sent before anything else: handshake, tickets, alerts, key updates.
    wire: Vec<u8>,
    established: Option<Established>,
    /// What the kernel has been asked to take over.
    handing_over: Option<HandOver>,
    notified: bool,
    rested: bool,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::Tls(_) => "Tls",
        })
    }
}

impl Transport {
    pub(super) fn new(session: Option<Session>) -> Self {
        match session {
            None => Self::Plain,
            Some(session) => Self::Tls(Box::new(Tls {
                session,
                wire: Vec::new(),
                established: None,
                handing_over: None,
                notified: false,
                rested: false,
            })),
        }
    }

    /// What a connection is about first.
    pub(super) fn first_stage(&self) -> Stage {
        match self {
            Self::Plain => Stage::Http1,
            Self::Tls(_) => Stage::Handshake,
        }
    }

    /// The TLS version, for the log.
    pub(super) fn version(&self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Tls(tls) => tls.established.as_ref().map(|established| established.version),
        }
    }

    /// Whether what is sent may be plaintext: the kernel moves files itself.
    pub(super) fn sends_plaintext(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Tls(tls) => tls.session.is_sent_by_kernel(),
        }
    }

    /// Whether a head is held back until the first bytes of its file join it. Not where the kernel
    /// encrypts: a record of its own costs less than what a head before the file's first page does to all
    /// records, whose pieces then end amid blocks of the cipher; and held back bytes could be lost.
    pub(super) fn waits_for_files(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// How much of a body is given to the socket at once.
    pub(super) fn piece_max(&self) -> usize {
        if self.sends_plaintext() { super::outgoing::PIECE_MAX } else { SEALED_PIECE_MAX }
    }

    /// Records that go before anything else.
    pub(super) fn urgent(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Tls(tls) if !tls.wire.is_empty() => Some(std::mem::take(&mut tls.wire)),
            _ => None,
        }
    }

    /// Whether no records wait.
    pub(super) fn is_quiet(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Tls(tls) => tls.wire.is_empty(),
        }
    }

    /// What goes to the socket for these bytes of a response: those of `head` from `from` on, and `body`.
    pub(super) fn protect(
        &mut self,
        head: Vec<u8>,
        from: usize,
        body: Option<Slice>,
        buffers: &mut Buffers,
    ) -> Result<(Vec<u8>, usize, Option<Slice>), Exhausted> {
        if self.sends_plaintext() {
            return Ok((head, from, body));
        }
        let Self::Tls(tls) = self else { return Ok((head, from, body)) };
        let piece = body.as_ref().map_or(&[][..], |(bytes, range)| &bytes[range.clone()]);
        let mut wire = std::mem::take(&mut tls.wire);
        let length = sealed_length(head.len() - from + piece.len());
        if wire.is_empty() {
            buffers.give(wire);
            wire = if length <= SMALL { buffers.used_small() } else { buffers.used_large() };
            tls.session.seal_over(&head[from..], piece, &mut wire)?;
        } else {
            tls.session.seal(&head[from..], piece, &mut wire)?;
        }
        buffers.give(head);
        Ok((wire, 0, None))
    }

    /// Whether an idle connection could do with less memory.
    pub(super) fn may_rest(&self) -> bool {
        matches!(self, Self::Tls(tls) if !tls.rested)
    }

    /// Gives up memory that is cheap to have back; whether there was any.
    pub(super) fn rest(&mut self) -> bool {
        match self {
            Self::Tls(tls) if !tls.rested => {
                tls.session.rest();
                tls.rested = true;
                true
            }
            _ => false,
        }
    }

    /// Counts what the kernel encrypted.
    pub(super) fn count_sent(&mut self, bytes: usize) -> Result<(), Exhausted> {
        match self {
            Self::Plain => Ok(()),
            Self::Tls(tls) => tls.session.count_sent(bytes),
        }
    }
}

impl Connection {
    /// Bytes from the wire of a TLS connection.
    pub(super) fn received_records(&mut self, bytes: &[u8], scope: &mut Scope) {
        let Transport::Tls(tls) = &mut self.transport else {
            return self.understand(bytes, scope);
        };
        tls.rested = false;
        let mut plain = std::mem::take(scope.plain);
        if tls.wire.capacity() == 0 && tls.session.is_handshaking() {
            tls.wire = scope.buffers.small();
        }
        match tls.session.receive(bytes, &mut plain, &mut tls.wire) {
            Ok(received) => {
                if let Some(established) = received.established {
                    let counter = match established.resumed {
                        true => Counter::HandshakesResumed,
                        false => Counter::HandshakesFull,
                    };
                    scope.counters.add(counter, 1);
                    tls.established = Some(established);
                    self.stage = Stage::Http1;
                }
                if tls.wire.is_empty() {
                    scope.buffers.give(std::mem::take(&mut tls.wire));
                }
                self.draining |= received.end_soon;
                if !plain.is_empty() {
                    self.understand(&plain, scope);
                }
                if received.closed && self.stage != Stage::Closed {
                    self.peer_ended(scope);
                }
            }
            Err(failure) => self.failed(failure, scope),
        }
        plain.clear();
        *scope.plain = plain;
    }

    /// TLS cannot go on. What was being answered stays incomplete; an alert is the last word.
    fn failed(&mut self, failure: Failure, scope: &mut Scope) {
        let Transport::Tls(tls) = &mut self.transport else { return };
        if tls.established.is_none() {
            scope.counters.add(Counter::HandshakesFailed, 1);
        }
        tls.notified = true;
        let alert = tls.session.unsent_alert();
        self.outgoing.abandon(scope.buffers);
        self.pending = None;
        self.drop_program(Why::Gone, scope);
        self.stage = Stage::Http1;
        if failure == Failure::PlainHttp {
            self.transport = Transport::Plain;
            return self.refuse(400, "This port speaks HTTPS: use https:// in the address.", scope);
        }
        self.ending = Ending::After { outcome: Outcome::TlsFailed(failure), linger: true };
        // With a send under way the alert would have to wait for a peer that broke the rules.
        if let Some(payload) = alert.filter(|_| self.sending.is_idle()) {
            self.send_alert(payload, scope);
        }
    }

    /// Asks the kernel to take over, when there is enough to send for that to pay.
    pub(super) fn hand_over(&mut self, scope: &mut Scope) -> bool {
        let Transport::Tls(tls) = &mut self.transport else { return false };
        let is_worth_it = self.outgoing.of_files() >= scope.settings.kernel_tls_min;
        if tls.session.is_sent_by_kernel() || !tls.wire.is_empty() || !is_worth_it {
            return false;
        }
        let Some(hand_over) = tls.session.hand_over() else { return false };
        scope.actions.push(Action::InstallTls(hand_over.info.clone()));
        tls.handing_over = Some(hand_over);
        self.sending = Sending::Installing;
        true
    }

    /// The kernel took over, or refused.
    pub(super) fn kernel_tls(&mut self, result: Result<(), Errno>, scope: &mut Scope) {
        self.sending = Sending::Idle;
        let Transport::Tls(tls) = &mut self.transport else { return };
        let Some(hand_over) = tls.handing_over.take() else { return };
        match result {
            Ok(()) => {
                tls.session.kernel_sends(hand_over);
                scope.counters.add(Counter::KernelTlsOn, 1);
            }
            Err(_) => {
                tls.session.kernel_refused();
                scope.counters.add(Counter::KernelTlsRefused, 1);
            }
        }
    }

    /// Says goodbye when the last response is complete; whether that has to be waited for.
    pub(super) fn take_leave(&mut self, scope: &mut Scope) -> bool {
        let Transport::Tls(tls) = &mut self.transport else { return false };
        if tls.notified {
            return false;
        }
        tls.notified = true;
        let alert = tls.session.close_notify(&mut tls.wire);
        match alert {
            Some(payload) => self.send_alert(payload, scope),
            None => self.send(scope),
        }
        !self.sending.is_idle()
    }

    pub(super) fn send_alert(&mut self, payload: [u8; 2], scope: &mut Scope) {
        self.sending = Sending::Alert(payload);
        scope.actions.push(Action::SendRecord { content_type: ALERT, payload });
    }

    /// The kernel took the alert, or the socket is full.
    pub(super) fn record_sent(&mut self, result: Result<(), Errno>, scope: &mut Scope) {
        match (result, &self.sending) {
            (Err(Errno::AGAIN), Sending::Alert(payload)) => {
                self.sending = Sending::FullForAlert(*payload);
                scope.actions.push(Action::AwaitWritable);
            }
            (Ok(()), _) => self.sending = Sending::Idle,
            (Err(errno), _) => self.close(Outcome::SocketFailed(errno), scope),
        }
    }
}
