//! The bytes of programs: their pipes are tried at once and, where that would wait, polled through the ring.

use super::{Key, State, Worker};
use crate::conn::Event;
use crate::conn::buffers::LARGE;
use crate::conn::program::CHUNK_ROOM;
use crate::ring::{Op, Ring};
use crate::sys::Errno;
use crate::worker::tokens::Kind;

/// Output is gathered while there is more, up to about this: half of what a pipe holds by default, so that
/// another read of a whole pipe fits into the buffer.
const GATHERED_MAX: usize = LARGE / 4;

impl<R: Ring> Worker<R> {
    /// A connection has input for its program.
    pub(in crate::worker) fn relay(&mut self, key: Key, buffer: Vec<u8>) -> Option<Event<'static>> {
        let run = self.slots.get(key).and_then(|live| live.run);
        match run.and_then(|run| Some((run, self.gateways.as_mut()?.run(run)?))) {
            Some((key, run)) => {
                run.relay = Some((buffer, 0));
                self.write_input(key)
            }
            None => Some(Event::Relayed { buffer, deaf: true }),
        }
    }

    /// A connection has no more input for its program.
    pub(in crate::worker) fn end_input(&mut self, key: Key) {
        let run = self.slots.get(key).and_then(|live| live.run);
        if let Some(run) = run.and_then(|run| self.gateways.as_mut()?.run(run)) {
            run.input = None;
        }
    }

    /// A connection can take more output.
    pub(in crate::worker) fn read_output(&mut self, key: Key) -> Option<Event<'static>> {
        let key = self.slots.get(key).and_then(|live| live.run)?;
        self.gateways.as_mut()?.run(key)?.output_wanted = true;
        self.try_output(key)
    }

    /// A pipe may take more input.
    pub(in crate::worker) fn input_ready(&mut self, key: Key) {
        let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) else { return };
        run.input_awaited = false;
        let connection = run.connection;
        if let (Some(event), Some(connection)) = (self.write_input(key), connection) {
            self.deliver(connection, event);
        }
    }

    /// A pipe may have more output.
    pub(in crate::worker) fn output_ready(&mut self, key: Key) {
        let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) else { return };
        run.output_awaited = false;
        let connection = run.connection;
        if let (Some(event), Some(connection)) = (self.try_output(key), connection) {
            self.deliver(connection, event);
        }
    }

    /// How much a program that has just ended left in its pipe. What it left running may keep the pipe open and
    /// print on and on: that is no part of its answer, and nothing else would ever end it.
    pub(super) fn unread(&mut self, key: Key) -> usize {
        let run = self.gateways.as_mut().and_then(|gateways| gateways.run(key));
        let output = run.and_then(|run| run.output.as_ref()).map(|output| output.fd());
        output.map_or(0, |output| self.ring.unread(output))
    }

    /// Reads what a program left in its pipe when it ended, if that is waited for.
    pub(super) fn read_last(&mut self, key: Key) {
        let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) else { return };
        let connection = run.connection;
        if let (Some(event), Some(connection)) = (self.try_output(key), connection) {
            self.deliver(connection, event);
        }
    }

    /// Closes our ends, and the program's where they are still ours.
    pub(super) fn close_pipes(&mut self, key: Key) {
        let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) else { return };
        // A poll holds the pipe open: the program would write to nobody, and never learn it.
        let awaited = [(run.input.take(), run.input_awaited), (run.output.take(), run.output_awaited)];
        let relay = run.relay.take();
        run.theirs.clear();
        for (end, awaited) in awaited {
            if let Some(end) = end.filter(|_| awaited) {
                self.ring.push(Kind::Cancel.token(key), Op::Cancel { fd: end.fd() });
            }
        }
        if let Some((buffer, _)) = relay {
            self.shared.buffers.give(buffer);
        }
    }

    fn write_input(&mut self, key: Key) -> Option<Event<'static>> {
        let run = self.gateways.as_mut()?.run(key)?;
        let (buffer, mut from) = run.relay.take()?;
        let Some(input) = &run.input else { return Some(Event::Relayed { buffer, deaf: true }) };
        let pipe = input.fd();
        while from < buffer.len() {
            match self.ring.write_pipe(pipe, &buffer[from..]) {
                Ok(count) => from += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    run.relay = Some((buffer, from));
                    if !run.input_awaited {
                        run.input_awaited = true;
                        self.ring.push(Kind::ProgramInput.token(key), Op::Writable { socket: pipe });
                    }
                    return None;
                }
                // EPIPE: it has closed its input, or is gone.
                Err(_) => {
                    run.input = None;
                    return Some(Event::Relayed { buffer, deaf: true });
                }
            }
        }
        Some(Event::Relayed { buffer, deaf: false })
    }

    fn try_output(&mut self, key: Key) -> Option<Event<'static>> {
        let run = self.gateways.as_mut()?.run(key)?;
        let is_over = matches!(run.state, State::Exited { .. });
        if !run.output_wanted || (run.pid.is_none() && !is_over) {
            return None;
        }
        let Some(output) = &run.output else { return self.printed(key, vec![0; CHUNK_ROOM], true) };
        let pipe = output.fd();
        let mut unread = match &mut run.state {
            State::Exited { unread } => Some(unread),
            _ => None,
        };
        let mut into = self.shared.buffers.large();
        into.extend_from_slice(&[0; CHUNK_ROOM]);
        loop {
            if unread.as_deref() == Some(&0) {
                return self.printed(key, into, true);
            }
            let before = into.len();
            match self.ring.read_pipe(pipe, &mut into) {
                Ok(0) => return self.printed(key, into, true),
                Ok(count) => {
                    if let Some(unread) = &mut unread {
                        let own = count.min(**unread);
                        into.truncate(before + own);
                        **unread -= own;
                    }
                    if into.len() >= GATHERED_MAX {
                        return self.printed(key, into, false);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if unread.is_some() => return self.printed(key, into, true),
                Err(Errno::AGAIN) if into.len() > CHUNK_ROOM => return self.printed(key, into, false),
                Err(Errno::AGAIN) => break,
                Err(_) => return self.printed(key, into, true),
            }
        }
        self.shared.buffers.give(into);
        self.await_output(key);
        None
    }

    /// Waits for output, if somebody wants it. Not before the program is said to run: one that ends at once, as
    /// modules do, wakes the worker with its end alone.
    pub(super) fn await_output(&mut self, key: Key) {
        let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) else { return };
        let Some(output) = run.output.as_ref().filter(|_| run.output_wanted && !run.output_awaited) else {
            return;
        };
        let fd = output.fd();
        run.output_awaited = true;
        self.ring.push(Kind::ProgramOutput.token(key), Op::Readable { fd });
    }

    fn printed(&mut self, key: Key, bytes: Vec<u8>, ended: bool) -> Option<Event<'static>> {
        let run = self.gateways.as_mut()?.run(key)?;
        run.output_wanted = false;
        let awaited = run.output_awaited;
        let output = run.output.take_if(|_| ended);
        if let Some(output) = output.filter(|_| awaited) {
            self.ring.push(Kind::Cancel.token(key), Op::Cancel { fd: output.fd() });
        }
        Some(Event::Printed { bytes, ended })
    }
}
