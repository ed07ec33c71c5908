//! The module host, as the spawner sees it: a process it keeps, which is sent requests as workers sent them and
//! answers in the same words. Made anew when it died and somebody asks again.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Asker;
use crate::config::Config;
use crate::gateway::messages::{Message, Refusal, ToSpawner, ToWorker, Why};
use crate::gateway::wcgi;
use crate::observe::log;
use crate::sys::process::{self, Ended, Fork, Kill, Pid, User};
use crate::sys::{Error, pass, signals};

/// A host that dies at once is not made again for every request.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The host and what it was asked.
pub struct Modules {
    config: Rc<Config>,
    user: Option<User>,
    /// Its channel is closed once it was told to end.
    host: Option<(Pid, Option<OwnedFd>)>,
    made_at: Option<Instant>,
    /// By the number the host knows it by: who asked, and whether it was started.
    asked: HashMap<u64, (Asker, bool)>,
    next: u64,
}

impl Modules {
    /// Of a configuration. Its host is made now, so that the first request finds modules compiled.
    pub fn new(config: Rc<Config>, user: Option<User>) -> Self {
        let wanted = wcgi::is_wanted(&config);
        let mut own = Self { config, user, host: None, made_at: None, asked: HashMap::new(), next: 0 };
        if wanted {
            own.make();
        }
        own
    }

    /// To be waited for.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.host.as_ref()?.1.as_ref().map(OwnedFd::as_fd)
    }

    /// Whether a process is the host.
    pub fn is_host(&self, pid: Pid) -> bool {
        self.host.as_ref().is_some_and(|(host, _)| *host == pid)
    }

    /// Whether there is one.
    pub fn is_alive(&self) -> bool {
        self.host.is_some()
    }

    /// Passes on a message that decoded as a `Start`, with a number of our own: those of several workers are
    /// the same.
    ///
    /// # Errors
    /// What the worker is told.
    pub fn start(&mut self, asker: Asker, message: &[u8], descriptors: &[OwnedFd]) -> Result<(), Refusal> {
        if self.host.is_none() && self.made_at.is_none_or(|at| at.elapsed() > AGAIN_AFTER) {
            self.make();
        }
        let channel = self.host.as_ref().and_then(|(_, channel)| channel.as_ref()).ok_or(Refusal::Busy)?;
        self.next += 1;
        let mut message = message.to_vec();
        Message::<ToSpawner>::renumber(&mut message, self.next);
        let fds: Vec<BorrowedFd> = descriptors.iter().map(OwnedFd::as_fd).collect();
        pass::send_all(channel, &message, &fds).map_err(|_| Refusal::Busy)?;
        self.asked.insert(self.next, (asker, false));
        Ok(())
    }

    /// Has runs ended.
    pub fn end(&mut self, is_it: impl Fn(&Asker) -> bool, why: Why) {
        let Some((_, Some(channel))) = &self.host else { return };
        for (id, _) in self.asked.iter().filter(|(_, (asker, _))| is_it(asker)) {
            let mut bytes = Vec::new();
            Message { from: 0, to: 0, what: ToSpawner::End { id: *id, why } }.encode(&mut bytes);
            // A host whose channel is full ends runs by their own deadlines.
            let _ = pass::send(channel, &bytes, None);
        }
    }

    /// Takes what the host says, as answers for those who asked.
    pub fn listen(&mut self, mut answer: impl FnMut(Asker, ToWorker)) {
        let mut buffer = [0; 256];
        while let Some((_, Some(channel))) = &self.host {
            let length = match pass::receive(channel, &mut buffer) {
                Ok((length, _)) if length > 0 => length,
                // Its end is told by its process.
                _ => return,
            };
            let Some(Message { what, .. }) = Message::<ToWorker>::decode(&buffer[..length]) else {
                tracing::error!("the module host sent a message that is none");
                continue;
            };
            let number = match what {
                ToWorker::Hello => continue,
                ToWorker::Started { id, .. } | ToWorker::Refused { id, .. } | ToWorker::Exited { id, .. } => {
                    id
                }
            };
            let Some((asker, started)) = self.asked.get_mut(&number) else { continue };
            let (asker, id) = (*asker, asker.id);
            *started = true;
            let what = match what {
                ToWorker::Started { pid, nph, .. } => ToWorker::Started { id, pid, nph },
                ToWorker::Refused { why, .. } => ToWorker::Refused { id, why },
                ToWorker::Exited { how, cpu, overran, .. } => ToWorker::Exited { id, how, cpu, overran },
                ToWorker::Hello => continue,
            };
            if !matches!(what, ToWorker::Started { .. }) {
                self.asked.remove(&number);
            }
            answer(asker, what);
        }
    }

    /// The host has ended: so has what it ran.
    pub fn ended(&mut self, how: Ended, mut answer: impl FnMut(Asker, ToWorker)) {
        self.listen(&mut answer);
        self.host = None;
        if how != Ended::Exited(0) || !self.asked.is_empty() {
            tracing::error!("the module host ended: {how}; {} requests with it", self.asked.len());
        }
        for (_, (asker, started)) in self.asked.drain() {
            let id = asker.id;
            answer(
                asker,
                match started {
                    true => ToWorker::Exited { id, how, cpu: Duration::ZERO, overran: false },
                    false => ToWorker::Refused { id, why: Refusal::Broken },
                },
            );
        }
    }

    /// Has the host end, for the second time by force.
    pub fn stop(&mut self, surely: bool) {
        if let Some((pid, channel)) = &mut self.host {
            if surely {
                process::end(*pid, Kill::Surely);
            }
            // The end of what it reads is its order to end.
            *channel = None;
        }
    }

    fn make(&mut self) {
        self.made_at = Some(Instant::now());
        match self.fork() {
            Ok((pid, channel)) => self.host = Some((pid, Some(channel))),
            Err(error) => tracing::error!("there is no module host: {error}"),
        }
    }

    fn fork(&self) -> Result<(Pid, OwnedFd), Error> {
        let (ours, theirs) = pass::channel()?;
        match process::fork()? {
            Fork::Parent(pid) => Ok((pid, ours)),
            Fork::Child => {
                // Unwinding out of here would drop values of the spawner, which lives.
                let live = AssertUnwindSafe(|| self.live(theirs));
                match std::panic::catch_unwind(live) {
                    Ok(code) => std::process::exit(i32::from(code != ExitCode::SUCCESS)),
                    Err(_) => std::process::abort(),
                }
            }
        }
    }

    fn live(&self, channel: OwnedFd) -> ExitCode {
        log::speak_as("modules");
        if let Err(error) = process::close_all_but([channel.as_raw_fd()]) {
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
        signals::unblock();
        let (config, cache) = (&*self.config, self.config.cache.dir.as_deref());
        wcgi::run(wcgi::Start { config, channel, cache, user: self.user.as_ref() })
    }
}
