//! In place of the module host, in a build without it: there are no modules, which the configuration has seen to.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::Asker;
use crate::config::Config;
use crate::gateway::messages::{Refusal, ToWorker, Why};
use crate::sys::process::{Ended, Pid, User};

/// No host.
pub struct Modules;

impl Modules {
    /// None.
    pub fn new(_config: Rc<Config>, _user: Option<User>) -> Self {
        Self
    }

    /// Nothing.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// None is.
    pub fn is_host(&self, _pid: Pid) -> bool {
        false
    }

    /// There is none.
    pub fn is_alive(&self) -> bool {
        false
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn start(&mut self, _asker: Asker, _message: &[u8], _descriptors: &[OwnedFd]) -> Result<(), Refusal> {
        Err(Refusal::Broken)
    }

    /// Nothing runs.
    pub fn end(&mut self, _is_it: impl Fn(&Asker) -> bool, _why: Why) {}

    /// Nobody speaks.
    pub fn listen(&mut self, _answer: impl FnMut(Asker, ToWorker)) {}

    /// Nobody was there.
    pub fn ended(&mut self, _how: Ended, _answer: impl FnMut(Asker, ToWorker)) {}

    /// Nobody is there.
    pub fn stop(&mut self, _surely: bool) {}
}
