//! The access log's way out.
//!
//! Lines are gathered and appended in batches through the ring. A log that cannot be written loses
//! lines, which are counted; it never holds up a request.

use std::time::{Duration, Instant};

use super::Worker;
use super::slots::Key;
use super::tokens::Kind;
use crate::config::LogFormat;
use crate::observe::access_log::Form;
use crate::observe::names::Counter;
use crate::ring::{Op, Payload, Ring};
use crate::sys::Errno;
use crate::sys::fds::{Descriptor, Fd};

/// A batch this large is written at once.
const BATCH: usize = 32 * 1024;
/// A smaller one after this long.
const BATCH_TIME: Duration = Duration::from_millis(500);
/// While one batch is being written, the next may grow to this; what comes then is lost.
const BACKLOG_MAX: usize = 1024 * 1024;

/// Where lines go, and the batch under way.
#[derive(Debug)]
pub struct Log {
    fd: Option<Fd>,
    /// Set when the log was reopened; owns what `fd` names.
    reopened: Option<Descriptor>,
    writing: bool,
    since: Option<Instant>,
    /// Whether a batch was not written, or only in part: the log may end within a line, of this worker or
    /// of another.
    torn: bool,
}

impl Log {
    /// Lines go to `fd`, or nowhere.
    pub fn new(fd: Option<Fd>) -> Self {
        Self { fd, reopened: None, writing: false, since: None, torn: false }
    }

    /// When the batch is to be written though it is small.
    pub fn flushes_at(&self) -> Option<Instant> {
        self.since.filter(|_| !self.writing).map(|since| since + BATCH_TIME)
    }

    /// Lines go elsewhere from now on.
    pub fn reopen(&mut self, descriptor: Option<Descriptor>) {
        if let Some(descriptor) = descriptor {
            self.fd = Some(descriptor.fd());
            self.reopened = Some(descriptor);
        }
    }
}

impl<R: Ring> Worker<R> {
    /// Writes the batch when it is time.
    pub(super) fn flush_log(&mut self) {
        let pending = self.shared.log.pending();
        let Some(fd) = self.log.fd.filter(|_| pending > 0) else { return };
        let now = self.shared.clock.now;
        let since = *self.log.since.get_or_insert(now);
        if self.log.writing {
            if pending > BACKLOG_MAX {
                let lost = self.shared.log.discard();
                self.shared.counters.add(Counter::LogLinesLost, lost);
            }
            return;
        }
        let retiring = self.listening.is_over();
        if pending < BATCH && since + BATCH_TIME > now && !retiring {
            return;
        }
        let mut bytes = self.shared.log.take(self.shared.buffers.large());
        if std::mem::take(&mut self.log.torn) {
            bytes.insert(0, b'\n');
        }
        self.append(fd, bytes);
    }

    fn append(&mut self, fd: Fd, bytes: Vec<u8>) {
        self.log.writing = true;
        self.log.since = None;
        let key = Key { slot: 0, reuse: 0 };
        self.ring.push(Kind::Append.token(key), Op::Append { fd, bytes });
    }

    /// A batch was written, in whole or in part, or not.
    pub(super) fn appended(&mut self, result: Result<usize, Errno>, payload: Payload) {
        self.log.writing = false;
        let Payload::Memory(mut bytes) = payload else { return };
        match result {
            Ok(written) if written < bytes.len() && written > 0 => {
                bytes.drain(..written);
                if let Some(fd) = self.log.fd {
                    return self.append(fd, bytes);
                }
            }
            Ok(written) if written == bytes.len() => {}
            _ => {
                self.log.torn = true;
                let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
                // One at the start ends a line that was written.
                let ended = usize::from(bytes.first() == Some(&b'\n'));
                self.shared.counters.add(Counter::LogLinesLost, (lines - ended) as u64);
            }
        }
        self.shared.buffers.give(bytes);
    }

    /// Whether nothing waits to be logged.
    pub(super) fn log_is_written(&self) -> bool {
        self.log.fd.is_none() || (!self.log.writing && self.shared.log.pending() == 0)
    }
}

/// The form of lines the operator chose.
pub(super) fn form(format: LogFormat) -> Form {
    match format {
        LogFormat::Combined => Form::Combined,
        LogFormat::Json => Form::Json,
    }
}
