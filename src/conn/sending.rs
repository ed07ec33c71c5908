//! How a connection's bytes get to its socket: one operation at a time, repeated for what a short
//! send left over.

use super::action::Action;
use super::outcome::Outcome;
use super::outgoing::Next;
use super::{Connection, Scope, Stage};
use crate::sys::Errno;
use crate::sys::bytes::Slice;

/// What is under way towards the socket.
#[derive(Debug)]
pub(super) enum Sending {
    /// Nothing.
    Idle,
    /// A send.
    Send {
        /// Bytes of the head that went before.
        from: usize,
        /// Bytes of the head.
        head: usize,
        /// The rest of the body's piece.
        body: Option<Slice>,
        /// Whether a file follows.
        more: bool,
    },
    /// A part of a file.
    Transfer,
    /// The socket was full, or the connection has had its share of the turn.
    Full,
    /// The kernel is being asked to encrypt.
    Installing,
    /// The closing alert, through the kernel.
    Alert([u8; 2]),
    /// The same, but the socket was full.
    FullForAlert([u8; 2]),
}

impl Sending {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// Bytes in a send that did not complete.
    pub(super) fn unsent(&self) -> u64 {
        match self {
            Self::Send { from, head, body, .. } => {
                (head - from + body.as_ref().map_or(0, |(_, range)| range.len())) as u64
            }
            _ => 0,
        }
    }
}

impl Connection {
    /// Starts sending what waits, unless something is under way.
    pub(super) fn send(&mut self, scope: &mut Scope) {
        if !self.sending.is_idle() || matches!(self.stage, Stage::Lingering { .. }) {
            return;
        }
        if self.hand_over(scope) {
            return;
        }
        let direct = self.transport.sends_plaintext();
        match self.outgoing.next(self.transport.piece_max(), scope.buffers) {
            Next::Nothing => {
                if let Some(wire) = self.transport.urgent() {
                    self.push_send(wire, 0, None, false, scope);
                }
            }
            Next::Bytes { head, from, body, more } => {
                match self.transport.protect(head, from, body, scope.buffers) {
                    Ok((head, from, body)) => {
                        // What a program is still to print belongs to a response that is not over.
                        let within =
                            self.program.as_ref().is_some_and(|program| program.is_within_document());
                        if self.outgoing.is_empty() && !within {
                            self.timing.leave();
                        }
                        let more = more && self.transport.waits_for_files();
                        self.push_send(head, from, body, more, scope);
                    }
                    Err(_) => self.close(Outcome::KeyUsedUp, scope),
                }
            }
            Next::File { piece, last } => {
                self.sending = Sending::Transfer;
                scope.actions.push(Action::Transfer {
                    file: piece.file,
                    range: piece.range,
                    facts: piece.facts,
                    direct,
                    last,
                });
            }
        }
    }

    fn push_send(&mut self, head: Vec<u8>, from: usize, body: Option<Slice>, more: bool, scope: &mut Scope) {
        self.sending = Sending::Send { from, head: head.len(), body: body.clone(), more };
        scope.actions.push(Action::Send { head, from, body, more });
    }

    pub(super) fn sent(&mut self, result: Result<usize, Errno>, mut head: Vec<u8>, scope: &mut Scope) {
        let Sending::Send { mut from, head: _, mut body, more } =
            std::mem::replace(&mut self.sending, Sending::Idle)
        else {
            panic!("a send ended that was never begun");
        };
        let mut bytes = match result {
            Ok(0) => return self.close(Outcome::SocketFailed(Errno::PIPE), scope),
            Ok(bytes) => bytes,
            Err(errno) => {
                scope.buffers.give(head);
                return self.close(Outcome::SocketFailed(errno), scope);
            }
        };
        self.renew_deadline();
        self.draining |= self.transport.count_sent(bytes).is_err();
        let of_head = bytes.min(head.len() - from);
        from += of_head;
        bytes -= of_head;
        let head_done = from == head.len();
        if head_done {
            from = 0;
            scope.buffers.give(std::mem::take(&mut head));
        }
        if let Some((_, range)) = &mut body {
            range.start += bytes;
            assert!(range.start <= range.end, "more was sent than asked for");
        }
        let body = body.filter(|(_, range)| !range.is_empty());
        if !head_done || body.is_some() {
            return self.push_send(head, from, body, more, scope);
        }
        self.timing.left(scope.clock.now, scope.counters);
    }

    pub(super) fn writable(&mut self, scope: &mut Scope) {
        self.renew_deadline();
        match self.sending {
            Sending::FullForAlert(payload) => self.send_alert(payload, scope),
            _ => self.sending = Sending::Idle,
        }
    }

    pub(super) fn transferred(&mut self, bytes: usize, scope: &mut Scope) {
        self.outgoing.advance_file(bytes);
        if bytes > 0 {
            self.renew_deadline();
            self.draining |= self.transport.count_sent(bytes).is_err();
        }
        if self.outgoing.is_empty() {
            self.sending = Sending::Idle;
            return;
        }
        self.sending = Sending::Full;
        scope.actions.push(Action::AwaitWritable);
    }

    pub(super) fn chunk(&mut self, bytes: Vec<u8>, _scope: &mut Scope) {
        self.outgoing.chunk(bytes);
        self.sending = Sending::Idle;
    }
}
